"""The layout of loops and of the memory that they use.

Buffers in numbered slots, the rules that their values can break, and transposed copies of matrices come first; then
rows, lanes, axes that are written out, rows that two values share, and rows done together.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import lcm
from typing import TYPE_CHECKING, Literal

import msgspec

from anygpu.engines.codegen.index import Index, flat
from anygpu.engines.codegen.index import IndexVariable as Counter
from anygpu.engines.codegen.kernel import Check, Slot
from anygpu.engines.codegen.kernel_ir import Buffer, Loop, Report, Statement, Store, names_used
from anygpu.engines.codegen.lower import (
    Positions,
    Stored,
    buffer_names,
    spec_of_parts,
    surely_not_negative,
)
from anygpu.engines.codegen.nests.lowering import SHORT, NestLowering
from anygpu.engines.codegen.nests.roots import (
    FEW_ROWS,
    MOST_CHANNELS,
    Domain,
    Root,
    axis_name,
    axis_variable,
    merged,
    replace,
    shifted,
)
from anygpu.engines.codegen.nests.steps import (
    Nest,
    NestCost,
    Scratch,
    Written,
    combined,
    is_little,
    lanes_of,
    noted_nodes,
    own_weight,
)
from anygpu.engines.codegen.target import components
from anygpu.engines.codegen.value_analysis import IndexFacts
from anygpu.program.dtypes import ITEMSIZE, KIND, DType, is_floating
from anygpu.program.graph import Program
from anygpu.program.primitives import Binary, Constant, Gather, Scatter, product

if TYPE_CHECKING:
    from anygpu.engines.codegen.nests.plan import NestGroup


# -- the slots of a program's nests: buffers, the rules that their values can break, and transposed copies of matrices


SlotRole = Literal["input", "constant", "temporary", "output", "status"]

_FREE = NestCost()
_RESERVED = ("begin", "end", "part", "status", "row", "column")


class NestStorage:
    """Buffers and checks of one program while it is scheduled."""

    def __init__(
        self, program: Program, written: Written, ranks: Sequence[int] = (), searches: Collection[int] = ()
    ) -> None:
        """Slots for the inputs, in their order; everything else gets its slot when it is declared.

        `ranks` is the order in which nodes are computed, and `written` counts what has been generated. `searches` are
        gathers whose positions are wrong where something is not sorted.
        """
        self.program = program
        self.written = written
        self.ranks = ranks
        self.noted = noted_nodes(program, ranks)
        self._indices, self._searches = IndexFacts(program, ranks), searches
        self.slots: list[Slot] = []
        self.slot_of: dict[int, int] = {}
        self.stored: dict[int, Stored] = {}
        self.buffers: dict[str, Buffer] = {}
        #: Copies of matrices with their axes turned.
        self.turned: dict[int, Stored] = {}
        self.checks: list[Check] = []
        self.status: int | None = None
        self._rules: dict[int, int] = {}
        self._names = buffer_names(program)
        for node, spec in enumerate(program.inputs):
            self.declare(node, "input")
            assert self.slot_of[node] == node, spec

    def declare(self, node: int, role: SlotRole) -> None:
        """A slot for all of a node's values."""
        if node in self.stored:
            return
        op = self.program.nodes[node].op
        data = op.data if isinstance(op, Constant) else None
        dtype, size = spec_of_parts(self.program.specs[node])
        name = self._names[node]
        self.slot_of[node] = self.new_buffer(name, dtype, size, "constant" if data is not None else role, data)
        self.stored[node] = Stored(name, dtype)

    def new_buffer(
        self, name: str, dtype: DType, size: int, role: SlotRole = "temporary", data: bytes | None = None
    ) -> int:
        """Add a buffer of `size` elements with a slot of its own; returns the slot's number."""
        slot = len(self.slots)
        self.slots.append(Slot(size * ITEMSIZE[dtype], role, data))
        self.buffers[name] = Buffer(name, slot, dtype, size)
        return slot

    # -- rules that values can break

    def rule_of(self, node: int) -> int | None:
        """The number of a node's check, which is planned when it is asked for first; `None` if nothing can happen."""
        if node not in self._rules:
            check = self._check(node)
            if check is None:
                return None
            self._rules[node] = check.number
            self.checks.append(check)
            if self.status is None:
                self.status = self.new_buffer("status", "uint32", 0, "status")
            self.slots[self.status] = Slot(4 * len(self.checks), "status")
            self.buffers["status"] = Buffer("status", self.status, "uint32", len(self.checks))
        return self._rules[node]

    def _check(self, node: int) -> Check | None:
        """The rule that a node's values can break: an index out of range, or a negative exponent of integers.

        `None` where there is none, or where the program itself shows that it cannot be broken.
        """
        op, inputs = self.program.nodes[node]
        specs = self.program.specs
        if isinstance(op, Gather | Scatter) and not self._indices.surely_in_range(
            inputs[1], specs[inputs[0]].shape[op.axis]
        ):
            error: Literal["order", "index"] = "order" if node in self._searches else "index"
            return Check(len(self.checks), error, specs[inputs[0]].shape[op.axis])
        power = isinstance(op, Binary) and op.fn == "power" and KIND[specs[node].dtype] == "signed"
        if power and not surely_not_negative(self.program, inputs[1]):
            return Check(len(self.checks), "negative_power")
        return None

    # -- nests

    def lowering(self, without: Sequence[int] = ()) -> NestLowering:
        """For a nest that computes the nodes `without` itself."""
        stored = {node: where for node, where in self.stored.items() if node not in without}
        result = NestLowering(
            self.program,
            stored,
            self.rule_of,
            taken=(*self.buffers, *_RESERVED),
            ranks=self.ranks,
            written=self.written,
            noted=self.noted,
        )
        result.buffers = self.stored
        result.turned = self.turned
        return result

    def nest(
        self,
        name: str,
        body: Sequence[Statement],
        *,
        scratch: Sequence[Scratch] = (),
        count: int = 1,
        grain: int = 1,
        cost: NestCost = _FREE,
    ) -> Nest:
        """A nest of these statements, with the buffers that they use."""
        used, written = names_used(body), _written(body)
        buffers = tuple(
            msgspec.structs.replace(buffer, access="read_write" if buffer.name in written else "read")
            for buffer in self.buffers.values()
            if buffer.name in used
        )
        arrays = tuple(each for each in scratch if each.name in used)
        return Nest(name=name, buffers=buffers, body=tuple(body), scratch=arrays, count=count, grain=grain, cost=cost)


