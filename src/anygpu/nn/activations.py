"""Activation functions and softmax."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from anygpu.array.core.arguments import either, in_single, in_type_of
from anygpu.array.core.array import Array
from anygpu.array.core.recording import unary_float
from anygpu.base.float_errors import float_errors
from anygpu.engines.numpy.lowering import erf


def softmax(x: Any, axis: int = -1) -> Any:
    """exp(x) over its sum along an axis, without overflow."""
    (given,) = either(x)
    values = in_single(given)
    powers = np.exp(values - _largest(values, axis))
    return in_type_of(powers / np.sum(powers, axis=axis, keepdims=True), given)


def log_softmax(x: Any, axis: int = -1) -> Any:
    """The logarithm of `softmax(x)`, exact also where that is close to 0."""
    (given,) = either(x)
    values = in_single(given)
    shifted = values - _largest(values, axis)
    return in_type_of(shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True)), given)


def relu(x: Any) -> Any:
    """x where it is positive, 0 elsewhere."""
    (given,) = either(x)
    return np.maximum(given, 0)


def silu(x: Any) -> Any:
    """x / (1 + exp(-x)), which is also called swish."""
    (given,) = either(x)
    values = in_single(given)
    powers = np.exp(-values) if isinstance(values, Array) else _exp_without_warning(-values)
    return in_type_of(values / (1 + powers), given)


@float_errors(over="ignore")
def _exp_without_warning(x: Any) -> Any:
    """Of a large number it is infinity, and `silu` then 0, as it should be."""
    return np.exp(x)


def gelu(x: Any, approximate: bool = False) -> Any:
    """x times the normal distribution function of x; with `approximate`, the tanh formula that some models use."""
    (given,) = either(x)
    values = in_single(given)
    if approximate:
        inner = math.sqrt(2 / math.pi) * (values + 0.044715 * values * values * values)
        return in_type_of(0.5 * values * (1 + np.tanh(inner)), given)
    return in_type_of(0.5 * values * (1 + _erf(values * math.sqrt(0.5))), given)


def _erf(x: Any) -> Any:
    return Array(unary_float("erf", x._value)) if isinstance(x, Array) else erf(x)


def _largest(x: Any, axis: int) -> Any:
    # Where an axis is empty there is nothing to shift, and no largest.
    return np.max(x, axis=axis, keepdims=True) if x.size else 0
