"""Bits packed into bytes, and unpacked."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from anygpu.array.core import recording
from anygpu.array.core.arguments import arrays, slice_axis
from anygpu.array.core.array import Array
from anygpu.array.core.expression import Value
from anygpu.array.core.overrides import implements
from anygpu.array.core.recording import apply, binary, cast, normal_axis, reshape
from anygpu.program.primitives import Pad, Reduce

Order = Literal["big", "little"]


def _shifts(order: str, axis: int, dimensions: int) -> Value:
    """By how much each of the eight bits is moved, along an axis after `axis`."""
    if order not in ("big", "little"):
        raise ValueError(f'bitorder is "big" or "little", not {order!r}.')
    moves = np.arange(8, dtype=np.uint8)[:: -1 if order == "big" else 1]
    return reshape(recording.literal(moves), tuple(8 if each == axis + 1 else 1 for each in range(dimensions + 1)))


def _along(array: Array, axis: int | None) -> tuple[Value, int]:
    if axis is None:
        return reshape(array._value, (array.size,)), 0
    return array._value, normal_axis(axis, array.ndim)


@implements(np.packbits)
def packbits(a: Any, /, axis: int | None = None, bitorder: Order = "big") -> Array:
    """Eight truth values in each byte; what is missing at the end is 0."""
    (array,) = arrays(a)
    if array.dtype.kind not in "biu":
        raise TypeError(f"packbits takes truth values or integers, not {array.dtype}.")
    value, position = _along(array, axis)
    shape = value.spec.shape
    length = shape[position]
    missing = -length % 8
    ends = tuple(missing if each == position else 0 for each in range(len(shape)))
    ones = apply(Pad((0,) * len(shape), ends), cast(value, "bool"), recording.constant(False, "bool"))
    groups = (*shape[:position], (length + missing) // 8, 8, *shape[position + 1 :])
    moved = binary("left_shift", cast(reshape(ones, groups), "uint8"), _shifts(bitorder, position, len(shape)))
    return Array(apply(Reduce("sum", (position + 1,)), moved))


@implements(np.unpackbits)
def unpackbits(a: Any, /, axis: int | None = None, count: int | None = None, bitorder: Order = "big") -> Array:
    """The bits of each byte, one after the other; `count` of them, or without so many at the end."""
    (array,) = arrays(a)
    if array.dtype != np.uint8:
        raise TypeError(f"unpackbits takes bytes (uint8), not {array.dtype}.")
    value, position = _along(array, axis)
    shape = value.spec.shape
    each = reshape(value, (*shape[: position + 1], 1, *shape[position + 1 :]))
    bits = binary("bitwise_and", binary("right_shift", each, _shifts(bitorder, position, len(shape))), 1)
    length = shape[position] * 8
    result = reshape(bits, (*shape[:position], length, *shape[position + 1 :]))
    if count is None:
        return Array(result)
    wanted = count if count >= 0 else length + count
    if wanted < 0:
        raise ValueError(f"unpackbits: {-count} bits cannot be left out of {length}.")
    if wanted <= length:
        return Array(slice_axis(result, position, 0, wanted))
    ends = tuple(wanted - length if number == position else 0 for number in range(len(shape)))
    return Array(apply(Pad((0,) * len(shape), ends), result, recording.constant(0, "uint8")))
