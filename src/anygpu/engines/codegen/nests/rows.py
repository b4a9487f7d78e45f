"""Nests of rows: each row in one or more passes over its columns, with lanes along them.

What a later pass needs of an earlier one stays in scratch: a row of it, or a band of rows where neighbouring rows are
read. A band is computed for a few rows more than a part has, by every part for itself.

`rows_nest` makes the nest of a group. A part of it has a range of rows; members that read neighbouring rows of others
have these computed again at the ends of a part. Rows that only later phases read stay in scratch memory.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from anygpu.engines.codegen import reductions
from anygpu.engines.codegen.index import Index, constant, unflat
from anygpu.engines.codegen.index import IndexVariable as Counter
from anygpu.engines.codegen.kernel_ir import Apply, Expr, Literal, Name, Position
from anygpu.engines.codegen.lower import Positions, Stored, Value
from anygpu.engines.codegen.nests.flat import BEGIN, END, Total, combining_nest, has_lanes, times
from anygpu.engines.codegen.nests.layout import (
    JAM,
    NestStorage,
    is_numpy_sum,
    jam_of,
    rows_at_once,
    turning_nest,
    worth_turning,
)
from anygpu.engines.codegen.nests.lowering import Local, NestLowering, Spread
from anygpu.engines.codegen.nests.plan import Member, NestGroup
from anygpu.engines.codegen.nests.roots import Domain, Root, counter, merged, pieces, replace, shifted
from anygpu.engines.codegen.nests.steps import Nest, Scratch, combined, cost_of, grain_of, lanes_of
from anygpu.engines.codegen.target import components, part_of
from anygpu.program.dtypes import ITEMSIZE
from anygpu.program.primitives import product

#: The weight of an element from which its values are computed in full vectors first, and added up afterwards:
#: NumPy's sum has eight lanes, whatever the type.
_WORTH_A_ROW = 8.0
#: Columns of rows of which a part has scratch for all.
_SHORT_ROW = 4096
#: Rows of a band for each row of its halo: the halo is computed twice.
_ROWS_OF_HALO = 8
#: The most bytes that one value has in scratch.
_MOST_SCRATCH = 1 << 20


def rows_nest(storage: NestStorage, group: NestGroup, name: str, vector_bytes: int, needed: Set[int]) -> list[Nest]:
    """`needed` are the nodes that are read outside of this nest."""
    before = [turning_nest(storage, node) for node in worth_turning(storage, group)]
    return before + _Rows(storage, group, vector_bytes, needed).nests(name)


class _Rows:
    """The nest of a group whose members are computed row by row."""

    def __init__(self, storage: NestStorage, group: NestGroup, vector_bytes: int, needed: Set[int]) -> None:
        """`needed` are the nodes that later nests read; rows of other members stay in scratch memory."""
        self.storage = storage
        self.program = storage.program
        self.group = group
        self.members = group.members
        self.vector_bytes = vector_bytes
        self.needed = needed
        self.count = group.rows
        self.scratch: list[Scratch] = []
        self.lowering: NestLowering = storage.lowering([member.root.node for member in group.members])
        #: Short rows that are done at once, as if they were one.
        self.copies = rows_at_once(group, vector_bytes)
        self.jam = jam_of(group) if self.copies == 1 else self.copies
        self.early = {id(member) for member in group.members if self._is_early(member)}
        self.grain = self._grain()
        self.totals: dict[int, Total] = {}
        #: What can be read before a band is computed.
        self.before: dict[int, Stored] = {}
        #: The rows that are done now: one, or those that are done together.
        self.rows: list[Index] = []

    def _grain(self) -> int:
        """How many rows one part has: enough work for a thread, and many beside the rows that are computed twice."""
        roots = [member.root for member in self.members]
        weight = sum(root.estimate.of_lanes(self.vector_bytes) * (root.size / self.count) for root in roots)
        halo = max(member.high - member.low for member in self.members)
        least = max(self.jam, _ROWS_OF_HALO * halo)
        return min(self.count, max(least, grain_of(weight, self.count, JAM if self.early else self.jam)))

    def nests(self, name: str) -> list[Nest]:
        """The nest, and a second one that combines totals of its parts where there are any."""
        roots = [member.root for member in self.members]
        parts = -(-self.count // self.grain)
        vector = self.vector_bytes // 8
        for root in roots:
            if is_total(root):
                in_array = root.kind == "column"
                self.totals[root.node] = Total(self.storage, root, parts, in_array=in_array, copies=self.copies)
                self.scratch += self.totals[root.node].arrays
        for total in self.totals.values():
            total.begin(self.lowering, vector)
        self._give_scratch()
        for members in self._bands():
            self._band(members, JAM if id(members[0]) in self.early else self.jam)
        for total in self.totals.values():
            total.end(self.lowering, vector)
        nest = self.storage.nest(
            name,
            self.lowering.statements,
            scratch=self.scratch,
            count=self.count,
            grain=self.grain,
            cost=cost_of(self.storage, roots),
        )
        last = combining_nest(self.storage, list(self.totals.values()), name, vector)
        return [nest] if last is None else [nest, last]

    # -- rows

    def _is_early(self, member: Member) -> bool:
        """Whether a running total is computed before all else, for all rows of a part, several rows at a time.

        Each of its additions waits for the one before; those of other rows do not. Worth 1.5 times.
        """
        root = member.root
        many = self.count >= 4 * JAM and product(root.middle) <= _SHORT_ROW
        return root.kind == "scan" and not member.together and many and not self._comes_from_a_row(root)

    def _bands(self) -> list[list[Member]]:
        """Members by the rows that are needed of them, the widest band first: the others read it."""
        found: dict[tuple[bool, int, int], list[Member]] = {}
        for member in self.members:
            key = (id(member) not in self.early, member.low, member.high)
            found.setdefault(key, []).append(member)
        order = sorted(found, key=lambda key: (key[0], key[1] - key[2], max(each.phase for each in found[key])))
        return [found[key] for key in order]

    def _band(self, members: Sequence[Member], jam: int) -> None:
        """The loop over rows of members that need the same rows before and behind a part.

        Rows are done `jam` at a time where that pays. The loop is cut where values change their formula, and members
        that others read at neighbouring rows are computed beyond the part's ends.
        """
        lowering, count = self.lowering, self.count
        low, high = members[0].low, members[0].high

        def row(index: Index) -> None:
            self.rows = [index]
            self._row(members)

        def rows(index: Index) -> None:
            self.rows = [index + number for number in range(jam)]
            self._row(members)

        self.before = dict(lowering.stored)
        if count == 1:
            row(constant(0))
            return
        start: Expr = BEGIN
        if low:
            start = Apply("maximum", (Position(counter("begin", count) + low, "i64"), Literal(0, "i64")), "i64")
        stop: Expr = END
        if high:
            stop = Apply("minimum", (Position(counter("end", count) + high, "i64"), Literal(count, "i64")), "i64")
        cuts = {cut for member in members for cut in _row_cuts(member.root)}
        for first, last in pieces(0, count, cuts):
            begin = Apply("maximum", (start, Literal(first, "i64")), "i64") if first else start
            end = Apply("minimum", (stop, Literal(last, "i64")), "i64") if last < count else stop
            if jam > 1:
                whole = Position((counter("end", count) // jam) * jam, "i64")
                before = len(lowering.statements)
                if self.copies > 1:
                    lane = Index(0, [(Counter("column", 0, self.copies * product(members[0].root.middle) - 1), 1)])
                    filler = self.storage.lowering([each.root.node for each in members])
                    lowering.share_names(filler)
                    lowering.spread = Spread(filler, lane)
                lowering.loop(
                    "row",
                    0,
                    count - jam + 1,
                    rows if self.copies == 1 else lambda index: self._rows_at_once(members, index),
                    start=begin,
                    stop=whole,
                    step=jam,
                )
                if lowering.spread is not None:
                    lowering.statements[before:before] = lowering.spread.statements()
                    self.scratch += lowering.spread.scratch
                    lowering.spread = None
                begin = whole
            lowering.loop("row", first, last, row, start=begin, stop=end)
            lowering.of_row.clear()

    def _rows_at_once(self, members: Sequence[Member], row: Index) -> None:
        """Short rows as one long one, whose length is a multiple of the lanes."""
        lowering = self.lowering
        roots = [member.root for member in members]
        columns = product(roots[0].middle)
        vector, _ = lanes_of(combined([root.estimate for root in roots]), self.vector_bytes)

        def element(index: Index) -> None:
            for root in roots:
                at = row + index // columns
                positions = (*unflat(at, root.shape[: root.lead]), *unflat(index % columns, root.middle))
                value = lowering.value(root.source, positions)
                if root.node in self.totals:
                    self.totals[root.node].take_column(lowering, index, [value])
                else:
                    lowering.store(root.node, positions, value)

        length = self.copies * columns
        lowering.loop("column", 0, length, element, vector=vector, unroll=length // vector)

    def _row(self, members: Sequence[Member]) -> None:
        """One row, or a few of them together: phase after phase, members of one shape in one pass over columns."""
        self.lowering.row = self.rows[0]
        self.lowering.stored = dict(self.before)
        for phase in sorted({member.phase for member in members}):
            passes: dict[tuple[tuple[int, ...], int], list[Root]] = {}
            for member in members:
                if member.phase == phase:
                    root = member.root
                    passes.setdefault((root.shape[root.lead :], root.tail), []).append(root)
            for roots in passes.values():
                self._pass(roots)

    def _pass(self, roots: Sequence[Root]) -> None:
        """One loop, or one nest of loops, over the columns; what goes in an order of its own comes after it."""
        ordered = [root for root in roots if root.kind == "scan" or self._is_numpy_sum(root)]
        together = [root for root in roots if root not in ordered]
        for root in ordered:
            if self._comes_from_a_row(root) and all(root.source != other.node for other in together):
                together.append(replace(root, node=root.source, kind="map"))
        if together:
            self._loops(together)
        for root in together:
            if root.kind == "map" or (root.kind == "row" and root.tail):
                self._finished(root.node)
        for root in ordered:
            if root.kind == "scan":
                self._scan(root)
                self._finished(root.node)
            else:
                self._numpy_sum(root)

    def _comes_from_a_row(self, root: Root) -> bool:
        """Whether what is added up in order is computed in full vectors first."""
        if root.source in self.lowering.stored:
            return False
        domain, cuts = self._domain([root])
        direct = root.estimate.weight < _WORTH_A_ROW and len(domain.runs) == 1 and not cuts
        nbytes = product(root.middle) * ITEMSIZE[self.program.specs[root.source].dtype]
        return not direct and nbytes <= _MOST_SCRATCH

    def _finished(self, node: int) -> None:
        """From here on, a value is read from where it was stored."""
        local = self.lowering.local.get(node)
        self.lowering.stored[node] = self.storage.stored[node] if local is None else Stored(local.scratch, local.dtype)

    # -- scratch

    def _give_scratch(self) -> None:
        """Scratch for values that nobody needs outside: bands before the loops, rows when they are computed."""
        readers: dict[int, set[tuple[bool, int, int]]] = {}
        for member in self.members:
            for other, _ in member.together:
                key = (id(member) in self.early, member.low, member.high)
                readers.setdefault(other.root.node, set()).add(key)
        for member in self.members:
            root = member.root
            if root.node in self.needed or is_total(root) or (root.kind == "row" and not root.tail):
                continue
            if readers.get(root.node, set()) <= {(id(member) in self.early, member.low, member.high)}:
                continue
            self._new_scratch(root.node, self._row_size(root), self.grain + member.high - member.low)
            origin = (counter("begin", self.count) + member.low) * self._row_size(root)
            name = self.scratch[-1].name
            self.lowering.local[root.node] = Local(name, self.scratch[-1].dtype, origin)

    def _row_size(self, root: Root) -> int:
        return self.program.specs[root.node].size // self.count

    def _new_scratch(self, node: int, size: int, rows: int = 1) -> None:
        """Add scratch memory for rows of a node."""
        spec = self.program.specs[node]
        dtype = part_of(spec.dtype)
        self.scratch.append(Scratch(f"row_{node}", dtype, rows * size * components(spec.dtype)))

    def _scratch_row(self, root: Root) -> None:
        """A row of scratch for a value that nobody needs outside of this row."""
        node = root.node
        if node in self.needed:
            return
        name = f"row_{node}"
        if not any(each.name == name for each in self.scratch):
            self._new_scratch(node, self._row_size(root))
        elif self.lowering.local[node].origin.depends_on("begin"):
            return
        dtype = part_of(self.program.specs[node].dtype)
        self.lowering.local[node] = Local(name, dtype, self.rows[0] * self._row_size(root))

    # -- loops over columns

    def _domain(self, roots: Sequence[Root]) -> tuple[Domain, dict[int, set[int]]]:
        """The loops of the columns that suit all roots."""
        first = roots[0]
        forms: list[Index] = []
        cuts: dict[int, set[int]] = {}
        for root in roots:
            forms += [shifted(form, root.lead) for form in root.forms]
            for axis, found in root.cuts.items():
                if axis >= root.lead:
                    cuts.setdefault(axis - root.lead, set()).update(found)
        return merged(first.middle, forms, cuts), cuts

    def _loops(self, roots: Sequence[Root]) -> None:
        """The loops over the columns of one row, for roots of one shape.

        The last axis has lanes where every root allows it, and as many as the estimated work of one element suggests.
        Loops are cut where values change their formula. Sums along the row begin before the loops and end after them.
        """
        lowering = self.lowering
        domain, cuts = self._domain(roots)
        states = {
            root.node: [self._begin(root) for _ in root.ends]
            for root in roots
            if root.kind == "row" or (root.kind == "all" and root.node not in self.totals)
        }
        sums: tuple[tuple[str, str], ...] = tuple(
            (name.name, reductions.FUNCTIONS[root.fn])
            for root in roots
            if root.node in states
            for state in states[root.node]
            for name in state
        )
        sums += tuple(each for root in roots if root.node in self.totals for each in self.totals[root.node].sums)
        estimate = combined([times(root.estimate, len(root.ends) * self.jam) for root in roots])
        vector, unroll = lanes_of(estimate, self.vector_bytes)
        if self.jam > JAM:
            unroll = 1
        if not all(has_lanes(self.storage, root) for root in roots):
            vector = 1
        for root in roots:
            if root.kind == "map":
                self._scratch_row(root)

        def element(indices: Sequence[Index]) -> None:
            columns = domain.positions(indices)
            for root in roots:
                self._element(root, columns, states)

        def loops(run: int, indices: tuple[Index, ...]) -> None:
            if run == len(domain.runs):
                element(indices)
                return
            last = run == len(domain.runs) - 1
            for low, high in pieces(0, domain.lengths[run], domain.cuts_of(run, cuts)):
                wide = vector if last and high - low >= vector else 1
                lowering.loop(
                    "column" if last else f"middle_{run}",
                    low,
                    high,
                    lambda index: loops(run + 1, (*indices, index)),
                    vector=wide,
                    unroll=unroll if wide > 1 else 1,
                    sums=sums if last else (),
                )

        loops(0, ())
        for root in roots:
            if root.node in states:
                self._end(root, states[root.node])

    def _element(self, root: Root, columns: Positions, states: dict[int, list[tuple[Name, ...]]]) -> None:
        """Compute each root at one column of the rows at hand: store it, or add it to its sum or total."""
        lowering = self.lowering
        dtype = self.program.specs[root.source].dtype
        total = self.totals.get(root.node)
        for number, end in enumerate(root.ends):
            values = []
            for row in self.rows:
                positions = (*unflat(row, root.shape[: root.lead]), *columns, *end)
                value = lowering.value(root.source, positions)
                values.append(value)
                if root.node in states:
                    state = states[root.node][number]
                    lowering.take(root.node, root.fn, dtype, state, value, state[0])
                elif total is None:
                    lowering.store(root.node, positions, value)
                elif root.kind == "all":
                    total.take(lowering, 0, value)
            if total is not None and root.kind == "column":
                total.take_column(lowering, flat_columns(root, (*columns, *end)), values)

    # -- reductions of a row

    def _begin(self, root: Root) -> tuple[Name, ...]:
        dtype = self.program.specs[root.source].dtype
        return self.lowering.begin(root.node, root.fn, dtype, lambda index: ())

    def _end(self, root: Root, states: Sequence[tuple[Name, ...]]) -> None:
        """Finish the sums of a row: they are values of the row from here on, and stored where later nests need them."""
        lowering = self.lowering
        dtype = self.program.specs[root.source].dtype
        values: list[Value] = [lowering.end(root.node, root.fn, dtype, state) for state in states]
        if not root.tail:
            lowering.of_row[root.node] = values[0]
            if root.node in self.needed:
                lowering.store(root.node, self._result_positions(root, 0), values[0])
            return
        self._scratch_row(root)
        for number, value in enumerate(values):
            lowering.store(root.node, self._result_positions(root, number), value)

    def _result_positions(self, root: Root, number: int) -> Positions:
        size = self._row_size(root)
        return unflat(self.rows[0] * size + number, self.program.specs[root.node].shape)

    def _is_numpy_sum(self, root: Root) -> bool:
        own = root.kind == "row" or (root.kind == "all" and root.node not in self.totals)
        return own and not root.tail and is_numpy_sum(self.program, root)

    def _numpy_sum(self, root: Root) -> None:
        """A sum in NumPy's order."""
        lowering = self.lowering
        dtype = self.program.specs[root.source].dtype
        (state,) = self._begin(root)

        def term(index: Index) -> None:
            value = lowering.value(root.source, self._positions(root, index))
            lowering.take(root.node, "sum", dtype, (state,), value, state)

        columns = product(root.middle)
        lowering.loop("column", 0, columns, term, pairwise=True, sums=((state.name, "add"),), vector=8)
        self._end(root, [(state,)])

    def _scan(self, root: Root) -> None:
        """A running total."""
        lowering = self.lowering
        dtype = self.program.specs[root.source].dtype
        self._scratch_row(root)
        states = [lowering.begin_running(root.node, root.fn, dtype) for _ in self.rows]

        def element(index: Index) -> None:
            for row, state in zip(self.rows, states, strict=True):
                positions = (*unflat(row, root.shape[: root.lead]), *unflat(index, root.middle))
                lowering.take(root.node, root.fn, dtype, state, lowering.value(root.source, positions), state[0])
                lowering.store(root.node, positions, state)

        lowering.loop("column", 0, product(root.middle), element)

    def _positions(self, root: Root, column: Index) -> Positions:
        return (*unflat(self.rows[0], root.shape[: root.lead]), *unflat(column, root.middle))


def is_total(root: Root) -> bool:
    """Whether a root is a reduction over the rows of its nest."""
    return root.kind == "column" or (root.kind == "all" and root.rows > 1)


def flat_columns(root: Root, positions: Positions) -> Index:
    """The column of a result, of the positions behind the rows."""
    total = Index(0)
    for position, length in zip(positions, root.shape[root.lead :], strict=True):
        total = total * length + position
    return total


def _row_cuts(root: Root) -> set[int]:
    """Cuts of the loop over rows, where rows are the first axis."""
    return set(root.cuts.get(0, ())) if root.lead == 1 else set()
