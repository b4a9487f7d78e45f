"""Arithmetic and geometric progressions."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from anygpu.array.core import recording
from anygpu.array.core.arguments import bound_to, counting, counting_dtype, ndim, shape, to_array
from anygpu.array.core.array import Array, device_of
from anygpu.array.core.device import ArrayDevice, device_for, to_numpy_dtype
from anygpu.array.core.expression import Value
from anygpu.array.core.overrides import implements
from anygpu.array.core.recording import (
    binary,
    broadcast,
    broadcast_shapes,
    cast,
    compare,
    dtype_name,
    normal_axis,
    reshape,
    where,
)
from anygpu.array.functions.manipulation import moveaxis
from anygpu.base.interrupts import float_errors
from anygpu.program.dtypes import KIND, DType, is_integer, promote


@implements(np.arange)
def arange(
    start: Any,
    stop: Any = None,
    step: Any = 1,
    dtype: npt.DTypeLike | None = None,
    *,
    device: object | None = None,
    like: object | None = None,
) -> Array:
    """start, start + step, … before stop; with one number that is the stop, and 0 the start."""
    target = device_for(device) if device is not None else device_of(start, stop, step)
    if stop is None:
        start, stop = 0, start
    step = 1 if step is None else step
    if dtype is None:
        kinds = [each.dtype if hasattr(each, "dtype") else np.asarray(each).dtype for each in (start, stop, step)]
        dtype = np.result_type(*kinds, np.int64)
    first, last, pace = (each.item() if hasattr(each, "item") else each for each in (start, stop, step))
    return Array(bound_to(_progression(first, _count(first, last, pace), pace, dtype_name(dtype)), target))


def _count(first: Any, last: Any, pace: Any) -> int:
    """How many steps fit. Integers are counted exactly, however large."""
    if pace == 0:
        raise ZeroDivisionError("arange: the step must not be 0.")
    if all(isinstance(each, int) for each in (first, last, pace)):
        return max(0, int(-((first - last) // pace)))
    ratio = (last - first) / pace
    if isinstance(ratio, complex):
        return max(0, min(math.ceil(ratio.real), math.ceil(ratio.imag)))
    if not math.isfinite(ratio):
        raise ValueError(f"arange: from {first} to {last} by {pace} has no finite length.")
    return max(0, math.ceil(float(ratio)))


@float_errors(over="ignore")
def _begin_and_delta(first: Any, second: Any, dtype: DType) -> tuple[Any, Any]:
    """NumPy casts the first two elements to the dtype and continues from them; so do we."""
    kind = to_numpy_dtype(dtype).type
    begin = kind(first)
    return begin, kind(second) - begin


def _progression(first: Any, length: int, pace: Any, dtype: DType) -> Value:
    """The numbers `first + n * pace` for n from 0 to `length` - 1, in a type.

    They are computed as NumPy's `arange` does: begin and step are rounded to the type first, and narrow types count in
    a wider one. Raises `TypeError` for more than two bools.
    """
    if dtype == "bool":
        if length > 2:
            raise TypeError("arange: bool has only two values; use an integer type.")
        return recording.literal(np.array([bool(first), bool(first + pace)][:length], np.bool_))
    begin, delta = _begin_and_delta(first, first + pace if length > 1 else first, dtype)
    if KIND[dtype] in ("signed", "unsigned"):
        begin, delta = int(begin), int(delta)
    if (begin == 0 and not np.signbit(np.real(begin))) and (delta == 1 or length < 2):
        return counting(length, dtype)
    inner = _inner_dtype(dtype, length)
    steps = binary("multiply", counting(length, inner), recording.constant(delta, inner))
    return cast(binary("add", steps, recording.constant(begin, inner)), dtype)


def _inner_dtype(dtype: DType, length: int) -> DType:
    """Where a progression is computed: a type that can count to the length, and wraps as the wanted one."""
    if dtype == "float16":
        return "float32"
    if KIND[dtype] == "unsigned":
        return "uint64" if dtype == "uint64" or length >= 1 << 31 else "uint32"
    if KIND[dtype] == "signed":
        return "int64" if dtype == "int64" else counting_dtype(length)
    return dtype


@implements(np.linspace)
def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: npt.DTypeLike | None = None,
    axis: int = 0,
    *,
    device: object | None = None,
) -> Any:
    """`num` numbers at equal distances; the first is `start` and, with `endpoint`, the last is `stop` exactly."""
    count = operator.index(num)
    if count < 0:
        raise ValueError(f"linspace: the number of samples is 0 or more, not {count}.")
    target = device_for(device) if device is not None else device_of(start, stop)
    first, last = _endpoints(start, stop, target)
    kind = np.result_type(first.dtype, last.dtype)
    gaps = count - 1 if endpoint else count
    distance = last - first
    shape = distance.shape
    column = reshape(counting(count, dtype_name(kind)), (count, *(1,) * len(shape)))
    way = to_array(distance, target)._value
    if gaps > 0:
        step: Any = distance / gaps
        samples = _walk(column, way, to_array(step, target)._value, gaps, step)
    else:
        step = math.nan
        samples = binary("multiply", column, way)
    ends = [broadcast(to_array(each, target)._value, shape) for each in (first, last)]
    samples = binary("add", samples, ends[0])
    if endpoint and count > 1:
        samples = where(_is_last(count, len(shape)), ends[1], samples)
    wanted = dtype_name(kind if dtype is None else dtype)
    if dtype is not None and is_integer(wanted):
        samples = recording.unary("floor", samples)
    result = Array(bound_to(cast(samples, wanted), target))
    if axis != 0:
        result = moveaxis(result, 0, axis)
    return (result, step) if retstep else result


def _is_last(count: int, dimensions: int) -> Value:
    """True in the last place of the first axis."""
    places = reshape(counting(count, counting_dtype(count)), (count, *(1,) * dimensions))
    return compare("equal", places, count - 1)


def _endpoints(start: Any, stop: Any, target: ArrayDevice) -> list[Any]:
    """Both as floating point: NumPy arrays where both are known here, so that what is known is not recorded."""
    if isinstance(start, Array) or isinstance(stop, Array):
        return [to_array(each, target) * 1.0 for each in (start, stop)]
    return [np.asarray(np.asarray(each) * 1.0) for each in (start, stop)]


def _walk(column: Value, way: Value, stride: Value, gaps: int, step: Any) -> Value:
    """The distance of each sample from the start. A step that is too small to be a number is made up last."""
    straight = binary("multiply", column, stride)
    if not isinstance(step, Array) and np.all(step):
        return straight
    careful = binary("multiply", binary("divide", column, gaps), way)
    return where(compare("equal", stride, 0), careful, straight)


@implements(np.logspace)
def logspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    base: Any = 10.0,
    dtype: npt.DTypeLike | None = None,
    axis: int = 0,
    *,
    device: object | None = None,
) -> Array:
    """Powers of `base` with exponents at equal distances."""
    target = device_for(device) if device is not None else device_of(start, stop, base)
    if ndim(base):
        dimensions = len(broadcast_shapes(*(shape(each) for each in (start, stop, base))))
        start, stop, base = (_with_dimensions(to_array(each, target), dimensions) for each in (start, stop, base))
        exponents = linspace(start, stop, num, endpoint, axis=axis, device=target)
        position = normal_axis(axis, dimensions + 1)
        root = reshape(base._value, (*base.shape[:position], 1, *base.shape[position:]))
    else:
        exponents = linspace(start, stop, num, endpoint, axis=axis, device=target)
        root = to_array(base, target)._value
        if not hasattr(base, "dtype") and not isinstance(base, complex):
            root = cast(root, exponents._value.spec.dtype)
    result = Array(binary("power", root, exponents._value))
    return result if dtype is None else result.astype(dtype, copy=False)


def _with_dimensions(array: Array, dimensions: int) -> Array:
    return Array(reshape(array._value, (*(1,) * (dimensions - array.ndim), *array.shape)))


@implements(np.geomspace)
def geomspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    dtype: npt.DTypeLike | None = None,
    axis: int = 0,
    *,
    device: object | None = None,
) -> Array:
    """`num` numbers, each the same multiple of the one before."""
    target = device_for(device) if device is not None else device_of(start, stop)
    if any(bool((np.asarray(each) == 0).any()) for each in (start, stop)):
        raise ValueError("geomspace: a geometric sequence cannot begin or end with 0.")
    first, last = (to_array(each, target)._value for each in (start, stop))
    kind = promote(first.spec.dtype, last.spec.dtype)
    if KIND[kind] not in ("float", "complex"):
        kind = "float64"
    if dtype is not None:
        kind = promote(kind, dtype_name(dtype))
    shape = broadcast_shapes(first.spec.shape, last.spec.shape)
    first, last = (broadcast(cast(each, kind), shape) for each in (first, last))
    sign = recording.unary("sign", first)
    ends = [binary("divide", each, sign) for each in (first, last)]
    low, high = (Array(recording.unary("log10", each)) for each in ends)
    powers = logspace(low, high, num, endpoint, device=target)._value
    count = operator.index(num)
    places = reshape(counting(count, counting_dtype(count)), (count, *(1,) * len(shape)))
    powers = where(compare("equal", places, 0), ends[0], powers)
    if endpoint and count > 1:
        powers = where(_is_last(count, len(shape)), ends[1], powers)
    wanted = kind if dtype is None else dtype_name(dtype)
    result = Array(bound_to(cast(binary("multiply", powers, sign), wanted), target))
    return moveaxis(result, 0, axis) if axis != 0 else result
