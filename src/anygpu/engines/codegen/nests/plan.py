"""Which values are stored, which of them share a nest, and in which order nests and host steps run.

`planned` begins with what must be stored, and stores more where values would be computed too often. Each stored value
is a root; roots whose rows fit together become members of one group, which is one pass over rows with several phases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from anygpu.engines.codegen.lower import Positions
from anygpu.engines.codegen.nests.layout import (
    MOST_HALO,
    MOST_WRITTEN_OUT,
    Offsets,
    alone,
    has_dear_rows,
    is_groupable,
    is_identity,
    is_numpy_sum,
    is_small,
    lead_for,
    row_offsets,
    with_rows,
)
from anygpu.engines.codegen.nests.lowering import is_computed
from anygpu.engines.codegen.nests.roots import (
    FEW_ROWS,
    Root,
    computed_too_often,
    examined,
    is_given,
    is_host_step,
    is_long,
    is_scattered,
    merged,
    replace,
    root_of,
)
from anygpu.engines.codegen.nests.steps import TooMany, Written, own_weight
from anygpu.program.graph import Program
from anygpu.program.primitives import (
    Concatenate,
    Constant,
    Flip,
    Gather,
    Input,
    Pad,
    Scan,
    Slice,
    Update,
    Windows,
    product,
)

#: The weight of an element from which it pays to keep its value for a second pass: in a row of scratch, and in memory.
#: A load and a store are 1 or 2 near by; memory takes as long as 30 operations or so.
_KEEP_IN_ROW = 16.0
_KEEP_IN_MEMORY = 35.0
#: Positions are computed in 32 bits where they are compared: what has more elements is NumPy's.
_TOO_MANY = 1 << 31
#: Stencils of stencils, and so on, that one loop may compute: every one more multiplies the places.
_MOST_STAGES = 2
#: Rows that the bands of a nest may need beyond a part's own, all together.
_MOST_REACH = 24
#: What is saved by keeping a value that is needed at several places, from which it pays.
_KEEP_SHIFTED = 12.0


class Member(msgspec.Struct, kw_only=True):
    """A root in its nest: in which of the passes over a row it is computed, and for which rows beyond a part's own."""

    root: Root
    phase: int = 0
    low: int = 0
    high: int = 0
    #: Rows that it needs of the first values of the nest.
    reach: int = 0
    #: Others in the nest that it reads, and in which rows.
    together: list[tuple[Member, Offsets]] = []


class NestGroup(msgspec.Struct, kw_only=True):
    """The roots of one nest. `rows` is 0 where lanes and parts go along one and the same loop."""

    level: int
    rows: int
    members: list[Member]


class NestPlan(msgspec.Struct, kw_only=True):
    """Groups and host steps in the order in which they run."""

    steps: list[NestGroup | int]
    stored: set[int]
    program: Program
    outputs: tuple[int, ...]
    ranks: list[int]

    def in_memory(self) -> set[int]:
        """The values that have a slot: those that are given, and those that are read outside of their nest."""
        found = {*self.outputs, *(node for node in self.stored if is_given(self.program, node))}
        for step in self.steps:
            if isinstance(step, int):
                found.update((step, *self.program.nodes[step].inputs))
            else:
                found.update({member.root.node for member in step.members} & self.needed(step))
        return found

    def needed(self, group: NestGroup) -> set[int]:
        """The values that are read outside of a group; reductions of all rows are read after it in any case."""
        found = {*self.outputs, *(m.root.node for m in group.members if m.root.kind in ("all", "column"))}
        for step in self.steps:
            if isinstance(step, int):
                found.update(self.program.nodes[step].inputs)
            elif step is not group:
                found.update(node for member in step.members for node, _ in member.root.reads)
        return found


def planned(program: Program, outputs: Sequence[int], written: Written, *, apart: bool = False) -> NestPlan:
    """`outputs` are the values that must be there in the end. `apart` gives every stored value a nest of its own."""
    return _Planner(program, outputs, written, apart).plan()


