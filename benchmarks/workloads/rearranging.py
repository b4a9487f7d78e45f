"""Transforms, scans, sorting and gathering: what moves data about more than it computes."""

from __future__ import annotations

from typing import Any

import numpy as np

from anygpu.base.typing import HostArray
from benchmarks.workloads.workload import Workload, normal, rows_of

WIDTH = 64


def spectrum(x: Any) -> Any:
    return np.fft.rfft(x)


def sort(x: Any) -> Any:
    return np.sort(x)


def cumulative_sum(x: Any) -> Any:
    return np.cumsum(x)


def gather(table: Any, rows: Any) -> Any:
    return table[rows]


def histogram(x: Any) -> Any:
    return np.histogram(x, 256)[0]


def interpolate(x: Any) -> Any:
    line = np.linspace(-5.0, 5.0, 1001)
    return np.interp(x, line, np.tanh(line))


def median(x: Any) -> Any:
    return np.median(x)


def _one(size: int, rng: np.random.Generator) -> tuple[HostArray, ...]:
    return (normal(rng, size),)


def _signals(size: int, rng: np.random.Generator) -> tuple[HostArray, ...]:
    rows, columns = rows_of(size, 4096)
    length = 1 << (columns.bit_length() - 1)
    return (normal(rng, max(1, rows * columns // length), length),)


def _table(size: int, rng: np.random.Generator) -> tuple[HostArray, ...]:
    rows, columns = rows_of(size, WIDTH)
    return normal(rng, rows, columns), rng.integers(0, rows, rows, dtype=np.int32)


REARRANGING = (
    Workload(name="FFT", stages=(spectrum,), make=_signals),
    Workload(name="sort", stages=(sort,), make=_one),
    Workload(name="cumulative sum", stages=(cumulative_sum,), make=_one),
    Workload(name="histogram", stages=(histogram,), make=_one),
    Workload(name="interpolation", stages=(interpolate,), make=_one),
    Workload(name="median", stages=(median,), make=_one),
    Workload(name="gather of rows", stages=(gather,), make=_table),
)
