"""Arguments and results of functions: conversion to arrays of one device and dtype, and delivery into `out`.

The last part is for functions whose code computes with NumPy's arrays as well as with ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anygpu.array.core import recording
from anygpu.array.core.abstract_device import AbstractDevice
from anygpu.array.core.array import Array, as_value, is_numpys
from anygpu.array.core.device import ArrayDevice, device_for
from anygpu.array.core.expression import Value
from anygpu.array.core.overrides import implements
from anygpu.array.core.recording import apply, broadcast, cast, dtype_name, normal_axes, normal_axis, reshape
from anygpu.array.core.traced_scalar import TracedScalar
from anygpu.array.core.views import attach
from anygpu.base.typing import HostArray
from anygpu.program.dtypes import DType, promote_all
from anygpu.program.primitives import (
    Concatenate,
    Gather,
    Iota,
    Permute,
    Primitive,
    Reshape,
    Shape,
    Slice,
    Spec,
    product,
)


def arrays(*arguments: Any) -> list[Array]:
    """Every argument as an array, all on the device of the first that is one already."""
    device = device_among(*arguments)
    return [to_array(each, device) for each in arguments]


def device_among(*arguments: Any) -> ArrayDevice:
    """The device of the first array among the arguments, also inside of lists; else the default device."""
    return next(filter(None, map(_found_device, arguments)), None) or device_for(None)


def _found_device(x: Any) -> ArrayDevice | None:
    """The device of the first array among nested lists, or `None`"""
    if isinstance(x, Array) or type(x) is TracedScalar:
        return x._device
    if isinstance(x, list | tuple):
        return next(filter(None, map(_found_device, x)), None)
    return None


def to_array(x: Any, device: ArrayDevice) -> Array:
    """An argument as an `Array` on the device. Lists of arrays are stacked as an operation, without computing them."""
    if isinstance(x, Array):
        return x
    if type(x) is TracedScalar:
        return Array(x.strong)
    if isinstance(x, list | tuple) and holds_array(x):
        return Array(_stacked(x, device))
    return Array(bound_to(as_value(np.asarray(x), device), device))


def holds_array(items: Sequence[Any]) -> bool:
    """Whether a nested list has an array in it."""
    return any(isinstance(each, Array) or (isinstance(each, list | tuple) and holds_array(each)) for each in items)


def _stacked(items: Sequence[Any], device: ArrayDevice) -> Value:
    """The parts of a nested list, as one value with a new first axis."""
    values = [to_array(each, device)._value for each in items]
    shapes = {value.spec.shape for value in values}
    if len(shapes) > 1:
        raise ValueError(f"the parts of a nested list must have one shape; these have {sorted(shapes)}.")
    dtype = common_dtype(*(value.spec.dtype for value in values))
    (shape,) = shapes
    return apply(Concatenate(0), *(reshape(cast(value, dtype), (1, *shape)) for value in values))


def bound_to(value: Value, device: ArrayDevice) -> Value:
    """The value bound to a device; a value made of constants alone has none of its own."""
    if value.device is not None:
        return value
    return Value(value.op, value.inputs, value.spec, device, value.line)


def on_device(values: HostArray, device: ArrayDevice | None) -> Value:
    """A table that this package computed, as a value: a constant of the program if it is small, else uploaded."""
    if values.nbytes <= recording.MAX_CONSTANT_BYTES or device is None:
        return recording.literal(values)
    # A copy, because a table that is kept for the next time would look like an array from outside.
    return as_value(values.copy() if type(device) is AbstractDevice else values, device)


#: Types that an engine counts in directly; the others are converted from one of them.
_COUNTED = ("int64", "uint64", "float32", "float64")


def counting(length: int, dtype: DType) -> Value:
    """The integers 0, 1, 2, … as a vector of this length and dtype."""
    if dtype in _COUNTED:
        return apply(Iota(length, dtype))
    return cast(apply(Iota(length, counting_dtype(length))), dtype)


def counting_dtype(length: int) -> DType:
    """The smallest type that every device counts in and that reaches the length."""
    return "int32" if length < 1 << 31 else "int64"


def filled(shape: tuple[int, ...], scalar: Any, dtype: DType) -> Value:
    """A number in every element of a shape, by broadcasting: it takes no memory until something is computed from it."""
    return broadcast(recording.constant(scalar, dtype), shape)


def slice_axis(value: Value, axis: int, start: int, stop: int) -> Value:
    """A slice along one axis."""
    shape = value.spec.shape
    return value if (start, stop) == (0, shape[axis]) else apply(slice_of(shape, axis, start, stop), value)


def slice_of(shape: Shape, axis: int, start: int, stop: int, step: int = 1) -> Slice:
    """The primitive that slices one axis."""
    count = len(shape)
    return Slice(
        tuple(start if each == axis else 0 for each in range(count)),
        tuple(stop if each == axis else shape[each] for each in range(count)),
        tuple(step if each == axis else 1 for each in range(count)),
    )


def diagonal_path(shape: Shape, axis1: int, axis2: int, offset: int = 0) -> tuple[Primitive, ...]:
    """The movements to a diagonal of two axes, which lies along a new last axis."""
    rest = tuple(axis for axis in range(len(shape)) if axis not in (axis1, axis2))
    rows, columns = shape[axis1], shape[axis2]
    row, column = max(-offset, 0), max(offset, 0)
    count = max(0, min(rows - row, columns - column))
    # In C order, one step along the diagonal is a row and an element.
    start = row * columns + column if count else 0
    stop = start + (count - 1) * (columns + 1) + 1 if count else 0
    flat = (*(shape[axis] for axis in rest), rows * columns)
    order = (*rest, axis1, axis2)
    turned = () if order == tuple(range(len(shape))) else (Permute(order),)
    return (*turned, Reshape(flat), slice_of(flat, len(rest), start, stop, columns + 1))


def line_or_axis(array: Array, axis: int | None) -> tuple[Value, int]:
    """The value and its axis; without an axis, all elements in one line."""
    if axis is None:
        return reshape(array._value, (array.size,)), 0
    return array._value, normal_axis(axis, array.ndim)


def known_positions(positions: HostArray, length: int, axis: int) -> HostArray:
    """Positions on the host along an axis, with those from the end counted from the front.

    Raises `IndexError` where one is out of bounds.
    """
    if positions.size and not (-length <= positions.min() and positions.max() < length):
        worst = positions.max() if positions.max() >= length else positions.min()
        raise IndexError(f"index {worst} is out of bounds for axis {axis} with size {length}.")
    return np.where(positions < 0, positions + length, positions)


def view(array: Array, *path: Primitive, refusal: str | None = None) -> Array:
    """The view that the path leads to; writing into it writes into its base, as in NumPy."""
    result = array
    for op in path:
        result = attach(Array(apply(op, result._value)), result, (op,), refusal)
    return result


def deliver(result: Array, out: Any) -> Any:
    """The result itself, or `out` after the result was written into it, with NumPy's "same_kind" casting.

    `out` may be one of our arrays, a NumPy array, or a tuple of one of these; raises `TypeError` for anything else.
    """
    if out is None:
        return result
    if isinstance(out, tuple) and len(out) == 1:
        out = out[0]
    if is_numpys(out):
        np.copyto(out, np.asarray(result), casting="same_kind")
        return out
    if not isinstance(out, Array):
        raise TypeError(f"out= takes an array to write into, not {type(out).__name__}.")
    return out._assign(result)


def checked_index(index: Value, length: int) -> Value:
    """The index, checked when the program runs: the device raises `IndexError` where it is not within 0 … length - 1.

    It adds elements of a vector of zeros, gathered at the index, so that the gather cannot be removed.
    """
    zeros = filled((length,), 0, index.spec.dtype)
    return recording.binary("add", index, apply(Gather(0), zeros, index))


def common_dtype(*dtypes: DType) -> DType:
    """The common dtype. NumPy promotes all at once, which can be narrower than one pair after the other."""
    if "bfloat16" in dtypes:
        return promote_all(*dtypes)
    return recording.dtype_name(np.result_type(*dtypes))


def same_dtype(*values: Value) -> list[Value]:
    """All values in their common dtype; shapes stay."""
    dtype = common_dtype(*(value.spec.dtype for value in values))
    return [cast(value, dtype) for value in values]


def spec_of(array: Any) -> Spec:
    """Shape and type of another library's array."""
    name = getattr(array.dtype, "name", None) or str(array.dtype).rpartition(".")[2]
    return Spec(tuple(int(length) for length in array.shape), recording.dtype_name(name))


