"""Reductions and running totals: sums, extremes, means. Result dtypes are NumPy's.

`reduced` records the primitive; the public functions add NumPy's rules for types, `where`, `initial`, `out` and
`keepdims`. Means and variances are sums over counts, and running totals are scans.
"""

from __future__ import annotations

import builtins
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from anygpu.array.core import recording
from anygpu.array.core.arguments import arrays, deliver, filled, line_or_axis, ndim, to_array
from anygpu.array.core.array import Array
from anygpu.array.core.expression import Value, active_tracer
from anygpu.array.core.methods import Axis
from anygpu.array.core.overrides import implements
from anygpu.array.core.recording import (
    apply,
    binary,
    broadcast,
    cast,
    dtype_name,
    normal_axes,
    normal_axis,
    reshape,
)
from anygpu.program.dtypes import REAL_PART, DType, is_inexact, promote
from anygpu.program.functions import BinaryFunction, ReduceFunction, ScanFunction
from anygpu.program.ops.along_axis import UnorderedReduce
from anygpu.program.primitives import Concatenate, Reduce, Scan, Shape, product

#: The operation between two elements that each reduction repeats.
_STEP: dict[str, BinaryFunction] = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum"}


def reduced(fn: ReduceFunction, value: Value, axes: tuple[int, ...], keepdims: bool, *, masked: bool = False) -> Value:
    """Return the reduction over sorted axes; over none, the value itself, to which a sum adds 0.

    With `masked` the order in which NumPy adds is unknown.
    """
    reduction = UnorderedReduce if masked else Reduce
    result = apply(reduction(fn, axes), value) if axes else value
    if fn == "sum" and not axes and is_inexact(value.spec.dtype):
        result = binary("add", value, recording.constant(0, value.spec.dtype))  # -0.0 becomes 0.0
    return reshape(result, kept_shape(value.spec.shape, axes)) if keepdims else result


def kept_shape(shape: Shape, axes: tuple[int, ...]) -> Shape:
    """The shape of a reduction that keeps its axes with length 1."""
    return tuple(1 if axis in axes else length for axis, length in enumerate(shape))


def _axes(axis: Axis, dimensions: int) -> tuple[int, ...]:
    """Sorted positions. As in NumPy's reductions, an array without axes lets axis 0 pass."""
    return () if dimensions == 0 and axis in (0, -1) else normal_axes(axis, dimensions)


def _line(array: Array, axis: int | None) -> tuple[Value, int]:
    """The value and its axis; without an axis, all elements in one line. An array without axes lets axis 0 pass."""
    if array.ndim == 0 and axis is not None:
        return reshape(array._value, (1,)), normal_axis(axis, 1)
    return line_or_axis(array, axis)


def _masked(value: Value, where: Any, otherwise: Value, array: Array) -> Value:
    """The value where the mask is true, and what does not count elsewhere."""
    if where is True:
        return value
    mask = cast(to_array(where, array._device)._value, "bool")
    return recording.where(broadcast(mask, value.spec.shape), value, otherwise)


def _as_scalar(initial: Any, dtype: DType, array: Array) -> Value:
    """The initial value of a reduction in its type."""
    if isinstance(initial, Array):
        return cast(initial._value, dtype)
    return (
        recording.literal(np.asarray(initial, dtype)) if ndim(initial) == 0 else to_array(initial, array._device)._value
    )


def _total(
    fn: Literal["sum", "prod"],
    a: Any,
    axis: Axis,
    dtype: npt.DTypeLike | None,
    out: Any,
    keepdims: bool,
    initial: Any,
    where: Any,
) -> Any:
    """The sum or product along axes, in NumPy's type for totals unless `dtype` says another one.

    Elements where the mask is false count as 0 or 1. With bool as the type adding is "or", and multiplying "and".
    """
    (array,) = arrays(a)
    value = array._value
    kind = recording.total_dtype(value.spec.dtype) if dtype is None else dtype_name(dtype)
    neutral = recording.constant(0 if fn == "sum" else 1, kind)
    value = _masked(cast(value, kind), where, neutral, array)
    axes = _axes(axis, array.ndim)
    if kind == "bool":  # asked for: adding is "or", and multiplying "and"
        result = reduced("any" if fn == "sum" else "all", value, axes, keepdims)
    else:
        result = reduced(fn, value, axes, keepdims, masked=where is not True)
    if initial is not None:
        result = binary(_STEP[fn], result, _as_scalar(initial, kind, array))
    return deliver(Array(result), out)


