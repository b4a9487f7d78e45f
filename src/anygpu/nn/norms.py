"""Normalisation along axes. Half precision is computed in single precision and rounded once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anygpu.array.core.arguments import either, in_single, in_type_of
from anygpu.array.core.recording import normal_axes


def layer_norm(
    x: Any, weight: Any = None, bias: Any = None, *, axis: int | Sequence[int] = -1, eps: float = 1e-5
) -> Any:
    """x with the mean 0 and the variance 1 along the axes, times `weight` plus `bias`, which have these axes alone."""
    given, weight, bias = either(x, weight, bias)
    axes = normal_axes(axis, given.ndim)
    values = in_single(given)
    centred = values - np.mean(values, axis=axes, keepdims=True)
    variance = np.mean(centred * centred, axis=axes, keepdims=True)
    # One division for a row, and a product for each of its elements: a quarter less work than dividing each.
    return in_type_of(_scaled("layer_norm", centred * (1 / np.sqrt(variance + eps)), weight, bias, axes), given)


def rms_norm(x: Any, weight: Any = None, *, axis: int | Sequence[int] = -1, eps: float = 1e-6) -> Any:
    """x with the mean square 1 along the axes, times `weight`, which has these axes alone."""
    given, weight = either(x, weight)
    axes = normal_axes(axis, given.ndim)
    values = in_single(given)
    square = np.mean(values * values, axis=axes, keepdims=True)
    return in_type_of(_scaled("rms_norm", values * (1 / np.sqrt(square + eps)), weight, None, axes), given)


def _scaled(name: str, x: Any, weight: Any, bias: Any, axes: tuple[int, ...]) -> Any:
    lengths = tuple(x.shape[axis] for axis in axes)
    shape = tuple(length if axis in axes else 1 for axis, length in enumerate(x.shape))
    for what, each in (("weight", weight), ("bias", bias)):
        if each is not None and each.shape != lengths:
            raise ValueError(f"{name}: {what} must have the shape {lengths}, the axes normalised, not {each.shape}.")
    if weight is not None:
        x = x * in_single(weight).reshape(shape)
    return x if bias is None else x + in_single(bias).reshape(shape)
