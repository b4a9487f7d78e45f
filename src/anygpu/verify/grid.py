"""A small part of the benchmarks: what calls take on the device and on NumPy, and that both return the same."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from anygpu.array.trace.tracing import record
from anygpu.base.typing import HostArray
from anygpu.errors import AllocationError
from anygpu.verify.cases import ActCase, Case, Check, Tried, judged, skipped_for_memory
from anygpu.verify.document import Timing
from anygpu.verify.subject import Subject

ELEMENTS = (10_000, 1_000_000)
#: Calls of one kind: at least so many, and more as long as they take no longer than this together.
_FEWEST, _MOST = 3, 30
_SECONDS = 0.4


class Workload(NamedTuple):
    name: str
    function: Callable[..., Any]
    #: The arguments, for about so many elements.
    make: Callable[[int, np.random.Generator], tuple[HostArray, ...]]


def _add(x: Any) -> Any:
    return x + 1


def _chain(x: Any) -> Any:
    bend = x * x * 0.5 + np.tanh(x) * 0.25 - 1
    return np.sqrt(1 / (1 + np.exp(-bend)) + 0.5) * np.cos(bend) - np.abs(x)


def _sum(x: Any) -> Any:
    return x.sum()


def _softmax(x: Any) -> Any:
    raised = np.exp(x - x.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


def _running_sum(x: Any) -> Any:
    return np.cumsum(x, axis=1)


def _product(x: Any, y: Any) -> Any:
    return x @ y


def _distances(x: Any, y: Any) -> Any:
    return (x * x).sum(axis=1)[:, None] - 2 * (x @ y.T) + (y * y).sum(axis=1)


def _transposed(x: Any) -> Any:
    return x.T + 1


def _sorted(x: Any) -> Any:
    return np.sort(x, axis=1)


def _spectrum(x: Any) -> Any:
    return np.abs(np.fft.rfft(x, axis=1))


def _line(elements: int, rng: np.random.Generator) -> tuple[HostArray, ...]:
    return (rng.standard_normal(elements, np.float32),)


def _rows(elements: int, rng: np.random.Generator) -> tuple[HostArray, ...]:
    return (rng.standard_normal((max(1, elements // 256), 256), np.float32),)


def _squares(elements: int, rng: np.random.Generator) -> tuple[HostArray, ...]:
    side = round((elements / 2) ** 0.5)
    return rng.standard_normal((side, side), np.float32), rng.standard_normal((side, side), np.float32)


def _points(elements: int, rng: np.random.Generator) -> tuple[HostArray, ...]:
    return rng.standard_normal((elements // 32, 16), np.float32), rng.standard_normal((64, 16), np.float32)


WORKLOADS = (
    Workload("add", _add, _line),
    Workload("chain of 12", _chain, _line),
    Workload("sum", _sum, _line),
    Workload("softmax of rows", _softmax, _rows),
    Workload("running sums of rows", _running_sum, _rows),
    Workload("matrix product", _product, _squares),
    Workload("distances", _distances, _points),
    Workload("transpose", _transposed, _rows),
    Workload("sort of rows", _sorted, _rows),
    Workload("spectrum of rows", _spectrum, _rows),
)


def _attempt(workload: Workload, elements: int, subject: Subject) -> Tried:
    arguments = workload.make(elements, np.random.default_rng(elements))
    try:
        value = subject.call(workload.function, *arguments).value
        seconds = _median(lambda: subject.call(workload.function, *arguments))
    except AllocationError as refusal:
        return skipped_for_memory(refusal)
    found = judged(record(workload.function, *arguments), arguments, [np.asarray(value)], set())
    numpy_seconds = _median(lambda: workload.function(*arguments))
    timing = Timing(
        workload=workload.name,
        elements=elements,
        seconds=float(f"{seconds:.4g}"),
        numpy_seconds=float(f"{numpy_seconds:.4g}"),
    )
    return Tried(found.wrong, skipped=found.skipped, timings=(timing,))


def _median(call: Callable[[], object]) -> float:
    taken: list[float] = []
    while len(taken) < _FEWEST or (len(taken) < _MOST and sum(taken) < _SECONDS):
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def _cases(subject: Subject) -> Iterator[Case]:
    kinds = [(workload, elements) for elements in ELEMENTS for workload in WORKLOADS]
    for number, (workload, elements) in enumerate(kinds):
        yield ActCase(
            f"{workload.name}, {elements:,} elements",
            number,
            partial(_attempt, workload, elements),
        )


GRID = Check(
    "grid",
    "Calls of NumPy functions are right, and timed.",
    0.06,
    lambda subject: len(WORKLOADS) * len(ELEMENTS),
    _cases,
)
