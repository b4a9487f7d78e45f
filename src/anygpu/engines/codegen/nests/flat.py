"""Nests of one loop: elementwise functions, totals in parts, running totals down columns, NumPy's sum of everything."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise
from itertools import product as product_of

from anygpu.engines.codegen import reductions
from anygpu.engines.codegen.index import Index, unflat
from anygpu.engines.codegen.index import IndexVariable as Counter
from anygpu.engines.codegen.kernel_ir import Apply, Expr, Let, Literal, Load, Name, Store
from anygpu.engines.codegen.lower import Stored, Value
from anygpu.engines.codegen.nests.layout import NestStorage
from anygpu.engines.codegen.nests.lowering import Local, NestLowering
from anygpu.engines.codegen.nests.plan import NestGroup
from anygpu.engines.codegen.nests.roots import FEW_ROWS, MOST_CHANNELS, Domain, Root, merged, pieces, shifted
from anygpu.engines.codegen.nests.steps import (
    MOST_PARTS,
    LoopEstimate,
    Nest,
    Scratch,
    combined,
    cost_of,
    grain_of,
    lanes_of,
    least_part,
)
from anygpu.engines.codegen.target import COMPUTE, STORED, ComputeType, components, compute_type, part_of
from anygpu.program.dtypes import KIND, DType
from anygpu.program.primitives import product

# -- totals of many rows, in parts


def total_dtype(type: ComputeType) -> DType:
    """The type in which a total waits to be combined: as wide as it is computed."""
    return "bool" if type == "bool" else STORED[type]


class Total:
    """The results of a reduction over the rows of a nest, while they grow: variables, or an array of columns."""

    def __init__(self, storage: NestStorage, root: Root, parts: int, *, in_array: bool, copies: int = 1) -> None:
        """`copies` are the rows that lanes see at once: each has its own totals, which are combined in the end."""
        self.storage = storage
        self.root = root
        self.parts = parts
        self.dtype: DType = storage.program.specs[root.source].dtype
        self.type = compute_type(self.dtype)
        self.count = components(self.dtype)
        self.size = storage.program.specs[root.node].size
        self.scratch = f"total_{root.node}" if in_array else ""
        self.copies = copies
        self.states: list[tuple[Name, ...]] = []
        if parts > 1:
            self.buffer = f"parts_{root.node}"
            storage.new_buffer(self.buffer, total_dtype(self.type), parts * self.size * self.count)

    @property
    def arrays(self) -> list[Scratch]:
        size = self.size * self.count * self.copies
        return [Scratch(self.scratch, total_dtype(self.type), size)] if self.scratch else []

    @property
    def sums(self) -> tuple[tuple[str, str], ...]:
        """Accumulators, as loops with lanes know them."""
        fn = reductions.FUNCTIONS[self.root.fn]
        return tuple((name.name, fn) for state in self.states for name in state)

    @property
    def _identity(self) -> tuple[Expr, ...]:
        return reductions.identity(self.root.fn, self.dtype) or ()

    def begin(self, lowering: NestLowering, vector: int) -> None:
        """Nothing yet."""
        if not self.scratch:
            self.states = [
                lowering.begin(self.root.node, self.root.fn, self.dtype, lambda index: ()) for _ in range(self.size)
            ]
            return

        def clear(index: Index) -> None:
            for number, value in enumerate(self._identity):
                lowering.add(Store(self.scratch, index * self.count + number, value))

        size = self.size * self.copies
        lowering.loop("column", 0, size, clear, vector=vector if size >= vector else 1)

    def take(self, lowering: NestLowering, number: int, value: Value) -> None:
        """One more value of one result, which is a variable."""
        state = self.states[number]
        lowering.take(self.root.node, self.root.fn, self.dtype, state, value, state[0])

    def take_column(self, lowering: NestLowering, column: Index, values: Sequence[Value]) -> None:
        """One more value of each of some rows, in order, for a column."""
        state: Value = self.loaded(lowering, self.scratch, column)
        for value in values:
            state = self.both(lowering, state, value)
        for number, part in enumerate(state):
            lowering.add(Store(self.scratch, column * self.count + number, part))

    def both(self, lowering: NestLowering, one: Value, other: Value) -> Value:
        """Two states combined."""
        node = self.root.node
        combined = reductions.combined(self.root.fn, self.dtype, one, other, lowering.namer(node))
        return tuple(lowering.named(f"{self.root.fn}_{node}", each) for each in combined)

    def loaded(self, lowering: NestLowering, buffer: str, place: Index) -> Value:
        """A state from memory, a load for each component."""
        return tuple(
            lowering.named(f"{buffer}_value", Load(buffer, place * self.count + number, self.type))
            for number in range(self.count)
        )

    def end(self, lowering: NestLowering, vector: int) -> None:
        """The results; or what a part has of them, for the nest that combines the parts."""

        def stored(index: Index, state: Value) -> None:
            if self.parts == 1:
                self.finish(lowering, index, state)
                return
            part = Index(0, [(Counter("part", 0, self.parts - 1), 1)])
            for number, value in enumerate(state):
                lowering.add(Store(self.buffer, (part * self.size + index) * self.count + number, value))

        for number, state in enumerate(self.states):
            stored(Index(number), state)
        if self.scratch:
            lowering.loop(
                "column",
                0,
                self.size,
                lambda index: stored(index, self._all_copies(lowering, index)),
                vector=vector if self.size >= vector else 1,
            )

    def _all_copies(self, lowering: NestLowering, column: Index) -> Value:
        """The states of all copies of a column, combined."""
        state = self.loaded(lowering, self.scratch, column)
        for copy in range(1, self.copies):
            state = self.both(lowering, state, self.loaded(lowering, self.scratch, column + copy * self.size))
        return state

    def finish(self, lowering: NestLowering, index: Index, state: Value) -> None:
        """Store the result of a finished state."""
        node = self.root.node
        shape = self.storage.program.specs[node].shape
        lowering.store(node, unflat(index, shape), lowering.end(node, self.root.fn, self.dtype, state))

    def combine(self, lowering: NestLowering, vector: int) -> None:
        """All parts, one after the other."""

        def column(index: Index) -> None:
            state = lowering.begin(self.root.node, self.root.fn, self.dtype, lambda first: ())

            def part(number: Index) -> None:
                value = self.loaded(lowering, self.buffer, number * self.size + index)
                lowering.take(self.root.node, self.root.fn, self.dtype, state, value, state[0])

            lowering.loop(lowering.unique("number"), 0, self.parts, part)
            self.finish(lowering, index, state)

        lowering.loop("column", 0, self.size, column, vector=vector if self.size >= vector else 1)


def combining_nest(storage: NestStorage, totals: Sequence[Total], name: str, vector: int) -> Nest | None:
    """What the parts of a nest have found, combined; `None` when there was but one."""
    waiting = [total for total in totals if total.parts > 1]
    if not waiting:
        return None
    lowering = storage.lowering([total.root.node for total in waiting])
    for total in waiting:
        total.combine(lowering, vector)
    return storage.nest(f"{name}_combined", lowering.statements)


# -- one loop over elements


BEGIN, END = Name("begin", "i64"), Name("end", "i64")

#: Accumulators that fit into registers beside what is computed.
_MANY_ACCUMULATORS = 8


def flat_nest(storage: NestStorage, group: NestGroup, name: str, vector_bytes: int) -> list[Nest]:
    """Every element of the members by itself, all of them in one pass; reductions in parts."""
    roots = [member.root for member in sorted(group.members, key=lambda each: each.phase)]
    count = product(roots[0].lanes)
    estimate = combined([times(root.estimate, len(root.begins) * len(root.ends)) for root in roots])
    vector, unroll = lanes_of(estimate, vector_bytes)
    grain = grain_of(estimate.of_lanes(vector_bytes), count, vector * unroll)
    domains = {root.node: _lanes(root) for root in roots}
    totals = {
        root.node: Total(storage, root, -(-count // grain), in_array=False) for root in roots if root.kind != "map"
    }
    lowering = storage.lowering([root.node for root in roots])
    for total in totals.values():
        total.begin(lowering, vector)
    sums = tuple(each for total in totals.values() for each in total.sums)
    if len(sums) > _MANY_ACCUMULATORS or any(len(root.ends) > MOST_CHANNELS for root in roots):
        unroll = 1
    if not all(has_lanes(storage, root) for root in roots):
        vector = 1

    def element(index: Index) -> None:
        for root in roots:
            domain = domains[root.node]
            lanes = domain.positions((index,) if domain.runs else ())
            for begin, (number, end) in product_of(root.begins, enumerate(root.ends)):
                positions = (*begin, *lanes, *end)
                value = lowering.value(root.source, positions)
                if root.node in totals:
                    totals[root.node].take(lowering, number if root.kind == "column" else 0, value)
                elif root.node in storage.stored:
                    lowering.store(root.node, positions, value)

    cuts = {
        cut for root in roots if domains[root.node].runs for cut in domains[root.node].cuts_of(0, _cuts_behind(root))
    }
    for low, high in pieces(0, count, cuts):
        start, stop = clipped(low, high, count) if count > 1 else (None, None)
        wide = vector if high - low >= vector else 1
        lowering.loop(
            "i", low, high, element, start=start, stop=stop, vector=wide, unroll=unroll if wide > 1 else 1, sums=sums
        )
    for total in totals.values():
        total.end(lowering, vector)
    nest = storage.nest(name, lowering.statements, count=count, grain=grain, cost=cost_of(storage, roots))
    last = combining_nest(storage, list(totals.values()), name, vector)
    return [nest] if last is None else [nest, last]


def _lanes(root: Root) -> Domain:
    """The axes that are one loop."""
    return merged(root.lanes, [shifted(form, root.head) for form in root.forms], _cuts_behind(root))


def _cuts_behind(root: Root) -> dict[int, set[int]]:
    """Cuts of the axes behind those that are written out."""
    return {axis - root.head: cuts for axis, cuts in root.cuts.items() if axis >= root.head}


def has_lanes(storage: NestStorage, root: Root) -> bool:
    """Whether lanes can have accumulators of their own, and be combined in the end."""
    complex = KIND[storage.program.specs[root.source].dtype] == "complex"
    return root.kind == "map" or not complex or root.fn == "sum"


def times(estimate: LoopEstimate, number: int) -> LoopEstimate:
    """The estimate of so many elements at once."""
    return LoopEstimate(
        estimate.operations * number, estimate.functions * number, estimate.width, estimate.live * number
    )


def clipped(low: int, high: int, count: int) -> tuple[Expr, Expr]:
    """The bounds of a piece of a loop that goes from `begin` to `end`."""
    start = Apply("maximum", (BEGIN, Literal(low, "i64")), "i64") if low else BEGIN
    stop = Apply("minimum", (END, Literal(high, "i64")), "i64") if high < count else END
    return start, stop


# -- running totals down columns


def scan_nest(storage: NestStorage, root: Root, name: str, vector_bytes: int) -> Nest:
    """Parts are stretches of columns, or some of the matrices where there are many."""
    shape, axis = root.shape, root.lead
    matrices, length, columns = product(shape[:axis]), shape[axis], product(shape[axis + 1 :])
    dtype = storage.program.specs[root.source].dtype
    vector, unroll = lanes_of(root.estimate, vector_bytes)
    lowering = storage.lowering([root.node])
    by_matrix = matrices >= FEW_ROWS

    def matrix(which: Index) -> None:
        def column(index: Index) -> None:
            (state,) = lowering.begin_running(root.node, root.fn, dtype)

            def element(row: Index) -> None:
                positions = (*unflat(which, shape[:axis]), row, *unflat(index, shape[axis + 1 :]))
                value = lowering.value(root.source, positions)
                lowering.take(root.node, root.fn, dtype, (state,), value, state)
                lowering.store(root.node, positions, (state,))

            lowering.loop(lowering.unique("row"), 0, length, element)

        start, stop = (None, None) if by_matrix else (BEGIN, END)
        lowering.loop("column", 0, columns, column, start=start, stop=stop, vector=vector, unroll=unroll)

    start, stop = (BEGIN, END) if by_matrix else (None, None)
    lowering.loop("matrix", 0, matrices, matrix, start=start, stop=stop)
    weight = root.estimate.of_lanes(vector_bytes) * length
    count = matrices if by_matrix else columns
    grain = grain_of(weight * (columns if by_matrix else matrices), count, 1 if by_matrix else vector * unroll)
    return storage.nest(name, lowering.statements, count=count, grain=grain, cost=cost_of(storage, [root]))


# -- the sum of everything, in the order in which NumPy adds


#: NumPy's pairwise sum cuts longer stretches into halves.
_BLOCK = 128
#: The weight from which values are computed in full vectors first.
_WORTH_A_STRETCH = 8.0


def subtrees(length: int, least: int) -> list[int]:
    """The offsets of the subtrees at one depth of NumPy's sum of so many numbers, and the end; 2, 4, 8 … of them.

    None is shorter than `least`, unless there is but one.
    """
    lengths = [length]
    while 2 * len(lengths) <= MOST_PARTS and min(lengths) > max(2 * least, _BLOCK):
        lengths = [half for each in lengths for half in _halves(each)]
    offsets = [0]
    for each in lengths:
        offsets.append(offsets[-1] + each)
    return offsets


def _halves(length: int) -> tuple[int, int]:
    """Where NumPy cuts a long sum in two: at a multiple of eight."""
    first = length // 2
    first -= first % 8
    return first, length - first


def tree_nests(storage: NestStorage, root: Root, name: str, vector_bytes: int) -> list[Nest]:
    """The subtrees in parallel, and the top of the tree."""
    program = storage.program
    vector, unroll = lanes_of(root.estimate, vector_bytes)
    offsets = subtrees(root.size, least_part(root.estimate.of_lanes(vector_bytes)) // 2)
    parts = len(offsets) - 1
    spec = program.specs[root.source]
    wide: DType = "float64" if COMPUTE[spec.dtype] == "f64" else "float32"
    table, partial = f"offsets_{root.node}", f"parts_{root.node}"
    storage.new_buffer(table, "int64", len(offsets), "constant", array("q", offsets).tobytes())
    storage.new_buffer(partial, wide, parts)
    lowering = storage.lowering([root.node])
    lowering.scopes[0].variables.update(("first", "last"))
    part = Index(0, [(Counter("part", 0, parts - 1), 1)]) if parts > 1 else Index(0)
    lowering.add(Let("first", Load(table, part, "i64")))
    lowering.add(Let("last", Load(table, part + 1, "i64")))
    first, last = Name("first", "i64"), Name("last", "i64")
    scratch: list[Scratch] = []
    longest = max(b - a for a, b in pairwise(offsets))

    def positions(index: Index) -> tuple[Index, ...]:
        return unflat(index, root.shape)

    if root.estimate.weight >= _WORTH_A_STRETCH and root.source not in lowering.stored:
        dtype = part_of(spec.dtype)
        scratch.append(Scratch(f"terms_{root.node}", dtype, longest))
        origin = Index(0, [(Counter("first", 0, root.size), 1)])
        lowering.local[root.source] = Local(scratch[0].name, dtype, origin)
        lowering.loop(
            "i",
            0,
            root.size,
            lambda i: lowering.store(root.source, positions(i), lowering.value(root.source, positions(i))),
            start=first,
            stop=last,
            vector=vector,
            unroll=unroll,
        )
        lowering.stored[root.source] = Stored(scratch[0].name, dtype)
    (state,) = lowering.begin(root.node, "sum", spec.dtype, lambda index: ())
    lowering.loop(
        "i",
        0,
        root.size,
        lambda i: lowering.take(
            root.node, "sum", spec.dtype, (state,), lowering.value(root.source, positions(i)), state
        ),
        start=first,
        stop=last,
        pairwise=True,
        sums=((state.name, "add"),),
        vector=8,
    )
    lowering.add(Store(partial, part, state))
    cost = cost_of(storage, [root])
    nest = storage.nest(name, lowering.statements, scratch=scratch, count=parts, grain=1, cost=cost)
    return [nest, _top(storage, root, partial, parts, name)]


def _top(storage: NestStorage, root: Root, partial: str, parts: int, name: str) -> Nest:
    """Neighbours, then neighbours of those, until one is left."""
    lowering = storage.lowering([root.node])
    dtype = storage.program.specs[root.source].dtype
    type = COMPUTE[dtype]
    left = parts
    while left > 1:
        left //= 2

        def pair(index: Index) -> None:
            one, other = (Load(partial, index * 2 + number, type) for number in range(2))
            lowering.add(Store(partial, index, Apply("add", (one, other), type)))

        lowering.loop(lowering.unique("pair"), 0, left, pair)
    value = lowering.named("total", Load(partial, Index(0), type))
    ones = tuple(Index(0) for _ in storage.program.specs[root.node].shape)
    lowering.store(root.node, ones, lowering.end(root.node, "sum", dtype, (value,)))
    return storage.nest(f"{name}_top", lowering.statements)
