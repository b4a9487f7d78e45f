"""Error bounds of operations along axes: reductions, scans, contractions, gathers, sorts, transforms, linear algebra.

Each rule takes the primitive, the dtype of its result, the operands, their bounds and NumPy's result `v`, and returns
the bound of the result: float64 of the shape of `v`, or `None` where every correct implementation gives the same bits.
Infinity marks an element about which nothing can be said. Rules are first-order forward error analyses; where a step is
not smooth (a position, a tie) the bound covers all outcomes that the operands' bounds allow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from anygpu.agreement.elementwise import (
    BOUNDS,
    DIGITS,
    Bound,
    filled,
    magnitude,
    or_none,
    settled,
    tolerance_of,
    wide,
)
from anygpu.base.interrupts import float_errors_ignored
from anygpu.base.typing import HostArray
from anygpu.engines.numpy.lowering import run_node
from anygpu.program import primitives as p
from anygpu.program.dtypes import ITEMSIZE, REAL_PART, DType, is_inexact
from anygpu.program.ops.linear import Attend

Floats = npt.NDArray[np.float64]

#: Products of matrices with more multiplications than this are bounded by the lengths of rows and columns, which is
#: wider and takes a small part of the time.
_MUCH = 1 << 28
#: Sums of multiples of these powers of two that fit into the digits of a type are exact in any order.
_STEPS = (0, 4, 10, 20)
#: Numbers that are looked at before all are.
_FIRST = 256
#: NumPy takes long for the sums of so few numbers each.
_SHORT = 16


def step_of(x: HostArray) -> int | None:
    """The exponent k of the finest step 2**-k, among `_STEPS`, of which all values are multiples; `None` if there is
    none.

    Sums of such values are exact in any order as long as they fit into the mantissa. The first `_FIRST` elements rule
    out most steps before the whole array is read.
    """
    # A step that does not divide the first values does not divide all of them.
    steps = _steps_of(x.reshape(-1)[:_FIRST], _STEPS) if x.size > _FIRST and x.flags.c_contiguous else _STEPS
    return next(iter(_steps_of(x, steps)), None) if steps else None


def _steps_of(x: HostArray, steps: Sequence[int]) -> list[int]:
    """Those of the exponents in `steps` for which all values are multiples of 2**-k; none if a value is not finite.

    Complex numbers are looked at as pairs of real ones.
    """
    parts = wide(x)
    real = np.stack([parts.real, parts.imag]) if x.dtype.kind == "c" else parts
    if not np.isfinite(real).all():
        return []
    return [each for each in steps if not np.modf(np.ldexp(real, each))[0].any()]


def _sums_exactly(x: HostArray, bound: Bound, largest: Floats, dtype: DType) -> bool:
    """Whether a sum in `dtype` rounds nowhere, so that the order of summation does not matter.

    That holds for operands without a bound, if all are multiples of one step and `largest`, an upper limit of the
    magnitude of every partial sum, has no more digits in that step than the mantissa of `dtype`.
    """
    if bound is not None:
        return False
    step = step_of(x)
    digits = DIGITS[REAL_PART.get(dtype, dtype)]
    return step is not None and bool(np.max(largest, initial=0.0) * 2.0**step <= 2.0**digits)


@BOUNDS.rule(p.Reduce)
def reduce(op: p.Reduce, dtype: DType, xs: Sequence[HostArray], bounds: Sequence[Bound], v: HostArray) -> Bound:
    """The bound of a reduction: sums and products accumulate roundings, the others only carry the bounds of the
    operands.

    A maximum moves by no more than the largest bound along its axes; complex maxima compare lexicographically, so any
    bound leaves them undecided. `any` and `all` are decided by one exact element that settles them.
    """
    (x,), (bound,) = xs, bounds
    count = p.product(tuple(x.shape[axis] for axis in op.axes))
    given = filled(bound, x.shape)
    match op.fn:
        case "sum":
            if not is_inexact(dtype):
                return None if bound is None else or_none(given.sum(axis=op.axes))
            total = _sum(magnitude(x), op.axes)
            if _sums_exactly(x, bound, total, dtype):
                return None
            carried = np.zeros(v.shape) if bound is None else _sum(bound, op.axes)
            return _summed(x, v, dtype, carried, total, count, op.axes)
        case "prod":
            if not is_inexact(dtype):
                return None if bound is None else or_none(np.where(given.any(axis=op.axes), np.inf, 0.0))
            return _multiplied(x, v, dtype, given, count, op.axes)
        case "max" | "min":
            if bound is None:
                return None
            found = np.asarray(given.max(axis=op.axes))
            if x.dtype.kind == "c":
                found = np.where(found > 0, np.inf, 0.0)
            return or_none(found)
        case "any" | "all":
            if bound is None:
                return None
            decided = (x if op.fn == "any" else ~x) & (given == 0)
            return or_none(np.where(decided.any(axis=op.axes) | ~given.any(axis=op.axes), 0.0, 1.0))
    return None if bound is None else _position(op, x, given)


def _sum(values: Floats, axes: tuple[int, ...]) -> Floats:
    """The sums along axes in float64; along a short last axis by a matrix product, which takes a tenth of the time."""
    if axes == (values.ndim - 1,) and values.shape[-1] <= _SHORT:
        return np.asarray(values @ np.ones(values.shape[-1]))
    return np.asarray(values.sum(axis=axes))


def _position(op: p.Reduce, x: HostArray, bound: Floats) -> Bound:
    """The bound of an `argmax` or `argmin`: the distance from the first candidate to the last, in positions.

    A candidate is an element that may be the extreme one within the bounds; NaN always is. It is 0 where the candidates
    have no bounds: then the first of equal elements is meant, on every engine.
    """
    axis = op.axes[0]
    if x.dtype.kind == "c":
        return or_none(np.where(bound.any(axis=axis), np.inf, 0.0))
    values = wide(x) if op.fn == "argmax" else -wide(x)
    least = np.max(np.where(np.isnan(values), np.inf, values - bound), axis=axis, keepdims=True)
    candidates = np.isnan(values) | (values + bound >= least)
    # Without a bound the first of equal ones is meant; with one it may be any of them.
    places = np.arange(x.shape[axis]).reshape([-1 if each == axis else 1 for each in range(x.ndim)])
    first = np.min(np.where(candidates, places, x.shape[axis]), axis=axis)
    last = np.max(np.where(candidates, places, -1), axis=axis)
    uncertain = np.any(candidates & (bound > 0), axis=axis)
    return or_none(np.where(uncertain, (last - first).astype(np.float64), 0.0))


def _relative(size: Floats, bound: Floats) -> Floats:
    """The bounds beside numbers of these magnitudes; infinite where one reaches zero."""
    return np.where(bound > 0, np.where(size > bound, bound / (size - bound), np.inf), 0.0)


@float_errors_ignored
def _multiplied(x: HostArray, v: HostArray, dtype: DType, given: HostArray, count: int, axes: tuple[int, ...]) -> Bound:
    """The bound of a product of `count` factors, from the relative errors of the factors and one rounding for each of
    them.

    The relative error of the product is at most exp(sum of relative errors) - 1. A factor whose bound reaches zero
    makes it infinite.
    """
    size = magnitude(x)
    relative = _relative(size, given)
    sure = tolerance_of("arithmetic", dtype) * (count - 1)
    exponent = relative.sum(axis=axes) * 1.1 + sure
    found = magnitude(v) * np.expm1(np.minimum(exponent, 700.0))
    uncertain = given.any(axis=axes) | (np.isinf(magnitude(v)) & np.isfinite(size).all(axis=axes))
    return settled(v, np.asarray(found), dtype, uncertain=uncertain, underflows=magnitude(v) == 0)


@float_errors_ignored
def _summed(
    x: HostArray, v: HostArray, dtype: DType, carried: Floats, total: Floats, count: int, axes: tuple[int, ...]
) -> Bound:
    """The bound of a sum of `count` numbers: what the operands carry, and one rounding of at most `total` for each
    addition.

    `total` are the sums of the magnitudes, which no partial sum exceeds in any order of summation. A result that is not
    finite is sure only if an operand already was not.
    """
    if count <= 1:
        return or_none(np.asarray(carried))
    found = np.asarray(carried + tolerance_of("sum", dtype) * (count - 1) * total)
    uncertain: npt.NDArray[np.bool_] | bool = True
    if not np.isfinite(v).all():
        finite = np.isfinite(magnitude(x)).all(axis=axes)
        uncertain = (np.asarray(carried) > 0) | (~np.isfinite(magnitude(v)) & finite)
    return settled(v, found, dtype, uncertain=uncertain)


@BOUNDS.rule(p.Scan)
@float_errors_ignored
def scan(op: p.Scan, dtype: DType, xs: Sequence[HostArray], bounds: Sequence[Bound], v: HostArray) -> Bound:
    """The bound of a cumulative sum, product, maximum or minimum: the reduction's, over the elements up to each."""
    (x,), (bound,) = xs, bounds
    given = filled(bound, x.shape)
    axis = op.axis
    if op.fn in ("max", "min"):
        return None if bound is None else or_none(np.maximum.accumulate(given, axis=axis))
    carried = np.cumsum(given, axis=axis)
    if not is_inexact(dtype):
        return None if bound is None else or_none(carried if op.fn == "sum" else np.where(carried > 0, np.inf, 0.0))
    size = magnitude(x)
    before = np.arange(x.shape[axis], dtype=np.float64).reshape([-1 if each == axis else 1 for each in range(x.ndim)])
    finite = np.logical_and.accumulate(np.isfinite(size), axis=axis)
    if op.fn == "sum":
        total = np.cumsum(size, axis=axis)
        if _sums_exactly(x, bound, total, dtype):
            return None
        found = carried + tolerance_of("sum", dtype) * before * total
    else:
        exponent = np.cumsum(_relative(size, given), axis=axis) * 1.1 + tolerance_of("arithmetic", dtype) * before
        found = magnitude(v) * np.expm1(np.minimum(exponent, 700.0))
    uncertain = (carried > 0) | (~np.isfinite(magnitude(v)) & finite)
    return settled(v, found, dtype, uncertain=uncertain, underflows=(magnitude(v) == 0) if op.fn == "prod" else False)


