"""Functions of numbers that NumPy has beside its ufuncs: equality of arrays, packed bits, angles, NaN."""

from __future__ import annotations

import builtins
import math
from typing import Any, Literal

import numpy as np

from anygpu.array.core import recording
from anygpu.array.core.arguments import arrays, slice_axis
from anygpu.array.core.array import Array, as_array, device_of
from anygpu.array.core.expression import Value
from anygpu.array.core.overrides import implements
from anygpu.array.core.recording import (
    apply,
    binary,
    broadcast_shapes,
    cast,
    compare,
    normal_axis,
    reshape,
    unary,
    where,
)
from anygpu.array.functions import elementwise as ew
from anygpu.array.functions import selection
from anygpu.array.functions.concatenation import concat
from anygpu.array.functions.differences import diff
from anygpu.array.functions.manipulation import ravel
from anygpu.array.functions.products import vecdot
from anygpu.array.functions.reductions import cumsum
from anygpu.program.dtypes import is_inexact, promote
from anygpu.program.primitives import Pad, Reduce

# -- whether arrays are equal, or nearly so


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


# -- bits packed into bytes, and unpacked


Order = Literal["big", "little"]


def _shifts(order: str, axis: int, dimensions: int) -> Value:
    """By how much each of the eight bits is moved, along an axis after `axis`."""
    if order not in ("big", "little"):
        raise ValueError(f'bitorder is "big" or "little", not {order!r}.')
    moves = np.arange(8, dtype=np.uint8)[:: -1 if order == "big" else 1]
    return reshape(recording.literal(moves), tuple(8 if each == axis + 1 else 1 for each in range(dimensions + 1)))


def _along(array: Array, axis: int | None) -> tuple[Value, int]:
    if axis is None:
        return reshape(array._value, (array.size,)), 0
    return array._value, normal_axis(axis, array.ndim)


