"""How the rows of one value lie beside those of another: whether both can be computed in one nest."""

from __future__ import annotations

from collections.abc import Sequence

from anygpu.codegen.index import Index, flat
from anygpu.codegen.index import Variable as Counter
from anygpu.codegen.lower import Positions
from anygpu.codegen.nests.roots import Root, axis_name, axis_variable
from anygpu.program.primitives import product

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
