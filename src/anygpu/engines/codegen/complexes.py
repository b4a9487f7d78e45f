"""Complex numbers as pairs of real expressions: every function of them, once, for all dialects.

The meaning is NumPy's: branch cuts follow the signs of zeros, infinities and NaN give what C99 says, and nothing
overflows or cancels on the way to a result that does not. Both sides of a choice are computed, so the formulas are
ones that hold in most of the plane, and the choices left are where they do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal as OneOf

from anygpu.engines.codegen.elementwise import MadeBy, apart, as_written
from anygpu.engines.codegen.kernel_ir import Apply, Choose, Expr, Literal, Name
from anygpu.engines.codegen.target import ComputeType
from anygpu.errors import InvalidProgram
from anygpu.program.functions import BinaryFunction, UnaryFunction

Pair = tuple[Expr, Expr]
#: Gives an intermediate value a name: `let hint = value;`.
Namer = Callable[[str, Expr], Name]


def unary(fn: UnaryFunction, x: Pair, name: Namer) -> tuple[Expr, ...]:
    """One component where the result is real or a truth value, else two."""
    keep = _keeper(name)
    a, b = _Real(x[0]), _Real(x[1])
    match fn:
        case "real":
            return (x[0],)
        case "imag":
            return (x[1],)
        case "conj":
            return x[0], (-b).expr
        case "negative":
            return (-a).expr, (-b).expr
        case "rint":
            return a.apply("rint").expr, b.apply("rint").expr
        case "abs":
            return (a.apply("hypot", b).expr,)
        case "isnan" | "isinf":
            return ((a.test(fn) | b.test(fn)).expr,)
        case "isfinite":
            return ((a.test(fn) & b.test(fn)).expr,)
    formula = _FORMULAS.get(fn)
    if formula is None:
        raise InvalidProgram(f"{fn}: is not defined for complex numbers; take their real and imaginary parts first.")
    re, im = formula(keep("real", a), keep("imag", b), keep)
    return re.expr, im.expr


def binary(fn: BinaryFunction, x: Pair, y: Pair, name: Namer, made_by: MadeBy = as_written) -> tuple[Expr, ...]:
    """One truth value of comparisons, else two components."""
    keep = _keeper(name)
    if fn in ("add", "subtract"):
        parts = [apart(fn, (one, other), made_by) for one, other in zip(x, y, strict=True)]
        x, y = (parts[0][0], parts[1][0]), (parts[0][1], parts[1][1])
    a, b, c, d = _Real(x[0]), _Real(x[1]), _Real(y[0]), _Real(y[1])
    match fn:
        case "add":
            return (a + c).expr, (b + d).expr
        case "subtract":
            return (a - c).expr, (b - d).expr
        case "equal":
            return ((a.equals(c) & b.equals(d)).expr,)
        case "not_equal":
            return ((~(a.equals(c) & b.equals(d))).expr,)
    if fn == "power" and (whole := _whole_literal(y)) is not None:
        a, b = keep("real", a), keep("imag", b)
        re, im = _power_by_products(a, b, whole, keep)
        if whole:
            # NumPy makes one number of the four zeros: 0, or NaN.
            from_zero, power = keep("from_zero", a.equals(0) & b.equals(0)), a.literal(0.0 if whole > 0 else math.nan)
            re, im = from_zero.choose(power, re), from_zero.choose(power, im)
        return re.expr, im.expr
    a, b, c, d = keep("real", a), keep("imag", b), keep("other_real", c), keep("other_imag", d)
    match fn:
        case "less" | "less_equal" | "greater" | "greater_equal":
            return (_ordered(fn, (a, b), (c, d)).expr,)
        case "multiply":
            re, im = _multiply((a, b), (c, d))
        case "divide":
            re, im = _divide((a, b), (c, d), keep)
        case "power":
            re, im = _power((a, b), (c, d), keep)
        case "minimum" | "maximum":
            # The first is taken when it is in order or NaN; else the second, which is right also when that is NaN.
            order: BinaryFunction = "less_equal" if fn == "minimum" else "greater_equal"
            unknown = keep("unknown", b.test("isnan"))
            first = keep("first", a.test("isnan") | unknown | _ordered(order, (a, b), (c, d), unknown))
            re, im = first.choose(a, c), first.choose(b, d)
        case _:
            raise InvalidProgram(
                f"{fn}: is not defined for complex numbers; take their real and imaginary parts first."
            )
    return re.expr, im.expr


def as_numpy(fn: UnaryFunction | BinaryFunction, operands: tuple[Pair, ...]) -> tuple[Expr, ...]:
    """Return a product or a magnitude with the last bits of NumPy's loops over arrays; only processors can."""
    (a, b), *others = operands
    if fn == "abs":
        return (Apply("numpys_length", (a, b), a.type),)
    ((c, d),) = others
    crossed = Apply("negative", (Apply("multiply", (b, d), a.type),), a.type)
    return Apply("fma", (a, c, crossed), a.type), Apply("fma", (a, d, Apply("multiply", (b, c), a.type)), a.type)


