"""Reductions: of everything, and along each axis of a matrix."""

from __future__ import annotations

from typing import Any

import numpy as np

from anygpu.base.typing import HostArray
from benchmarks.workloads.workload import Workload, normal, side_of


def sum_all(x: Any) -> Any:
    return np.sum(x)


def sum_rows(x: Any) -> Any:
    return np.sum(x, axis=1)


def sum_columns(x: Any) -> Any:
    return np.sum(x, axis=0)


def spread(x: Any) -> Any:
    """Two passes over everything, and one number at the end."""
    return np.sqrt(np.mean((x - np.mean(x)) ** 2))


def _square(size: int, rng: np.random.Generator) -> tuple[HostArray, ...]:
    side = side_of(size)
    return (normal(rng, side, side),)


REDUCTIONS = (
    Workload(name="sum of all", stages=(sum_all,), make=_square),
    Workload(name="sum of rows", stages=(sum_rows,), make=_square),
    Workload(name="sum of columns", stages=(sum_columns,), make=_square),
    Workload(name="standard deviation", stages=(spread,), make=_square),
)
