"""What is known of an array without computing it."""

from __future__ import annotations

from typing import Any

from anygpu.array.array import as_array


def shape(a: Any) -> tuple[int, ...]:
    return as_array(a).shape


def ndim(a: Any) -> int:
    return as_array(a).ndim


def size(a: Any, axis: int | None = None) -> int:
    array = as_array(a)
    return array.size if axis is None else array.shape[axis]
