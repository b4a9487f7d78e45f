"""Discrete Fourier transforms: the Array API's `fft` extension and the rest of `numpy.fft`.

One primitive does a transform along an axis; cutting, padding, scaling and further axes are composed around it. `hfft`
and `ihfft` are real transforms of the conjugate, and shifts exchange the halves of an axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from anygpu.array.core import recording
from anygpu.array.core.arguments import slice_axis
from anygpu.array.core.array import Array, as_array
from anygpu.array.core.device import device_for
from anygpu.array.core.expression import Value
from anygpu.array.core.overrides import implements
from anygpu.array.functions.manipulation import rolled
from anygpu.program.dtypes import COMPLEX_OF, KIND, DType
from anygpu.program.functions import FourierFunction
from anygpu.program.primitives import Fourier, Iota, Pad, Spec

#: Exported by `anygpu.fft`.
__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifft2", "ifftn", "ifftshift", "ihfft", "irfft",
    "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn",
]  # fmt: skip

Norm = Literal["backward", "ortho", "forward"] | None

#: A Hermitian transform is a real one in the other direction, and so is its scale.
_SWAPPED: dict[Norm, Norm] = {None: "forward", "backward": "forward", "ortho": "ortho", "forward": "backward"}


# Along one axis


@implements(np.fft.fft)
def fft(a: Any, n: int | None = None, axis: int = -1, norm: Norm = None) -> Array:
    """The Fourier transform along an axis, which is first cut or filled with zeros to the length `n`."""
    return Array(_transform("fft", as_array(a)._value, n, axis, norm))


@implements(np.fft.ifft)
def ifft(a: Any, n: int | None = None, axis: int = -1, norm: Norm = None) -> Array:
    """The inverse of `fft`."""
    return Array(_transform("ifft", as_array(a)._value, n, axis, norm))


@implements(np.fft.rfft)
def rfft(a: Any, n: int | None = None, axis: int = -1, norm: Norm = None) -> Array:
    """The half of the transform of real numbers that says it all: `n // 2 + 1` of its terms."""
    return Array(_transform("rfft", as_array(a)._value, n, axis, norm))


@implements(np.fft.irfft)
def irfft(a: Any, n: int | None = None, axis: int = -1, norm: Norm = None) -> Array:
    """The inverse of `rfft`. Give `n` if the real numbers were odd in number: the half does not tell."""
    return Array(_transform("irfft", as_array(a)._value, n, axis, norm))


@implements(np.fft.hfft)
def hfft(a: Any, n: int | None = None, axis: int = -1, norm: Norm = None) -> Array:
    """The transform, real as it is, of a signal with Hermitian symmetry, of which half is given."""
    x = as_array(a)._value
    if KIND[x.spec.dtype] == "complex":
        x = recording.unary("conj", x)
    return Array(_transform("irfft", x, n, axis, _swapped(norm)))


@implements(np.fft.ihfft)
def ihfft(a: Any, n: int | None = None, axis: int = -1, norm: Norm = None) -> Array:
    """The inverse of `hfft`."""
    return Array(recording.unary("conj", _transform("rfft", as_array(a)._value, n, axis, _swapped(norm))))


# Along several axes


@implements(np.fft.fftn)
def fftn(a: Any, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = None) -> Array:
    """`fft` along each of the axes; `s` is the length of each."""
    return _transform_each("fft", as_array(a), s, axes, norm)


@implements(np.fft.ifftn)
def ifftn(a: Any, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = None) -> Array:
    """The inverse of `fftn`."""
    return _transform_each("ifft", as_array(a), s, axes, norm)


@implements(np.fft.rfftn)
def rfftn(a: Any, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = None) -> Array:
    """`rfft` along the last of the axes, then `fft` along the others."""
    x = as_array(a)._value
    lengths, places = _lengths_and_axes(x, s, axes)
    _check_last(places)
    x = _transform("rfft", x, lengths[-1], places[-1], norm)
    for n, axis in reversed(list(zip(lengths[:-1], places[:-1], strict=True))):
        x = _transform("fft", x, n, axis, norm)
    return Array(x)


@implements(np.fft.irfftn)
def irfftn(a: Any, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = None) -> Array:
    """The inverse of `rfftn`. Give `s` if the last axis was odd in length."""
    x = as_array(a)._value
    lengths, places = _lengths_and_axes(x, s, axes)
    _check_last(places)
    for n, axis in zip(lengths[:-1], places[:-1], strict=True):
        x = _transform("ifft", x, n, axis, norm)
    return Array(_transform("irfft", x, None if s is None else lengths[-1], places[-1], norm))


@implements(np.fft.fft2)
def fft2(a: Any, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1), norm: Norm = None) -> Array:
    """`fftn` along two axes."""
    return fftn(a, s, axes, norm)


@implements(np.fft.ifft2)
def ifft2(a: Any, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1), norm: Norm = None) -> Array:
    """`ifftn` along two axes."""
    return ifftn(a, s, axes, norm)


@implements(np.fft.rfft2)
def rfft2(a: Any, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1), norm: Norm = None) -> Array:
    """`rfftn` along two axes."""
    return rfftn(a, s, axes, norm)


@implements(np.fft.irfft2)
def irfft2(a: Any, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1), norm: Norm = None) -> Array:
    """`irfftn` along two axes."""
    return irfftn(a, s, axes, norm)


# Frequencies and their order


@implements(np.fft.fftfreq)
def fftfreq(n: int, d: Any = 1.0, device: object | None = None, *, dtype: Any = None) -> Array:
    """The frequencies that the terms of `fft` stand for, where samples are `d` apart."""
    n = _samples(n)
    count = _counted(n, n, device)
    beyond = recording.binary("greater", count, (n - 1) // 2)
    signed = recording.where(beyond, recording.binary("subtract", count, n), count)
    return _as_frequencies(signed, n, d, dtype)


@implements(np.fft.rfftfreq)
def rfftfreq(n: int, d: Any = 1.0, device: object | None = None, *, dtype: Any = None) -> Array:
    """The frequencies that the terms of `rfft` stand for, where samples are `d` apart."""
    n = _samples(n)
    return _as_frequencies(_counted(n, n // 2 + 1, device), n, d, dtype)


@implements(np.fft.fftshift)
def fftshift(x: Any, axes: int | Sequence[int] | None = None) -> Array:
    """The frequency 0 in the middle instead of at the start."""
    return _rolled(as_array(x), axes, forwards=True)


@implements(np.fft.ifftshift)
def ifftshift(x: Any, axes: int | Sequence[int] | None = None) -> Array:
    """The inverse of `fftshift`."""
    return _rolled(as_array(x), axes, forwards=False)


def _transform(fn: FourierFunction, x: Value, n: int | None, axis: int, norm: Norm) -> Value:
    """One transform along an axis, cut or padded to `n` first, and scaled as `norm` says.

    Types follow `numpy.fft`: float16 is computed in float32, and its factor is rounded to float16. Raises `ValueError`
    for a length below 1.
    """
    own = x.spec.dtype
    position = recording.normal_axis(axis, len(x.spec.shape))
    given = x.spec.shape[position]
    if n is None:
        n = 2 * (given - 1) if fn == "irfft" else given
    length = n.__index__()
    if length < 1:
        raise ValueError(f"Invalid number of FFT data points ({length}) specified.")
    scale = _scale(fn, length, norm)
    if own == "float16" and scale != 1:
        scale = float(np.float16(scale))  # NumPy rounds the factor to the type that it was given
    x = recording.cast(x, _input_dtype(fn, own))
    x = _resized(x, position, length // 2 + 1 if fn == "irfft" else length)
    x = recording.apply(Fourier(fn, position, length), x)
    if scale != 1:
        x = recording.binary("multiply", x, scale)
    return recording.cast(x, own) if fn == "irfft" and own == "float16" else x


def _input_dtype(fn: FourierFunction, dtype: DType) -> DType:
    """The type that is transformed: single precision stays it, all other real numbers become double."""
    kind = KIND[dtype]
    if fn == "rfft":
        if kind == "complex":
            raise TypeError(f"rfft and ihfft take real numbers, not {dtype}: use fft and ifft, or take x.real first.")
        return "float64" if kind != "float" else "float32" if dtype in ("float16", "bfloat16") else dtype
    return dtype if kind == "complex" else COMPLEX_OF.get(dtype, "complex128")


def _scale(fn: FourierFunction, length: int, norm: Norm) -> float:
    """The factor for the primitive's result, which is unscaled forwards and divided by the length backwards."""
    if norm not in (None, "backward", "ortho", "forward"):
        raise ValueError(f'Invalid norm value {norm}; should be "backward", "ortho" or "forward".')
    if norm in (None, "backward"):
        return 1
    factor = math.sqrt(length) if norm == "ortho" else float(length)
    return 1 / factor if fn in ("fft", "rfft") else factor


