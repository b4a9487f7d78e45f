"""Where each function is smooth enough for two engines to agree on it, and how steep it is there."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple


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