def combine(fn: OneOf["sum", "prod", "max", "min"], x: Pair, y: Pair, name: Namer) -> tuple[Expr, ...]:
    """One step of a reduction or scan."""
    return binary(_COMBINED_BY[fn], x, y, name)


_COMBINED_BY: dict[str, BinaryFunction] = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum"}


class _Real:
    """An expression with Python's operators, so that formulas here read as they do in mathematics."""

    __slots__ = ("expr",)

    def __init__(self, expr: Expr) -> None:
        self.expr = expr

    @property
    def type(self) -> ComputeType:
        return self.expr.type

    def _lifted(self, other: _Real | float) -> _Real:
        return other if isinstance(other, _Real) else _Real(Literal(float(other), self.type))

    def apply(self, fn: str, *others: _Real | float) -> _Real:
        operands = apart(fn, (self.expr, *(self._lifted(each).expr for each in others)), as_written)
        return _Real(Apply(fn, operands, self.type))

    def test(self, fn: str, *others: _Real | float) -> _Real:
        return _Real(Apply(fn, (self.expr, *(self._lifted(each).expr for each in others)), "bool"))

    def choose(self, yes: _Real, no: _Real | float) -> _Real:
        """One of two numbers, by this truth value."""
        return _Real(Choose(self.expr, yes.expr, yes._lifted(no).expr))

    def literal(self, value: float) -> _Real:
        """A number of the same type."""
        return _Real(Literal(value, self.type))

    def equals(self, other: _Real | float) -> _Real:
        return self.test("equal", other)

    def with_sign_of(self, other: _Real) -> _Real:
        return self.apply("copysign", other)

    def __neg__(self) -> _Real:
        return self.apply("negative")

    def __abs__(self) -> _Real:
        return self.apply("abs")

    def __add__(self, other: _Real | float) -> _Real:
        return self.apply("add", other)

    def __radd__(self, other: float) -> _Real:
        return self._lifted(other).apply("add", self)

    def __sub__(self, other: _Real | float) -> _Real:
        return self.apply("subtract", other)

    def __rsub__(self, other: float) -> _Real:
        return self._lifted(other).apply("subtract", self)

    def __mul__(self, other: _Real | float) -> _Real:
        return self.apply("multiply", other)

    def __rmul__(self, other: float) -> _Real:
        return self._lifted(other).apply("multiply", self)

    def __truediv__(self, other: _Real | float) -> _Real:
        return self.apply("divide", other)

    def __rtruediv__(self, other: float) -> _Real:
        return self._lifted(other).apply("divide", self)

    def __lt__(self, other: _Real | float) -> _Real:
        return self.test("less", other)

    def __gt__(self, other: _Real | float) -> _Real:
        return self.test("greater", other)

    def __ge__(self, other: _Real | float) -> _Real:
        return self.test("greater_equal", other)

    def __and__(self, other: _Real) -> _Real:
        return self.test("bitwise_and", other)

    def __or__(self, other: _Real) -> _Real:
        return self.test("bitwise_or", other)

    def __invert__(self) -> _Real:
        return self.test("invert")