def _swapped(norm: Norm) -> Norm:
    return _SWAPPED.get(norm, norm)  # what is not known is refused where it is used


def _resized(x: Value, axis: int, length: int) -> Value:
    """The axis truncated, or padded with zeros at its end."""
    shape = x.spec.shape
    missing = length - shape[axis]
    zeros = (0,) * len(shape)
    if missing > 0:
        high = (*zeros[:axis], missing, *zeros[axis + 1 :])
        return recording.apply(Pad(zeros, high), x, recording.constant(0, x.spec.dtype))
    return slice_axis(x, axis, 0, length)


def _transform_each(
    fn: FourierFunction, array: Array, s: Sequence[int] | None, axes: Sequence[int] | None, norm: Norm
) -> Array:
    """One transform after the other along several axes, the last axis first, as NumPy does.

    Without axes, the array itself.
    """
    x = array._value
    lengths, places = _lengths_and_axes(x, s, axes)
    if not places:
        return array
    for n, axis in reversed(list(zip(lengths, places, strict=True))):
        x = _transform(fn, x, n, axis, norm)
    return Array(x)


def _lengths_and_axes(x: Value, s: Sequence[int] | None, axes: Sequence[int] | None) -> tuple[list[int], list[int]]:
    """The length of each transform and its axis, which may be named twice. Without `axes`, `s` is for the last ones."""
    dimensions = len(x.spec.shape)
    if axes is None:
        count = dimensions if s is None else len(s)
        axes = range(-count, 0)
    places = [recording.normal_axis(axis, dimensions) for axis in axes]
    if s is None:
        return [x.spec.shape[axis] for axis in places], places
    if len(s) != len(places):
        raise ValueError(f"Shape and axes have different lengths: s={tuple(s)} and {len(places)} axes.")
    return [x.spec.shape[axis] if n == -1 else n for n, axis in zip(s, places, strict=True)], places


