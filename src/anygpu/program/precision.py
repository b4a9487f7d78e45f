"""A program in single precision: 64-bit numbers become 32-bit ones. Only ever on request."""

from __future__ import annotations

from anygpu.program.dtypes import NARROWER
from anygpu.program.graph import Node, Program
from anygpu.program.ops.custom import Custom, with_references
from anygpu.program.ops.elementwise import Cast


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