def _written(body: Sequence[Statement]) -> set[str]:
    """The names of buffers that statements write, the status among them where something is reported."""
    written: set[str] = set()
    for statement in body:
        match statement:
            case Store():
                written.add(statement.buffer)
            case Report():
                written.add("status")
            case Loop():
                written |= _written(statement.body)
    return written


# -- transposed copies, so that lanes find their neighbours beside each other


#: A matrix is turned when each of its elements is read at least so often.
_READ_OFTEN = 4


def worth_turning(storage: NestStorage, group: NestGroup) -> list[int]:
    """Matrices that lanes of the group would read with gaps, again and again.

    Worth 2.7 times for distances between all pairs.
    """
    members = {member.root.node for member in group.members}
    found: dict[int, None] = {}
    for member in group.members:
        root = member.root
        lane = axis_name(_lane_axis(root))
        for node, positions in root.reads:
            spec = storage.program.specs[node]
            if node in members or node not in storage.stored or node in storage.turned:
                continue
            if len(spec.shape) != 2 or components(spec.dtype) > 1 or root.size < _READ_OFTEN * spec.size:
                continue
            step = flat(positions, spec.shape).steps_with(lane)
            if step not in (0, 1) and flat(positions[::-1], spec.shape[::-1]).steps_with(lane) == 1:
                found[node] = None
    return list(found)


def _lane_axis(root: Root) -> int:
    """The last axis that is a loop and longer than 1."""
    last = len(root.shape) - root.tail - 1
    while last > 0 and root.shape[last] == 1:
        last -= 1
    return last


def turning_nest(storage: NestStorage, node: int) -> Nest:
    """A copy of a matrix with its axes turned."""
    rows, columns = storage.program.specs[node].shape
    dtype = storage.stored[node].dtype
    name = f"{storage.stored[node].buffer}_turned"
    lowering = storage.lowering()
    storage.new_buffer(name, dtype, rows * columns)

    def row(index: Index) -> None:
        def column(other: Index) -> None:
            (value,) = lowering.value(node, (other, index))
            lowering.add(Store(name, index * rows + other, value))

        lowering.loop("column", 0, rows, column)

    lowering.loop("row", 0, columns, row)
    storage.turned[node] = Stored(name, dtype)
    return storage.nest(f"turn_{node}", lowering.statements)


# -- the layout of loops: rows, lanes, axes that are written out, rows that two values share, and rows done together


# -- the layout of one value


#: Columns that are written out, with lanes along rows; and columns of which several rows are done at once.
MOST_WRITTEN_OUT = 64
MOST_AT_ONCE = 32


