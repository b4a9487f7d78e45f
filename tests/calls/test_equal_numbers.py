"""Arguments that compare equal and are not the same: each gives what NumPy gives for it, whatever came before."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import anygpu as ag

NUMBERS: tuple[Any, ...] = (
    0.0, -0.0, 0, False, 0j, complex(0, -0.0), complex(-0.0, 0.0), 1, 1.0, True, 1 + 0j, complex(1, -0.0),
    float("nan"), np.float32(1), np.float64(1), np.int8(1), np.bool_(True), np.float32(-0.0), np.float64(0.0),
    np.complex64(1), -1, -1.0, np.int64(1), np.uint8(1),
)  # fmt: skip
ARRAYS = (
    np.array([0.0, -0.0, 1, -2.5], np.float32),
    np.array([0, 1, 2], np.int32),
    np.array([1 + 0j, complex(0, -0.0)], np.complex64),
    np.array([True, False]),
)


@dataclass
class Holder:
    number: Any


def product(x: Any, number: Any) -> Any:
    return x * number


def chosen(x: Any, number: Any) -> Any:
    return np.where(x == x, number, x)


def held(x: Any, holder: Holder) -> Any:
    return x + holder.number


def form(values: Any) -> tuple[Any, ...]:
    """Type and bits; all NaNs are one."""
    found = np.asarray(values)
    parts = found.reshape(-1).view(found.real.dtype)
    return found.dtype, found.shape, np.where(parts == parts, parts, np.full_like(parts, 0)).tobytes()


@pytest.mark.sampled(gate=5)
@pytest.mark.parametrize("engine", ["numpy", "cpu", "torch", "jax", "opencl", "webgpu"])
def test_numbers_that_are_equal_are_not_taken_for_each_other(engine: str) -> None:
    cases = list(itertools.product((product, chosen, held), ARRAYS, NUMBERS))
    for function, x, number in random.Random(engine).sample(cases, 60):
        argument = Holder(number) if function is held else number
        expected: Any = None
        try:
            expected = function(x, argument)
        except TypeError:
            continue
        found = ag.run(function, x, argument, on=engine, fallback="allow").value
        assert form(found) == form(expected), (function.__name__, x.dtype, number, found, expected)
