"""What the functions of the namespace do with their arguments before, and with their results after, their own work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anygpu._typing import HostArray
from anygpu.array.core import recording
from anygpu.array.core.abstract_device import AbstractDevice
from anygpu.array.core.array import Array, as_value, is_numpys
from anygpu.array.core.device import ArrayDevice, device_for
from anygpu.array.core.expression import Value
from anygpu.array.core.recording import apply, broadcast, cast, reshape
from anygpu.array.core.traced_scalar import TracedScalar
from anygpu.array.core.views import attach
from anygpu.program.dtypes import DType, promote_all
from anygpu.program.primitives import Concatenate, Gather, Iota, Primitive, Shape, Slice, Spec


def arrays(*arguments: Any) -> list[Array]:
    """Every argument as an array, all on the device of the first that is one already."""
    place = place_among(*arguments)
    return [to_array(each, place) for each in arguments]


def place_among(*arguments: Any) -> ArrayDevice:
    """As `place_of`, but lists are searched too."""
    return next(filter(None, map(_found_place, arguments)), None) or device_for(None)


def _found_place(x: Any) -> ArrayDevice | None:
    if isinstance(x, Array) or type(x) is TracedScalar:
        return x._place
    if isinstance(x, list | tuple):
        return next(filter(None, map(_found_place, x)), None)
    return None


def to_array(x: Any, place: ArrayDevice) -> Array:
    """As `as_array`, but lists that have arrays in them are stacked without computing these."""
    if isinstance(x, Array):
        return x
    if type(x) is TracedScalar:
        return Array(x.strong)
    if isinstance(x, list | tuple) and holds_array(x):
        return Array(_stacked(x, place))
    return Array(placed(as_value(np.asarray(x), place), place))


def holds_array(items: Sequence[Any]) -> bool:
    """Whether a nested list has an array in it."""
    return any(isinstance(each, Array) or (isinstance(each, list | tuple) and holds_array(each)) for each in items)


def _stacked(items: Sequence[Any], place: ArrayDevice) -> Value:
    values = [to_array(each, place)._value for each in items]
    shapes = {value.spec.shape for value in values}
    if len(shapes) > 1:
        raise ValueError(f"the parts of a nested list must have one shape; these have {sorted(shapes)}.")
    dtype = common_dtype(*(value.spec.dtype for value in values))
    (shape,) = shapes
    return apply(Concatenate(0), *(reshape(cast(value, dtype), (1, *shape)) for value in values))


def placed(value: Value, place: ArrayDevice) -> Value:
    """The value bound to a place, also when it is made of constants, which are at home everywhere."""
    if value.place is not None:
        return value
    return Value(value.op, value.inputs, value.spec, place, value.line)


def on_place(values: HostArray, place: ArrayDevice | None) -> Value:
    """An array that this package made itself: a part of the program when it is small."""
    if values.nbytes <= recording.MAX_CONSTANT_BYTES or place is None:
        return recording.literal(values)
    # A copy, because a table that is kept for the next time would look like an array from outside.
    return as_value(values.copy() if type(place) is AbstractDevice else values, place)


#: Types that an engine counts in directly; the others are converted from one of them.
_COUNTED = ("int64", "uint64", "float32", "float64")


def counting(length: int, dtype: DType) -> Value:
    """0, 1, 2, … as a vector of any type."""
    if dtype in _COUNTED:
        return apply(Iota(length, dtype))
    return cast(apply(Iota(length, counting_dtype(length))), dtype)


def counting_dtype(length: int) -> DType:
    """The smallest type that every device counts in and that reaches the length."""
    return "int32" if length < 1 << 31 else "int64"


def filled(shape: tuple[int, ...], scalar: Any, dtype: DType) -> Value:
    """One number in every place. It takes no memory before something is made of it."""
    return broadcast(recording.constant(scalar, dtype), shape)


def slice_axis(value: Value, axis: int, start: int, stop: int, step: int = 1) -> Value:
    """A part of one axis, and all of the others."""
    shape = value.spec.shape
    if (start, stop, step) == (0, shape[axis], 1):
        return value
    return apply(slice_of(shape, axis, start, stop, step), value)


def slice_of(shape: Shape, axis: int, start: int, stop: int, step: int = 1) -> Slice:
    """The primitive that takes a part of one axis, and all of the others."""
    count = len(shape)
    return Slice(
        tuple(start if each == axis else 0 for each in range(count)),
        tuple(stop if each == axis else shape[each] for each in range(count)),
        tuple(step if each == axis else 1 for each in range(count)),
    )


def view(array: Array, *path: Primitive, refusal: str | None = None) -> Array:
    """What the path leads to, as a view that behaves as NumPy's."""
    result = array
    for op in path:
        result = attach(Array(apply(op, result._value)), result, (op,), refusal)
    return result


def deliver(result: Array, out: Any) -> Any:
    """The result itself, or `out` after it was written into it."""
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
    """The index itself; where it is not inside 0 … length - 1, there is an IndexError when it runs."""
    zeros = filled((length,), 0, index.spec.dtype)
    return recording.binary("add", index, apply(Gather(0), zeros, index))


def common_dtype(*dtypes: DType) -> DType:
    """The type of all of them together. NumPy looks at all at once, which can be narrower than one after the other."""
    if "bfloat16" in dtypes:
        return promote_all(*dtypes)
    return recording.dtype_name(np.result_type(*dtypes))


def same_dtype(*values: Value) -> list[Value]:
    """All in the type that they have together; the shapes stay."""
    dtype = common_dtype(*(value.spec.dtype for value in values))
    return [cast(value, dtype) for value in values]


def spec_of(array: Any) -> Spec:
    """Shape and type of another library's array."""
    name = getattr(array.dtype, "name", None) or str(array.dtype).rpartition(".")[2]
    return Spec(tuple(int(length) for length in array.shape), recording.dtype_name(name))
