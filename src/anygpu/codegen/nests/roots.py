"""Values of a program that are stored, and what computing each of them reads and repeats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from anygpu.codegen import reductions
from anygpu.codegen.index import Index
from anygpu.codegen.lower import Positions, Scope, Stored, is_general_power, single_value
from anygpu.codegen.nests.costs import Estimate, estimated
from anygpu.codegen.nests.domains import axis_name, axis_variable, longest, pieces
from anygpu.codegen.nests.limits import Written
from anygpu.codegen.nests.lowering import SHORT, Candidate, NestLowering, indices_in, written_out
from anygpu.codegen.types import part_of
from anygpu.program.dtypes import KIND, DType
from anygpu.program.functions import ReduceFunction
from anygpu.program.graph import Program
from anygpu.program.primitives import (
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

replace = msgspec.structs.replace

#: How a stored value is computed. map: every element by itself. scan: a running total along
#: the columns, or down each of them where there are no rows. row: a reduction of whole rows. column: a reduction
#: over rows, one result for each column. all: a reduction of everything.
Kind = Literal["map", "scan", "row", "column", "all"]

#: A concatenation of more parts is NumPy's.
MOST_PARTS = 8
#: Values that one round of a loop may compute: LLVM takes a second for 10,000 operations.
_MOST_VALUES = 3000
#: Types whose running totals are rounded as they are computed.
_EXACT_TOTALS = ("float32", "float64", "int32", "int64", "uint32", "uint64")
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
    kind: Kind
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
    chosen: dict[str, list[Candidate]] = {}
    estimate: Estimate = Estimate()

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
            return specs[inputs[1]].size > 0
        case Search():
            return specs[inputs[0]].size > 0
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


def is_long(program: Program, node: int) -> bool:
    """Whether it is a reduction that is not written out."""
    op, inputs = program.nodes[node]
    if not isinstance(op, Reduce):
        return False
    shape = program.specs[inputs[0]].shape
    return product(tuple(shape[axis] for axis in op.axes)) > SHORT


def _contracted(program: Program, node: int) -> int:
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
    return Root(node=node, source=node, kind="map", shape=own)


def _is_scan_of_rows(program: Program, node: int) -> bool:
    """Whether a running total goes along the last axis of several rows: it is a pass over the row then."""
    op, _ = program.nodes[node]
    shape, dtype = program.specs[node]
    axis = _last_long_axis(shape)
    last = isinstance(op, Scan) and op.axis == axis
    return last and dtype in _EXACT_TOTALS and product(shape[:axis]) >= FEW_ROWS


def _is_scan_of_columns(program: Program, node: int) -> bool:
    """Whether a running total goes along another axis than the last: neighbours have one each."""
    op, _ = program.nodes[node]
    shape, dtype = program.specs[node]
    return isinstance(op, Scan) and dtype in _EXACT_TOTALS and product(shape[op.axis + 1 :]) >= FEW_ROWS


def _last_long_axis(shape: Sequence[int]) -> int:
    return next((axis for axis in range(len(shape) - 1, -1, -1) if shape[axis] > 1), -1)


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
