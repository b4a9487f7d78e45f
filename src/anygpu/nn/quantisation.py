"""Weights in 8 or 4 bits: quantise, dequantise, and matrix products that dequantise as they read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from anygpu.array.core.arguments import converted, either, in_single, table
from anygpu.array.core.array import Array
from anygpu.array.core.recording import normal_axis

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
