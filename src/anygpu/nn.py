"""`anygpu.nn`: functions for neural networks, for NumPy's arrays and for anygpu's, on every engine.

Each is a plain function of arrays: it computes with NumPy when it gets NumPy's arrays, and is recorded when it gets
anygpu's, alone or inside `offload`. There are no layers with a state, no training and no random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anygpu.array.core.arguments import converted, either, in_single, in_type_of, table
from anygpu.array.core.array import Array
from anygpu.array.core.recording import apply, broadcast, normal_axes, normal_axis, unary_float
from anygpu.base.interrupts import float_errors
from anygpu.engines.numpy.lowering import attended, erf
from anygpu.program.ops.linear import Attend

__all__ = [
    "Quantised",
    "attention",
    "cosine_similarity",
    "dequantise",
    "embedding",
    "gelu",
    "layer_norm",
    "linear",
    "log_softmax",
    "mean_pool",
    "pairwise_cosine_similarity",
    "quantise",
    "quantised_matmul",
    "relu",
    "rms_norm",
    "silu",
    "softmax",
    "top_k",
]


#: The range of the stored integers, for symmetric (True) and asymmetric quantisation, by the number of bits.
_RANGES = {8: {True: (-127, 127), False: (-128, 127)}, 4: {True: (1, 15), False: (0, 15)}}
#: The integer for 0.0 where there is no zero point.
_MIDDLE = {8: 0, 4: 8}
_STORED = {8: np.int8, 4: np.uint8}
#: The smallest scale: subnormal numbers are zero on some devices.
_SMALLEST = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, slots=True)
class Quantised:
    """A quantised array: its elements are `(data - zero) * scale`.

    It may be given to functions under `offload` and to `run` as an array may; its parts are ordinary arrays.
    """

    #: int8 of the array's own shape, or uint8 with two numbers in a byte along the last axis, the first in the low
    #: half.
    data: Any
    #: float32: without axes, or one for each position along `axis`.
    scale: Any
    #: The integer for 0.0, in the shape of `scale`; `None` when it is 0 (8 bits) or 8 (4 bits).
    zero: Any
    bits: int
    #: The shape of the array before quantisation.
    shape: tuple[int, ...]
    #: The axis along which each position has its own scale; `None` when there is one scale.
    axis: int | None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype that `dequantise` returns."""
        dtype: np.dtype[Any] = self.scale.dtype
        return dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """The size of data, scales and zero points together."""
        return int(self.data.nbytes + self.scale.nbytes + (0 if self.zero is None else self.zero.nbytes))


def quantise(x: Any, *, bits: int = 8, axis: int | None = None, symmetric: bool = True) -> Quantised:
    """x quantised with one scale, or with one for each position along `axis`.

    Symmetric steps go equally far to both sides of 0.0; others from the smallest to the largest (and to 0.0, which is
    always exact). Nothing is further from what it was than half a step, which `scale` tells. x holds no NaN and no
    infinities.
    """
    if bits not in _RANGES:
        raise ValueError(f"quantise: bits is 8 or 4, not {bits!r}.")
    (given,) = either(x)
    if given.dtype.kind not in "fiub":
        raise TypeError(f"quantise takes real numbers, not {given.dtype}.")
    values = converted(given, np.float32)
    if values.ndim == 0:
        raise ValueError("quantise takes an array with at least one axis.")
    position = None if axis is None else normal_axis(axis, values.ndim)
    others = tuple(each for each in range(values.ndim) if each != position)
    low, high = _RANGES[bits][symmetric]
    zero = None
    if symmetric:
        reach = (high - low) // 2
        scale = np.maximum(_extreme(np.max, np.abs(values), others) / reach, _SMALLEST)
        levels = np.rint(values / _beside(scale, values.ndim, position)) + _MIDDLE[bits]
    else:
        top = np.maximum(_extreme(np.max, values, others), 0) / (high - low)
        bottom = np.minimum(_extreme(np.min, values, others), 0) / (high - low)
        scale = np.maximum(top - bottom, _SMALLEST)
        zero = np.rint(low - bottom / scale * (high - low))
        levels = np.rint(values / _beside(scale, values.ndim, position)) + _beside(zero, values.ndim, position)
        zero = _array(converted(np.clip(zero, low, high), _STORED[bits]))
    data = converted(np.clip(levels, low, high), _STORED[bits])
    packed = _packed(data) if bits == 4 else data
    return Quantised(packed, _array(scale), zero, bits, tuple(given.shape), position)


def dequantise(q: Quantised) -> Any:
    """The array in float32."""
    numbers = _numbers(q)
    return numbers * _beside(_parts(q)[1], q.ndim, q.axis)


