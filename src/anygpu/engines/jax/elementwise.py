"""Element by element in jax: unary and binary functions, select, and casts, each with NumPy's meaning.

`JaxSite` is what a rule knows of its place in a program, and `LOWER` has the rule of each primitive. Where jax differs
from NumPy, as at zeros, infinities and NaN of complex numbers, the formula stands here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from anygpu.base.interrupts import float_errors_ignored
from anygpu.engines.codegen.value_analysis import whole_exponent
from anygpu.program.dtypes import ITEMSIZE, KIND, DType
from anygpu.program.functions import FUNCTIONS, having
from anygpu.program.primitive import RuleTable
from anygpu.program.primitives import Binary, Cast, Select, Spec, Unary

# -- a primitive's place in a program that is traced for XLA, and errors that its values cause
# Compiled code cannot raise. Where NumPy would raise because of values, the program returns a hidden flag beside its
# results, and the flag becomes the error.


#: How each primitive is traced: with its site and the arrays that it takes.
LOWER: RuleTable[Callable[..., Any]] = RuleTable()


def hidden(values: Any) -> Array:
    """A constant behind a barrier: XLA simplifies what it knows, and x + 0 is not x when x is -0."""
    if values.dtype.kind == "c":
        # Complex numbers as such are simplified once more, behind the barriers.
        return lax.complex(hidden(values.real), hidden(values.imag))
    return lax.optimization_barrier(jnp.asarray(values))


JaxComplaint = Callable[[], Exception]


class JaxSite(NamedTuple):
    """Where a primitive stands in a program."""

    inputs: tuple[Spec, ...]
    result: Spec
    #: Called with a flag and the error that it stands for.
    complain: Callable[[Any, JaxComplaint], None]
    #: Indices that no run can get wrong, and that name nothing twice.
    in_range: bool = False
    distinct: bool = False
    #: For each input the number that it is everywhere, where that is a part of the program.
    scalars: tuple[Any, ...] = ()

    @property
    def dtype(self) -> DType:
        """The type that the primitive works on."""
        return self.inputs[0].dtype if self.inputs else self.result.dtype

    def scalar(self, which: int) -> Any:
        return self.scalars[which] if self.scalars else None


# -- functions of complex numbers as NumPy has them, also for zeros, infinities and NaN; and which XLA has otherwise


#: Their zeros have other signs in XLA, and their infinities become NaN; NumPy computes them on the host.
COMPLEX_OTHERWISE = having("angle")


def complex_divide(x: Array, y: Array) -> Array:
    """By the larger part of the divisor first, as NumPy does, so that no square overflows."""
    real, imaginary = y.real, y.imag
    wide = jnp.abs(real) >= jnp.abs(imaginary)
    ratio = jnp.where(wide, imaginary / real, real / imaginary)
    scale = 1 / jnp.where(wide, real + imaginary * ratio, imaginary + real * ratio)
    found = lax.complex(
        jnp.where(wide, x.real + x.imag * ratio, x.real * ratio + x.imag) * scale,
        jnp.where(wide, x.imag - x.real * ratio, x.imag * ratio - x.real) * scale,
    )
    by_zero = lax.complex(x.real / jnp.abs(real), x.imag / jnp.abs(real))
    return jnp.where((real == 0) & (imaginary == 0), by_zero, found)


def _complex_reciprocal(x: Array) -> Array:
    """1 / x by Smith's method, without overflow on the way."""
    real, imaginary = x.real, x.imag
    wide = jnp.abs(imaginary) <= jnp.abs(real)
    ratio = jnp.where(wide, imaginary / real, real / imaginary)
    below = jnp.where(wide, real + imaginary * ratio, real * ratio + imaginary)
    return lax.complex(jnp.where(wide, 1, ratio) / below, jnp.where(wide, -ratio, -1) / below)


def _complex_exp(x: Array) -> Array:
    """The complex exponential with NumPy's results for infinities and NaN."""
    beyond, zero = ~jnp.isfinite(x.imag), jnp.zeros_like(x.real)
    found = jnp.where(beyond & jnp.isposinf(x.real), lax.complex(x.real, zero + jnp.nan), jnp.exp(x))
    found = jnp.where(beyond & jnp.isneginf(x.real), lax.complex(zero, jnp.copysign(zero, x.imag)), found)
    # The sign of 0 stays.
    return jnp.where(x.imag == 0, lax.complex(jnp.exp(x.real), x.imag), found)


