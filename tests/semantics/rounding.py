"""How far the floats of a function may lie from NumPy's: what it gives where each operation is as wrong as it may be.

`Rounded` arrays are NumPy's, with a random error in every result that libraries round in different ways, as large as
[the tolerances](docs/reference/tolerances.md) allow. The function runs a few times with such arguments, and what its
results lie apart is what they may lie apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import numpy as np

from anygpu.agreement.elementwise import ErrorClass, tolerance_of
from anygpu.program.dtypes import KIND

#: Runs with other errors, and how many times as far as in any of these a result may lie.
RUNS, TIMES = 6, 4.0


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: What every engine computes to the last bit for real numbers; of complex ones only the first.
_EXACT = _words(
    "add subtract negative positive conjugate absolute fabs isnan isinf isfinite signbit copysign nextafter "
    "spacing minimum maximum fmin fmax floor ceil rint trunc sign heaviside equal not_equal less less_equal "
    "greater greater_equal logical_and logical_or logical_xor logical_not multiply divide sqrt square reciprocal "
    "floor_divide remainder fmod divmod modf frexp ldexp"
)
_EXACT_OF_COMPLEX = _EXACT - _words("multiply divide sqrt square reciprocal absolute floor_divide")
#: Functions that only move values, or make new ones of whole numbers.
_MOVE = _words(
    "reshape ravel transpose expand_dims squeeze flip roll concatenate stack vstack hstack tile repeat pad "
    "swapaxes rot90 diag tril triu broadcast_to moveaxis split atleast_1d atleast_2d column_stack meshgrid append "
    "insert where select choose compress extract take take_along_axis sort argsort partition argpartition unique "
    "searchsorted nonzero argwhere bincount digitize flatnonzero copyto put putmask place copy zeros_like "
    "ones_like full_like array_equal allclose isclose isin clip nan_to_num real imag conj round around max min "
    "amax amin any all argmax argmin ptp shape ndim size iscomplexobj isrealobj sliding_window_view diff ediff1d "
    "lexsort intersect1d count_nonzero fix isposinf isneginf piecewise"
)
#: Functions that call ufuncs, of which each has its own error.
_OF_UFUNCS = _words("mean var std sum prod cumsum cumprod average median nansum")
_PRODUCTS = _words("dot inner vdot outer tensordot einsum kron cross convolve correlate vecdot cov corrcoef polyval")


class Rounded(np.ndarray):
    """An array of which every result has an error."""

    errors: np.random.Generator = np.random.default_rng(0)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **keywords: Any) -> Any:
        kind: ErrorClass = "arithmetic" if ufunc.__name__ in _EXACT else "function"
        of_complex = any(np.asarray(each).dtype.kind == "c" for each in inputs)
        exact = ufunc.__name__ in (_EXACT_OF_COMPLEX if of_complex else _EXACT)
        given = [_plain(each) for each in inputs]
        if method in ("reduce", "accumulate", "reduceat"):
            if ufunc.__name__ in ("add", "multiply"):
                given[0] = _with_error(given[0], "sum", max(np.size(given[0]), 1))
            exact = True
        elif ufunc.signature is not None:  # products and linear algebra
            given = [_with_error(each, "sum", 4 * max(np.shape(each)[-1:] or (1,))) for each in given]
            return _each(getattr(ufunc, method)(*given, **keywords), lambda each: rounded(_any_zeros(each)))
        if out is not None:
            keywords["out"] = tuple(_plain(each) for each in out)
        keywords = {name: _plain(each) for name, each in keywords.items()}
        result = getattr(ufunc, method)(*given, **keywords)
        if out is not None:
            for each in keywords["out"]:
                if isinstance(each, np.ndarray) and not exact:
                    each[...] = _with_error(each, kind)
            return out if len(out) > 1 else out[0]
        if not exact:
            result = _each(result, lambda each: _with_error(each, kind))
        return _each(result, rounded)

    def __array_function__(self, function: Any, types: Any, arguments: Any, keywords: Any) -> Any:
        if function.__name__ in _MOVE or function.__name__ in _OF_UFUNCS:
            return _each(super().__array_function__(function, types, arguments, keywords), rounded)
        arguments, keywords = _deep(arguments, _wrong_input), _deep(keywords, _wrong_input)
        result = function(*arguments, **keywords)
        if function.__name__ in _PRODUCTS:
            result = _each(result, _any_zeros)
        # Whole numbers have no error, and what is computed of them has.
        return _each(result, lambda each: rounded(_with_error(each, "function")))

    def dot(self, other: Any, out: Any = None) -> Any:
        return np.dot(self, other) if out is None else np.dot(self, other, out)


def rounded(value: Any) -> Any:
    """The array as one whose results have errors, in the same memory; a float of NumPy's as an array without axes."""
    if isinstance(value, np.ndarray):
        return value.view(Rounded) if type(value) is np.ndarray and value.dtype.kind in "biufc" else value
    return np.asarray(value).view(Rounded) if isinstance(value, np.inexact) else value


