"""Whether arrays are equal, or nearly so."""

from __future__ import annotations

from typing import Any

import numpy as np

from anygpu.array.core import recording
from anygpu.array.core.array import Array, as_array, device_of
from anygpu.array.core.expression import Value
from anygpu.array.core.overrides import implements
from anygpu.array.core.recording import binary, broadcast_shapes, cast, compare, unary, where
from anygpu.program.dtypes import is_inexact, promote
from anygpu.program.primitives import Reduce


@implements(np.isclose)
def isclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Array:
    """Whether |a − b| ≤ atol + rtol·|b|, element by element; infinities are close to themselves."""
    x, y = _pair(a, b)
    if not is_inexact(y.spec.dtype):
        y = cast(y, "float64")
    dtype = promote(x.spec.dtype, y.spec.dtype)
    x, y = cast(x, dtype), cast(y, dtype)
    device = device_of(a, b, rtol, atol)
    margin = binary("add", _number(atol, device), binary("multiply", _number(rtol, device), unary("abs", y)))
    near = binary("less_equal", unary("abs", binary("subtract", x, y)), margin)
    result = where(unary("isfinite", y), near, compare("equal", x, y))
    if equal_nan:
        both = binary("bitwise_and", unary("isnan", x), unary("isnan", y))
        result = binary("bitwise_or", result, both)
    return Array(result)


@implements(np.allclose)
def allclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> bool:
    """Whether all elements are close. The answer is a truth value, so it is computed now."""
    return bool(Array(_all(isclose(a, b, rtol, atol, equal_nan)._value)))


@implements(np.array_equal)
def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> bool:
    """Whether both have the same shape and the same elements."""
    x, y = _pair(a1, a2)
    if x.spec.shape != y.spec.shape:
        return False
    same = compare("equal", x, y)
    if equal_nan and is_inexact(x.spec.dtype) and is_inexact(y.spec.dtype):
        same = binary("bitwise_or", same, binary("bitwise_and", unary("isnan", x), unary("isnan", y)))
    return bool(Array(_all(same)))


@implements(np.array_equiv)
def array_equiv(a1: Any, a2: Any) -> bool:
    """`array_equal` after broadcasting."""
    x, y = _pair(a1, a2)
    try:
        broadcast_shapes(x.spec.shape, y.spec.shape)
    except ValueError:
        return False
    return bool(Array(_all(compare("equal", x, y))))


def _pair(a: Any, b: Any) -> tuple[Value, Value]:
    device = device_of(a, b)
    return as_array(a, device)._value, as_array(b, device)._value


def _number(x: Any, device: Any) -> recording.Operand:
    return x if isinstance(x, int | float) and not isinstance(x, np.generic) else as_array(x, device)._value


def _all(value: Value) -> Value:
    axes = tuple(range(len(value.spec.shape)))
    return recording.apply(Reduce("all", axes), value) if axes else value
