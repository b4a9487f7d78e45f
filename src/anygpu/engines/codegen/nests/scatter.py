"""Nests that put values at positions which are computed: one after the other, as each may meet what came before.

Counts, and other sums of whole numbers that go into one vector, are made in parts with a vector each. Matrices are
shared among threads; everything else is one loop.
"""

from __future__ import annotations

from anygpu.engines.codegen.index import ZERO, Index, flat, unflat
from anygpu.engines.codegen.index import IndexVariable as Counter
from anygpu.engines.codegen.kernel_ir import Apply, Literal, Load, Store
from anygpu.engines.codegen.lower import Positions
from anygpu.engines.codegen.nests.flat import BEGIN, END
from anygpu.engines.codegen.nests.layout import NestStorage
from anygpu.engines.codegen.nests.lowering import NestLowering
from anygpu.engines.codegen.nests.roots import FEW_ROWS, Root
from anygpu.engines.codegen.nests.steps import MOST_PARTS, Nest, cost_of, grain_of, lanes_of, least_part
from anygpu.engines.codegen.target import COMPUTE
from anygpu.program.dtypes import is_integer
from anygpu.program.primitives import Scatter, product

#: Updates of a part for each element of its vector, which has to be cleared before and added after.
_UPDATES_OF_ELEMENT = 8


def scatter_nests(storage: NestStorage, root: Root, name: str, vector_bytes: int) -> list[Nest]:
    """The nests of a scatter. Results do not depend on the number of threads."""
    (length, *others), dtype = storage.program.specs[root.node]
    op = storage.program.nodes[root.node].op
    assert isinstance(op, Scatter)
    weight = root.estimate.of_lanes(vector_bytes) + 4
    grain = max(least_part(weight), _UPDATES_OF_ELEMENT * length, -(-root.size // MOST_PARTS))
    if op.fn == "add" and is_integer(dtype) and not others and root.size >= 2 * grain:
        return _in_parts(storage, root, op, name, grain, vector_bytes)
    return [_in_order(storage, root, op, name, weight, vector_bytes)]


def _in_order(storage: NestStorage, root: Root, op: Scatter, name: str, weight: float, vector_bytes: int) -> Nest:
    """A copy of the first operand, and all updates of a matrix in their order."""
    x, _indices, _updates = storage.program.nodes[root.node].inputs
    shape = storage.program.specs[x].shape
    vector, unroll = lanes_of(root.estimate, vector_bytes)
    lowering = storage.lowering([root.node])
    lead, rest, updates = shape[: op.axis], shape[op.axis :], root.shape[op.axis :]
    matrices = product(lead)
    by_matrix = matrices >= FEW_ROWS

    def matrix(which: Index) -> None:
        first = unflat(which, lead)

        def copy(index: Index) -> None:
            positions = (*first, *unflat(index, rest))
            lowering.store(root.node, positions, lowering.value(x, positions))

        def update(index: Index) -> None:
            _update(lowering, root, op, storage.stored[root.node].buffer, (*first, *unflat(index, updates)))

        size = product(rest)
        lowering.loop("column", 0, size, copy, vector=vector if size >= vector else 1, unroll=unroll)
        lowering.loop(lowering.unique("update"), 0, product(updates), update)

    start, stop = (BEGIN, END) if by_matrix else (None, None)
    lowering.loop("matrix", 0, matrices, matrix, start=start, stop=stop)
    count = matrices if by_matrix else 1
    grain = grain_of(weight * product(updates), count) if by_matrix else 1
    return storage.nest(name, lowering.statements, count=count, grain=grain, cost=cost_of(storage, [root]))


def _update(
    lowering: NestLowering, root: Root, op: Scatter, buffer: str, positions: Positions, origin: Index = ZERO
) -> None:
    """One update, at a position among all updates, of what has the shape of the result in a buffer."""
    program = lowering.program
    shape, dtype = program.specs[root.node]
    _x, indices, updates = program.nodes[root.node].inputs
    extra = len(program.specs[indices].shape) - op.batch
    (wanted,) = lowering.value(indices, (*positions[: op.batch], *positions[op.axis : op.axis + extra]))
    (value,) = lowering.value(updates, positions)
    place = lowering.checked_position(root.node, wanted, shape[op.axis])
    target = origin + flat((*positions[: op.axis], place, *positions[op.axis + extra :]), shape)
    if op.fn == "add":
        before = lowering.named("before", Load(buffer, target, COMPUTE[dtype]))
        value = Apply("add", (before, value), COMPUTE[dtype])
    lowering.add(Store(buffer, target, value))


def _in_parts(storage: NestStorage, root: Root, op: Scatter, name: str, grain: int, vector_bytes: int) -> list[Nest]:
    """Sums of whole numbers, which may be added in any order: a vector for each part, and then their sum."""
    x, _indices, _updates = storage.program.nodes[root.node].inputs
    (length,), dtype = storage.program.specs[root.node]
    parts = -(-root.size // grain)
    partial = f"parts_{root.node}"
    storage.new_buffer(partial, dtype, parts * length)
    lanes = lanes_of(root.estimate, vector_bytes)[0]
    vector = lanes if length >= lanes else 1
    own = Index(0, [(Counter("part", 0, parts - 1), 1)]) * length

    counting = storage.lowering([root.node])
    zero = Literal(0, COMPUTE[dtype])
    counting.loop("column", 0, length, lambda at: counting.add(Store(partial, own + at, zero)), vector=vector)

    def update(at: Index) -> None:
        _update(counting, root, op, partial, unflat(at, root.shape), own)

    counting.loop(counting.unique("update"), 0, root.size, update, start=BEGIN, stop=END)
    adding = storage.lowering([root.node])

    def add(at: Index) -> None:
        state = adding.begin(root.node, "sum", dtype, lambda first: ())

        def take(part: Index) -> None:
            value = adding.named("part", Load(partial, part * length + at, COMPUTE[dtype]))
            adding.take(root.node, "sum", dtype, state, (value,), state[0])

        adding.loop(adding.unique("number"), 0, parts, take)
        adding.take(root.node, "sum", dtype, state, adding.value(x, (at,)), state[0])
        adding.store(root.node, (at,), adding.end(root.node, "sum", dtype, state))

    adding.loop("column", 0, length, add, vector=vector)
    cost = cost_of(storage, [root])
    return [
        storage.nest(name, counting.statements, count=root.size, grain=grain, cost=cost),
        storage.nest(f"{name}_combined", adding.statements),
    ]
