"""Functions that are called one after the other: what is between them can stay on the device."""

from __future__ import annotations

from typing import Any

import numpy as np

from anygpu.base.typing import HostArray
from benchmarks.workloads.workload import Workload, normal, rows_of


def standardise(x: Any) -> Any:
    distance = x - np.mean(x, axis=0)
    return distance / np.sqrt(np.mean(distance * distance, axis=0) + 1e-6)


def saturate(x: Any) -> Any:
    return np.mean(np.tanh(x) * np.exp(-x * x / 2), axis=1)


def _samples(size: int, rng: np.random.Generator) -> tuple[HostArray, ...]:
    return (normal(rng, *rows_of(size, 256)),)


PIPELINES = (Workload(name="pipeline of two", stages=(standardise, saturate), make=_samples),)
