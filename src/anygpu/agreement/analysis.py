"""A running error analysis: the program, node by node on real inputs, with a bound for every element.

Values are what NumPy computes, in the program's own types; bounds are float64. What a device returns is right when it
lies within the bound of what NumPy returned.

`analyse` looks at a whole program, in pieces that stay in the processor's cache where an axis is independent. `Pieces`
analyses chosen positions along such an axis; `analyse_rows` chosen rows of a program that has none. `flags_of` runs the
program for NumPy's warnings alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from anygpu.agreement import along_axes as along_axes  # which adds to BOUNDS
from anygpu.agreement.elementwise import BOUNDS, Bound, filled, or_none
from anygpu.base.interrupts import float_errors_ignored
from anygpu.base.typing import HostArray
from anygpu.engines.numpy.lowering import LOWER, run_node
from anygpu.program import primitives as p
from anygpu.program.dtypes import DType
from anygpu.program.functions import FUNCTIONS
from anygpu.program.graph import Program, last_uses
from anygpu.program.independence import Cut, cut, independent_cuts
from anygpu.program.ops.custom import Custom, with_references

#: Elements of a piece.
_PIECE = 1 << 16
#: Programs on more elements than this are large.
LARGE = 1 << 15
#: Bytes that an analysis may hold at a time.
MOST_BYTES = 2 << 30


#: Elements up to which an array is analysed whole; of larger ones, one row in this many, in this many stretches.
_SMALL, _ONE_ROW_IN, _STRETCHES = 1 << 13, 16, 8


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
    """The result of an analysis. All three are about the program as NumPy runs it, not about a device."""

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


def _way_of_cutting(program: Program) -> tuple[Cut, int] | None:
    """An axis that is independent, and the length of pieces along it that stay in the processor's cache.

    `None` where it cannot be cut, or would do most of the work again for every piece.
    """
    ways = independent_cuts(program)
    if not ways or None in ways[0].outputs:
        return None
    way = ways[0]
    whole = sum(spec.size for spec, axis in zip(program.inputs, way.inputs, strict=True) if axis is None)
    if whole > _PIECE:
        return None
    largest = max(spec.size for spec in program.specs)
    return way, max(1, way.length * _PIECE // largest)


def _piece(program: Program, inputs: Sequence[HostArray], way: Cut, start: int, stop: int, most_bytes: int) -> Analysis:
    """The analysis of the positions `start` to `stop` along the axis of a cut."""
    given = [
        each if axis is None else each[_slice(axis, start, stop)] for each, axis in zip(inputs, way.inputs, strict=True)
    ]
    return _analyse(cut(program, way, start, stop), given, most_bytes)


def _slice(axis: int | None, start: int, stop: int) -> tuple[slice, ...]:
    """The index of `start` to `stop` along one axis, all of the axes before it included."""
    assert axis is not None
    return (slice(None),) * axis + (slice(start, stop),)


#: Along an axis: consecutive ones, or any.
Positions = range | HostArray


def _taken(values: HostArray, axis: int, positions: Positions) -> HostArray:
    """The values at some positions along an axis: a view for a range, a copy otherwise."""
    if isinstance(positions, range):
        taken: HostArray = values[_slice(axis, positions.start, positions.stop)]
        return taken
    return np.take(values, positions, axis)


class Pieces:
    """A large program that can be analysed piece by piece along one axis of all its outputs."""

    def __init__(self, program: Program, inputs: Sequence[HostArray], way: Cut, length: int) -> None:
        self._program = program
        self._inputs = inputs
        self._way = way
        #: Positions along the axis, and in a piece.
        self.length = way.length
        self.piece = length
        self._cuts: dict[int, Program | None] = {}

    @classmethod
    def of(cls, program: Program, inputs: Sequence[HostArray]) -> Pieces | None:
        """The pieces of a program on these inputs; `None` if it has no independent axis, or at most `LARGE` elements
        everywhere.
        """
        if max(spec.size for spec in program.specs) <= LARGE:
            return None
        found = _way_of_cutting(program)
        return None if found is None else cls(program, inputs, *found)

    def analyses(self, positions: Positions) -> bool:
        """Whether a piece of these positions can be made.

        Consecutive positions always can. Others can only where the program does the same at every position, so that the
        cut for the first positions is the cut for any.
        """
        return self._cut(positions) is not None

    def _cut(self, positions: Positions) -> Program | None:
        """The program of a piece of these positions; `None` where positions that are not consecutive need different
        programs.
        """
        count = len(positions)
        if isinstance(positions, range):
            return cut(self._program, self._way, positions.start, positions.stop)
        if count not in self._cuts:
            first = cut(self._program, self._way, 0, count)
            last = cut(self._program, self._way, self.length - count, self.length)
            self._cuts[count] = first if first.key == last.key else None
        return self._cuts[count]

    def analyse(self, positions: Positions) -> Analysis | None:
        """The analysis of the piece that is made of these positions, at most `piece` of them; `None` if it cannot be
        made.
        """
        first = self._cut(positions)
        if first is None:
            return None
        given = [
            each if axis is None else _taken(each, axis, positions)
            for each, axis in zip(self._inputs, self._way.inputs, strict=True)
        ]
        return _analyse(first, given, MOST_BYTES)

    def of_output(self, number: int, values: HostArray, positions: Positions) -> HostArray:
        """The values of an output at these positions."""
        axis = self._way.outputs[number]
        assert axis is not None
        return _taken(values, axis, positions)

    def positions(self, number: int, where: HostArray) -> HostArray:
        """The positions along the axis at which any element of output `number` is marked in `where`, sorted."""
        axis = self._way.outputs[number]
        others = tuple(each for each in range(where.ndim) if each != axis)
        return np.flatnonzero(where.any(axis=others))


def _in_pieces(program: Program, inputs: Sequence[HostArray], most_bytes: int) -> Analysis | None:
    """The analysis of a whole program, one piece after the other, joined; `None` where it has no independent axis.

    Bounds are allocated when the first piece has one, so an exact program needs no memory for them.
    """
    cutting = _way_of_cutting(program)
    if cutting is None:
        return None
    way, length = cutting
    bounds: list[Bound] = [None] * len(program.outputs)
    values = [np.empty(spec.shape, spec.dtype) for spec in program.results]
    flags: set[Flag] = set()
    for start in range(0, way.length, length):
        stop = min(start + length, way.length)
        found = _piece(program, inputs, way, start, stop, most_bytes)
        flags |= found.flags
        for number, (bound, axis) in enumerate(zip(found.bounds, way.outputs, strict=True)):
            place = _slice(axis, start, stop)
            values[number][place] = found.values[number]
            if bound is not None:
                known = bounds[number]
                if known is None:
                    known = bounds[number] = np.zeros(program.results[number].shape)
                known[place] = bound
    return Analysis(list(values), bounds, frozenset(flags))


class Rows:
    """The positions along the longest axis of a large array that an analysis looks at: a few stretches, and what was
    added.

    They are `_STRETCHES` stretches of consecutive rows, one row in `_ONE_ROW_IN` in all. Most pages of memory lie
    outside of the stretches: of a bound, which begins as zeros, the operating system never has to provide them.
    """

    def __init__(self) -> None:
        self._known: dict[int, HostArray] = {}

    def add(self, length: int, positions: HostArray) -> None:
        """Add positions to those that are looked at, for every array whose longest axis has this length."""
        self._known[length] = np.union1d(self._along(length), positions)

    def place(self, shape: tuple[int, ...]) -> tuple[Any, ...]:
        """The index of the chosen rows in an array of this shape; `...` for an array that is small enough to be looked
        at whole.
        """
        if p.product(shape) <= _SMALL:
            return (...,)
        axis = longest_axis(shape)
        return (*(slice(None),) * axis, self._along(shape[axis]))

    def _along(self, length: int) -> HostArray:
        """The chosen positions along an axis of this length, sorted; they are made once for each length."""
        if length not in self._known:
            stretch = -(-length // (_ONE_ROW_IN * _STRETCHES))
            starts = np.linspace(0, length - stretch, _STRETCHES).astype(np.int64)
            self._known[length] = np.unique(starts[:, None] + np.arange(stretch))
        return self._known[length]


def longest_axis(shape: tuple[int, ...]) -> int:
    """The longest axis, the first of several."""
    return max(range(len(shape)), key=shape.__getitem__)


def analyse_rows(program: Program, inputs: Sequence[HostArray], rows: Rows) -> Analysis:
    """As `analyse`, in a fraction of its time: elementwise operations are looked at in these rows only.

    Elsewhere the bound that they give is 0. No rule gives a wider bound for narrower ones, so no bound is wider than
    that of `analyse`: what lies within these bounds lies within those. Raises `TooLarge` as `analyse` does.
    """
    return _analyse(program, inputs, MOST_BYTES, rows)


def _analyse(program: Program, inputs: Sequence[HostArray], most_bytes: int, rows: Rows | None = None) -> Analysis:
    """Run every node on NumPy, and carry its bound; values and bounds are dropped after their last use.

    Kernels of the user's own run as their references. Raises `TooLarge` when values and bounds together take more than
    `most_bytes` at a time. With `rows`, elementwise operations are analysed in those only.
    """
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
            flags.update(Flag(kind, spoken(op), line) for kind in raised)
            bounds[position] = _bound_after(op, dtype, given, [bounds[s] for s in sources], values[position], rows)
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
    """The floating-point exceptions that NumPy would warn of on these inputs, found by running the program without
    bounds.
    """
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
            flags.update(Flag(kind, spoken(op), program.lines[position]) for kind in raised)
        for source in last_use[position]:
            values[source] = None
    return frozenset(flags)


def _bytes_of(value: Any, bound: Bound) -> int:
    """The bytes of a value and its bound."""
    return int(value.nbytes) + (0 if bound is None else bound.nbytes)


@float_errors_ignored  # a context of its own, for other modes
def _flagged(op: p.Primitive, given: Sequence[HostArray], raised: set[str]) -> HostArray:
    """Run a node on NumPy; its value. The kinds of floating-point exceptions that it raised are added to `raised`.

    Linear algebra runs with all exceptions ignored: LAPACK's are not those that NumPy warns of.
    """

    def heard(kind: str, flag: int) -> None:
        raised.add(kind)

    np.seterrcall(heard)
    np.seterr(divide="call", over="call", invalid="call", under="ignore")
    if isinstance(op, p.Linear):
        return run_node(op, given)
    return np.asarray(LOWER[type(op)](op, *given))


def spoken(op: p.Primitive) -> str:
    """Return the name by which NumPy's warnings call an operation."""
    return FUNCTIONS[op.fn].numpy_name if isinstance(op, p.Unary | p.Binary) else op.name


