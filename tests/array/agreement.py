"""The same call of a function of ours and of NumPy's: the same values, types and shapes, or the same kind of error."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy

from anygpu.array.core.array import Array
from anygpu.array.core.overrides import override
from anygpu.array.functions.creation import asarray

#: NumPy's own types do not know that its functions take other arrays.
np: Any = numpy


class _Overrides:
    """Our functions by NumPy's names, whichever module defines them."""

    def __getattr__(self, name: str) -> Any:
        return override(getattr(np if hasattr(np, name) else np.lib.stride_tricks, name))


our: Any = _Overrides()

KINDS = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
REALS = KINDS[:-2]
TOLERANCE = {"float16": 4e-3, "float32": 2e-6, "complex64": 2e-6, "float64": 1e-13, "complex128": 1e-13}


def numbers(shape: Any, dtype: str = "float64", seed: int = 0) -> Any:
    """Small numbers with repetitions; a fraction of what each type can hold."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype).kind
    if kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    if kind in "iu":
        return rng.integers(-5 if kind == "i" else 0, 9, shape).astype(dtype)
    values = np.round(rng.normal(size=shape) * 4, 1)
    if kind == "c":
        values = values + 1j * np.round(rng.normal(size=shape) * 4, 1)
    return np.asarray(values).astype(dtype)


def lazy(x: Any) -> Any:
    """NumPy's arrays as ours, in lists and tuples too."""
    if isinstance(x, np.ndarray):
        return asarray(x)
    if isinstance(x, tuple | list):
        return type(x)(lazy(each) for each in x)
    return x


def check(ours: Any, theirs: Any, what: object, tolerance: float | None = None) -> None:
    if isinstance(theirs, tuple | list):
        assert len(ours) == len(theirs), what
        for one, other in zip(ours, theirs, strict=True):
            check(one, other, what, tolerance)
        return
    assert isinstance(ours, Array), (what, ours)
    got, wanted = np.asarray(ours), np.asarray(theirs)
    assert got.shape == wanted.shape, (what, got.shape, wanted.shape)
    assert got.dtype == wanted.dtype, (what, got.dtype, wanted.dtype)
    if wanted.dtype.kind in "fc":
        allowed = TOLERANCE[wanted.dtype.name] if tolerance is None else tolerance
        np.testing.assert_allclose(got, wanted, rtol=allowed, atol=allowed, err_msg=str(what))
    else:
        np.testing.assert_array_equal(got, wanted, err_msg=str(what))


def _attempt(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except (TypeError, ValueError, IndexError, OverflowError, ZeroDivisionError) as error:
        return error


def _caught_as(error: Exception) -> tuple[type[Exception], ...]:
    """What somebody who handles NumPy's error would catch. Positions that are wrong may be found when it runs."""
    if isinstance(error, TypeError):
        return (TypeError, NotImplementedError)
    return (ValueError, IndexError) if isinstance(error, ValueError) else (type(error),)


def agree(
    module: ModuleType,
    name: str,
    *arguments: Any,
    tolerance: float | None = None,
    reference: Callable[..., Any] | None = None,
    **options: Any,
) -> None:
    """Our function gives what NumPy's gives, or fails when it fails, with an error that NumPy's handlers catch."""
    what = (name, [getattr(each, "shape", each) for each in arguments], options)
    function = getattr(module, name)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
        ours = _attempt(
            lambda: _computed(function(*map(lazy, arguments), **{key: lazy(each) for key, each in options.items()}))
        )
        warnings.simplefilter("ignore", RuntimeWarning)
        theirs = _attempt(lambda: (reference or getattr(np, name))(*arguments, **options))
    if isinstance(theirs, Exception):
        assert isinstance(ours, Exception), (what, "should fail with", theirs, "and gives", ours)
        assert isinstance(ours, _caught_as(theirs)), (what, repr(ours), repr(theirs))
        assert len(str(ours)) > 10
        return
    assert not isinstance(ours, Exception), (what, "fails with", repr(ours))
    check(ours, theirs, what, tolerance)


def _computed(result: Any) -> Any:
    if isinstance(result, Array):
        return result.compute()
    if isinstance(result, tuple | list):
        for each in result:
            _computed(each)
    return result