_Complex = tuple[_Real, _Real]
_Keep = Callable[[str, _Real], _Real]


def _keeper(name: Namer) -> _Keep:
    """Names a value that is used more than once, unless it costs nothing to write it again."""

    def keep(hint: str, value: _Real) -> _Real:
        return value if isinstance(value.expr, Name | Literal) else _Real(name(hint, value.expr))

    return keep


# -- arithmetic


def _ordered(fn: BinaryFunction, x: _Complex, y: _Complex, unknown: _Real | None = None) -> _Real:
    """Compares by the real parts, and equal ones by the imaginary parts; every comparison with NaN is false.

    `unknown` says, where it is known already, whether the first imaginary part is NaN.
    """
    (a, b), (c, d) = x, y
    strictly = "less" if fn in ("less", "less_equal") else "greater"
    known = ~((unknown or b.test("isnan")) | d.test("isnan"))
    return (a.test(strictly, c) & known) | (a.equals(c) & b.test(fn, d))


def _multiply(x: _Complex, y: _Complex) -> _Complex:
    (a, b), (c, d) = x, y
    return a * c - b * d, a * d + b * c


def _divide(x: _Complex, y: _Complex, keep: _Keep) -> _Complex:
    """Divide by Smith's method: turn both by a right angle if that makes the divisor's real part the larger one.

    As in NumPy, the reciprocal of the divisor multiplies: that of a subnormal number is infinite.
    """
    (a, b), (c, d) = x, y
    upright = keep("upright", abs(c) >= abs(d))
    larger, smaller = keep("larger", upright.choose(c, d)), keep("smaller", upright.choose(d, c))
    p, q = keep("ahead", upright.choose(a, b)), keep("aside", upright.choose(b, a))
    ratio = keep("ratio", smaller / larger)
    slope = keep("slope", p * ratio)
    # Zero divides each component by itself, as NumPy does it.
    zero = keep("zero", upright & larger.equals(0))
    divisor = keep("divisor", zero.choose(abs(larger), larger + smaller * ratio))
    turned = upright.choose(q, slope) - upright.choose(slope, q)
    scale = keep("scale", 1.0 / divisor)
    return zero.choose(p, p + q * ratio) * scale, zero.choose(q, turned) * scale


def _reciprocal(a: _Real, b: _Real, keep: _Keep) -> _Complex:
    """1 / (a + bi) by Smith's method: divided by the larger part first, so that nothing overflows on the way."""
    upright = keep("upright", abs(a) >= abs(b))
    larger, smaller = keep("larger", upright.choose(a, b)), keep("smaller", upright.choose(b, a))
    ratio = keep("ratio", smaller / larger)
    divisor = keep("divisor", larger + smaller * ratio)
    one = divisor.literal(1.0)
    return upright.choose(one, ratio) / divisor, upright.choose(-ratio, -1.0) / divisor


def _sign(a: _Real, b: _Real, keep: _Keep) -> _Complex:
    """x / |x|, by way of numbers near 1, so that |x| may be too large or too small to be a number."""
    size = keep("size", abs(a).apply("maximum", abs(b)))
    # One infinite component is all that counts; two have no direction.
    endless, endless_up = keep("endless", a.test("isinf")), keep("endless_up", b.test("isinf"))
    aligned = keep("aligned", endless.test("not_equal", endless_up))
    one, zero = a.literal(1.0), a.literal(0.0)
    across = keep("across", aligned.choose(endless.choose(one.with_sign_of(a), 0.0), a / size))
    up = keep("up", aligned.choose(endless_up.choose(one.with_sign_of(b), 0.0), b / size))
    radius, nothing = keep("radius", across.apply("hypot", up)), keep("nothing", size.equals(0))
    return nothing.choose(zero, across / radius), nothing.choose(zero, up / radius)