# -- shape and size: facts that need no computation


@implements(np.shape)
def shape(a: Any) -> Shape:
    """The lengths of the axes; nothing is computed."""
    return a.shape if isinstance(a, Array) else np.shape(a)


@implements(np.ndim)
def ndim(a: Any) -> int:
    """The number of axes."""
    return len(shape(a))


@implements(np.size)
def size(a: Any, axis: int | Sequence[int] | None = None) -> int:
    """The number of elements, or those along some axes."""
    lengths = shape(a)
    return product(tuple(lengths[each] for each in normal_axes(axis, len(lengths))))


# -- arguments that may be NumPy's arrays or ours, for functions whose code computes with either
# Called with NumPy's arrays, such a function returns NumPy's; called with ours, or traced, it returns ours.


def either(*given: Any) -> list[Any]:
    """All arguments as ours, on one device, if one of them is ours or traced; else all as NumPy's. `None` stays."""
    if any(isinstance(each, Array) or type(each) is TracedScalar for each in given):
        device = device_among(*given)
        return [None if each is None else to_array(each, device) for each in given]
    return [None if each is None else np.asarray(each) for each in given]


def table(values: HostArray, beside: Any) -> Any:
    """Numbers that this package worked out itself, as an array of the kind of `beside` and on its device."""
    if not isinstance(beside, Array):
        return values
    return Array(bound_to(on_device(np.ascontiguousarray(values), beside._device), beside._device))


def converted(x: Any, dtype: Any) -> Any:
    """The array in another dtype, NumPy's or ours; the array itself if it has that."""
    if x.dtype == dtype:
        return x
    return Array(cast(x._value, dtype_name(dtype))) if isinstance(x, Array) else x.astype(dtype)


def in_float(x: Any) -> Any:
    """Integers and bools as the floats that NumPy makes of them; everything else as it is."""
    return converted(x, np.result_type(x.dtype, np.float16)) if x.dtype.kind in "biu" else x


def in_single(x: Any) -> Any:
    """Half precision as single, so that several steps round once; integers as floats; everything else as it is."""
    return converted(x, np.float32) if x.dtype == np.float16 else in_float(x)


def in_type_of(result: Any, x: Any) -> Any:
    """The result of a computation with `in_single(x)`, in the type of `x`."""
    return converted(result, np.float16) if x.dtype == np.float16 and result.dtype == np.float32 else result
