"""A running error analysis: the program, node by node on real inputs, with a bound for every element.

Values are what NumPy computes, in the program's own types; bounds are float64. What a device returns is right when it
lies within the bound of what NumPy returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from anygpu._typing import HostArray
from anygpu.agreement import along_axes as along_axes  # which adds to BOUNDS
from anygpu.agreement.elementwise import BOUNDS, Bound, filled, or_none
from anygpu.engines.numpy.lowering import LOWER, run_node
from anygpu.program import primitives as p
from anygpu.program.costs import last_uses
from anygpu.program.dtypes import DType
from anygpu.program.graph import Program
from anygpu.program.independence import cut, independent_cuts
from anygpu.program.ops.custom import Custom, with_references

#: Elements of a piece.
_PIECE = 1 << 16
#: What an analysis may hold at a time.
MOST_BYTES = 2 << 30


class TooLarge(Exception):
    """The analysis would take more memory than it may."""


class Flag(NamedTuple):
    """A floating-point exception that NumPy would warn of."""

    #: "divide by zero", "overflow" or "invalid value".
    kind: str
    #: The node's operation as NumPy names it, and the user's line.
    operation: str
    line: tuple[str, int] | None


class Analysis(NamedTuple):
    #: For each output: NumPy's result of the program, and how far two correct results may differ.
    values: list[HostArray]
    bounds: list[Bound]
    flags: frozenset[Flag]


def analyse(program: Program, inputs: Sequence[HostArray], *, most_bytes: int = MOST_BYTES) -> Analysis:
    """How far two correct results may differ in every element of every output, and NumPy's warnings.

    Large programs are analysed in pieces along an axis that is independent, which stay in the processor's cache.
    """
    largest = max(spec.size for spec in program.specs)
    if largest > _PIECE:
        found = _in_pieces(program, inputs, most_bytes)
        if found is not None:
            return found
    return _analyse(program, inputs, most_bytes)


def _in_pieces(program: Program, inputs: Sequence[HostArray], most_bytes: int) -> Analysis | None:
    """`None` where it cannot be cut, or would do most of the work again for every piece."""
    ways = independent_cuts(program)
    if not ways or None in ways[0].outputs:
        return None
    way = ways[0]
    whole = sum(spec.size for spec, axis in zip(program.inputs, way.inputs, strict=True) if axis is None)
    if whole > _PIECE:
        return None
    largest = max(spec.size for spec in program.specs)
    length = max(1, way.length * _PIECE // largest)
    bounds: list[Bound] = [None] * len(program.outputs)
    values = [np.empty(spec.shape, spec.dtype) for spec in program.results]
    flags: set[Flag] = set()
    for start in range(0, way.length, length):
        stop = min(start + length, way.length)
        given = [
            each if axis is None else each[(slice(None),) * axis + (slice(start, stop),)]
            for each, axis in zip(inputs, way.inputs, strict=True)
        ]
        found = _analyse(cut(program, way, start, stop), given, most_bytes)
        flags |= found.flags
        for number, (bound, axis) in enumerate(zip(found.bounds, way.outputs, strict=True)):
            assert axis is not None
            place = (slice(None),) * axis + (slice(start, stop),)
            values[number][place] = found.values[number]
            if bound is not None:
                known = bounds[number]
                if known is None:
                    known = bounds[number] = np.zeros(program.results[number].shape)
                known[place] = bound
    return Analysis(list(values), bounds, frozenset(flags))


def _analyse(program: Program, inputs: Sequence[HostArray], most_bytes: int) -> Analysis:
    program = with_references(program, None)
    values: list[Any] = [None] * len(program.nodes)
    bounds: list[Bound] = [None] * len(program.nodes)
    last_use = last_uses(program)
    outputs = set(program.outputs)
    flags: set[Flag] = set()
    held = 0
    for position, (op, sources) in enumerate(program.nodes):
        dtype = program.specs[position].dtype
        given = [values[source] for source in sources]
        if isinstance(op, p.Input):
            values[position] = inputs[position]
        else:
            raised: set[str] = set()
            values[position] = _flagged(op, given, raised)
            line = program.lines[position]
            flags.update(Flag(kind, _spoken(op), line) for kind in raised)
            with np.errstate(all="ignore"):
                bounds[position] = _bound_after(op, dtype, given, [bounds[s] for s in sources], values[position])
        held += _bytes_of(values[position], bounds[position])
        if held > most_bytes:
            raise TooLarge
        for source in last_use[position]:
            held -= _bytes_of(values[source], bounds[source])
            if source not in outputs:
                values[source] = None
                bounds[source] = None
    found = [values[output] for output in program.outputs]
    return Analysis(found, [bounds[output] for output in program.outputs], frozenset(flags))


def flags_of(program: Program, inputs: Sequence[HostArray]) -> frozenset[Flag]:
    """The floating-point exceptions that NumPy would warn of, without bounds."""
    program = with_references(program, None)
    values: list[Any] = [None] * len(program.nodes)
    last_use = last_uses(program)
    flags: set[Flag] = set()
    for position, (op, sources) in enumerate(program.nodes):
        if isinstance(op, p.Input):
            values[position] = inputs[position]
        else:
            raised: set[str] = set()
            values[position] = _flagged(op, [values[source] for source in sources], raised)
            flags.update(Flag(kind, _spoken(op), program.lines[position]) for kind in raised)
        for source in last_use[position]:
            values[source] = None
    return frozenset(flags)


def _bytes_of(value: Any, bound: Bound) -> int:
    return int(value.nbytes) + (0 if bound is None else bound.nbytes)


def _flagged(op: p.Primitive, given: Sequence[HostArray], raised: set[str]) -> HostArray:
    """The node's value; what kinds of exceptions it raised are added."""

    def heard(kind: str, flag: int) -> None:
        raised.add(kind)

    with np.errstate(divide="call", over="call", invalid="call", under="ignore", call=heard):
        if isinstance(op, p.Linear):
            return run_node(op, given)
        return np.asarray(LOWER[type(op)](op, *given))


def _spoken(op: p.Primitive) -> str:
    return {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "acosh": "arccosh", "atanh": "arctanh"}.get(
        op.name, op.name
    )


def _bound_after(
    op: p.Primitive, dtype: DType, given: Sequence[HostArray], bounds: Sequence[Bound], value: HostArray
) -> Bound:
    if op.is_movement:
        if all(bound is None for bound in bounds):
            return None
        return or_none(run_node(op, [filled(bound, x.shape) for bound, x in zip(bounds, given, strict=True)]))
    rule = BOUNDS.get(type(op))
    if rule is not None:
        return rule(op, dtype, given, bounds, value)
    if isinstance(op, Custom):  # a kernel without a reference: nothing is known of it
        return np.full(value.shape, np.inf)
    if isinstance(op, p.Iota) and value.dtype.kind == "f" and op.length > 2.0 ** (value.dtype.itemsize * 6):
        return np.spacing(value).astype(np.float64)
    return None