def is_numpy_sum(program: Program, root: Root) -> bool:
    """Whether it is a sum in whose order NumPy's own is known, and matters."""
    return root.kind in ("row", "all") and root.fn == "sum" and is_floating(program.specs[root.source].dtype)


def is_small(root: Root) -> bool:
    """Whether it is too little to share among threads: it is one row then, of a nest that does all in one call."""
    return is_little(root.size * root.estimate.of_lanes(64))


def with_rows(root: Root, rows: int, lead: int) -> Root:
    """The root in a nest of rows: a short last axis that is no part of a longer loop is written out."""
    cuts = {axis - lead: each for axis, each in root.cuts.items() if axis >= lead}
    domain = merged(root.shape[lead:], [shifted(form, lead) for form in root.forms], cuts)
    return replace(root, rows=rows, lead=lead, tail=_short_end(domain), head=0)


def alone(program: Program, root: Root) -> Root:
    """A root that goes with no other: in one loop where it can be, else in rows of the last of its loops."""
    domain = merged(root.shape, root.forms, root.cuts)
    tail = _short_end(domain) or (len(domain.runs[-1]) if has_dear_rows(program, root) else 0)
    runs = domain.runs[:-1] if tail else domain.runs
    if len(runs) <= 1:
        return replace(root, rows=0, lead=0, tail=tail, head=0)
    lead = runs[-1][0]
    rows = product(root.shape[:lead])
    if len(runs) == 2 and rows <= MOST_CHANNELS and not tail:
        # Too few rows to share among threads: lanes see all of them at once.
        return replace(root, rows=0, lead=0, tail=0, head=lead)
    return replace(root, rows=rows, lead=lead, tail=tail, head=0)


def _short_end(domain: Domain) -> int:
    """How many last axes are written out: those of a loop that is shorter than a vector, inside of a longer one."""
    lengths = domain.lengths
    short = len(lengths) > 1 and lengths[-1] <= MOST_CHANNELS and lengths[-2] > MOST_CHANNELS
    return len(domain.runs[-1]) if short else 0


def has_dear_rows(program: Program, root: Root) -> bool:
    """Whether most of the work on short rows is about whole rows: it has lanes only if rows are lanes.

    Then columns are written out. Worth 3 times for a softmax of 10 numbers.
    """
    domain = merged(root.shape, root.forms, root.cuts)
    lengths = domain.lengths
    if len(lengths) != 2 or lengths[-1] > SHORT or lengths[0] < FEW_ROWS:
        return False
    columns = [axis_name(axis) for axis in domain.runs[-1]]
    of_rows = [
        node
        for node, places in root.places.items()
        for positions in places
        if own_weight(program, node) and not any(each.depends_on(name) for each in positions for name in columns)
    ]
    return len(of_rows) > lengths[-1]


def is_groupable(root: Root) -> bool:
    """Whether several short rows can be one: all that is read is in the order of the domain, or the same in all rows.

    Worth 3.4 times for statistics of 10 columns.
    """
    if root.cuts:
        return False
    rows = merged(root.shape, root.forms, {})
    if len(rows.runs) == 1:
        return True
    for form in root.forms:
        free = not any(form.depends_on(axis_name(axis)) for axis in range(root.lead))
        if not free and len(merged(root.shape, [form], {}).runs) > 1:
            return False
    columns = merged(root.shape[root.lead :], [shifted(form, root.lead) for form in root.forms], {})
    return len(columns.runs) <= 1


# -- rows of two values in one nest


#: Rows that a band may need before and after its own.
MOST_HALO = 8

#: From which row to which another value is read, counted from the row that reads it.
Offsets = tuple[int, int]


def lead_for(shape: Sequence[int], rows: int) -> int | None:
    """How many first axes make so many rows; `None` if none do."""
    for lead in range(len(shape) + 1):
        if product(tuple(shape[:lead])) == rows:
            while lead < len(shape) - 1 and shape[lead] == 1:
                lead += 1
            return lead
    return None


def row_offsets(root: Root, lead: int, positions: Positions, shape: Sequence[int]) -> Offsets | None:
    """Where a root with these rows reads a value of that shape; `None` if from anywhere."""
    rows = product(root.shape[:lead])
    axes = lead_for(shape, rows)
    if axes is None:
        return None
    own = flat([axis_variable(axis, 0, n) for axis, n in enumerate(root.shape[:lead])], root.shape[:lead])
    there = flat(positions[:axes], shape[:axes])
    difference = _unranged(there) - _unranged(own)
    if difference.is_constant:
        return difference.constant, difference.constant
    return _chosen_offsets(root, there) if lead == 1 else None


