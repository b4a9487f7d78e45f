"""Infinities, NaN and signed zeros through operations that compilers like to simplify."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anygpu as ag

X = np.array([np.inf, 0, -0.0, np.nan, 1, -np.inf, 2, 3] * 3)

OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "x - x": lambda x: x - x,
    "x * 0": lambda x: x * 0.0,
    "x * -0": lambda x: x * -0.0,
    "x + 0": lambda x: x + 0.0,
    "x - 0": lambda x: x - 0.0,
    "0 - x": lambda x: 0.0 - x,
}


@pytest.mark.parametrize("engine", ["webgpu", "opencl"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_only_looks_as_if_it_could_be_simplified(engine: str, dtype: str) -> None:
    values = X.astype(dtype)
    on_device = ag.asarray(values, device=engine)
    for name, operation in OPERATIONS.items():
        got = np.asarray(operation(on_device))
        with np.errstate(invalid="ignore"):
            wanted = operation(values)
        np.testing.assert_array_equal(got, wanted, err_msg=name)
        numbers = ~np.isnan(wanted)
        np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(wanted[numbers]), err_msg=name)
