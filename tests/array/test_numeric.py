"""NumPy's functions beside its ufuncs: numbers, polynomials, comparisons and facts, each called through NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anygpu as ag

RNG = np.random.default_rng(0)
REAL = np.array([0.0, -0.5, 3.25, np.nan, np.inf, -np.inf, 1e-30])
COMPLEX = np.array([1 + 2j, -3 + 0j, 0j, complex(np.nan, 1), complex(np.inf, -np.inf)])
WALK = np.cumsum(RNG.uniform(-3, 3, size=(4, 30)), axis=1)

CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "angle": (np.angle, (COMPLEX[:4],)),
    "angle in degrees": (lambda x: np.angle(x, deg=True), (COMPLEX[:3],)),
    "angle of reals": (np.angle, (REAL[:3],)),
    "fix": (np.fix, (REAL,)),
    "sinc": (np.sinc, (REAL[:3],)),
    "sinc of integers": (np.sinc, (np.arange(-2, 3),)),
    "nan_to_num": (np.nan_to_num, (REAL,)),
    "nan_to_num in float32": (np.nan_to_num, (REAL.astype(np.float32),)),
    "nan_to_num with wishes": (lambda x: np.nan_to_num(x, nan=7.0, posinf=8.0, neginf=9.0), (REAL,)),
    "nan_to_num of complex numbers": (np.nan_to_num, (COMPLEX,)),
    "nan_to_num of integers": (np.nan_to_num, (np.arange(3),)),
    "isposinf": (np.isposinf, (REAL,)),
    "isneginf": (np.isneginf, (REAL,)),
    "isreal": (np.isreal, (COMPLEX,)),
    "iscomplex": (np.iscomplex, (COMPLEX,)),
    "isreal of reals": (np.isreal, (REAL,)),
    "real_if_close": (np.real_if_close, (np.array([2 + 1e-16j, 3]),)),
    "real_if_close stays complex": (np.real_if_close, (np.array([2 + 1e-3j, 3]),)),
    "unwrap": (np.unwrap, ((WALK + np.pi) % (2 * np.pi) - np.pi,)),
    "unwrap with a period": (lambda x: np.unwrap(x, period=4, axis=0), (WALK % 4,)),
    "unwrap of integers": (lambda x: np.unwrap(x, period=4), (np.array([0, 1, 2, 3, 0, 1]),)),
    "vdot": (np.vdot, (np.array([[1 + 2j, 3], [1j, 0]]), np.array([[2, 1j], [1, 5]]))),
    "polyval": (np.polyval, (np.array([3.0, 0, 1]), np.linspace(-2, 2, 7))),
    "polyadd": (np.polyadd, (np.array([1, 2]), np.array([9.0, 5, 4]))),
    "polysub": (np.polysub, (np.array([1, 2, 7]), np.array([5, 4]))),
    "polymul": (np.polymul, (np.array([1, 2, 3]), np.array([9, 5, 1]))),
    "polyder": (lambda p: np.polyder(p, 2), (np.array([1.0, 1, 1, 1]),)),
    "polyint": (lambda p: np.polyint(p, 2, k=[3, 4]), (np.array([1.0, 1, 1]),)),
    "polyfit": (lambda x, y: np.polyfit(x, y, 2), (np.linspace(0, 5, 20), np.linspace(0, 5, 20) ** 2 - 3)),
    "polyfit with weights": (
        lambda x, y: np.polyfit(x, y, 1, w=np.linspace(1, 2, 20)),
        (np.linspace(0, 5, 20), RNG.normal(size=20)),
    ),
    "isclose": (np.isclose, (np.array([1.0, 2, np.nan, np.inf, np.inf]), np.array([1 + 1e-7, 2.1, np.nan, np.inf, 1]))),
    "isclose with nan": (lambda x, y: np.isclose(x, y, equal_nan=True), (REAL, REAL)),
    "isclose of integers": (np.isclose, (np.array([10**10, 1]), np.array([10**10 + 1, 2]))),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:numpy.fix is deprecated:DeprecationWarning")
def test_as_numpy(name: str) -> None:
    function, inputs = CASES[name]
    with np.errstate(all="ignore"):
        expected = np.asarray(function(*inputs))
    with ag.observe.host_operations() as told:
        got = function(*(ag.asarray(each) for each in inputs))
    assert told == []
    assert isinstance(got, ag.Array)
    values = np.asarray(got)
    assert values.dtype == expected.dtype
    assert values.shape == expected.shape
    assert np.allclose(values, expected, rtol=1e-9, atol=1e-12, equal_nan=True)


ANSWERS: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (np.allclose, (REAL[:3], REAL[:3] + 1e-9)),
    (np.allclose, (REAL[:3], REAL[:3] + 1e-3)),
    (np.allclose, (REAL, REAL)),
    (lambda x, y: np.allclose(x, y, equal_nan=True), (REAL, REAL)),
    (np.array_equal, (REAL[:3], REAL[:3])),
    (np.array_equal, (REAL[:3], REAL[:2])),
    (np.array_equal, (REAL, REAL)),
    (lambda x, y: np.array_equal(x, y, equal_nan=True), (REAL, REAL)),
    (np.array_equiv, (np.array([1, 2]), np.array([[1, 2], [1, 2]]))),
    (np.array_equiv, (np.array([1, 2]), np.array([[1, 2, 3]]))),
    (lambda x: np.shape(x), (WALK,)),
    (lambda x: (np.ndim(x), np.size(x), np.size(x, 1)), (WALK,)),
    (lambda x: (np.isrealobj(x), np.iscomplexobj(x)), (COMPLEX,)),
    (lambda x: (np.isrealobj(x), np.iscomplexobj(x)), (REAL,)),
]


@pytest.mark.parametrize("number", range(len(ANSWERS)))
def test_questions_have_numpys_answers(number: int) -> None:
    function, inputs = ANSWERS[number]
    with np.errstate(all="ignore"):
        expected = function(*inputs)
    assert function(*(ag.asarray(each) for each in inputs)) == expected


def test_refusals_say_what_to_do() -> None:
    with pytest.raises(TypeError, match=r"x\.real and x\.imag"):
        np.isposinf(ag.asarray(COMPLEX))
    with pytest.raises(ValueError, match="polyint"):
        np.polyder(ag.asarray([1.0, 2.0]), -1)
    with pytest.raises(ValueError, match="polyder"):
        np.polyint(ag.asarray([1.0, 2.0]), -1)
    with pytest.raises(NotImplementedError, match="lstsq"):
        np.polyfit(ag.asarray([1.0, 2.0]), ag.asarray([1.0, 2.0]), 1, full=True)
    x = ag.asarray(np.array([np.nan, 1.0]))
    assert np.nan_to_num(x, copy=False) is x
    assert x.tolist() == [0.0, 1.0]
