"""How bounds go through each primitive: one rule a primitive.

A rule takes the primitive, the spec of its result, and the specs and bounds of its inputs; it returns `UNKNOWN` where
two right answers could be anything. `_RULES` lists them. At the end, `tolerance` and `disagreement` compare results
within the bounds of a program's outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from anygpu.agreement.elementwise import DIGITS, tolerance_of
from anygpu.base.typing import HostArray
from anygpu.program import primitives as p
from anygpu.program.dtypes import ITEMSIZE, KIND, REAL_PART, DType, is_inexact, is_integer
from anygpu.program.functions import COMPARISONS
from anygpu.program.graph import Program
from anygpu.program.ops.linear import Attend
from anygpu.program.primitive import RuleTable
from anygpu.program.primitives import Primitive, Spec, product
from tests.support.random_programs.intervals import (
    POWER,
    POWER_COMPLEX,
    SMOOTH,
    SMOOTH_COMPLEX,
    UNKNOWN,
    Bounds,
    boxed,
    fits,
    input_bounds,
    joined,
    product_of,
    rounded,
    sum_of,
    whole_range,
)


def bounds_of(program: Program) -> list[Bounds]:
    """The bounds of every node of a program, in its order."""
    known: list[Bounds] = []
    for position, (op, inputs) in enumerate(program.nodes):
        sources = [program.specs[each] for each in inputs]
        known.append(bounds_after(op, program.specs[position], sources, [known[each] for each in inputs]))
    return known


def bounds_after(op: Primitive, result: Spec, sources: Sequence[Spec], given: Sequence[Bounds]) -> Bounds:
    """The bounds of one node, from those of its inputs.

    Whole numbers that leave their type wrap around, so their bounds become those of the type.
    """
    known = all(math.isfinite(each.magnitude) and math.isfinite(each.error) for each in given)
    found = _RULES[type(op)](op, result, sources, given) if known else UNKNOWN
    if not is_inexact(result.dtype):
        lowest, highest = whole_range(result.dtype)
        if not (lowest <= found.low and found.high <= highest):
            found = found._replace(low=lowest, high=highest, least=0)  # it wraps around
        found = found._replace(step=0)
    if found.low > 0 or found.high < 0:
        found = found._replace(least=max(found.least, min(abs(found.low), abs(found.high))))
    return found


# Sources ------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _constant_bounds(op: p.Constant) -> Bounds:
    """The bounds of a constant, with the coarsest power of two that all its values are multiples of."""
    values = np.frombuffer(op.data, op.dtype)
    if not values.size:
        return Bounds(0, 0, step=0)
    if not is_inexact(op.dtype):
        return Bounds(int(values.min()), int(values.max()), step=0)
    parts = np.stack([values.real, values.imag]).astype(np.float64)
    if not np.isfinite(parts).all():
        return UNKNOWN
    step = next((each for each in range(0, 64) if np.all(np.ldexp(parts, each) % 1 == 0)), None)
    (low, imag_low), (high, imag_high) = parts.min(axis=1).tolist(), parts.max(axis=1).tolist()
    return Bounds(low, high, imag_low, imag_high, step, least=float(np.abs(values).min()))


def _iota(op: p.Iota, result: Spec, sources: Sequence[Spec], given: Sequence[Bounds]) -> Bounds:
    """The numbers up to a length; those that the type does not hold are rounded."""
    found = Bounds(0, max(op.length - 1, 0), step=0)
    if is_inexact(op.dtype) and not fits(op.dtype, found.magnitude, 0):
        return found._replace(relative=tolerance_of("arithmetic", op.dtype), step=None)
    return found


# Element by element -------------------------------------------------------------------------------------------------


_STEPS = ("floor", "ceil", "trunc", "rint")


def _unary(op: p.Unary, result: Spec, sources: Sequence[Spec], given: Sequence[Bounds]) -> Bounds:
    """The bounds after a function of one operand; the kind of its type decides."""
    (x,), (source,) = given, sources
    fn = op.fn
    if fn in ("isnan", "isinf", "isfinite"):
        return Bounds(0, 1)
    if fn == "conj":
        return x._replace(imag_low=-x.imag_high, imag_high=-x.imag_low)
    if fn == "real":
        return x._replace(imag_low=0, imag_high=0, relative=0, absolute=x.error, least=0)
    if fn == "imag":
        return Bounds(x.imag_low, x.imag_high, step=x.step, absolute=x.error)
    if fn == "negative":
        return x._replace(low=-x.high, high=-x.low, imag_low=-x.imag_high, imag_high=-x.imag_low)
    if KIND[source.dtype] == "complex":
        return _unary_complex(fn, x, result.dtype)
    if fn == "abs":
        low = 0 if x.low < 0 < x.high else min(abs(x.low), abs(x.high))
        return x._replace(low=low, high=x.magnitude)
    if is_integer(source.dtype) or source.dtype == "bool":
        return _unary_whole(fn, x, source.dtype)
    return _unary_float(fn, x, source.dtype)


def _unary_whole(fn: str, x: Bounds, dtype: DType) -> Bounds:
    match fn:
        case "popcount":
            return Bounds(0, 64)
        case "reciprocal":
            return Bounds(-1, 1) if x.low > 0 or x.high < 0 else UNKNOWN
        case "sign":
            return Bounds(max(x.low, -1), min(x.high, 1))
    return Bounds(*whole_range(dtype))  # invert


def _unary_float(fn: str, x: Bounds, dtype: DType) -> Bounds:
    """The bounds after a function of a float.

    By its slope where it is smooth, and only of exact values where it has steps.
    """
    known = SMOOTH.get(fn)
    if known is not None:
        below_smooth = x.low < known.low and not (fn in ("sqrt", "cbrt") and x.low >= 0 and x.exact)
        if below_smooth or x.high > known.high:
            return UNKNOWN
        ends = sorted((known.value(x.low), known.value(x.high)))
        low, high = known.reach or (ends[0], ends[1])
        slope = known.slope(x.low, x.high) if not x.exact else 0.0
        tolerance = tolerance_of("function", dtype)
        largest = max(abs(low), abs(high))
        # The relative error of a result near 0, such as sin(π), is not bounded: there it is absolute.
        return Bounds(low, high, relative=tolerance, absolute=slope * x.error + tolerance * min(1.0, largest))
    if fn == "reciprocal":
        if x.least <= 2 * x.error or x.least == 0:
            return UNKNOWN
        absolute = 2 * x.absolute / x.least**2
        relative = 2 * x.relative + tolerance_of("arithmetic", dtype)
        return boxed(1 / x.least, complex_=False)._replace(relative=relative, absolute=absolute, least=1 / x.magnitude)
    if fn == "sign" and (x.exact or x.has_a_sign):
        return Bounds(max(x.low, -1), min(x.high, 1), step=0)
    if fn == "signbit" and x.has_a_sign:
        return Bounds(0, 1)
    if not x.exact:
        return UNKNOWN
    if fn == "mantissa":
        return Bounds(-1, 1)
    if fn == "exponent":
        return Bounds(-1100, 1100)
    if fn in _STEPS:
        return Bounds(math.floor(x.low), math.ceil(x.high), step=0)
    return UNKNOWN


def _unary_complex(fn: str, x: Bounds, dtype: DType) -> Bounds:
    """The bounds after a function of a complex number, inside the box in which it is smooth."""
    if fn == "abs":
        magnitude = x.magnitude
        return Bounds(x.least, magnitude, relative=tolerance_of("function", dtype), absolute=x.error)
    if fn == "rint":
        if not x.exact:
            return UNKNOWN
        return joined(Bounds(math.floor(x.low), math.ceil(x.high), math.floor(x.imag_low), math.ceil(x.imag_high), 0))
    known = SMOOTH_COMPLEX.get(fn)
    if known is None or x.low < known.low or x.high > known.high:
        return UNKNOWN
    if x.imag_low < known.imag_low or x.imag_high > known.imag_high:
        return UNKNOWN
    tolerance = tolerance_of("function", dtype)
    found = boxed(known.largest, complex_=True)
    return found._replace(relative=tolerance, absolute=known.slope * x.error + tolerance)


def _binary(op: p.Binary, result: Spec, sources: Sequence[Spec], given: Sequence[Bounds]) -> Bounds:
    """The bounds after a function of two operands; comparisons need exact ones."""
    x, y = given
    dtype = sources[0].dtype
    fn = op.fn
    both_exact = x.exact and y.exact
    if fn in COMPARISONS:
        return Bounds(0, 1) if both_exact else UNKNOWN
    if fn in ("add", "subtract"):
        return _plus(x, y if fn == "add" else _unary(p.Unary("negative"), result, sources[1:], [y]), dtype)
    if fn == "multiply":
        return _times(x, y, dtype)
    if fn in ("minimum", "maximum"):
        if KIND[dtype] == "complex" and not both_exact:
            return UNKNOWN
        if KIND[dtype] == "complex":
            return joined(x, y)
        choose = min if fn == "minimum" else max
        return joined(x, y)._replace(low=choose(x.low, y.low), high=choose(x.high, y.high), least=0.0)
    if fn == "complex":
        step = max(x.step, y.step) if x.step is not None and y.step is not None else None
        return Bounds(x.low, x.high, y.low, y.high, step, absolute=x.error + y.error)
    if is_inexact(dtype):
        return _binary_inexact(fn, x, y, dtype)
    return _binary_whole(fn, x, y, dtype)


def _plus(x: Bounds, y: Bounds, dtype: DType) -> Bounds:
    """The bounds of a sum. It may be known not to be 0, if the steps of both do not meet there."""
    step = max(x.step, y.step) if x.step is not None and y.step is not None else None
    found = Bounds(
        x.low + y.low, x.high + y.high, x.imag_low + y.imag_low, x.imag_high + y.imag_high, step,
        absolute=x.error + y.error, least=_off_the_grid(x, y),
    )  # fmt: skip
    found = rounded(dtype, found, exact=x.exact and y.exact)
    return found if found.exact else found._replace(least=0.0)


def _off_the_grid(x: Bounds, y: Bounds) -> float:
    """With one real number added that is not a multiple of the other's step, nothing can be 0."""
    for grid, one in ((x, y), (y, x)):
        if one.low == one.high and not one.imag_low and not one.imag_high and grid.step is not None and grid.exact:
            beyond = (one.low * 2.0**grid.step) % 1
            if beyond:
                return float(min(beyond, 1 - beyond) * 2.0**-grid.step)
    return 0.0


