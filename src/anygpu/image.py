"""`anygpu.image`: resizing, filters and colours, for NumPy's arrays and for anygpu's, on every engine.

An image is [height, width], or with channels [height, width, channel]; axes in front of these are as many images.
`layout` says otherwise: "CHW" for channels in front, "HW" for no channels. An array of two axes never has channels.
Integers come out as integers of the same type, rounded and kept in its range; floats stay floats.

The functions compute with NumPy's own names, so that NumPy's arrays stay NumPy's and anygpu's are recorded. Layouts
come first, then colours, resizing, the median by a sorting network, and filters.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from anygpu.array.core.arguments import converted, either, filled, table
from anygpu.array.core.array import Array
from anygpu.array.core.recording import apply
from anygpu.errors import InvalidOption
from anygpu.program.primitives import Scatter

__all__ = [
    "box_blur",
    "equalise",
    "filter",
    "gaussian_blur",
    "gradient_magnitude",
    "hsv_to_rgb",
    "laplacian",
    "median",
    "normalise",
    "resize",
    "rgb_to_hsv",
    "sharpen",
    "sobel",
    "to_gray",
]


# -- image layouts
#
# The axes of height, width and channels, and conversion between integers and floats.


ImageLayout = Literal["HWC", "CHW", "HW"]

_PLANES: dict[str, tuple[int, int]] = {"HWC": (-3, -2), "CHW": (-2, -1), "HW": (-2, -1)}


def checked(image: Any, layout: str) -> tuple[Any, tuple[int, int]]:
    """The image as an array, and its axes of height and width, counted from the front.

    Raises `InvalidOption` for an unknown layout, `TypeError` for complex numbers and `ValueError` for too few axes.
    """
    if layout not in _PLANES:
        raise InvalidOption(f'layout is "HWC", "CHW" or "HW", not {layout!r}.')
    (given,) = either(image)
    if given.dtype.kind not in "biuf":
        raise TypeError(f"an image holds real numbers, not {given.dtype}.")
    if given.ndim < 2:
        raise ValueError(f"an image has at least two axes, height and width; the shape is {given.shape}.")
    height, width = _PLANES["HW" if given.ndim == 2 else layout]
    return given, (given.ndim + height, given.ndim + width)


def channel_axis(image: Any, layout: str, count: int | None) -> int:
    """The axis of channels. Raises `ValueError` if there is none, or if it has not `count` channels."""
    if layout == "HW" or image.ndim < 3:
        raise ValueError(f"an image with channels has three axes; the shape is {image.shape}, and the layout {layout}.")
    axis: int = image.ndim - (1 if layout == "HWC" else 3)
    if count is not None and image.shape[axis] != count:
        other = " Is its layout CHW?" if layout == "HWC" and image.shape[-3] == count else ""
        raise ValueError(f"the image has {image.shape[axis]} channels along axis {axis}, and not {count}.{other}")
    return axis


def in_float(image: Any) -> Any:
    """The image in the dtype of the computation: float32 for integers and half precision."""
    return image if image.dtype in (np.float32, np.float64) else converted(image, np.float32)


def as_given(result: Any, image: Any) -> Any:
    """The result in the dtype of the image: integers are rounded, and clipped to the range of the dtype."""
    if image.dtype.kind == "f":
        return converted(result, image.dtype)
    if image.dtype.kind == "b":
        return result >= 0.5
    limits = np.iinfo(image.dtype)
    # A float32 cannot spell the largest int32 and would round it up, out of the range.
    top = limits.max if limits.max < 1 << 24 else float(np.nextafter(np.float32(limits.max), np.float32(0)))
    return converted(np.clip(np.rint(result), limits.min, top), image.dtype)


# -- colours: grey, HSV, normalisation and equalisation


def to_gray(image: Any, *, weights: Sequence[float] = (0.299, 0.587, 0.114), layout: ImageLayout = "HWC") -> Any:
    """The brightness of red, green and blue (ITU-R BT.601 unless `weights` say otherwise), without the channels.

    Raises `ValueError` if there are not as many channels as weights.
    """
    given, _ = checked(image, layout)
    axis = channel_axis(given, layout, len(weights))
    parts = _channels(in_float(given), axis)
    total = parts[0] * float(weights[0])
    for part, weight in zip(parts[1:], weights[1:], strict=True):
        total = total + part * float(weight)
    return as_given(total, given)


def rgb_to_hsv(image: Any, *, layout: ImageLayout = "HWC") -> Any:
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


def hsv_to_rgb(image: Any, *, layout: ImageLayout = "HWC") -> Any:
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
    image: Any, mean: float | Sequence[float], std: float | Sequence[float], *, layout: ImageLayout = "HWC"
) -> Any:
    """(image - mean) / std as floats, for all channels or one number for each; integers go from 0 to 1 before.

    Raises `ValueError` if there are neither one number nor as many as channels.
    """
    given, _ = checked(image, layout)
    x = _unit(given)
    return (x - _for_channels("mean", mean, x, layout)) / _for_channels("std", std, x, layout)


def equalise(image: Any, *, layout: ImageLayout = "HWC") -> Any:
    """A uint8 image whose brightnesses are all about as frequent, each channel by itself.

    A channel of one brightness stays as it is. Raises `TypeError` for other types.
    """
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
    """The parts of an image along its axis of channels, without that axis."""
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


# -- resizing: each axis separately, as weighted sums of neighbours; the host computes the weights


ResizeMethod = Literal["bilinear", "nearest", "bicubic", "area", "lanczos"]

Weights = npt.NDArray[np.float64]

#: More neighbours than this are a matrix product; fewer are picked one by one.
_MOST_PICKED = 8


def resize(
    image: Any,
    size: Sequence[int],
    *,
    method: ResizeMethod = "bilinear",
    antialias: bool = True,
    layout: ImageLayout = "HWC",
) -> Any:
    """The image in the size (height, width).

    Pixels are squares, so that the corners of the squares meet, as in Pillow, torch (`align_corners=False`) and jax.
    What would be read beyond the edge is left out, and the other weights make up for it. With `antialias` a smaller
    image sees all of the larger one. "bicubic" is Keys' with a = -0.5, "lanczos" has three lobes, and "area" is the
    mean over what each new pixel covers.
    """
    given, axes = checked(image, layout)
    lengths = tuple(map(operator.index, size))
    if len(lengths) != 2 or min(lengths) < 0:
        raise ValueError(f"resize: size is (height, width), two whole numbers, not {size!r}.")
    if method != "nearest" and method not in _KERNELS and method != "area":
        raise InvalidOption(f'method is "bilinear", "nearest", "bicubic", "area" or "lanczos", not {method!r}.')
    for axis, length in zip(axes, lengths, strict=True):
        if given.shape[axis] == 0 and length:
            raise ValueError(f"resize: an image of shape {given.shape} has no pixels to make {lengths} of.")
    if method == "nearest":
        result = given
        for axis, length in zip(axes, lengths, strict=True):
            if length != given.shape[axis]:
                picks = ((np.arange(length) + 0.5) * given.shape[axis] / length).astype(np.int64)
                result = np.take(result, picks, axis=axis)
        return result
    result = in_float(given)
    # The axis that shrinks most comes first: less is left for the other.
    steps = sorted(zip(axes, lengths, strict=True), key=lambda step: step[1] / max(given.shape[step[0]], 1))
    for axis, length in steps:
        if length != given.shape[axis]:
            result = _along(result, axis, length, method, bool(antialias))
    return as_given(result, given)


def _along(x: Any, axis: int, length: int, method: str, antialias: bool) -> Any:
    """The image in another length along one axis, as weighted sums of neighbours.

    A few neighbours are gathered one by one; many are a product with a matrix, which is mostly zeros.
    """
    picks, weights = _neighbours(x.shape[axis], length, method, antialias)
    count = picks.shape[1]
    if count > _MOST_PICKED:
        matrix = np.zeros((length, x.shape[axis]))
        np.add.at(matrix, (np.arange(length)[:, None], picks), weights)
        product = np.tensordot(table(matrix.astype(x.dtype), x), x, axes=((1,), (axis,)))
        return np.moveaxis(product, 0, axis)
    ends = (length,) + (1,) * (x.ndim - 1 - axis)
    total = None
    for each in range(count):
        part = np.take(x, picks[:, each], axis=axis) * table(weights[:, each].astype(x.dtype).reshape(ends), x)
        total = part if total is None else total + part
    return converted(total, x.dtype) if total is not None else np.take(x, picks.reshape(-1), axis=axis)


@lru_cache(maxsize=64)
def _neighbours(old: int, new: int, method: str, antialias: bool) -> tuple[npt.NDArray[np.int64], Weights]:
    """For each new position its source positions and their weights: both [new, neighbours].

    The weights of a position add up to 1. Columns that no position uses are left out.
    """
    step = old / max(new, 1)
    centres = (np.arange(new) + 0.5) * step
    if method == "area":
        stretch, reach = 1.0, step / 2
    else:
        kernel, lobes = _KERNELS[method]
        stretch = max(step, 1.0) if antialias else 1.0
        reach = lobes * stretch
    first = np.floor(centres - reach - 0.5).astype(np.int64)
    count = math.ceil(2 * reach) + 2
    picks = first[:, None] + np.arange(count)
    if method == "area":
        covered = np.minimum(picks + 1, (centres + reach)[:, None]) - np.maximum(picks, (centres - reach)[:, None])
        weights = np.maximum(covered, 0.0)
    else:
        weights = kernel(np.abs(picks + 0.5 - centres[:, None]) / stretch)
    weights = np.where((picks >= 0) & (picks < old), weights, 0.0)
    used = np.flatnonzero(np.abs(weights).max(axis=0, initial=0) > 1e-12)
    picks, weights = picks[:, used].clip(0, max(old - 1, 0)), weights[:, used]
    return picks, weights / weights.sum(axis=1, keepdims=True)


def _triangle(distance: Weights) -> Weights:
    """The weights of linear interpolation."""
    return np.clip(1 - distance, 0, None)


def _cubic(distance: Weights) -> Weights:
    """Keys' cubic with a = -0.5."""
    near = (1.5 * distance - 2.5) * distance * distance + 1
    far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    return np.where(distance < 1, near, np.where(distance < 2, far, 0.0))


