"""Groups stored values into kernels.

A group is one kernel (or one operation of several). Elementwise values join the kernel of what they read, when they
read it exactly where that kernel has it: at the same positions, or in the same row. So softmax is one kernel, and a
bias and an activation become the end of a matrix product.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Generic, TypeVar
from typing import Literal as OneOf

from anygpu.engines.codegen.index import Index, flat, unflat, variable
from anygpu.engines.codegen.kernel_ir import Name
from anygpu.engines.codegen.lower import Lowering, NotInKernel, Positions, Value
from anygpu.engines.codegen.materialise import MOST_NODES, inner_length, is_heavy, is_row_reduction, is_short
from anygpu.engines.codegen.target import Target, components, compute_type, is_narrow
from anygpu.program.dtypes import ITEMSIZE
from anygpu.program.graph import Program
from anygpu.program.primitives import Concatenate, Contract, Reduce, Search, product

GroupKind = OneOf["map", "rows", "contract", "pieces", "other"]


class StoredTogether:
    """Stored values that one kernel computes, as far as their order matters."""

    __slots__ = ("members", "reads")

    def __init__(self, first: int) -> None:
        self.members = [first]
        #: Stored values of other groups that it reads.
        self.reads: set[int] = set()


_AnyGroup = TypeVar("_AnyGroup", bound=StoredTogether)


class Groups(Generic[_AnyGroup]):
    """The groups of a program: roots are placed in them in order, and no two of them ever wait for each other."""

    def __init__(self) -> None:
        self.home: dict[int, _AnyGroup] = {}
        self._all: list[_AnyGroup] = []

    def start(self, group: _AnyGroup, root: int, reads: Set[int]) -> None:
        """Begin a group with a root."""
        group.reads |= reads
        self.home[root] = group
        self._all.append(group)

    def join(self, group: _AnyGroup, root: int, reads: Set[int]) -> None:
        """Add a root to a group, of which it may read members."""
        group.members.append(root)
        group.reads |= reads - set(group.members)
        self.home[root] = group

    def of(self, reads: Iterable[int]) -> list[_AnyGroup]:
        """The groups of values that are read, the latest first."""
        found = {id(self.home[each]): self.home[each] for each in sorted(reads, reverse=True) if each in self.home}
        return list(found.values())

    def may_join(self, group: _AnyGroup, others: Iterable[_AnyGroup]) -> bool:
        """Whether none of the other groups that a root reads waits for the one that it would join."""
        return all(other is group or not self._waits_for(other, group) for other in others)

    def _waits_for(self, group: _AnyGroup, target: _AnyGroup) -> bool:
        """Whether a group reads, directly or through others, what the target makes."""
        # What was complete before the first value of the target cannot wait for it.
        first = target.members[0]
        waiting, seen = [group], {id(group)}
        while waiting:
            for read in waiting.pop().reads:
                other = self.home.get(read)
                if other is target:
                    return True
                if other is not None and other.members[-1] > first and id(other) not in seen:
                    seen.add(id(other))
                    waiting.append(other)
        return False

    def in_order(self) -> list[_AnyGroup]:
        """The groups sorted so that each comes after what it reads: depth first, without recursion."""
        done: list[_AnyGroup] = []
        entered: set[int] = set()
        for start in self._all:
            waiting = [(start, False)]
            while waiting:
                group, is_ready = waiting.pop()
                if is_ready:
                    done.append(group)
                elif id(group) not in entered:
                    entered.add(id(group))
                    waiting.append((group, True))
                    others = (self.home.get(read) for read in sorted(group.reads, reverse=True))
                    waiting += [(other, False) for other in others if other is not None and other is not group]
        return done


class Group(StoredTogether):
    """Stored values that one kernel computes."""

    def __init__(self, kind: GroupKind, first: int, *, rows: int = 0, length: int = 0, parts: int = 1) -> None:
        """A group of one root.

        `rows` and `length` are those of row reductions, `parts` the pieces that rows are cut into.
        """
        super().__init__(first)
        self.kind = kind
        #: For "rows": their number and length, their reductions, and the number of parts that each is cut into.
        self.rows = rows
        self.length = length
        self.parts = parts
        self.reductions: list[int] = []
        #: For "rows": the axes of a member along which rows are counted; `None` for one value in each row.
        self.row_axes: dict[int, tuple[int, ...] | None] = {}
        #: For "contract": the axes of a member in the order of the product's own, where they are permuted.
        self.orders: dict[int, tuple[int, ...]] = {}


class ReadingLowering(Lowering):
    """Follows a value down to what is stored, and remembers where it was read."""

    def __init__(self, program: Program, stored: frozenset[int]) -> None:
        """Lowers without statements: `at` collects the positions at which stored values are read."""
        super().__init__(program, {}, lambda node: None)
        self.at: dict[int, set[Positions]] = {}
        self._stored = stored
        self.searches = _AnyName()

    def value(self, node: int, positions: Positions) -> Value:
        """The value, without computing it: reads of stored values are noted with their positions."""
        if node in self._stored:
            self.at.setdefault(node, set()).add(positions)
            spec = self.program.specs[node]
            type = compute_type(spec.dtype)
            return tuple(Name(f"read_{node}_{part}", type) for part in range(components(spec.dtype)))
        op, inputs = self.program.nodes[node]
        if isinstance(op, Search) and inputs[0] in self._stored:
            # The whole line, so at no position that a kernel could have at hand.
            self.at.setdefault(inputs[0], set()).add((variable("anywhere", 2),))
        return super().value(node, positions)


class _AnyName(dict[int, str]):
    def __missing__(self, node: int) -> str:
        return "search"


def axis_variables(shape: Sequence[int]) -> Positions:
    return tuple(variable(f"p{axis}", length) for axis, length in enumerate(shape))


def grouped(
    program: Program,
    target: Target,
    roots: Sequence[int],
    *,
    given: Iterable[int],
    parts_of: Mapping[int, int],
    alone: Set[int] = frozenset(),
    convolutions: Set[int] = frozenset(),
) -> list[Group]:
    """Groups in an order in which they can run.

    `given` is stored already: inputs and constants. What is in `alone` joins no group. `convolutions` are products
    that may be computed as such.
    """
    return _Grouping(program, target, roots, given, parts_of, alone, convolutions).groups()


class _Grouping(Groups[Group]):
    """Finds which stored values share a kernel."""

    def __init__(
        self,
        program: Program,
        target: Target,
        roots: Sequence[int],
        given: Iterable[int],
        parts_of: Mapping[int, int],
        alone: Set[int],
        convolutions: Set[int],
    ) -> None:
        """`roots` are the values to store, in order, and `given` those that are in memory already.

        `parts_of` has the rows that are cut, `alone` what must not share a kernel, and `convolutions` the products that
        a template for convolutions does.
        """
        super().__init__()
        self.program = program
        self.target = target
        self.roots = roots
        self.parts_of = parts_of
        self.alone = alone
        self.convolutions = convolutions
        self.stored = frozenset((*roots, *given))
        self.outputs = frozenset(program.outputs)
        #: For each value that is stored those who read it; and how many nodes each one's own kernel would have.
        self.readers: dict[int, set[int]] = {root: set() for root in self.stored}
        self.sizes: dict[int, int] = {}
        for root in roots:
            below, self.sizes[root] = self._below(root)
            for read in below:
                self.readers[read].add(root)

    def groups(self) -> list[Group]:
        """The groups in an order in which they can run: each root joins one that it reads from, or starts its own."""
        for root in self.roots:
            op = self.program.nodes[root].op
            is_product = isinstance(op, Contract) and not is_short(self.program, root)
            if root not in self.convolutions and is_row_reduction(self.program, root, self.target):
                self._place_reduction(root)
            elif root in self.convolutions or is_product:
                self._start_alone("contract", root)
            elif isinstance(op, Concatenate) and not self._shares_words(root):
                self._start_alone("pieces", root)
            elif is_heavy(self.program, root):
                self._start_alone("other", root)
            else:
                self._place_map(root)
        return self.in_order()

    def _start_alone(self, kind: GroupKind, root: int) -> None:
        """Begin a group of a kind that joins no other."""
        self.start(Group(kind, root), root, self._below(root)[0])

    def _shares_words(self, root: int) -> bool:
        """Temporaries never do: they are stored in the type that is computed with."""
        return root in self.outputs and is_narrow(self.program.specs[root].dtype, self.target)

    def _below(self, root: int) -> tuple[set[int], int]:
        """The stored values that a node is computed from, and the number of nodes in between."""
        found: set[int] = set()
        waiting = list(self.program.nodes[root].inputs)
        seen: set[int] = set()
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            if node in self.stored:
                found.add(node)
            else:
                waiting.extend(self.program.nodes[node].inputs)
        return found, 1 + len(seen) - len(found)

    # -- reductions

    def _place_reduction(self, root: int) -> None:
        """Join rows of the same number and length that are read element by element, or start a group.

        Rows that are cut into parts stay alone.
        """
        reads = self._below(root)[0]
        rows, length = row_sizes(self.program, root)
        parts = self.parts_of.get(root, 1)
        if parts == 1 and root not in self.alone:
            others = self.of(reads)
            for group in others:
                if group.kind == "rows" and group.parts == 1 and group.rows == rows and group.length == length:
                    inner = self._element_reads(root, length)
                    if (
                        self._has_room(group, root, reads)
                        and self._all_at_row(group, inner, rows)
                        and self.may_join(group, others)
                    ):
                        self.join(group, root, reads)
                        group.reductions.append(root)
                        group.row_axes[root] = None
                        return
        group = Group("rows", root, rows=rows, length=length, parts=parts)
        group.reductions.append(root)
        group.row_axes[root] = None
        self.start(group, root, reads)

    def _element_reads(self, root: int, length: int) -> dict[int, set[Positions]]:
        """Which stored values a row reduction reads at one row and column, and where."""
        reading = ReadingLowering(self.program, self.stored - {root})
        rows = self.program.specs[root].size
        row = variable("row", rows)
        element_of(reading, root, row, variable("column", length))
        return reading.at

    def _all_at_row(self, group: Group, reads: Mapping[int, set[Positions]], rows: int) -> bool:
        """Whether everything of the group that is read is read in the row that is being worked on."""
        row = variable("row", rows)
        for member in group.members:
            for positions in reads.get(member, ()):
                if group.row_axes[member] is not None:
                    return False
                if flat(positions, self.program.specs[member].shape) != row:
                    return False
        return True

    # -- maps

    def _place_map(self, root: int) -> None:
        """Join a group that computes what the map reads at the same places, or start a group of its own."""
        reading = ReadingLowering(self.program, self.stored - {root})
        shape = self.program.specs[root].shape
        positions = axis_variables(shape)
        reading.value(root, positions)
        reads = set(reading.at)
        others = self.of(reads)
        for group in others if root not in self.alone else ():
            if self._joins(group, root, positions, reading.at) and self.may_join(group, others):
                self.join(group, root, reads)
                return
        self.start(Group("map", root), root, reads)

    def _joins(self, group: Group, root: int, positions: Positions, at: Mapping[int, set[Positions]]) -> bool:
        """Whether a root can be computed within a group, by the rules of the group's kind."""
        if not self._has_room(group, root, set(at)):
            return False
        match group.kind:
            case "map":
                return self._joins_map(group, root, positions, at)
            case "rows":
                return self._joins_rows(group, root, positions, at)
            case "contract":
                return self._joins_contract(group, root, positions, at)
        return False

    def _joins_map(self, group: Group, root: int, positions: Positions, at: Mapping[int, set[Positions]]) -> bool:
        """Whether the node reads all members of the group at its own position, in order."""
        specs = self.program.specs
        first = group.members[0]
        if specs[root].size != specs[first].size or not self._share_words(group, root):
            return False
        place = flat(positions, specs[root].shape)
        return all(
            flat(where, specs[member].shape) == place for member in group.members for where in at.get(member, ())
        )

    def _share_words(self, group: Group, root: int) -> bool:
        """Whether as many elements of each narrow member lie in a word."""
        types = [self.program.specs[member].dtype for member in (*group.members, root)]
        return len({ITEMSIZE[dtype] for dtype in types if is_narrow(dtype, self.target)}) <= 1

    def _joins_rows(self, group: Group, root: int, positions: Positions, at: Mapping[int, set[Positions]]) -> bool:
        """Whether a map can be computed within the loop over rows.

        It has to read members at the row and column where they are computed. What has an element for each row alone
        joins as a value of the row. Narrow types would share words between rows, and stay outside.
        """
        spec = self.program.specs[root]
        if is_narrow(spec.dtype, self.target):
            return False
        axes = self._row_axes(group, spec.shape, positions, at)
        if axes is None:
            return False
        lanes = tuple(axis for axis in range(len(spec.shape)) if axis not in axes and spec.shape[axis] > 1)
        if lanes and (group.parts > 1 or spec.size // group.rows != group.length):
            return False
        for member in group.members:
            for where in at.get(member, ()):
                if group.row_axes[member] is not None and (
                    group.row_axes[member] != axes
                    or flat(where, self.program.specs[member].shape) != flat(positions, spec.shape)
                ):
                    return False
        group.row_axes[root] = axes if lanes else None
        return True

    def _row_axes(
        self, group: Group, shape: Sequence[int], positions: Positions, at: Mapping[int, set[Positions]]
    ) -> tuple[int, ...] | None:
        """The axes whose positions say which row it is; `None` when reductions are read in other rows, too."""
        found: tuple[int, ...] | None = None
        for member in group.members:
            if group.row_axes[member] is not None:
                continue
            for where in at.get(member, ()):
                place = flat(where, self.program.specs[member].shape)
                axes = tuple(axis for axis in range(len(shape)) if place.depends_on(f"p{axis}"))
                wanted = flat([positions[axis] for axis in axes], [shape[axis] for axis in axes])
                if place != wanted or product(tuple(shape[axis] for axis in axes)) != group.rows:
                    return None
                if found is not None and axes != found:
                    return None
                found = axes
        return found

    def _joins_contract(self, group: Group, root: int, positions: Positions, at: Mapping[int, set[Positions]]) -> bool:
        """The end of a matrix product: what only changes each of its elements, and the order of its axes."""
        specs = self.program.specs
        first = group.members[0]
        if specs[root].size != specs[first].size or is_narrow(specs[root].dtype, self.target):
            return False
        if is_narrow(specs[first].dtype, self.target) and first in self.program.outputs:
            return False
        places = {
            flat(*in_order(group, member, where, specs[member].shape))
            for member in group.members
            for where in at.get(member, ())
        }
        if len(places) != 1:
            return False
        (place,) = places
        if place == flat(positions, specs[root].shape):
            return True
        order = self._order(specs[root].shape, positions, place)
        if order is None:
            return False
        # Neighbours stay neighbours, or all of the kernel goes by pixels anyway.
        last = max(axis for axis, length in enumerate(specs[root].shape) if length > 1)
        if order[-1] != last and first not in self.convolutions:
            return False
        group.orders[root] = order
        return True

    def _order(self, shape: Sequence[int], positions: Positions, place: Index) -> tuple[int, ...] | None:
        """The axes in the order in which a place counts them, if it only counts them in another order."""
        steps = [place.steps_with(f"p{axis}") or 0 for axis in range(len(shape))]
        order = sorted(range(len(shape)), key=lambda axis: (shape[axis] > 1, -steps[axis]))
        inner = flat([positions[axis] for axis in order], [shape[axis] for axis in order])
        return tuple(order) if inner == place else None

    def _has_room(self, group: Group, root: int, reads: Set[int]) -> bool:
        """Whether the kernel stays within its limits of buffers and nodes. A value with no other reader needs none."""
        members = {*group.members, root}
        if sum(self.sizes[member] for member in members) > MOST_NODES:
            return False
        outside = {member for member in members if member in self.outputs or not self.readers[member] <= members}
        return len((group.reads | reads) - members | outside) <= self.target.bindings - 2


def in_order(group: Group, member: int, positions: Positions, shape: Sequence[int]) -> tuple[Positions, list[int]]:
    """Positions and lengths in the order of the axes of the group's product."""
    order = group.orders.get(member, range(len(shape)))
    return tuple(positions[axis] for axis in order), [shape[axis] for axis in order]


def from_order(group: Group, member: int, place: Index, shape: Sequence[int]) -> Positions:
    """Positions of a member, of a place in its group's product."""
    order = group.orders.get(member, range(len(shape)))
    inner = dict(zip(order, unflat(place, [shape[axis] for axis in order]), strict=True))
    return tuple(inner[axis] for axis in range(len(shape)))


def row_sizes(program: Program, root: int) -> tuple[int, int]:
    """The number and the length of a reduction's rows."""
    return program.specs[root].size, inner_length(program, root)


def element_of(lowering: Lowering, root: int, row: Index, column: Index) -> Value:
    """The element of a row that a reduction combines."""
    op, inputs = lowering.program.nodes[root]
    positions = unflat(row, lowering.program.specs[root].shape)
    shape = lowering.program.specs[inputs[0]].shape
    if isinstance(op, Reduce):
        kept = [axis for axis in range(len(shape)) if axis not in op.axes]
        inner = unflat(column, [shape[axis] for axis in op.axes])
        along = dict(zip(kept, positions, strict=True)) | dict(zip(op.axes, inner, strict=True))
        return lowering.value(inputs[0], tuple(along[axis] for axis in range(len(shape))))
    if not isinstance(op, Contract):
        raise NotInKernel(root)
    inner = unflat(column, [shape[axis] for axis in op.left])
    one, other = lowering.factors(op, inputs, positions, inner)
    return lowering.product(root, lowering.program.specs[root].dtype, one, other)
