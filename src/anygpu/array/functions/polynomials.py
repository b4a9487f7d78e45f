"""Polynomials as NumPy's `poly*` functions have them: coefficients with the highest power first."""

from __future__ import annotations

from typing import Any

import numpy as np

from anygpu.array.core.array import Array, as_array, device_of
from anygpu.array.core.overrides import implements
from anygpu.array.functions.concatenation import concat
from anygpu.array.functions.creation import vander, zeros
from anygpu.array.functions.interpolation import convolve
from anygpu.array.functions.linalg import lstsq
from anygpu.array.functions.manipulation import atleast_1d, trim_zeros
from anygpu.array.functions.ranges import arange
from anygpu.array.functions.reductions import sum as total


@implements(np.polyval)
def polyval(p: Any, x: Any) -> Array:
    """The polynomial's value at each x, by Horner's rule."""
    device = device_of(p, x)
    coefficients, points = as_array(p, device), as_array(x, device)
    result = points * 0
    for position in range(coefficients.shape[0]):
        result = result * points + coefficients[position]
    return result


@implements(np.polyadd)
def polyadd(a1: Any, a2: Any) -> Array:
    one, other = _same_length(a1, a2)
    return one + other


@implements(np.polysub)
def polysub(a1: Any, a2: Any) -> Array:
    one, other = _same_length(a1, a2)
    return one - other


@implements(np.polymul)
def polymul(a1: Any, a2: Any) -> Array:
    """The product. Zeros before the first power are left out, so the first coefficients have to be known."""
    device = device_of(a1, a2)
    one, other = (trim_zeros(atleast_1d(as_array(each, device)), "f") for each in (a1, a2))
    # NumPy has a polynomial of nothing but zeros as one zero.
    one, other = (each if each.shape[0] else zeros(1, dtype=each.dtype, device=device) for each in (one, other))
    return convolve(one, other)


@implements(np.polyder)
def polyder(p: Any, m: int = 1) -> Array:
    """The derivative, m times."""
    if m < 0:
        raise ValueError("m must be 0 or more; use polyint for antiderivatives.")
    coefficients: Array = atleast_1d(as_array(p))
    for _ in range(m):
        powers = arange(coefficients.shape[0] - 1, 0, -1, device=coefficients._device)
        coefficients = coefficients[:-1] * powers
    return coefficients


@implements(np.polyint)
def polyint(p: Any, m: int = 1, k: Any = None) -> Array:
    """The antiderivative, m times, with the constants k."""
    if m < 0:
        raise ValueError("m must be 0 or more; use polyder for derivatives.")
    coefficients: Array = atleast_1d(as_array(p))
    constants = np.zeros(m) if k is None else np.broadcast_to(np.atleast_1d(np.asarray(k, float)), m)
    for position in range(m):
        powers = arange(coefficients.shape[0], 0, -1, device=coefficients._device)
        last = as_array(constants[position : position + 1], coefficients._device)
        coefficients = concat([coefficients / powers, last])
    return coefficients


@implements(np.polyfit)
def polyfit(x: Any, y: Any, deg: int, rcond: float | None = None, full: bool = False, w: Any = None) -> Array:
    """The polynomial of that degree that fits best, by least squares."""
    if full:
        raise NotImplementedError("polyfit(full=True) is not implemented: call linalg.lstsq on vander(x, deg + 1).")
    device = device_of(x, y)
    points, values = as_array(x, device) + 0.0, as_array(y, device) + 0.0
    if points.ndim != 1 or values.ndim not in (1, 2) or points.shape[0] != values.shape[0] or deg < 0:
        raise ValueError("polyfit takes points in a vector, as many values, and a degree of 0 or more.")
    matrix = vander(points, deg + 1)
    if w is not None:
        weights = as_array(w, device) + 0.0
        matrix = matrix * weights[:, None]
        values = values * (weights[:, None] if values.ndim == 2 else weights)
    scale = total(matrix * matrix, axis=0) ** 0.5
    tolerance = points.shape[0] * float(np.finfo(points.dtype).eps) if rcond is None else rcond
    solution = lstsq(matrix / scale, values, tolerance)[0]
    result: Array = (solution.T / scale).T
    return result


def _same_length(a1: Any, a2: Any) -> tuple[Array, Array]:
    device = device_of(a1, a2)
    one, other = atleast_1d(as_array(a1, device)), atleast_1d(as_array(a2, device))
    missing = one.shape[0] - other.shape[0]
    if missing < 0:
        one = concat([zeros(-missing, dtype=one.dtype, device=one._device), one])
    elif missing > 0:
        other = concat([zeros(missing, dtype=other.dtype, device=other._device), other])
    return one, other