def _times(x: Bounds, y: Bounds, dtype: DType) -> Bounds:
    """The bounds of a product; errors grow with the size of the other factor."""
    step = x.step + y.step if x.step is not None and y.step is not None else None
    if KIND[dtype] == "complex":
        found = boxed(x.magnitude * y.magnitude, complex_=True, step=step)
    else:
        corners = [one * other for one in (x.low, x.high) for other in (y.low, y.high)]
        found = Bounds(min(corners), max(corners), step=step)
    absolute = x.absolute * y.magnitude + y.absolute * x.magnitude + x.absolute * y.absolute
    return rounded(
        dtype,
        found._replace(relative=x.relative + y.relative, absolute=absolute, least=x.least * y.least),
        exact=x.exact and y.exact,
    )


def _binary_inexact(fn: str, x: Bounds, y: Bounds, dtype: DType) -> Bounds:
    """The bounds after other functions of two floats or complex numbers; divisors must be clearly away from 0."""
    rounding = tolerance_of("arithmetic", dtype)
    function = tolerance_of("function", dtype)
    complex_ = KIND[dtype] == "complex"
    sure = y.least > 2 * y.error
    if fn == "divide" and sure:
        found = boxed(x.magnitude / y.least, complex_=complex_)
        if not complex_ and x.low >= 0 and y.low > 0:
            found = found._replace(low=x.low / y.high)
        return found._replace(
            relative=x.relative + 2 * y.relative + rounding,
            absolute=x.absolute / y.least + 2 * x.magnitude * y.absolute / y.least**2,
        )
    if fn == "power":
        return _power(x, y, function, complex_=complex_)
    if fn == "hypot":
        return Bounds(max(x.least, y.least), math.hypot(x.magnitude, y.magnitude), relative=function,
                      absolute=x.error + y.error)  # fmt: skip
    if fn == "atan2" and x.has_a_sign and y.has_a_sign:
        slope = 1 / max(x.least, y.least)
        return Bounds(-3.2, 3.2, relative=function, absolute=slope * (x.error + y.error))
    if fn == "copysign" and y.has_a_sign:
        return boxed(x.magnitude, complex_=False)._replace(
            step=x.step, relative=x.relative, absolute=x.absolute, least=x.least
        )
    if fn == "ldexp" and y.magnitude <= 8:
        scale = 2.0**y.magnitude
        step = x.step + int(y.magnitude) if x.step is not None else None
        return boxed(x.magnitude * scale, complex_=False)._replace(
            step=step, relative=x.relative, absolute=x.absolute * scale, least=x.least / scale
        )
    if not (x.exact and y.exact):
        return UNKNOWN
    if fn == "nextafter" and x.least > 0:
        return boxed(x.magnitude * 1.01, complex_=False)
    if fn in ("floor_divide", "remainder", "fmod") and sure and x.step is not None and y.step is not None:
        if fn == "floor_divide":
            return boxed(math.ceil(x.magnitude / y.least), complex_=False, step=0)
        step = max(x.step, y.step)
        return rounded(dtype, boxed(y.magnitude, complex_=False, step=step), exact=True)
    return UNKNOWN


