"""Statistics: reductions that leave NaN out, medians and quantiles, weighted means, covariances and correlations.

Where NaN is left out, the number that changes nothing takes its place, and elements that were there are counted; the
rest is `reductions`. Quantiles sort along the axes and interpolate between two positions, by any of NumPy's methods.
NaN makes a line NaN, or is sorted out of the way. Covariances are products of centred values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from anygpu.array.core import recording
from anygpu.array.core.arguments import (
    arrays,
    checked_index,
    common_dtype,
    deliver,
    on_device,
    same_dtype,
    slice_axis,
    to_array,
)
from anygpu.array.core.array import Array
from anygpu.array.core.expression import Value, active_tracer
from anygpu.array.core.methods import Axis
from anygpu.array.core.overrides import implements
from anygpu.array.core.recording import (
    apply,
    binary,
    broadcast,
    cast,
    compare,
    constant,
    dtype_name,
    normal_axes,
    permute,
    reshape,
    unary,
    where,
)
from anygpu.array.functions import reductions
from anygpu.array.functions.manipulation import diagonal, squeeze
from anygpu.array.functions.reductions import drop, kept_shape, reduced
from anygpu.base.typing import HostArray
from anygpu.program.dtypes import KIND, DType, is_inexact, promote
from anygpu.program.ops.elementwise import BitwiseBinary
from anygpu.program.primitives import Argsort, Binary, Concatenate, Contract, Gather, Scan, Sort, product

# -- reductions that leave NaN out
#
# Where nothing is left, the answer is what NumPy gives, without its warning. Integers have no NaN, and take the plain
# functions.


def _without(a: Any, instead: float) -> tuple[Array, Array, Value | None]:
    """The array with another number for each NaN, the array itself, and where NaN was; nowhere for integers."""
    (array,) = arrays(a)
    value = array._value
    if not is_inexact(value.spec.dtype):
        return array, array, None
    missing = unary("isnan", value)
    return Array(where(missing, constant(instead, value.spec.dtype), value)), array, missing


@implements(np.nansum)
def nansum(a: Any, *rest: Any, **options: Any) -> Any:
    """The sum along axes, with NaN counted as 0."""
    return reductions.sum(_without(a, 0)[0], *rest, **options)


@implements(np.nanprod)
def nanprod(a: Any, *rest: Any, **options: Any) -> Any:
    """The product along axes, with NaN counted as 1."""
    return reductions.prod(_without(a, 1)[0], *rest, **options)


@implements(np.nancumsum)
def nancumsum(a: Any, *rest: Any, **options: Any) -> Any:
    return reductions.cumsum(_without(a, 0)[0], *rest, **options)


@implements(np.nancumprod)
def nancumprod(a: Any, *rest: Any, **options: Any) -> Any:
    return reductions.cumprod(_without(a, 1)[0], *rest, **options)


@implements(np.nanmax)
def nanmax(
    a: Any, axis: Axis = None, out: Any = None, keepdims: bool = False, initial: Any = None, where: Any = True
) -> Any:
    """The largest element that is not NaN; NaN where there is none."""
    return _extreme_number("max", a, axis, out, keepdims, initial, where)


@implements(np.nanmin)
def nanmin(
    a: Any, axis: Axis = None, out: Any = None, keepdims: bool = False, initial: Any = None, where: Any = True
) -> Any:
    """The smallest element that is not NaN; NaN where there is none."""
    return _extreme_number("min", a, axis, out, keepdims, initial, where)


def _extreme_number(
    fn: Literal["max", "min"], a: Any, axis: Axis, out: Any, keepdims: bool, initial: Any, mask: Any
) -> Any:
    """The largest or smallest element along axes, NaN left out; NaN where there is nothing else.

    NaN is replaced by the infinity that loses every comparison; rows of NaN alone are found separately.
    """
    choose = reductions.max if fn == "max" else reductions.min
    filled, array, missing = _without(a, float("-inf") if fn == "max" else float("inf"))
    result: Array = choose(filled, axis, keepdims=keepdims, initial=initial, where=mask)
    if missing is not None and initial is None:
        nothing = reduced("all", missing, normal_axes(axis, array.ndim), keepdims)
        result = Array(where(nothing, constant(float("nan"), result._value.spec.dtype), result._value))
    return deliver(result, out)


@implements(np.nanargmax)
def nanargmax(a: Any, axis: int | None = None, out: Any = None, *, keepdims: bool = False) -> Any:
    """Where the largest element is that is not NaN. Where all are NaN, it fails with an IndexError when it runs."""
    return _position("argmax", a, axis, out, keepdims)


@implements(np.nanargmin)
def nanargmin(a: Any, axis: int | None = None, out: Any = None, *, keepdims: bool = False) -> Any:
    """Where the smallest element is that is not NaN. Where all are NaN, it fails with an IndexError when it runs."""
    return _position("argmin", a, axis, out, keepdims)


def _position(fn: Literal["argmax", "argmin"], a: Any, axis: int | None, out: Any, keepdims: bool) -> Any:
    """The position of the largest or smallest element, NaN left out; a row of NaN alone is an error when it runs."""
    choose = reductions.argmax if fn == "argmax" else reductions.argmin
    filled, array, missing = _without(a, float("-inf") if fn == "argmax" else float("inf"))
    result: Array = choose(filled, axis, keepdims=keepdims)
    if missing is None:
        return deliver(result, out)
    length = array.size if axis is None or array.ndim == 0 else array.shape[axis]
    nothing = reduced("all", missing, normal_axes(axis, array.ndim) if array.ndim else (), keepdims)
    return deliver(Array(checked_index(where(nothing, length, result._value), length)), out)


@implements(np.nanmean)
def nanmean(a: Any, *rest: Any, where: Any = True, **options: Any) -> Any:
    """The mean of what is not NaN."""
    (array,) = arrays(a)
    if array.dtype == np.float16 and len(rest) < 2 and options.get("dtype") is None:
        options["dtype"] = np.float16  # in which NumPy adds these up, and not those of `mean`
    return reductions.mean(array, *rest, where=_there(array, where), **options)


@implements(np.nanvar)
def nanvar(
    a: Any,
    axis: Axis = None,
    dtype: npt.DTypeLike | None = None,
    out: Any = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    where: Any = True,
    mean: Any = None,
    correction: float | None = None,
) -> Any:
    """The variance of what is not NaN; NaN where no more than `ddof` elements are left.

    `correction` is the Array API's name of `ddof`.
    """
    (array,) = arrays(a)
    present = _there(array, where)
    variance: Array = reductions.var(
        array, axis, dtype, None, ddof, keepdims, where=present, mean=mean, correction=correction
    )
    if present is not True:
        # NumPy divides by the degrees of freedom even when they are negative, and then returns NaN.
        count: Array = reductions.sum(present, axis, keepdims=keepdims)
        enough = compare("greater", count._value, ddof if correction is None else correction)
        nothing = constant(float("nan"), variance._value.spec.dtype)
        variance = Array(recording.where(enough, variance._value, nothing))
    return deliver(variance, out)


@implements(np.nanstd)
def nanstd(
    a: Any, axis: Axis = None, dtype: npt.DTypeLike | None = None, out: Any = None, *rest: Any, **options: Any
) -> Any:
    """The standard deviation of what is not NaN: the square root of `nanvar`, with its other arguments."""
    return deliver(Array(unary("sqrt", nanvar(a, axis, dtype, None, *rest, **options)._value)), out)


def _there(array: Array, mask: Any) -> Any:
    """The mask of elements that count: those that are not NaN and for which `mask` holds."""
    if not is_inexact(array._value.spec.dtype):
        return mask
    present = unary("invert", unary("isnan", array._value))
    if mask is True:
        return Array(present)
    return Array(binary("bitwise_and", present, cast(arrays(array, mask)[1]._value, "bool")))


# -- quantiles: one of the sorted elements, or a value between two of them


def _line_up(array: Array, axis: Axis) -> tuple[Value, tuple[int, ...]]:
    """The axes to reduce as one last axis, and which they were."""
    axes = normal_axes(axis, array.ndim)
    rest = tuple(each for each in range(array.ndim) if each not in axes)
    moved = permute(array._value, rest + axes)
    stack = tuple(array.shape[each] for each in rest)
    return reshape(moved, (*stack, product(tuple(array.shape[each] for each in axes)))), axes


def _sorted(line: Value) -> Value:
    return apply(Sort(len(line.spec.shape) - 1), line)


def _finish(result: Value, array: Array, axes: tuple[int, ...], keepdims: bool, lead: tuple[int, ...] = ()) -> Array:
    return Array(reshape(result, (*lead, *kept_shape(array.shape, axes))) if keepdims else result)


def _overwrites_nothing(overwrite_input: bool) -> None:
    """Leave a function that may sort parts of its input in place to NumPy."""
    tracer = active_tracer.get()
    if overwrite_input and tracer is not None:
        tracer.stop("it lets NumPy change the order of an array, with overwrite_input=True")


@implements(np.median)
def median(a: Any, axis: Axis = None, out: Any = None, overwrite_input: bool = False, keepdims: bool = False) -> Any:
    """The middle element, or the mean of the two in the middle; NaN if there is one."""
    _overwrites_nothing(overwrite_input)
    (array,) = arrays(a)
    line, axes = _line_up(array, axis)
    length = line.spec.shape[-1]
    last = len(line.spec.shape) - 1
    if length == 0:
        tracer = active_tracer.get()
        if tracer is not None:
            tracer.stop("it takes a median of no elements, about which NumPy warns in all modes")
        kind = line.spec.dtype if is_inexact(line.spec.dtype) else "float64"
        empty = broadcast(constant(float("nan"), kind), line.spec.shape[:-1])
        return deliver(_finish(empty, array, axes, keepdims), out)
    ordered = _sorted(line)
    half = length // 2
    middle = slice_axis(ordered, last, half if length % 2 else half - 1, half + 1)
    result: Value = reductions.mean(Array(middle), last)._value
    if is_inexact(line.spec.dtype):
        top = drop(slice_axis(ordered, last, length - 1, length), (last,))
        result = where(unary("isnan", top), top, result)
    return deliver(_finish(result, array, axes, keepdims), out)


@implements(np.nanmedian)
def nanmedian(a: Any, axis: Axis = None, out: Any = None, overwrite_input: bool = False, keepdims: bool = False) -> Any:
    """The median of what is not NaN; NaN where nothing is left."""
    _overwrites_nothing(overwrite_input)
    (array,) = arrays(a)
    if not is_inexact(array._value.spec.dtype):
        return median(array, axis, out, keepdims=keepdims)
    line, axes = _line_up(array, axis)
    if not line.spec.shape[-1]:
        return median(array, axis, out, keepdims=keepdims)
    ordered, count = _sorted(line), _present(line)
    pair = [_at(ordered, binary("floor_divide", each, 2)) for each in (binary("subtract", count, 1), count)]
    result: Value = reductions.mean(Array(apply(Concatenate(len(line.spec.shape) - 1), *pair)), -1)._value
    return deliver(_finish(result, array, axes, keepdims), out)


def _present(line: Value) -> Value:
    """How many elements of each line are not NaN; the axis is kept."""
    there = cast(unary("invert", unary("isnan", line)), "int64")
    return reduced("sum", there, (len(line.spec.shape) - 1,), keepdims=True)


def _at(ordered: Value, position: Value) -> Value:
    """Elements at places that differ from line to line; outside is the nearest end."""
    last = len(ordered.spec.shape) - 1
    inside = binary("minimum", binary("maximum", cast(position, "int64"), 0), ordered.spec.shape[last] - 1)
    return apply(Gather(last, last), ordered, inside)


def _closest(position: Any) -> Any:
    """The next whole number, unless the place is an odd one already."""
    below = np.floor(position)
    return np.where((position == below) & (below % 2 == 1), below, below + 1)


#: Where the quantile q of n sorted elements is, as a number that need not be whole. n is a number, or an array of ours.
_PLACES: dict[str, Callable[[Any, Any], Any]] = {
    "linear": lambda n, q: (n - 1) * q,
    "lower": lambda n, q: np.floor((n - 1) * q),
    "higher": lambda n, q: np.ceil((n - 1) * q),
    "nearest": lambda n, q: np.rint((n - 1) * q),
    "midpoint": lambda n, q: (np.floor((n - 1) * q) + np.ceil((n - 1) * q)) * 0.5,
    "inverted_cdf": lambda n, q: np.ceil(n * q - 1),
    "averaged_inverted_cdf": lambda n, q: n * q - 1,
    "closest_observation": lambda n, q: _closest(n * q - 1 - 0.5),
    "interpolated_inverted_cdf": lambda n, q: n * q + q * 0 - 1,
    "hazen": lambda n, q: n * q + 0.5 - 1,
    "weibull": lambda n, q: n * q + q - 1,
    "median_unbiased": lambda n, q: n * q + (1 / 3 + q * (1 - 1 / 3 - 1 / 3)) - 1,
    "normal_unbiased": lambda n, q: n * q + (3 / 8 + q * (1 - 3 / 8 - 3 / 8)) - 1,
}
#: These give an element of the array; the others something between two.
_WHOLE = ("lower", "higher", "nearest", "inverted_cdf", "closest_observation")


def _weight_of_next(position: Any, below: Any, method: str) -> Any:
    """How much the upper one of two neighbours counts."""
    if method == "midpoint":
        return np.where(position == below, 0.0, 0.5)
    if method == "averaged_inverted_cdf":
        return np.where(position == below, 0.5, 1.0)
    return position - below


@implements(np.quantile)
def quantile(a: Any, q: Any, *rest: Any, **options: Any) -> Any:
    """The values below which the fractions `q` of the elements lie; NaN if one of them is."""
    return _quantile(a, q, *rest, **options)


@implements(np.percentile)
def percentile(a: Any, q: Any, *rest: Any, **options: Any) -> Any:
    """`quantile` in percent."""
    return _quantile(a, q, *rest, **options, whole=100)


@implements(np.nanquantile)
def nanquantile(a: Any, q: Any, *rest: Any, **options: Any) -> Any:
    """`quantile` of the elements that are not NaN."""
    return _quantile(a, q, *rest, **options, skip=True)


@implements(np.nanpercentile)
def nanpercentile(a: Any, q: Any, *rest: Any, **options: Any) -> Any:
    """`percentile` of the elements that are not NaN."""
    return _quantile(a, q, *rest, **options, whole=100, skip=True)


def _quantile(
    a: Any,
    q: Any,
    axis: Axis = None,
    out: Any = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: Any = None,
    whole: int = 1,
    skip: bool = False,
) -> Any:
    """NumPy's arguments, `whole` for what is all of the elements, and whether to `skip` NaN."""
    _overwrites_nothing(overwrite_input)
    # Fractions that are Python's numbers adapt to the type of the array.
    weak = type(q) in (int, float)
    q = np.asarray(q if whole == 1 else np.true_divide(np.asarray(q), whole))
    (array,) = arrays(a)
    if KIND[array._value.spec.dtype] == "complex":
        raise TypeError("complex numbers have no order, and so no quantiles.")
    if q.size and not (q.min() >= 0 and q.max() <= 1):
        raise ValueError("fractions lie between 0 and 1, and percentages between 0 and 100.")
    if method not in _PLACES:
        raise ValueError(f"method is one of {', '.join(_PLACES)}, not {method!r}.")
    line, axes = _line_up(array, axis)
    if line.spec.shape[-1] == 0:
        raise IndexError("there is no quantile of no elements.")
    last = len(line.spec.shape) - 1
    skip = skip and is_inexact(line.spec.dtype)
    if weights is not None:
        if skip:
            raise NotImplementedError("nanquantile takes no weights here: give NaN the weight 0 and a number instead.")
        result = _weighted_quantile(array, line, q, axis, axes, weights, method)
    else:
        result = _plain_quantile(_sorted(line), line, q, method, skip=skip, weak=weak)
    front = (last, *range(last))
    stack = line.spec.shape[:-1]
    result = reshape(permute(result, front), (*q.shape, *stack))
    return deliver(_finish(result, array, axes, keepdims, q.shape), out)


