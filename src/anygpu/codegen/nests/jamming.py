"""Rows that are done together: because they share what they read, or because one is too short for a vector."""

from __future__ import annotations

from math import lcm

from anygpu.codegen.nests.costs import combined, lanes_of
from anygpu.codegen.nests.layout import MOST_AT_ONCE, is_groupable
from anygpu.codegen.nests.plan import Group
from anygpu.codegen.nests.roots import axis_name
from anygpu.program.primitives import product

#: Rows that are done together where they read the same: each value is loaded once for all of them.
JAM = 4
#: Bytes of a line of memory.
_LINE = 64
#: The weight up to which rows are done together: what is computed stays in registers.
_JAM_WEIGHT = 64.0


def rows_at_once(group: Group, vector_bytes: int) -> int:
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


def jam_of(group: Group) -> int:
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
