"""Functions of real values, element by element: NumPy's meaning in the seven compute types.

Values are computed in a compute type and `narrowed` to the dtype after each function. `apart` keeps shader compilers
from combining functions by algebra that holds only for real numbers. `cast` and `converted` follow NumPy's `astype`.
"""

from __future__ import annotations

from collections.abc import Callable

from anygpu.engines.codegen.kernel_ir import Apply, Choose, Expr, Literal, Name
from anygpu.engines.codegen.target import COMPUTE, NARROWED, ComputeType
from anygpu.program.dtypes import KIND, DType, is_integer
from anygpu.program.functions import COMPARISONS, TESTS, BinaryFunction, UnaryFunction, having

#: Functions whose result is in the type's range, and exact, whenever the operands are.
_STAYS_INSIDE = having("exact")
_SUMS = ("add", "subtract")
_PRODUCTS = ("multiply", "divide")
_WHOLE = ("floor", "ceil", "trunc")
_LOGARITHMS = ("log", "log2", "log10", "log1p")
_POWERS = ("sqrt", "exp", "exp2", "expm1", "power", "cbrt")
#: These look at the bits of their operands, or only choose one of them.
_BY_BITS = frozenset((*TESTS, *_WHOLE, "negative", "abs", "copysign", "minimum", "maximum", "rint", "sign"))

#: Finds the expression that an operand was computed by, where that is known.
MadeBy = Callable[[Expr], Apply | None]


def as_written(value: Expr) -> Apply | None:
    """Finds it without looking up names."""
    return value if isinstance(value, Apply) else None


def narrowed(value: Expr, dtype: DType) -> Expr:
    """The value as it would be in a type that is narrower than what it was computed in."""
    fn = NARROWED.get(dtype)
    return value if fn is None else Apply(fn, (value,), value.type)


def unary(fn: UnaryFunction, dtype: DType, x: Expr, made_by: MadeBy = as_written) -> Expr:
    """A function of one operand, in the compute type and rounded to the dtype.

    `made_by` finds how operands were computed, so that compilers do not combine what must be rounded in between.
    """
    type = x.type
    (x,) = apart(fn, (x,), made_by)
    if fn in TESTS:
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


def binary(fn: BinaryFunction, dtype: DType, x: Expr, y: Expr, made_by: MadeBy = as_written) -> Expr:
    """A function of two operands, in the compute type and rounded to the dtype; see `unary`.

    Powers with a constant exponent become products or roots where these are as exact.
    """
    if fn in ("less", "less_equal") and (tested := _tested_length(fn, x, y, made_by)) is not None:
        return tested
    known = _known_power(dtype, x, y, made_by) if fn == "power" and isinstance(y, Literal) else None
    x, y = apart(fn, (x, y), made_by)
    if fn in COMPARISONS:
        return Apply(fn, (x, y), "bool")
    if fn == "nextafter" and dtype in ("float16", "bfloat16"):
        return Apply("nextafter_f16" if dtype == "float16" else "nextafter_bf16", (x, y), x.type)
    result = Apply(fn, (x, y), x.type) if known is None else known
    # Of floats a rest is rounded where it takes the sign of the divisor.
    exact = fn in _STAYS_INSIDE or (fn == "remainder" and is_integer(dtype))
    return result if exact else narrowed(result, dtype)


def _tested_length(fn: BinaryFunction, x: Expr, limit: Expr, made_by: MadeBy) -> Expr | None:
    """Return whether NumPy's magnitude of a complex number is below a number of the program, mostly by its square."""
    maker = made_by(x)
    if maker is None or maker.fn != "numpys_length" or not isinstance(limit, Literal):
        return None
    if not isinstance(limit.value, float) or not 1e-10 < limit.value < 1e10:
        return None
    return Apply(f"numpys_length_{fn}", (*maker.args, limit), "bool")


