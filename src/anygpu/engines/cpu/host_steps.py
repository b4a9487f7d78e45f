"""Steps that stay NumPy's: transforms, sorting, scans, products, solvers.

Where a step treats each row by itself, rows are done on several threads: NumPy lets other threads run while it
computes, and a row is the same whatever rows are beside it. BLAS has threads of its own.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from anygpu.base.typing import HostArray
from anygpu.engines.host_arrays import numpy_dtype
from anygpu.engines.numpy.lowering import run_node
from anygpu.program.dtypes import KIND
from anygpu.program.graph import Node, Program
from anygpu.program.primitives import Argsort, Primitive, Slice, Spec

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

#: Fewer elements are not worth another thread.
_MANY = 1 << 16
#: The part of a row that is found faster than the row is sorted.
_FEW_OF_ROW = 8


def split_axis(op: Primitive, shape: Sequence[int], threads: int) -> int | None:
    """The axis along which the work can be cut without a change of any result, if there is one.

    The first that is long enough for so many threads, so that each has neighbouring memory.
    """
    if op.row_axis is None:
        return None
    axes = [axis for axis, length in enumerate(shape) if axis != op.row_axis % len(shape) and length > 1]
    return max(axes, key=lambda axis: (min(shape[axis], threads), -axis), default=None)


def threads_for(op: Primitive, shape: Sequence[int], threads: int) -> int:
    """How many of so many threads share a step whose first operand has this shape."""
    axis = split_axis(op, shape, threads) if prod(shape) >= _MANY else None
    return 1 if axis is None else min(threads, shape[axis])


def first_that_is_read(program: Program, node: int) -> int | None:
    """How many positions of each sorted row are read, from its first on; `None` for all of them, or nearly."""
    op = program.nodes[node].op
    spec = program.specs[node]
    if not isinstance(op, Argsort) or node in program.outputs:
        return None
    if KIND[program.specs[program.nodes[node].inputs[0]].dtype] == "complex":
        return None
    axis = op.axis % len(spec.shape)
    last = 0
    for reader, inputs in program.nodes:
        if node in inputs:
            if not isinstance(reader, Slice):
                return None
            last = max(last, reader.stops[axis])
    return last if 0 < last <= spec.shape[axis] // _FEW_OF_ROW else None


def first_positions(x: HostArray, axis: int, count: int) -> HostArray:
    """The first of the positions that a stable `argsort` along an axis returns, without sorting all of them."""
    moved = np.moveaxis(x, axis, -1)
    rows = moved.reshape(-1, moved.shape[-1])
    limits = np.partition(rows, count - 1, axis=1)[:, count - 1 : count]
    among = rows <= limits
    # Several values may equal the last of the first ones, and NaN is not below itself.
    alone = np.count_nonzero(among, axis=1) == count
    if alone.all():
        places = np.nonzero(among)[1].reshape(-1, count)
        order = np.argsort(np.take_along_axis(rows, places, 1), axis=1, kind="stable")
        found = np.take_along_axis(places, order, 1)
    else:
        found = np.empty((len(rows), count), np.int64)
        found[~alone] = np.argsort(rows[~alone], axis=1, kind="stable")[:, :count]
        if alone.any():
            found[alone] = first_positions(rows[alone], 1, count)
    return np.moveaxis(found.reshape(*moved.shape[:-1], count), -1, axis)


class HostSteps:
    """Runs them, on so many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None

    def run(
        self,
        node: Node,
        given: Sequence[HostArray],
        spec: Spec,
        threads: int,
        parts: dict[Any, Any] | None = None,
        first: int | None = None,
    ) -> HostArray:
        """What NumPy computes for one node. Nodes of one run with the same `parts` share decompositions.

        With `first`, only so many elements along the axis of an `Argsort` are made: nobody reads the others.
        """
        op = node.op
        several = bool(given) and threads_for(op, given[0].shape, threads) > 1
        axis = split_axis(op, given[0].shape, threads) if several else None
        if axis is None and first is None:
            return np.asarray(run_node(op, given, node.inputs, parts), numpy_dtype(spec.dtype))
        (x,) = given
        result = np.empty(spec.shape, numpy_dtype(spec.dtype))
        cuts: list[tuple[slice, ...]] = [()]
        if axis is not None:
            bounds = np.linspace(0, x.shape[axis], min(threads, x.shape[axis]) + 1, dtype=int).tolist()
            cuts = [(slice(None),) * axis + (slice(*pair),) for pair in itertools.pairwise(bounds)]

        def compute(cut: tuple[slice, ...]) -> None:
            if first is not None and isinstance(op, Argsort):
                along = op.axis % x.ndim
                result[cut][(slice(None),) * along + (slice(first),)] = first_positions(x[cut], along, first)
            else:
                result[cut] = run_node(op, [x[cut]])

        others = [self._executor().submit(compute, cut) for cut in cuts[1:]]
        try:
            compute(cuts[0])
        finally:
            _wait(others)
        return result

    def _executor(self) -> ThreadPoolExecutor:
        from concurrent.futures import ThreadPoolExecutor  # late: few programs have steps for it

        with self._lock:
            if self._threads is None:
                # More than there are processors would not help.
                self._threads = ThreadPoolExecutor(64, thread_name_prefix="anygpu-cpu")
            return self._threads

    def forget_threads(self) -> None:
        """In a process that was forked: there are none."""
        self._lock, self._threads = threading.Lock(), None


def _wait(others: Sequence[Future[None]]) -> None:
    """Until no other thread writes to the result, whatever happens; then raise what one of them has raised."""
    interrupted: BaseException | None = None
    for other in others:
        while not other.done():
            try:
                other.exception()
            except KeyboardInterrupt as error:
                interrupted = error
    if interrupted is not None:
        raise interrupted
    for other in others:
        other.result()
