"""Element by element in jax: unary and binary functions, select, and casts, each with NumPy's meaning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from anygpu.base.float_errors import float_errors_ignored
from anygpu.engines.jax import complex_numbers
from anygpu.engines.jax.tracing import LOWER, Site
from anygpu.engines.value_analysis import whole_exponent
from anygpu.program.dtypes import ITEMSIZE, KIND, DType
from anygpu.program.primitives import Binary, Cast, Select, Unary

#: Functions whose name in jax is another one.
_RENAMED = {
    "asin": "arcsin",
    "acos": "arccos",
    "atan": "arctan",
    "asinh": "arcsinh",
    "acosh": "arccosh",
    "atanh": "arctanh",
    "atan2": "arctan2",
}
_WHOLE = ("signed", "unsigned")
_HALF = ("float16", "bfloat16")
#: Functions that are about the bits of a number, and so must see it in its own type.
_ABOUT_BITS = ("signbit", "isnan", "isinf", "isfinite", "nextafter", "copysign", "complex", "ldexp")


@LOWER.rule(Unary)
def unary(op: Unary, site: Site, x: Array) -> Array:
    dtype = site.dtype
    if dtype in _HALF and op.fn not in _ABOUT_BITS:
        return _unary(op, "float32", x.astype(np.float32)).astype(jnp.dtype(site.result.dtype))
    return _unary(op, dtype, x)


def _unary(op: Unary, dtype: DType, x: Array) -> Array:
    if KIND[dtype] == "complex" and op.fn in complex_numbers.UNARY:
        return complex_numbers.UNARY[op.fn](x)
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
    return getattr(jnp, _RENAMED.get(op.fn, op.fn))(x)


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
def binary(op: Binary, site: Site, x: Array, y: Array) -> Array:
    if site.dtype in _HALF and op.fn not in _ABOUT_BITS:
        wide = _binary(op, "float32", site, x.astype(np.float32), y.astype(np.float32))
        return wide.astype(jnp.dtype(site.result.dtype))
    return _binary(op, site.dtype, site, x, y)


def _binary(op: Binary, dtype: DType, site: Site, x: Array, y: Array) -> Array:
    match op.fn:
        case "less" | "less_equal" | "greater" | "greater_equal" | "minimum" | "maximum" if KIND[dtype] == "complex":
            return complex_ordering(op.fn, x, y)
        case "floor_divide" | "remainder" | "fmod":
            return (_divide_whole if KIND[dtype] in _WHOLE else _divide_floats)(op.fn, x, y)
        case "divide" if KIND[dtype] == "complex":
            return complex_numbers.divide(x, y)
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
    return getattr(jnp, _RENAMED.get(op.fn, op.fn))(x, y)


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


def _power(site: Site, x: Array, y: Array) -> Array:
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
        return complex_numbers.power(x, whole)
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
def select(op: Select, site: Site, condition: Array, a: Array, b: Array) -> Array:
    return lax.select(condition, a, b)


@LOWER.rule(Cast)
def cast(op: Cast, site: Site, x: Array) -> Array:
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
