"""Functions of real values, element by element: NumPy's meaning in the seven compute types."""

from __future__ import annotations

import math

from anygpu.codegen.form import Apply, Choose, Expr, Literal, Name
from anygpu.codegen.target import ComputeType
from anygpu.codegen.types import COMPUTE, NARROWED
from anygpu.program.dtypes import KIND, DType, is_integer
from anygpu.program.functions import COMPARISONS, BinaryFunction, UnaryFunction

#: Of these the result is in the type's range, and exact, whenever the operands are.
_STAYS_INSIDE = frozenset(
    (
        *("sign", "floor", "ceil", "trunc", "rint", "mantissa", "minimum", "maximum", "copysign", "nextafter"),
        *("remainder", "fmod", "gcd", "bitwise_and", "bitwise_or", "bitwise_xor", "right_shift", "popcount"),
    )
)
_TESTS = ("isnan", "isinf", "isfinite", "signbit")


def narrowed(value: Expr, dtype: DType) -> Expr:
    """The value as it would be in a type that is narrower than what it was computed in."""
    fn = NARROWED.get(dtype)
    return value if fn is None else Apply(fn, (value,), value.type)


def unary(fn: UnaryFunction, dtype: DType, x: Expr) -> Expr:
    type = x.type
    if fn in _TESTS:
        return Apply(fn, (x,), "bool")
    if fn == "exponent":
        return Apply(fn, (x,), "i32")
    if fn == "popcount":
        return converted(Apply(fn, (x,), type), "u32")
    if fn == "reciprocal" and KIND[dtype] == "float":
        return narrowed(Apply("divide", (Literal(1, type), x), type), dtype)
    if fn in ("abs", "sign") and KIND[dtype] == "unsigned":
        return x if fn == "abs" else Choose(Apply("equal", (x, Literal(0, type)), "bool"), x, Literal(1, type))
    result = Apply(fn, (x,), type)
    exact = fn in _STAYS_INSIDE or (fn in ("negative", "abs") and KIND[dtype] == "float")
    return result if exact else narrowed(result, dtype)


def binary(fn: BinaryFunction, dtype: DType, x: Expr, y: Expr) -> Expr:
    if fn in COMPARISONS:
        return Apply(fn, (x, y), "bool")
    if fn == "nextafter" and dtype in ("float16", "bfloat16"):
        return Apply("nextafter_f16" if dtype == "float16" else "nextafter_bf16", (x, y), x.type)
    if fn in ("add", "subtract", "multiply") and KIND[dtype] == "float":
        x, y = _as_is(fn, x, y)
    known = _known_power(dtype, x, y) if fn == "power" and isinstance(y, Literal) else None
    result = Apply(fn, (x, y), x.type) if known is None else known
    return result if fn in _STAYS_INSIDE else narrowed(result, dtype)


def _known_power(dtype: DType, x: Expr, exponent: Literal) -> Expr | None:
    """A power whose exponent is a number of the program, in a few operations: as exact as the function is.

    NumPy has squares, roots and reciprocals of its own for them, too. The special cases stay those of C's pow, which
    differ from a root's: of -0.0 the power is 0.0, and of -inf it is inf.
    """
    if not isinstance(x, Name):
        return None
    type, value = x.type, exponent.value
    squared = Apply("multiply", (x, x), type)
    match value:
        case 1:
            return x
        case 2:
            return squared
        case 3:
            return Apply("multiply", (squared, x), type)
    if KIND[dtype] != "float":
        return None
    match value:
        case -1:
            return Apply("divide", (Literal(1.0, type), x), type)
        case 0.5:
            root: Expr = Apply("abs", (Apply("sqrt", (x,), type),), type)
            return Choose(Apply("isinf", (x,), "bool"), Apply("abs", (x,), type), root)
    return None


def _as_is(fn: BinaryFunction, x: Expr, y: Expr) -> tuple[Expr, Expr]:
    """Operands that no compiler can make too much of: `x * 0` is not 0 for infinity, nor is `x - x`."""
    if fn == "subtract" and isinstance(x, Name) and x == y:
        return x, Apply("multiply", (y, Apply("one", (Literal(1, y.type),), y.type)), y.type)
    return _runtime_zero(x), _runtime_zero(y)


def _runtime_zero(value: Expr) -> Expr:
    if not isinstance(value, Literal) or value.value != 0:
        return value
    zero = Apply("zero", (Literal(0, value.type),), value.type)
    return Apply("negative", (zero,), value.type) if math.copysign(1.0, value.value) < 0 else zero


def converted(value: Expr, type: ComputeType) -> Expr:
    """In another compute type, as `astype` does it."""
    if value.type == type:
        return value
    if isinstance(value, Literal):
        known = _converted_literal(value, type)
        if known is not None:
            return known
    return Apply(f"cast_{type}", (value,), type)


def _converted_literal(literal: Literal, type: ComputeType) -> Literal | None:
    """Compilers know what constants become, and some refuse to say it."""
    value = literal.value
    if type == "bool":
        return Literal(bool(value), type)
    if type in ("f32", "f64"):
        return Literal(float(value), type)
    if isinstance(value, float) and not abs(value) < 1 << 31:
        return None
    bits = 64 if type in ("i64", "u64") else 32
    whole = int(value) % (1 << bits)
    return Literal(whole - (1 << bits) if type in ("i32", "i64") and whole >> (bits - 1) else whole, type)


def cast(value: Expr, source: DType, dtype: DType) -> Expr:
    """From one real type to another."""
    if source == dtype:
        return value
    if dtype == "bool":
        return Apply("not_equal", (value, Literal(0, value.type)), "bool")
    result = converted(value, COMPUTE[dtype])
    return result if source == "bool" or _always_fits(source, dtype) else narrowed(result, dtype)


def _always_fits(source: DType, dtype: DType) -> bool:
    if is_integer(source) and is_integer(dtype) and KIND[source] == KIND[dtype]:
        return int(source.strip("uint")) <= int(dtype.strip("uint"))
    return False
