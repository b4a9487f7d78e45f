"""The operator `**` takes short ways for 2, -1 and 0.5, as NumPy's does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anygpu as ag

PARTS = (0.0, -0.0, 1.0, -np.inf, np.inf, np.nan, -2.5)
POWERS: dict[str, Callable[[Any], Any]] = {
    "2": lambda x: x**2,
    "2.0": lambda x: x**2.0,
    "-1": lambda x: x**-1,
    "0.5": lambda x: x**0.5,
    "3": lambda x: x**3,
}


@pytest.mark.parametrize("name", POWERS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
def test_powers_of_zeros_and_infinities_are_numpys(name: str, dtype: str) -> None:
    values = np.array(PARTS, dtype)
    if values.dtype.kind == "c":
        values = np.repeat(values, len(PARTS))
        values.imag = np.tile(PARTS, len(PARTS))
    with np.errstate(all="ignore"):
        wanted = POWERS[name](values)
        got = np.asarray(POWERS[name](ag.asarray(values)))
    assert got.dtype == wanted.dtype
    for one, other in ((wanted.real, got.real), (wanted.imag, got.imag)):
        np.testing.assert_array_equal(one, other)
        numbers = ~np.isnan(one)
        np.testing.assert_array_equal(np.signbit(one[numbers]), np.signbit(other[numbers]))


def test_the_square_of_a_truth_value_is_as_wide_as_numpys() -> None:
    """An int8 of an array, an int64 of a number."""
    truths = np.array([True, False])

    def squares(x: Any) -> Any:
        return x**2, x.any() ** 2, x[0] ** 2

    expected = squares(truths)
    for one, other in zip(ag.offload(on="cpu", fallback="allow")(squares)(truths), expected, strict=True):
        assert (type(one), one.dtype) == (type(other), other.dtype)
        np.testing.assert_array_equal(one, other)
