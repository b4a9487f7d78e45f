"""The sum of everything, in parts, and still in the order in which NumPy adds: parts are subtrees of its tree."""

from __future__ import annotations

from array import array
from itertools import pairwise

from anygpu.codegen.index import Index, unflat
from anygpu.codegen.index import Variable as Counter
from anygpu.codegen.kernel_ir import Apply, Let, Load, Name, Store
from anygpu.codegen.lower import Stored
from anygpu.codegen.nests.costs import MOST_PARTS, cost_of, lanes_of, least_part
from anygpu.codegen.nests.lowering import Local
from anygpu.codegen.nests.roots import Root
from anygpu.codegen.nests.steps import Nest, Scratch
from anygpu.codegen.nests.storage import Storage
from anygpu.codegen.types import COMPUTE, part_of
from anygpu.program.dtypes import DType

#: NumPy's pairwise sum cuts longer stretches into halves.
_BLOCK = 128
#: The weight from which values are computed in full vectors first.
_WORTH_A_STRETCH = 8.0


def subtrees(length: int, least: int) -> list[int]:
    """The offsets of the subtrees at one depth of NumPy's sum of so many numbers, and the end; 2, 4, 8 … of them.

    None is shorter than `least`, unless there is but one.
    """
    lengths = [length]
    while 2 * len(lengths) <= MOST_PARTS and min(lengths) > max(2 * least, _BLOCK):
        lengths = [half for each in lengths for half in _halves(each)]
    offsets = [0]
    for each in lengths:
        offsets.append(offsets[-1] + each)
    return offsets


def _halves(length: int) -> tuple[int, int]:
    first = length // 2
    first -= first % 8
    return first, length - first


def tree_nests(storage: Storage, root: Root, name: str, vector_bytes: int) -> list[Nest]:
    """The subtrees in parallel, and the top of the tree."""
    program = storage.program
    vector, unroll = lanes_of(root.estimate, vector_bytes)
    offsets = subtrees(root.size, least_part(root.estimate.of_lanes(vector_bytes)) // 2)
    parts = len(offsets) - 1
    spec = program.specs[root.source]
    wide: DType = "float64" if COMPUTE[spec.dtype] == "f64" else "float32"
    table, partial = f"offsets_{root.node}", f"parts_{root.node}"
    storage.new_buffer(table, "int64", len(offsets), "constant", array("q", offsets).tobytes())
    storage.new_buffer(partial, wide, parts)
    lowering = storage.lowering([root.node])
    lowering.scopes[0].variables.update(("first", "last"))
    part = Index(0, [(Counter("part", 0, parts - 1), 1)]) if parts > 1 else Index(0)
    lowering.add(Let("first", Load(table, part, "i64")))
    lowering.add(Let("last", Load(table, part + 1, "i64")))
    first, last = Name("first", "i64"), Name("last", "i64")
    scratch: list[Scratch] = []
    longest = max(b - a for a, b in pairwise(offsets))

    def positions(index: Index) -> tuple[Index, ...]:
        return unflat(index, root.shape)

    if root.estimate.weight >= _WORTH_A_STRETCH and root.source not in lowering.stored:
        dtype = part_of(spec.dtype)
        scratch.append(Scratch(f"terms_{root.node}", dtype, longest))
        origin = Index(0, [(Counter("first", 0, root.size), 1)])
        lowering.local[root.source] = Local(scratch[0].name, dtype, origin)
        lowering.loop(
            "i",
            0,
            root.size,
            lambda i: lowering.store(root.source, positions(i), lowering.value(root.source, positions(i))),
            start=first,
            stop=last,
            vector=vector,
            unroll=unroll,
        )
        lowering.stored[root.source] = Stored(scratch[0].name, dtype)
    (state,) = lowering.begin(root.node, "sum", spec.dtype, lambda index: ())
    lowering.loop(
        "i",
        0,
        root.size,
        lambda i: lowering.take(
            root.node, "sum", spec.dtype, (state,), lowering.value(root.source, positions(i)), state
        ),
        start=first,
        stop=last,
        pairwise=True,
        sums=((state.name, "add"),),
        vector=8,
    )
    lowering.add(Store(partial, part, state))
    nest = storage.nest(
        name,
        lowering.statements,
        scratch=scratch,
        count=parts,
        grain=1,
        cost=cost_of(storage, [root]),
    )
    return [nest, _top(storage, root, partial, parts, name)]


def _top(storage: Storage, root: Root, partial: str, parts: int, name: str) -> Nest:
    """Neighbours, then neighbours of those, until one is left."""
    lowering = storage.lowering([root.node])
    dtype = storage.program.specs[root.source].dtype
    type = COMPUTE[dtype]
    left = parts
    while left > 1:
        left //= 2

        def pair(index: Index) -> None:
            one, other = (Load(partial, index * 2 + number, type) for number in range(2))
            lowering.add(Store(partial, index, Apply("add", (one, other), type)))

        lowering.loop(lowering.unique("pair"), 0, left, pair)
    value = lowering.named("total", Load(partial, Index(0), type))
    ones = tuple(Index(0) for _ in storage.program.specs[root.node].shape)
    lowering.store(root.node, ones, lowering.end(root.node, "sum", dtype, (value,)))
    return storage.nest(f"{name}_top", lowering.statements)