@implements(np.sum)
def sum(
    a: Any,
    axis: Axis = None,
    dtype: npt.DTypeLike | None = None,
    out: Any = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = True,
) -> Any:
    """The sum over axes, or over all of them."""
    return _total("sum", a, axis, dtype, out, keepdims, initial, where)


@implements(np.prod)
def prod(
    a: Any,
    axis: Axis = None,
    dtype: npt.DTypeLike | None = None,
    out: Any = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = True,
) -> Any:
    """The product over axes, or over all of them."""
    return _total("prod", a, axis, dtype, out, keepdims, initial, where)


def _extreme(fn: Literal["max", "min"], a: Any, axis: Axis, out: Any, keepdims: bool, initial: Any, where: Any) -> Any:
    """The largest or smallest element along axes.

    Raises `ValueError` where there is nothing to choose from, or where a mask is given without `initial`.
    """
    (array,) = arrays(a)
    value = array._value
    axes = _axes(axis, array.ndim)
    start = None if initial is None else _as_scalar(initial, value.spec.dtype, array)
    if where is not True:
        if start is None:
            raise ValueError(f"{fn}: with where=, say also what stands where nothing counts: initial=.")
        value = _masked(value, where, start, array)
    if builtins.any(array.shape[each] == 0 for each in axes):
        if start is None:
            raise ValueError(f"{fn}: there is nothing to choose from in the shape {array.shape}; give initial=.")
        shape = kept_shape(array.shape, axes)
        left = shape if keepdims else tuple(n for each, n in enumerate(shape) if each not in axes)
        return deliver(Array(broadcast(start, left)), out)
    result = reduced(fn, value, axes, keepdims)
    if start is not None:
        result = binary(_STEP[fn], result, start)
    return deliver(Array(result), out)


@implements(np.max, np.amax)
def max(
    a: Any, axis: Axis = None, out: Any = None, keepdims: bool = False, initial: Any = None, where: Any = True
) -> Any:
    """The largest element; NaN if there is one."""
    return _extreme("max", a, axis, out, keepdims, initial, where)


@implements(np.min, np.amin)
def min(
    a: Any, axis: Axis = None, out: Any = None, keepdims: bool = False, initial: Any = None, where: Any = True
) -> Any:
    """The smallest element; NaN if there is one."""
    return _extreme("min", a, axis, out, keepdims, initial, where)


amax = max
amin = min


@implements(np.ptp)
def ptp(a: Any, axis: Axis = None, out: Any = None, keepdims: bool = False) -> Any:
    """From the smallest element to the largest."""
    high, low = max(a, axis, keepdims=keepdims), min(a, axis, keepdims=keepdims)
    return deliver(high - low, out)


@implements(np.any)
def any(a: Any, axis: Axis = None, out: Any = None, keepdims: bool = False, *, where: Any = True) -> Any:
    """Whether one element at least is not 0."""
    return _truth("any", a, axis, out, keepdims, where)


@implements(np.all)
def all(a: Any, axis: Axis = None, out: Any = None, keepdims: bool = False, *, where: Any = True) -> Any:
    """Whether no element is 0."""
    return _truth("all", a, axis, out, keepdims, where)


def _truth(fn: Literal["any", "all"], a: Any, axis: Axis, out: Any, keepdims: bool, where: Any) -> Any:
    """Whether any or all elements along axes are true; masked ones count as neutral."""
    (array,) = arrays(a)
    value = _masked(cast(array._value, "bool"), where, recording.constant(fn == "all", "bool"), array)
    return deliver(Array(reduced(fn, value, _axes(axis, array.ndim), keepdims)), out)


@implements(np.count_nonzero)
def count_nonzero(a: Any, axis: Axis = None, *, keepdims: bool = False) -> Any:
    """How many elements are not 0."""
    (array,) = arrays(a)
    return sum(Array(cast(array._value, "bool")), axis, keepdims=keepdims)


@implements(np.argmax)
def argmax(a: Any, axis: int | None = None, out: Any = None, *, keepdims: bool = False) -> Any:
    """Where the largest element is; the first of several."""
    return _argument("argmax", a, axis, out, keepdims)


