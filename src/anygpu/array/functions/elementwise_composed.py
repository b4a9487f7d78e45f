"""Elementwise functions that no primitive does alone, as expressions of several.

Each takes values of one shape in the types that NumPy computes in, and gives what NumPy gives, its corner cases too.

`elementwise` names these as the bodies of ufuncs. Each takes values in the type that NumPy's ufunc computes in, and has
NumPy's results for NaN, infinities and signs of zeros. float16 is computed in float32 where NumPy does so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from anygpu.array.core.expression import Value
from anygpu.array.core.recording import Operand, apply, binary, cast, constant, unary, where
from anygpu.program.dtypes import FLOATS, ITEMSIZE, KIND, DType, is_inexact
from anygpu.program.functions import BinaryFunction, UnaryFunction
from anygpu.program.ops.elementwise import BitwiseBinary, BitwiseUnary
from anygpu.program.primitives import Binary, Broadcast

_LDEXP = Binary("ldexp")
#: Steps of functions that NumPy computes as a whole: their last bits differ from its functions of these names.
_EXP, _EXP2, _LOG1P = (BitwiseUnary(fn, "none") for fn in ("exp", "exp2", "log1p"))
_POWER = BitwiseBinary("power", "none")

#: Records one elementwise function.
UfuncBody = Callable[..., Value | tuple[Value, ...]]


def filled(like: Value, scalar: Any, dtype: DType) -> Value:
    """One number in the shape of a value and on its place."""
    value = apply(Broadcast(like.spec.shape), constant(scalar, dtype))
    value.device = like.device
    return value


def same(x: Value) -> Value:
    return x


def for_inexact(fn: UnaryFunction) -> UfuncBody:
    """A function that leaves whole numbers and truth values as they are."""
    return lambda x: unary(fn, x) if is_inexact(x.spec.dtype) else x


def question_of_inexact(fn: UnaryFunction, otherwise: bool) -> UfuncBody:
    """A question whose answer is the same for all numbers that are not floating point."""
    return lambda x: unary(fn, x) if is_inexact(x.spec.dtype) else filled(x, otherwise, "bool")


def absolute(x: Value) -> Value:
    return x if KIND[x.spec.dtype] in ("bool", "unsigned") else unary("abs", x)


def conjugate(x: Value) -> Value:
    return unary("conj", x) if KIND[x.spec.dtype] == "complex" else x


def real(x: Value) -> Value:
    return unary("real", x) if KIND[x.spec.dtype] == "complex" else x


def imag(x: Value) -> Value:
    return unary("imag", x) if KIND[x.spec.dtype] == "complex" else filled(x, 0, x.spec.dtype)


def square(x: Value) -> Value:
    return binary("multiply", x, x)


def scaled(numerator: float, denominator: float) -> UfuncBody:
    """A multiplication by a quotient that is rounded to the type of the array, as NumPy has it."""

    def body(x: Value) -> Value:
        factor = np.asarray(numerator, x.spec.dtype) / np.asarray(denominator, x.spec.dtype)
        return binary("multiply", x, float(factor))

    return _half_as_single(body)


def spacing(x: Value) -> Value:
    """The distance to the next number, which is the one farther from zero; for float16 it is the larger one."""
    beyond: Operand = math.inf
    if x.spec.dtype != "float16":
        beyond = where(binary("less", x, 0), -math.inf, filled(x, math.inf, x.spec.dtype))
    distance = binary("subtract", binary("nextafter", x, beyond), x)
    return where(unary("isinf", x), math.nan, distance)


def frexp(x: Value) -> tuple[Value, Value]:
    return unary("mantissa", x), unary("exponent", x)


def modf(x: Value) -> tuple[Value, Value]:
    """The fraction and the whole part, both with the sign of x; the fraction of an infinity is 0."""
    whole = unary("trunc", x)
    rest = where(unary("isinf", x), 0, binary("subtract", x, whole))
    return binary("copysign", rest, x), whole


def rounded(x: Value, decimals: int) -> Value:
    """To that many digits after the point; before it, when negative."""
    if KIND[x.spec.dtype] == "complex":
        parts = (rounded(unary("real", x), decimals), rounded(unary("imag", x), decimals))
        return cast(binary("complex", *parts), x.spec.dtype)
    dtype = x.spec.dtype
    if not is_inexact(dtype):
        if decimals >= 0:
            return x
        x = cast(x, "float64")
    if decimals == 0:
        return unary("rint", x)
    up: BinaryFunction = "multiply" if decimals > 0 else "divide"
    down: BinaryFunction = "divide" if decimals > 0 else "multiply"
    power = 10.0 ** abs(decimals)
    return cast(binary(down, unary("rint", binary(up, x, power)), power), dtype)


def logical(fn: BinaryFunction) -> UfuncBody:
    return lambda one, other: binary(fn, truth(one), truth(other))


def logical_not(x: Operand) -> Value:
    return unary("invert", truth(x))


def truth(x: Operand) -> Value:
    return cast(x, "bool") if isinstance(x, Value) else constant(bool(x), "bool")


def divmod(x: Value, y: Value) -> tuple[Value, Value]:
    return binary("floor_divide", x, y), binary("remainder", x, y)


def ldexp(x: Value, exponent: Value) -> Value:
    """x times two to the power of an integer; exponents beyond 32 bits are cut off, which changes no result."""
    if exponent.spec.dtype != "int32":
        least, most = -(1 << 31), (1 << 31) - 1
        exponent = cast(binary("minimum", binary("maximum", exponent, least), most), "int32")
    return apply(_LDEXP, x, exponent)


def float_power(x: Value, y: Value) -> Value:
    """Return the power in float64, as NumPy computes it for numbers, not for arrays."""
    return apply(_POWER, x, y)


def heaviside(x: Value, at_zero: Value) -> Value:
    sided = where(binary("less", x, 0), 0.0, filled(x, 1, x.spec.dtype))
    return where(unary("isnan", x), x, where(binary("equal", x, 0), at_zero, sided))


def lcm(x: Value, y: Value) -> Value:
    """Computed without a sign, because the least integer of a type has no absolute value in it."""
    dtype = x.spec.dtype
    if KIND[dtype] == "signed":
        unsigned: DType = f"uint{8 * ITEMSIZE[dtype]}"  # type: ignore[assignment]
        x, y = cast(unary("abs", x), unsigned), cast(unary("abs", y), unsigned)
    divisor = binary("gcd", x, y)
    divisor = where(binary("equal", divisor, 0), 1, divisor)
    return cast(binary("multiply", binary("floor_divide", x, divisor), y), dtype)


def without_nan(fn: BinaryFunction) -> UfuncBody:
    """The larger or smaller of two, where NaN loses against everything."""

    def body(x: Value, y: Value) -> Value:
        chosen = binary(fn, x, y)
        if not is_inexact(x.spec.dtype):
            return chosen
        return where(unary("isnan", y), x, where(unary("isnan", x), y, chosen))

    return body


def _logaddexp(x: Value, y: Value) -> Value:
    """log(exp(x) + exp(y)) without overflow; equal operands are taken apart, for infinities have no distance."""
    distance = _distance(x, y)
    sum_ = binary("add", binary("maximum", x, y), apply(_LOG1P, apply(_EXP, unary("negative", distance))))
    # Equal infinities have no distance.
    return where(binary("equal", x, y), binary("add", x, math.log(2)), sum_)


def _distance(x: Value, y: Value) -> Value:
    """Return the distance of two numbers; NaN is an invalid operation, as NumPy compares it with zero."""
    distance = unary("abs", binary("subtract", x, y))
    invalid = where(unary("isnan", distance), math.inf, filled(distance, 0, distance.spec.dtype))
    return binary("add", distance, binary("subtract", invalid, invalid))


def _logaddexp2(x: Value, y: Value) -> Value:
    """log2(2**x + 2**y) without overflow; see `_logaddexp`."""
    distance = _distance(x, y)
    rest = apply(_LOG1P, apply(_EXP2, unary("negative", distance)))
    sum_ = binary("add", binary("maximum", x, y), binary("multiply", rest, 1 / math.log(2)))
    return where(binary("equal", x, y), binary("add", x, 1), sum_)


def _half_as_single(body: UfuncBody) -> UfuncBody:
    """NumPy computes longer formulas of float16 in float32, and rounds once."""

    def wide(*values: Value) -> Value:
        dtype = values[0].spec.dtype
        if dtype not in FLOATS or ITEMSIZE[dtype] > 2:
            return body(*values)  # type: ignore[return-value]
        return cast(body(*(cast(each, "float32") for each in values)), dtype)  # type: ignore[arg-type]

    return wide


logaddexp = _half_as_single(_logaddexp)
logaddexp2 = _half_as_single(_logaddexp2)