def _power(x: Bounds, y: Bounds, tolerance: float, *, complex_: bool) -> Bounds:
    """The bounds of a power inside `POWER`: elsewhere powers are too steep to compare."""
    base, exponent, largest, slope = POWER_COMPLEX if complex_ else POWER
    for each, box in ((x, base), (y, exponent)):
        if each.low < box[0] or each.high > box[1] or each.imag_low < box[2] or each.imag_high > box[3]:
            return UNKNOWN
    found = boxed(largest, complex_=complex_) if complex_ else Bounds(1 / largest, largest)
    return found._replace(relative=4 * tolerance, absolute=slope * (x.error + y.error))


def _binary_whole(fn: str, x: Bounds, y: Bounds, dtype: DType) -> Bounds:
    """The bounds after other functions of two whole numbers; unknown where C leaves the result open."""
    lowest, highest = whole_range(dtype)
    match fn:
        case "floor_divide" | "remainder" | "fmod":
            if y.low <= 0 <= y.high or (x.low == lowest < 0 and y.low <= -1 <= y.high):
                return UNKNOWN
            size = x.magnitude if fn == "floor_divide" else y.magnitude
            return Bounds(-size if lowest else 0, size)
        case "power":
            if not 0 <= y.low <= y.high <= 8:
                return UNKNOWN
            largest = max(1, x.magnitude**y.high)
            return Bounds(-largest if x.low < 0 else 0, largest)
        case "left_shift" | "right_shift":
            return Bounds(lowest, highest) if y.low >= 0 and y.high < 8 * ITEMSIZE[dtype] else UNKNOWN
        case "gcd":
            return Bounds(0, max(x.magnitude, y.magnitude)) if min(x.low, y.low) > lowest or not lowest else UNKNOWN
    return Bounds(lowest, highest)  # bitwise


