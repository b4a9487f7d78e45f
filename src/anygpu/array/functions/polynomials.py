"""Linear interpolation, convolution and correlation, and polynomials as NumPy's `poly*` functions have them."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from anygpu.array.core import recording
from anygpu.array.core.arguments import arrays, same_dtype, slice_axis, to_array
from anygpu.array.core.array import Array, as_array, device_of
from anygpu.array.core.expression import Value, active_tracer
from anygpu.array.core.overrides import implements
from anygpu.array.core.recording import apply, binary, broadcast, cast, compare, constant, reshape, unary, where
from anygpu.array.functions.concatenation import concat
from anygpu.array.functions.creation import vander, zeros, zeros_like
from anygpu.array.functions.linalg import lstsq
from anygpu.array.functions.manipulation import atleast_1d, trim_zeros
from anygpu.array.functions.ranges import arange
from anygpu.array.functions.reductions import sum as total
from anygpu.program.dtypes import KIND, DType, is_inexact
from anygpu.program.primitives import Argsort, Concatenate, Contract, Flip, Gather, Pad, Reduce, Search, Slice, Windows

# -- interpolation and convolution


Mode = Literal["full", "same", "valid"]

#: Longer overlaps at the ends are not computed place by place, which takes the square of their length.
_LONG_EDGE = 1024


@implements(np.interp)
def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: float | None = None) -> Array:
    """The height at `x` of a line through the points (xp, fp); xp must go up. In float64, as in NumPy."""
    device = device_of(x, xp, fp)
    at, places, heights = (to_array(each, device)._value for each in (x, xp, fp))
    if len(places.spec.shape) != 1 or places.spec.shape != heights.spec.shape:
        raise ValueError(f"interp: points of shape {places.spec.shape} and {heights.spec.shape} are not two vectors.")
    count = places.spec.shape[0]
    if count == 0:
        raise ValueError("interp needs at least one point.")
    kind: DType = "complex128" if KIND[heights.spec.dtype] == "complex" else "float64"
    at, places, heights = cast(at, "float64"), cast(places, "float64"), cast(heights, kind)
    if period is not None:
        at, places, heights = _periodic(at, places, heights, period)
        left = right = None
        count += 2
    if count == 1:
        result = recording.broadcast(reshape(heights, ()), at.spec.shape)
    else:
        result = _on_the_line(at, places, heights)
    for outside, end, own in (("less", left, 0), ("greater", right, count - 1)):
        edge = reshape(slice_axis(places, 0, own, own + 1), ())
        value = reshape(slice_axis(heights, 0, own, own + 1), ()) if end is None else _height(end, kind, device)
        result = where(compare(outside, at, edge), value, result)  # type: ignore[arg-type]
    return Array(where(unary("isnan", at), cast(at, kind), result) if count > 1 else result)


def _height(end: Any, kind: DType, device: Any) -> Value:
    return cast(to_array(end, device)._value, kind)


def _periodic(at: Value, places: Value, heights: Value, period: float) -> tuple[Value, Value, Value]:
    """One period of sorted points, with one more on each side."""
    if period == 0:
        raise ValueError("interp: the period must not be 0.")
    period = math.fabs(period)
    at, places = binary("remainder", at, period), binary("remainder", places, period)
    order = apply(Argsort(0, stable=False), places)  # which of several points at one place comes first, NumPy decides
    places, heights = apply(Gather(0), places, order), apply(Gather(0), heights, order)
    count = places.spec.shape[0]
    first, last = slice_axis(places, 0, 0, 1), slice_axis(places, 0, count - 1, count)
    places = apply(Concatenate(0), binary("subtract", last, period), places, binary("add", first, period))
    first, last = slice_axis(heights, 0, 0, 1), slice_axis(heights, 0, count - 1, count)
    return at, places, apply(Concatenate(0), last, heights, first)


def _on_the_line(at: Value, places: Value, heights: Value) -> Value:
    """The heights at places between given points, by straight lines.

    `places` increase. A line is computed from its left end and, where that is NaN, from its right one; between two
    equal heights it is flat even where they are infinite. Outside of all points the first and last line go on; the
    caller cuts them off.
    """
    count = places.spec.shape[0]
    kind = heights.spec.dtype
    found = binary("subtract", apply(Search("right"), places, at), 1)
    index = binary("minimum", binary("maximum", found, 0), count - 2)
    after = binary("add", index, 1)
    x0, x1 = (apply(Gather(0), places, each) for each in (index, after))
    y0, y1 = (apply(Gather(0), heights, each) for each in (index, after))
    slope = binary("divide", binary("subtract", y1, y0), cast(binary("subtract", x1, x0), kind))
    from_left, from_right = (
        binary("add", binary("multiply", slope, cast(binary("subtract", at, x), kind)), y)
        for x, y in ((x0, y0), (x1, y1))
    )
    # With infinite heights one side may give NaN where the other does not; and equal heights need no slope.
    line = where(unary("isnan", from_left), from_right, from_left)
    flat = binary("bitwise_and", unary("isnan", line), compare("equal", y0, y1))
    line = where(flat, y0, line)
    line = where(compare("equal", at, x0), y0, line)
    return where(compare("greater_equal", at, x1), y1, line)


@implements(np.convolve)
def convolve(a: Any, v: Any, mode: Mode = "full") -> Array:
    """One vector, turned, moved along the other: the sum of products at each shift."""
    one, other = _vectors(a, v)
    if one.spec.size < other.spec.size:
        one, other = other, one
    return Array(_moved(one, apply(Flip((0,)), other), mode))


@implements(np.correlate)
def correlate(a: Any, v: Any, mode: Mode = "valid") -> Array:
    """One vector, conjugated, moved along the other: the sum of products at each shift."""
    one, other = _vectors(a, v)
    if KIND[other.spec.dtype] == "complex":
        other = unary("conj", other)
    if one.spec.size < other.spec.size:
        return Array(apply(Flip((0,)), _moved(other, one, mode)))
    return Array(_moved(one, other, mode))


def _vectors(a: Any, v: Any) -> list[Value]:
    """Both operands of a convolution as vectors of one type. Raises `ValueError` for matrices and for nothing."""
    pair = arrays(a, v)
    if any(each.ndim > 1 for each in pair):
        raise ValueError("convolve and correlate take vectors.")
    if any(each.size == 0 for each in pair):
        raise ValueError("convolve and correlate need at least one element on each side.")
    return same_dtype(*(reshape(each._value, (each.size,)) for each in pair))


def _moved(longer: Value, shorter: Value, mode: Mode) -> Value:
    """The shorter vector moved along the longer one; the mode says how far it may stand out at the ends."""
    size = shorter.spec.shape[0]
    match mode:
        case "full":
            low = high = size - 1
        case "same":
            low = size // 2
            high = size - low - 1
        case "valid":
            low = high = 0
        case _:
            raise ValueError(f'mode is "full", "same" or "valid", not {mode!r}.')
    if shorter.spec.dtype == "float16":  # NumPy adds up in float32
        return cast(_moved(cast(longer, "float32"), cast(shorter, "float32"), mode), "float16")
    if not is_inexact(shorter.spec.dtype) or not (low or high):
        return _products(_padded(longer, low, high), shorter)
    if size > _LONG_EDGE:
        if (tracer := active_tracer.get()) is not None:
            tracer.stop(
                f"it convolves or correlates two vectors of more than {_LONG_EDGE:,} numbers each, beyond their ends"
            )
        return _products(_padded(longer, low, high), shorter)
    first = _edge(apply(Slice((0,), (size - 1,), (1,)), longer), shorter, low, 0)
    length = longer.spec.shape[0]
    last = _edge(apply(Slice((length - size + 1,), (length,), (1,)), longer), shorter, 0, high)
    return apply(Concatenate(0), *first, _products(longer, shorter), *last)


def _padded(values: Value, low: int, high: int) -> Value:
    """Return the vector with `low` zeros before it and `high` behind it."""
    return apply(Pad((low,), (high,)), values, constant(0, values.spec.dtype)) if low or high else values


def _products(longer: Value, shorter: Value) -> Value:
    """Return the sum of products at each place where the shorter vector lies within the longer one."""
    return apply(Contract((1,), (0,)), apply(Windows(0, shorter.spec.shape[0], 1), longer), shorter)


def _edge(values: Value, shorter: Value, low: int, high: int) -> list[Value]:
    """Return the sums of products where the shorter vector stands out at one end.

    Elements without a partner are left out, not multiplied by 0: an infinity times 0 is NaN.
    """
    if not (low or high):
        return []
    size = shorter.spec.shape[0]
    there = broadcast(constant(True, "bool"), values.spec.shape)
    beside = apply(Windows(0, size, 1), _padded(values, low, high))
    met = apply(Windows(0, size, 1), _padded(there, low, high))
    products = binary("multiply", beside, broadcast(shorter, beside.spec.shape))
    return [apply(Reduce("sum", (1,)), where(met, products, 0))]


# -- polynomials: coefficients with the highest power first


@implements(np.polyval)
def polyval(p: Any, x: Any) -> Array:
    """The polynomial's value at each x, by Horner's rule."""
    device = device_of(p, x)
    coefficients, points = as_array(p, device), as_array(x, device)
    result = zeros_like(points)
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
    """Both polynomials with as many coefficients, zeros in front of the shorter one."""
    device = device_of(a1, a2)
    one, other = atleast_1d(as_array(a1, device)), atleast_1d(as_array(a2, device))
    missing = one.shape[0] - other.shape[0]
    if missing < 0:
        one = concat([zeros(-missing, dtype=one.dtype, device=one._device), one])
    elif missing > 0:
        other = concat([zeros(missing, dtype=other.dtype, device=other._device), other])
    return one, other