class _Planner:
    """Plans the nests of a program: what is stored, and which values are computed in one pass over rows."""

    def __init__(self, program: Program, outputs: Sequence[int], written: Written, apart: bool) -> None:
        """Find host steps and the first values to store: results, what host steps read and make, long sums and scans.

        With `apart` every value has a nest of its own.
        """
        self.program = program
        self.written = written
        self.apart = apart
        self.outputs = outputs
        self.order = needed_in_order(program, outputs)
        self.ranks = [0] * len(program.nodes)
        for rank, node in enumerate(self.order):
            self.ranks[node] = rank
        self.hosts = {node for node in self.order if is_host_step(program, node)}
        if any(program.specs[node].size >= _TOO_MANY for node in self.order):
            self.hosts = {node for node in self.order if not isinstance(program.nodes[node].op, Constant | Input)}
        self.given = {node for node in self.order if is_given(program, node)}
        self.stored: set[int] = {*outputs, *self.hosts, *self.given}
        computed = set(needed_in_order(program, (*outputs, *self.hosts), elements=True))
        for node in self.order:
            if node in computed and (is_long(program, node) or isinstance(program.nodes[node].op, Scan)):
                self.stored.add(node)
            if node in computed and is_scattered(program, node):
                self.stored.update((node, *program.nodes[node].inputs[:2]))
            if node in self.hosts:
                self.stored.update(program.nodes[node].inputs)
            if isinstance(program.nodes[node].op, Gather) and (table := self._table_of(node)) is not None:
                self.stored.add(table)
        self.whole = updated_with(program, self.order)
        self.stored |= between_stages(program, self.order, self.stored, self.whole)
        self.roots: dict[int, Root] = {}
        self.members: dict[int, Member] = {}
        self.levels: dict[int, int] = {}

    def plan(self) -> NestPlan:
        """The plan.

        Values are stored one after the other as long as that saves enough work, and places found anew each time.
        """
        self._examine()
        for root in list(self.roots.values()):
            if is_numpy_sum(self.program, root) and root.kind == "all" and self._is_scattered(root):
                self._store(root.source)
        while (node := self._worth_keeping_for_places()) is not None:
            self._store(node)
        self._place()
        while (node := self._worth_keeping_for_passes()) is not None:
            self._store(node)
            self._place()
        return NestPlan(
            steps=self._steps(),
            stored=self.stored,
            program=self.program,
            outputs=tuple(self.outputs),
            ranks=self.ranks,
        )

    def _table_of(self, gather: int) -> int | None:
        """The source of a gather, if it is computed and has fewer elements than are gathered: each would come often."""
        source = self.program.nodes[gather].inputs[0]
        if self.program.specs[source].size >= self.program.specs[gather].size:
            return None
        seen, waiting = {source}, [source]
        while waiting:
            node = waiting.pop()
            if node in self.stored:
                continue
            if is_computed(self.program.nodes[node].op):
                return source
            new = [each for each in self.program.nodes[node].inputs if each not in seen]
            seen.update(new)
            waiting += new
        return None

    def _is_scattered(self, root: Root) -> bool:
        """Whether a large sum of everything would not go through memory in order: its terms are stored first."""
        in_order = len(merged(root.shape, root.forms, root.cuts).runs) <= 1 and not root.cuts
        return root.source not in self.stored and not in_order and not is_small(root)

    def _store(self, node: int) -> None:
        """One more value is stored: those that need it read it."""
        self.stored.add(node)
        self._examine([each for each, root in self.roots.items() if node in root.places])

    def _examine(self, again: Sequence[int] = ()) -> None:
        """Roots, and what each reads; `again` are those for which this has changed."""
        for node in again:
            del self.roots[node]
        waiting = [node for node in self.order if self._is_root(node) and node not in self.roots]
        while waiting:
            node = waiting.pop(0)
            root = root_of(self.program, node)
            try:
                self.roots[node] = self._examined(root)
            except (TooMany, RecursionError) as error:
                too_often = computed_too_often(self.program, self.order, root, self.stored)
                if not too_often:
                    if isinstance(error, RecursionError):
                        raise
                    too_often = {error.node}
                if node in too_often:
                    self.roots[node] = self._examined(root, limited=False)
                    continue
                self.stored |= too_often
                waiting = [*sorted(too_often, key=lambda each: self.ranks[each]), node, *waiting]
        self.roots = {node: self.roots[node] for node in self.order if node in self.roots}

    def _examined(self, root: Root, *, limited: bool = True) -> Root:
        found = examined(self.program, root, self.stored, self.ranks, self.written, limited=limited)
        if root.kind == "scatter":
            # It reads these anywhere.
            found.reads += [(source, ()) for source in self.program.nodes[root.node].inputs[:2]]
        return found

    def _is_root(self, node: int) -> bool:
        """Whether a node is computed by a nest and stored."""
        if node not in self.stored or node in self.hosts or node in self.given:
            return False
        return self.program.specs[node].size > 0 and not isinstance(self.program.nodes[node].op, Constant)

    def _shape(self, node: int) -> tuple[int, ...]:
        return self.program.specs[node].shape

    # -- what is kept

    def _weight(self, node: int) -> float:
        """Of one element, down to what is stored."""
        seen, waiting, total = {node}, [node], 0.0
        while waiting:
            current = waiting.pop()
            total += own_weight(self.program, current)
            for source in self.program.nodes[current].inputs:
                if source not in seen and source not in self.stored:
                    seen.add(source)
                    waiting.append(source)
        return total

    def _worth_keeping_for_places(self) -> int | None:
        """The value whose computing at neighbouring places costs most, if that is more than storing it.

        Stencils of stencils, each stage a band of rows in scratch: worth 4.6 times for a blur before a gradient.
        """
        best, found = _KEEP_SHIFTED, None
        for root in self.roots.values():
            if has_dear_rows(self.program, root):
                continue
            for node, places in root.places.items():
                times = len(places)
                if times < 2 or node in self.stored or not self.program.nodes[node].op.is_elementwise:
                    continue
                if self.program.specs[node].size > 4 * root.size:
                    continue
                whole = self.whole.get(node, node)
                saved = (times - 1) * self._weight(node) - times - 2
                if saved > best and whole not in self.stored:
                    best, found = saved, whole
        return found

    def _worth_keeping_for_passes(self) -> int | None:
        """A value that two passes need and that is dear: in a row of scratch within a nest, in memory across nests."""
        uses: dict[int, set[tuple[int, int, int]]] = {}
        for member in self.members.values():
            root = member.root
            for node in root.places:
                key = (self.levels[root.node], root.rows, member.phase)
                uses.setdefault(node, set()).add(key)
        for node in sorted(uses, key=lambda each: -self.ranks[each]):
            if len(uses[node]) < 2 or node in self.stored or not self.program.nodes[node].op.is_elementwise:
                continue
            if self.program.specs[node].size <= 1:
                continue
            one_nest = len({use[:2] for use in uses[node]}) == 1 and all(rows for _, rows, _ in uses[node])
            if self._weight(node) >= (_KEEP_IN_ROW if one_nest else _KEEP_IN_MEMORY):
                return node
        return None

    # -- rows

    def _place(self) -> None:
        """Find rows, levels and phases anew."""
        self.members, self.levels = {}, {}
        self._choose_rows()
        self._assign()

    def _choose_rows(self) -> None:
        """Rows, and what is written out, of every root."""
        placed: set[int] = set()
        for node, root in self.roots.items():
            chosen = self._own_rows(root)
            if chosen is not None:
                self.roots[node] = chosen
                placed.add(node)
        if not self.apart:
            self._join_rows(placed)
        for node, root in self.roots.items():
            if node not in placed:
                self.roots[node] = alone(self.program, root)

    def _own_rows(self, root: Root) -> Root | None:
        """The rows of a reduction; maps, and reductions of everything that is large, go with others."""
        if root.kind in ("row", "scan", "scatter"):
            return root
        if root.kind == "all" and (is_small(root) or is_numpy_sum(self.program, root)):
            return replace(root, rows=1 if is_small(root) else 0, lead=0, tail=0)
        if root.kind == "column":
            columns = product(root.shape[root.lead :])
            in_line = len(merged(root.shape[: root.lead], root.forms, root.cuts).runs) <= 1
            if columns <= MOST_WRITTEN_OUT and in_line and not is_groupable(root):
                return replace(root, rows=0, tail=len(root.shape) - root.lead)
            return replace(root, rows=product(root.shape[: root.lead]), tail=0)
        return None

    def _join_rows(self, placed: set[int]) -> None:
        """A map goes with the rows of the reductions that it reads or that read it, or of its neighbours in a band."""
        changed = True
        while changed:
            changed = False
            for node, root in self.roots.items():
                if node not in placed and (rows := self._rows_of_others(root, placed)) is not None:
                    self.roots[node] = with_rows(root, *rows)
                    placed.add(node)
                    changed = True
            if not changed and (pair := self._next_band(placed)) is not None:
                for node in pair:
                    self.roots[node] = with_rows(self.roots[node], self.roots[node].shape[0], 1)
                    placed.add(node)
                changed = True

    def _rows_of_others(self, root: Root, placed: set[int]) -> tuple[int, int] | None:
        """The rows and leading axes by which a root could share a loop with roots that are placed already.

        `None` where it reads none of them row by row, and none of them reads it so.
        """
        for node, positions in root.reads:
            other = self.roots.get(node)
            if other is not None and node in placed and (other.kind in ("map", "row", "scan") or other.rows == 1):
                rows = self._rows_like(root, self.roots[node], root, positions, self._shape(node))
                if rows is not None:
                    return rows
        for node in placed:
            for source, positions in self.roots[node].reads:
                if source == root.node:
                    rows = self._rows_like(root, self.roots[node], self.roots[node], positions, root.shape)
                    if rows is not None:
                        return rows
        return None

    def _rows_like(
        self, root: Root, other: Root, reader: Root, positions: Positions, shape: tuple[int, ...]
    ) -> tuple[int, int] | None:
        """The rows of another root, if each row reads only the same one of the other."""
        lead = lead_for(root.shape, other.rows) if other.rows else None
        if lead is None or (other.rows > 1 and product(root.shape[lead:]) == 1):
            return None
        if other.rows == 1 and not is_small(root):
            return None
        reading = lead if reader is root else other.lead
        offsets = row_offsets(reader, reading, positions, shape)
        near = offsets is not None and -MOST_HALO <= offsets[0] <= offsets[1] <= MOST_HALO
        return (other.rows, lead) if near and (offsets == (0, 0) or other.kind == "map") else None

    def _next_band(self, placed: set[int]) -> tuple[int, int] | None:
        """Two maps, one of which reads rows of the other near its own."""
        for node, root in self.roots.items():
            if node in placed or root.kind != "map" or len(root.shape) < 2 or root.shape[0] < FEW_ROWS:
                continue
            for source, positions in root.reads:
                other = self.roots.get(source)
                if other is None or source in placed or other.kind != "map" or other.shape[:1] != root.shape[:1]:
                    continue
                offsets = row_offsets(root, 1, positions, other.shape)
                if offsets is not None and offsets != (0, 0) and -MOST_HALO <= offsets[0] <= offsets[1] <= MOST_HALO:
                    return node, source
        return None

    # -- nests

    def _assign(self) -> None:
        """The nest and the pass of every root, as early as what it reads allows."""
        for node in self.order:
            if node in self.hosts:
                inputs = self.program.nodes[node].inputs
                self.levels[node] = max((self.levels.get(each, -1) for each in inputs), default=-1) + 1
            elif node in self.roots:
                self._assign_root(self.roots[node])
        for node in reversed(self.order):
            member = self.members.get(node)
            if member is None:
                continue
            for other, (low, high) in member.together:
                other.low, other.high = min(other.low, member.low + low), max(other.high, member.high + high)

    def _assign_root(self, root: Root) -> None:
        """Give a root its level and its phase.

        A level is a nest after those before it. Within one level, a root that reads another at rows nearby is computed
        in the same pass, in a later phase; `reach` is how far apart those rows may be.
        """
        level = 0
        near: list[tuple[Member, Offsets, Positions]] = []
        for node, positions in root.reads:
            if node not in self.levels:
                continue
            other = self.members.get(node)
            offsets = None if other is None else self._shared_rows(root, other.root, positions)
            far = other is not None and offsets is not None and other.reach + _span(offsets) > _MOST_REACH
            if other is None or offsets is None or far:
                level = max(level, self.levels[node] + 1)
            else:
                level = max(level, self.levels[node])
                near.append((other, offsets, positions))
        member = Member(root=root, together=[])
        for other, offsets, positions in near:
            if self.levels[other.root.node] == level:
                same = other.root.kind == "map" and root.shape == other.root.shape and root.tail == other.root.tail
                at_once = same and is_identity(positions, root.shape)
                member.phase = max(member.phase, other.phase + (0 if at_once else 1))
                member.together.append((other, offsets))
                member.reach = max(member.reach, other.reach + _span(offsets))
        self.members[root.node] = member
        self.levels[root.node] = level

    def _shared_rows(self, root: Root, other: Root, positions: Positions) -> Offsets | None:
        """In which rows a value is read that the same nest has computed; `None` if it must be in memory before."""
        if self.apart or (other.kind in ("column", "all") and other.rows != 1):
            return None
        if root.rows == 0 or other.rows == 0:
            lanes = root.lanes
            plain = not (other.tail or other.head or root.head)
            alike = root.rows == other.rows and other.kind == "map" and plain and other.shape == lanes
            return (0, 0) if alike and not self._is_apart(root) and is_identity(positions, lanes) else None
        if root.rows != other.rows:
            return None
        if root.rows == 1:
            return 0, 0
        offsets = row_offsets(root, root.lead, positions, self._shape(other.node))
        if offsets is None or not -MOST_HALO <= offsets[0] <= offsets[1] <= MOST_HALO:
            return None
        return offsets if offsets == (0, 0) or other.kind == "map" else None

    def _is_apart(self, root: Root) -> bool:
        """Whether a root has nests of its own kind: a large sum, running totals down columns, updates in order."""
        is_sum = root.kind == "all" and is_numpy_sum(self.program, root)
        return root.rows == 0 and (root.kind in ("scan", "scatter") or is_sum)

    def _steps(self) -> list[NestGroup | int]:
        """The groups of members that share a loop, and host steps, by level."""
        groups: dict[tuple[int, int, int, int], NestGroup] = {}
        for member in self.members.values():
            root = member.root
            level = self.levels[root.node]
            count = 0 if root.rows else product(root.lanes)
            own = root.node if self.apart or self._is_apart(root) else -1
            key = (level, root.rows, count, own)
            groups.setdefault(key, NestGroup(level=level, rows=root.rows, members=[])).members.append(member)
        steps: list[tuple[int, NestGroup | int]] = [(group.level, group) for group in groups.values()]
        steps += [(self.levels[node], node) for node in self.order if node in self.hosts]
        return [step for _, step in sorted(steps, key=lambda each: each[0])]