@implements(np.packbits)
def packbits(a: Any, /, axis: int | None = None, bitorder: Order = "big") -> Array:
    """Eight truth values in each byte; what is missing at the end is 0."""
    (array,) = arrays(a)
    if array.dtype.kind not in "biu":
        raise TypeError(f"packbits takes truth values or integers, not {array.dtype}.")
    value, position = _along(array, axis)
    shape = value.spec.shape
    length = shape[position]
    missing = -length % 8
    ends = tuple(missing if each == position else 0 for each in range(len(shape)))
    ones = apply(Pad((0,) * len(shape), ends), cast(value, "bool"), recording.constant(False, "bool"))
    groups = (*shape[:position], (length + missing) // 8, 8, *shape[position + 1 :])
    moved = binary("left_shift", cast(reshape(ones, groups), "uint8"), _shifts(bitorder, position, len(shape)))
    return Array(apply(Reduce("sum", (position + 1,)), moved))


@implements(np.unpackbits)
def unpackbits(a: Any, /, axis: int | None = None, count: int | None = None, bitorder: Order = "big") -> Array:
    """The bits of each byte, one after the other; `count` of them, or without so many at the end."""
    (array,) = arrays(a)
    if array.dtype != np.uint8:
        raise TypeError(f"unpackbits takes bytes (uint8), not {array.dtype}.")
    value, position = _along(array, axis)
    shape = value.spec.shape
    each = reshape(value, (*shape[: position + 1], 1, *shape[position + 1 :]))
    bits = binary("bitwise_and", binary("right_shift", each, _shifts(bitorder, position, len(shape))), 1)
    length = shape[position] * 8
    result = reshape(bits, (*shape[:position], length, *shape[position + 1 :]))
    if count is None:
        return Array(result)
    wanted = count if count >= 0 else length + count
    if wanted < 0:
        raise ValueError(f"unpackbits: {-count} bits cannot be left out of {length}.")
    if wanted <= length:
        return Array(slice_axis(result, position, 0, wanted))
    ends = tuple(wanted - length if number == position else 0 for number in range(len(shape)))
    return Array(apply(Pad((0,) * len(shape), ends), result, recording.constant(0, "uint8")))


# -- numbers


@implements(np.angle)
def angle(z: Any, deg: bool = False) -> Array:
    """The angle of complex numbers, from -π to π."""
    x = as_array(z)
    if x.dtype.kind == "b":
        x = x.astype(np.int64)
    result = ew.atan2(ew.imag(x), ew.real(x))
    return ew.rad2deg(result) if deg else result


@implements("fix")
def fix(x: Any) -> Array:
    """The next whole number towards zero."""
    return ew.trunc(x)


#: Before NumPy 2.3, the sinc of a zero of 16 bits is no number.
with np.errstate(invalid="ignore"):
    _SINC_KNOWS_HALVES = bool(np.sinc(np.float16(0)) == 1)


@implements(np.sinc)
def sinc(x: Any) -> Array:
    """sin(πx) / (πx), and 1 at zero."""
    scaled: Array = math.pi * as_array(x)
    # NumPy's own way: small enough that the quotient is 1, and large enough to be a number of the type.
    knows = scaled.dtype.kind == "f" and (scaled.dtype.itemsize > 2 or _SINC_KNOWS_HALVES)
    small = float(np.finfo(scaled.dtype).eps) if knows else 1e-20
    scaled = selection.where(scaled != 0, scaled, small)
    return ew.sin(scaled) / scaled


@implements(np.nan_to_num)
def nan_to_num(
    x: Any, copy: bool = True, nan: Any = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Array:
    """NaN as zero and infinities as the largest numbers there are, or as what is given."""
    y = as_array(x)
    if y.dtype.kind == "c":
        parts = [nan_to_num(part, True, nan, posinf, neginf) for part in (ew.real(y), ew.imag(y))]
        return parts[0] + parts[1] * 1j
    if y.dtype.kind != "f":
        return Array(y._value) if copy or y._is_number else y
    limits = np.finfo(y.dtype)
    highest = float(limits.max) if posinf is None else posinf
    lowest = float(limits.min) if neginf is None else neginf
    result = selection.where(ew.isnan(y), nan, y)
    result = selection.where(isposinf(y), highest, result)
    result = selection.where(isneginf(y), lowest, result).astype(y.dtype)
    if not copy and not y._is_number:
        y._assign(result)
    # NumPy gives a number for an array without axes, whether it was changed or not.
    return result if copy or not y.shape else y


@implements(np.isposinf)
def isposinf(x: Any, out: Array | None = None) -> Array:
    y = as_array(x)
    _refuse_complex(y, "isposinf")
    return ew.logical_and(ew.isinf(y), y > 0)


@implements(np.isneginf)
def isneginf(x: Any, out: Array | None = None) -> Array:
    y = as_array(x)
    _refuse_complex(y, "isneginf")
    return ew.logical_and(ew.isinf(y), y < 0)


def _refuse_complex(x: Array, name: str) -> None:
    if x.dtype.kind == "c":
        raise TypeError(f"{name} is not defined for complex numbers: ask for x.real and x.imag.")


@implements(np.isreal)
def isreal(x: Any) -> Array:
    """Whether the imaginary part is zero."""
    return ew.imag(as_array(x)) == 0


@implements(np.iscomplex)
def iscomplex(x: Any) -> Array:
    """Whether the imaginary part is not zero."""
    return ew.imag(as_array(x)) != 0


@implements(np.isrealobj)
def isrealobj(x: Any) -> bool:
    return as_array(x).dtype.kind != "c"


@implements(np.iscomplexobj)
def iscomplexobj(x: Any) -> bool:
    return as_array(x).dtype.kind == "c"


@implements(np.real_if_close)
def real_if_close(a: Any, tol: float = 100) -> Array:
    """Without the imaginary parts, when all of them are tiny. That depends on the values, so it computes."""
    x = as_array(a)
    if x.dtype.kind != "c":
        return x
    small = tol * float(np.finfo(x.dtype).eps) if tol > 1 else tol
    return ew.real(x) if builtins.bool(np.all(np.abs(np.asarray(ew.imag(x))) < small)) else x


@implements(np.unwrap)
def unwrap(p: Any, discont: float | None = None, axis: int = -1, *, period: float = 2 * math.pi) -> Array:
    """Angles without jumps: each is moved by whole periods to lie near the one before."""
    x = as_array(p)
    axis = normal_axis(axis, x.ndim)
    steps = diff(x, axis=axis)
    dtype = np.result_type(x.dtype, period)
    limit = period / 2 if discont is None else discont
    whole = dtype.kind in "iu"
    high = period // 2 if whole else period / 2
    boundary = (period % 2 == 0) if whole else True
    moved = ew.remainder(steps + high, period) - high
    if boundary:
        moved = selection.where(ew.logical_and(moved == -high, steps > 0), high, moved)
    correction = selection.where(ew.abs(steps) < limit, 0, moved - steps)
    first = tuple(slice(0, 1) if each == axis else slice(None) for each in range(x.ndim))
    rest = tuple(slice(1, None) if each == axis else slice(None) for each in range(x.ndim))
    moved_rest: Array = x[rest] + cumsum(correction, axis=axis)
    result: Array = concat([x[first].astype(dtype), moved_rest.astype(dtype)], axis=axis)
    return result


@implements(np.vdot)
def vdot(a: Any, b: Any) -> Array:
    """The sum of products of all elements, the first side conjugated."""
    return vecdot(ravel(as_array(a)), ravel(as_array(b)))
