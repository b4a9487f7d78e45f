"""Steps that stay NumPy's: Fourier transforms, sorting, scans, products, solvers.

Where a step treats each row by itself, rows are done on several threads: NumPy lets other threads run while it
computes, and a row is the same whatever rows are beside it. BLAS has threads of its own.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from anygpu._typing import HostArray
from anygpu.engines.host_types import numpy_dtype
from anygpu.engines.numpy.lowering import run_node
from anygpu.program.graph import Node
from anygpu.program.primitives import Argsort, Fourier, Primitive, Scan, Sort, Spec

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

#: Fewer elements are not worth another thread.
_MANY = 1 << 16


def split_axis(op: Primitive, shape: Sequence[int], threads: int) -> int | None:
    """The axis along which the work can be cut without a change of any result, if there is one.

    The first that is long enough for so many threads, so that each has neighbouring memory.
    """
    if not isinstance(op, Argsort | Fourier | Scan | Sort):
        return None
    axes = [axis for axis, length in enumerate(shape) if axis != op.axis % len(shape) and length > 1]
    return max(axes, key=lambda axis: (min(shape[axis], threads), -axis), default=None)


class HostSteps:
    """Runs them, on so many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None

    def run(
        self, node: Node, given: Sequence[HostArray], spec: Spec, threads: int, parts: dict[Any, Any] | None = None
    ) -> HostArray:
        """What NumPy computes for one node. Nodes of one run with the same `parts` share decompositions."""
        op = node.op
        large = threads > 1 and bool(given) and given[0].size >= _MANY
        axis = split_axis(op, given[0].shape, threads) if large else None
        if axis is None:
            return np.asarray(run_node(op, given, node.inputs, parts), numpy_dtype(spec.dtype))
        (x,) = given
        result = np.empty(spec.shape, numpy_dtype(spec.dtype))
        bounds = np.linspace(0, x.shape[axis], min(threads, x.shape[axis]) + 1, dtype=int).tolist()
        cuts = [(slice(None),) * axis + (slice(*pair),) for pair in itertools.pairwise(bounds)]

        def compute(cut: tuple[slice, ...]) -> None:
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