def quantised_matmul(x: Any, q: Quantised, *, transposed: bool = False) -> Any:
    """x @ dequantise(q), or with `transposed` x @ dequantise(q).T, without that array ever being stored.

    x is [..., in] and q [in, out], or [out, in] with `transposed`. The result has the type of x, where that is a float.
    """
    if q.ndim != 2:
        raise ValueError(f"quantised_matmul: the quantised array has two axes, and its shape is {q.shape}.")
    given, data, scale, zero = either(x, q.data, q.scale, q.zero)
    inner = 1 if transposed else 0
    if given.ndim < 1 or given.shape[-1] != q.shape[inner]:
        wanted = "[..., in] and [out, in]" if transposed else "[..., in] and [in, out]"
        raise ValueError(f"quantised_matmul: {wanted} do not fit: the shapes are {given.shape} and {q.shape}.")
    q = Quantised(data, scale, zero, q.bits, q.shape, q.axis)
    values = converted(given, np.float32) if given.dtype.kind in "biu" else in_single(given)
    if q.axis == inner:
        values = values * scale
    result = np.tensordot(values, converted(_numbers(q), values.dtype), axes=((-1,), (inner,)))
    if q.axis != inner:
        result = result * scale
    return converted(result, given.dtype) if given.dtype.kind == "f" else result


def rows_of(q: Quantised, ids: Any) -> Any:
    """dequantise(q)[ids], which dequantises only those rows."""
    data, scale, zero, ids = either(q.data, q.scale, q.zero, ids)
    if ids.dtype.kind not in "iu":
        raise TypeError(f"embedding: ids are integers, not {ids.dtype}.")
    if q.ndim < 2:
        raise ValueError(f"embedding: a quantised table has at least two axes, and its shape is {q.shape}.")
    shape = (*ids.shape, *q.shape[1:])
    picked = np.take(data, ids, axis=0)
    if q.axis == 0:
        ends = (*ids.shape, *(1 for _ in q.shape[1:]))
        scale = np.take(scale, ids, axis=0).reshape(ends)
        zero = None if zero is None else np.take(zero, ids, axis=0).reshape(ends)
        return _shifted(picked, zero, q.bits, shape) * scale
    axis = None if q.axis is None else q.axis - 1 + ids.ndim
    return dequantise(Quantised(picked, scale, zero, q.bits, shape, axis))


def _parts(q: Quantised) -> list[Any]:
    return either(q.data, q.scale, q.zero)


def _numbers(q: Quantised) -> Any:
    """The stored integers minus the zero point, as floats."""
    data, _, zero = _parts(q)
    return _shifted(data, None if zero is None else _beside(zero, q.ndim, q.axis), q.bits, q.shape)


def _shifted(data: Any, zero: Any, bits: int, shape: tuple[int, ...]) -> Any:
    """The stored integers as float32, minus the integer that stands for 0.0."""
    numbers = converted(data if bits == 8 else _unpacked(data, shape), np.float32)
    if zero is not None:
        return numbers - converted(zero, np.float32)
    return numbers - np.float32(_MIDDLE[bits]) if _MIDDLE[bits] else numbers


def _packed(numbers: Any) -> Any:
    """Two numbers of 4 bits in each byte, along the last axis."""
    if numbers.shape[-1] % 2:
        numbers = np.pad(numbers, [(0, 0)] * (numbers.ndim - 1) + [(0, 1)])
    return numbers[..., 0::2] | (numbers[..., 1::2] << np.uint8(4))


def _unpacked(data: Any, shape: tuple[int, ...]) -> Any:
    """The numbers of 4 bits, two from each byte along the last axis, the low half first."""
    shifts = table(np.array([0, 4], np.uint8), data)
    pairs = (data[..., None] >> shifts) & np.uint8(15)
    numbers = pairs.reshape((*data.shape[:-1], 2 * data.shape[-1]))
    return numbers[..., : shape[-1]] if shape[-1] % 2 else numbers


def _extreme(function: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """The largest or smallest along axes; 0 where there is nothing."""
    return function(x, axis=axes) if x.size else np.sum(x, axis=axes)


def _array(x: Any) -> Any:
    """NumPy makes scalars of arrays without axes."""
    return x if isinstance(x, Array) else np.asarray(x)


def _beside(scale: Any, dimensions: int, axis: int | None) -> Any:
    """One number for each position along an axis, shaped to broadcast against an array with that axis."""
    if axis is None:
        return scale
    return scale.reshape(tuple(-1 if each == axis else 1 for each in range(dimensions)))


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
    """The normalised value times its weight, plus its bias. Raises `ValueError` for other shapes than the axes have."""
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
