"""Small matrices with their axes turned, so that lanes find their neighbours beside each other."""

from __future__ import annotations

from anygpu.codegen.index import Index, flat
from anygpu.codegen.kernel_ir import Store
from anygpu.codegen.lower import Stored
from anygpu.codegen.nests.plan import Group
from anygpu.codegen.nests.roots import Root, axis_name
from anygpu.codegen.nests.steps import Nest
from anygpu.codegen.nests.storage import Storage
from anygpu.codegen.types import components

#: A matrix is turned when each of its elements is read at least so often.
_READ_OFTEN = 4


def worth_turning(storage: Storage, group: Group) -> list[int]:
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


def turning_nest(storage: Storage, node: int) -> Nest:
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