# -- exponentials

#: The exponent at which the exponential comes near to overflow, and the amount subtracted from it there.
_SHIFTS: dict[ComputeType, tuple[float, float]] = {"f32": (80.0, 40.0), "f64": (700.0, 350.0)}


def _shifted(a: _Real, keep: _Keep, *, both_signs: bool) -> _Complex:
    """`rest, scale`: the exponential of a is that of the rest times the scale, and only the product may overflow."""
    limit, shift = _SHIFTS[a.type]
    far = keep("far", (abs(a) if both_signs else a) > limit)
    moved = a - (a.literal(shift).with_sign_of(a) if both_signs else shift)
    return keep("exponent", far.choose(moved, a)), keep("scale", far.choose(a.literal(math.exp(shift)), 1.0))


def _turn(a: _Real, b: _Real, keep: _Keep) -> _Complex:
    """The cosine and sine of an angle b, to be multiplied by the exponential of a.

    An infinite magnitude, or one of 0, needs no angle: where that is unknown it counts as 0.
    """
    lost = keep("lost", a.test("isinf") & ~b.test("isfinite"))
    return (
        keep("cosine", lost.choose(a.literal(1.0), b.apply("cos"))),
        keep("sine", (lost & (a < 0)).choose(a.literal(0.0).with_sign_of(b), b.apply("sin"))),
    )


def _exp(a: _Real, b: _Real, keep: _Keep) -> _Complex:
    """exp(a + bi), scaled so that it overflows only where the result does."""
    rest, scale = _shifted(a, keep, both_signs=False)
    growth = keep("growth", rest.apply("exp"))
    cosine, sine = _turn(a, b, keep)
    return growth * cosine * scale, b.equals(0).choose(b, growth * sine * scale)


def _expm1(a: _Real, b: _Real, keep: _Keep) -> _Complex:
    """NumPy's form: exp(a) cos(b) - 1 = expm1(a) cos(b) - (1 - cos(b)), the last twice the square of a sine."""
    half_sine = keep("half_sine", (0.5 * b).apply("sin"))
    return a.apply("expm1") * b.apply("cos") - 2 * half_sine * half_sine, a.apply("exp") * b.apply("sin")


def _exp2(a: _Real, b: _Real, keep: _Keep) -> _Complex:
    return _exp(keep("exponent", a * math.log(2)), keep("angle", b * math.log(2)), keep)


def _sinh(a: _Real, b: _Real, keep: _Keep) -> _Complex:
    """Hyperbolic sine of a + bi, without overflow where the result fits."""
    rest, scale = _shifted(a, keep, both_signs=True)
    one = a.literal(1.0)
    # With an infinite magnitude and no angle the real part is positive, which C leaves open.
    infinite = keep("infinite", a.test("isinf"))
    known = infinite.choose(one.with_sign_of(a), one)
    lost = (infinite | a.equals(0)) & ~b.test("isfinite")
    return (
        rest.apply("sinh") * lost.choose(known, b.apply("cos")) * scale,
        b.equals(0).choose(b, rest.apply("cosh") * b.apply("sin") * scale),
    )


def _cosh(a: _Real, b: _Real, keep: _Keep) -> _Complex:
    """Hyperbolic cosine of a + bi, without overflow where the result fits."""
    rest, scale = _shifted(a, keep, both_signs=True)
    unknown = keep("unknown", ~b.test("isfinite"))
    one = a.literal(1.0)
    cosine = (a.test("isinf") & unknown).choose(one, b.apply("cos"))
    sine = (a.equals(0) & unknown).choose(one.with_sign_of(b), b.apply("sin"))
    return (
        rest.apply("cosh") * cosine * scale,
        b.equals(0).choose(one.with_sign_of(a) * b, rest.apply("sinh") * sine * scale),
    )


