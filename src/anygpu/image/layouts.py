"""Image layouts: the axes of height, width and channels, and conversion between integers and floats."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from anygpu.array.core.arguments import converted, either
from anygpu.errors import InvalidOption

Layout = Literal["HWC", "CHW", "HW"]

_PLANES: dict[str, tuple[int, int]] = {"HWC": (-3, -2), "CHW": (-2, -1), "HW": (-2, -1)}


def checked(image: Any, layout: str) -> tuple[Any, tuple[int, int]]:
    """The image as an array, and its axes of height and width, counted from the front."""
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
    """The axis of channels; checks their number."""
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
