"""Layers: activations, softmax, normalisation, attention, linear layers, embeddings, pooling and similarity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from anygpu.array.core.arguments import converted, either, in_single, in_type_of
from anygpu.array.core.array import Array
from anygpu.array.core.recording import apply, broadcast, normal_axes, normal_axis, unary_float
from anygpu.base.interrupts import float_errors
from anygpu.engines.numpy.lowering import attended, erf
from anygpu.nn.quantisation import Quantised, quantised_matmul, rows_of
from anygpu.program.ops.linear import Attend

# -- activation functions and softmax


def softmax(x: Any, axis: int = -1) -> Any:
    """exp(x) over its sum along an axis, without overflow."""
    (given,) = either(x)
    values = in_single(given)
    powers = np.exp(values - _largest(values, axis))
    return in_type_of(powers / np.sum(powers, axis=axis, keepdims=True), given)


def log_softmax(x: Any, axis: int = -1) -> Any:
    """The logarithm of `softmax(x)`, exact also where that is close to 0."""
    (given,) = either(x)
    values = in_single(given)
    shifted = values - _largest(values, axis)
    return in_type_of(shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True)), given)


def relu(x: Any) -> Any:
    """x where it is positive, 0 elsewhere."""
    (given,) = either(x)
    return np.maximum(given, 0)


def silu(x: Any) -> Any:
    """x / (1 + exp(-x)), which is also called swish."""
    (given,) = either(x)
    values = in_single(given)
    powers = np.exp(-values) if isinstance(values, Array) else _exp_without_warning(-values)
    return in_type_of(values / (1 + powers), given)


@float_errors(over="ignore")
def _exp_without_warning(x: Any) -> Any:
    """Of a large number it is infinity, and `silu` then 0, as it should be."""
    return np.exp(x)


def gelu(x: Any, approximate: bool = False) -> Any:
    """x times the normal distribution function of x; with `approximate`, the tanh formula that some models use."""
    (given,) = either(x)
    values = in_single(given)
    if approximate:
        inner = math.sqrt(2 / math.pi) * (values + 0.044715 * values * values * values)
        return in_type_of(0.5 * values * (1 + np.tanh(inner)), given)
    return in_type_of(0.5 * values * (1 + _erf(values * math.sqrt(0.5))), given)


def _erf(x: Any) -> Any:
    return Array(unary_float("erf", x._value)) if isinstance(x, Array) else erf(x)


def _largest(x: Any, axis: int) -> Any:
    # Where an axis is empty there is nothing to shift, and no largest.
    return np.max(x, axis=axis, keepdims=True) if x.size else 0


# -- normalisation along axes
#
# Half precision is computed in single precision and rounded once.


def layer_norm(
    x: Any, weight: Any = None, bias: Any = None, *, axis: int | Sequence[int] = -1, eps: float = 1e-5
) -> Any:
    """x with the mean 0 and the variance 1 along the axes, times `weight` plus `bias`, which have these axes alone."""
    given, weight, bias = either(x, weight, bias)
    axes = normal_axes(axis, given.ndim)
    values = in_single(given)
    centred = values - np.mean(values, axis=axes, keepdims=True)
    variance = np.mean(centred * centred, axis=axes, keepdims=True)
    # One division for a row, and a product for each of its elements: a quarter less work than dividing each.
    return in_type_of(_scaled("layer_norm", centred * (1 / np.sqrt(variance + eps)), weight, bias, axes), given)


def rms_norm(x: Any, weight: Any = None, *, axis: int | Sequence[int] = -1, eps: float = 1e-6) -> Any:
    """x with the mean square 1 along the axes, times `weight`, which has these axes alone."""
    given, weight = either(x, weight)
    axes = normal_axes(axis, given.ndim)
    values = in_single(given)
    square = np.mean(values * values, axis=axes, keepdims=True)
    return in_type_of(_scaled("rms_norm", values * (1 / np.sqrt(square + eps)), weight, None, axes), given)


def _scaled(name: str, x: Any, weight: Any, bias: Any, axes: tuple[int, ...]) -> Any:
    lengths = tuple(x.shape[axis] for axis in axes)
    shape = tuple(length if axis in axes else 1 for axis, length in enumerate(x.shape))
    for what, each in (("weight", weight), ("bias", bias)):
        if each is not None and each.shape != lengths:
            raise ValueError(f"{name}: {what} must have the shape {lengths}, the axes normalised, not {each.shape}.")
    if weight is not None:
        x = x * in_single(weight).reshape(shape)
    return x if bias is None else x + in_single(bias).reshape(shape)


# -- attention
#
# For our arrays one primitive, which engines compute without storing the scores; composed for NumPy's.


#: A query that sees no key is 0 / 0, which is meant.
_attended = float_errors(invalid="ignore")(attended)


def attention(q: Any, k: Any, v: Any, *, mask: Any = None, causal: bool = False, scale: float | None = None) -> Any:
    """softmax(q · kᵀ · scale + mask) · v for queries [..., n, d], keys [..., m, d] and values [..., m, e].

    Axes in front of these broadcast. `mask` broadcasts to [..., n, m]: truth values say which keys a query sees, floats
    are added to the scores. With `causal` the last query sees all keys, the one before it all but the last, and so on.
    `scale` is 1 / sqrt(d) unless it is given. A query that sees no key has NaN for its result.
    """
    q, k, v, mask = either(q, k, v, mask)
    stack, n, m = _checked(q, k, v, mask)
    dtype = np.result_type(q.dtype, k.dtype, v.dtype)
    if dtype.kind != "f":
        raise TypeError(f"attention takes floats, not {q.dtype}, {k.dtype} and {v.dtype}: convert them with astype.")
    scale = 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else float(scale)
    q, k, v = (converted(each, dtype) for each in (q, k, v))
    if isinstance(q, Array):
        parts = [q, k, v] if mask is None else [q, k, v, _added(mask, dtype)]
        ends = (q.shape[-2:], k.shape[-2:], v.shape[-2:], (n, m))
        values = [broadcast(each._value, (*stack, *end)) for each, end in zip(parts, ends, strict=False)]
        return Array(apply(Attend(scale, bool(causal)), *values))
    return _attended(q, k, v, None if mask is None else _added(mask, dtype), scale=scale, causal=causal)


def _checked(q: Any, k: Any, v: Any, mask: Any) -> tuple[tuple[int, ...], int, int]:
    """The broadcast leading axes, and the numbers of queries and keys."""
    for name, each in (("q", q), ("k", k), ("v", v)):
        if each.ndim < 2:
            raise ValueError(f"attention: {name} has at least two axes, and its shape is {each.shape}.")
    n, m = q.shape[-2], k.shape[-2]
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(
            f"attention: queries of length {q.shape[-1]} do not fit keys of length {k.shape[-1]} "
            f"(q has the shape {q.shape}, k {k.shape})."
        )
    if v.shape[-2] != m:
        raise ValueError(f"attention: {m} keys need as many values, and v has the shape {v.shape}.")
    shapes = [q.shape[:-2], k.shape[:-2], v.shape[:-2]]
    if mask is not None:
        if mask.dtype.kind not in "bf":
            raise TypeError(f"attention: the mask holds truth values or floats, not {mask.dtype}: write mask != 0.")
        last = mask.shape[-2:]
        if not all(length in (1, wanted) for length, wanted in zip(last[::-1], (m, n), strict=False)):
            raise ValueError(f"attention: a mask of shape {mask.shape} does not fit {n} queries and {m} keys.")
        shapes.append(mask.shape[:-2])
    try:
        return np.broadcast_shapes(*shapes), n, m
    except ValueError:
        raise ValueError(
            "attention: the axes in front of the last two do not broadcast: " + ", ".join(map(str, shapes)) + "."
        ) from None


def _added(mask: Any, dtype: Any) -> Any:
    """The mask as a bias that is added to the scores."""
    if mask.dtype.kind == "b":
        return np.where(mask, np.asarray(0, dtype), np.asarray(-math.inf, dtype))
    return converted(mask, dtype)


# -- linear layers, embeddings and mean pooling


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


# -- cosine similarity and top-k


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
