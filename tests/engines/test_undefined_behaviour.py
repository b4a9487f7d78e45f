"""What languages and compilers leave undefined, or take liberties with: kernels give NumPy's values all the same.

Constants that compilers fold into undefined behaviour, algebra that is only true of real numbers, integers that
overflow, and shifts by more than a word.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anygpu as ag

ENGINES = ("webgpu", "opencl")
Values = Any


def numbers(dtype: str) -> tuple[Values, Values]:
    """Special numbers in every pair."""
    info = np.finfo(dtype)
    ordinary = [0.0, -0.0, 1.0, -1.0, 0.5, 3.0, -7.25, 1e8, 1e20, -1e20, 1e-20]
    special = [info.max, -info.max, info.max / 3, info.tiny, -info.tiny, np.inf, -np.inf, np.nan]
    each = np.array([*ordinary, *special], dtype)
    first, second = np.meshgrid(each, each)
    return first.ravel(), second.ravel()


def assert_as_numpy(function: Callable[..., Any], *arguments: Values, on: str) -> None:
    with np.errstate(all="ignore"):
        wanted = np.asarray(function(*arguments))
        got = np.asarray(ag.run(function, *arguments, on=on, fallback="raise").value)
    assert got.dtype == wanted.dtype
    if wanted.dtype.kind != "f":
        np.testing.assert_array_equal(got, wanted)
        return
    info = np.finfo(wanted.dtype)
    # Below the smallest normal number some devices have only 0.
    np.testing.assert_allclose(got, wanted, rtol=32 * float(info.eps), atol=float(info.tiny))
    told = (wanted == 0) | (np.abs(wanted) > info.tiny)
    np.testing.assert_array_equal(np.signbit(got[told]), np.signbit(wanted[told]))


#: Compilers know what becomes of these, or that their language does not say it.
CONSTANTS: dict[str, Callable[[Any], Any]] = {
    "x / 0": lambda x: x / 0.0,
    "x / -0": lambda x: x / -0.0,
    "0 / x": lambda x: 0.0 / x,
    "x // 0": lambda x: x // 0.0,
    "x % 0": lambda x: x % 0.0,
    "x % inf": lambda x: np.remainder(x, np.inf),
    "x * nan": lambda x: x * np.nan,
    "x // nan": lambda x: x // np.nan,
    "floor(x * nan)": lambda x: np.floor(x * np.nan),
    "rint(x * nan)": lambda x: np.rint(x * np.nan),
    "trunc(x + inf)": lambda x: np.trunc(x + np.inf),
    "rint(max(x, 1e30))": lambda x: np.rint(np.maximum(x, 1e30)),
    "x * inf": lambda x: x * np.inf,
    "x / subnormal": lambda x: x / x.dtype.type(np.finfo(x.dtype).tiny / 8),
    "x / largest": lambda x: x / np.finfo(x.dtype).max,
    "x * largest": lambda x: x * np.finfo(x.dtype).max,
    "x == nan": lambda x: x == np.nan,
    "x != nan": lambda x: x != np.nan,
    "x < inf": lambda x: x < np.inf,
    "maximum(x, nan)": lambda x: np.maximum(x, np.nan),
    "minimum(x, -inf)": lambda x: np.minimum(x, -np.inf),
    "arctanh(x * 0 + 1)": lambda x: np.arctanh(x * 0 + 1),
    "log(x * 0)": lambda x: np.log(x * 0),
    "variance of one": lambda x: ((x[:1] - x[:1].mean()) ** 2).sum() / (x[:1] * 0).sum() + x,
    "where(x > 2, nan, 0)": lambda x: np.where(x > 2, np.nan, 0.0),
}


@pytest.mark.filterwarnings("ignore:Degrees of freedom:RuntimeWarning")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CONSTANTS)
@pytest.mark.sampled(gate=15, full=3)
def test_constants_that_compilers_fold(engine: str, dtype: str, name: str) -> None:
    assert_as_numpy(CONSTANTS[name], numbers(dtype)[0][:19], on=engine)


#: True of real numbers, and not of these.
ALGEBRA: dict[str, Callable[[Any, Any], Any]] = {
    "(x + y) - x": lambda x, y: (x + y) - x,
    "(x + 1e8) - 1e8": lambda x, y: (x + 1e8) - 1e8,
    "x + x - x": lambda x, y: x + x - x,
    "x * y + x * -y": lambda x, y: x * y + x * -y,
    "x * (1 - y) + x * y": lambda x, y: x * (1 - y) + x * y,
    "x * 1e30 * 1e30": lambda x, y: x * 1e30 * 1e30,
    "x * 1e30 * 1e-30": lambda x, y: x * 1e30 * 1e-30,
    "x / y * y": lambda x, y: x / y * y,
    "x * (1 / x)": lambda x, y: x * (1 / x),
    "1 / (1 / x)": lambda x, y: 1 / (1 / x),
    "x / x": lambda x, y: x / x,
    "x - floor(x)": lambda x, y: x - np.floor(x),
    "sqrt(x * x)": lambda x, y: np.sqrt(x * x),
    "sqrt(x) ** 2": lambda x, y: np.sqrt(x) ** 2,
    "sqrt(x) * sqrt(x)": lambda x, y: np.sqrt(x) * np.sqrt(x),
    "exp(log(x))": lambda x, y: np.exp2(np.log2(np.minimum(x, 1e20))),
    "log1p(y - 1)": lambda x, y: np.log1p(y - 1),
    "arccosh(x + 1)": lambda x, y: np.arccosh(x + 1),
    "x + 1 == x": lambda x, y: x + 1 == x,
    "x + 1 < 1": lambda x, y: x + 1 < 1,
    "x + y == 0": lambda x, y: x + y == 0,
    "x - y > 0": lambda x, y: x - y > 0,
    "x * x >= 0": lambda x, y: x * x >= 0,
    "not x < y": lambda x, y: ~(x < y),
    "x <= y or y <= x": lambda x, y: (x <= y) | (y <= x),
    "x < y or x < 1": lambda x, y: (x < y) | (x < 1),
    "x == x": lambda x, y: x == x,
    "x < 0 ? -x : x": lambda x, y: np.where(x < 0, -x, x),
    "x == 0 ? 0 : x": lambda x, y: np.where(x == 0, 0, x),
    "maximum(x, -x)": lambda x, y: np.maximum(x, -x),
    "clip(x, 0, 1)": lambda x, y: np.clip(x, 0, 1),
    "minimum(maximum(x, 0), 1)": lambda x, y: np.minimum(np.maximum(x, 0), 1),
    "-(x - y)": lambda x, y: -(x - y),
    "hypot(x + y, x - y)": lambda x, y: np.hypot(x + y, x - y),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ALGEBRA)
@pytest.mark.sampled(gate=15, full=3)
def test_algebra_of_real_numbers_is_not_done(engine: str, dtype: str, name: str) -> None:
    assert_as_numpy(ALGEBRA[name], *numbers(dtype), on=engine)


#: What C leaves undefined when it overflows.
INTEGERS: dict[str, Callable[[Any], Any]] = {
    "(x * 3) // 3": lambda x: (x * 3) // 3,
    "(x + x) // 2": lambda x: (x + x) // 2,
    "x + 1 > x": lambda x: x + 1 > x,
    "x - 1 < x": lambda x: x - 1 < x,
    "x * x >= 0": lambda x: x * x >= 0,
    "-x <= 0 where x >= 0": lambda x: (-x <= 0) == (x >= 0),
    "abs(x) >= 0": lambda x: np.abs(x) >= 0,
    "maximum(x + 5, x)": lambda x: np.maximum(x + 5, x),
    "x - x.min() >= 0": lambda x: x - x.min() >= 0,
    "x ** 3": lambda x: x**3,
    "x // 0": lambda x: x // 0,
    "x // -1": lambda x: x // -1,
    "x % 0": lambda x: x % 0,
    "x % -1": lambda x: x % -1,
    "x << 1 >> 1": lambda x: x << 1 >> 1,
    "x << width": lambda x: x << x.dtype.type(8 * x.dtype.itemsize),
    "x >> width": lambda x: x >> x.dtype.type(8 * x.dtype.itemsize),
    "x >> x": lambda x: x >> x,
    "sum": lambda x: x.sum(dtype=x.dtype) > x.max(),
    "cumsum": lambda x: np.cumsum(x, dtype=x.dtype),
    "prod": lambda x: x.prod(dtype=x.dtype),
    "dot": lambda x: np.outer(x, x) @ x,
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.sampled(gate=15, full=3)
def test_integers_wrap(engine: str, dtype: str, name: str) -> None:
    info = np.iinfo(dtype)
    few = [5, 1, 0, info.max, info.min, info.max // 2 + 7, info.min // 2 - 1, 100, 3]
    assert_as_numpy(INTEGERS[name], np.array(few * 5, dtype), on=engine)


@pytest.mark.sampled(gate=5)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("function", [np.sin, np.cos, np.tan])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_angles_of_every_size(engine: str, function: Any, dtype: str) -> None:
    angles = np.geomspace(1e-3, float(np.finfo(dtype).max) / 2, 501).astype(dtype)
    angles = np.concatenate([angles, -angles, [0.0, np.inf, np.nan, np.pi, 1e8, 1e9, 3e9]]).astype(dtype)
    with np.errstate(invalid="ignore"):
        wanted = function(angles)
        got = ag.run(function, angles, on=engine, fallback="raise").value
    eps = 32 * float(np.finfo(dtype).eps)
    np.testing.assert_allclose(got, wanted, rtol=eps, atol=eps)
