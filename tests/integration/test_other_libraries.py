"""Other people's code runs unchanged on an Array: SciPy and scikit-learn, with their own array-API switches on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.cluster.vq
import scipy.fft
import scipy.integrate
import scipy.ndimage
import scipy.signal
import scipy.special
import scipy.stats
import sklearn
from sklearn import decomposition, linear_model, metrics, preprocessing

import anygpu as ag

RNG = np.random.default_rng(0)
A, B = RNG.normal(size=(41, 5)), RNG.normal(size=(41, 5))
P = RNG.uniform(0.1, 1, size=(41, 5))
Y = RNG.normal(size=41)
TRUTH, GUESS = RNG.integers(0, 3, 41), RNG.integers(0, 3, 41)

SCIPY: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "fft.fft": (scipy.fft.fft, (A,)),
    "fft.rfft": (scipy.fft.rfft, (A,)),
    "special.logsumexp": (scipy.special.logsumexp, (A,)),
    "special.softmax": (lambda x: scipy.special.softmax(x, axis=1), (A,)),
    "special.erf": (scipy.special.erf, (A,)),
    "integrate.trapezoid": (scipy.integrate.trapezoid, (A,)),
    "integrate.cumulative_trapezoid": (scipy.integrate.cumulative_trapezoid, (A,)),
    "stats.zscore": (scipy.stats.zscore, (A,)),
    "stats.skew": (scipy.stats.skew, (A,)),
    "stats.kurtosis": (scipy.stats.kurtosis, (A,)),
    "stats.gmean": (scipy.stats.gmean, (P,)),
    "stats.entropy": (scipy.stats.entropy, (P,)),
    "stats.pearsonr": (lambda x, y: scipy.stats.pearsonr(x, y).statistic, (A[:, 0], B[:, 0])),
    "stats.ttest_ind": (lambda x, y: scipy.stats.ttest_ind(x, y).statistic, (A, B)),
    "cluster.whiten": (scipy.cluster.vq.whiten, (A,)),
    "cluster.vq": (scipy.cluster.vq.vq, (A, A[:4].copy())),
    "signal.detrend": (scipy.signal.detrend, (A,)),
    "signal.hilbert": (scipy.signal.hilbert, (A,)),
    "signal.fftconvolve": (scipy.signal.fftconvolve, (A[:, 0], B[:7, 0])),
    "ndimage.gaussian_filter": (lambda x: scipy.ndimage.gaussian_filter(x, 1.0), (A,)),
}


def fitted(estimator: Any, attribute: str) -> Callable[..., Any]:
    return lambda *data: getattr(sklearn.clone(estimator).fit(*data), attribute)


def transformed(estimator: Any) -> Callable[..., Any]:
    return lambda x: sklearn.clone(estimator).fit_transform(x)


SKLEARN: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "accuracy_score": (metrics.accuracy_score, (TRUTH, GUESS)),
    "mean_squared_error": (metrics.mean_squared_error, (Y, Y[::-1].copy())),
    "r2_score": (metrics.r2_score, (Y, Y[::-1].copy())),
    "confusion_matrix": (metrics.confusion_matrix, (TRUTH, GUESS)),
    "cosine_similarity": (metrics.pairwise.cosine_similarity, (A, B)),
    "euclidean_distances": (metrics.pairwise.euclidean_distances, (A, B)),
    "rbf_kernel": (metrics.pairwise.rbf_kernel, (A, B)),
    "MinMaxScaler": (transformed(preprocessing.MinMaxScaler()), (A,)),
    "StandardScaler": (transformed(preprocessing.StandardScaler()), (A,)),
    "Normalizer": (transformed(preprocessing.Normalizer()), (A,)),
    "PolynomialFeatures": (transformed(preprocessing.PolynomialFeatures()), (A,)),
    "PCA": (fitted(decomposition.PCA(2, svd_solver="full"), "explained_variance_"), (A,)),
    "Ridge": (fitted(linear_model.Ridge(solver="svd"), "coef_"), (A, Y)),
}


@pytest.fixture(autouse=True)
def array_api_switch() -> Iterator[None]:
    with sklearn.config_context(array_api_dispatch=True):
        yield


def parts(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple) else [result]


def check(function: Callable[..., Any], inputs: tuple[Any, ...], device: str) -> list[Any]:
    expected = parts(function(*inputs))
    with ag.observe.host_operations() as told:
        got = parts(function(*(ag.asarray(x, device=device) for x in inputs)))
    assert told == [], "nothing of it ran on the host"
    for one, other in zip(expected, got, strict=True):
        assert np.allclose(np.asarray(one), np.asarray(other), equal_nan=True)
    return got


@pytest.mark.parametrize("device", ["numpy", "cpu", "torch"])
@pytest.mark.parametrize("name", SCIPY)
def test_scipy(name: str, device: str) -> None:
    got = check(*SCIPY[name], device)
    assert all(isinstance(each, ag.Array) for each in got)


@pytest.mark.parametrize("device", ["numpy", "cpu", "torch"])
@pytest.mark.parametrize("name", SKLEARN)
def test_scikit_learn(name: str, device: str) -> None:
    check(*SKLEARN[name], device)
