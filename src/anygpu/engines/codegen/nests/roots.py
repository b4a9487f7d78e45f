"""Roots: the values of a program that are stored, the loops that compute each, and what those read and repeat.

A `Root` has the shape of its loops, the values that it reads and at which positions, and an estimate of the work of one
element. A `Domain` merges axes that run on in memory, so that the innermost loop is as long as possible. `examined`
lowers a value once without keeping the statements, to find all of that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Literal

import msgspec

from anygpu.engines.codegen import reductions
from anygpu.engines.codegen.index import Atom, Index, last_long_axis, unflat
from anygpu.engines.codegen.index import IndexVariable as Counter
from anygpu.engines.codegen.lower import Positions, Scope, Stored, is_general_power, single_value
from anygpu.engines.codegen.nests.lowering import (
    SHORT,
    LoopCandidate,
    NestLowering,
    indices_in,
    is_computed,
    ranged,
    written_out,
)
from anygpu.engines.codegen.nests.steps import LoopEstimate, Written, estimated
from anygpu.engines.codegen.target import part_of
from anygpu.program.dtypes import KIND, DType
from anygpu.program.functions import ReduceFunction
from anygpu.program.graph import Program
from anygpu.program.primitives import (
    MAX_DIMENSIONS,
    Binary,
    Concatenate,
    Constant,
    Contract,
    Gather,
    Input,
    Reduce,
    Scan,
    Scatter,
    Search,
    product,
)

# -- the loops of a nest


#: Loops are cut into no more pieces than this: each is code of its own.
MOST_PIECES = 9


class Domain(msgspec.Struct, frozen=True):
    """The axes of a shape, in runs that are one loop each."""

    shape: tuple[int, ...]
    runs: tuple[tuple[int, ...], ...]

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(product(tuple(self.shape[axis] for axis in run)) for run in self.runs)

    def positions(self, indices: Sequence[Index]) -> tuple[Index, ...]:
        """Along each axis, of one index for each run."""
        found: list[Index] = []
        for run, index in zip(self.runs, indices, strict=True):
            found += unflat(index, [self.shape[axis] for axis in run])
        return tuple(found)

    def cuts_of(self, run: int, cuts: Mapping[int, Iterable[int]]) -> set[int]:
        """Cuts of the run's loop, of those of its axes: only its first axis may have any."""
        axes = self.runs[run]
        step = product(tuple(self.shape[axis] for axis in axes[1:]))
        return {cut * step for cut in cuts.get(axes[0], ())} if axes else set()


def axis_name(axis: int) -> str:
    return f"axis_{axis}"


def merged(shape: Sequence[int], forms: Iterable[Index], cuts: Mapping[int, object]) -> Domain:
    """As few loops as possible: neighbouring axes are one where every position steps through both alike.

    Worth 2 to 10 times for short last axes, and all of the cost of a row's begin for elementwise programs.
    """
    forms = list(forms)
    axes = [axis for axis in range(len(shape)) if shape[axis] > 1]
    runs: list[list[int]] = []
    for axis in axes:
        if runs and axis not in cuts and all(_together(form, runs[-1][-1], axis, shape[axis]) for form in forms):
            runs[-1].append(axis)
        else:
            runs.append([axis])
    return Domain(tuple(shape), tuple(map(tuple, _with_single_axes(runs, shape))))


def _with_single_axes(runs: list[list[int]], shape: Sequence[int]) -> list[list[int]]:
    """Axes of length 1 belong to the run before them."""
    if not runs:
        return [list(range(len(shape)))] if shape else []
    begins = [0, *(run[0] for run in runs[1:]), len(shape)]
    return [list(range(begin, end)) for begin, end in pairwise(begins)]


def _together(form: Index, outer: int, inner: int, length: int) -> bool:
    one, other = form.steps_with(axis_name(outer)), form.steps_with(axis_name(inner))
    return one is not None and other is not None and one == length * other


