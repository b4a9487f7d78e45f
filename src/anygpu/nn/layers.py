"""Linear layers, embeddings and mean pooling."""

from __future__ import annotations

from typing import Any

import numpy as np

from anygpu.array.core.arguments import converted, either, in_single, in_type_of
from anygpu.nn.quantisation import Quantised, quantised_matmul, rows_of


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """x · weightᵀ + bias for x [..., in] and weight [out, in], which may be `Quantised`."""
    if isinstance(weight, Quantised):
        result = quantised_matmul(x, weight, transposed=True)
        result, bias = either(result, bias)
    else:
        x, weight, bias = either(x, weight, bias)
        if weight.ndim != 2 or x.ndim < 1 or x.shape[-1] != weight.shape[1]:
            raise ValueError(
                f"linear: x [..., in] and weight [out, in] do not fit: the shapes are {x.shape} and {weight.shape}."
            )
        result = np.tensordot(x, weight, axes=((-1,), (-1,)))
    if bias is None:
        return result
    if bias.shape != result.shape[-1:]:
        raise ValueError(f"linear: bias must have the shape {result.shape[-1:]}, not {bias.shape}.")
    return result + bias


def embedding(table: Any, ids: Any) -> Any:
    """The rows of `table` [count, ...] at the integers `ids` [...]; the table may be `Quantised`.

    A negative number counts from the end, and one outside the table is an IndexError, as in NumPy.
    """
    if isinstance(table, Quantised):
        return rows_of(table, ids)
    table, ids = either(table, ids)
    if table.ndim < 1:
        raise ValueError("embedding: a table has at least one axis.")
    if ids.dtype.kind not in "iu":
        raise TypeError(f"embedding: ids are integers, not {ids.dtype}.")
    return np.take(table, ids, axis=0)


def mean_pool(x: Any, mask: Any = None) -> Any:
    """The mean over the last axis but one of x [..., n, d], of the positions where mask [..., n] is not 0.

    Where the mask is 0 everywhere, the result is 0. What stands in places that do not count does not matter, NaN
    included.
    """
    given, mask = either(x, mask)
    if given.ndim < 2:
        raise ValueError(f"mean_pool: x has at least two axes, and its shape is {given.shape}.")
    values = in_single(given)
    if mask is None:
        return in_type_of(np.mean(values, axis=-2), given)
    if mask.shape[-1:] != values.shape[-2:-1]:
        raise ValueError(
            f"mean_pool: a mask of shape {mask.shape} does not fit {given.shape}: its last axis is the last but one "
            "of x."
        )
    counts = (mask != 0)[..., None]
    total = np.sum(np.where(counts, values, np.asarray(0, values.dtype)), axis=-2)
    return in_type_of(total / np.maximum(np.sum(converted(counts, values.dtype), axis=-2), 1), given)