def _tanh(a: _Real, b: _Real, keep: _Keep) -> _Complex:
    """(sinh a cosh a + i sin b cos b) / (sinh² a + cos² b), all times 4 exp(-2|a|), which cannot overflow."""
    lost = keep("lost", a.test("isinf") & ~b.test("isfinite"))
    cosine = keep("cosine", lost.choose(a.literal(1.0), b.apply("cos")))
    sine = lost.choose(a.literal(0.0).with_sign_of(b), b.apply("sin"))
    fall = keep("fall", -2 * abs(a))
    rise = keep("rise", -fall.apply("expm1"))
    decay = keep("decay", 4 * fall.apply("exp") * cosine)
    divisor = keep("divisor", rise * rise + decay * cosine)
    return (
        a.equals(0).choose(a, (rise * (2 - rise) / divisor).with_sign_of(a)),
        b.equals(0).choose(b, decay * sine / divisor),
    )


# -- logarithms


def _log(a: _Real, b: _Real, keep: _Keep) -> _Complex:
    """log(a + bi): the logarithm of the radius without cancellation near 1, and the angle."""
    wide, high = keep("wide", abs(a)), keep("high", abs(b))
    size, rest = keep("size", wide.apply("maximum", high)), keep("rest", wide.apply("minimum", high))
    excess = (size - 1) * (size + 1) + rest * rest
    return _log_radius(size, rest, excess, a.test("isinf") | b.test("isinf"), keep), b.apply("atan2", a)


def _log1p(a: _Real, b: _Real, keep: _Keep) -> _Complex:
    """log(1 + a + bi), exact for small numbers."""
    base = keep("base", a + 1)
    wide, high = keep("wide", abs(base)), keep("high", abs(b))
    size, rest = keep("size", wide.apply("maximum", high)), keep("rest", wide.apply("minimum", high))
    excess = a * (a + 2) + b * b
    return _log_radius(size, rest, excess, a.test("isinf") | b.test("isinf"), keep), b.apply("atan2", base)


def _log_radius(size: _Real, rest: _Real, excess: _Real, infinite: _Real, keep: _Keep) -> _Real:
    """The logarithm of sqrt(size² + rest²), size being the larger one; the excess is what the square exceeds 1 by.

    Near the unit circle the logarithm is small, and the excess, which has no rounded 1 in it, says how small. Elsewhere
    it is that of the larger component and a little more.
    """
    near = keep("near", (size > 0.5) & (size < 2))
    ratio = keep("ratio", rest / size)
    radius = near.choose(size.literal(0.0), size.apply("log")) + 0.5 * near.choose(excess, ratio * ratio).apply("log1p")
    bounded = size.equals(0).choose(size.literal(-math.inf), radius)
    return infinite.choose(size.literal(math.inf), bounded)


def _log2(a: _Real, b: _Real, keep: _Keep) -> _Complex:
    re, im = _log(a, b, keep)
    return re * (1 / math.log(2)), im * (1 / math.log(2))


def _log10(a: _Real, b: _Real, keep: _Keep) -> _Complex:
    re, im = _log(a, b, keep)
    return re * (1 / math.log(10)), im * (1 / math.log(10))


# -- roots and powers

#: Below this a number may lose digits when an eighth of it is taken; and a power of 4 that makes it large.
_SMALL: dict[ComputeType, tuple[float, float]] = {"f32": (2.0**-100, 2.0**48), "f64": (2.0**-960, 2.0**128)}


def _sqrt(a: _Real, b: _Real, keep: _Keep) -> _Complex:
    """The square root of a + bi. Small numbers are scaled up first, where squares would lose digits.

    An infinite imaginary part wins over a NaN, as C99 has it.
    """
    limit, scale = _SMALL[a.type]
    small = keep("small", (abs(a) < limit) & (abs(b) < limit))
    factor = keep("factor", small.choose(a.literal(scale), 1.0))
    back = keep("back", small.choose(a.literal(scale**-0.5), 1.0))
    re, im = _plain_sqrt(keep("scaled_real", a * factor), keep("scaled_imag", b * factor), keep)
    infinite = keep("infinite", b.test("isinf"))
    return infinite.choose(a.literal(math.inf), re * back), infinite.choose(b, im * back)


