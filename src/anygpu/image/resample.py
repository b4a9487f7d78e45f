"""Resizing: each axis separately, as weighted sums of neighbours; the host computes the weights."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from anygpu.array.core.arguments import converted, table
from anygpu.errors import InvalidOption
from anygpu.image.layouts import Layout, as_given, checked, in_float

Method = Literal["bilinear", "nearest", "bicubic", "area", "lanczos"]

Weights = npt.NDArray[np.float64]

#: More neighbours than this are a matrix product; fewer are picked one by one.
_MOST_PICKED = 8


def resize(
    image: Any,
    size: Sequence[int],
    *,
    method: Method = "bilinear",
    antialias: bool = True,
    layout: Layout = "HWC",
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
    """For each new position its source positions and their weights: both [new, neighbours]."""
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
    return np.clip(1 - distance, 0, None)


def _cubic(distance: Weights) -> Weights:
    near = (1.5 * distance - 2.5) * distance * distance + 1
    far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    return np.where(distance < 1, near, np.where(distance < 2, far, 0.0))


def _lanczos(distance: Weights) -> Weights:
    return np.where(distance < 3, np.sinc(distance) * np.sinc(distance / 3), 0.0)


#: The weight function of each method, and its radius.
_KERNELS: dict[str, tuple[Callable[[Weights], Weights], float]] = {
    "bilinear": (_triangle, 1.0),
    "bicubic": (_cubic, 2.0),
    "lanczos": (_lanczos, 3.0),
}
