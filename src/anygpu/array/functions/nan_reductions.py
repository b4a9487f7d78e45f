"""Reductions that leave NaN out. Where nothing is left, the answer is what NumPy gives, without its warning."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from anygpu.array.core.arguments import arrays, checked_index, deliver
from anygpu.array.core.array import Array
from anygpu.array.core.expression import Value
from anygpu.array.core.methods import Axis
from anygpu.array.core.overrides import implements
from anygpu.array.core.recording import binary, cast, compare, constant, normal_axes, unary, where
from anygpu.array.functions import reductions
from anygpu.array.functions.reductions import reduced
from anygpu.program.dtypes import is_inexact


def _without(a: Any, instead: float) -> tuple[Array, Array, Value | None]:
    """The array with another number for each NaN, the array itself, and where NaN was; nowhere for integers."""
    (array,) = arrays(a)
    value = array._value
    if not is_inexact(value.spec.dtype):
        return array, array, None
    missing = unary("isnan", value)
    return Array(where(missing, constant(instead, value.spec.dtype), value)), array, missing


@implements(np.nansum)
def nansum(
    a: Any,
    axis: Axis = None,
    dtype: npt.DTypeLike | None = None,
    out: Any = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = True,
) -> Any:
    """The sum along axes, with NaN counted as 0."""
    return reductions.sum(_without(a, 0)[0], axis, dtype, out, keepdims, initial, where)


@implements(np.nanprod)
def nanprod(
    a: Any,
    axis: Axis = None,
    dtype: npt.DTypeLike | None = None,
    out: Any = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = True,
) -> Any:
    """The product along axes, with NaN counted as 1."""
    return reductions.prod(_without(a, 1)[0], axis, dtype, out, keepdims, initial, where)


@implements(np.nancumsum)
def nancumsum(a: Any, axis: int | None = None, dtype: npt.DTypeLike | None = None, out: Any = None) -> Any:
    return reductions.cumsum(_without(a, 0)[0], axis, dtype, out)


@implements(np.nancumprod)
def nancumprod(a: Any, axis: int | None = None, dtype: npt.DTypeLike | None = None, out: Any = None) -> Any:
    return reductions.cumprod(_without(a, 1)[0], axis, dtype, out)


@implements(np.nanmax)
def nanmax(
    a: Any, axis: Axis = None, out: Any = None, keepdims: bool = False, initial: Any = None, where: Any = True
) -> Any:
    """The largest element that is not NaN; NaN where there is none."""
    return _extreme("max", a, axis, out, keepdims, initial, where)


@implements(np.nanmin)
def nanmin(
    a: Any, axis: Axis = None, out: Any = None, keepdims: bool = False, initial: Any = None, where: Any = True
) -> Any:
    """The smallest element that is not NaN; NaN where there is none."""
    return _extreme("min", a, axis, out, keepdims, initial, where)


def _extreme(fn: Literal["max", "min"], a: Any, axis: Axis, out: Any, keepdims: bool, initial: Any, mask: Any) -> Any:
    """The largest or smallest element along axes, NaN left out; NaN where there is nothing else.

    NaN is replaced by the infinity that loses every comparison; rows of NaN alone are found separately.
    """
    choose = reductions.max if fn == "max" else reductions.min
    filled, array, missing = _without(a, float("-inf") if fn == "max" else float("inf"))
    result: Array = choose(filled, axis, keepdims=keepdims, initial=initial, where=mask)
    if missing is not None and initial is None:
        nothing = reduced("all", missing, normal_axes(axis, array.ndim), keepdims)
        result = Array(where(nothing, constant(float("nan"), result._value.spec.dtype), result._value))
    return deliver(result, out)


@implements(np.nanargmax)
def nanargmax(a: Any, axis: int | None = None, out: Any = None, *, keepdims: bool = False) -> Any:
    """Where the largest element is that is not NaN. Where all are NaN, it fails with an IndexError when it runs."""
    return _argument("argmax", a, axis, out, keepdims)


@implements(np.nanargmin)
def nanargmin(a: Any, axis: int | None = None, out: Any = None, *, keepdims: bool = False) -> Any:
    """Where the smallest element is that is not NaN. Where all are NaN, it fails with an IndexError when it runs."""
    return _argument("argmin", a, axis, out, keepdims)


def _argument(fn: Literal["argmax", "argmin"], a: Any, axis: int | None, out: Any, keepdims: bool) -> Any:
    """The position of the largest or smallest element, NaN left out; a row of NaN alone is an error when it runs."""
    choose = reductions.argmax if fn == "argmax" else reductions.argmin
    filled, array, missing = _without(a, float("-inf") if fn == "argmax" else float("inf"))
    result: Array = choose(filled, axis, keepdims=keepdims)
    if missing is None:
        return deliver(result, out)
    length = array.size if axis is None or array.ndim == 0 else array.shape[axis]
    nothing = reduced("all", missing, normal_axes(axis, array.ndim) if array.ndim else (), keepdims)
    return deliver(Array(checked_index(where(nothing, length, result._value), length)), out)


@implements(np.nanmean)
def nanmean(
    a: Any,
    axis: Axis = None,
    dtype: npt.DTypeLike | None = None,
    out: Any = None,
    keepdims: bool = False,
    *,
    where: Any = True,
) -> Any:
    """The mean of what is not NaN."""
    (array,) = arrays(a)
    return reductions.mean(array, axis, dtype, out, keepdims, where=_there(array, where))


@implements(np.nanvar)
def nanvar(
    a: Any,
    axis: Axis = None,
    dtype: npt.DTypeLike | None = None,
    out: Any = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    where: Any = True,
    mean: Any = None,
    correction: float | None = None,
) -> Any:
    """The variance of what is not NaN; NaN where too little is left."""
    return deliver(Array(_variance(a, axis, dtype, ddof, keepdims, where, mean, correction)), out)


@implements(np.nanstd)
def nanstd(
    a: Any,
    axis: Axis = None,
    dtype: npt.DTypeLike | None = None,
    out: Any = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    where: Any = True,
    mean: Any = None,
    correction: float | None = None,
) -> Any:
    """The standard deviation of what is not NaN; NaN where too little is left."""
    variance = _variance(a, axis, dtype, ddof, keepdims, where, mean, correction)
    return deliver(Array(unary("sqrt", variance)), out)


def _there(array: Array, mask: Any) -> Any:
    """The mask of elements that count: those that are not NaN and for which `mask` holds."""
    if not is_inexact(array._value.spec.dtype):
        return mask
    present = unary("invert", unary("isnan", array._value))
    if mask is True:
        return Array(present)
    return Array(binary("bitwise_and", present, cast(arrays(array, mask)[1]._value, "bool")))


def _variance(
    a: Any,
    axis: Axis,
    dtype: npt.DTypeLike | None,
    ddof: float,
    keepdims: bool,
    mask: Any,
    mean: Any,
    correction: float | None,
) -> Value:
    """The variance along axes without NaN; NaN where no more than `ddof` elements are left.

    `correction` is the Array API's name of `ddof`. Without NaN in the type this is `var`.
    """
    (array,) = arrays(a)
    present = _there(array, mask)
    variance: Array = reductions.var(
        array, axis, dtype, None, ddof, keepdims, where=present, mean=mean, correction=correction
    )
    if present is True:
        return variance._value
    # NumPy divides by the degrees of freedom even when they are negative, and then returns NaN.
    count: Array = reductions.sum(present, axis, keepdims=keepdims)
    enough = compare("greater", count._value, ddof if correction is None else correction)
    return where(enough, variance._value, constant(float("nan"), variance._value.spec.dtype))
