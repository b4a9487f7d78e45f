"""Functions of numbers that NumPy has beside its ufuncs.

Differences along an axis, gradients and integrals by the trapezoidal rule come first; then equality of arrays, packed
bits, angles and NaN.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any, Literal, TypeGuard

import numpy as np

from anygpu.array.core import recording
from anygpu.array.core.arguments import arrays, line_or_axis, ndim, same_dtype, slice_axis, to_array
from anygpu.array.core.array import Array, as_array, device_of
from anygpu.array.core.expression import Value, active_tracer
from anygpu.array.core.installed_numpy import FIX_WARNS
from anygpu.array.core.overrides import implements
from anygpu.array.core.recording import (
    Operand,
    apply,
    binary,
    broadcast,
    broadcast_shapes,
    cast,
    compare,
    normal_axes,
    normal_axis,
    reshape,
    unary,
    where,
)
from anygpu.array.core.traced_scalar import TracedScalar
from anygpu.array.functions import elementwise as ew
from anygpu.array.functions import selection
from anygpu.array.functions.concatenation import concat
from anygpu.array.functions.manipulation import ravel
from anygpu.array.functions.products import vecdot
from anygpu.array.functions.reductions import cumsum
from anygpu.program.dtypes import is_inexact, promote
from anygpu.program.primitives import Concatenate, Pad, Reduce

# -- differences along an axis, gradients, and integrals by the trapezoidal rule


@implements(np.diff)
def diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Array:
    """Each element less the one before it, `n` times over; truth values: whether both differ."""
    (array,) = arrays(a)
    if n == 0:
        return array
    if n < 0:
        raise ValueError(f"diff: the order is 0 or more, not {n}.")
    if array.ndim == 0:
        raise ValueError("diff needs an array with at least one axis.")
    position = normal_axis(axis, array.ndim)
    ends = [_end(each, array, position) for each in (prepend, append)]
    parts = [part for part in (ends[0], array._value, ends[1]) if part is not None]
    value = apply(Concatenate(position), *same_dtype(*parts)) if len(parts) > 1 else parts[0]
    for _ in range(n):
        value = _steps(value, position)
    return Array(value)


def _end(x: Any, array: Array, axis: int) -> Value | None:
    """What `diff` puts before or behind an array along the axis, or `None`; a number is repeated."""
    if x is None or x is np._NoValue:
        return None
    value = to_array(x, array._device)._value
    if value.spec.shape == ():
        shape = list(array.shape)
        shape[axis] = 1
        value = broadcast(value, tuple(shape))
    return value


def _steps(value: Value, axis: int) -> Value:
    """Differences of neighbours along an axis; for bools whether they differ, as NumPy has it."""
    length = value.spec.shape[axis]
    if length == 0:
        return value
    after, before = slice_axis(value, axis, 1, length), slice_axis(value, axis, 0, length - 1)
    return binary("not_equal" if value.spec.dtype == "bool" else "subtract", after, before)


@implements(np.ediff1d)
def ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> Array:
    """The differences of all elements in one row, with other elements before and after them if wished."""
    (array,) = arrays(ary)
    steps = _steps(reshape(array._value, (array.size,)), 0)
    parts = [_extra(to_begin, array, steps), steps, _extra(to_end, array, steps)]
    present = [part for part in parts if part is not None]
    return Array(apply(Concatenate(0), *present) if len(present) > 1 else steps)


def _extra(x: Any, array: Array, steps: Value) -> Value | None:
    """What `ediff1d` puts before or behind the differences, flattened, or `None`.

    Raises `TypeError` where its type does not fit the array's by the rule "same_kind".
    """
    if x is None:
        return None
    value = to_array(x, array._device)._value
    if not np.can_cast(value.spec.dtype, array.dtype, "same_kind"):
        raise TypeError(f"ediff1d: {value.spec.dtype} does not fit to {array.dtype}; convert one of them first.")
    return cast(reshape(value, (value.spec.size,)), steps.spec.dtype)


@implements(np.trapezoid)
def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Array:
    """The area under a line through the points, at distances `dx` or at the places `x`."""
    given = arrays(y) if x is None else arrays(y, x)
    heights = given[0]._value
    position = normal_axis(axis, given[0].ndim)
    length = given[0].shape[position]
    width: Operand
    if x is None:
        width = dx if type(dx) in (int, float, complex, TracedScalar) else to_array(dx, given[0]._device)._value
    else:
        width = _steps(given[1]._value, position if given[1].ndim > 1 else 0)
        if given[1].ndim == 1:
            width = reshape(width, tuple(length - 1 if each == position else 1 for each in range(given[0].ndim)))
    pairs = binary("add", slice_axis(heights, position, 1, length), slice_axis(heights, position, 0, length - 1))
    areas = binary("divide", binary("multiply", width, pairs), 2.0)
    return Array(apply(Reduce("sum", (position,)), areas))


@implements(np.gradient)
def gradient(f: Any, *varargs: Any, axis: int | Sequence[int] | None = None, edge_order: int = 1) -> Any:
    """The slope along each axis, from both neighbours; at the edges from one side."""
    (array,) = arrays(f)
    axes = tuple(range(array.ndim)) if axis is None else _in_given_order(axis, array.ndim)
    if array.dtype == np.bool_:
        raise TypeError("gradient: bool values cannot be subtracted.")
    value = array._value if is_inexact(array._value.spec.dtype) else cast(array._value, "float64")
    spacings = _spacings(varargs, axes, array)
    if edge_order not in (1, 2):
        raise ValueError(f"gradient: edge_order is 1 or 2, not {edge_order}.")
    slopes = []
    for position, spacing in zip(axes, spacings, strict=True):
        if array.shape[position] < edge_order + 1:
            raise ValueError(f"gradient: axis {position} needs at least {edge_order + 1} elements.")
        slopes.append(Array(cast(_slope(value, position, spacing, edge_order), value.spec.dtype)))
    return slopes[0] if len(slopes) == 1 else tuple(slopes)


def _in_given_order(axis: int | Sequence[int], dimensions: int) -> tuple[int, ...]:
    normal_axes(axis, dimensions)
    return tuple(normal_axis(each, dimensions) for each in (axis if isinstance(axis, tuple | list) else (axis,)))


def _spacings(varargs: tuple[Any, ...], axes: tuple[int, ...], array: Array) -> list[Operand]:
    """For each axis one distance, or as a vector the distances between neighbours."""
    if not varargs:
        return [1.0] * len(axes)
    if len(varargs) == 1 and ndim(varargs[0]) == 0:
        varargs = varargs * len(axes)
    if len(varargs) != len(axes):
        raise TypeError(f"gradient: {len(varargs)} spacings do not fit {len(axes)} axes.")
    result: list[Operand] = []
    for given, axis in zip(varargs, axes, strict=True):
        if type(given) in (int, float, TracedScalar):
            result.append(given)
            continue
        if not isinstance(given, Array) and ndim(given) == 1:
            steps = np.diff(np.asarray(given))
            if steps.size and (steps == steps[0]).all():  # NumPy uses the simpler formula too
                result.append(steps[0].item())
                continue
        value = to_array(given, array._device)._value
        if len(value.spec.shape) > 1 or (value.spec.shape and value.spec.shape[0] != array.shape[axis]):
            raise ValueError(f"gradient: spacings of shape {value.spec.shape} do not fit axis {axis} of {array.shape}.")
        if not is_inexact(value.spec.dtype):
            value = cast(value, "float64")
        result.append(_steps(value, 0) if value.spec.shape else value)
    return result


def _slope(f: Value, axis: int, spacing: Operand, edge_order: int) -> Value:
    """The derivative along an axis by central differences, and by one-sided ones at both ends.

    `spacing` is one distance or a vector of them; uneven distances weight the three neighbours so that the error stays
    of second order. With `edge_order` 2 the ends use three elements, with 1 two.
    """
    length = f.spec.shape[axis]

    def part(start: int, stop: int) -> Value:
        return slice_axis(f, axis, start, stop)

    def at(step: int) -> Operand:
        """The distance after element `step`."""
        if not _varies(spacing):
            return spacing
        step %= length - 1
        return reshape(slice_axis(spacing, 0, step, step + 1), (1,) * len(f.spec.shape))

    middle: list[Value] = []
    if length > 2:
        left, here, right = part(0, length - 2), part(1, length - 1), part(2, length)
        if _varies(spacing):
            shape = tuple(length - 2 if each == axis else 1 for each in range(len(f.spec.shape)))
            one = reshape(slice_axis(spacing, 0, 0, length - 2), shape)
            other = reshape(slice_axis(spacing, 0, 1, length - 1), shape)
            middle = [_weighted(_inner_weights(one, other), (left, here, right))]
        else:
            middle = [binary("divide", binary("subtract", right, left), binary_number("multiply", 2.0, spacing))]
    if edge_order == 1:
        first = binary("divide", binary("subtract", part(1, 2), part(0, 1)), at(0))
        last = binary("divide", binary("subtract", part(length - 1, length), part(length - 2, length - 1)), at(-1))
    else:
        begin = tuple(part(each, each + 1) for each in range(3))
        end = tuple(part(each, each + 1) for each in range(length - 3, length))
        first = _weighted(_first_weights(at(0), at(1)), begin)
        # Seen from the other end it is the same, with the sign turned.
        weights = _first_weights(at(-1), at(-2))
        last = _weighted(tuple(binary_number("multiply", -1.0, each) for each in weights[::-1]), end)
    return apply(Concatenate(axis), first, *middle, last)


def _varies(spacing: Operand) -> TypeGuard[Value]:
    return isinstance(spacing, Value) and spacing.spec.shape != ()


def binary_number(fn: Any, one: Operand, other: Operand) -> Operand:
    """`binary`, which leaves two Python numbers a Python number."""
    if isinstance(one, Value) or isinstance(other, Value):
        return binary(fn, one, other)
    match fn:
        case "add":
            return one + other
        case "subtract":
            return one - other
        case "multiply":
            return one * other
    return one / other


def _weighted(weights: Sequence[Operand], values: Sequence[Value]) -> Value:
    """The sum of values times their weights."""
    total = binary("multiply", weights[0], values[0])
    for weight, value in zip(weights[1:], values[1:], strict=True):
        total = binary("add", total, binary("multiply", weight, value))
    return total


def _inner_weights(one: Value, other: Value) -> tuple[Value, Value, Value]:
    """Weights of three points, `one` and then `other` apart, for the slope at the middle one."""
    both = binary("add", one, other)
    return (
        recording.unary("negative", binary("divide", other, binary("multiply", one, both))),
        binary("divide", binary("subtract", other, one), binary("multiply", one, other)),
        binary("divide", one, binary("multiply", other, both)),
    )


def _first_weights(one: Operand, other: Operand) -> tuple[Operand, Operand, Operand]:
    """Weights of three points, `one` and then `other` apart, for the slope at the first one."""
    both = binary_number("add", one, other)
    twice = binary_number("add", binary_number("multiply", 2.0, one), other)
    return (
        binary_number("multiply", -1.0, binary_number("divide", twice, binary_number("multiply", one, both))),
        binary_number("divide", both, binary_number("multiply", one, other)),
        binary_number("multiply", -1.0, binary_number("divide", one, binary_number("multiply", other, both))),
    )


# -- functions of numbers that NumPy has beside its ufuncs: equality of arrays, packed bits, angles, NaN


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


@implements(np.packbits)
def packbits(a: Any, /, axis: int | None = None, bitorder: Order = "big") -> Array:
    """Eight truth values in each byte; what is missing at the end is 0."""
    (array,) = arrays(a)
    if array.dtype.kind not in "biu":
        raise TypeError(f"packbits takes truth values or integers, not {array.dtype}.")
    value, position = line_or_axis(array, axis)
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
    value, position = line_or_axis(array, axis)
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
    if FIX_WARNS and (tracer := active_tracer.get()) is not None:
        tracer.stop("it calls np.fix, about which NumPy warns: use np.trunc")
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
        parts = [nan_to_num(part, True, nan, posinf, neginf)._value for part in (ew.real(y), ew.imag(y))]
        return Array(recording.binary("complex", *parts))
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
    """Whether an element is positive infinity. Raises `TypeError` for complex numbers."""
    y = as_array(x)
    _refuse_complex(y, "isposinf")
    return ew.logical_and(ew.isinf(y), y > 0)


@implements(np.isneginf)
def isneginf(x: Any, out: Array | None = None) -> Array:
    """Whether an element is negative infinity. Raises `TypeError` for complex numbers."""
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
