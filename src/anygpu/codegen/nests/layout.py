"""How the domain of a stored value is laid out: rows, lanes, and axes that are written out."""

from __future__ import annotations

from anygpu.codegen.nests.costs import is_little, own_weight
from anygpu.codegen.nests.lowering import SHORT
from anygpu.codegen.nests.roots import FEW_ROWS, MOST_CHANNELS, Domain, Root, axis_name, merged, replace, shifted
from anygpu.program.dtypes import is_floating
from anygpu.program.graph import Program
from anygpu.program.primitives import product

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
