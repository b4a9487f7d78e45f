"""Matrix products in the shapes that programs have: work per element grows with the size in some and not in others."""

from __future__ import annotations

from typing import Any

import numpy as np

from anygpu.base.typing import HostArray
from benchmarks.workloads.workload import Workload, normal, side_of

NARROW = 64
BATCH_SIDE = 32


def square_product(a: Any, b: Any) -> Any:
    return a @ b


def tall_product(a: Any, b: Any) -> Any:
    return a @ b


def matrix_vector(a: Any, x: Any) -> Any:
    return a @ x


def batched_product(a: Any, b: Any) -> Any:
    return np.matmul(a, b)


def _square(size: int, rng: np.random.Generator) -> tuple[HostArray, ...]:
    side = side_of(size, 2)
    return normal(rng, side, side), normal(rng, side, side)


def _tall(size: int, rng: np.random.Generator) -> tuple[HostArray, ...]:
    narrow = min(NARROW, max(2, side_of(size) // 2))
    return normal(rng, max(1, size // narrow - narrow), narrow), normal(rng, narrow, narrow)


def _vector(size: int, rng: np.random.Generator) -> tuple[HostArray, ...]:
    side = side_of(size)
    return normal(rng, side, side), normal(rng, side)


def _batch(size: int, rng: np.random.Generator) -> tuple[HostArray, ...]:
    side = min(BATCH_SIDE, max(2, side_of(size) // 4))
    count = max(1, round(size / (2 * side * side)))
    return normal(rng, count, side, side), normal(rng, count, side, side)


PRODUCTS = (
    Workload(name="matmul, square", stages=(square_product,), make=_square),
    Workload(name="matmul, tall and narrow", stages=(tall_product,), make=_tall),
    Workload(name="matrix × vector", stages=(matrix_vector,), make=_vector),
    Workload(name="matmul, batched", stages=(batched_product,), make=_batch),
)
