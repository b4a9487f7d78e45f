"""Sorting, argsort, partition, and binary search."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from anygpu.array.core.arguments import arrays, same_dtype, to_array
from anygpu.array.core.array import Array, device_of
from anygpu.array.core.expression import Value
from anygpu.array.core.overrides import implements
from anygpu.array.core.recording import apply, binary, cast, normal_axis, reshape
from anygpu.array.functions.metadata import ndim
from anygpu.array.functions.selection import (
    take_along_axis,
)
from anygpu.program.dtypes import is_integer
from anygpu.program.primitives import Argsort, Flip, Gather, Search, Sort


def _along(a: Any, axis: int | None) -> tuple[Value, int]:
    (array,) = arrays(a)
    if axis is None:
        return reshape(array._value, (array.size,)), 0
    if array.ndim == 0:
        raise np.exceptions.AxisError(axis, 0)
    return array._value, normal_axis(axis, array.ndim)


def _no_fields(order: object) -> None:
    if order is not None:
        raise TypeError("order= is for arrays with named fields, which do not exist here.")


@implements(np.sort)
def sort(
    a: Any,
    axis: int | None = -1,
    kind: str | None = None,
    order: object = None,
    *,
    stable: bool | None = None,
    descending: bool = False,
) -> Array:
    """The elements sorted along an axis, NaN last; with `descending` from the largest, NaN first. Always stable."""
    _no_fields(order)
    value, position = _along(a, axis)
    if not descending:
        return Array(apply(Sort(position), value))
    # Backwards twice: equal elements, such as 0.0 and -0.0, keep their order.
    turn = Flip((position,))
    return Array(apply(turn, apply(Sort(position), apply(turn, value))))


@implements(np.argsort)
def argsort(
    a: Any,
    axis: int | None = -1,
    kind: str | None = None,
    order: object = None,
    *,
    stable: bool | None = None,
    descending: bool = False,
) -> Array:
    """The positions that sort. Always stable."""
    _no_fields(order)
    if ndim(a) == 0 and axis in (-1, 0):  # NumPy sorts one number too, but only here
        axis = None
    value, position = _along(a, axis)
    if not descending:
        return Array(apply(Argsort(position), value))
    turn = Flip((position,))
    last = value.spec.shape[position] - 1
    places = apply(turn, apply(Argsort(position), apply(turn, value)))
    return Array(binary("subtract", max(last, 0), places))


@implements(np.sort_complex)
def sort_complex(a: Any) -> Array:
    """Sorted by real and then by imaginary part, as complex numbers."""
    (array,) = arrays(a)
    kind = array._value.spec.dtype
    small = kind in ("int8", "int16", "uint8", "uint16", "complex64")
    return sort(Array(cast(array._value, "complex64" if small else "complex128")))


@implements(np.partition)
def partition(a: Any, kth: Any, axis: int | None = -1, kind: str = "introselect", order: object = None) -> Array:
    """Smaller elements before the k-th, larger ones after it; this implementation sorts."""
    _check_kth(a, kth, axis)
    return sort(a, axis, order=order)


@implements(np.argpartition)
def argpartition(a: Any, kth: Any, axis: int | None = -1, kind: str = "introselect", order: object = None) -> Array:
    """The positions that partition; this implementation sorts."""
    _check_kth(a, kth, axis)
    return argsort(a, axis, order=order)


def _check_kth(a: Any, kth: Any, axis: int | None) -> None:
    value, position = _along(a, axis)
    length = value.spec.shape[position]
    for each in np.atleast_1d(np.asarray(kth)).tolist():
        if not -length <= each < length:
            raise ValueError(f"kth={each} is out of bounds for an axis of length {length}.")


@implements(np.lexsort)
def lexsort(keys: Any, axis: int = -1) -> Array:
    """The positions that sort by several keys, of which the last counts first."""
    parts = arrays(*keys)
    if not parts:
        raise TypeError("lexsort needs at least one key.")
    if len({part.shape for part in parts}) > 1:
        raise ValueError("lexsort: all keys have one shape.")
    if parts[0].ndim == 0:
        return Array(reshape(apply(Argsort(0), reshape(parts[0]._value, (1,))), ()))
    position = normal_axis(axis, parts[0].ndim)
    order = argsort(parts[0], position)
    for part in parts[1:]:
        step = argsort(take_along_axis(part, order, position), position)
        order = take_along_axis(order, step, position)
    return order


@implements(np.searchsorted)
def searchsorted(a: Any, v: Any, side: Literal["left", "right"] = "left", sorter: Any = None) -> Array:
    """Where each value belongs in a sorted vector: before equal elements, or after them."""
    if side not in ("left", "right"):
        raise ValueError(f'side is "left" or "right", not {side!r}.')
    device = device_of(a, v)
    line, values = (to_array(each, device)._value for each in (a, v))
    if len(line.spec.shape) != 1:
        raise ValueError(f"searchsorted looks in a vector, not in {len(line.spec.shape)} axes.")
    if sorter is not None:
        order = to_array(sorter, device)._value
        if not is_integer(order.spec.dtype):
            raise TypeError(f"sorter holds integers, as argsort gives them, and not {order.spec.dtype}.")
        if order.spec.shape != line.spec.shape:
            raise ValueError(f"sorter holds one position for each of {line.spec.size} elements.")
        line = apply(Gather(0), line, order)
    line, values = same_dtype(line, values)
    return Array(apply(Search(side), line, values))