def _chosen_offsets(root: Root, there: Index) -> Offsets | None:
    """Of a position that is chosen, as at an edge: the least and the greatest of those that it may be."""
    if len(there.terms) != 1 or there.terms[0][1] != 1:
        return None
    candidates = root.chosen.get(getattr(there.terms[0][0], "name", ""))
    if candidates is None:
        return None
    found: list[int] = []
    for each in candidates:
        shift = _unranged(each.along) - _unranged(axis_variable(0, 0, root.shape[0]))
        if not shift.is_constant:
            return None
        row = axis_variable(0, 0, root.shape[0])
        low, high = max(0, each.low - shift.constant), min(root.shape[0] - 1, each.high - shift.constant)
        if low > high:
            continue
        step = each.place.steps_with(axis_name(0))
        if step is None or any(atom != row.terms[0][0] and not _is_row(atom) for atom, _ in each.place.terms):
            return None
        ends = [each.place.constant + there.constant + (step - 1) * at for at in (low, high)]
        found += ends
    return (min(found), max(found)) if found else None


def _is_row(atom: object) -> bool:
    return isinstance(atom, Counter) and atom.name == axis_name(0)


def _unranged(index: Index) -> Index:
    """The same position over variables whose ranges are not told apart: pieces of one loop are of one variable."""
    total = Index(index.constant)
    for atom, factor in index.terms:
        total = total + Index(0, [(Counter(atom.name, 0, 0) if isinstance(atom, Counter) else atom, factor)])
    return total


def is_identity(positions: Positions, shape: Sequence[int]) -> bool:
    """Whether every axis is read at its own variable."""
    return len(positions) == len(shape) and all(
        length == 1 or _unranged(position) == _unranged(axis_variable(axis, 0, length))
        for axis, (position, length) in enumerate(zip(positions, shape, strict=True))
    )


# -- rows that are done together


#: Rows that are done together where they read the same: each value is loaded once for all of them.
JAM = 4
#: Bytes of a line of memory.
_LINE = 64
#: The weight up to which rows are done together: what is computed stays in registers.
_JAM_WEIGHT = 64.0


def rows_at_once(group: NestGroup, vector_bytes: int) -> int:
    """How many short rows make up whole vectors, where all that is read is in order or the same in all rows.

    Worth 3.4 times for statistics of 10 columns.
    """
    roots = [member.root for member in group.members]
    first = roots[0]
    columns = product(first.shape[first.lead :])
    alike = len({(root.shape, root.lead) for root in roots}) == 1
    simple = all(
        member.root.kind in ("map", "column") and not member.root.tail and not member.together and member.phase == 0
        for member in group.members
    )
    vector, _ = lanes_of(combined([root.estimate for root in roots]), vector_bytes)
    if not alike or not simple or not 1 < columns < MOST_AT_ONCE or columns % vector == 0:
        return 1
    copies = lcm(columns, vector) // columns
    return copies if group.rows >= 8 * copies and all(map(is_groupable, roots)) else 1


def jam_of(group: NestGroup) -> int:
    """Rows that are done together: several where they read the same values along the lanes, and little else is done.

    Worth up to 1.5 times for distances between all pairs, and for totals of columns.
    """
    first = group.members[0].root
    alike = len({(member.root.shape, member.root.lead, member.root.tail) for member in group.members}) == 1
    simple = all(
        member.root.kind in ("map", "column") and not member.root.cuts and not member.together
        for member in group.members
    )
    if not alike or not simple or group.rows < 4 * JAM:
        return 1
    weight = sum(member.root.estimate.weight * len(member.root.ends) for member in group.members)
    if weight > _JAM_WEIGHT:
        return 1
    if all(member.root.kind == "column" for member in group.members):
        return JAM
    forms = [form for member in group.members for form in member.root.forms]
    rows, columns = _names(range(first.lead)), _names(range(first.lead, len(first.shape)))
    if any(form.steps_with(rows[-1]) == 1 and form.steps_with(columns[-1]) not in (0, 1, None) for form in forms):
        # Lanes read down a column: a line of memory has the same of the next rows.
        return _LINE // first.estimate.width
    shared = any(
        any(form.depends_on(name) for name in columns) and not any(form.depends_on(name) for name in rows)
        for form in forms
    )
    return JAM if shared else 1


def _names(axes: range) -> list[str]:
    return [axis_name(axis) for axis in axes]