def _select(op: Primitive, result: Spec, sources: Sequence[Spec], given: Sequence[Bounds]) -> Bounds:
    return joined(*given[1:]) if given[0].exact else UNKNOWN


def _cast(op: p.Cast, result: Spec, sources: Sequence[Spec], given: Sequence[Bounds]) -> Bounds:
    """The bounds after a cast; fractions become whole numbers only if they are exact and inside the type."""
    (x,), (source,) = given, sources
    if KIND[source.dtype] == "complex" and KIND[op.dtype] not in ("complex", "bool"):
        x = _unary(p.Unary("real"), result, sources, given)
    if op.dtype == "bool":
        return Bounds(0, 1) if x.exact or x.has_a_sign else UNKNOWN
    if not is_inexact(op.dtype):
        if not is_inexact(source.dtype):
            return x
        lowest, highest = whole_range(op.dtype)
        inside = lowest <= x.low and x.high <= highest
        return Bounds(math.trunc(x.low), math.trunc(x.high)) if x.exact and inside else UNKNOWN
    digits, had = DIGITS[REAL_PART.get(op.dtype, op.dtype)], DIGITS.get(REAL_PART.get(source.dtype, source.dtype), 99)
    if (x.exact and fits(op.dtype, x.magnitude, x.step)) or digits >= had:
        return x
    return x._replace(step=None, relative=x.relative + tolerance_of("arithmetic", op.dtype), least=0.9 * x.least)


