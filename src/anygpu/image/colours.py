"""Colours: grey, HSV, normalisation and equalisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anygpu.array.core.arguments import converted, either, filled, table
from anygpu.array.core.array import Array
from anygpu.array.core.recording import apply
from anygpu.image.layouts import Layout, as_given, channel_axis, checked, in_float
from anygpu.program.primitives import Scatter


def to_gray(image: Any, *, weights: Sequence[float] = (0.299, 0.587, 0.114), layout: Layout = "HWC") -> Any:
    """The brightness of red, green and blue (ITU-R BT.601 unless `weights` say otherwise), without the channels."""
    given, _ = checked(image, layout)
    axis = channel_axis(given, layout, len(weights))
    parts = _channels(in_float(given), axis)
    total = parts[0] * float(weights[0])
    for part, weight in zip(parts[1:], weights[1:], strict=True):
        total = total + part * float(weight)
    return as_given(total, given)


def rgb_to_hsv(image: Any, *, layout: Layout = "HWC") -> Any:
    """Hue, saturation and value, all from 0 to 1, as floats. Integers are taken as parts of their largest."""
    given, _ = checked(image, layout)
    axis = channel_axis(given, layout, 3)
    red, green, blue = _channels(_unit(given), axis)
    value = np.maximum(np.maximum(red, green), blue)
    spread = value - np.minimum(np.minimum(red, green), blue)
    divisor = np.where(spread > 0, spread, 1)
    by_red = (green - blue) / divisor
    by_green = 2 + (blue - red) / divisor
    by_blue = 4 + (red - green) / divisor
    sixths = np.where(value == red, by_red, np.where(value == green, by_green, by_blue))
    turns = sixths / 6
    hue = np.where(spread > 0, turns - np.floor(turns), 0)
    saturation = np.where(value > 0, spread / np.where(value > 0, value, 1), 0)
    return np.stack([converted(each, value.dtype) for each in (hue, saturation, value)], axis=axis)


def hsv_to_rgb(image: Any, *, layout: Layout = "HWC") -> Any:
    """Red, green and blue from hue, saturation and value, all from 0 to 1, as floats. Hues repeat after 1."""
    given, _ = checked(image, layout)
    axis = channel_axis(given, layout, 3)
    hue, saturation, value = _channels(_unit(given), axis)
    parts = []
    for start in (5, 3, 1):
        sector = hue * 6 + start
        sector = sector - np.floor(sector / 6) * 6
        parts.append(value - value * saturation * np.clip(np.minimum(sector, 4 - sector), 0, 1))
    return np.stack(parts, axis=axis)


def normalise(
    image: Any, mean: float | Sequence[float], std: float | Sequence[float], *, layout: Layout = "HWC"
) -> Any:
    """(image - mean) / std as floats, for all channels or one number for each; integers go from 0 to 1 before."""
    given, _ = checked(image, layout)
    x = _unit(given)
    return (x - _for_channels("mean", mean, x, layout)) / _for_channels("std", std, x, layout)


def equalise(image: Any, *, layout: Layout = "HWC") -> Any:
    """A uint8 image whose brightnesses are all about as frequent, each channel by itself."""
    given, axes = checked(image, layout)
    if given.dtype != np.uint8:
        raise TypeError(f"equalise takes uint8, not {given.dtype}: the histogram has 256 bins.")
    if given.size == 0:
        return given
    # Height and width last, all else in front: one row for each channel of each image.
    turned = np.moveaxis(given, axes, (-2, -1))
    count = turned.shape[-2] * turned.shape[-1]
    rows = turned.reshape((-1, count))
    # Each row counts into 256 bins of its own, so that one scatter counts all of them.
    firsts = table(256 * np.arange(rows.shape[0], dtype=np.int32)[:, None], rows)
    places = (converted(rows, np.int32) + firsts).reshape(-1)
    up_to = np.cumsum(_counted(places, 256 * rows.shape[0]).reshape((-1, 256)), axis=1)
    fewest = np.min(np.where(up_to > 0, up_to, count), axis=1, keepdims=True)
    spread = np.maximum(count - fewest, 1)
    scaled = converted(up_to - fewest, np.float32) * 255 / converted(spread, np.float32)
    levels = table(np.arange(256, dtype=np.uint8)[None, :], rows)
    # A row of one brightness stays as it is.
    shades = np.where(fewest == count, levels, converted(np.clip(np.rint(scaled), 0, 255), np.uint8))
    done = np.take(shades.reshape(-1), places, axis=0)
    return np.moveaxis(done.reshape(turned.shape), (-2, -1), axes)


def _counted(places: Any, length: int) -> Any:
    """How often each of the numbers 0 … length - 1 occurs."""
    if not isinstance(places, Array):
        return np.bincount(places, minlength=length)
    # `bincount` would first have to compute the largest number; here it is known.
    return Array(
        apply(Scatter("add", 0), filled((length,), 0, "int32"), places._value, filled(places.shape, 1, "int32"))
    )


def _unit(image: Any) -> Any:
    """Floats as they are; integers from 0 to 1."""
    if image.dtype.kind in "iu":
        return in_float(image) / float(np.iinfo(image.dtype).max)
    return in_float(image)


def _channels(x: Any, axis: int) -> list[Any]:
    before = (slice(None),) * axis
    return [x[(*before, each)] for each in range(x.shape[axis])]


def _for_channels(name: str, given: Any, x: Any, layout: str) -> Any:
    """One number, or one for each channel so that they meet theirs."""
    if not isinstance(given, Sequence | np.ndarray | Array):
        return given
    (numbers,) = either(given)
    if numbers.ndim == 0:
        return converted(numbers, x.dtype)
    axis = channel_axis(x, layout, None)
    if numbers.shape != (x.shape[axis],):
        raise ValueError(f"normalise: {name} has {numbers.size} numbers for {x.shape[axis]} channels.")
    return converted(numbers, x.dtype).reshape((-1,) + (1,) * (x.ndim - 1 - axis))