def _plain_quantile(ordered: Value, line: Value, q: HostArray, method: str, *, skip: bool, weak: bool) -> Value:
    """The quantiles of each line, along its axis."""
    last, length = len(line.spec.shape) - 1, line.spec.shape[-1]
    shares = q.reshape(-1)
    count: Any = Array(cast(_present(line), "float64")) if skip else length
    position = _PLACES[method](count, shares)

    def pick(where_: Any) -> Value:
        if isinstance(where_, Array):
            return _at(ordered, binary("minimum", where_._value, (count - 1)._value))
        inside = np.clip(where_, 0, length - 1).astype(np.int64)
        return apply(Gather(last), ordered, on_device(inside, ordered.device))

    if method in _WHOLE or (method == "linear" and shares.dtype.kind in "iub"):
        result = pick(position)
    else:
        below = np.floor(position)
        one, other = pick(below), pick(below + 1)
        gamma = to_array(_weight_of_next(position, below, method), ordered.device)._value  # type: ignore[arg-type]
        weight_dtype = gamma.spec.dtype
        if weak:
            weight_dtype = line.spec.dtype if is_inexact(line.spec.dtype) else "float64"
        elif shares.dtype.kind == "f":
            weight_dtype = dtype_name(shares.dtype)
            gamma = cast(gamma, weight_dtype)
        result = _between(one, other, gamma, weight_dtype, _PRODUCT_APART if skip else Binary("multiply"))
    if is_inexact(line.spec.dtype) and not skip:
        top = slice_axis(ordered, last, length - 1, length)
        result = where(unary("isnan", top), top, result)
    return result