@implements(np.argmin)
def argmin(a: Any, axis: int | None = None, out: Any = None, *, keepdims: bool = False) -> Any:
    """Where the smallest element is; the first of several."""
    return _argument("argmin", a, axis, out, keepdims)


def _argument(fn: Literal["argmax", "argmin"], a: Any, axis: int | None, out: Any, keepdims: bool) -> Any:
    """The position of the largest or smallest element along an axis, or in the flattened array.

    Raises `ValueError` for an empty axis.
    """
    (array,) = arrays(a)
    value, position = _line(array, axis)
    if value.spec.shape[position] == 0:
        raise ValueError(f"{fn}: there is nothing to choose from in the shape {array.shape}.")
    gone = (position,) if array.ndim and axis is not None else tuple(range(array.ndim))
    kept = kept_shape(array.shape, gone)
    shape = kept if keepdims else tuple(n for each, n in enumerate(kept) if each not in gone)
    return deliver(Array(reshape(apply(Reduce(fn, (position,)), value), shape)), out)


# Means


def mean_dtypes(dtype: DType, wanted: npt.DTypeLike | None) -> tuple[DType, DType]:
    """In which type a mean is computed, and in which it is given."""
    if wanted is not None:
        result = dtype_name(wanted)
        return result, result
    if not is_inexact(dtype):
        return "float64", "float64"
    return ("float32" if dtype in ("float16", "bfloat16") else dtype), dtype


def _count(shape: Shape, axes: tuple[int, ...], where: Any, array: Array) -> int | Value:
    """How many elements each result is made of; its axes are kept when a mask decides."""
    if where is True:
        return product(tuple(shape[axis] for axis in axes))
    mask = broadcast(cast(to_array(where, array._device)._value, "bool"), shape)
    return reduced("sum", cast(mask, "int64"), axes, keepdims=True)


def _divided(total: Value, count: int | float | Value) -> Value:
    """Divide by a number that adapts to the dtype of the total.

    Totals that are not floats are divided in float64. float16 is divided in float32: a large count does not fit into
    it.
    """
    kind = total.spec.dtype
    if kind == "float16":
        total = cast(total, "float32")
    if isinstance(count, Value):
        count = cast(count, total.spec.dtype if is_inexact(total.spec.dtype) else "float64")
    elif count <= 0 and (tracer := active_tracer.get()) is not None:
        tracer.stop("it takes a mean of no elements, about which NumPy warns in all modes")
    return cast(binary("divide", total, count), kind)


@implements(np.mean)
def mean(
    a: Any,
    axis: Axis = None,
    dtype: npt.DTypeLike | None = None,
    out: Any = None,
    keepdims: bool = False,
    *,
    where: Any = True,
) -> Any:
    """The arithmetic mean."""
    (array,) = arrays(a)
    inner, outer = mean_dtypes(array._value.spec.dtype, dtype)
    axes = normal_axes(axis, array.ndim)
    value = cast(_mean(cast(array._value, inner), axes, where, array), outer)
    return deliver(Array(value if keepdims else drop(value, axes)), out)


def _mean(value: Value, axes: tuple[int, ...], where: Any, array: Array) -> Value:
    """With the axes kept."""
    counted = _masked(value, where, recording.constant(0, value.spec.dtype), array)
    total = reduced("sum", counted, axes, keepdims=True, masked=where is not True)
    return _divided(total, _count(value.spec.shape, axes, where, array))


def drop(value: Value, axes: tuple[int, ...]) -> Value:
    """Without axes that were kept with length 1."""
    return reshape(value, tuple(n for axis, n in enumerate(value.spec.shape) if axis not in axes))


