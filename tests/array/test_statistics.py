"""Quantiles, histograms, covariances and what leaves NaN out, against NumPy's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anygpu.array.functions.creation import asarray
from tests.array.agreement import KINDS, REALS, agree, check, np, numbers, our

METHODS = [
    *("linear", "lower", "higher", "nearest", "midpoint", "inverted_cdf", "averaged_inverted_cdf"),
    *("closest_observation", "interpolated_inverted_cdf", "hazen", "weibull", "median_unbiased", "normal_unbiased"),
]
AXES: list[Any] = [None, 0, -1, (0, 1), (0, 2), 5]


def with_gaps(shape: Any, dtype: str = "float64") -> Any:
    """Numbers with NaN among them, and one line of nothing else."""
    values = numbers(shape, dtype)
    values[np.random.default_rng(1).random(shape) < 0.4] = np.nan
    if values.ndim > 1:
        values[..., 0] = np.nan
    return values


# Quantiles


@pytest.mark.parametrize("shape", [(), (1,), (6,), (7,), (3, 4), (2, 3, 4), (0,), (0, 3), (3, 0)])
def test_median(shape: Any) -> None:
    for axis in AXES:
        for keepdims in (False, True):
            agree(our, "median", numbers(shape), axis=axis, keepdims=keepdims)
    for dtype in REALS:
        agree(our, "median", numbers(shape, dtype))


def test_median_of_something_that_is_not_a_number() -> None:
    agree(our, "median", with_gaps((5, 3)), axis=0)
    agree(our, "median", np.array([np.inf, -np.inf, 1, 2]))


@pytest.mark.parametrize("method", [*METHODS, "guess"])
@pytest.mark.parametrize("name", ["quantile", "nanquantile"])
def test_methods(name: str, method: str) -> None:
    for shape in ((7,), (8,), (1,), (3, 5)):
        for q in (0.3, 0.0, 1.0, 0.5, np.array([0.1, 0.25, 0.9]), [[0.2, 0.4]], 1, 0):
            for axis in (None, -1):
                agree(our, name, numbers(shape), q, axis=axis, method=method)
    agree(our, name, numbers((4, 5), "int16"), 0.4, axis=0, method=method)


@pytest.mark.parametrize("dtype", KINDS)
def test_types_of_quantiles(dtype: str) -> None:
    for q in (0.3, np.float32(0.3), np.array([0.1, 0.7]), np.array([0.1, 0.7], "float32"), 1):
        agree(our, "quantile", numbers((5, 3), dtype), q, axis=0)
        agree(our, "percentile", numbers((5, 3), dtype), q * 100, axis=0)
        agree(our, "quantile", numbers((5, 3), dtype), q, method="higher")


@pytest.mark.parametrize("name", ["percentile", "nanpercentile"])
def test_percentiles(name: str) -> None:
    for axis in AXES:
        for keepdims in (False, True):
            agree(our, name, numbers((2, 3, 4)), [10, 55], axis=axis, keepdims=keepdims)
            agree(our, name, numbers((2, 3, 4)), 30, axis=axis, keepdims=keepdims)
    agree(our, name, numbers((4,)), 101)
    agree(our, name, numbers((4,)), [-1, 3])
    agree(our, name, np.array([np.inf, 1, -np.inf, 2]), 40)


def test_quantiles_with_gaps() -> None:
    sample = with_gaps((6, 4))
    for axis in (None, 0, 1):
        agree(our, "quantile", sample, [0.2, 0.5], axis=axis)
        agree(our, "nanmedian", sample, axis=axis)
        agree(our, "nanmedian", sample, axis=axis, keepdims=True)
        for method in METHODS:
            agree(our, "nanquantile", sample, [0.2, 0.5, 1], axis=axis, method=method)
            agree(our, "nanpercentile", sample, 35, axis=axis, method=method, keepdims=True)
    agree(our, "nanquantile", with_gaps((6, 4), "float32"), 0.3, axis=0)


def test_quantiles_with_weights() -> None:
    sample, weights = numbers((6, 4)), np.abs(numbers((6, 4), seed=4))
    weights[0] = 0
    for q in (0.0, 0.4, 1.0, [0.1, 0.8]):
        agree(our, "quantile", sample, q, axis=0, weights=weights, method="inverted_cdf")
        agree(our, "quantile", sample, q, weights=weights, method="inverted_cdf")
        agree(our, "percentile", sample, q, axis=1, weights=np.array([1, 0, 2, 3]), method="inverted_cdf")
    agree(our, "quantile", sample, 0.5, weights=weights)
    agree(our, "quantile", sample, 0.5, weights=(-weights).tolist(), method="inverted_cdf")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=12),
    st.lists(st.floats(0, 1), min_size=1, max_size=4),
    st.sampled_from(METHODS),
)
def test_any_quantile(values: list[float], q: list[float], method: str) -> None:
    agree(our, "quantile", np.array(values), np.array(q), method=method, tolerance=1e-10)


# NaN left out


@pytest.mark.parametrize("name", ["nansum", "nanprod", "nanmax", "nanmin", "nanmean", "nanstd", "nanvar"])
def test_reductions_with_gaps(name: str) -> None:
    for axis in (None, 0, 1, (0, 1)):
        for keepdims in (False, True):
            agree(our, name, with_gaps((5, 4)), axis=axis, keepdims=keepdims)
    agree(our, name, with_gaps((5, 4), "float32"), axis=0)
    agree(our, name, numbers((5, 4), "int8"), axis=0)
    agree(our, name, numbers((5, 4), "bool"), axis=0)
    agree(our, name, numbers((0, 4)), axis=0)
    if name in ("nanstd", "nanvar"):
        for ddof in (1, 3):
            agree(our, name, with_gaps((5, 4)), axis=0, ddof=ddof)
    mask = numbers((5, 4), "bool")
    options: Any = {"initial": 1.5} if name in ("nanmax", "nanmin", "nansum") else {}
    agree(our, name, with_gaps((5, 4)), axis=0, where=mask, **options)


def test_running_totals_and_positions_with_gaps() -> None:
    sample = with_gaps((5, 4))
    for axis in (None, 0, 1):
        agree(our, "nancumsum", sample, axis=axis)
        agree(our, "nancumprod", sample, axis=axis)
    usable = np.where(np.isnan(sample).all(0), 1.0, sample)
    for name in ("nanargmax", "nanargmin"):
        for axis in (None, 0):
            agree(our, name, usable, axis=axis, keepdims=axis == 0)
        agree(our, name, numbers((3, 4), "int8"), axis=1)
        agree(our, name, np.array([np.nan, -np.inf, np.nan]))
        with pytest.raises(IndexError, match="out of bounds"):
            getattr(our, name)(asarray(sample), axis=0).compute()


# Weighted means and covariances


def test_average() -> None:
    sample = numbers((3, 4))
    weights = np.abs(numbers((3, 4), seed=2)) + 1
    for axis in (None, 0, 1, (0, 1), (1, 0)):
        agree(our, "average", sample, axis=axis)
        agree(our, "average", sample, axis=axis, weights=weights, returned=True)
        agree(our, "average", sample, axis=axis, weights=weights, keepdims=True)
    agree(our, "average", sample, axis=1, weights=np.array([1, 2, 3, 4]), returned=True)
    agree(our, "average", sample, axis=(1, 0), weights=weights.T)
    agree(our, "average", numbers((3, 4), "int8"), axis=0, weights=[1, 2, 3])
    agree(our, "average", numbers((3, 4), "float32"), weights=numbers((3, 4), "float32", 7))
    agree(our, "average", sample, weights=[1, 2, 3, 4])
    agree(our, "average", sample, axis=0, weights=[1, 2, 3, 4])
    agree(our, "average", sample, axis=0, weights=[0, 0, 0])


@pytest.mark.parametrize("rowvar", [True, False])
@pytest.mark.parametrize("dtype", ["float64", "float32", "int8", "complex128"])
def test_covariances(dtype: str, rowvar: bool) -> None:
    sample, other = numbers((4, 6), dtype), numbers((4, 6), dtype, 9)
    for name in ("cov", "corrcoef"):
        agree(our, name, sample, rowvar=rowvar)
        agree(our, name, sample, other, rowvar=rowvar)
        agree(our, name, sample[0], rowvar=rowvar)
        agree(our, name, sample[0], other[1], rowvar=rowvar)
    agree(our, "cov", sample, rowvar=rowvar, bias=True)
    agree(our, "cov", sample, rowvar=rowvar, ddof=2)
    agree(our, "cov", sample, rowvar=rowvar, dtype="complex128")
    count = 6 if rowvar else 4
    counts, strengths = np.arange(1, count + 1), np.linspace(0.5, 2, count)
    agree(our, "cov", sample, rowvar=rowvar, fweights=counts)
    agree(our, "cov", sample, rowvar=rowvar, aweights=strengths)
    agree(our, "cov", sample, rowvar=rowvar, fweights=counts, aweights=strengths)
    agree(our, "cov", sample, rowvar=rowvar, fweights=counts, aweights=strengths, ddof=0)


def test_covariances_of_little() -> None:
    agree(our, "cov", numbers((3, 1)))
    agree(our, "cov", numbers((0, 3)))
    agree(our, "cov", numbers((2, 2, 2)))


# Histograms


@pytest.mark.parametrize("dtype", KINDS[:-2])
def test_histograms_of_every_type(dtype: str) -> None:
    sample = numbers((40,), dtype)
    if dtype == "bool":
        sample = sample.astype("uint8")
    agree(our, "histogram", sample)
    agree(our, "histogram", sample, 5, (-2, 3))
    agree(our, "histogram", sample, np.array([-3, 0, 1, 1, 6]))


def test_histograms() -> None:
    sample = numbers((8, 5))
    for bins in (1, 7, [0, 1, 2.5], np.linspace(-3, 3, 9), "sturges", 0, [2, 1], [[1, 2]]):
        agree(our, "histogram", sample, bins)
        agree(our, "histogram", sample, bins, density=True)
        agree(our, "histogram_bin_edges", sample, bins)
    for limits in ((-1, 1), (0, 0), (1, -1), (0, np.inf)):
        agree(our, "histogram", sample, 6, limits)
    for weights in (numbers((8, 5), seed=5), numbers((8, 5), "int32", 5), numbers((8, 5), "complex128", 5), [1, 2]):
        agree(our, "histogram", sample, 4, weights=weights)
        agree(our, "histogram", sample, 4, (0, 2), weights=weights, density=True)
    agree(our, "histogram", np.array([]))
    agree(our, "histogram", np.array([3.0, 3.0]))
    agree(our, "histogram", np.array([1, np.nan, 2]), 4, (0, 3))


@pytest.mark.parametrize("kind", ["bool", "uint8", "int8", "int64", "float32", "float64", "complex64"])
def test_a_density_is_in_float64(kind: str) -> None:
    """Small integers do not wrap around in the sum of all weights, nor in several dimensions."""
    weights = (np.arange(300) % 90).astype(kind)
    for sample in (numbers((300,)), numbers((300,), "float32")):
        agree(our, "histogram", sample, 9, weights=weights, density=True)
        if kind != "bool":  # of which NumPy makes no differences
            agree(our, "histogram", sample, np.linspace(-2, 2, 9, dtype=np.float32), weights=weights, density=True)
    agree(our, "histogram", np.arange(9) % 2 == 0, np.array([False, True]), density=True)
    x, y, steps = numbers((300,)), numbers((300,), seed=8), np.linspace(-2, 2, 9, dtype=np.float32)
    for density in (False, True):
        agree(our, "histogram2d", x, y, [steps, 3], weights=weights, density=density)


def test_a_range_that_is_too_narrow_for_its_bins() -> None:
    near = np.full(9, 1.0)
    near[0] = np.nextafter(1, 2)
    agree(our, "histogram", near, 50, (1.0, near[0]))
    agree(our, "histogram_bin_edges", near.astype("float32"), 50, (1.0, 1.0 + 1e-6))
    agree(our, "histogram", near, 1)
    for sample, bins in ((near, 50), (np.array([1.0, np.nan]), 3), (np.array([1.0, np.inf]), 3)):
        counts, edges = our.histogram(asarray(sample), bins)
        assert not np.asarray(counts).any()
        assert np.isnan(np.asarray(edges)).all()


def test_given_edges_may_end_with_nan() -> None:
    agree(our, "histogram", np.arange(9.0), np.array([0, 3, 5, np.nan]))
    agree(our, "histogram2d", np.arange(9.0), np.arange(9.0), [np.array([0, 3, np.nan]), 4])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-50, 50), min_size=1, max_size=60), st.integers(1, 20))
def test_any_histogram(values: list[float], bins: int) -> None:
    agree(our, "histogram", np.array(values), bins)
    agree(our, "histogram", np.array(values, "float32"), bins, (-20, 20))


def test_histograms_of_several_coordinates() -> None:
    x, y = numbers((30,)), numbers((30,), seed=8)
    for bins in (4, (3, 5), [np.array([-9, 0, 9.0]), 3], np.array([-5, 0, 1, 5.0]), (1, 2, 3)):
        agree(our, "histogram2d", x, y, bins)
        agree(our, "histogram2d", x, y, bins, [[-3, 3], [-2, 2]], density=True)
    agree(our, "histogram2d", x, y, 4, weights=np.abs(x))
    agree(our, "histogramdd", numbers((20, 3)), (2, 3, 4))
    agree(our, "histogramdd", [x, y], 3)
    agree(our, "histogramdd", x, 3)


def test_counts_of_integers() -> None:
    agree(our, "bincount", np.zeros(0, int), np.zeros(0), 3)
    for dtype in ("int64", "uint8", "int8"):
        sample = np.abs(numbers((20,), dtype))
        agree(our, "bincount", sample)
        agree(our, "bincount", sample, minlength=30)
        agree(our, "bincount", sample, numbers((20,), seed=3))
        agree(our, "bincount", sample, numbers((20,), "float32", 3), 5)
    agree(our, "bincount", np.array([], "int64"))
    agree(our, "bincount", np.array([], "int64"), minlength=3)
    agree(our, "bincount", np.array([-1, 2]))
    agree(our, "bincount", np.array([1.5]))
    agree(our, "bincount", np.array([[1]]))
    agree(our, "bincount", np.array([1, 2]), minlength=-1)
    agree(our, "bincount", np.array([1, 2]), [1, 2, 3])


@pytest.mark.parametrize("right", [False, True])
def test_digitize(right: bool) -> None:
    sample = numbers((4, 5))
    for edges in ([-1, 0, 2.5], [3, 0.5, -2], [1, 1], [0], [1, 3, 2]):
        agree(our, "digitize", sample, edges, right)
        if edges != [1, 3, 2]:
            agree(our, "digitize", sample, np.array(edges), right)
    agree(our, "digitize", numbers((5,), "int8"), [1, 3], right)


def test_a_histogram_with_a_range_needs_no_values() -> None:
    counts, edges = our.histogram(asarray(numbers((9,))) * 2, 4, (0, 1))
    assert "not computed" in repr(counts)
    assert "not computed" in repr(edges)
    check(counts, np.histogram(numbers((9,)) * 2, 4, (0, 1))[0], "lazy")