#: NumPy takes quantiles without NaN line by line, in other dtypes.
_PRODUCT_APART = BitwiseBinary("multiply", "none")


def _between(one: Value, other: Value, weight: Value, weight_dtype: DType, product: Binary) -> Value:
    """Interpolate from the nearer of the two, so that the ends are exact and the result grows with the weight.

    Both weights are rounded to `weight_dtype` by themselves, as NumPy rounds Python's numbers.
    """
    way = binary("subtract", other, one)
    near, far = cast(weight, weight_dtype), cast(binary("subtract", 1, weight), weight_dtype)
    from_one = binary("add", one, apply(product, *recording.common(way, near)))
    from_other = binary("subtract", other, apply(product, *recording.common(way, far)))
    return where(compare("greater_equal", weight, 0.5), from_other, from_one)


def _weighted_quantile(
    array: Array, line: Value, q: HostArray, axis: Axis, axes: tuple[int, ...], weights: Any, method: str
) -> Value:
    """Quantiles of weighted elements by the method "inverted_cdf", the only one that NumPy has for weights.

    Elements are sorted, and the first whose share of the running weights reaches q is taken. A line with NaN gives NaN.
    Raises `ValueError` for negative weights that are on the host; others are not read.
    """
    if method != "inverted_cdf":
        raise ValueError(f'only method="inverted_cdf" takes weights, not {method!r}.')
    if not isinstance(weights, Array) and (np.asarray(weights) < 0).any():
        raise ValueError("weights are 0 or more.")
    heavy, _ = _line_up(Array(broadcast(fitted_weights(weights, array, axis), array.shape)), axes)
    last, length = len(line.spec.shape) - 1, line.spec.shape[-1]
    order = apply(Argsort(last), line)
    ordered = apply(Gather(last, last), line, order)
    running = apply(Scan("sum", last), cast(apply(Gather(last, last), heavy, order), "float64"))
    shares = binary("divide", running, slice_axis(running, last, length - 1, length))
    if q.dtype.kind == "f":
        shares = cast(shares, dtype_name(q.dtype))
    # Elements without weight at the beginning are never chosen, not even as the quantile 0.
    shares = where(compare("equal", shares, 0), -1, shares)
    wanted = on_device(q.reshape(-1), line.device)
    before = compare("less", reshape(shares, (*shares.spec.shape, 1)), wanted)
    position = reduced("sum", cast(before, "int64"), (last,), keepdims=False)
    result = _at(ordered, position)
    if is_inexact(line.spec.dtype):
        top = slice_axis(ordered, last, length - 1, length)
        result = where(unary("isnan", top), top, result)
    return result