# Along axes ---------------------------------------------------------------------------------------------------------


def _reduce(op: p.Reduce, result: Spec, sources: Sequence[Spec], given: Sequence[Bounds]) -> Bounds:
    (x,), (source,) = given, sources
    count = product(tuple(source.shape[axis] for axis in op.axes))
    match op.fn:
        case "sum":
            return sum_of(x, source.dtype, count)
        case "prod":
            return product_of(x, source.dtype, count)
        case "any" | "all":
            return Bounds(0, 1) if x.exact else UNKNOWN
        case "argmax" | "argmin":
            return Bounds(0, count - 1) if x.exact else UNKNOWN
    return _ordered(x, source.dtype)


def _ordered(x: Bounds, dtype: DType) -> Bounds:
    """Values of the same set in an order by size: each moves by no more than the largest error of any."""
    if x.exact:
        return x
    return x._replace(relative=0.0, absolute=x.error) if KIND[dtype] != "complex" else UNKNOWN


def _scan(op: p.Scan, result: Spec, sources: Sequence[Spec], given: Sequence[Bounds]) -> Bounds:
    (x,), (source,) = given, sources
    count = source.shape[op.axis]
    if op.fn == "sum":
        return sum_of(x, source.dtype, count)
    return product_of(x, source.dtype, count) if op.fn == "prod" else _ordered(x, source.dtype)


def _contract(op: p.Contract, result: Spec, sources: Sequence[Spec], given: Sequence[Bounds]) -> Bounds:
    """The bounds of sums of products."""
    (x, y), dtype = given, sources[0].dtype
    return sum_of(_times(x, y, dtype), dtype, product(tuple(sources[0].shape[axis] for axis in op.left)))


def _scatter(op: p.Scatter, result: Spec, sources: Sequence[Spec], given: Sequence[Bounds]) -> Bounds:
    """The bounds after a scatter, in which any number of updates may meet in one place."""
    x, indices, updates = given
    both = joined(x, updates)
    count = 1 + product(sources[1].shape[op.batch :])
    match op.fn:
        case "add":
            return sum_of(both, result.dtype, count)
        case "multiply":
            return product_of(both, result.dtype, count)
        case "maximum" | "minimum":
            return _ordered(both, result.dtype)
    return both if indices.exact else UNKNOWN