@implements(np.var)
def var(
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
    """Return the mean square distance from the mean; `correction`, or `ddof`, is taken from the number of elements.

    Integers are computed in float64, float16 in float16, as in NumPy. `mean` is taken as given. The denominator is not
    below 0: with too few elements the result is NaN or infinite.
    """
    if correction is not None:
        if ddof != 0:
            raise ValueError("correction and ddof are two names of one thing: give one of them.")
        ddof = correction
    (array,) = arrays(a)
    _, outer = mean_dtypes(array._value.spec.dtype, dtype)
    inner = promote(outer, array._value.spec.dtype) if is_inexact(outer) else "float64"
    axes = normal_axes(axis, array.ndim)
    value = cast(array._value, inner)
    middle = _mean(value, axes, where, array) if mean is None else cast(to_array(mean, array._device)._value, inner)
    distance = binary("subtract", value, middle)
    squares = recording.squared_length(distance)
    counted = _masked(squares, where, recording.constant(0, squares.spec.dtype), array)
    total = reduced("sum", counted, axes, keepdims=True, masked=where is not True)
    count = _count(array.shape, axes, where, array)
    if isinstance(count, Value):
        freedom: int | float | Value = recording.where(
            binary("greater", count, ddof), binary("subtract", count, ddof), 0
        )
    else:
        freedom = builtins.max(count - ddof, 0)
    result = _divided(total, freedom)
    result = cast(result, REAL_PART.get(outer, outer))
    return deliver(Array(result if keepdims else drop(result, axes)), out)


@implements(np.std)
def std(
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
    """The standard deviation: the square root of `var`."""
    variance = var(a, axis, dtype, None, ddof, keepdims, where=where, mean=mean, correction=correction)
    return deliver(Array(recording.unary_float("sqrt", variance._value)), out)


# Running totals


@implements(np.cumsum)
def cumsum(a: Any, axis: int | None = None, dtype: npt.DTypeLike | None = None, out: Any = None) -> Any:
    """The sum of everything up to each element; of all elements in one row without an axis."""
    return _running("sum", a, axis, dtype, out)


@implements(np.cumprod)
def cumprod(a: Any, axis: int | None = None, dtype: npt.DTypeLike | None = None, out: Any = None) -> Any:
    """The product of everything up to each element; of all elements in one row without an axis."""
    return _running("prod", a, axis, dtype, out)


def _running(fn: Literal["sum", "prod"], a: Any, axis: int | None, dtype: npt.DTypeLike | None, out: Any) -> Any:
    """Running sums or products along an axis, or over the flattened array."""
    (array,) = arrays(a)
    value, position = _line(array, axis)
    return deliver(Array(_scanned(fn, value, position, dtype)), out)


def _scanned(fn: Literal["sum", "prod"], value: Value, axis: int, dtype: npt.DTypeLike | None) -> Value:
    """Running sums or products along an axis, in NumPy's type for totals; of bools "or" and "and"."""
    kind = recording.total_dtype(value.spec.dtype) if dtype is None else dtype_name(dtype)
    if kind == "bool":
        logical: ScanFunction = "max" if fn == "sum" else "min"
        return cast(apply(Scan(logical, axis), cast(cast(value, "bool"), "int8")), "bool")
    return apply(Scan(fn, axis), cast(value, kind))


@implements("cumulative_sum")
def cumulative_sum(
    x: Any,
    /,
    *,
    axis: int | None = None,
    dtype: npt.DTypeLike | None = None,
    out: Any = None,
    include_initial: bool = False,
) -> Any:
    """`cumsum`, optionally with the initial 0."""
    return _cumulative("sum", x, axis, dtype, out, include_initial)


@implements("cumulative_prod")
def cumulative_prod(
    x: Any,
    /,
    *,
    axis: int | None = None,
    dtype: npt.DTypeLike | None = None,
    out: Any = None,
    include_initial: bool = False,
) -> Any:
    """`cumprod`, optionally with the initial 1."""
    return _cumulative("prod", x, axis, dtype, out, include_initial)


def _cumulative(
    fn: Literal["sum", "prod"],
    x: Any,
    axis: int | None,
    dtype: npt.DTypeLike | None,
    out: Any,
    include_initial: bool,
) -> Any:
    """The Array API's running sums and products, with the neutral number in front for `include_initial`.

    Raises `ValueError` where an array of several axes names none.
    """
    (array,) = arrays(x)
    value = array._value if array.ndim else reshape(array._value, (1,))
    shape = value.spec.shape
    if axis is None:
        if len(shape) > 1:
            raise ValueError(f"say along which of the {len(shape)} axes: axis=.")
        axis = 0
    position = normal_axis(axis, len(shape))
    result = _scanned(fn, value, position, dtype)
    if include_initial:
        start = filled(kept_shape(shape, (position,)), 0 if fn == "sum" else 1, result.spec.dtype)
        result = apply(Concatenate(position), start, result)
    return deliver(Array(result), out)