def fitted_weights(weights: Any, array: Array, axis: Axis) -> Value:
    """Weights in the array's own shape, or for the axes that are reduced, with 1 for the others."""
    value = to_array(weights, array._device)._value
    if value.spec.shape == array.shape:
        return value
    if axis is None:
        raise TypeError(f"weights of shape {value.spec.shape} do not fit {array.shape}: say along which axis.")
    given = tuple(
        recording.normal_axis(each, array.ndim) for each in (axis if isinstance(axis, tuple | list) else (axis,))
    )
    if value.spec.shape != tuple(array.shape[each] for each in given):
        raise ValueError(f"weights of shape {value.spec.shape} do not fit the axes {given} of {array.shape}.")
    ordered = permute(value, tuple(int(each) for each in np.argsort(given)))
    return reshape(ordered, tuple(n if each in given else 1 for each, n in enumerate(array.shape)))


# -- weighted means, covariances and correlations


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
    tracer = active_tracer.get()
    if tracer is not None and isinstance(weights, Array):
        tracer.stop("it averages with weights, which NumPy refuses where they add up to 0")
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
    """The type that covariances are computed in: at least float64 unless one is given."""
    if dtype is not None:
        return dtype_name(dtype)
    return common_dtype("float64", *(each._value.spec.dtype for each in given))


def _variables(array: Array, kind: DType, *, turned: bool) -> Value:
    """A matrix with a variable in each row, in a type; `turned` swaps rows and columns."""
    value = cast(array._value, kind)
    value = value if array.ndim == 2 else reshape(value, (1, array.size))
    return permute(value, (1, 0)) if turned else value


def _sample_weights(weights: Any, beside: Array, count: int) -> Value | None:
    """Weights of samples for `cov` as float64, or `None`.

    Raises as NumPy does: `RuntimeError` for another number of weights than samples, `ValueError` for negative ones.
    """
    if weights is None:
        return None
    value = cast(to_array(weights, beside._device)._value, "float64")
    if len(value.spec.shape) != 1 or value.spec.shape[0] != count:
        raise RuntimeError(f"cov: weights of shape {value.spec.shape} do not fit {count} samples.")
    if not isinstance(weights, Array) and (np.asarray(weights) < 0).any():
        raise ValueError("cov: weights are 0 or more.")
    return value


def _weighted_cov(samples: Value, heavy: Value, strengths: Value | None, correction: int) -> Value:
    """The covariance of weighted samples in rows, with NumPy's rule for the degrees of freedom."""
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
