"""The published tolerances: what one operation may add to the difference of two correct results."""

from __future__ import annotations

from typing import Literal

from anygpu.program.dtypes import REAL_PART, DType, is_inexact

OperationClass = Literal["arithmetic", "function", "sum", "fourier", "linear"]

#: The distance from 1 to the next number.
EPSILON: dict[DType, float] = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
#: How many binary digits a number has.
DIGITS: dict[DType, int] = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}

#: What one operation may add to the difference, in epsilons of its type. Of arithmetic and functions it is relative to
#: the result (near 0, to 1: the sine of a rounded π); of a sum, for each number summed, relative to the largest that
#: a partial sum can be; of a transform, for each of its log2(n) stages, to the largest that a result can be; of linear
#: algebra, for each row, to the norm. Differences that come in are carried on by the slope of each function.
TOLERANCES: dict[OperationClass, dict[DType, float]] = {
    "arithmetic": {"float16": 1, "bfloat16": 1, "float32": 1, "float64": 1, "complex64": 4, "complex128": 4},
    "function": {"float16": 4, "bfloat16": 4, "float32": 32, "float64": 64, "complex64": 128, "complex128": 128},
    "sum": {"float16": 1, "bfloat16": 1, "float32": 1, "float64": 1, "complex64": 4, "complex128": 4},
    "fourier": {"complex64": 8, "complex128": 8, "float32": 8, "float64": 8},
    "linear": {"float32": 8, "float64": 8, "complex64": 16, "complex128": 16},
}


def tolerance_of(kind: OperationClass, dtype: DType) -> float:
    """What `TOLERANCES` says, as a number and not in epsilons."""
    return TOLERANCES[kind].get(dtype, 64) * EPSILON[REAL_PART.get(dtype, dtype)] if is_inexact(dtype) else 0.0
