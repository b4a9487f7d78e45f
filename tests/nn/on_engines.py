"""The same function on NumPy's arrays and on every engine's: NumPy's in, NumPy's out; ours in, ours out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

from anygpu.array.core.array import Array
from anygpu.array.functions.creation import asarray

#: NumPy's own types do not know that its functions take other arrays.
np: Any = numpy

ENGINES = ("numpy", "cpu", "torch", "jax", "webgpu", "opencl")


def numbers(*shape: int, seed: int = 0, dtype: str = "float32") -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def on(engine: str, x: Any) -> Any:
    """NumPy's arrays as an engine's; everything else as it is."""
    return asarray(x, device=engine) if isinstance(x, np.ndarray) else x


def agree(
    engine: str, function: Callable[..., Any], *arguments: Any, wanted: Any = None, tolerance: float = 2e-6, **more: Any
) -> Any:
    """The function gives on the engine what it gives on NumPy's arrays, and both what is wanted. Returns that."""
    plain = function(*arguments, **more)
    ours = function(
        *(on(engine, each) for each in arguments), **{name: on(engine, each) for name, each in more.items()}
    )
    results = zip(*(each if isinstance(each, tuple) else (each,) for each in (plain, ours)), strict=True)
    for by_numpy, by_engine in results:
        assert isinstance(by_numpy, np.ndarray | np.generic), type(by_numpy)
        assert isinstance(by_engine, Array), type(by_engine)
        close(by_engine, by_numpy, tolerance)
    if wanted is not None:
        close(plain, wanted, tolerance)
    return plain


def close(got: Any, wanted: Any, tolerance: float) -> None:
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    if got.dtype.kind == "f":
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(got, wanted)
