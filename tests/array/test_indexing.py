"""Indexing in all its forms gives what NumPy gives, and so does assigning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anygpu.array.core.array import Array, as_array

SHAPE = (4, 5, 3)
BASE = np.arange(60.0).reshape(SHAPE)

KEYS: list[Any] = [
    0,
    -1,
    slice(1, 3),
    slice(None, None, -1),
    slice(10, 2, -2),
    slice(3, 1),
    ...,
    None,
    (0, 1, 2),
    (slice(None), 0),
    (..., 0),
    (None, ..., None, 1),
    (slice(None), slice(4, 0, -3), slice(None, None, 2)),
    [0, 2],
    [[0, 1], [3, -1]],
    np.array([], np.int64),
    (slice(None), [0, 4, 4]),
    ([0, 1], slice(None), [2, 0]),
    ([0, 1], [2, 0]),
    ([[0], [3]], [1, 2]),
    (0, [1, 2], slice(None)),
    ([1, 2], 0, slice(None)),
    (slice(None), 0, [1, 2]),
    (None, [1, 2]),
    (slice(1, 3), None, [0, 1, 1]),
    np.array(2),
    np.int8(-2),
    BASE > 30,
    (slice(None), np.array([True, False, True, False, True])),
    (np.array([True, False, False, True]), [0, 1]),
    (np.array([[True] * 5, [False] * 5] * 2), 1),
    True,
    False,
    np.zeros(SHAPE, bool),
]


@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_getting(key: Any) -> None:
    got = as_array(BASE)[key]
    expected = BASE[key]
    assert got.shape == np.shape(expected)
    assert np.array_equal(np.asarray(got), expected)


@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_setting_one_value_and_many(key: Any) -> None:
    for value in (7, np.random.default_rng(0).normal(size=BASE[key].shape)):
        x, expected = as_array(BASE), BASE.copy()
        x[key] = value
        expected[key] = value
        assert np.array_equal(np.asarray(x), expected)


@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_changing_in_place(key: Any) -> None:
    x, expected = as_array(BASE), BASE.copy()
    x[key] *= 2
    expected[key] *= 2
    assert np.array_equal(np.asarray(x), expected)


def test_positions_that_are_not_computed_yet() -> None:
    x = as_array(BASE)
    rows, columns = as_array(np.array([0, 3, -1])), as_array(np.array([1, -2, 4]))
    assert np.array_equal(np.asarray(x[rows]), BASE[[0, 3, -1]])
    assert np.array_equal(np.asarray(x[rows, columns]), BASE[[0, 3, -1], [1, -2, 4]])
    assert np.array_equal(np.asarray(x[as_array(BASE) > 30]), BASE[BASE > 30])
    assert np.array_equal(np.asarray(x[as_array(np.array(2))]), BASE[2])


def test_a_position_outside_is_an_error_at_once_where_it_is_known_and_when_it_runs_where_not() -> None:
    x = as_array(BASE)
    for key in (4, -5, [0, 4], (0, 5), ([0], [5])):
        with pytest.raises(IndexError):
            x[key]
    late = as_array(np.array([0, 9]))
    with pytest.raises(IndexError):
        np.asarray(x[late])
    inside_together_but_not_alone = x[as_array(np.array([0])), as_array(np.array([7]))]
    with pytest.raises(IndexError):
        np.asarray(inside_together_but_not_alone)


def test_mistakes_are_refused() -> None:
    x = as_array(BASE)
    for key in ((0, 0, 0, 0), (..., ...), 1.5, "a", np.ones((3, 5), bool), [0.5]):
        with pytest.raises(IndexError):
            x[key]
    with pytest.raises(ValueError, match="broadcast"):
        x[0] = np.zeros(4)
    with pytest.raises(OverflowError):
        as_array(np.zeros(3, np.int8))[0] = 300


def test_one_value_under_a_mask_computes_nothing() -> None:
    x = as_array(BASE)
    y = x * 2
    y[y > 30] = 0
    assert "not computed yet" in repr(y)
    expected = BASE * 2
    expected[expected > 30] = 0
    assert np.array_equal(np.asarray(y), expected)


indices = st.one_of(
    st.integers(-4, 3),
    st.slices(4),
    st.just(...),
    st.none(),
    st.lists(st.integers(-4, 3), max_size=3),
    st.lists(st.booleans(), min_size=4, max_size=4),
)


def as_index(part: list[Any]) -> Any:
    return np.array(part, bool if part and isinstance(part[0], bool) else np.int64)


@given(st.lists(indices, max_size=4), st.integers(0, 2**32 - 1))
def test_any_combination(parts: list[Any], seed: int) -> None:
    base = np.arange(4**3).reshape(4, 4, 4)
    key = tuple(as_index(part) if isinstance(part, list) else part for part in parts)
    try:
        expected = base[key]
    except IndexError:
        with pytest.raises(IndexError):
            as_array(base)[key]
        return
    assert np.array_equal(np.asarray(as_array(base)[key]), expected)
    x, written = as_array(base), base.copy()
    new = np.random.default_rng(seed).integers(0, 100, expected.shape)
    x[key] = new
    written[key] = new
    assert np.array_equal(np.asarray(x), written)


def test_iterating_and_containing() -> None:
    rows = list(as_array(BASE))
    assert all(isinstance(row, Array) for row in rows)
    assert np.array_equal(np.asarray(rows[2]), BASE[2])
    assert 59.0 in as_array(BASE)
    assert 60.0 not in as_array(BASE)


@pytest.mark.parametrize("key", [(slice(0, 0), 0, ..., [0]), (0, ..., [0, 1], slice(1)), ([0], ..., 1, [1, 2])])
def test_an_ellipsis_without_axes_still_separates(key: Any) -> None:
    base = np.arange(4**3).reshape(4, 4, 4)
    expected = base[key]
    got = np.asarray(as_array(base)[key])
    assert got.shape == expected.shape
    np.testing.assert_array_equal(got, expected)
    mine, theirs = as_array(base), base.copy()
    mine[key] = 7
    theirs[key] = 7
    np.testing.assert_array_equal(np.asarray(mine), theirs)