@BOUNDS.rule(p.Contract)
@float_errors_ignored
def contract(op: p.Contract, dtype: DType, xs: Sequence[HostArray], bounds: Sequence[Bound], v: HostArray) -> Bound:
    """The bound of a tensor contraction, from the contraction of the magnitudes.

    The rounding is `count` times the tolerance of a sum; the bounds of the operands are carried by contracting each of
    them with the magnitudes of the other operand. Integers, and floats that are multiples of one step and fit into the
    mantissa, are exact.
    """
    x, y = xs
    bx, by = bounds
    if not is_inexact(dtype) and bx is None and by is None:
        return None
    count = p.product(tuple(x.shape[axis] for axis in op.left))
    if not count or not v.size:
        return None
    size_x, size_y = magnitude(x), magnitude(y)
    total = _products(op, size_x, size_y, v)
    if bx is None and by is None:
        one, other = step_of(x), step_of(y)
        digits = DIGITS[REAL_PART.get(dtype, dtype)]
        if one is not None and other is not None and np.max(total) * 2.0 ** (one + other) <= 2.0**digits:
            return None
    found = tolerance_of("sum", dtype) * count * total
    # Infinity times 0 would be NaN: an undecided factor makes the sum undecided.
    if bx is not None:
        found = found + _products(op, bx, size_y, v)
    if by is not None:
        found = found + _products(op, size_x + filled(bx, x.shape), by, v)
    if not is_inexact(dtype):
        return or_none(np.where(np.isnan(found), np.inf, found))
    finite = np.isfinite(size_x).all() and np.isfinite(size_y).all()
    uncertain = np.isnan(found) | (filled(bx, x.shape).any() or filled(by, y.shape).any() or bool(finite))
    return settled(v, found, dtype, uncertain=uncertain)


