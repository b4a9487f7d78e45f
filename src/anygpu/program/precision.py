"""A program in single precision: 64-bit numbers become 32-bit ones. Only ever on request."""

from __future__ import annotations

import struct

import msgspec

from anygpu.program.custom import Custom, with_references
from anygpu.program.dtypes import DType
from anygpu.program.graph import Node, Program
from anygpu.program.primitives import Cast, Constant, Input, Iota, Primitive

NARROWER: dict[DType, DType] = {
    "float64": "float32",
    "complex128": "complex64",
    "int64": "int32",
    "uint64": "uint32",
}

#: As `struct` spells the numbers; a complex one is two of them.
_FORMATS: dict[DType, str] = {
    "float64": "d",
    "float32": "f",
    "complex128": "d",
    "complex64": "f",
    "int64": "q",
    "int32": "i",
    "uint64": "Q",
    "uint32": "I",
}


def in_single_precision(program: Program) -> Program:
    """The same program on 32-bit numbers, from its inputs to its results.

    Positions that a primitive itself gives in int64 (as `argmax` does) are narrowed right behind it.
    """
    if any(isinstance(op, Custom) and any(each.dtype in NARROWER for each in op.parameters) for op, _ in program.nodes):
        program = with_references(program, None)
    nodes: list[Node] = []
    numbers: list[int] = []
    lines = []
    for position, (op, inputs) in enumerate(program.nodes):
        narrow = _narrow(op)
        numbers.append(len(nodes))
        nodes.append(Node(narrow, tuple(numbers[source] for source in inputs)))
        lines.append(program.lines[position])
        given = program.specs[position].dtype
        if given in NARROWER and _is_index_maker(op):
            numbers[-1] = len(nodes)
            nodes.append(Node(Cast(NARROWER[given]), (len(nodes) - 1,)))
            lines.append(program.lines[position])
    return Program(nodes, [numbers[output] for output in program.outputs], lines=lines)


def _is_index_maker(op: Primitive) -> bool:
    return op.name in ("argmax", "argmin", "argsort", "search")


def _narrow(op: Primitive) -> Primitive:
    if isinstance(op, Constant) and op.dtype in NARROWER:
        return Constant(op.shape, NARROWER[op.dtype], _converted(op.data, op.dtype, NARROWER[op.dtype]))
    if isinstance(op, Input | Iota | Cast) and op.dtype in NARROWER:
        return msgspec.structs.replace(op, dtype=NARROWER[op.dtype])
    return op


def _converted(data: bytes, source: DType, target: DType) -> bytes:
    wide, narrow = _FORMATS[source], _FORMATS[target]
    count = len(data) // struct.calcsize(wide)
    numbers = struct.unpack(f"<{count}{wide}", data)
    if narrow == "f":
        return struct.pack(f"<{count}f", *(_single(number) for number in numbers))
    low, high = (-(1 << 31), (1 << 31) - 1) if narrow == "i" else (0, (1 << 32) - 1)
    # A limit such as the largest int64 stays a limit.
    return struct.pack(f"<{count}{narrow}", *(min(max(number, low), high) for number in numbers))


def _single(number: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", number))[0])
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")
