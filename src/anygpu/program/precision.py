"""A program in another precision: in single precision on request alone, in double precision to judge results by."""

from __future__ import annotations

from anygpu.program.dtypes import NARROWER, DType
from anygpu.program.graph import Node, Program
from anygpu.program.ops.custom import Custom, with_references
from anygpu.program.ops.elementwise import Cast
from anygpu.program.ops.source import Constant, Input, Iota, converted
from anygpu.program.primitive import Primitive


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
        numbers.append(len(nodes))
        nodes.append(Node(op.in_single_precision(), tuple(numbers[source] for source in inputs)))
        lines.append(program.lines[position])
        given = program.specs[position].dtype
        if given in NARROWER and op.gives_positions:
            numbers[-1] = len(nodes)
            nodes.append(Node(Cast(NARROWER[given]), (len(nodes) - 1,)))
            lines.append(program.lines[position])
    return Program(nodes, [numbers[output] for output in program.outputs], lines=lines)


#: What narrow floats become in double precision.
WIDER: dict[DType, DType] = {
    "float16": "float64",
    "float32": "float64",
    "complex64": "complex128",
}


def in_double_precision(program: Program) -> Program | None:
    """The same program with all its floats in 64 bits; `None` for one with a kernel of the user's own.

    What it gives is nearer to the exact result than what floats of 32 bits give, by many digits.
    """
    if any(isinstance(op, Custom) for op, _ in program.nodes):
        return None
    nodes = [Node(_in_double_precision(op), inputs) for op, inputs in program.nodes]
    return Program(nodes, list(program.outputs), lines=list(program.lines))


def _in_double_precision(op: Primitive) -> Primitive:
    wide = WIDER.get(getattr(op, "dtype", "bool"))
    if wide is None:
        return op
    if isinstance(op, Input):
        return Input(op.shape, wide)
    if isinstance(op, Constant):
        return Constant(op.shape, wide, converted(op.data, op.dtype, wide))
    if isinstance(op, Iota):
        return Iota(op.length, wide)
    return Cast(wide) if isinstance(op, Cast) else op