def _products(op: p.Contract, x: Floats, y: Floats, v: HostArray) -> Floats:
    """The contraction of two arrays of magnitudes, in float64: an upper limit of the magnitude of every partial sum.

    Beyond `_MUCH` multiplications it is replaced by the Cauchy-Schwarz inequality, the product of the Euclidean lengths
    of rows and columns, which is wider and needs no large product.
    """
    count = p.product(tuple(x.shape[axis] for axis in op.left))
    if v.size * count <= _MUCH:
        return np.asarray(run_node(op, [x, y]), np.float64)
    left = _without(op.left, op.left_batch)
    right = _without(op.right, op.right_batch)
    rows, columns = np.sqrt((x * x).sum(axis=op.left)), np.sqrt((y * y).sum(axis=op.right))
    ones = p.Contract((), (), left, right)
    return np.asarray(run_node(ones, [rows, columns]), np.float64)


def _without(summed: tuple[int, ...], batch: tuple[int, ...]) -> tuple[int, ...]:
    """The positions of the batch axes after the `summed` axes have been removed."""
    return tuple(axis - sum(each < axis for each in summed) for axis in batch)


@BOUNDS.rule(p.Gather)
def gather(op: p.Gather, dtype: DType, xs: Sequence[HostArray], bounds: Sequence[Bound], v: HostArray) -> Bound:
    """The bound of a gather: that of the elements that are taken; infinite where the index itself has a bound."""
    x, indices = xs
    found = filled(None, v.shape) if bounds[0] is None else run_node(op, [bounds[0], indices])
    if bounds[1] is None:
        return or_none(found)
    undecided = np.where(bounds[1] > 0, np.inf, 0.0)
    wide_as_result = (*(1,) * (op.axis - op.batch), *undecided.shape[op.batch :], *(1,) * (x.ndim - op.axis - 1))
    return or_none(found + undecided.reshape(*undecided.shape[: op.batch], *wide_as_result))