def _fourier(op: p.Fourier, result: Spec, sources: Sequence[Spec], given: Sequence[Bounds]) -> Bounds:
    """The bounds of a transform, whose rounding grows with the logarithm of its length."""
    (x,) = given
    growth = op.length if op.fn in ("fft", "rfft") else 1.0 if op.fn == "ifft" else 2.0
    largest = growth * x.magnitude
    added = tolerance_of("fourier", result.dtype) * (1 + math.log2(op.length)) * largest
    found = boxed(largest, complex_=op.fn != "irfft")
    return found._replace(absolute=growth * x.error + added)


def _linear(op: p.Linear, result: Spec, sources: Sequence[Spec], given: Sequence[Bounds]) -> Bounds:
    """The bounds of linear algebra on matrices that are well conditioned, with no eigenvalue below 1.

    The generator makes no others.
    """
    rows, columns = sources[0].shape[-2:]
    size = max(rows, columns, 1)
    norm = max(1.0, given[0].magnitude * size)
    match op.fn:
        case "inv":
            largest = 1.0
        case "solve":
            largest = given[1].magnitude * size
        case "det":
            largest = norm**size if size * math.log2(norm) < 200 else math.inf
        case "slogdet":
            largest = 1.0 if op.part == 0 else size * math.log(norm) + 1
        case "cholesky":
            largest = math.sqrt(norm)
        case "qr":
            largest = 1.0 if op.part == 0 else norm
        case "svd":
            largest = norm if op.part == 1 else 1.0
        case "eigh" | "eig":
            largest = norm if op.part == 0 else 1.0
        case _:
            largest = norm
    error = sum(each.error for each in given) * size * max(1.0, largest)
    found = boxed(largest, complex_=KIND[result.dtype] == "complex")
    return found._replace(absolute=error + tolerance_of("linear", sources[0].dtype) * size * max(largest, 1.0) * norm)


def _attend(op: Attend, result: Spec, sources: Sequence[Spec], given: Sequence[Bounds]) -> Bounds:
    """The bounds of attention: a mean of the values.

    Its weights move by as much as the exponents do, twice: above and below the line of the fraction.
    """
    q, k, v = given[:3]
    d, m = sources[0].shape[-1], sources[1].shape[-2]
    if not m or (op.causal and sources[0].shape[-2] > m):
        return UNKNOWN
    # float16 is summed up in float32; until then its numbers are exact as far as these are.
    inside: DType = "float32" if ITEMSIZE[result.dtype] == 2 else result.dtype
    score = sum_of(_times(q, k, inside), inside, d)
    exponent = abs(op.scale) * (score.error + tolerance_of("arithmetic", inside) * score.magnitude)
    if len(given) == 4:
        largest = abs(op.scale) * score.magnitude + given[3].magnitude
        exponent += given[3].error + tolerance_of("arithmetic", inside) * largest
    weight = 2 * math.expm1(min(exponent, 50.0)) + (2 * m + 2) * tolerance_of("function", inside)
    error = v.error + weight * v.magnitude + tolerance_of("arithmetic", result.dtype) * v.magnitude
    return Bounds(v.low, v.high, absolute=error)


# Movement -----------------------------------------------------------------------------------------------------------


def _same(op: Primitive, result: Spec, sources: Sequence[Spec], given: Sequence[Bounds]) -> Bounds:
    return given[0]


def _all(op: Primitive, result: Spec, sources: Sequence[Spec], given: Sequence[Bounds]) -> Bounds:
    return joined(*given)


def _gather(op: Primitive, result: Spec, sources: Sequence[Spec], given: Sequence[Bounds]) -> Bounds:
    return given[0] if given[1].exact else UNKNOWN


def _argsort(op: p.Argsort, result: Spec, sources: Sequence[Spec], given: Sequence[Bounds]) -> Bounds:
    return Bounds(0, max(sources[0].shape[op.axis] - 1, 0)) if given[0].exact else UNKNOWN


def _search(op: Primitive, result: Spec, sources: Sequence[Spec], given: Sequence[Bounds]) -> Bounds:
    return Bounds(0, sources[0].shape[0]) if given[0].exact and given[1].exact else UNKNOWN


