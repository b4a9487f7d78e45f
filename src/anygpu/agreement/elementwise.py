"""Error bounds of elementwise operations, the published tolerances, and the table `BOUNDS` of rules for all primitives.

A bound is an array of float64, or `None` where there is one right answer for every element. Infinity means that an
element is undecided. The bound of a result is what the operation carries of its operands' bounds (`_carried…`: how far
the result moves when an operand does) and what the operation itself adds by rounding. NumPy's warnings are off while
rules run. Large arrays are looked at in tiles, so that the temporaries stay in the processor's cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from anygpu.base.typing import HostArray
from anygpu.program import primitives as p
from anygpu.program.dtypes import ITEMSIZE, KIND, REAL_PART, DType, is_inexact
from anygpu.program.functions import COMPARISONS, COMPLEX_FORMULAS, FUNCTIONS, having
from anygpu.program.primitive import RuleTable

ErrorClass = Literal["arithmetic", "function", "sum", "fourier", "linear"]


#: The distance from 1 to the next number.
EPSILON: dict[DType, float] = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


#: The binary digits of a number.
DIGITS: dict[DType, int] = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}


#: What one operation may add to the difference, in epsilons of its type. Of arithmetic and functions it is relative to
#: the result (near 0, to 1: the sine of a rounded π); of a sum, for each number summed, relative to the largest that
#: a partial sum can be; of a transform, for each of its log2(n) stages, to the largest that a result can be; of linear
#: algebra, for each row, to the norm. Differences that come in are carried on by the slope of each function.
TOLERANCES: dict[ErrorClass, dict[DType, float]] = {
    "arithmetic": {"float16": 1, "bfloat16": 1, "float32": 1, "float64": 1, "complex64": 4, "complex128": 4},
    "function": {"float16": 4, "bfloat16": 4, "float32": 32, "float64": 64, "complex64": 128, "complex128": 128},
    "sum": {"float16": 1, "bfloat16": 1, "float32": 1, "float64": 1, "complex64": 4, "complex128": 4},
    "fourier": {"complex64": 8, "complex128": 8, "float32": 8, "float64": 8},
    "linear": {"float32": 8, "float64": 8, "complex64": 16, "complex128": 16},
}


def tolerance_of(kind: ErrorClass, dtype: DType) -> float:
    """The tolerance of `TOLERANCES` as an absolute factor, and not in epsilons; 0 for types that do not round."""
    return TOLERANCES[kind].get(dtype, 64) * EPSILON[REAL_PART.get(dtype, dtype)] if is_inexact(dtype) else 0.0


# -- large arrays part by part
#
# What a rule of `elementwise` computes of a part stays in the processor's cache.


#: The allowed distance of two right results, for every element; `None` if only one result is right.
Bound = npt.NDArray[np.float64] | None

#: Elements that a rule looks at at once: the dozens of arrays that it makes of them stay in the processor's cache.
_TILE = 1 << 13


def in_tiles(
    rule: Callable[[Sequence[HostArray], Sequence[Bound], HostArray], Bound],
    xs: Sequence[HostArray],
    bounds: Sequence[Bound],
    v: HostArray,
) -> Bound:
    """The bound by a rule that looks at each element by itself, tile by tile: a third of the time for large arrays.

    Each tile is passed on as a vector. The bound is allocated when the first tile has one.
    """
    if v.size <= _TILE:
        return rule(xs, bounds, v)
    found: Bound = None
    for place in tiles(v.shape):
        # In a line: short inner axes and those that are repeated take many times as long.
        given = [None if bound is None else bound[place].ravel() for bound in bounds]
        result = v[place]
        part = rule([x[place].ravel() for x in xs], given, result.ravel())
        if part is not None:
            if found is None:
                found = np.zeros(v.shape)
            found[place] = part.reshape(result.shape)
    return found


def tiles(shape: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """The indices of parts of an array with `_TILE` elements or fewer, cut along its longest axes; together they cover
    it.
    """
    size = math.prod(shape)
    if size <= _TILE:
        yield (slice(None),) * len(shape)
        return
    axis = max(range(len(shape)), key=shape.__getitem__)
    step = max(1, _TILE * shape[axis] // size)
    for start in range(0, shape[axis], step):
        stop = min(start + step, shape[axis])
        for inner in tiles((*shape[:axis], stop - start, *shape[axis + 1 :])):
            within = inner[axis]
            along = slice(start + (within.start or 0), start + (within.stop or stop - start))
            yield (*inner[:axis], along, *inner[axis + 1 :])


# -- error bounds of elementwise operations
#
# How far two correct results may differ.
#
# A bound is an array of float64, or `None` where there is one right answer for every element. Infinity means that the
# element is undecided: nothing can be said about it. NumPy's warnings are off while these rules run.


#: The bound after each primitive that is no movement, from its type, what it was given, the bounds of that, and its
#: result.
BOUNDS: RuleTable[Callable[[Any, DType, Sequence[HostArray], Sequence[Bound], HostArray], Bound]] = RuleTable()

#: Two answers may differ by this much more where `power` computes a logarithm and an exponential.
POWER_FACTOR = 4.0


def magnitude(values: HostArray) -> npt.NDArray[np.float64]:
    """The absolute values as float64, of complex numbers too. It may be the array itself: it must not be written to."""
    if values.dtype.kind in "bu":
        return values.astype(np.float64)
    return np.abs(wide(values))


def wide(values: HostArray) -> HostArray:
    """The values in float64 or complex128: the same array where they have that type, so it must not be written to."""
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64, copy=False)


def filled(bound: Bound, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """The bound as an array: zeros that take no memory, and cannot be written to, in the place of `None`."""
    return np.broadcast_to(np.float64(0.0), shape) if bound is None else bound


def or_none(bound: npt.NDArray[np.float64]) -> Bound:
    """The bound, or `None` if it is 0 everywhere: the operations after it are then looked at as exact."""
    return bound if bound.any() else None


def smallest(dtype: DType) -> float:
    """The smallest normal number of a type: below it an engine may have only 0."""
    return float(np.finfo(REAL_PART.get(dtype, dtype)).tiny)


def flushed(x: HostArray, bound: Bound) -> Bound:
    """The bound of an operand of an engine that may take subnormal numbers for 0: it grows by their magnitude."""
    if x.dtype.kind not in "fc" or not x.size:
        return bound
    size = np.abs(x)
    small = size < np.finfo(x.dtype).tiny
    if not small.any():
        return bound
    small &= size > 0
    if not small.any():
        return bound
    return filled(bound, x.shape) + np.where(small, size.astype(np.float64), 0.0)


def settled(
    v: HostArray, bound: npt.NDArray[np.float64], dtype: DType, *, uncertain: Any, underflows: Any = False
) -> Bound:
    """The final bound of a floating result: NaN, infinities, overflow and underflow are dealt with here, once for all
    rules.

    `uncertain` says where an input had a bound, or finite inputs gave infinity: there a NaN or an infinity is
    undecided, elsewhere it is sure. `underflows` marks zeros that may be subnormal on another engine. A bound that
    reaches beyond the largest number becomes infinite.
    """
    size = magnitude(v)
    tiny = smallest(dtype)
    largest = float(np.finfo(REAL_PART.get(dtype, dtype)).max)
    # Most results are neither large nor small: NaN fails both comparisons.
    if size.size and np.max(size) + np.max(bound) <= largest:
        small = size < tiny
        if not small.any():
            return or_none(bound)
        return or_none(np.where(small & ((size > 0) | underflows), bound + tiny, bound))
    finite = np.isfinite(size)
    bound = np.where(np.isnan(bound), np.inf, bound)
    bound = np.where((size < tiny) & ((size > 0) | underflows), bound + tiny, bound)
    bound = np.where(size + bound > largest, np.inf, bound)
    return or_none(np.where(finite, bound, np.where(uncertain, np.inf, 0.0)))


# One value ----------------------------------------------------------------------------------------------------------

_SAME = frozenset(("negative", "conj", "real", "imag", "abs"))
#: They go up in steps, and round nothing.
_STEPS = having("monotone") & having("exact")
_RELATIVE = having("relative")
_MONOTONE: dict[str, Callable[[Any], Any]] = {fn: getattr(np, FUNCTIONS[fn].numpy_name) for fn in having("monotone")}
_COMPLEX: dict[str, Callable[[Any], Any]] = {fn: getattr(np, FUNCTIONS[fn].numpy_name) for fn in COMPLEX_FORMULAS}


@BOUNDS.rule(p.Unary)
def unary(op: p.Unary, dtype: DType, xs: Sequence[HostArray], bounds: Sequence[Bound], v: HostArray) -> Bound:
    """The bound of a function of one operand. Near zeros of most functions the tolerance is relative to 1, or to the
    largest result of the whole array, which is why that is found before the array is cut into tiles.
    """
    largest = 0.0 if op.fn in _SAME | _STEPS | _RELATIVE else min(_largest(v), 1.0)
    return in_tiles(partial(_unary, op, dtype, largest), xs, bounds, v)


def _largest(v: HostArray) -> float:
    """The largest of the values that are finite, without its sign; 0 of none."""
    if not v.size or v.dtype.kind not in "fc":
        return 0.0
    found = float(max(v.max(), -v.min())) if v.dtype.kind == "f" else np.nan
    if np.isfinite(found):
        return found
    size = magnitude(v)
    return float(np.max(size, where=np.isfinite(size), initial=0.0))


def _unary(
    op: p.Unary, dtype: DType, largest: float, xs: Sequence[HostArray], bounds: Sequence[Bound], v: HostArray
) -> Bound:
    """`unary` of one tile; `largest` is the least magnitude that the tolerance is relative to."""
    (x,), (bound,) = xs, bounds
    fn = op.fn
    is_complex = x.dtype.kind == "c"
    if fn in ("isnan", "isinf", "isfinite"):
        return None if bound is None else or_none(np.where(np.isinf(bound), 1.0, 0.0))
    if fn in _SAME and not (fn == "abs" and is_complex):
        return bound
    if x.dtype.kind not in "fc":
        return _unary_whole(fn, x, bound)
    if fn in ("mantissa", "exponent"):
        return None if bound is None else or_none(np.where(bound > 0, np.inf, 0.0))
    bound = flushed(x, bound)
    if fn in ("sign", "signbit") and not is_complex:
        return None if bound is None else or_none(np.where((bound >= np.abs(x)) & (bound > 0), 2.0, 0.0))
    if fn in _STEPS and bound is None:
        return None
    given = filled(bound, x.shape)
    wide_x = wide(x)
    size = magnitude(v)
    if is_complex:
        carried = given if fn == "abs" else _carried_complex(fn, wide_x, given)
    else:
        carried = _carried(fn, wide_x, given, wide(v))
    added = 0.0 if fn in _STEPS else tolerance_of("arithmetic" if fn == "reciprocal" else "function", dtype)
    relative_to = size
    if fn not in _RELATIVE and fn != "abs":
        # Near a zero of the function, to 1 or to the largest result that there is.
        relative_to = np.maximum(size, largest)
    uncertain = (given > 0) | (np.isinf(size) & np.isfinite(x) & ~_is_pole(fn, x))
    bound = np.where(given > 0, carried, 0.0) + added * relative_to
    return settled(v, bound, dtype, uncertain=uncertain, underflows=(size == 0) & (x != 0))


def _is_pole(fn: str, x: HostArray) -> HostArray:
    """Where an infinite result is right, and no overflow."""
    return np.asarray(np.any([x == pole for pole in FUNCTIONS[fn].poles], axis=0))


def _unary_whole(fn: str, x: HostArray, bound: Bound) -> Bound:
    """The bound of a function of integers and bools: exact for exact operands, else undecided unless the function says
    more.
    """
    if bound is None:
        return None
    if fn == "invert" and x.dtype.kind == "b":
        return bound
    if fn == "sign":
        return or_none(np.where((bound >= np.abs(x)) & (bound > 0), 2.0, 0.0))
    return or_none(np.where(bound > 0, np.inf, 0.0))


def _carried(fn: str, x: HostArray, bound: npt.NDArray[np.float64], v: HostArray) -> npt.NDArray[np.float64]:
    """How far the result of a function moves when a real operand does, by at most `bound`.

    Monotone functions are evaluated at both ends. The others have limits of their own: a slope of at most 1, a distance
    to a pole. Functions without a rule are infinite.
    """
    known = _MONOTONE.get(fn)
    if known is not None:
        middle = known(x)
        return np.asarray(np.maximum(np.abs(known(x + bound) - middle), np.abs(known(x - bound) - middle)))
    match fn:
        case "sin" | "cos":
            return np.minimum(bound, 2.0)
        case "tan":
            beyond = np.abs(v) * np.tan(np.minimum(bound, 1.5))
            return np.where(beyond < 1, (1 + v * v) * np.tan(np.minimum(bound, 1.5)) / (1 - beyond), np.inf)
        case "cosh":
            return np.asarray(bound * np.sinh(np.abs(x) + bound))
        case "erf":
            return np.minimum(1.13 * bound, 2.0)
        case "reciprocal":
            size = np.abs(x)
            return np.where(size > bound, bound / (size * (size - bound)), np.inf)
    return np.full(x.shape, np.inf)


def _carried_complex(fn: str, x: HostArray, bound: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """How far the result of a function moves when a complex operand does: twice the largest change at four points
    around it.

    A branch cut that lies between them shows as a large change, and leaves the element undecided.
    """
    known = _COMPLEX.get(fn)
    if known is None:
        return np.full(x.shape, np.inf) if fn != "rint" else np.where(bound > 0, 2.0 + bound, 0.0)
    middle = known(x)
    steps = [np.abs(known(x + way * bound) - middle) for way in (1, -1, 1j, -1j)]
    return np.asarray(2 * np.max(steps, axis=0))


# Two values ---------------------------------------------------------------------------------------------------------


@BOUNDS.rule(p.Binary)
def binary(op: p.Binary, dtype: DType, xs: Sequence[HostArray], bounds: Sequence[Bound], v: HostArray) -> Bound:
    """The bound of a function of two operands, tile by tile."""
    return in_tiles(partial(_binary, op, dtype), xs, bounds, v)


def _binary(op: p.Binary, dtype: DType, xs: Sequence[HostArray], bounds: Sequence[Bound], v: HostArray) -> Bound:
    """`binary` of one tile. Comparisons are undecided where the operands lie within each other's bounds.

    Minima and maxima carry the larger bound; arithmetic carries both and adds a rounding where there is one.
    """
    x, y = xs
    fn = op.fn
    if x.dtype.kind in "fc" and fn not in ("complex", "copysign"):
        bounds = [flushed(x, bounds[0]), flushed(y, bounds[1])]
    exact = bounds[0] is None and bounds[1] is None
    bx, by = filled(bounds[0], x.shape), filled(bounds[1], y.shape)
    if fn in COMPARISONS:
        if exact:
            return None
        return or_none(np.where((bx + by > 0) & ~(magnitude_apart(x, y) > bx + by), 1.0, 0.0))
    if fn in ("minimum", "maximum"):
        if exact:
            return None
        if x.dtype.kind != "c":
            return or_none(np.maximum(bx, by))
        return or_none(np.where(bx + by > 0, magnitude_apart(x, y) + np.maximum(bx, by), 0.0))
    if fn == "complex":
        return None if exact else or_none(bx + by)
    if not is_inexact(dtype):
        return None if exact else _binary_whole(fn, x, y, bx, by)
    if fn == "copysign":
        return None if exact else or_none(bx + np.where((by > 0) & (by >= np.abs(y)), 2 * np.abs(wide(x)), 0.0))
    if fn == "ldexp":
        bound = bx * np.exp2(np.clip(y, -2000, 2000).astype(np.float64)) + np.where(by > 0, np.inf, 0.0)
        underflows = (v == 0) & (x != 0)
        return settled(v, bound, dtype, uncertain=bound > 0, underflows=underflows)
    if fn == "nextafter":
        return None if exact else or_none(np.where(bx + by > 0, np.inf, 0.0))
    a, b, size = wide(x), wide(y), magnitude(v)
    finite = bool(np.isfinite(np.max(size, initial=0.0)))
    bound = _added(fn, dtype, a, b, v, size)
    if not exact:
        carried = _carried_by_two(fn, a, b, wide(v), bx, by)
        if not (finite and fn in _CARRIES_NOTHING_OF_NOTHING):
            carried = np.where((bx > 0) | (by > 0), carried, 0.0)
        bound = carried + bound
    uncertain: Any = True
    if not finite:
        pole = (y == 0) if fn in ("divide", "floor_divide", "power") else False
        overflows = np.isinf(size) & np.isfinite(a) & np.isfinite(b) & ~np.asarray(pole)
        uncertain = (bx > 0) | (by > 0) | overflows
    # Most results have no zero, which is quick to see.
    may_underflow = fn in ("multiply", "divide", "power") and not size.all()
    underflows = (size == 0) & (x != 0) & (y != 0) if may_underflow else False
    return settled(v, bound, dtype, uncertain=uncertain, underflows=underflows)


#: Where their results are finite, numbers without a bound give 0 for what is carried.
_CARRIES_NOTHING_OF_NOTHING = ("add", "subtract", "multiply", "divide")


def magnitude_apart(x: HostArray, y: HostArray) -> npt.NDArray[np.float64]:
    """The distance of two numbers; 0 of infinities of one sign."""
    if x.dtype.kind in "biu":
        return np.abs(x.astype(np.float64) - y.astype(np.float64))
    return np.where(x == y, 0.0, np.abs(wide(x) - wide(y)))


def _added(
    fn: str, dtype: DType, a: HostArray, b: HostArray, v: HostArray, size: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """The bound that the operation itself adds to a result of this size; 0 where nothing had to be rounded."""
    arithmetic = tolerance_of("arithmetic", dtype) * size
    match fn:
        case "add" | "subtract" | "multiply" if KIND[dtype] != "complex":
            # A product, as choosing between two takes many times as long; of infinity it is NaN, and not looked at.
            return np.multiply(arithmetic, _rounds(fn, dtype, a, b, wide(v)))
        case "floor_divide":
            return np.zeros(v.shape)
        case "power":
            return POWER_FACTOR * tolerance_of("function", dtype) * size
        case "atan2" | "hypot":
            return tolerance_of("function", dtype) * size
    return arithmetic


_SPLIT = 134217729.0


def _rounds(fn: str, dtype: DType, a: HostArray, b: HostArray, v: HostArray) -> HostArray:
    """Where the exact result is not a number of the type, so that engines may round it differently.

    For types of 32 bits or fewer float64 holds the exact result. For float64 the error itself is computed: of a sum by
    the two-sum algorithm, of a product by Dekker's. An overflow there gives NaN, which counts as rounded.
    """
    if fn == "subtract":
        b = -b
    if ITEMSIZE[dtype] <= 4:
        # float64 has room for the exact sum and product of two such numbers.
        return np.asarray((a * b if fn == "multiply" else a + b) != v)
    # The error of a sum and of a product (Dekker) is a number too. Where splitting overflows it is NaN, and that counts
    # as rounded. What is computed anew is written over: that takes half the time.
    if fn != "multiply":
        other = np.asarray(v - a)
        error = np.asarray(v - other)
        np.subtract(a, error, out=error)
        np.subtract(b, other, out=other)
        error += other
        return np.asarray(error != 0)
    (high_a, low_a), (high_b, low_b) = _halves(a), _halves(b)
    error = np.asarray(high_a * high_b)
    error -= v
    for one, another in ((high_a, low_b), (low_a, high_b), (low_a, low_b)):
        error += one * another
    return np.asarray(error != 0)


def _halves(a: HostArray) -> tuple[HostArray, HostArray]:
    """The number as the exact sum of two numbers with half as many digits each (Dekker's splitting)."""
    large = np.asarray(_SPLIT * a)
    high = np.asarray(large - a)
    np.subtract(large, high, out=high)
    return high, np.subtract(a, high, out=large)


def _carried_by_two(
    fn: str, a: HostArray, b: HostArray, v: HostArray, bx: npt.NDArray[np.float64], by: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """How far the result of a function moves when its operands do, by at most `bx` and `by`; infinity if unknown."""
    if fn in ("add", "subtract", "hypot"):
        return bx + by
    size_a, size_b = np.abs(a), np.abs(b)
    match fn:
        case "multiply":
            found = np.asarray(bx * size_b)
            found += by * (size_a + bx)
            return found
        case "divide":
            return np.where(size_b > by, (bx + np.abs(v) * by) / (size_b - by), np.inf)
        case "power":
            return _carried_by_power(a, b, v, bx, by)
        case "atan2":
            radius = np.hypot(a, b) - bx - by
            turned = np.where(radius > 0, (size_b * bx + size_a * by + bx * by) / (radius * radius), 7.0)
            # Across the negative axis it jumps by a whole turn.
            jumps = (bx >= size_a) & (b - by < 0)
            return np.where(jumps, 7.0, np.minimum(turned, 7.0))
        case "floor_divide" | "remainder" | "fmod":
            return _carried_by_division(fn, a, b, bx, by)
    # A function without a rule: whatever comes agrees, once its operands are not exact.
    return np.full(v.shape, np.inf)


def _carried_by_power(
    a: HostArray, b: HostArray, v: HostArray, bx: npt.NDArray[np.float64], by: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """How far `a ** b` moves when base and exponent do: the relative error is exp of the change of `b * log(a)`, minus
    1.

    Around a base of 0 it is known for exact whole exponents only.
    """
    size = np.abs(a)
    relative = np.where(size > 2 * bx, bx / (size - bx), np.inf)
    exponent = np.abs(b) * relative * 1.5 + (np.abs(np.log(size)) + 1.0) * by
    carried = np.abs(v) * np.expm1(np.minimum(exponent, 700.0))
    if v.dtype.kind == "c":
        return 2 * carried
    # For a base around 0 the power is known only if the exponent is an integer.
    around = (by == 0) & (b >= 1) & (b == np.rint(b))
    carried = np.where(around & ~(size > 2 * bx), np.abs(b) * (size + bx) ** (b - 1) * bx, carried)
    return np.where((a - bx < 0) & (by > 0), np.inf, carried)


def _carried_by_division(
    fn: str, a: HostArray, b: HostArray, bx: npt.NDArray[np.float64], by: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """How far a floored or truncated quotient, or a remainder, moves: it jumps where the quotient may pass a whole
    number.
    """
    known = np.abs(b) > by
    quotient = a / b
    off = np.where(known, (bx + np.abs(quotient) * by) / (np.abs(b) - by), np.inf)
    whole = np.trunc if fn == "fmod" else np.floor
    steps = np.abs(whole(quotient + off * 1.001) - whole(quotient - off * 1.001))
    if fn == "floor_divide":
        return np.asarray(steps)
    return np.where(steps > 0, (np.abs(b) + by) * (steps + 1), bx + np.abs(whole(quotient)) * by)


def _binary_whole(
    fn: str, x: HostArray, y: HostArray, bx: npt.NDArray[np.float64], by: npt.NDArray[np.float64]
) -> Bound:
    """The bound of arithmetic with integers and bools; a bool is decided where one exact operand settles it."""
    either = (bx > 0) | (by > 0)
    if x.dtype.kind == "b":
        if fn == "bitwise_and":
            either &= ~((~x & (bx == 0)) | (~y & (by == 0)))
        elif fn == "bitwise_or":
            either &= ~((x & (bx == 0)) | (y & (by == 0)))
        return or_none(np.where(either, 1.0, 0.0))
    match fn:
        case "add" | "subtract":
            return or_none(bx + by)
        case "multiply":
            return or_none(bx * magnitude(y) + by * magnitude(x) + bx * by)
    return or_none(np.where(either, np.inf, 0.0))


# Choosing and converting --------------------------------------------------------------------------------------------


@BOUNDS.rule(p.Select)
def select(op: p.Primitive, dtype: DType, xs: Sequence[HostArray], bounds: Sequence[Bound], v: HostArray) -> Bound:
    """The bound of `where`; exact operands need no look at the elements."""
    return None if all(each is None for each in bounds) else in_tiles(_select, xs, bounds, v)


def _select(xs: Sequence[HostArray], bounds: Sequence[Bound], v: HostArray) -> Bound:
    """`select` of one tile: the bound of the operand that is chosen; where the condition is undecided, of both and
    their distance.
    """
    condition, a, b = xs
    undecided, ba, bb = (filled(bound, v.shape) for bound in bounds)
    found = np.where(condition, ba, bb)
    if bounds[0] is not None:
        either = magnitude_apart(a, b) + np.maximum(ba, bb)
        found = np.where(undecided > 0, np.where(np.isnan(either), np.inf, either), found)
    return or_none(found)


@BOUNDS.rule(p.Cast)
def cast(op: p.Cast, dtype: DType, xs: Sequence[HostArray], bounds: Sequence[Bound], v: HostArray) -> Bound:
    """The bound of a conversion. To integers it is the number of steps within the bound; outside of their range it is
    infinite.

    Neither NumPy nor an engine promises a result for a value outside of the range of an integer type.
    """
    (x,), (bound,) = xs, bounds
    if is_inexact(dtype):
        return _cast_inexact(dtype, x, bound, v)
    if x.dtype.kind not in "fc":
        # A whole number that is undecided may wrap around.
        return bound
    real = wide(x).real if KIND[dtype] != "bool" else magnitude(x)
    given = filled(bound, x.shape)
    if KIND[dtype] == "bool":
        return None if bound is None else or_none(np.where((given > 0) & (given >= real), 1.0, 0.0))
    bits = 8 * ITEMSIZE[dtype]
    low, high = (0.0, 2.0**bits) if KIND[dtype] == "unsigned" else (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1))
    # Neither NumPy nor any engine promises a result for a value outside of the dtype's range.
    inside = (real - given > low - 1) & (real + given < high)
    if bound is None and inside.all():
        return None
    steps = np.maximum(np.abs(np.trunc(real + given) - np.trunc(real)), np.abs(np.trunc(real - given) - np.trunc(real)))
    return or_none(np.where(inside, steps, np.inf))


def _cast_inexact(dtype: DType, x: HostArray, bound: Bound, v: HostArray) -> Bound:
    """The bound of a conversion to floats: what is carried, and a rounding where the value is no number of the type."""
    source = x.real if x.dtype.kind == "c" and KIND[dtype] != "complex" else x
    rounds = wide(source) != wide(v)
    if not rounds.any():
        return bound
    found = filled(bound, v.shape) + np.where(rounds, tolerance_of("arithmetic", dtype) * magnitude(v), 0.0)
    uncertain = (filled(bound, v.shape) > 0) | (np.isinf(magnitude(v)) & np.isfinite(magnitude(source)))
    underflows = (v == 0) & (source != 0)
    return settled(v, found, dtype, uncertain=uncertain, underflows=underflows)
