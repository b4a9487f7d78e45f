"""The work of one kernel, as predictions count it."""

from __future__ import annotations

import math
from typing import NamedTuple

from anygpu.program import primitives as p
from anygpu.program.costs import OperationClass
from anygpu.program.dtypes import ITEMSIZE, KIND
from anygpu.program.functions import FUNCTIONS
from anygpu.program.graph import Program
from anygpu.program.primitives import Primitive

_MOST_OF_INTEGERS = 3.0
#: Choosing one of two values by itself, element by element, is hard to foresee for a processor.
WEIGHT_OF_A_SELECTION = 4.0
#: Transforms whose length has a large prime factor are convolutions of more than twice that length.
_LARGE_PRIME, _WEIGHT_OF_A_PRIME = 50, 4.0


class Kernel(NamedTuple):
    """The work of one kernel."""

    #: The class of what it is there for, and how much of that it does (see `amount_of`).
    kind: OperationClass
    amount: float
    #: Bytes that it reads from memory and writes there.
    traffic: int
    #: Elements of the largest value that it computes.
    elements: int
    #: Operations that it does besides: functions such as `exp`, and everything else that is elementwise.
    functions: int
    others: int
    #: Whether it computes in 64-bit types.
    wide: bool
    nodes: tuple[int, ...]
    #: The values that it finds in memory, inputs among them, and those that it leaves there.
    reads: tuple[int, ...]
    stored: tuple[int, ...]


def weight_of(op: Primitive, spec: p.Spec, of_a_selection: float = 1.0) -> float:
    if isinstance(op, p.Unary | p.Binary):
        weight = FUNCTIONS[op.fn].weight
        return weight if KIND[spec.dtype] in ("float", "complex") else min(weight, _MOST_OF_INTEGERS)
    if isinstance(op, p.Fourier):
        return _WEIGHT_OF_A_PRIME if _largest_prime(op.length) > _LARGE_PRIME else 1.0
    return of_a_selection if isinstance(op, p.Select) else 1.0


def convolution_factor(op: p.Primitive) -> float:
    """How much longer a transform takes whose length has a large prime factor: two longer ones make it."""
    if not isinstance(op, p.Fourier) or op.length < 2:
        return 1.0
    # A part of code generation: few programs transform anything.
    from anygpu.codegen.templates.fourier import factors_of, smooth_length

    if factors_of(op.length) is not None:
        return 1.0
    length = smooth_length(2 * op.length - 1)
    # They are complex, also where half of a transform of real numbers would do.
    halves = 2 if op.fn in ("rfft", "irfft") else 1
    return halves * 2 * length * math.log2(length) / (op.length * math.log2(op.length))


def _largest_prime(number: int) -> int:
    """The largest prime factor."""
    factor = 2
    while factor * factor <= number:
        number, factor = (number // factor, factor) if number % factor == 0 else (number, factor + 1)
    return number


def is_wide(program: Program, position: int) -> bool:
    """Whether an operation is one of 64-bit numbers."""
    op, inputs = program.nodes[position]
    # Positions are 64-bit integers, whatever is sorted or searched.
    return _is_wide(program.specs[inputs[0] if op.gives_positions else position])


def _is_wide(spec: p.Spec) -> bool:
    return ITEMSIZE[spec.dtype] == (16 if KIND[spec.dtype] == "complex" else 8)
