"""The byte form of a program: versioned, and checked in full when it is read.

A program is data, so a worker can take one from a peer that it does not trust. Whatever the bytes are, reading them
gives a program that is right in shape and type, or `InvalidProgram`; and it takes bounded time and memory.

The form is MessagePack: `["anygpu.program", version, nodes, outputs, files, lines]`. A node is `[primitive, inputs]`,
a primitive `[tag, attribute, …]`, and a line `[position in files, line number]` or nil.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, Literal, Union

import msgspec

from anygpu.base.printable import printable
from anygpu.errors import InvalidProgram
from anygpu.program.graph import Line, Node, Program
from anygpu.program.primitives import PRIMITIVES, SPECIAL, Primitive

if TYPE_CHECKING:
    _AnyPrimitive = Primitive
else:
    _AnyPrimitive = Union[(*PRIMITIVES, *SPECIAL)]

FORMAT = "anygpu.program"
VERSION = 1

#: Data travels as inputs, so programs are small: a node takes some twenty bytes. A record in memory takes up to ten
#: times its bytes (a number of one byte is a pointer of eight): a hostile sender can make us hold 150 MiB, shapes
#: included.
MAX_BYTES = 8 << 20
#: Checking a node takes some microseconds, and fifty with 64 axes: three seconds for the worst that fits the bytes.
MAX_NODES = 100_000
#: The limit for all nodes together, because one `Concatenate` alone may have any number of inputs.
MAX_EDGES = 4 * MAX_NODES
#: The longest path that Linux knows.
MAX_FILE_NAME = 4096

_Positions = Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_NODES)]
_FileName = Annotated[str, msgspec.Meta(max_length=MAX_FILE_NAME)]
_Lines = Annotated[tuple[tuple[int, int] | None, ...], msgspec.Meta(max_length=MAX_NODES)]


class _Head(msgspec.Struct, array_like=True, frozen=True):
    """The fields that every version begins with."""

    format: str
    version: int


class _Record(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The byte form as msgspec reads it: types and limits are checked before anything is built from it."""

    format: Literal["anygpu.program"]
    version: Literal[1]
    nodes: Annotated[tuple[tuple[_AnyPrimitive, _Positions], ...], msgspec.Meta(max_length=MAX_NODES)]
    outputs: _Positions
    files: Annotated[tuple[_FileName, ...], msgspec.Meta(max_length=MAX_NODES)] = ()
    #: Empty when no line is known.
    lines: _Lines = ()


_HEAD = msgspec.msgpack.Decoder(_Head)
_ENCODER = msgspec.msgpack.Encoder()


@cache
def _record_decoder() -> msgspec.msgpack.Decoder[_Record]:
    """Made when the first program is read: it takes 10 ms, and most processes only write programs."""
    return msgspec.msgpack.Decoder(_Record)


def to_bytes(program: Program, *, lines: bool = True) -> bytes:
    """The byte form; without `lines` it does not tell the names of the user's files."""
    _check_size(program.nodes, program.outputs)
    files, places = _tables(program.lines) if lines else ((), ())
    record = _Record(FORMAT, VERSION, program.nodes, program.outputs, files, places)  # type: ignore[arg-type]
    try:
        data = _ENCODER.encode(record)
    except (OverflowError, TypeError) as error:  # attributes that are no plain numbers of 64 bits
        raise InvalidProgram(f"this program cannot be written: {error}.") from None
    if len(data) > MAX_BYTES:
        raise InvalidProgram(_too_long(len(data)))
    return data


def from_bytes(data: bytes) -> Program:
    """The program, after every rule has been checked. Raises `InvalidProgram`, and nothing else, for bad bytes."""
    if len(data) > MAX_BYTES:
        raise InvalidProgram(_too_long(len(data)))
    try:
        head = _HEAD.decode(data)
        _check_head(head)
        record = _record_decoder().decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidProgram(f"these bytes are not a program: {_brief(error)}.") from None
    except RecursionError:
        raise InvalidProgram("these bytes are not a program: they are nested too deeply.") from None
    nodes = tuple(Node(op, inputs) for op, inputs in record.nodes)
    _check_size(nodes, record.outputs)
    return Program(nodes, record.outputs, lines=_lines(record))


def _check_head(head: _Head) -> None:
    """Raise `InvalidProgram` unless the bytes are a program of the version that this anygpu reads."""
    if head.format != FORMAT:
        raise InvalidProgram(f"these bytes are not a program: they do not begin with {FORMAT!r}.")
    if head.version != VERSION:
        advice = "; update anygpu here, or write with an older one" if head.version > VERSION else ""
        raise InvalidProgram(
            f"these bytes are version {head.version} of a program, and this anygpu reads version {VERSION}{advice}."
        )


def _check_size(nodes: tuple[Node, ...], outputs: tuple[int, ...]) -> None:
    """Raise `InvalidProgram` where a program has more nodes, edges or results than the byte form may hold."""
    edges = sum(len(node.inputs) for node in nodes)
    for count, limit, what in (
        (len(nodes), MAX_NODES, "nodes"),
        (edges, MAX_EDGES, "inputs of nodes"),
        (len(outputs), MAX_NODES, "results"),
    ):
        if count > limit:
            raise InvalidProgram(f"the byte form holds at most {limit:,} {what}, not {count:,}; cut the program.")


def _tables(lines: tuple[Line | None, ...]) -> tuple[tuple[str, ...], tuple[tuple[int, int] | None, ...]]:
    """Each file name once, because hundreds of nodes come from one file."""
    if not any(lines):
        return (), ()
    files: dict[str, int] = {}
    places = tuple(line and (files.setdefault(line[0], len(files)), line[1]) for line in lines)
    return tuple(_portable(file) for file in files), places


def _lines(record: _Record) -> list[Line | None] | None:
    """The user's line of each node, with file names looked up; `None` where none were written.

    Raises `InvalidProgram` for a number of a file that the record does not have.
    """
    if not record.lines:
        return None
    lines: list[Line | None] = []
    for place in record.lines:
        if place is not None and not 0 <= place[0] < len(record.files):
            raise InvalidProgram(f"a line is in file {place[0]} of {len(record.files)}.")
        lines.append(place and (record.files[place[0]], place[1]))
    return lines


def _portable(file: str) -> str:
    """The end of it as UTF-8, which a name from the file system need not be."""
    return file[-MAX_FILE_NAME:].encode("utf-8", "replace").decode()


def _too_long(count: int) -> str:
    return f"the byte form of a program has at most {MAX_BYTES:,} bytes, not {count:,}."


def _brief(error: Exception) -> str:
    """The message of msgspec, which may quote the bytes that it has read."""
    return printable(str(error), most=200).rstrip(".")
