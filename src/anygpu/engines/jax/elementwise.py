"""Element by element in jax: unary and binary functions, select, and casts, each with NumPy's meaning."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from anygpu.engines.jax.tracing import Site
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


def unary(op: Unary, site: Site, x: Array) -> Array:
    dtype = site.dtype
    if dtype in _HALF and op.fn not in _ABOUT_BITS:
        return _unary(op, "float32", x.astype(np.float32)).astype(jnp.dtype(site.result.dtype))
    return _unary(op, dtype, x)


def _unary(op: Unary, dtype: DType, x: Array) -> Array:
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
    return jnp.where(one_side, lax.complex(*parts), jnp.sign(x))


def _whole_reciprocal(x: Array, dtype: DType) -> Array:
    """1 and -1 are their own; what C makes of 1 / 0 is asked of NumPy."""
    with np.errstate(all="ignore"):
        of_zero = np.reciprocal(np.zeros((), dtype))
    is_unit = x == 1 if KIND[dtype] == "unsigned" else (x == 1) | (x == -1)
    return jnp.where(is_unit, x, jnp.where(x == 0, of_zero, np.zeros((), dtype)))


def _split(x: Array) -> tuple[Array, Array]:
    mantissa, exponent = jnp.frexp(x)
    return mantissa, exponent.astype(np.int32)


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
        of_zero = jnp.where((x == 0) & (y.real > 0), 0, jnp.power(x, y))
        return jnp.where(y == 0, 1, of_zero).astype(x.dtype)
    return jnp.power(x, y)


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


def select(op: Select, site: Site, condition: Array, a: Array, b: Array) -> Array:
    return lax.select(condition, a, b)


def cast(op: Cast, site: Site, x: Array) -> Array:
    source, target = site.dtype, op.dtype
    if KIND[source] == "complex" and KIND[target] not in ("complex", "bool"):
        x = x.real
    if target == "bool":
        return x != 0
    if KIND[source] in ("float", "complex") and KIND[target] in _WHOLE and ITEMSIZE[target] < 8:
        # XLA takes the nearest number that the type has, C what is left of a wider integer.
        x = lax.convert_element_type(x, np.int32 if ITEMSIZE[target] < 4 else np.int64)
    return lax.convert_element_type(x, jnp.dtype(target))