def _plain_sqrt(a: _Real, b: _Real, keep: _Keep) -> _Complex:
    """The root where the imaginary part is finite. An eighth of a number cannot overflow when it is doubled twice."""
    eighth = keep("eighth", 0.125 * a)
    root = keep("root", 2 * (abs(eighth) + eighth.apply("hypot", 0.125 * b)).apply("sqrt"))
    other = keep("other", root.equals(0).choose(b, b / (root + root)))
    right = keep("right", a >= 0)
    return right.choose(root, abs(other)), right.choose(other, root.with_sign_of(b))


def _power(x: _Complex, y: _Complex, keep: _Keep) -> _Complex:
    """exp(y log x), but for 0: to the power of 0 it is 1, of a positive real part 0, and else nothing is right."""
    (a, b), (c, d) = x, y
    radius, angle = _log(a, b, keep)
    radius, angle = keep("log_radius", radius), keep("angle", angle)
    growth, turn = keep("growth", c * radius - d * angle), keep("turn", d * radius + c * angle)
    re, im = _exp(growth, turn, keep)
    one, zero = a.literal(1.0), a.literal(0.0)
    from_zero, to_zero = keep("from_zero", a.equals(0) & b.equals(0)), keep("to_zero", c.equals(0) & d.equals(0))
    nothing = keep("nothing", (c > 0).choose(zero, math.nan))
    return (
        to_zero.choose(one, from_zero.choose(nothing, re)),
        to_zero.choose(zero, from_zero.choose(nothing, im)),
    )


#: The largest whole power that is taken by products: about as many operations as the logarithm and the exponential.
WHOLE_LIMIT = 32


def _whole_literal(y: Pair) -> int | None:
    """The exponent, where the text of the program says that it is a small whole number."""
    re, im = y
    if not isinstance(re, Literal) or not isinstance(im, Literal) or im.value != 0:
        return None
    value = float(re.value)
    return int(value) if abs(value) <= WHOLE_LIMIT and value.is_integer() else None


def _power_by_products(a: _Real, b: _Real, whole: int, keep: _Keep) -> _Complex:
    """The products that NumPy takes, in its order: signs of zeros, infinities and NaN depend on it."""
    x: _Complex = a, b
    one: _Complex = a.literal(1.0), _Real(Literal(0.0, a.type, given=True))
    match whole:
        case 0:
            return a.literal(1.0), a.literal(0.0)
        case 1:
            return x
        case 2:
            return _multiply(x, x)
        case 3:
            return _multiply(x, _kept("square", _multiply(x, x), keep))
    result, square, rest = one, x, abs(whole)
    while True:
        if rest & 1:
            result = _kept("power", _multiply(result, square), keep)
        rest >>= 1
        if not rest:
            return result if whole > 0 else _divide(one, result, keep)
        square = _kept("square", _multiply(square, square), keep)


def _kept(hint: str, x: _Complex, keep: _Keep) -> _Complex:
    return keep(f"{hint}_real", x[0]), keep(f"{hint}_imag", x[1])


# -- inverse functions


def _beside_one(a: _Real, b: _Real, opposite: _Real, keep: _Keep) -> tuple[_Complex, _Complex]:
    """The roots of 1 - x and 1 + x, out of which Kahan makes the inverse sine and cosine without cancellation."""
    minus = _plain_sqrt(keep("below", 1 - a), opposite, keep)
    plus = _plain_sqrt(keep("above", 1 + a), b, keep)
    return _kept("below_root", minus, keep), _kept("above_root", plus, keep)