_RULES: RuleTable[Callable[[Any, Spec, Sequence[Spec], Sequence[Bounds]], Bounds]] = RuleTable(
    {
        p.Input: lambda op, result, sources, given: input_bounds(op.dtype),
        p.Constant: lambda op, result, sources, given: _constant_bounds(op),
        p.Iota: _iota,
        p.Unary: _unary,
        p.Binary: _binary,
        p.Select: _select,
        p.Cast: _cast,
        p.Reduce: _reduce,
        p.Scan: _scan,
        p.Reshape: _same,
        p.Permute: _same,
        p.Broadcast: _same,
        p.Slice: _same,
        p.Update: _all,
        p.Flip: _same,
        p.Pad: _all,
        p.Concatenate: _all,
        p.Windows: _same,
        p.Contract: _contract,
        p.Gather: _gather,
        p.Scatter: _scatter,
        p.Sort: lambda op, result, sources, given: _ordered(given[0], result.dtype),
        p.Argsort: _argsort,
        p.Search: _search,
        p.Fourier: _fourier,
        p.Linear: _linear,
        Attend: _attend,
    }
)


# -- whether two engines agree on a program
#
# The published tolerances, applied.


def tolerance(program: Program, output: int) -> tuple[float, float]:
    """The relative and the absolute difference that two right answers may have in one output.

    Both are 0 where there is only one right answer. They hold for inputs as `random_inputs` makes them; where a program
    leaves the domain in which that says something, they are what one function may add, once for each node.
    """
    return tolerances(program)[output]


def tolerances(program: Program) -> list[tuple[float, float]]:
    """`tolerance` of every output."""
    bounds = bounds_of(program)
    found = []
    for output in program.outputs:
        dtype = program.specs[output].dtype
        relative, absolute = bounds[output].relative, bounds[output].absolute
        if not math.isfinite(absolute):
            relative = absolute = len(program.nodes) * tolerance_of("function", dtype)
        if absolute or relative:
            absolute += float(np.finfo(REAL_PART.get(dtype, dtype)).tiny)  # below, some engines have only 0
        found.append((relative, absolute))
    return found


def disagreement(expected: Sequence[HostArray], got: Sequence[HostArray], program: Program) -> str | None:
    """`None` when all outputs agree, or a sentence about the first element that does not."""
    if len(expected) != len(program.outputs) or len(got) != len(program.outputs):
        return f"the program has {len(program.outputs)} outputs; {len(expected)} were expected, {len(got)} came."
    for number, (relative, absolute) in enumerate(tolerances(program)):
        sentence = _difference(expected[number], got[number], relative, absolute)
        if sentence is not None:
            return f"output {number} ({program.results[number]}) {sentence}"
    return None


def _difference(expected: HostArray, got: HostArray, relative: float, absolute: float) -> str | None:
    """A sentence about the first element that differs by more than is allowed; `None` if there is none."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return f"is {got.dtype.name}{list(got.shape)}, not {expected.dtype.name}{list(expected.shape)}."
    agree = expected == got
    if is_inexact(expected.dtype.name):  # type: ignore[arg-type]
        agree |= np.isnan(expected) & np.isnan(got)
        if absolute or relative:
            # Wider than any type compared here, so that nothing is lost in comparing.
            wide = np.complex128 if expected.dtype.kind == "c" else np.float64
            one, other = expected.astype(wide), got.astype(wide)
            with np.errstate(all="ignore"):
                agree |= np.abs(one - other) <= absolute + relative * np.abs(one)
    if agree.all():
        return None
    index = tuple(int(each[0]) for each in np.nonzero(np.atleast_1d(~agree)))[: expected.ndim]
    allowed = f"{absolute + relative * abs(expected[index]):.2g}"
    many = f" ({np.count_nonzero(~agree)} of {agree.size} differ)"
    return f"at {index}: {expected[index]} expected, {got[index]} came; {allowed} is allowed{many}."