def _span(offsets: Offsets) -> int:
    return max(offsets[1], 0) - min(offsets[0], 0)


def between_stages(program: Program, order: Sequence[int], stored: set[int], whole: Mapping[int, int]) -> set[int]:
    """Values to store between stencils that follow one another, so that no loop computes too many of them.

    In place of a value that has a `whole`, that is stored.
    """
    found: set[int] = set()
    stages: dict[int, int] = {}
    moved: dict[int, bool] = {}
    shifted_ones = {
        source
        for node in order
        if isinstance(program.nodes[node].op, Concatenate | Flip | Pad | Slice | Update | Windows)
        for source in program.nodes[node].inputs
    }
    for node in order:
        op, inputs = program.nodes[node]
        below = [each for each in inputs if each not in stored and each not in found]
        stages[node] = max((stages[each] for each in below), default=0)
        moved[node] = any(moved[each] for each in below) or node in shifted_ones
        if op.is_elementwise:
            stages[node] += any(moved[each] for each in below)
            moved[node] = node in shifted_ones
            if stages[node] > _MOST_STAGES and node in shifted_ones:
                found.add(whole.get(node, node))
    return found


def updated_with(program: Program, order: Sequence[int]) -> dict[int, int]:
    """For values that nothing but an update reads, and that are most of it: the whole, which is what is read next.

    Reading a part and the edges around it would go through the updates of all stages before.
    """
    readers: dict[int, list[int]] = {}
    for node in order:
        for source in program.nodes[node].inputs:
            readers.setdefault(source, []).append(node)
    found: dict[int, int] = {}
    for node, (reader, *others) in readers.items():
        op, inputs = program.nodes[reader]
        small = program.specs[reader].size <= 2 * program.specs[node].size
        if not others and isinstance(op, Update) and inputs[1] == node and small:
            found[node] = reader
    return found


def needed_in_order(program: Program, outputs: Sequence[int], *, elements: bool = False) -> list[int]:
    """The nodes that outputs depend on, each after its inputs; with `elements`, nodes without any need no inputs."""
    order: list[int] = []
    done: set[int] = set()
    for output in outputs:
        waiting = [(output, False)]
        while waiting:
            node, ready = waiting.pop()
            if ready:
                order.append(node)
            elif node not in done:
                done.add(node)
                waiting.append((node, True))
                if elements and not program.specs[node].size:
                    continue
                waiting += [(source, False) for source in reversed(program.nodes[node].inputs) if source not in done]
    return order