def pieces(low: int, high: int, cuts: Iterable[int]) -> list[tuple[int, int]]:
    """A loop in pieces that begin at its cuts; in one where there would be too many."""
    inside = sorted({cut for cut in cuts if low < cut < high})
    if len(inside) >= MOST_PIECES:
        return [(low, high)]
    ends = [low, *inside, high]
    return list(pairwise(ends))


def longest(found: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return max(found, key=lambda piece: piece[1] - piece[0])


def axis_variable(axis: int, low: int, high: int) -> Index:
    return ranged(axis_name(axis), low, high)


def counter(name: str, high: int) -> Index:
    """A given number from 0 to `high`, both included."""
    return Index(0, [(Counter(name, 0, high), 1)])


def shifted(form: Index, lead: int) -> Index:
    """A position over axes that are counted from another one on; those before it are taken for constant."""
    names = {axis_name(axis): axis_name(axis - lead) for axis in range(lead, lead + MAX_DIMENSIONS)}
    before = {axis_name(axis) for axis in range(lead)}
    terms: list[tuple[Atom, int]] = []
    for atom, factor in form.terms:
        if not isinstance(atom, Counter):
            within = shifted(atom.of, lead)
            terms.append((atom._replace(of=within), factor))
        elif atom.name not in before:
            terms.append((atom._replace(name=names.get(atom.name, atom.name)), factor))
    return Index(form.constant, terms)


# -- roots


replace = msgspec.structs.replace

#: How a stored value is computed. map: every element by itself. scan: a running total along
#: the columns, or down each of them where there are no rows. row: a reduction of whole rows. column: a reduction
#: over rows, one result for each column. all: a reduction of everything. scatter: updates, one after the other.
RootKind = Literal["map", "scan", "scatter", "row", "column", "all"]

#: A concatenation of more parts is NumPy's.
MOST_PARTS = 8
#: Values that one round of a loop may compute: LLVM takes a second for 10,000 operations.
_MOST_VALUES = 3000
#: Types that are as wide in memory as they are computed: running totals are rounded at each step.
_EXACT_TOTALS = ("float32", "float64", "int32", "int64", "uint32", "uint64")
#: A line of so many elements, or of so many for each search, is searched by nests.
_SHORT_LINE, _OF_EACH_SEARCH = 1 << 14, 4
#: Fewer rows than this are no rows: too little to share among threads.
FEW_ROWS = 16
#: A last axis of no more elements is written out where lanes cannot go along it: worth 2 to 3 times for RGB images.
MOST_CHANNELS = 4


class Root(msgspec.Struct, kw_only=True):
    """A stored value: what is looped over to compute it, and what that reads.

    The first `lead` axes of the domain are rows, the last `tail` axes are written out, and lanes go along the last of
    the axes between them. With `rows` = 0 there are no rows: lanes and parts go along the first axes, but for `head`
    of them, which are written out.
    """

    node: int
    #: The value that is asked for at each position of the domain: the operand of a reduction.
    source: int
    kind: RootKind
    #: The domain.
    shape: tuple[int, ...]
    fn: ReduceFunction = "sum"
    rows: int = 0
    lead: int = 0
    tail: int = 0
    head: int = 0
    reads: list[tuple[int, Positions]] = []
    #: For each value that is computed on the way, the positions where that happens.
    places: dict[int, set[Positions]] = {}
    cuts: dict[int, set[int]] = {}
    forms: list[Index] = []
    chosen: dict[str, list[LoopCandidate]] = {}
    estimate: LoopEstimate = LoopEstimate()

    @property
    def size(self) -> int:
        return product(self.shape)

    @property
    def middle(self) -> tuple[int, ...]:
        """The axes that are loops inside of a row."""
        return self.shape[self.lead : len(self.shape) - self.tail]

    @property
    def lanes(self) -> tuple[int, ...]:
        """The axes that are one loop, where there are no rows."""
        return self.shape[self.head : len(self.shape) - self.tail]

    @property
    def begins(self) -> list[tuple[Index, ...]]:
        """The positions along the first axes, where these are written out."""
        lengths = self.shape[: self.head]
        return [written_out(number, lengths) for number in range(product(lengths))]

    @property
    def ends(self) -> list[tuple[Index, ...]]:
        """The positions along the axes that are written out."""
        lengths = self.shape[len(self.shape) - self.tail :]
        return [written_out(number, lengths) for number in range(product(lengths))]


def is_host_step(program: Program, node: int) -> bool:
    """Whether NumPy computes a node: what has algorithms of its own, and long products, which are BLAS's."""
    op, inputs = program.nodes[node]
    specs = program.specs
    match op:
        case Scan():
            return not (_is_scan_of_rows(program, node) or _is_scan_of_columns(program, node))
        case Scatter():
            return specs[inputs[1]].size > 0 and not is_scattered(program, node)
        case Search():
            # Whether a line is sorted is looked at, which takes longer than few searches.
            (line,), wanted = specs[inputs[0]].shape, specs[inputs[1]].size
            return line > max(_SHORT_LINE, _OF_EACH_SEARCH * wanted)
        case Contract():
            return _contracted(program, node) > SHORT
        case Gather():
            # There is nothing to take from, and NumPy knows how to say that.
            return specs[inputs[0]].size == 0
        case Concatenate():
            return len(inputs) > MOST_PARTS
        case Reduce():
            # In products of complex numbers, the order decides about the signs of zeros.
            return op.fn in ("argmax", "argmin", "prod") and KIND[specs[inputs[0]].dtype] == "complex"
        case Binary():
            return op.fn == "power" and is_general_power(program, node)
    return op.has_own_kernels


def is_scattered(program: Program, node: int) -> bool:
    """Whether a nest puts updates at their positions: it sets or adds numbers that are as wide as they are computed."""
    op, inputs = program.nodes[node]
    known = isinstance(op, Scatter) and op.fn in ("set", "add") and program.specs[node].dtype in _EXACT_TOTALS
    return known and program.specs[inputs[1]].size > 0


def is_long(program: Program, node: int) -> bool:
    """Whether it is a reduction that is not written out."""
    op, inputs = program.nodes[node]
    if not isinstance(op, Reduce):
        return False
    shape = program.specs[inputs[0]].shape
    return product(tuple(shape[axis] for axis in op.axes)) > SHORT


def _contracted(program: Program, node: int) -> int:
    """The number of terms that a contraction adds; 0 for other nodes."""
    op, inputs = program.nodes[node]
    shape = program.specs[inputs[0]].shape
    return product(tuple(shape[axis] for axis in op.left)) if isinstance(op, Contract) else 0


def root_of(program: Program, node: int) -> Root:
    """How a node would be computed if it were stored."""
    op, inputs = program.nodes[node]
    own = program.specs[node].shape
    if isinstance(op, Reduce) and is_long(program, node) and _has_identity(op.fn, program.specs[inputs[0]].dtype):
        shape = program.specs[inputs[0]].shape
        reduced = [axis for axis in op.axes if shape[axis] > 1]
        kept = [axis for axis in range(len(shape)) if axis not in op.axes and shape[axis] > 1]
        root = Root(node=node, source=inputs[0], kind="all", shape=shape, fn=op.fn)
        if not kept:
            return root
        if kept[-1] < reduced[0]:
            return replace(root, kind="row", lead=reduced[0], rows=product(shape[: reduced[0]]))
        if reduced[-1] < kept[0]:
            return replace(root, kind="column", lead=kept[0])
        between = [axis for axis in kept if reduced[0] < axis < reduced[-1]]
        first = next(axis for axis in kept if axis > reduced[0])
        if kept[0] < reduced[0] and not between and first > reduced[-1] and product(shape[first:]) <= MOST_CHANNELS:
            return replace(
                root, kind="row", lead=reduced[0], rows=product(shape[: reduced[0]]), tail=len(shape) - first
            )
    if isinstance(op, Scan) and not is_host_step(program, node):
        rows = product(own[: op.axis]) if _is_scan_of_rows(program, node) else 0
        return Root(node=node, source=inputs[0], kind="scan", shape=own, fn=op.fn, lead=op.axis, rows=rows)
    if is_scattered(program, node):
        return Root(node=node, source=inputs[2], kind="scatter", shape=program.specs[inputs[2]].shape)
    return Root(node=node, source=node, kind="map", shape=own)


def _is_scan_of_rows(program: Program, node: int) -> bool:
    """Whether a running total goes along the last axis of several rows: it is a pass over the row then."""
    op, _ = program.nodes[node]
    shape, dtype = program.specs[node]
    axis = last_long_axis(shape)
    last = isinstance(op, Scan) and op.axis == axis
    return last and dtype in _EXACT_TOTALS and product(shape[:axis]) >= FEW_ROWS


def _is_scan_of_columns(program: Program, node: int) -> bool:
    """Whether a running total goes along another axis than the last: neighbours have one each."""
    op, _ = program.nodes[node]
    shape, dtype = program.specs[node]
    return isinstance(op, Scan) and dtype in _EXACT_TOTALS and product(shape[op.axis + 1 :]) >= FEW_ROWS


def _has_identity(fn: ReduceFunction, dtype: DType) -> bool:
    """Whether parts of a reduction can begin with nothing."""
    return fn not in ("argmax", "argmin") and reductions.identity(fn, dtype) is not None


def is_given(program: Program, node: int) -> bool:
    """Whether a value is there before the program runs: an input, or a constant that is no single number."""
    op = program.nodes[node].op
    return isinstance(op, Input) or (isinstance(op, Constant) and not _is_number(op))


def _is_number(op: Constant) -> bool:
    """Whether a constant is written as a number wherever it is used."""
    return single_value(op) is not None or (op.dtype == "bfloat16" and len(op.data) == 2)


def examined(
    program: Program,
    root: Root,
    stored: Iterable[int],
    ranks: Sequence[int],
    written: Written,
    *,
    limited: bool = True,
) -> Root:
    """The root with what its computing reads and repeats, in the longest piece of each of its loops.

    Raises `TooMany` where that would be more than a loop should have, and is `limited`.
    """
    places = {node: Stored(f"value_{node}", part_of(program.specs[node].dtype)) for node in stored}
    places.pop(root.node, None)
    ranges = [(0, length) for length in root.shape]
    most = max(_MOST_VALUES, 2 * len(program.nodes)) if limited else 0
    lowering, scopes = _tried(program, root, places, ranges, ranks, written, most, only_for_cuts=True)
    cuts = {axis: lowering.cuts[axis_name(axis)] for axis in range(len(ranges)) if axis_name(axis) in lowering.cuts}
    if cuts:
        ranges = [longest(pieces(*each, cuts.get(axis, ()))) for axis, each in enumerate(ranges)]
        reads = lowering.reads
        lowering, scopes = _tried(program, root, places, ranges, ranks, written, most)
        lowering.reads += reads
    found: dict[int, set[Positions]] = {}
    for scope in scopes:
        for node, positions in scope.known:
            found.setdefault(node, set()).add(positions)
    statements = [each for scope in scopes for each in scope.statements]
    return replace(
        root,
        reads=list(dict.fromkeys(lowering.reads)),
        places=found,
        cuts=cuts,
        forms=list(dict.fromkeys(indices_in(statements))),
        chosen=lowering.chosen,
        estimate=estimated(statements),
    )


def _tried(
    program: Program,
    root: Root,
    stored: Mapping[int, Stored],
    ranges: Sequence[tuple[int, int]],
    ranks: Sequence[int],
    written: Written,
    most: int,
    *,
    only_for_cuts: bool = False,
) -> tuple[NestLowering, list[Scope]]:
    """The root's value at variables of its axes, with the blocks that this was written to."""
    lowering = NestLowering(program, stored, lambda node: None, ranks=ranks, written=written)
    lowering.only_for_cuts = only_for_cuts
    lowering.most = most
    names = [axis_name(axis) for axis in range(len(ranges))]
    long = [axis for axis, length in enumerate(root.shape) if length > 1]
    lowering.lane = names[long[-1]] if long else ""
    with lowering.inside(*names) as scope:
        positions = tuple(axis_variable(axis, *each) for axis, each in enumerate(ranges))
        lowering.value(root.source, positions)
    return lowering, [lowering.scopes[0], scope]


# -- values to store because loops would repeat them


#: A value may be computed so often for each of its elements, or more often where that takes few values in all.
_FEW_TIMES = 4
_FEW_VALUES = 128
#: Larger counts say no more.
_COUNTED = 1 << 60


def computed_too_often(program: Program, order: Sequence[int], root: Root, stored: Collection[int]) -> set[int]:
    """Values between a root and what is stored that are to be stored as well, because loops would repeat them.

    `order` has the nodes of the program, each after its inputs. Places multiply: nine terms of a sum, each of which is
    a sum of nine, are 81 places of the innermost value, and 6561 where that is such a sum again. This takes no longer
    than the program is long. Two ways to the same place count twice, unless all between them is elementwise.
    """
    given = {*stored} - {root.node}
    often = _places_from(program, order, root, given)
    return _values_of_one(program, order, given, often)[1]


def _places_from(program: Program, order: Sequence[int], root: Root, given: Collection[int]) -> dict[int, int]:
    """What is computed too often, and at how many places, if all of it that comes before in the loops is stored."""
    values, _ = _values_of_one(program, order, given, {})
    found: dict[int, int] = {}
    # For each value the inputs of nodes that it is read as; and how many places there are of each of these in a round
    # of a loop, and in all rounds. Elementwise functions read at their own places.
    places: dict[int, dict[tuple[int, int], tuple[int, int]]] = {root.source: {(root.node, -1): (1, root.size)}}
    for node in reversed(order):
        if node in given or node not in places:
            continue
        op, inputs = program.nodes[node]
        own = places.pop(node)
        in_round, in_all = (min(sum(counts), _COUNTED) for counts in zip(*own.values(), strict=True))
        size = program.specs[node].size
        repeated = in_all > _FEW_TIMES * size and in_round * values[node] > _FEW_VALUES
        if repeated and is_computed(op) and node not in (root.source, root.node):
            found[node] = in_round
            in_round, in_all = 1, size
            own = {(node, -1): (in_round, in_all)}
        terms = _terms(program, node)
        for number, source in enumerate(inputs):
            of_source = places.setdefault(source, {})
            if op.is_elementwise:
                of_source.update(own)
            else:
                of_source[node, number] = in_round * terms, in_all * terms
    return found


def _values_of_one(
    program: Program, order: Sequence[int], given: Collection[int], often: Mapping[int, int]
) -> tuple[dict[int, int], set[int]]:
    """How many values one element of each node takes, at most, down to what is stored.

    With values at so many places, those of them come second that are many values even where those below are stored.
    """
    values: dict[int, int] = {}
    kept: set[int] = set()
    for node in order:
        op, inputs = program.nodes[node]
        below = sum(values[source] for source in inputs if source not in given and source not in kept)
        values[node] = min(below * _terms(program, node) + is_computed(op), _COUNTED)
        if often.get(node, 0) * values[node] > _FEW_VALUES:
            kept.add(node)
    return values, kept


def _terms(program: Program, node: int) -> int:
    """The elements of its inputs that are written out for one of a node."""
    op, inputs = program.nodes[node]
    axes = op.axes if isinstance(op, Reduce) else op.left if isinstance(op, Contract) else ()
    length = product(tuple(program.specs[inputs[0]].shape[axis] for axis in axes)) if axes else 1
    return length if length <= SHORT else 1
