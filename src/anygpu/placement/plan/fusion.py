"""The kernels that a program becomes, as predictions need them: roughly and quickly, without generating code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from anygpu.placement.plan.calibration import amount_of
from anygpu.program import primitives as p
from anygpu.program.dtypes import ITEMSIZE, KIND
from anygpu.program.graph import OperationClass, Program, node_costs
from anygpu.program.primitives import Primitive

# -- the work of one kernel, as predictions count it


#: Choosing one of two values by itself, element by element, is hard to foresee for a processor.
WEIGHT_OF_A_SELECTION = 4.0


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
    """How many times as long an operation takes as most of its class do; a selection as long as is given."""
    return of_a_selection if isinstance(op, p.Select) else op.weight(spec.dtype)


def is_wide(program: Program, position: int) -> bool:
    """Whether an operation is one of 64-bit numbers."""
    op, inputs = program.nodes[position]
    # Positions are 64-bit integers, whatever is sorted or searched.
    return _is_wide(program.specs[inputs[0] if op.gives_positions else position])


def _is_wide(spec: p.Spec) -> bool:
    return ITEMSIZE[spec.dtype] == (16 if KIND[spec.dtype] == "complex" else 8)


# -- which kernels a program becomes
#
# Roughly and quickly: enough to predict time and memory, not to generate code.
#
# An engine that does not fuse has one kernel for each operation. One that fuses stores few values: results, what
# matrix products, sums, sorts and the like make, and what these need whole. Everything else is computed inside of the
# kernels that use it (see `fused_kernels`).


#: Programs with more operations are taken to be kernels of one operation each. Grouping takes 70 µs for each, and more
#: for each of so many.
MOST_GROUPED = 5000
SECONDS_FOR_EACH = 7e-5

#: Kernels compute with words of 32 bits, and what they keep for one another is stored as that.
_WORD = 4


class KernelStructure(NamedTuple):
    """A program as kernels, in an order in which they can run."""

    kernels: tuple[Kernel, ...]
    #: Bytes that cross to the device and back, if inputs and results live elsewhere.
    bytes_in: int
    bytes_out: int
    #: The most that is held at once: inputs, results and tables all the time, what is between while it is needed.
    peak_bytes: int


@lru_cache(maxsize=1024)
def structure_of(program: Program, *, fuses: bool) -> KernelStructure:
    """The kernels of a program, with the bytes that cross to the device and the most memory that is held at once.

    With `fuses` they are grouped as code generation does, for programs of up to `MOST_GROUPED` nodes; otherwise each
    operation is a kernel. The last 1,024 answers are kept.
    """
    kernels = _fused(program) if fuses and len(program.nodes) <= MOST_GROUPED else _one_by_one(program)
    bytes_in = sum(spec.nbytes for spec in program.inputs)
    bytes_out = sum(spec.nbytes for spec in program.results)
    ends = bytes_in + bytes_out + sum(spec.nbytes for spec in tables_of(program))
    return KernelStructure(kernels, bytes_in, bytes_out, ends + most_at_once(temporaries_of(program, kernels)))


def _fused(program: Program) -> tuple[Kernel, ...]:
    """The kernels of an engine that fuses. The module is loaded late, because it loads code generation."""
    # It needs a part of code generation, which a process without such a device never loads.
    from anygpu.placement.plan.fused_kernels import fused_kernels

    return fused_kernels(program)


def tables_of(program: Program) -> list[p.Spec]:
    """Constants that are more than a number; they stay on the device with the program."""
    pairs = zip(program.nodes, program.specs, strict=True)
    return [spec for node, spec in pairs if isinstance(node.op, p.Constant) and spec.size > 1]


class HeldMemory(NamedTuple):
    """Memory that is needed from one kernel to another, by their numbers."""

    nbytes: int
    first: int
    last: int


def temporaries_of(program: Program, kernels: Sequence[Kernel]) -> list[HeldMemory]:
    """The values between inputs and results, in words as kernels compute with them."""
    outputs = set(program.outputs)
    last: dict[int, int] = {}
    for number, kernel in enumerate(kernels):
        for value in kernel.reads:
            last[value] = number
    found: list[HeldMemory] = []
    for number, kernel in enumerate(kernels):
        found += [
            HeldMemory(_words(program.specs[value]), number, last.get(value, number))
            for value in kernel.stored
            if value not in outputs
        ]
        for node in kernel.nodes:
            passing = _passing(program, node)
            if passing:
                found.append(HeldMemory(passing, number, number))
    return found


def most_at_once(blocks: Iterable[tuple[int, int, int]]) -> int:
    """The most bytes that are held at one moment, of blocks that are each held from a first moment to a last."""
    changes: dict[int, int] = {}
    for nbytes, first, last in blocks:
        changes[first] = changes.get(first, 0) + nbytes
        changes[last + 1] = changes.get(last + 1, 0) - nbytes
    held = most = 0
    for moment in sorted(changes):
        held += changes[moment]
        most = max(most, held)
    return most


def _passing(program: Program, node: int) -> int:
    """The temporary memory of an operation that goes over its values several times."""
    op, inputs = program.nodes[node]
    # Several updates of one element are sorted by their places first, or put into copies that are joined later.
    largest = inputs[2] if isinstance(op, p.Scatter) else node
    return op.scratch_copies * _words(program.specs[largest])


def _words(spec: p.Spec) -> int:
    return spec.size * max(ITEMSIZE[spec.dtype], _WORD)


def _one_by_one(program: Program) -> tuple[Kernel, ...]:
    """A kernel for each operation that is not a view: the kernels of an engine that does not fuse."""
    #: For each value the one that was computed, which it is or looks at. Views cost nothing, even as results.
    behind: list[int] = []
    found = []
    for position, cost in enumerate(node_costs(program)):
        op, inputs = program.nodes[position]
        is_view = op.is_view
        behind.append(behind[inputs[0]] if is_view else position)
        if is_view or isinstance(op, p.Input | p.Constant):
            continue
        traffic = cost.bytes_read + cost.bytes_written
        amount = amount_of(cost) * weight_of(op, program.specs[position], WEIGHT_OF_A_SELECTION)
        wide = is_wide(program, position)
        elements = program.specs[position].size
        reads = tuple(behind[source] for source in inputs)
        found.append(Kernel(cost.kind, amount, traffic, elements, 0, 0, wide, (position,), reads, (position,)))
    return tuple(found)
