"""Cosine similarity and top-k."""

from __future__ import annotations

from typing import Any

import numpy as np

from anygpu.array.core.arguments import either, in_single, in_type_of
from anygpu.array.core.recording import normal_axis


def cosine_similarity(a: Any, b: Any, *, axis: int = -1, eps: float = 1e-8) -> Any:
    """The cosine of the angle between vectors along an axis; all other axes broadcast.

    A vector shorter than `eps` counts as that long, so that one of length 0 is similar to nothing.
    """
    a, b = either(a, b)
    x, y = in_single(a), in_single(b)
    together = np.sum(x * y, axis=axis)
    lengths = np.maximum(_length(x, axis), eps) * np.maximum(_length(y, axis), eps)
    return _typed(together / lengths, a, b)


def pairwise_cosine_similarity(a: Any, b: Any = None, *, eps: float = 1e-8) -> Any:
    """The cosines between each vector of a [..., n, d] and each of b [..., m, d], or of a itself: [..., n, m]."""
    a, b = either(a, a if b is None else b)
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-1]:
        raise ValueError(
            f"pairwise_cosine_similarity: a [..., n, d] and b [..., m, d] do not fit: the shapes are {a.shape} and "
            f"{b.shape}."
        )
    x, y = in_single(a), in_single(b)
    together = np.matmul(x, np.swapaxes(y, -1, -2))
    rows, columns = np.maximum(_length(x, -1), eps), np.maximum(_length(y, -1), eps)
    return _typed(together / (rows[..., :, None] * columns[..., None, :]), a, b)


def top_k(x: Any, k: int, *, axis: int = -1) -> tuple[Any, Any]:
    """The `k` largest along an axis, from the largest, and where they are: (values, indices).

    Of equal ones the first comes first. NaN counts as larger than everything, as in sorting.
    """
    (given,) = either(x)
    axis = normal_axis(axis, given.ndim)
    length = given.shape[axis]
    if not 0 <= k <= length:
        raise ValueError(f"top_k: k={k} does not fit an axis of length {length}.")
    # Sorted backwards, and read from the end: equal elements keep their order.
    order = np.argsort(np.flip(given, axis), axis=axis, kind="stable")
    chosen = (slice(None),) * axis + (slice(length - k, length),)
    indices = (length - 1) - np.flip(order[chosen], axis)
    return np.take_along_axis(given, indices, axis), indices


def _length(x: Any, axis: int) -> Any:
    return np.sqrt(np.sum(x * x, axis=axis))


def _typed(result: Any, a: Any, b: Any) -> Any:
    return in_type_of(result, a) if a.dtype == b.dtype else result