def numpy_with_errors() -> ModuleType:
    """NumPy, where what makes arrays of arrays keeps their errors."""
    made = ModuleType("numpy")
    made.__dict__.update(np.__dict__)
    made.__dict__.update(
        array=lambda value, *more, **keywords: rounded(np.array(value, *more, **keywords)),
        asarray=lambda value, *more, **keywords: rounded(np.asarray(value, *more, **keywords)),
    )
    return made


def _any_zeros(value: Any) -> Any:
    """Sums of products, of which the order decides the signs of zeros, with other signs."""
    if not isinstance(value, np.ndarray | np.inexact) or value.dtype.kind not in "fc":
        return value
    parts = np.array(value, order="C", ndmin=1).view(np.finfo(value.dtype).dtype)
    parts[(parts == 0) & (Rounded.errors.random(parts.shape) < 0.5)] *= -1
    return parts.view(value.dtype).reshape(np.shape(value))


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, Rounded) else value


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    if type(value) in (tuple, list):
        return type(value)(_each(each, change) for each in value)
    return change(value)


def _deep(value: Any, change: Callable[[Any], Any]) -> Any:
    if type(value) in (tuple, list):
        return type(value)(_deep(each, change) for each in value)
    if type(value) is dict:
        return {name: _deep(each, change) for name, each in value.items()}
    return change(value)


def without_axes_as_numbers(value: Any) -> Any:
    """A result with NumPy's numbers in the places of arrays without axes."""
    return _deep(value, lambda each: each[()] if isinstance(each, Rounded) and not each.ndim else each)


def _wrong_input(value: Any) -> Any:
    return _with_error(_plain(value), "function") if isinstance(value, Rounded) else value


def _with_error(value: Any, kind: ErrorClass, times: float = 1.0) -> Any:
    """A copy that is wrong by as much as results of the class may be; anything but floats as it is."""
    if not isinstance(value, np.ndarray | np.inexact) or value.dtype.kind not in "fc":
        return value
    dtype = value.dtype
    name: Any = dtype.newbyteorder("=").name
    if name not in KIND:
        return value
    with np.errstate(all="ignore"):
        size = times * tolerance_of(kind, name)
        one = np.asarray(value).astype(np.complex128 if dtype.kind == "c" else np.float64)
        errors = Rounded.errors
        scale: Any = np.abs(one)
        scale = np.where(np.isfinite(scale), scale, 0)
        if dtype.kind == "c":
            one.real += size * scale * errors.uniform(-1, 1, one.shape)
            one.imag += size * scale * errors.uniform(-1, 1, one.shape)
        else:
            one = one + size * scale * errors.uniform(-1, 1, one.shape)
        return one.astype(dtype)


def arguments_with_errors(arguments: Iterable[Any], seed: int) -> list[Any]:
    """The arguments as arrays of which every result has an error."""
    Rounded.errors = np.random.default_rng(seed)
    return [rounded(each) for each in arguments]