def _lanczos(distance: Weights) -> Weights:
    """Lanczos' kernel with three lobes."""
    return np.where(distance < 3, np.sinc(distance) * np.sinc(distance / 3), 0.0)


#: The weight function of each method, and its radius.
_KERNELS: dict[str, tuple[Callable[[Weights], Weights], float]] = {
    "bilinear": (_triangle, 1.0),
    "bicubic": (_cubic, 2.0),
    "lanczos": (_lanczos, 3.0),
}


# -- the median of a fixed number of arrays by a sorting network
#
# So that all of it is one kernel.


def median_of(parts: Sequence[Any]) -> Any:
    """The elementwise median of an odd number of arrays."""
    wires = list(parts)
    for low, high, keeps_low, keeps_high in _network(len(wires)):
        one, other = wires[low], wires[high]
        if keeps_low:
            wires[low] = np.minimum(one, other)
        if keeps_high:
            wires[high] = np.maximum(one, other)
    return wires[len(wires) // 2]


@cache
def _network(count: int) -> list[tuple[int, int, bool, bool]]:
    """Comparisons after which the median is in the middle: those of Batcher's merge sort on which it depends."""
    comparisons: list[tuple[int, int]] = []
    p = 1
    while p < count:
        k = p
        while k >= 1:
            for j in range(k % p, count - k, 2 * k):
                starts = range(j, min(j + k, count - k))
                comparisons += [(i, i + k) for i in starts if i // (2 * p) == (i + k) // (2 * p)]
            k //= 2
        p *= 2
    needed = {count // 2}
    kept: list[tuple[int, int, bool, bool]] = []
    for low, high in reversed(comparisons):
        if low in needed or high in needed:
            kept.append((low, high, low in needed, high in needed))
            needed |= {low, high}
    return kept[::-1]


# -- filters: each pixel is computed from its neighbours


Boundary = Literal["reflect", "edge", "constant", "wrap"]

#: With more pixels under a kernel than this the sum is left to a product over windows, which is one primitive.
_MOST_SPELLED = 64


def filter(
    image: Any, kernel: Any, *, boundary: Boundary = "reflect", constant: float = 0.0, layout: ImageLayout = "HWC"
) -> Any:
    """The correlation of the image with `kernel` [rows, columns], which is not flipped.

    Beyond the edge the image goes on as `boundary` says: "reflect" (its mirror, the edge itself once), "edge" (the last
    pixel), "wrap" (from the other side) or "constant" (the number `constant`).
    """
    # A NumPy kernel becomes a constant of the program; an anygpu array stays on its device.
    image, weights = either(image, kernel) if isinstance(kernel, Array) else (image, np.asarray(kernel))
    given, axes = checked(image, layout)
    if weights.ndim != 2 or 0 in weights.shape or weights.dtype.kind not in "biuf":
        raise ValueError(
            f"filter: a kernel holds real numbers in rows and columns; it is {weights.dtype} of shape {weights.shape}."
        )
    if given.size == 0:
        return given
    x = in_float(given)
    rows, columns = weights.shape
    padded = _padded(x, axes, (rows, columns), boundary, constant)
    return as_given(_correlated(padded, axes, weights), given)


def gaussian_blur(
    image: Any,
    sigma: float | Sequence[float],
    *,
    truncate: float = 4.0,
    boundary: Boundary = "reflect",
    constant: float = 0.0,
    layout: ImageLayout = "HWC",
) -> Any:
    """Blurred by a Gaussian of the width `sigma`, or (vertical, horizontal), cut off after `truncate` widths.

    Widths are in pixels; 0 leaves a direction as it is. Each direction is filtered by itself.
    """
    given, axes = checked(image, layout)
    widths = _two("gaussian_blur", "sigma", sigma)
    x = in_float(given)
    for axis, width in zip(axes, widths, strict=True):
        x = _filtered_line(x, axis, _bell(width, truncate), boundary, constant)
    return as_given(x, given)


def box_blur(
    image: Any,
    size: int | Sequence[int] = 3,
    *,
    boundary: Boundary = "reflect",
    constant: float = 0.0,
    layout: ImageLayout = "HWC",
) -> Any:
    """The mean over `size` pixels in each direction, or over (rows, columns).

    Raises `ValueError` unless these are whole and positive.
    """
    given, axes = checked(image, layout)
    x = in_float(given)
    for axis, length in zip(axes, _two("box_blur", "size", size), strict=True):
        if length != int(length) or length < 1:
            raise ValueError(f"box_blur: size is a whole number of pixels, not {size!r}.")
        x = _filtered_line(x, axis, [1 / length] * int(length), boundary, constant)
    return as_given(x, given)


def median(image: Any, size: int = 3, *, boundary: Boundary = "reflect", layout: ImageLayout = "HWC") -> Any:
    """The median of the square of 3 or 5 pixels around each.

    It picks one of the pixels, so that integers need no rounding. Raises `ValueError` for other sizes.
    """
    given, axes = checked(image, layout)
    if size not in (3, 5):
        raise ValueError(f"median: size is 3 or 5, not {size!r}.")
    if given.size == 0:
        return given
    padded = _padded(given, axes, (size, size), boundary, 0.0)
    return median_of([_moved(padded, axes, (size, size), (i, j)) for i in range(size) for j in range(size)])


def sobel(
    image: Any, *, boundary: Boundary = "reflect", constant: float = 0.0, layout: ImageLayout = "HWC"
) -> tuple[Any, Any]:
    """The gradients downwards and to the right, per pixel, by Sobel's filters: two arrays of floats.

    They are divided by 8, so that a slope of one per pixel is 1.
    """
    given, axes = checked(image, layout)
    x = in_float(given)
    found = []
    for along, across in (axes, axes[::-1]):
        smooth = _filtered_line(x, across, [0.25, 0.5, 0.25], boundary, constant)
        found.append(_filtered_line(smooth, along, [-0.5, 0.0, 0.5], boundary, constant))
    return found[0], found[1]


def gradient_magnitude(
    image: Any, *, boundary: Boundary = "reflect", constant: float = 0.0, layout: ImageLayout = "HWC"
) -> Any:
    """The magnitude of the gradient at each pixel, as floats."""
    down, right = sobel(image, boundary=boundary, constant=constant, layout=layout)
    return np.sqrt(down * down + right * right)


def laplacian(image: Any, *, boundary: Boundary = "reflect", constant: float = 0.0, layout: ImageLayout = "HWC") -> Any:
    """The sum of the four neighbours minus four times the pixel, as floats."""
    given, axes = checked(image, layout)
    x = in_float(given)
    parts = [_filtered_line(x, axis, [1.0, -2.0, 1.0], boundary, constant) for axis in axes]
    return parts[0] + parts[1]


def sharpen(
    image: Any,
    amount: float = 1.0,
    *,
    sigma: float = 1.0,
    boundary: Boundary = "reflect",
    constant: float = 0.0,
    layout: ImageLayout = "HWC",
) -> Any:
    """The image plus `amount` times the difference to its blur of the width `sigma` (unsharp mask)."""
    given, axes = checked(image, layout)
    x = blurred = in_float(given)
    for axis in axes:
        blurred = _filtered_line(blurred, axis, _bell(sigma, 4.0), boundary, constant)
    return as_given(x + (x - blurred) * amount, given)


def _two(name: str, what: str, given: Any) -> tuple[float, float]:
    """One number for both directions, or two."""
    pair = tuple(given) if isinstance(given, Sequence) else (given, given)
    if len(pair) != 2:
        raise ValueError(f"{name}: {what} is one number, or two for (vertical, horizontal); got {given!r}.")
    return pair


def _bell(sigma: float, truncate: float) -> list[float]:
    """The weights of a Gaussian, which add up to 1. Raises `ValueError` for a width that is negative or not finite."""
    if not sigma >= 0 or not math.isfinite(sigma):
        raise ValueError(f"the width of a blur is 0 or more, not {sigma!r}.")
    reach = int(truncate * sigma + 0.5)
    if reach == 0:
        return [1.0]
    heights = [math.exp(-0.5 * (offset / sigma) ** 2) for offset in range(-reach, reach + 1)]
    total = math.fsum(heights)
    return [height / total for height in heights]


_MODES = ("reflect", "edge", "constant", "wrap")


def _padded(x: Any, axes: tuple[int, int], size: tuple[int, int], boundary: str, constant: float) -> Any:
    """The image padded for a window of that size, as `boundary` says. Raises `InvalidOption` for another word."""
    if boundary not in _MODES:
        raise InvalidOption(f'boundary is "reflect", "edge", "constant" or "wrap", not {boundary!r}.')
    around = [(0, 0)] * x.ndim
    for axis, length in zip(axes, size, strict=True):
        # A window of even length sees one pixel more to the left and above, as SciPy's do.
        around[axis] = (length // 2, (length - 1) // 2)
    if boundary == "constant":
        return np.pad(x, around, mode="constant", constant_values=constant)
    for axis in set(axes):
        if around[axis] != (0, 0):
            # The index inside the image for each position beyond the edge: a gather, and no copy.
            places = np.pad(np.arange(x.shape[axis]), around[axis], mode=boundary)  # type: ignore[call-overload]
            x = np.take(x, places, axis=axis)
    return x


def _filtered_line(x: Any, axis: int, weights: list[float], boundary: Boundary, constant: float) -> Any:
    """The correlation with one row of weights along an axis.

    Few weights are sums of shifted images, in one kernel; many are one product over windows.
    """
    count = len(weights)
    if count == 1:
        return x * weights[0] if weights[0] != 1 else x
    length = x.shape[axis]
    if x.size == 0:
        return x
    padded = _padded(x, (axis, axis), (count, count), boundary, constant)
    if isinstance(x, Array) and count > _MOST_SPELLED:
        windows = np.lib.stride_tricks.sliding_window_view(padded, count, axis=axis)
        return np.tensordot(windows, np.asarray(weights, x.dtype), axes=((-1,), (0,)))
    before = (slice(None),) * axis
    total = None
    for each, weight in enumerate(weights):
        if weight:
            part = padded[(*before, slice(each, each + length))]
            part = part if weight == 1 else part * weight
            total = part if total is None else total + part
    return x * 0 if total is None else total


def _correlated(padded: Any, axes: tuple[int, int], kernel: Any) -> Any:
    """The correlation of a padded image with a kernel; weights of 0 cost nothing."""
    rows, columns = kernel.shape
    if isinstance(padded, Array) and rows * columns > _MOST_SPELLED:
        windows = np.lib.stride_tricks.sliding_window_view(padded, (rows, columns), axis=axes)
        return np.tensordot(windows, converted(kernel, padded.dtype), axes=((-2, -1), (0, 1)))
    kernel = converted(kernel, padded.dtype)
    total = None
    for i in range(rows):
        for j in range(columns):
            weight: Any = kernel[i, j] if isinstance(kernel, Array) else float(kernel[i, j])
            if type(weight) is float and weight == 0:
                continue
            part = _moved(padded, axes, (rows, columns), (i, j)) * weight
            total = part if total is None else total + part
    return _moved(padded, axes, (rows, columns), (0, 0)) * 0.0 if total is None else total


def _moved(padded: Any, axes: tuple[int, int], size: tuple[int, int], by: tuple[int, int]) -> Any:
    """The image shifted to one position of the window."""
    where = [slice(None)] * padded.ndim
    for axis, length, offset in zip(axes, size, by, strict=True):
        where[axis] = slice(offset, offset + max(padded.shape[axis] - length + 1, 0))
    return padded[tuple(where)]