@BOUNDS.rule(p.Scatter)
@float_errors_ignored
def scatter(op: p.Scatter, dtype: DType, xs: Sequence[HostArray], bounds: Sequence[Bound], v: HostArray) -> Bound:
    """The bound of a scatter. `set`, `maximum` and `minimum` carry bounds; `add` and `multiply` also round once an
    update.

    With a bound on an index nothing is known, so every element is undecided. `met` is the number of updates of each
    element.
    """
    x, indices, updates = xs
    if bounds[1] is not None:
        return np.full(v.shape, np.inf)
    bx, bu = filled(bounds[0], x.shape), filled(bounds[2], updates.shape)
    exact = bounds[0] is None and bounds[2] is None
    if op.fn in ("set", "maximum", "minimum"):
        if exact:
            return None
        joined = p.Scatter("set" if op.fn == "set" else "maximum", op.axis, op.batch)
        return or_none(run_node(joined, [bx, indices, bu]))
    if not is_inexact(dtype):
        if exact:
            return None
        touched = run_node(p.Scatter("add", op.axis, op.batch), [bx, indices, bu])
        return or_none(touched if op.fn == "add" else np.where(touched > 0, np.inf, 0.0))
    adding = p.Scatter("add", op.axis, op.batch)
    size = magnitude(v)
    met = run_node(adding, [np.zeros(x.shape), indices, np.ones(updates.shape)])
    if op.fn == "add":
        total = run_node(adding, [magnitude(x), indices, magnitude(updates)])
        if exact and _sums_exactly(x, None, total, dtype) and _sums_exactly(updates, None, total, dtype):
            return None
        found = run_node(adding, [bx, indices, bu]) + tolerance_of("sum", dtype) * met * total
    else:
        relative = [_relative(magnitude(a), b) for a, b in ((x, bx), (updates, bu))]
        exponent = run_node(adding, [relative[0], indices, relative[1]]) * 1.1
        found = size * np.expm1(np.minimum(exponent + tolerance_of("arithmetic", dtype) * met, 700.0))
    uncertain = (met > 0) | (bx > 0)
    return settled(v, found, dtype, uncertain=uncertain, underflows=(size == 0) if op.fn == "multiply" else False)


