"""Intervals of the values of a program, and how far two right answers may lie apart, carried node by node.

`tests.support.random_programs.error_bounds` has the rule of each primitive. Inputs are taken to be as
`tests.support.random_programs.random_inputs` makes them: small whole numbers, and fractions that are multiples of a
power of two. So much of the arithmetic is exact in any order, which a `Bounds` knows; and a step function, such as
`floor` or `argmax`, has one right answer only where its input is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from anygpu.agreement.elementwise import DIGITS, ErrorClass, tolerance_of
from anygpu.program.dtypes import ITEMSIZE, KIND, REAL_PART, DType, is_inexact

#: Inputs are multiples of two to the minus this, between -INPUT_LIMIT and INPUT_LIMIT.
INPUT_STEP: dict[DType, int] = {"float16": 5, "bfloat16": 3, "float32": 10, "float64": 20}
INPUT_LIMIT = 4
WHOLE_LIMIT = 20


class Bounds(NamedTuple):
    """Every value lies in here, and two right answers differ by at most `relative * |value| + absolute`."""

    low: float
    high: float
    imag_low: float = 0.0
    imag_high: float = 0.0
    #: All values are multiples of two to the minus this; `None` when nothing is known.
    step: int | None = None
    relative: float = 0.0
    absolute: float = 0.0
    #: No magnitude is smaller than this.
    least: float = 0.0

    @property
    def magnitude(self) -> float:
        """The largest absolute value."""
        real = max(abs(self.low), abs(self.high))
        imaginary = max(abs(self.imag_low), abs(self.imag_high))
        return math.hypot(real, imaginary) if imaginary else real

    @property
    def exact(self) -> bool:
        """Whether there is only one right answer."""
        return not self.relative and not self.absolute

    @property
    def error(self) -> float:
        """The most that two right answers can differ by."""
        return self.relative * self.magnitude + self.absolute if not self.exact else 0.0

    @property
    def has_a_sign(self) -> bool:
        """Whether all right answers agree on which side of 0 they are."""
        return self.least > self.error


UNKNOWN = Bounds(-math.inf, math.inf, -math.inf, math.inf, None, 0.0, math.inf)


def whole_range(dtype: DType) -> tuple[int, int]:
    """The least and the largest number of a whole type; 0 and 1 for truth values."""
    if dtype == "bool":
        return 0, 1
    bits = 8 * ITEMSIZE[dtype]
    return (0, 2**bits - 1) if KIND[dtype] == "unsigned" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def input_bounds(dtype: DType) -> Bounds:
    """The bounds of an input, as `random_inputs` fills it."""
    match KIND[dtype]:
        case "bool":
            return Bounds(0, 1, step=0)
        case "signed":
            return Bounds(-WHOLE_LIMIT, WHOLE_LIMIT, step=0)
        case "unsigned":
            return Bounds(0, 2 * WHOLE_LIMIT, step=0)
        case "float":
            return Bounds(-INPUT_LIMIT, INPUT_LIMIT, step=INPUT_STEP[dtype])
    return Bounds(-INPUT_LIMIT, INPUT_LIMIT, -INPUT_LIMIT, INPUT_LIMIT, step=INPUT_STEP[REAL_PART[dtype]])


def fits(dtype: DType, magnitude: float, step: int | None) -> bool:
    """Whether multiples of 2**-step up to the magnitude are numbers of the type, so that nothing is rounded."""
    return step is not None and step < 200 and magnitude * 2.0**step <= 2.0 ** DIGITS[REAL_PART.get(dtype, dtype)]


def rounded(dtype: DType, found: Bounds, *, exact: bool, kind: ErrorClass = "arithmetic") -> Bounds:
    """The bounds after one rounding of the kind, if there is one.

    With `exact` operands there is none where the result still fits the type.
    """
    if not is_inexact(dtype):
        return found._replace(relative=0.0, absolute=0.0)
    if exact and fits(dtype, found.magnitude, found.step):
        return found._replace(relative=0.0, absolute=0.0)
    return found._replace(step=None, relative=found.relative + tolerance_of(kind, dtype))


def joined(*given: Bounds) -> Bounds:
    """The bounds of values from any of these."""
    steps = [each.step for each in given]
    return Bounds(
        min(each.low for each in given),
        max(each.high for each in given),
        min(each.imag_low for each in given),
        max(each.imag_high for each in given),
        None if None in steps else max(step for step in steps if step is not None),
        max(each.relative for each in given),
        max(each.absolute for each in given),
        min(each.least for each in given),
    )


def boxed(magnitude: float, *, complex_: bool, step: int | None = None) -> Bounds:
    """Bounds on both sides of 0, and for complex numbers in both parts."""
    side = magnitude if complex_ else 0.0
    return Bounds(-magnitude, magnitude, -side, side, step)


def sum_of(x: Bounds, dtype: DType, count: int) -> Bounds:
    """`count` values summed in any order; up to `count` partial sums may also be results."""
    if count == 0:
        return Bounds(0, 0, step=0)
    spread = Bounds(
        min(x.low * count, x.low), max(x.high * count, x.high), min(x.imag_low * count, x.imag_low),
        max(x.imag_high * count, x.imag_high), x.step,
    )  # fmt: skip
    if not is_inexact(dtype) or (x.exact and fits(dtype, count * x.magnitude, x.step)):
        return spread
    # Each of the count - 1 roundings is of a partial sum, and these are half as large as the last on average.
    added = tolerance_of("sum", dtype) * (count - 1) * count / 2 * x.magnitude
    return spread._replace(step=None, absolute=count * x.error + added)


def product_of(x: Bounds, dtype: DType, count: int) -> Bounds:
    """The bounds of `count` values multiplied in any order, and of the products on the way."""
    if count == 0:
        return Bounds(1, 1, step=0)
    if x.magnitude > 1 and count * math.log2(x.magnitude) > 200:
        return UNKNOWN if is_inexact(dtype) else Bounds(*whole_range(dtype))
    largest = max(x.magnitude, x.magnitude**count, 1)
    found = boxed(largest, complex_=KIND[dtype] == "complex")
    if not is_inexact(dtype):
        return found
    if x.exact and x.step is not None and fits(dtype, largest, x.step * count):
        return found._replace(step=x.step * count)
    relative = count * (x.relative + tolerance_of("arithmetic", dtype))
    return found._replace(relative=1.1 * relative, absolute=1.1 * count * x.absolute * max(1.0, largest))


# -- where each function is smooth enough for two engines to agree on it
#
# And how steep it is there.


class Smooth(NamedTuple):
    """A function of a real number between two bounds: it is monotonic there, or `reach` says how far it goes."""

    low: float
    high: float
    value: Callable[[float], float]
    #: The steepest slope between two points.
    slope: Callable[[float, float], float]
    reach: tuple[float, float] | None = None


def _flat(low: float, high: float) -> float:
    return 1.0


SMOOTH: dict[str, Smooth] = {
    "sqrt": Smooth(0.0625, math.inf, math.sqrt, lambda low, high: 0.5 / math.sqrt(low)),
    "cbrt": Smooth(0.0625, math.inf, lambda x: x ** (1 / 3), lambda low, high: low ** (-2 / 3)),
    "exp": Smooth(-8, 5, math.exp, lambda low, high: math.exp(high)),
    "exp2": Smooth(-8, 8, lambda x: 2.0**x, lambda low, high: 2.0**high),
    "expm1": Smooth(-8, 5, math.expm1, lambda low, high: math.exp(high)),
    "log": Smooth(0.0625, math.inf, math.log, lambda low, high: 1 / low),
    "log2": Smooth(0.0625, math.inf, math.log2, lambda low, high: 1.5 / low),
    "log10": Smooth(0.0625, math.inf, math.log10, lambda low, high: 1 / low),
    "log1p": Smooth(-0.75, math.inf, math.log1p, lambda low, high: 1 / (1 + low)),
    "sin": Smooth(-32, 32, math.sin, _flat, (-1, 1)),
    "cos": Smooth(-32, 32, math.cos, _flat, (-1, 1)),
    "tan": Smooth(-1.25, 1.25, math.tan, lambda low, high: 1 + math.tan(max(-low, high)) ** 2),
    "asin": Smooth(-0.875, 0.875, math.asin, lambda low, high: 2.1),
    "acos": Smooth(-0.875, 0.875, math.acos, lambda low, high: 2.1),
    "atan": Smooth(-math.inf, math.inf, math.atan, _flat),
    "sinh": Smooth(-5, 5, math.sinh, lambda low, high: math.cosh(max(-low, high))),
    "cosh": Smooth(-5, 5, math.cosh, lambda low, high: math.cosh(max(-low, high)), (1, 75)),
    "tanh": Smooth(-math.inf, math.inf, math.tanh, _flat),
    "asinh": Smooth(-math.inf, math.inf, math.asinh, _flat),
    "acosh": Smooth(1.25, math.inf, math.acosh, lambda low, high: 1.4),
    "atanh": Smooth(-0.875, 0.875, math.atanh, lambda low, high: 4.3),
    "erf": Smooth(-math.inf, math.inf, math.erf, lambda low, high: 1.2),
}


class SmoothComplex(NamedTuple):
    """A box away from cuts and poles, with the largest value and the steepest slope there."""

    low: float
    high: float
    imag_low: float
    imag_high: float
    largest: float
    slope: float


SMOOTH_COMPLEX: dict[str, SmoothComplex] = {
    **dict.fromkeys(("exp", "exp2", "expm1"), SmoothComplex(-3, 3, -4, 4, 22, 21)),
    **dict.fromkeys(("log", "log2", "log10"), SmoothComplex(0.25, 16, -16, 16, 7, 6)),
    "sqrt": SmoothComplex(0.25, 16, -16, 16, 5, 1),
    "log1p": SmoothComplex(-0.5, 16, -16, 16, 5, 2),
    **dict.fromkeys(("sin", "cos", "sinh", "cosh"), SmoothComplex(-3, 3, -3, 3, 10.2, 10.2)),
    **dict.fromkeys(("tan", "tanh"), SmoothComplex(-1, 1, -1, 1, 1.6, 3.5)),
    **dict.fromkeys(("asin", "acos", "atanh"), SmoothComplex(-0.75, 0.75, -2, 2, 3.5, 2.3)),
    **dict.fromkeys(("asinh", "atan"), SmoothComplex(-2, 2, -0.75, 0.75, 2.5, 2.3)),
    "acosh": SmoothComplex(1.25, 8, -8, 8, 5, 1.4),
    **dict.fromkeys(("reciprocal", "sign"), SmoothComplex(0.5, 8, -8, 8, 2, 4)),
}

#: Base and exponent as boxes, the largest result and the steepest slope.
POWER: tuple[tuple[float, ...], tuple[float, ...], float, float] = ((0.5, 4, 0, 0), (-2, 2, 0, 0), 16, 23)
POWER_COMPLEX: tuple[tuple[float, ...], tuple[float, ...], float, float] = (
    (0.5, 2, -1, 1), (-1, 1, -1, 1), 7, 20,
)  # fmt: skip
