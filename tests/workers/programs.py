"""Small programs for tests of workers."""

from __future__ import annotations

from anygpu.program.graph import Node, Program
from anygpu.program.primitives import Binary, Input, Unary


def chain(size: int) -> Program:
    """tanh(x) + x."""
    return Program([Node(Input((size,), "float32")), Node(Unary("tanh"), (0,)), Node(Binary("add"), (1, 0))], [2])


def doubled(size: int) -> Program:
    return Program([Node(Input((size,), "float32")), Node(Binary("add"), (0, 0))], [1])
