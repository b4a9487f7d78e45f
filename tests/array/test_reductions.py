"""Sums, extremes and means against NumPy's, with its result types."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anygpu.array.functions.creation import asarray
from tests.array.agreement import KINDS, REALS, agree, check, np, numbers, our

SAMPLES = [(), (7,), (3, 5), (2, 3, 4), (0,), (0, 3), (3, 0)]
AXES: list[Any] = [None, 0, -1, 1, (0, 1), (), (0, 0), 5]
TOTALS = ["sum", "prod", "max", "min", "any", "all", "mean", "std", "var", "count_nonzero", "ptp"]


@pytest.mark.parametrize("name", TOTALS)
@pytest.mark.parametrize("dtype", KINDS)
def test_every_type(name: str, dtype: str) -> None:
    tolerance = 2e-2 if dtype == "float16" and name in ("std", "var", "sum", "prod") else None
    for axis in (None, 0, 1):
        agree(our, name, numbers((3, 5), dtype), axis=axis, tolerance=tolerance)


@pytest.mark.parametrize("name", TOTALS)
@pytest.mark.parametrize("shape", SAMPLES)
def test_every_shape_and_axis(name: str, shape: Any) -> None:
    for axis in AXES:
        for keepdims in (False, True):
            agree(our, name, numbers(shape), axis=axis, keepdims=keepdims)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("shape", SAMPLES)
def test_positions_of_extremes(name: str, shape: Any) -> None:
    for axis in (None, 0, -1, 1, 5):
        for keepdims in (False, True):
            agree(our, name, numbers(shape, "int8"), axis=axis, keepdims=keepdims)
    for dtype in REALS:
        agree(our, name, numbers((3, 4), dtype), axis=1)
    agree(our, name, np.array([1, np.nan, 3, np.nan]))


@pytest.mark.parametrize("dtype", ["int8", "bool", "uint8", "float32", "complex64"])
def test_the_type_of_totals(dtype: str) -> None:
    for wanted in ("float64", "int32", "complex128", "bool"):
        if not (dtype == "complex64" and wanted in ("float64", "int32")):
            for name in ("sum", "prod", "cumsum", "cumprod"):
                agree(our, name, numbers((4, 3), dtype), dtype=wanted)
    agree(our, "mean", numbers((4, 3), "float32"), dtype="float64")
    agree(our, "mean", numbers((4, 3), "float64"), dtype="int32")
    agree(our, "var", numbers((4, 3), "float32"), dtype="float64")


def test_masks_and_starting_values() -> None:
    sample, mask = numbers((3, 4)), numbers((3, 4), "bool", 5)
    for name in ("sum", "prod", "any", "all", "mean", "std", "var"):
        for axis in (None, 0, (0, 1)):
            agree(our, name, sample, axis=axis, where=mask)
            agree(our, name, sample, axis=axis, where=mask[0], keepdims=True)
    agree(our, "var", sample, axis=0, where=mask, ddof=1)
    for name in ("sum", "prod", "max", "min"):
        agree(our, name, sample, axis=0, initial=2.5)
        agree(our, name, numbers((3, 4), "int8"), initial=3)
        agree(our, name, numbers((0, 4)), axis=0, initial=1.5, keepdims=True)
        agree(our, name, sample, axis=1, initial=0, where=mask)
    for name in ("max", "min"):
        agree(our, name, sample, where=mask)


def test_corrections() -> None:
    sample = numbers((5, 3))
    for name in ("var", "std"):
        for ddof in (0, 1, 2.5, 5, 7):
            agree(our, name, sample, axis=0, ddof=ddof)
            agree(our, name, sample, axis=0, correction=ddof)
        agree(our, name, sample, ddof=1, correction=1)
        agree(our, name, sample, axis=0, mean=np.mean(sample, axis=0, keepdims=True))
        agree(our, name, numbers((4, 3), "complex64"), axis=0)
    assert our.var(asarray(sample), axis=0).dtype == np.float64


def test_results_can_be_put_into_another_array() -> None:
    x = asarray(numbers((3, 4)))
    target = asarray(np.zeros(3))
    assert our.sum(x, 1, None, target) is target
    check(target, np.sum(numbers((3, 4)), 1), "out")
    given_ = np.zeros(3)
    assert our.mean(x, 1, out=given_) is given_
    assert np.array_equal(given_, np.mean(numbers((3, 4)), 1))
    with pytest.raises(ValueError, match="shape"):
        our.sum(x, 0, out=target)
    with pytest.raises(TypeError, match="fit"):
        our.sum(x, 1, out=asarray(np.zeros(3, "int32")))


def test_half_precision_means_are_computed_in_single() -> None:
    """Sixty thousand ones are more than float16 can count."""
    sample = np.ones(60_000, "float16")
    check(our.mean(asarray(sample)), np.mean(sample), "mean")


def test_nothing_is_computed_before_it_is_needed() -> None:
    x = asarray(numbers((3, 4)))
    lazy = [getattr(our, name)(x) for name in TOTALS]
    lazy += [our.median(x), our.quantile(x, 0.3), *our.histogram(x), our.cov(x)]
    assert all("not computed" in repr(each) for each in lazy)


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_running_totals(name: str) -> None:
    for shape in SAMPLES:
        for axis in (None, 0, -1, 1, 5):
            agree(our, name, numbers(shape), axis=axis)
    for dtype in KINDS:
        agree(our, name, numbers((3, 4), dtype), axis=1, tolerance=2e-2 if dtype == "float16" else None)


@pytest.mark.parametrize("name", ["cumulative_sum", "cumulative_prod"])
def test_running_totals_of_the_standard(name: str) -> None:
    for shape in SAMPLES:
        for axis in (None, 0, -1, 5):
            for start in (False, True):
                agree(our, name, numbers(shape, "int16"), axis=axis, include_initial=start)
    agree(our, name, numbers((3,), "int8"), dtype="float32", include_initial=True)


@pytest.mark.parametrize("dtype", KINDS)
def test_differences(dtype: str) -> None:
    for shape in ((), (1,), (0,), (5,), (3, 4)):
        for n in (0, 1, 2, 7, -1):
            agree(our, "diff", numbers(shape, dtype), n)
    agree(our, "diff", numbers((3, 4), dtype), axis=0, prepend=1, append=numbers((2, 4), "int8"))
    agree(our, "ediff1d", numbers((3, 4), dtype if dtype != "bool" else "int8"))


def test_differences_with_ends() -> None:
    agree(our, "ediff1d", numbers((4,)), to_begin=1, to_end=[2, 3])
    agree(our, "ediff1d", numbers((4,), "int8"), to_end=np.array([1.5]))
    agree(our, "ediff1d", numbers((0,)))


def test_areas() -> None:
    for shape in ((5,), (3, 4), (1,)):
        agree(our, "trapezoid", numbers(shape))
        agree(our, "trapezoid", numbers(shape, "float32"), dx=0.5)
        agree(our, "trapezoid", numbers(shape, "int8"), axis=0)
    agree(our, "trapezoid", numbers((3, 4)), np.array([0, 1, 4, 6.5]))
    agree(our, "trapezoid", numbers((3, 4)), numbers((3, 4), seed=3), axis=0)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_slopes(order: int) -> None:
    places = np.array([0, 1, 1.5, 4, 4.5])
    for dtype in ("float64", "float32", "int16", "complex128"):
        sample = numbers((5, 4), dtype)
        agree(our, "gradient", sample, edge_order=order)
        agree(our, "gradient", sample, 2.0, edge_order=order)
        agree(our, "gradient", sample, 2, 0.5, edge_order=order)
        agree(our, "gradient", sample, places, 0.5, edge_order=order)
        agree(our, "gradient", sample, places, axis=0, edge_order=order)
        agree(our, "gradient", sample, np.arange(4.0), axis=-1, edge_order=order)
        agree(our, "gradient", sample, axis=(1, 0), edge_order=order)
    agree(our, "gradient", numbers((2,)), edge_order=order)
    agree(our, "gradient", numbers((1,)), edge_order=order)
    agree(our, "gradient", numbers((5,)), places[:4], edge_order=order)
    agree(our, "gradient", numbers((5, 4)), places, edge_order=order)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_any_reduction(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 4), max_size=4)))
    axes = data.draw(st.one_of(st.none(), st.lists(st.integers(-len(shape), max(len(shape) - 1, 0)), max_size=3)))
    axis = None if axes is None or not shape else tuple(axes)
    name = data.draw(st.sampled_from(TOTALS))
    dtype = data.draw(st.sampled_from(["int8", "uint16", "float64", "complex128", "bool"]))
    agree(our, name, numbers(shape, dtype), axis=axis, keepdims=data.draw(st.booleans()), tolerance=1e-11)