def _placed(bound: Bound, place: tuple[Any, ...], shape: tuple[int, ...]) -> Bound:
    """A bound of some rows as one of all, which is 0 in the others."""
    if bound is None or bound.shape == shape:
        return bound
    found = np.zeros(shape)
    found[place] = bound
    return found


@float_errors_ignored
def _bound_after(
    op: p.Primitive,
    dtype: DType,
    given: Sequence[HostArray],
    bounds: Sequence[Bound],
    value: HostArray,
    rows: Rows | None,
) -> Bound:
    """The bound of a node's result, from its operands and their bounds; `None` where the result is exact.

    Movements move bounds as they move values. A custom kernel without a reference is undecided everywhere. A range of
    floats longer than the mantissa holds may be rounded differently.
    """
    if op.is_movement:
        if all(bound is None for bound in bounds):
            return None
        return or_none(run_node(op, [filled(bound, x.shape) for bound, x in zip(bounds, given, strict=True)]))
    rule = BOUNDS.find(type(op))
    if rule is not None and rows is not None and isinstance(op, p.Unary | p.Binary | p.Select):
        place = rows.place(value.shape)
        within = [None if bound is None else bound[place] for bound in bounds]
        return _placed(rule(op, dtype, [x[place] for x in given], within, value[place]), place, value.shape)
    if rule is not None:
        return rule(op, dtype, given, bounds, value)
    if isinstance(op, Custom):  # a kernel without a reference: nothing is known of it
        return np.full(value.shape, np.inf)
    if isinstance(op, p.Iota) and value.dtype.kind == "f" and op.length > 2.0 ** (value.dtype.itemsize * 6):
        return np.spacing(value).astype(np.float64)
    return None
