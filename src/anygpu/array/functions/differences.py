"""Differences along an axis, gradients, and integrals by the trapezoidal rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

import numpy as np

from anygpu.array.core import recording
from anygpu.array.core.arguments import arrays, ndim, same_dtype, slice_axis, to_array
from anygpu.array.core.array import Array
from anygpu.array.core.expression import Value
from anygpu.array.core.overrides import implements
from anygpu.array.core.recording import Operand, apply, binary, broadcast, cast, normal_axes, normal_axis, reshape
from anygpu.array.core.traced_scalar import TracedScalar
from anygpu.program.dtypes import is_inexact
from anygpu.program.primitives import Concatenate, Reduce


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
    if x is None or x is np._NoValue:
        return None
    value = to_array(x, array._device)._value
    if value.spec.shape == ():
        shape = list(array.shape)
        shape[axis] = 1
        value = broadcast(value, tuple(shape))
    return value


def _steps(value: Value, axis: int) -> Value:
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
