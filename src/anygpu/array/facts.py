"""What is known of an array without computing it, and functions that need no more than that."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from anygpu.array.array import Array, as_array


def shape(a: Any) -> tuple[int, ...]:
    return as_array(a).shape


def ndim(a: Any) -> int:
    return as_array(a).ndim


def size(a: Any, axis: int | None = None) -> int:
    array = as_array(a)
    return array.size if axis is None else array.shape[axis]


def ascontiguousarray(a: Any, dtype: npt.DTypeLike | None = None, *, like: Any = None) -> Array:
    """The array itself: how it lies in memory is the device's own business. It has at least one axis."""
    array = asanyarray(a, dtype)
    return array.reshape(1) if array.ndim == 0 else array


def asanyarray(a: Any, dtype: npt.DTypeLike | None = None, order: str | None = None, **options: Any) -> Array:
    return as_array(a) if dtype is None else as_array(a).astype(dtype, copy=False)