@BOUNDS.rule(p.Sort)
def sort(op: p.Sort, dtype: DType, xs: Sequence[HostArray], bounds: Sequence[Bound], v: HostArray) -> Bound:
    """The bound of a sort: no element of a sorted line moves by more than the largest bound in that line.

    Complex numbers are sorted lexicographically, so that a small change of the real part may exchange two of them.
    """
    if bounds[0] is None:
        return None
    worst = bounds[0].max(axis=op.axis, keepdims=True, initial=0.0)
    if xs[0].dtype.kind == "c":
        worst = np.where(worst > 0, np.inf, 0.0)
    return or_none(np.broadcast_to(worst, v.shape))


@BOUNDS.rule(p.Argsort)
def argsort(op: p.Argsort, dtype: DType, xs: Sequence[HostArray], bounds: Sequence[Bound], v: HostArray) -> Bound:
    """The bound of an argsort: the length of the axis where the order is undecided, and 0 elsewhere.

    A position is undecided where a neighbour in sorted order lies within both bounds, or within twice the widest bound
    of the line, which may reach past the neighbours.
    """
    (x,), (bound,) = xs, bounds
    if bound is None:
        return None
    order = np.take_along_axis(wide(x), v, axis=op.axis)
    reach = np.take_along_axis(bound, v, axis=op.axis)
    moved = np.moveaxis(order, op.axis, -1), np.moveaxis(reach, op.axis, -1)
    near = np.zeros(moved[0].shape, bool)
    close = ~(np.abs(np.diff(moved[0])) > moved[1][..., 1:] + moved[1][..., :-1])
    # A wide bound may reach past the nearest neighbours: then nothing of its line is decided.
    worst = moved[1].max(axis=-1, keepdims=True, initial=0.0)
    close |= ~(np.abs(np.diff(moved[0])) > 2 * worst)
    close &= worst > 0
    near[..., 1:] |= close
    near[..., :-1] |= close
    return or_none(np.where(np.moveaxis(near, -1, op.axis), float(x.shape[op.axis]), 0.0))


@BOUNDS.rule(p.Search)
def search(op: p.Search, dtype: DType, xs: Sequence[HostArray], bounds: Sequence[Bound], v: HostArray) -> Bound:
    """The bound of `searchsorted`: how many elements of the sorted line lie within the bounds around a value."""
    line, values = xs
    if bounds[0] is None and bounds[1] is None:
        return None
    if line.dtype.kind == "c":
        return np.full(v.shape, np.inf)
    reach = filled(bounds[1], values.shape) + filled(bounds[0], line.shape).max(initial=0.0)
    places = np.sort(wide(line))
    low = np.searchsorted(places, wide(values) - reach, side="left")
    high = np.searchsorted(places, wide(values) + reach, side="right")
    return or_none(np.where(reach > 0, (high - low).astype(np.float64), 0.0))


@BOUNDS.rule(p.Fourier)
@float_errors_ignored
def fourier(op: p.Fourier, dtype: DType, xs: Sequence[HostArray], bounds: Sequence[Bound], v: HostArray) -> Bound:
    """The bound of a Fourier transform of length n: each of its 1 + log2(n) stages may round by the tolerance.

    It is relative to the sum of the magnitudes along the axis, which no partial result of any algorithm exceeds.
    """
    (x,), (bound,) = xs, bounds
    scale = {"fft": 1.0, "rfft": 1.0, "ifft": 1.0 / op.length, "irfft": 2.0 / op.length}[op.fn]
    total = magnitude(x).sum(axis=op.axis, keepdims=True) * scale
    carried = filled(bound, x.shape).sum(axis=op.axis, keepdims=True) * scale
    found = carried + tolerance_of("fourier", dtype) * (1 + math.log2(op.length)) * total
    found = np.where(np.isnan(found), np.inf, found)
    return settled(v, np.broadcast_to(found, v.shape), dtype, uncertain=True)


#: The factors whose signs, or more, are free: engines may differ and both be right.
FREE_FACTORS = ("qr", "svd", "eigh", "eig")


