"""A user's kernel in the form in which a driver takes it: text, and where its numbers come from."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np

from anygpu.program.ops.custom import Scalar, Three


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
