"""Functions of complex numbers as NumPy has them, also for zeros, infinities and NaN; and which XLA has otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from anygpu.engines.jax.tracing import hidden
from anygpu.program.functions import having

#: Their zeros have other signs in XLA, and their infinities become NaN; NumPy computes them on the host.
OTHERWISE = having("angle")


def divide(x: Array, y: Array) -> Array:
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


def _reciprocal(x: Array) -> Array:
    real, imaginary = x.real, x.imag
    wide = jnp.abs(imaginary) <= jnp.abs(real)
    ratio = jnp.where(wide, imaginary / real, real / imaginary)
    below = jnp.where(wide, real + imaginary * ratio, real * ratio + imaginary)
    return lax.complex(jnp.where(wide, 1, ratio) / below, jnp.where(wide, -ratio, -1) / below)


def _exp(x: Array) -> Array:
    beyond, zero = ~jnp.isfinite(x.imag), jnp.zeros_like(x.real)
    found = jnp.where(beyond & jnp.isposinf(x.real), lax.complex(x.real, zero + jnp.nan), jnp.exp(x))
    found = jnp.where(beyond & jnp.isneginf(x.real), lax.complex(zero, jnp.copysign(zero, x.imag)), found)
    # The sign of 0 stays.
    return jnp.where(x.imag == 0, lax.complex(jnp.exp(x.real), x.imag), found)


def _exp2(x: Array) -> Array:
    return _exp(lax.complex(x.real * math.log(2), x.imag * math.log(2)))


def _expm1(x: Array) -> Array:
    half = jnp.sin(x.imag / 2)
    real = jnp.expm1(x.real) * jnp.cos(x.imag) - 2 * half * half
    return lax.complex(real, jnp.exp(x.real) * jnp.sin(x.imag))


def _sqrt(x: Array) -> Array:
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


def _log1p(x: Array) -> Array:
    above = x.real + 1
    return lax.complex(jnp.log(jnp.hypot(above, x.imag)), jnp.arctan2(x.imag, above))


UNARY: dict[str, Callable[[Array], Array]] = {
    "reciprocal": _reciprocal,
    "exp": _exp,
    "exp2": _exp2,
    "expm1": _expm1,
    "sqrt": _sqrt,
    "log": _infinite(jnp.log),
    "log2": _infinite(jnp.log2),
    "log10": _infinite(jnp.log10),
    "log1p": _log1p,
}


def power(x: Array, exponent: int) -> Array:
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
        return jnp.where(x == 0, complex(jnp.nan, jnp.nan), divide(one, result)).astype(x.dtype)
    return jnp.where(x == 0, 0, result).astype(x.dtype) if exponent else result
