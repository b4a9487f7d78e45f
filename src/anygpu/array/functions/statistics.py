"""Weighted means, covariances and correlations."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from anygpu.array.core.arguments import arrays, common_dtype, same_dtype, to_array
from anygpu.array.core.array import Array
from anygpu.array.core.expression import Value
from anygpu.array.core.methods import Axis
from anygpu.array.core.overrides import implements
from anygpu.array.core.recording import (
    apply,
    binary,
    broadcast,
    cast,
    constant,
    dtype_name,
    normal_axes,
    permute,
    reshape,
    unary,
)
from anygpu.array.functions import reductions
from anygpu.array.functions.manipulation import diagonal, squeeze
from anygpu.array.functions.quantiles import (
    fitted_weights,
)
from anygpu.array.functions.reductions import reduced
from anygpu.program.dtypes import KIND, DType, is_inexact, promote
from anygpu.program.primitives import Concatenate, Contract


@implements(np.average)
def average(a: Any, axis: Axis = None, weights: Any = None, returned: bool = False, *, keepdims: bool = False) -> Any:
    """The mean, or with weights sum(a·w) / sum(w)."""
    (array,) = arrays(a)
    if weights is None:
        result: Array = reductions.mean(array, axis, keepdims=keepdims)
        scale = Array(broadcast(constant(array.size / max(result.size, 1), result._value.spec.dtype), result.shape))
        return (result, scale) if returned else result
    if not isinstance(weights, Array) and not np.asarray(np.sum(weights, axis=None)).all():
        raise ZeroDivisionError("the weights add up to 0.")
    heavy = fitted_weights(weights, array, axis)
    kind = promote(array._value.spec.dtype, heavy.spec.dtype)
    if not is_inexact(array._value.spec.dtype):
        kind = promote(kind, "float64")
    axes = normal_axes(axis, array.ndim)
    value, heavy = cast(array._value, kind), cast(heavy, kind)
    weight = reduced("sum", broadcast(heavy, array.shape), axes, keepdims)
    total = reduced("sum", binary("multiply", value, heavy), axes, keepdims)
    mean = binary("divide", total, weight)
    return (Array(mean), Array(broadcast(weight, mean.spec.shape))) if returned else Array(mean)


@implements(np.cov)
def cov(
    m: Any,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: Any = None,
    aweights: Any = None,
    *,
    dtype: npt.DTypeLike | None = None,
) -> Array:
    """The covariances of the rows, or with `rowvar=False` of the columns."""
    given = arrays(m) if y is None else arrays(m, y)
    if any(each.ndim > 2 for each in given):
        raise ValueError("cov takes vectors and matrices.")
    if ddof is not None and ddof != int(ddof):
        raise ValueError("cov: ddof is an integer.")
    kind = _cov_dtype(given, dtype)
    samples = _variables(given[0], kind, turned=not rowvar and given[0].ndim != 1)
    if samples.spec.shape[0] == 0:
        return Array(broadcast(constant(0, kind), (0, 0)))
    if y is not None:
        other = _variables(given[1], kind, turned=False)
        if not rowvar and other.spec.shape[0] != 1:
            other = permute(other, (1, 0))
        samples = apply(Concatenate(0), samples, other)
    correction = ddof if ddof is not None else 0 if bias else 1
    count = samples.spec.shape[1]
    counts, strengths = (_sample_weights(each, given[0], count) for each in (fweights, aweights))
    if counts is None and strengths is None:
        middle = binary("divide", reduced("sum", samples, (1,), keepdims=True), count)
        centred = binary("subtract", samples, middle)
        return squeeze(Array(_products(centred, centred, float(max(count - correction, 0)))))
    heavy = (
        binary("multiply", counts, strengths) if counts is not None and strengths is not None else counts or strengths
    )
    return squeeze(Array(_weighted_cov(samples, heavy, strengths, correction)))  # type: ignore[arg-type]


def _cov_dtype(given: list[Array], dtype: npt.DTypeLike | None) -> DType:
    if dtype is not None:
        return dtype_name(dtype)
    return common_dtype("float64", *(each._value.spec.dtype for each in given))


def _variables(array: Array, kind: DType, *, turned: bool) -> Value:
    value = cast(array._value, kind)
    value = value if array.ndim == 2 else reshape(value, (1, array.size))
    return permute(value, (1, 0)) if turned else value


def _sample_weights(weights: Any, beside: Array, count: int) -> Value | None:
    if weights is None:
        return None
    value = cast(to_array(weights, beside._device)._value, "float64")
    if len(value.spec.shape) != 1 or value.spec.shape[0] != count:
        raise RuntimeError(f"cov: weights of shape {value.spec.shape} do not fit {count} samples.")
    if not isinstance(weights, Array) and (np.asarray(weights) < 0).any():
        raise ValueError("cov: weights are 0 or more.")
    return value


def _weighted_cov(samples: Value, heavy: Value, strengths: Value | None, correction: int) -> Value:
    total = reduced("sum", heavy, (0,), keepdims=False)
    weighted = binary("multiply", samples, heavy)
    middle = binary("divide", reduced("sum", weighted, (1,), keepdims=True), total)
    freedom = total
    if correction:
        taken = constant(float(correction), "float64")
        if strengths is not None:
            squares = reduced("sum", binary("multiply", heavy, strengths), (0,), keepdims=False)
            taken = binary("divide", binary("multiply", squares, float(correction)), total)
        freedom = binary("maximum", binary("subtract", total, taken), 0.0)
    centred = binary("subtract", samples, middle)
    return _products(centred, binary("multiply", centred, heavy), freedom)


def _products(one: Value, other: Value, freedom: float | Value) -> Value:
    """The products of all rows of both, divided by how many samples were free."""
    if KIND[other.spec.dtype] == "complex":
        other = unary("conj", other)
    one, other = same_dtype(one, other)
    return cast(binary("divide", apply(Contract((1,), (1,)), one, other), freedom), one.spec.dtype)


@implements(np.corrcoef)
def corrcoef(x: Any, y: Any = None, rowvar: bool = True, *, dtype: npt.DTypeLike | None = None) -> Array:
    """The correlations of the rows, or with `rowvar=False` of the columns."""
    value = cov(x, y, rowvar, dtype=dtype)._value
    if value.spec.shape == ():
        return Array(binary("divide", value, value))
    spread = diagonal(Array(value))._value
    is_complex = KIND[value.spec.dtype] == "complex"
    spread = unary("sqrt", unary("real", spread) if is_complex else spread)
    count = value.spec.shape[0]
    value = binary("divide", binary("divide", value, reshape(spread, (count, 1))), spread)
    if not is_complex:
        return Array(_within_one(value))
    return Array(binary("complex", _within_one(unary("real", value)), _within_one(unary("imag", value))))


def _within_one(value: Value) -> Value:
    """Correlations clipped to -1 … 1, which rounding may have left."""
    return binary("minimum", binary("maximum", value, -1.0), 1.0)
