"""The layout of loops: rows, lanes, axes that are written out, rows that two values share, and rows done together."""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm
from typing import TYPE_CHECKING

from anygpu.engines.codegen.index import Index, flat
from anygpu.engines.codegen.index import IndexVariable as Counter
from anygpu.engines.codegen.lower import Positions
from anygpu.engines.codegen.nests.costs import combined, is_little, lanes_of, own_weight
from anygpu.engines.codegen.nests.lowering import SHORT
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
from anygpu.program.dtypes import is_floating
from anygpu.program.graph import Program
from anygpu.program.primitives import product

if TYPE_CHECKING:
    from anygpu.engines.codegen.nests.plan import NestGroup

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