def _complex_exp2(x: Array) -> Array:
    return _complex_exp(lax.complex(x.real * math.log(2), x.imag * math.log(2)))


def _complex_expm1(x: Array) -> Array:
    """exp(x) - 1 without cancellation near 0."""
    half = jnp.sin(x.imag / 2)
    real = jnp.expm1(x.real) * jnp.cos(x.imag) - 2 * half * half
    return lax.complex(real, jnp.exp(x.real) * jnp.sin(x.imag))


def _complex_sqrt(x: Array) -> Array:
    """The complex square root with NumPy's results for infinities and NaN, and the sign of the imaginary zero."""
    found = jnp.sqrt(x)
    found = jnp.where(jnp.isposinf(x.real) & jnp.isnan(x.imag), lax.complex(x.real, x.imag), found)
    found = jnp.where(jnp.isneginf(x.real) & jnp.isnan(x.imag), lax.complex(x.imag, -x.real), found)
    found = jnp.where(jnp.isinf(x.imag), lax.complex(jnp.abs(x.imag), x.imag), found)
    # XLA loses the sign of 0.
    return lax.complex(found.real, jnp.copysign(found.imag, x.imag))


def _infinite(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """A logarithm: of what is infinite on one side it is infinite, even when the other is not a number."""

    def logarithm(x: Array) -> Array:
        found = function(x)
        return lax.complex(jnp.where(jnp.isinf(x), jnp.inf, found.real).astype(x.real.dtype), found.imag)

    return logarithm


def _complex_log1p(x: Array) -> Array:
    above = x.real + 1
    return lax.complex(jnp.log(jnp.hypot(above, x.imag)), jnp.arctan2(x.imag, above))


COMPLEX_UNARY: dict[str, Callable[[Array], Array]] = {
    "reciprocal": _complex_reciprocal,
    "exp": _complex_exp,
    "exp2": _complex_exp2,
    "expm1": _complex_expm1,
    "sqrt": _complex_sqrt,
    "log": _infinite(jnp.log),
    "log2": _infinite(jnp.log2),
    "log10": _infinite(jnp.log10),
    "log1p": _complex_log1p,
}


def complex_power(x: Array, exponent: int) -> Array:
    """Multiplied out by squares, as NumPy does for whole exponents."""
    if exponent in (1, 2, 3):
        product = x if exponent == 1 else x * x if exponent == 2 else x * (x * x)
        return jnp.where(x == 0, 0, product).astype(x.dtype)
    one = jnp.broadcast_to(hidden(np.ones((), x.dtype)), x.shape)
    result, square, rest = one, x, abs(exponent)
    while rest:
        if rest & 1:
            result = result * square
        rest >>= 1
        square = square * square if rest else square
    if exponent < 0:
        # Nothing can be told of 1 / 0 in the plane.
        return jnp.where(x == 0, complex(jnp.nan, jnp.nan), complex_divide(one, result)).astype(x.dtype)
    return jnp.where(x == 0, 0, result).astype(x.dtype) if exponent else result


# -- functions, choices and casts


_WHOLE = ("signed", "unsigned")
_HALF = ("float16", "bfloat16")
#: Functions that are about the bits of a number, and so must see it in its own type.
_ABOUT_BITS = ("signbit", "isnan", "isinf", "isfinite", "nextafter", "copysign", "complex", "ldexp")


@LOWER.rule(Unary)
def unary(op: Unary, site: JaxSite, x: Array) -> Array:
    """A function of one operand; half precision is computed in float32."""
    dtype = site.dtype
    if dtype in _HALF and op.fn not in _ABOUT_BITS:
        return _unary(op, "float32", x.astype(np.float32)).astype(jnp.dtype(site.result.dtype))
    return _unary(op, dtype, x)


def _unary(op: Unary, dtype: DType, x: Array) -> Array:
    """A function of one operand: jax's own of NumPy's name, or a formula where jax differs from NumPy."""
    if KIND[dtype] == "complex" and op.fn in COMPLEX_UNARY:
        return COMPLEX_UNARY[op.fn](x)
    match op.fn:
        case "abs" if KIND[dtype] == "unsigned":
            return x
        case "sign" if KIND[dtype] == "float":
            return jnp.where(x == 0, np.zeros((), dtype), lax.sign(x))
        case "sign" if KIND[dtype] == "complex":
            return _complex_sign(x)
        case "abs" if KIND[dtype] == "complex":
            # Infinite on one side is infinite, even when the other is not a number.
            return jnp.where(jnp.isinf(x), jnp.inf, jnp.abs(x)).astype(x.real.dtype)
        case "reciprocal" if KIND[dtype] in _WHOLE:
            return _whole_reciprocal(x, dtype)
        case "popcount":
            return lax.population_count(jnp.abs(x)).astype(np.uint8)
        case "erf":
            return lax.erf(x)
        case "mantissa":
            return _split(x)[0]
        case "exponent":
            return _split(x)[1]
    return getattr(jnp, FUNCTIONS[op.fn].numpy_name)(x)


def _complex_sign(x: Array) -> Array:
    """The number of magnitude 1 in the same direction; jax loses the direction of what is infinite on one side."""
    one_side = jnp.isinf(x.real) ^ jnp.isinf(x.imag)
    parts = [jnp.where(jnp.isinf(part), lax.sign(part), 0).astype(part.dtype) for part in (x.real, x.imag)]
    return jnp.where(one_side, lax.complex(*parts), jnp.where(x == 0, 0, jnp.sign(x)).astype(x.dtype))


@float_errors_ignored
def _reciprocal_of_zero(dtype: DType) -> Any:
    return np.reciprocal(np.zeros((), dtype))


def _whole_reciprocal(x: Array, dtype: DType) -> Array:
    """1 and -1 are their own; what C makes of 1 / 0 is asked of NumPy."""
    of_zero = _reciprocal_of_zero(dtype)
    is_unit = x == 1 if KIND[dtype] == "unsigned" else (x == 1) | (x == -1)
    return jnp.where(is_unit, x, jnp.where(x == 0, of_zero, np.zeros((), dtype)))


def _split(x: Array) -> tuple[Array, Array]:
    """By the bits of the number: XLA's own arithmetic has only 0 below the smallest normal number."""
    width, digits = (64, 52) if x.dtype == np.float64 else (32, 23)
    whole = np.dtype(f"int{width}")
    bits = lax.bitcast_convert_type(x, whole)
    half_exponent = whole.type((1 << (width - digits - 2)) - 2)
    size = bits & whole.type((1 << (width - 1)) - 1)
    field, fraction = size >> digits, size & whole.type((1 << digits) - 1)
    # A subnormal number is shifted until its first digit is where that of all others is.
    shift = lax.clz(fraction) - whole.type(width - digits - 1)
    small = field == 0
    fraction = jnp.where(small, (fraction << jnp.clip(shift, 0, digits)) & whole.type((1 << digits) - 1), fraction)
    exponent = jnp.where(small, 1 - shift, field) - half_exponent
    mantissa = (bits & whole.type(-1 << (width - 1))) | (half_exponent << digits) | fraction
    # Zeros and what is not finite are their own mantissa.
    itself = (size == 0) | (field == whole.type((1 << (width - digits - 1)) - 1))
    found = jnp.where(itself, bits, mantissa)
    return lax.bitcast_convert_type(found, x.dtype), jnp.where(itself, 0, exponent).astype(np.int32)


@LOWER.rule(Binary)
def binary(op: Binary, site: JaxSite, x: Array, y: Array) -> Array:
    """A function of two operands; half precision is computed in float32."""
    if site.dtype in _HALF and op.fn not in _ABOUT_BITS:
        wide = _binary(op, "float32", site, x.astype(np.float32), y.astype(np.float32))
        return wide.astype(jnp.dtype(site.result.dtype))
    return _binary(op, site.dtype, site, x, y)


def _binary(op: Binary, dtype: DType, site: JaxSite, x: Array, y: Array) -> Array:
    """A function of two operands: jax's own of NumPy's name, or a formula where jax differs from NumPy."""
    match op.fn:
        case "less" | "less_equal" | "greater" | "greater_equal" | "minimum" | "maximum" if KIND[dtype] == "complex":
            return complex_ordering(op.fn, x, y)
        case "floor_divide" | "remainder" | "fmod":
            return (_divide_whole if KIND[dtype] in _WHOLE else _divide_floats)(op.fn, x, y)
        case "divide" if KIND[dtype] == "complex":
            return complex_divide(x, y)
        case "nextafter" if dtype == "float16":
            return jnp.where(x == y, x, jnp.nextafter(x, y))
        case "atan2":
            return _angle(_without_subnormals(x), _without_subnormals(y))
        case "power":
            return _power(site, x, y)
        case "ldexp":
            return _scale(x, y)
        case "gcd":
            return _gcd(x, y)
        case "left_shift":
            return lax.shift_left(x, y)
        case "complex":
            wide = x.dtype in (np.float32, np.float64)
            return lax.complex(x, y) if wide else lax.complex(x.astype(np.float32), y.astype(np.float32))
    return getattr(jnp, FUNCTIONS[op.fn].numpy_name)(x, y)


def complex_ordering(fn: str, x: Array, y: Array) -> Array:
    """First by the real parts, then by the imaginary ones; what is not a number spreads as NumPy lets it."""
    if fn in ("minimum", "maximum"):
        before = complex_ordering("less_equal" if fn == "minimum" else "greater_equal", x, y)
        return jnp.where(before | jnp.isnan(x), x, y)
    strict = jnp.less if fn.startswith("less") else jnp.greater
    numbers = ~(jnp.isnan(x.imag) | jnp.isnan(y.imag))
    return (strict(x.real, y.real) & numbers) | ((x.real == y.real) & getattr(jnp, fn)(x.imag, y.imag))


def _divide_whole(fn: str, x: Array, y: Array) -> Array:
    """By 0 is 0, as in NumPy."""
    divisor = jnp.where(y == 0, 1, y)
    if fn == "floor_divide":
        result = lax.div(x, divisor)
        if jnp.issubdtype(x.dtype, jnp.signedinteger):
            result = result - ((lax.rem(x, divisor) != 0) & ((x < 0) != (divisor < 0)))
    else:
        result = lax.rem(x, divisor)
        if fn == "remainder" and jnp.issubdtype(x.dtype, jnp.signedinteger):
            result = jnp.where((result != 0) & ((result < 0) != (divisor < 0)), result + divisor, result)
    return jnp.where(y == 0, 0, result).astype(x.dtype)


def _gcd(x: Array, y: Array) -> Array:
    """Of the magnitudes as unsigned numbers, because that of the least number does not fit into its own type."""
    unsigned = np.dtype(f"uint{8 * x.dtype.itemsize}")
    if x.dtype == unsigned:
        return jnp.gcd(x, y)
    return jnp.gcd(jnp.abs(x).astype(unsigned), jnp.abs(y).astype(unsigned)).astype(x.dtype)


def _divide_floats(fn: str, x: Array, y: Array) -> Array:
    """`floor_divide`, `remainder` or `fmod` of floats, with NumPy's signs of zeros and its rounding of quotients."""
    rest = lax.rem(x, y)
    if fn == "fmod":
        return rest
    other_side = (rest != 0) & ((rest < 0) != (y < 0))
    if fn == "remainder":
        # The sign of the divisor, even when nothing is left.
        return jnp.copysign(jnp.where(other_side, rest + y, rest), y)
    quotient = (x - rest) / y
    quotient = jnp.where(other_side, quotient - 1, quotient)
    floor = jnp.floor(quotient)
    floor = jnp.where(quotient - floor > 0.5, floor + 1, floor)
    whole = jnp.where(quotient == 0, jnp.copysign(np.zeros((), x.dtype), x / y), floor)
    return jnp.where(y == 0, x / y, whole)


def _power(site: JaxSite, x: Array, y: Array) -> Array:
    """A power. Negative exponents of integers are an error when it runs; few constants have a shorter way."""
    if KIND[site.dtype] == "signed":
        site.complain(
            jnp.any(y < 0),
            lambda: ValueError("integers to negative integer powers are not allowed; convert the base to float first."),
        )
    if KIND[site.dtype] in _WHOLE:
        return _power_whole(x, y)
    if KIND[site.dtype] == "complex":
        whole = whole_exponent(site.scalar(1))
        assert whole is not None, "other complex powers are NumPy's"
        return complex_power(x, whole)
    short = _POWERS.get(site.scalar(1))
    return short(x) if short is not None else lax.pow(_without_subnormals(x), y)


def _angle(x: Array, y: Array) -> Array:
    """Of constants that are both 0 XLA makes NaN."""
    of_zeros = jnp.copysign(jnp.where(jnp.signbit(y), np.asarray(np.pi, x.dtype), np.zeros((), x.dtype)), x)
    return jnp.where((x == 0) & (y == 0), of_zeros, jnp.arctan2(x, y))


def _without_subnormals(x: Array) -> Array:
    """Where XLA's arithmetic sees 0, which comparisons tell, it is 0: no part of a function may see another number."""
    return jnp.where(x == 0, jnp.copysign(np.zeros((), x.dtype), x), x)


#: What NumPy computes otherwise, too, when there is one exponent for all.
_POWERS: dict[Any, Callable[[Array], Array]] = {
    0: jnp.ones_like,
    1: lambda x: x,
    2: lambda x: x * x,
    3: lambda x: x * x * x,
    -1: lambda x: 1 / x,
    0.5: jnp.sqrt,
}


def _power_whole(x: Array, y: Array) -> Array:
    """By squares, as far as the exponents have bits."""

    def more(state: tuple[Array, Array, Array]) -> Array:
        return jnp.any(state[2] > 0)

    def square(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        result, base, rest = state
        return jnp.where(rest & 1 == 1, result * base, result), base * base, lax.shift_right_logical(rest, one)

    one = jnp.ones_like(y)
    result: Array = lax.while_loop(more, square, (jnp.ones_like(x), x, y))[0]
    return result


def _scale(x: Array, exponent: Array) -> Array:
    """x · 2ⁿ, rounded once: the factor is applied in two halves that are powers of two themselves, the larger first."""
    if x.dtype.itemsize == 2:
        return _scale(x.astype(np.float32), exponent).astype(x.dtype)
    most = 900 if x.dtype == np.float64 else 100
    mantissa, own = _split(x)
    total = own + jnp.clip(exponent, -4 * most, 4 * most)
    first = jnp.clip(total, -most, most)
    second = jnp.clip(total - first, -most, most)
    return mantissa * _two_to_the(first, x.dtype) * _two_to_the(second, x.dtype)


def _two_to_the(exponent: Array, dtype: Any) -> Array:
    """Exactly, by writing the exponent into the bits of a float."""
    if dtype == np.float64:
        return lax.bitcast_convert_type((exponent.astype(np.int64) + 1023) << 52, np.float64)
    return lax.bitcast_convert_type((exponent + 127) << 23, np.float32)


@LOWER.rule(Select)
def select(op: Select, site: JaxSite, condition: Array, a: Array, b: Array) -> Array:
    return lax.select(condition, a, b)


@LOWER.rule(Cast)
def cast(op: Cast, site: JaxSite, x: Array) -> Array:
    """A conversion as NumPy does it: floats to narrow integers through wide ones, so that they wrap around."""
    source, target = site.dtype, op.dtype
    if KIND[source] == "complex" and KIND[target] not in ("complex", "bool"):
        x = x.real
    if target == "bool":
        return x != 0
    if KIND[source] in ("float", "complex") and KIND[target] in _WHOLE and ITEMSIZE[target] < 8:
        # XLA takes the nearest number that the type has, C what is left of a wider integer.
        x = lax.convert_element_type(x, np.int32 if ITEMSIZE[target] < 4 else np.int64)
    if KIND[source] in ("float", "complex") and target == "uint64":
        # A negative number comes around, as in C.
        signed = lax.convert_element_type(x, np.int64).astype(np.uint64)
        return jnp.where(x < 2.0**63, signed, lax.convert_element_type(x, np.uint64)) if source != "float16" else signed
    return lax.convert_element_type(x, jnp.dtype(target))
