"""Elementwise operations: what is between them need not reach memory, which is what compilers of kernels live from."""

from __future__ import annotations

from typing import Any

import numpy as np

from anygpu.base.typing import HostArray
from benchmarks.workloads.workload import Workload, normal


def add_one(x: Any) -> Any:
    return x + 1


def chain_of_4(x: Any) -> Any:
    return np.sqrt(x * x + 1) - x


def chain_of_16(x: Any) -> Any:
    bend = x * x * 0.5 + np.tanh(x) * 0.25 - 1
    squeezed = 1 / (1 + np.exp(-bend))
    return np.sqrt(squeezed * squeezed + 0.5) * np.cos(bend) - np.abs(x)


def multiply_add(x: Any, y: Any, z: Any) -> Any:
    return x * y + z


def _one(size: int, rng: np.random.Generator) -> tuple[HostArray, ...]:
    return (normal(rng, size),)


def _three(size: int, rng: np.random.Generator) -> tuple[HostArray, ...]:
    third = max(1, round(size / 3))
    return normal(rng, third), normal(rng, third), normal(rng, third)


CHAINS = (
    Workload(name="chain of 1", stages=(add_one,), make=_one),
    Workload(name="chain of 4", stages=(chain_of_4,), make=_one),
    Workload(name="chain of 16", stages=(chain_of_16,), make=_one),
    Workload(name="multiply and add", stages=(multiply_add,), make=_three),
)