def _check_last(axes: list[int]) -> None:
    if not axes:
        raise IndexError("a transform of real numbers needs at least one axis.")


def _counted(n: int, length: int, device: object | None) -> Value:
    """0, 1, 2, … on the device."""
    target = None if device is None else device_for(device)
    return Value(Iota(length, "float64"), (), Spec((length,), "float64"), target)


def _samples(n: int) -> int:
    """The number of samples of `fftfreq`. Raises `ValueError` for what is no integer or below 0."""
    if not hasattr(n, "__index__"):
        raise ValueError(f"n should be an integer: it is the number of samples, not {n!r}.")
    count = n.__index__()
    if count < 0:
        raise ValueError(f"the number of samples is 0 or more, not {count}.")
    return count


def _as_frequencies(count: Value, n: int, d: Any, dtype: Any) -> Array:
    frequencies: Array = Array(count) * (1.0 / (n * d))
    return frequencies if dtype is None else frequencies.astype(dtype, copy=False)


def _listed(axes: int | Sequence[int] | None, dimensions: int) -> Sequence[int]:
    """The axes as a sequence; all of them where none are named."""
    if axes is None:
        return range(dimensions)
    return (axes.__index__(),) if hasattr(axes, "__index__") else axes


def _rolled(array: Array, axes: int | Sequence[int] | None, *, forwards: bool) -> Array:
    """The halves of each axis exchanged, by which `fftshift` and `ifftshift` move the frequency 0; always a new array.

    Of an odd length, `forwards` moves the longer half to the end, and its inverse moves it back.
    """
    x = array._value
    for axis in _listed(axes, array.ndim):
        position = recording.normal_axis(axis, array.ndim)
        length = array.shape[position]
        x = rolled(x, length // 2 if forwards else -(length // 2), position)
    return array.copy() if x is array._value else Array(x)
