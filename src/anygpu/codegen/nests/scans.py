"""Running totals down columns: lanes go along the columns, and each adds up its own."""

from __future__ import annotations

from anygpu.codegen.index import Index, unflat
from anygpu.codegen.nests.costs import cost_of, grain_of, lanes_of
from anygpu.codegen.nests.flat import BEGIN, END
from anygpu.codegen.nests.roots import FEW_ROWS, Root
from anygpu.codegen.nests.steps import Nest
from anygpu.codegen.nests.storage import Storage
from anygpu.program.primitives import product


def scan_nest(storage: Storage, root: Root, name: str, vector_bytes: int) -> Nest:
    """Parts are stretches of columns, or some of the matrices where there are many."""
    shape, axis = root.shape, root.lead
    matrices, length, columns = product(shape[:axis]), shape[axis], product(shape[axis + 1 :])
    dtype = storage.program.specs[root.source].dtype
    vector, unroll = lanes_of(root.estimate, vector_bytes)
    lowering = storage.lowering([root.node])
    by_matrix = matrices >= FEW_ROWS

    def matrix(which: Index) -> None:
        def column(index: Index) -> None:
            (state,) = lowering.begin_running(root.node, root.fn, dtype)

            def element(row: Index) -> None:
                positions = (*unflat(which, shape[:axis]), row, *unflat(index, shape[axis + 1 :]))
                value = lowering.value(root.source, positions)
                lowering.take(root.node, root.fn, dtype, (state,), value, state)
                lowering.store(root.node, positions, (state,))

            lowering.loop(lowering.unique("row"), 0, length, element)

        start, stop = (None, None) if by_matrix else (BEGIN, END)
        lowering.loop("column", 0, columns, column, start=start, stop=stop, vector=vector, unroll=unroll)

    start, stop = (BEGIN, END) if by_matrix else (None, None)
    lowering.loop("matrix", 0, matrices, matrix, start=start, stop=stop)
    weight = root.estimate.of_lanes(vector_bytes) * length
    count = matrices if by_matrix else columns
    grain = grain_of(weight * (columns if by_matrix else matrices), count, 1 if by_matrix else vector * unroll)
    return storage.nest(name, lowering.statements, count=count, grain=grain, cost=cost_of(storage, [root]))