def _asin(a: _Real, b: _Real, keep: _Keep) -> _Complex:
    """The inverse sine of a + bi after Kahan, from the square roots of 1 - z and 1 + z; its branch cuts are NumPy's."""
    (p, q), (r, s) = _beside_one(a, b, keep("opposite", -b), keep)
    infinite = keep("infinite", a.test("isinf") | b.test("isinf"))
    angle = a.apply("atan2", infinite.choose(abs(b), p * r - q * s))
    height = (p * s - q * r).apply("asinh")
    return (
        a.equals(0).choose(a, angle),
        infinite.choose(a.literal(math.inf).with_sign_of(b), height),
    )


def _acos(a: _Real, b: _Real, keep: _Keep) -> _Complex:
    """Arc cosine of a + bi, with NumPy's branch cuts and signs of zero."""
    opposite = keep("opposite", -b)
    (p, q), (r, s) = _beside_one(a, b, opposite, keep)
    infinite = keep("infinite", a.test("isinf") | b.test("isinf"))
    angle = infinite.choose(abs(b).apply("atan2", a), 2 * p.apply("atan2", r))
    height = (q * r - p * s).apply("asinh")
    return (
        a.equals(0).choose(a.literal(math.pi / 2), angle),
        infinite.choose(a.literal(math.inf).with_sign_of(opposite), height),
    )


def _acosh(a: _Real, b: _Real, keep: _Keep) -> _Complex:
    """The inverse cosine, turned to the side where the real part is not negative."""
    angle, height = _acos(a, b, keep)
    return abs(height), angle.with_sign_of(b)


def _atanh(a: _Real, b: _Real, keep: _Keep) -> _Complex:
    """The hyperbolic sine of twice the real part is 2a / (|1 - x| |1 + x|), which has no difference in it.

    Divided by the larger one first, it cannot overflow.
    """
    wide = keep("wide", abs(a))
    below, above = keep("below", 1 - wide), keep("above", 1 + wide)
    height = 0.5 * (2 * (a / above.apply("hypot", b)) / below.apply("hypot", b)).apply("asinh")
    angle = 0.5 * b.apply("atan2", 0.5 * (below * above - b * b))
    infinite = keep("infinite", a.test("isinf") | b.test("isinf"))
    quarter = a.literal(math.pi / 2).with_sign_of(b)
    return (
        (infinite | a.equals(0)).choose(a.literal(0.0).with_sign_of(a), height),
        (infinite & ~b.test("isnan")).choose(quarter, angle),
    )


# -- compositions

_Formula = Callable[[_Real, _Real, _Keep], _Complex]


def _mirrored(hyperbolic: _Formula) -> _Formula:
    """The circular function. Components exchanged are i conj(x), and f(i x) = i g(x) for sinh and sin, and the like."""

    def circular(a: _Real, b: _Real, keep: _Keep) -> _Complex:
        re, im = hyperbolic(b, a, keep)
        return im, re

    return circular


def _cos(a: _Real, b: _Real, keep: _Keep) -> _Complex:
    """The cosine, as the hyperbolic one of the turned number; a NaN keeps the zero of its other part."""
    re, im = _cosh(b, a, keep)
    re, im = keep("cosine_real", re), keep("cosine_imag", im)
    return re, (re.test("isnan") & im.equals(0)).choose(re.literal(0.0), -im)


_FORMULAS: dict[UnaryFunction, _Formula] = {
    "sign": _sign,
    "sqrt": _sqrt,
    "exp": _exp,
    "exp2": _exp2,
    "expm1": _expm1,
    "log": _log,
    "log2": _log2,
    "log10": _log10,
    "log1p": _log1p,
    "sin": _mirrored(_sinh),
    "cos": _cos,
    "tan": _mirrored(_tanh),
    "asin": _asin,
    "acos": _acos,
    "atan": _mirrored(_atanh),
    "sinh": _sinh,
    "cosh": _cosh,
    "tanh": _tanh,
    # The inverse sine is its own mirror image of the hyperbolic one.
    "asinh": _mirrored(_asin),
    "acosh": _acosh,
    "atanh": _atanh,
    "reciprocal": _reciprocal,
}
