"""Converts what a user puts into a store: to host values, or to a buffer that is on the device already."""

from __future__ import annotations

from typing import Any

import numpy as np

from anygpu.array.core.array import Array, as_array
from anygpu.array.core.expression import Value, compute
from anygpu.array.core.recording import dtype_name
from anygpu.array.core.structure import require_plain
from anygpu.base.typing import HostArray
from anygpu.program.primitives import Permute, Reshape, Slice
from anygpu.residency.handle import DeviceHandle

#: Operations that may return a view of their input, which would keep all of that alive.
_MAY_BE_VIEWS = (Reshape, Slice, Permute)


def values_of(array: Any) -> tuple[HostArray, int]:
    """The values on the host, and the bytes downloaded for that. They may be the user's own memory."""
    if isinstance(array, Array):
        values = np.asarray(array)
        return values, 0 if getattr(array._device, "device", "").partition(":")[0] == "numpy" else values.nbytes
    require_plain(array, "a store")
    if not isinstance(array, np.ndarray) and hasattr(array, "__dlpack__") and not hasattr(array, "__array__"):
        array = np.from_dlpack(array)
    values = np.asarray(array)
    dtype_name(values.dtype)  # raises for what no device has
    return values, 0


def array_of(value: Value) -> Array:
    """A new array of the same buffer."""
    return Array(Value.on(value.device, value.buffer, value.spec))  # type: ignore[arg-type]


def settle(value: Value, device: DeviceHandle) -> None:
    """Compute the value on the device."""
    compute([value], device)


def resident_value(array: Array, device: DeviceHandle) -> tuple[Value, int]:
    """A value of the store's own with the array's buffer, and the bytes copied on the device for it."""
    value = array._value
    is_view = array._view is not None or _is_made_of_views(value)
    compute([value], device)
    if is_view and not value.spec.size:
        # Without elements it still is a part of its base.
        return Value.on(device, device.upload(np.empty(array.shape, array.dtype)), value.spec), 0
    if is_view:
        # The memory of a view is that of its base, which the store would keep alive but not count.
        value = copied_on_device(Array(value) if value.holder is None else array)._value
        compute([value], device)
        return Value.on(device, value.buffer, value.spec), value.spec.nbytes
    return Value.on(device, value.buffer, value.spec), 0


def copied_on_device(array: Array) -> Array:
    """The same values in memory of their own. The condition is an input, so that the copy is not optimised away."""
    yes = as_array(np.ones(1, np.bool_), array._device)
    copied: Array = np.where(yes, array.reshape(-1), np.zeros((), array.dtype)).reshape(array.shape)  # type: ignore[assignment]
    return copied


def _is_made_of_views(value: Value) -> bool:
    """Whether it is only moved out of an existing buffer."""
    seen = False
    while value.op is not None and isinstance(value.op, _MAY_BE_VIEWS):
        value, seen = value.inputs[0], True
    return seen and value.op is None