def _known_power(dtype: DType, x: Expr, exponent: Literal, made_by: MadeBy) -> Expr | None:
    """A power whose exponent is a number of the program, in a few operations: as exact as the function is.

    NumPy has squares, roots and reciprocals of its own for them, too. The special cases stay those of C's pow, which
    differ from a root's: of -0.0 the power is 0.0, and of -inf it is inf.
    """
    if not isinstance(x, Name):
        return None
    type, value = x.type, exponent.value
    squared = Apply("multiply", apart("multiply", (x, x), made_by), type)
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
            return Apply("divide", apart("divide", (Literal(1.0, type), x), made_by), type)
        case 0.5:
            root: Expr = Apply("abs", (Apply("sqrt", apart("sqrt", (x,), made_by), type),), type)
            return Choose(Apply("isinf", (x,), "bool"), Apply("abs", (x,), type), root)
    return None


def apart(fn: str, operands: tuple[Expr, ...], made_by: MadeBy) -> tuple[Expr, ...]:
    """Operands that a compiler cannot combine with what they were made of.

    Shader compilers do algebra with real numbers: `(x + y) - x` becomes y, `x + 1 == x` false, `x * (1 / x)` 1 and
    `sqrt(x * x)` the magnitude of x, whatever overflows, is rounded off or is infinite. A product that is added, and a
    sum that is multiplied or divided, may stay as they are: no rule about them changes more than the last bit.
    """
    if operands[0].type not in ("f32", "f64") or fn in _BY_BITS:
        return operands
    if fn == "subtract" and isinstance(operands[0], Name) and operands[0] == operands[1]:
        return operands[0], _opaque(operands[1])
    makers = [made_by(each) for each in operands]
    return tuple(
        _opaque(each) if maker is not None and _combines(fn, maker, makers) else each
        for each, maker in zip(operands, makers, strict=True)
    )


def _combines(fn: str, maker: Apply, makers: list[Apply | None]) -> bool:
    """Whether a compiler may combine a function with the one that made its operand, by algebra of real numbers."""
    if maker.type not in ("f32", "f64") or maker.fn == "opaque":
        return False
    if fn in _SUMS:
        shared = maker.fn == "multiply" and _share_a_factor(makers)
        return shared or maker.fn in (*_SUMS, *_WHOLE, *_LOGARITHMS)
    if fn in _PRODUCTS:
        # Factors that are constant are moved outwards.
        constant = maker.fn == "multiply" and any(isinstance(each, Literal) for each in maker.args)
        return constant or maker.fn in ("divide", *_POWERS)
    return maker.fn in (*_SUMS, *_PRODUCTS, *_LOGARITHMS, *_POWERS)


def _share_a_factor(makers: list[Apply | None]) -> bool:
    factors = [set(maker.args) for maker in makers if maker is not None and maker.fn == "multiply"]
    return len(factors) == 2 and not factors[0].isdisjoint(factors[1])


def _opaque(value: Expr) -> Expr:
    return Apply("opaque", (value,), value.type)


def converted(value: Expr, type: ComputeType) -> Expr:
    """Casts to another compute type as `astype` does."""
    if value.type == type:
        return value
    if isinstance(value, Literal):
        known = _converted_literal(value, type)
        if known is not None:
            return known
    return Apply(f"cast_{type}", (value,), type)


def _converted_literal(literal: Literal, type: ComputeType) -> Literal | None:
    """Compilers know what constants become, and some refuse to say it."""
    value, given = literal.value, literal.given
    if type == "bool":
        return Literal(bool(value), type, given)
    if type in ("f32", "f64"):
        return Literal(float(value), type, given)
    if isinstance(value, float) and not abs(value) < 1 << 31:
        return None
    bits = 64 if type in ("i64", "u64") else 32
    whole = int(value) % (1 << bits)
    return Literal(whole - (1 << bits) if type in ("i32", "i64") and whole >> (bits - 1) else whole, type, given)


def cast(value: Expr, source: DType, dtype: DType) -> Expr:
    """Casts from one real type to another."""
    if source == dtype:
        return value
    if dtype == "bool":
        return Apply("not_equal", (value, Literal(0, value.type)), "bool")
    result = converted(value, COMPUTE[dtype])
    return result if source == "bool" or _always_fits(source, dtype) else narrowed(result, dtype)


def _always_fits(source: DType, dtype: DType) -> bool:
    """Whether each integer of one type is one of the other."""
    if is_integer(source) and is_integer(dtype) and KIND[source] == KIND[dtype]:
        return int(source.strip("uint")) <= int(dtype.strip("uint"))
    return False
