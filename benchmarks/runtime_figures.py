"""Figures with a lower bound, and what the benchmarks of the runtime measure with."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import psutil

from anygpu.runtime.future import Future
from anygpu.runtime.runtime import Runtime
from benchmarks.report import Figure

#: Nobody waits longer for a task.
PATIENCE = 120.0


class AtLeast(Figure, frozen=True, kw_only=True):
    """A value that should be large: `bound` is the least it may be."""

    @property
    def share(self) -> float:
        if self.bound is None:
            return 0.0
        return self.bound / self.value if self.value > 0 else float("inf")

    def __str__(self) -> str:
        bound = "" if self.bound is None else f"   (at least {self.bound:g} {self.unit})"
        miss = "   MISSED" if self.share > 1 else ""
        return f"{self.name:<44} {self.value:>9.4g} {self.unit}{bound}{miss}"


class Burst(NamedTuple):
    """Many tasks, submitted as fast as that goes, and waited for."""

    #: From the first submission to the last result.
    seconds: float
    #: From the submission of each to the moment when it was done.
    waits: npt.NDArray[np.float64]
    futures: list[Future]

    @property
    def p99(self) -> float:
        return float(np.quantile(self.waits, 0.99))


def _note(done: dict[int, float], number: int, _: object) -> None:
    done[number] = time.perf_counter()


def total(runtime: Runtime, function: Callable[..., Any], items: Iterable[tuple[Any, ...]], **options: Any) -> float:
    """Seconds from the first submission to the last result, and nothing else is measured on the way."""
    begin = time.perf_counter()
    futures = [runtime.submit(function, *arguments, **options) for arguments in items]
    for future in futures:
        future.exception(PATIENCE)
    return time.perf_counter() - begin


def burst(runtime: Runtime, function: Callable[..., Any], items: Iterable[tuple[Any, ...]], **options: Any) -> Burst:
    """As `total`, with the wait of each, which takes a callback each."""
    submitted: list[float] = []
    done: dict[int, float] = {}
    futures = []
    clock = time.perf_counter
    for number, arguments in enumerate(items):
        submitted.append(clock())
        future = runtime.submit(function, *arguments, **options)
        future.add_done_callback(partial(_note, done, number))
        futures.append(future)
    for future in futures:
        future.exception(PATIENCE)
    seconds = clock() - submitted[0]
    while len(done) < len(futures):  # who waits is told before the callbacks are
        time.sleep(1e-3)
    return Burst(seconds, np.array([done[number] - begin for number, begin in enumerate(submitted)]), futures)


class Holding:
    """Keeps every thread of NumPy's lane busy until it is let go."""

    def __init__(self, runtime: Runtime) -> None:
        self._released = threading.Event()
        threads = min(4, os.cpu_count() or 1)
        began = threading.Semaphore(0)

        def hold(x: Any) -> Any:
            began.release()
            self._released.wait(PATIENCE)
            return x

        self._futures = [runtime.submit(hold, np.zeros(1, np.float32), on="numpy") for _ in range(threads)]
        for _ in range(threads):
            if not began.acquire(timeout=PATIENCE):
                raise RuntimeError("the lane of NumPy has fewer threads than it should")

    def release(self) -> None:
        self._released.set()
        for future in self._futures:
            future.result(PATIENCE)


def resident_bytes() -> int:
    """What this process has in memory."""
    return int(psutil.Process().memory_info().rss)