@BOUNDS.rule(p.Linear)
@float_errors_ignored
def linear(op: p.Linear, dtype: DType, xs: Sequence[HostArray], bounds: Sequence[Bound], v: HostArray) -> Bound:
    """The bound of linear algebra, from the condition number of each matrix; infinite for factors that are not unique.

    The relative error is the tolerance times the number of rows, and the operand's bound relative to the norm.
    Solutions, inverses, determinants and Cholesky factors multiply it by the condition number; singular values and
    eigenvalues of symmetric matrices move by no more than the norm of the change (Weyl). Signs and phases of the
    vectors in `FREE_FACTORS` are free.
    """
    a = wide(xs[0])
    rows, columns = a.shape[-2:]
    size = max(rows, columns, 1)
    unique = op.fn not in FREE_FACTORS or (op.fn, op.part) in (("svd", 1), ("eigh", 0))
    if not unique or not np.isfinite(a).all() or not v.size:
        return np.full(v.shape, np.inf)
    singular = np.linalg.svd(a, compute_uv=False)
    norm = singular[..., 0]
    condition = np.where(singular[..., -1] > 0, norm / singular[..., -1], np.inf)
    given = sum(filled(bound, x.shape).max(initial=0.0) for x, bound in zip(xs[:1], bounds[:1], strict=True))
    relative = tolerance_of("linear", xs[0].dtype.name) * size + given * size / norm  # type: ignore[arg-type]
    axes = tuple(range(a.ndim - 2, v.ndim))
    largest = magnitude(v).max(axis=axes) if axes else magnitude(v)
    match op.fn:
        case "solve" | "inv" | "det" | "cholesky":
            found = relative * condition * largest
            if op.fn == "solve" and bounds[1] is not None:
                found = found + bounds[1].max(initial=0.0) * size / singular[..., -1]
        case "slogdet":
            found = np.where(relative * condition < 0.5, 0.0, np.inf) if op.part == 0 else relative * condition * 2
        case "svd" | "svdvals" | "eigh" | "eigvalsh":
            found = relative * norm
        case _:
            found = np.full(np.shape(norm), np.inf)
    found = np.asarray(np.where(np.isnan(found), np.inf, found), np.float64)
    return np.broadcast_to(found.reshape(found.shape + (1,) * (v.ndim - found.ndim)), v.shape)


@BOUNDS.rule(Attend)
def attend(op: Attend, dtype: DType, xs: Sequence[HostArray], bounds: Sequence[Bound], v: HostArray) -> Bound:
    """The bound of attention, as one number for the whole result.

    The result is a mean of the values `v`. Its weights are quotients of exponentials, whose relative error is that of
    the exponents, once in the numerator and once in the denominator; half precision is accumulated in float32.
    """
    given = [filled(bound, x.shape).max(initial=0.0) for x, bound in zip(xs, bounds, strict=True)]
    sizes = [magnitude(x).max(initial=0.0) for x in xs]
    q, k = xs[:2]
    inside: DType = "float32" if ITEMSIZE[dtype] == 2 else dtype
    score = magnitude(q).sum(axis=-1).max(initial=0.0) * sizes[1]
    error = given[0] * magnitude(k).sum(axis=-1).max(initial=0.0) + given[1] * magnitude(q).sum(axis=-1).max(
        initial=0.0
    )
    exponent = abs(op.scale) * (error + tolerance_of("sum", inside) * q.shape[-1] * score)
    if len(xs) == 4:
        finite = xs[3][np.isfinite(xs[3])]
        exponent += given[3] + tolerance_of("arithmetic", inside) * (
            abs(op.scale) * score + np.abs(finite).max(initial=0)
        )
    m = k.shape[-2]
    weight = 2 * math.expm1(min(float(exponent), 50.0)) + (2 * m + 2) * tolerance_of("function", inside)
    found = given[2] + weight * sizes[2] + tolerance_of("arithmetic", dtype) * sizes[2]
    return settled(v, np.full(v.shape, found), dtype, uncertain=True)
