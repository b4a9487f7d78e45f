"""Order, positions, sets and moved vectors, against NumPy's."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anygpu.array.core.array import Array
from anygpu.array.functions.creation import asarray
from anygpu.array.trace.traced import Traced
from anygpu.array.trace.tracing import trace
from anygpu.workers.device_arrays.registry import registry
from tests.array.agreement import KINDS, REALS, agree, check, lazy, np, numbers, our

SHAPES: list[Any] = [(), (1,), (7,), (3, 4), (2, 3, 4), (0,), (2, 0)]


@pytest.mark.parametrize("name", ["sort", "argsort"])
@pytest.mark.parametrize("shape", SHAPES)
def test_sorting(name: str, shape: Any) -> None:
    for axis in (-1, 0, 1, None, 5):
        agree(our, name, numbers(shape, "int16"), axis=axis, stable=True)
    for dtype in KINDS:
        agree(our, name, numbers(shape, dtype), axis=None, stable=True)


def test_sorting_with_nan_and_zeros() -> None:
    sample = np.array([np.nan, 1, -np.inf, np.nan, 0.0, -0.0, np.inf])
    agree(our, "sort", sample)
    agree(our, "argsort", sample, stable=True)
    with pytest.raises(TypeError, match="order"):
        our.sort(asarray(sample), order="name")


@pytest.mark.parametrize("dtype", REALS)
def test_sorting_downwards_is_stable_too(dtype: str) -> None:
    for shape in ((7,), (3, 4), (0,)):
        sample = numbers(shape, dtype)
        down = our.argsort(asarray(sample), descending=True)
        order = np.argsort(-np.asarray(sample, "float64"), axis=-1, stable=True)
        check(down, order, "argsort")
        check(our.sort(asarray(sample), descending=True), np.take_along_axis(sample, order, -1), "sort")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
def test_nan_is_last_downwards_too(dtype: str) -> None:
    sample = np.array([np.nan, 1, -np.inf, 3, np.nan, 0.0, -0.0, np.inf, 1], dtype)
    down = np.asarray(our.argsort(asarray(sample), descending=True))
    assert down.tolist() == [7, 3, 1, 8, 5, 6, 2, 0, 4]
    values = np.asarray(our.sort(asarray(sample), descending=True))
    np.testing.assert_array_equal(values, sample[down])
    assert np.signbit(values.real).tolist() == np.signbit(sample[down].real).tolist()
    if "descending" in inspect.signature(np.sort).parameters:  # since NumPy 2.5
        options: dict[str, Any] = {"descending": True, "stable": True}
        np.testing.assert_array_equal(values, np.sort(sample, **options))
        np.testing.assert_array_equal(down, np.argsort(sample, **options))


def test_the_order_of_equal_elements_downwards_is_traced_if_it_is_said() -> None:
    x = numbers((7,), "float64")
    for stable in (None, False, True):
        traced = trace(lambda x: x.argsort(descending=True, stable=stable), (x,), {})  # noqa: B023 - used here
        assert isinstance(traced, Traced) == bool(stable)


def test_partition() -> None:
    sample = numbers((5, 6))
    for kth in (0, 3, -1, [1, 2]):
        parts = np.asarray(our.partition(asarray(sample), kth))
        places = np.asarray(our.argpartition(asarray(sample), kth))
        wanted = np.partition(sample, kth)
        assert np.array_equal(parts[:, kth], wanted[:, kth])
        assert np.array_equal(np.take_along_axis(sample, places, -1)[:, kth], wanted[:, kth])
    agree(our, "partition", sample, 6)
    agree(our, "argpartition", sample, 0, axis=2)


def test_several_keys() -> None:
    first, second, third = (numbers((12,), "int8", seed) for seed in range(3))
    agree(our, "lexsort", (first, second))
    agree(our, "lexsort", (first, second, third))
    agree(our, "lexsort", numbers((3, 12), "int8"))
    agree(our, "lexsort", (numbers((4, 5), "int8"), numbers((4, 5), "int8", 2)), axis=0)
    agree(our, "lexsort", (first, second[:3]))
    agree(our, "lexsort", ())


@pytest.mark.parametrize("side", ["left", "right", "middle"])
def test_searching(side: str) -> None:
    line = np.sort(numbers((9,)))
    for wanted in (numbers((3, 4), seed=2), 1.5, [0, 1], np.array(2), np.array([np.nan, -np.inf, np.inf])):
        agree(our, "searchsorted", line, wanted, side)
    sample = numbers((9,), "int16")
    agree(our, "searchsorted", sample, np.array([0, 3], "int8"), side, np.argsort(sample))
    agree(our, "searchsorted", np.sort(numbers((9,), "float32")), 0.1, side)
    agree(our, "searchsorted", np.array([]), [1.0], side)
    agree(our, "searchsorted", numbers((2, 3)), 1, side)
    agree(our, "searchsorted", sample, 1, side, np.array([0.5] * 9))


# Conditions and positions


def test_where() -> None:
    mask, sample = numbers((3, 4), "bool"), numbers((3, 4), "float32")
    for pair in (
        (sample, 0),
        (0, sample),
        (1, 2),
        (1, 2.5),
        (sample, 1.5),
        (sample, 1j),
        (True, sample),
        (True, False),
    ):
        agree(our, "where", mask, *pair)
    agree(our, "where", mask[0], sample, numbers((3, 1), "int64"))
    agree(our, "where", numbers((3, 4), "int8"), sample, -sample)
    agree(our, "where", mask)
    agree(our, "where", mask, sample)
    agree(our, "where", numbers((2,), "bool"), sample, 0)
    agree(our, "where", mask, numbers((4,), "int8"), numbers((4,), "uint64"))


@pytest.mark.parametrize("name", ["nonzero", "argwhere", "flatnonzero"])
@pytest.mark.parametrize("shape", SHAPES)
def test_where_something_is(name: str, shape: Any) -> None:
    for dtype in ("bool", "int8", "float64", "complex64"):
        agree(our, name, numbers(shape, dtype))
    agree(our, name, np.zeros(shape))
    agree(our, name, np.ones(shape))


@pytest.mark.parametrize("mode", ["raise", "wrap", "clip", "other"])
def test_take(mode: str) -> None:
    sample = numbers((3, 4, 5))
    for positions in (1, -1, [0, 2], np.array([[0, 1], [2, -1]]), np.array([], "int64"), 3, np.array([7, -8])):
        for axis in (None, 0, -1, 1, 5):
            agree(our, "take", sample, positions, axis=axis, mode=mode)
    if mode != "other":
        agree(our, "take", sample, np.array([1.5]), mode=mode)
    agree(our, "take", numbers((0,)), [0], mode=mode)


def test_take_along_axis() -> None:
    sample = numbers((3, 4))
    for axis in (0, 1, -1):
        agree(our, "take_along_axis", sample, np.argsort(sample, axis), axis)
        agree(our, "take_along_axis", sample, np.argmax(sample, axis, keepdims=True), axis)
    agree(our, "take_along_axis", sample, np.array([[0, -1]]), 1)
    agree(our, "take_along_axis", sample, np.array([[0], [2]]), 0)
    agree(our, "take_along_axis", sample, np.array([5, 0, -1]), None)
    agree(our, "take_along_axis", sample, np.array([0, 1]), 0)
    agree(our, "take_along_axis", sample, np.array([[9]]), 0)
    agree(our, "take_along_axis", sample, np.array([[0.5]]), 0)
    agree(our, "take_along_axis", numbers((1, 4)), np.array([[0, 1], [1, 2], [3, 0]]), 1)


@pytest.mark.parametrize("axis", [0, 1, None])
def test_put_along_axis(axis: int | None) -> None:
    sample = numbers((3, 4))
    index = np.array([[0, 1, 2, 1]]) if axis == 0 else np.array([[1], [0], [3]]) if axis else np.array([0, 5])
    for values in (7, np.array(2), index * 1.5):
        ours, theirs = asarray(sample), sample.copy()
        our.put_along_axis(ours, asarray(index), lazy(values), axis)
        np.put_along_axis(theirs, index, values, axis)
        check(ours, theirs, axis)


@pytest.mark.parametrize("mode", ["raise", "wrap", "clip"])
def test_choose(mode: str) -> None:
    choices = [numbers((4,), "int8"), numbers((3, 4), "float32"), np.array(5)]
    for index in (np.array([0, 1, 2, 1]), np.array(1), np.array([[3], [-1], [0]])):
        agree(our, "choose", index, choices, mode=mode)
    agree(our, "choose", np.array([0, 0]), [np.array([1, 2])], mode=mode)
    agree(our, "choose", np.array([0, 1]), [np.array([1, 2])], mode=mode)


def test_select() -> None:
    sample = numbers((3, 4), "float32")
    conditions = [sample > 1, sample < 0]
    agree(our, "select", conditions, [sample, -sample])
    agree(our, "select", conditions, [sample, 5], 1.5)
    agree(our, "select", conditions, [1, 2])
    agree(our, "select", conditions, [numbers((4,), "int8"), numbers((3, 1), "int16")], 7)
    agree(our, "select", conditions, [sample])
    agree(our, "select", [sample], [sample])
    agree(our, "select", [], [])


def test_piecewise() -> None:
    sample = numbers((9,))
    functions: list[Callable[[Any], Any]] = [lambda v: -v, lambda v: v * 2]
    agree(our, "piecewise", sample, [sample < 0, sample > 1], functions)
    agree(our, "piecewise", sample, [sample < 0, sample > 1], [*functions, 7])
    agree(our, "piecewise", sample, sample < 0, functions)
    agree(our, "piecewise", sample, [sample < 0], [1, 2, 3])
    agree(our, "piecewise", sample, [sample > 99], functions)
    # Each function sees its own elements and no others.
    agree(our, "piecewise", sample, [sample < 0], [lambda v: v - v.mean(), lambda v: v / v.max()])


def test_compress_and_extract() -> None:
    sample = numbers((3, 4))
    for condition, axis in (([True, False, True], 0), ([0, 1], 1), ([1, 0, 1, 1, 0], None), ([True] * 9, 0)):
        agree(our, "compress", np.array(condition), sample, axis)
    agree(our, "compress", sample > 0, sample)
    agree(our, "extract", sample > 0, sample)
    agree(our, "extract", numbers((12,), "bool"), sample)


def test_positions_of_grids_and_triangles() -> None:
    agree(our, "ix_", np.array([0, 2]), np.array([True, False, True]), [1])
    agree(our, "ix_", np.array([[0]]))
    for k in (-1, 0, 2):
        for name in ("tril_indices_from", "triu_indices_from"):
            agree(our, name, numbers((3, 4)), k)
    agree(our, "tril_indices_from", numbers((3,)))
    agree(our, "diag_indices_from", numbers((3, 3, 3)))
    agree(our, "diag_indices_from", numbers((3, 4)))
    for dtype in KINDS:
        agree(our, "sort_complex", numbers((6,), dtype))


# Sets


@pytest.mark.parametrize("dtype", KINDS)
def test_unique(dtype: str) -> None:
    for shape in ((), (9,), (4, 5), (0,)):
        agree(our, "unique", numbers(shape, dtype))
        agree(our, "unique", numbers(shape, dtype), True, True, True)


def test_unique_with_nan() -> None:
    sample = np.array([1, np.nan, 2, np.nan, 1, -0.0, 0.0])
    for equal_nan in (True, False):
        agree(our, "unique", sample, True, True, True, equal_nan=equal_nan)


@pytest.mark.parametrize("axis", [0, 1, -1, 2])
def test_unique_parts(axis: int) -> None:
    for sample in (numbers((12, 2), "bool"), numbers((3, 8), "int8") // 5, numbers((0, 3)), numbers((2, 4, 2), "bool")):
        agree(our, "unique", sample, axis=axis)
        agree(our, "unique", sample, True, True, True, axis=axis)


@pytest.mark.parametrize("name", ["unique_all", "unique_counts", "unique_inverse", "unique_values"])
def test_unique_of_the_standard(name: str) -> None:
    for sample in (numbers((4, 5), "int8"), np.array([np.nan, 1, np.nan]), numbers((0,)), numbers((), "int8")):
        ours = getattr(our, name)(asarray(sample))
        theirs = getattr(np, name)(sample)
        if name == "unique_values":
            ours, theirs = our.sort(ours), np.sort(theirs)
        else:
            assert ours._fields == theirs._fields
        check(ours, theirs, name)


@pytest.mark.parametrize("invert", [False, True])
def test_membership(invert: bool) -> None:
    for dtype in KINDS:
        agree(our, "isin", numbers((3, 4), dtype), numbers((3,), dtype, 5), invert=invert)
    agree(our, "isin", numbers((3, 4)), [1, 2], invert=invert)
    agree(our, "isin", np.array([np.nan, 1]), np.array([np.nan, 1]), invert=invert)
    agree(our, "isin", numbers((3,)), [], invert=invert)
    agree(our, "isin", np.array(2), np.array(2), invert=invert)


@pytest.mark.parametrize("name", ["intersect1d", "union1d", "setdiff1d", "setxor1d"])
def test_set_operations(name: str) -> None:
    for dtype in ("int8", "float64", "bool"):
        for shapes in (((9,), (6,)), ((3, 4), (2, 2)), ((0,), (3,)), ((0,), (0,))):
            agree(our, name, numbers(shapes[0], dtype), numbers(shapes[1], dtype, 4))
    agree(our, name, numbers((5,), "int8"), numbers((5,), "float32"))
    if name != "union1d":
        agree(our, name, np.array([5, 1, 3]), np.array([3, 9, 5]), assume_unique=True)
    if name == "intersect1d":
        agree(our, name, numbers((9,), "int8"), numbers((6,), "int8", 4), return_indices=True)
        agree(our, name, np.array([5, 1]), np.array([3, 5]), assume_unique=True, return_indices=True)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-4, 4), max_size=20), st.lists(st.integers(-4, 4), max_size=20))
def test_any_sets(one: list[int], other: list[int]) -> None:
    left, right = np.array(one, "int64"), np.array(other, "int64")
    agree(our, "unique", left, True, True, True)
    for name in ("intersect1d", "union1d", "setdiff1d", "setxor1d"):
        agree(our, name, left, right)
    agree(our, "isin", left, right)


# Lines and moved vectors


def test_interpolation() -> None:
    places, heights = np.array([0, 1, 1.5, 4]), np.array([3.0, -1, 2, 7])
    points = np.array([-1, 0, 0.3, 1, 1.2, 4, 5, np.nan, np.inf])
    agree(our, "interp", points, places, heights)
    agree(our, "interp", points, places, heights, -9, 9)
    agree(our, "interp", points, places, heights * 1j)
    agree(our, "interp", 0.5, places, heights)
    agree(our, "interp", numbers((3, 4), "float32"), places.astype("float32"), heights.astype("int8"))
    agree(our, "interp", points, [2.0], [5.0])
    agree(our, "interp", points, [2.0], [5.0], 1, 3)
    agree(our, "interp", np.array([-180.0, 365, 10]), np.array([190.0, -190, 350]), np.array([5.0, 10, 3]), period=360)
    agree(our, "interp", points, places, heights, period=0)
    # At one place after the other there are eight points, and NumPy's sort decides which of them is the last.
    agree(our, "interp", np.arange(-9, 9) / 2, np.arange(40.0), np.arange(40.0) ** 2, period=5)
    agree(our, "interp", points, places, heights[:3])
    agree(our, "interp", points, [], [])
    agree(our, "interp", points, places, np.array([1, np.inf, np.inf, 2]))


@pytest.mark.parametrize("mode", ["full", "same", "valid", "half"])
@pytest.mark.parametrize("name", ["convolve", "correlate"])
def test_moved_vectors(name: str, mode: str) -> None:
    for sizes in ((7, 3), (3, 7), (4, 4), (1, 5), (5, 1), (8, 2)):
        for dtypes in (("float64", "float64"), ("int8", "int16"), ("complex128", "complex64"), ("float32", "int8")):
            pair = [numbers((size,), dtype, size) for size, dtype in zip(sizes, dtypes, strict=True)]
            agree(our, name, *pair, mode)
    agree(our, name, numbers((0,)), numbers((3,)), mode)
    agree(our, name, numbers((2, 2)), numbers((3,)), mode)
    agree(our, name, [1, 2, 3], [0, 1, 0.5], mode)


def test_only_the_number_of_places_is_computed() -> None:
    """What `nonzero` and `unique` give is still lazy: one number was read, and nothing else has left the device."""
    x = asarray(numbers((50,), "int8")) * 2
    for result in (*our.nonzero(x), our.unique(x), our.flatnonzero(x)):
        assert isinstance(result, Array)
        assert "not computed" in repr(result)


def test_isin_is_exact_between_int64_and_uint64() -> None:
    large, small = np.array([2**63, 2**63 - 1, 5], np.uint64), np.array([2**63 - 1, -(2**63), 5, -1])
    for invert in (False, True):
        got = np.isin(asarray(large), asarray(small), invert=invert)
        assert np.array_equal(np.asarray(got), np.array([False, True, True]) != invert)
        got = np.isin(asarray(small), asarray(large), invert=invert)
        assert np.array_equal(np.asarray(got), np.array([True, False, True, False]) != invert)


@pytest.mark.parametrize("count", [6, 40, 3000])
def test_a_traced_sort_orders_equal_elements_as_numpy_does(count: int) -> None:
    def ordered(x: Any) -> Any:
        return np.sort(x), np.argsort(x), np.sort(x, kind="stable"), x.argsort(stable=True)

    for seed in range(8):
        whole = np.random.default_rng(seed).integers(-9, 9, count) / 8
        x = np.where(whole == 0, np.where(np.arange(count) % 2, 0.0, -0.0), whole)
        traced = trace(ordered, (x,), {})
        assert isinstance(traced, Traced)
        results = registry.find("cpu").worker.run(traced.program, [x]).results
        assert [each.tobytes() for each in results] == [each.tobytes() for each in ordered(x)]
