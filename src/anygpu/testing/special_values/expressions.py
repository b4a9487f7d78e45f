"""Several primitives together, as compilers like to simplify them: right for numbers, wrong for those of a machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from anygpu.array.trace.tracing import record
from anygpu.program.dtypes import KIND, DType
from anygpu.program.primitives import Spec
from anygpu.testing.special_values.comparison import Check
from anygpu.testing.special_values.programs import Case
from anygpu.testing.special_values.values import pair_values, pairs

Expressions = dict[str, Callable[[Any, Any], Any]]

_EXACT_FLOAT: Expressions = {
    "x - x": lambda x, y: x - x,
    "x * 0": lambda x, y: x * 0.0,
    "x * -0": lambda x, y: x * -0.0,
    "x + 0": lambda x, y: x + 0.0,
    "x - 0": lambda x, y: x - 0.0,
    "0 - x": lambda x, y: 0.0 - x,
    "0 / x": lambda x, y: 0.0 / x,
    "x / 0": lambda x, y: x / 0.0,
    "x / -0": lambda x, y: x / -0.0,
    "x // 0": lambda x, y: x // 0.0,
    "x % 0": lambda x, y: x % 0.0,
    "x / x": lambda x, y: x / x,
    "x / inf": lambda x, y: x / np.inf,
    "x * nan": lambda x, y: x * np.nan,
    "floor(x * nan)": lambda x, y: np.floor(x * np.nan),
    "rint(x * nan)": lambda x, y: np.rint(x * np.nan),
    "x // nan": lambda x, y: x // np.nan,
    "x != x": lambda x, y: x != x,
    "not x < y": lambda x, y: ~(x < y),
    "x < y or x > y or x == y": lambda x, y: (x < y) | (x > y) | (x == y),
    "x * 2 / 2": lambda x, y: x * 2 / 2,
    "-(x - y)": lambda x, y: -(x - y),
    "-(-x)": lambda x, y: np.negative(-x),
    "abs(-x)": lambda x, y: abs(-x),
    "0 - (0 - x)": lambda x, y: 0.0 - (0.0 - x),
    "where(x > y, x, y)": lambda x, y: np.where(x > y, x, y),
    "where(isnan(x), 0, x)": lambda x, y: np.where(np.isnan(x), 0, x),
    "where(x == 0, y, x)": lambda x, y: np.where(x == 0, y, x),
    "clip": lambda x, y: np.clip(x, -1, 1),
    "nan_to_num": lambda x, y: np.nan_to_num(x),
    "isfinite(x * y)": lambda x, y: np.isfinite(x * y),
    "signbit(x * -1)": lambda x, y: np.signbit(np.where(np.isnan(x), 1, x) * -1),
    "copysign(1, x) * x": lambda x, y: np.copysign(x.dtype.type(1), x) * x,
    "x ** 0": lambda x, y: x**0,
    "x ** 1": lambda x, y: x**1,
    "1 ** x": lambda x, y: 1.0**x,
    "max(x, y) == max(y, x)": lambda x, y: np.maximum(x, y) == np.maximum(y, x),
    "x > inf": lambda x, y: x > np.inf,
    "x <= inf": lambda x, y: x <= np.inf,
    "fmax": lambda x, y: np.fmax(x, y) + 0.0,
    "heaviside": lambda x, y: np.heaviside(x, x.dtype.type(0.5)),
}
_ROUNDED_FLOAT: Expressions = {
    "1 / (1 / x)": lambda x, y: 1 / (1 / x),
    "sqrt(x * x)": lambda x, y: np.sqrt(x * x),
    "sqrt(x) ** 2": lambda x, y: np.sqrt(x) ** 2,
    "x ** 2": lambda x, y: x**2,
    "x ** 3": lambda x, y: x**3,
    "x ** 0.5": lambda x, y: (x * x) ** 0.5,
    "x ** -1": lambda x, y: x**-1.0,
    "x ** -2": lambda x, y: x**-2.0,
    "x ** inf": lambda x, y: x**np.inf,
    "2 ** x": lambda x, y: 2.0**x,
    "x / 3": lambda x, y: x / 3,
    "x / y * 0": lambda x, y: x / y * 0,
    "exp(-abs(x))": lambda x, y: np.exp(-abs(x)),
    "log(x * 0)": lambda x, y: np.log(x * 0),
    "log1p(exp(-abs(x)))": lambda x, y: np.log1p(np.exp(-abs(x))),
    "logaddexp": lambda x, y: np.logaddexp(x, y),
    "sinc": lambda x, y: np.sinc(x * (abs(x) < 100)),
    "arctanh(x * 0 + 1)": lambda x, y: np.arctanh(x * 0 + 1),
    "tanh(x) + 0": lambda x, y: np.tanh(x) + 0.0,
    "1 / (1 + exp(-x))": lambda x, y: 1 / (1 + np.exp(-x)),
    "sin": lambda x, y: np.sin(x),
}
_WHOLE: Expressions = {
    "(x * 3) // 3": lambda x, y: (x * 3) // 3,
    "x + 1 > x": lambda x, y: (x + 1) > x,
    "x - 1 < x": lambda x, y: (x - 1) < x,
    "max(x + 5, x)": lambda x, y: np.maximum(x + 5, x),
    "min(x - 5, x)": lambda x, y: np.minimum(x - 5, x),
    "x - min(x) >= 0": lambda x, y: (x - x.min()) >= 0,
    "x * x >= 0": lambda x, y: (x * x) >= 0,
    "x * y >= 0": lambda x, y: (x * y) >= 0,
    "(x + y) - y == x": lambda x, y: ((x + y) - y) == x,
    "x + y > x": lambda x, y: (x + y) > x,
    "x - y > 0": lambda x, y: (x - y) > 0,
    "x * y // y": lambda x, y: x * y // y,
    "(x << 1) >> 1": lambda x, y: (x << 1) >> 1,
    "(x << y) >> y": lambda x, y: (x << y) >> y,
    "x * 2 // 2": lambda x, y: x * 2 // 2,
    "x * 4 % 4": lambda x, y: x * 4 % 4,
    "x // y * y + x % y": lambda x, y: x // y * y + x % y,
    "x // 0": lambda x, y: x // 0,
    "x % 0": lambda x, y: x % 0,
    "0 // x": lambda x, y: 0 // x,
    "x // x": lambda x, y: x // x,
    "x % x": lambda x, y: x % x,
    "(x + y) // 2": lambda x, y: (x + y) // 2,
    "~x + 1": lambda x, y: ~x + 1,
    "x * x * x": lambda x, y: x * x * x,
    "x ** 2": lambda x, y: x**2,
    "x ** 7": lambda x, y: x**7,
    "abs(x) >= 0": lambda x, y: abs(x) >= 0,
    "x // 7": lambda x, y: x // 7,
    "x % 7": lambda x, y: x % 7,
    "x // 8": lambda x, y: x // 8,
    "x % 8": lambda x, y: x % 8,
    "x << width": lambda x, y: x << 8 * x.dtype.itemsize,
    "x >> width": lambda x, y: x >> 8 * x.dtype.itemsize,
    "x / y": lambda x, y: (x / y) > 0,
    "isin": lambda x, y: np.isin(x, y[:9]),
}
_SIGNED: Expressions = {
    "-x >= 0": lambda x, y: -x >= 0,
    "-(-x)": lambda x, y: np.negative(-x),
    "abs(x) * abs(y) >= 0": lambda x, y: abs(x) * abs(y) >= 0,
    "x // -1": lambda x, y: x // -1,
    "x % -1": lambda x, y: x % -1,
    "x // -7": lambda x, y: x // -7,
    "x % -5": lambda x, y: x % -5,
    "x << -1": lambda x, y: x << -1,
    "x >> -1": lambda x, y: x >> -1,
    "x * -1 < 0": lambda x, y: x * -1 < 0,
    "0 - x > 0": lambda x, y: 0 - x > 0,
    "sign(x) * x >= 0": lambda x, y: np.sign(x) * x >= 0,
}
_COMPLEX: Expressions = {
    "sqrt(conj(x))": lambda x, y: np.sqrt(np.conj(x)),
    "log(conj(x))": lambda x, y: np.log(np.conj(x)),
    "conj(conj(x))": lambda x, y: np.conj(np.conj(x)),
    "x * conj(x)": lambda x, y: x * np.conj(x),
    "abs(x)": lambda x, y: np.abs(x),
    "angle(x)": lambda x, y: np.angle(x),
    "-x": lambda x, y: -x,
    "x == y": lambda x, y: x == y,
    "x - x": lambda x, y: x - x,
    "x + 0": lambda x, y: x + 0,
    "x * 1": lambda x, y: x * 1,
}


def expressions(dtype: DType, every: bool) -> Iterator[Case]:
    """Each alone in its program with its operands as arrays, and all of a kind in one program."""
    kind = KIND[dtype]
    exact: Expressions = {}
    rounded: Expressions = {}
    if kind == "float":
        exact, rounded = _EXACT_FLOAT, _ROUNDED_FLOAT
    elif kind == "signed":
        exact = {**_WHOLE, **_SIGNED}
    elif kind == "unsigned":
        exact = _WHOLE
    elif kind == "complex":
        rounded = _COMPLEX
    if not exact and not rounded:
        return
    x, y = pairs(pair_values(dtype), pair_values(dtype))
    for found, rule in ((exact, "exact"), (rounded, "several")):
        wanted = [list(found.items())[begin : begin + 8] for begin in range(0, len(found), 8)]
        wanted += [[each] for each in found.items()] if every else []
        for some in wanted:
            functions = [function for _, function in some]

            def together(x: Any, y: Any, functions: Any = functions) -> list[Any]:
                return [function(x, y) for function in functions]

            spec = Spec(x.shape, dtype)
            checks = tuple(
                Check(name, dtype, rule, function, (x, y), any_zero=name in ("fmax", "clip"))  # type: ignore[arg-type]
                for name, function in some
            )
            yield Case("expressions", record(together, spec, spec), (x, y), checks)
