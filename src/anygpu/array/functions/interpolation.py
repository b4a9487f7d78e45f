"""Linear interpolation, convolution and correlation."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from anygpu.array.core import recording
from anygpu.array.core.arguments import arrays, same_dtype, slice_axis, to_array
from anygpu.array.core.array import Array, device_of
from anygpu.array.core.expression import Value
from anygpu.array.core.overrides import implements
from anygpu.array.core.recording import apply, binary, cast, compare, constant, reshape, unary, where
from anygpu.program.dtypes import KIND, DType
from anygpu.program.primitives import Argsort, Concatenate, Contract, Flip, Gather, Pad, Search, Windows

Mode = Literal["full", "same", "valid"]


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
    order = apply(Argsort(0), places)
    places, heights = apply(Gather(0), places, order), apply(Gather(0), heights, order)
    count = places.spec.shape[0]
    first, last = slice_axis(places, 0, 0, 1), slice_axis(places, 0, count - 1, count)
    places = apply(Concatenate(0), binary("subtract", last, period), places, binary("add", first, period))
    first, last = slice_axis(heights, 0, 0, 1), slice_axis(heights, 0, count - 1, count)
    return at, places, apply(Concatenate(0), last, heights, first)


def _on_the_line(at: Value, places: Value, heights: Value) -> Value:
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
    if low or high:
        longer = apply(Pad((low,), (high,)), longer, constant(0, longer.spec.dtype))
    return apply(Contract((1,), (0,)), apply(Windows(0, size, 1), longer), shorter)
