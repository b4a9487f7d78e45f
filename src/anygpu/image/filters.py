"""Filters: each pixel is computed from its neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

import numpy as np

from anygpu.array.core.arguments import converted, either
from anygpu.array.core.array import Array
from anygpu.errors import InvalidOption
from anygpu.image.colours import ImageLayout, as_given, checked, in_float

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
    """Blurred by a Gaussian of the width `sigma`, or (vertical, horizontal), cut off after `truncate` widths."""
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
    """The mean over `size` pixels in each direction, or over (rows, columns)."""
    given, axes = checked(image, layout)
    x = in_float(given)
    for axis, length in zip(axes, _two("box_blur", "size", size), strict=True):
        if length != int(length) or length < 1:
            raise ValueError(f"box_blur: size is a whole number of pixels, not {size!r}.")
        x = _filtered_line(x, axis, [1 / length] * int(length), boundary, constant)
    return as_given(x, given)


def median(image: Any, size: int = 3, *, boundary: Boundary = "reflect", layout: ImageLayout = "HWC") -> Any:
    """The median of the square of 3 or 5 pixels around each."""
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
    """The image padded for a window of that size."""
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
    """A filter of one row along an axis."""
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
