"""Records of a user's kernel: what its text says of itself, the form that a driver takes, and a compiler's messages."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from anygpu.engines.codegen.custom.expressions import ConstantNumber
from anygpu.program.ops.custom import Language, Parameter, Scalar, Three

ScalarType = Literal["int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]


class ScalarParameter(msgspec.Struct, frozen=True):
    """A number that the kernel takes; `anygpu.program.ops.custom.Scalar` is this with a value."""

    name: str
    dtype: ScalarType


class Length(msgspec.Struct, frozen=True):
    """The lengths that a buffer may have: any multiple of a number, or exactly that number."""

    multiple: int = 1
    exactly: int | None = None


class Reflected(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a kernel that its text states."""

    language: Language
    #: The function in the text.
    entry: str
    #: With the values of the constants in it. Lines are those of the user's own text.
    source: str
    #: Its buffers: in WGSL by their binding, in OpenCL C in the order of the parameters.
    parameters: tuple[Parameter, ...]
    scalars: tuple[ScalarParameter, ...]
    #: The names of all of them in the order in which a call gives them.
    order: tuple[str, ...]
    #: Invocations of a group; `None` where the text leaves it open (OpenCL C without reqd_work_group_size).
    group: Three | None
    #: Every constant that a call may choose, with the value that it has now.
    constants: dict[str, ConstantNumber]
    #: For buffers that do not take every length.
    lengths: dict[str, Length]
    #: Whether a grid of more groups than one dimension of the device has can be run all the same.
    foldable: bool
    #: Bytes that the invocations of a group share.
    group_memory: int = 0


# -- a user's kernel in the form in which a driver takes it
#
# Text, and where its numbers come from.


class Word(NamedTuple):
    """A word of the status: which array it is about, and how long that is; `None` for a buffer's own length."""

    array: str
    length: int | None


class Taken(NamedTuple):
    """A number of the kernel: where it is from, and at which byte of the block of numbers it is."""

    kind: Literal["length", "scalar", "first_word", "groups", "row"]
    name: str
    place: int
    nbytes: int = 4


class Prepared(NamedTuple):
    """Independent of lengths, values and grids, so that it is compiled once."""

    source: str
    #: The words of the status that it writes to; none when nothing is checked, and then there is no status either.
    words: tuple[Word, ...]
    numbers: tuple[Taken, ...]
    #: The size of the numbers, a multiple of 4.
    nbytes: int
    #: The fewest elements of buffers that are used in vectors; those may also be empty.
    least: tuple[tuple[str, int], ...] = ()
    #: Bytes of the arrays that each invocation has for itself, as far as they are looked at.
    private: int = 0


def number_words(
    prepared: Prepared,
    lengths: Mapping[str, int],
    scalars: Mapping[str, Scalar],
    first_word: int,
    groups: Three,
    row: int,
) -> tuple[int, ...]:
    """The numbers of one launch as 32-bit words."""
    data = bytearray(prepared.nbytes)
    for kind, name, place, _ in prepared.numbers:
        match kind:
            case "length":
                packed = struct.pack("<I", lengths[name])
            case "scalar":
                packed = np.array(scalars[name].value, scalars[name].dtype).tobytes()
            case "first_word":
                packed = struct.pack("<I", first_word)
            case "groups":
                packed = struct.pack("<I", groups["xyz".index(name)])
            case "row":
                packed = struct.pack("<I", row)
        data[place : place + len(packed)] = packed
    return struct.unpack(f"<{len(data) // 4}I", data)


# -- parses compilers' messages on a user's text
#
# The first place that they name, and their own words.
#
# Neither library tells it other than in words. This is the one place that knows what these look like.


#: naga draws the place under its message: "┌─ wgsl:3:11".
_NAGA_PLACE = re.compile(r"┌─ [^\n]*?:(\d+):(\d+)")
_NAGA_HEAD = re.compile(r"^Shader (?:'[^\n]*?' )?(?:parsing|validation) error: ", re.MULTILINE)
#: Clang: "file.cl:2:11: error: expected expression"; through PoCL: "error: file.cl:2:11: expected expression".
_CLANG = re.compile(
    r"^(?:(?P<path>[^\n:]*):(?P<line>\d+):(?P<column>\d+): (?:fatal )?error: |"
    r"(?:fatal )?error: (?P<path2>[^\n:]*):(?P<line2>\d+):(?P<column2>\d+): )(?P<words>[^\n]*)$",
    re.MULTILINE,
)
#: No message needs to be longer for a person.
_MOST_WORDS = 4000


class Complaint(NamedTuple):
    """A compiler's message: the place that it names, if any, and its words."""

    line: int | None
    column: int | None
    words: str


def of_naga(words: str) -> Complaint:
    head = _NAGA_HEAD.search(words)
    said = words[head.end() :] if head is not None else words
    place = _NAGA_PLACE.search(said)
    said = said.rstrip()[:_MOST_WORDS]
    if place is None:
        return Complaint(None, None, said)
    return Complaint(int(place[1]), int(place[2]), said)


def of_clang(words: str) -> Complaint:
    """The first error gives the place; all of them are told, each with its own."""
    found = list(_CLANG.finditer(words))
    if not found:
        return Complaint(None, None, words.strip()[:_MOST_WORDS])
    lines = []
    for each in found:
        path = each["path"] or each["path2"] or ""
        line, column = each["line"] or each["line2"], each["column"] or each["column2"]
        said = each["words"].replace(path, "the kernel") if path else each["words"]
        lines.append(f"{line}:{column}: {said}")
    first = found[0]
    words = "\n".join(lines) if len(lines) > 1 else lines[0].partition(": ")[2]
    return Complaint(
        int(first["line"] or first["line2"]), int(first["column"] or first["column2"]), words[:_MOST_WORDS]
    )
