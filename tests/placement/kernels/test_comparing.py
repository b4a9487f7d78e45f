"""When two arrays count as equal, and where they first differ."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anygpu.placement.kernels.launching import default_tolerance, first_difference


def test_equal_arrays_do_not_differ() -> None:
    for dtype in ("float16", "float32", "float64", "int32", "uint8", "bool", "complex64"):
        values = np.arange(12).reshape(3, 4).astype(dtype)
        assert first_difference(values, values.copy()) is None


def test_the_first_place_is_told_in_c_order_and_how_many_there_are() -> None:
    expected = np.zeros((3, 4), np.float32)
    found = expected.copy()
    found[1, 2] = 5
    found[2, 0] = 7
    assert first_difference(found, expected) == ((1, 2), 5.0, 0.0, 2)


def test_an_array_without_axes_has_an_empty_position() -> None:
    difference = first_difference(np.array(1, np.float32), np.array(2, np.float32))
    assert difference is not None
    assert difference.position == ()


def test_rounding_is_no_difference_and_more_is_one() -> None:
    expected = np.linspace(1, 2, 1000, dtype=np.float32)
    assert first_difference(expected * np.float32(1 + 1e-6), expected) is None
    assert first_difference(expected * np.float32(1 + 1e-3), expected) is not None


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_the_scale_is_that_of_the_values(scale: float) -> None:
    expected = (np.linspace(1, 2, 1000) * scale).astype(np.float32)
    expected[3] = scale * 1e-9  # what is left of a sum that comes close to 0
    found = expected.copy()
    found[3] = 0
    assert first_difference(found, expected) is None
    found[7] *= 1.01
    assert first_difference(found, expected) is not None


def test_one_giant_does_not_hide_what_is_wrong_beside_it() -> None:
    expected = np.ones(1000, np.float32)
    expected[0] = 1e9
    found = expected.copy()
    found[5] = 1.5
    difference = first_difference(found, expected)
    assert difference is not None
    assert difference.position == (5,)


def test_nan_and_infinity_agree_with_themselves_only() -> None:
    expected = np.array([np.nan, np.inf, -np.inf, 1], np.float32)
    assert first_difference(expected.copy(), expected) is None
    for wrong in ([0, np.inf, -np.inf, 1], [np.nan, 1e30, -np.inf, 1], [np.nan, -np.inf, -np.inf, 1], [np.nan] * 4):
        assert first_difference(np.array(wrong, np.float32), expected) is not None


def test_numbers_that_are_too_small_for_a_device_may_be_zero() -> None:
    expected = np.array([1e-40, 2e-40], np.float32)
    assert first_difference(np.zeros(2, np.float32), expected) is None


def test_whole_numbers_are_equal_or_differ() -> None:
    assert default_tolerance(np.dtype(np.int32)) == 0
    expected = np.array([2**62, -(2**62)], np.int64)
    difference = first_difference(expected + 1, expected)
    assert difference is not None
    assert (difference.position, difference.places) == ((0,), 2)
    assert first_difference(expected + 1, expected, (0.0, 1.0)) is None
    assert first_difference(np.array([0], np.uint8), np.array([255], np.uint8), (0.0, 1.0)) is not None
    assert first_difference(np.array([True]), np.array([False]), (0.0, 1.0)) is not None


def test_a_share_and_what_is_added_to_it() -> None:
    expected = np.array([100, 0], np.float32)
    assert first_difference(np.array([101, 0.5], np.float32), expected, (0.01, 0.5)) is None
    assert first_difference(np.array([103, 0.5], np.float32), expected, (0.01, 0.5)) is not None


@given(st.lists(st.floats(width=32), min_size=1, max_size=30), st.integers(0, 29), st.floats(1.125, 1e6))
def test_a_wrong_place_is_found_whatever_surrounds_it(values: list[float], where: int, factor: float) -> None:
    expected = np.array(values, np.float32)
    where %= len(values)
    expected[where] = 1000.0
    found = expected.copy()
    found[where] = 1000.0 * factor
    typical = np.abs(expected[np.isfinite(expected) & (expected != 0)])
    if np.median(typical) <= 1e4:
        difference = first_difference(found, expected)
        assert difference is not None
        assert difference.position == (where,)
