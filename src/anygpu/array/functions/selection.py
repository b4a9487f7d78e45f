"""Elements picked by condition or by position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anygpu.array.core import recording
from anygpu.array.core.arguments import (
    arrays,
    bound_to,
    checked_index,
    common_dtype,
    deliver,
    filled,
    on_device,
    to_array,
    view,
)
from anygpu.array.core.array import Array, device_of
from anygpu.array.core.expression import Value
from anygpu.array.core.overrides import implements
from anygpu.array.core.recording import (
    Operand,
    apply,
    binary,
    broadcast,
    broadcast_shapes,
    cast,
    compare,
    dtype_name,
    normal_axis,
    permute,
    reshape,
)
from anygpu.array.core.traced_scalar import TracedScalar
from anygpu.array.functions.inplace import fold, lines_along
from anygpu.array.functions.metadata import ndim
from anygpu.program.primitives import Concatenate, Gather, Iota, Reduce, Reshape, Scan, Search


@implements(np.where)
def where(condition: Any, x: Any = None, y: Any = None, /) -> Any:
    """`x` where the condition holds and `y` elsewhere; with the condition alone, the positions where it holds."""
    if x is None and y is None:
        return nonzero(condition)
    if x is None or y is None:
        raise ValueError("where takes both x and y, or neither.")
    device = device_of(condition, x, y)
    mask = cast(to_array(condition, device)._value, "bool")
    return Array(bound_to(recording.where(mask, _operand(x, device), _operand(y, device)), device))


def _operand(x: Any, device: Any) -> Operand:
    """Python numbers adapt to the arrays beside them; everything else has a dtype of its own."""
    return x if type(x) in (bool, int, float, complex, TracedScalar) else to_array(x, device)._value


# Where a condition holds. How many places these are depends on the values, so that number is computed.


def true_positions(mask: Value) -> Value:
    """The positions at which a vector of truth values is true, in order."""
    (length,) = mask.spec.shape
    if length == 0:
        return filled((0,), 0, "int64")
    # Held as an array while the number is computed, the running total is kept, and not computed again afterwards.
    held = Array(apply(Scan("sum", 0), cast(mask, "int64")))
    running = held._value
    count = int(Array(apply(Reduce("max", (0,)), running)))
    # The n-th true place is the first with n true places up to it.
    return apply(Search("left"), running, binary("add", apply(Iota(count, "int64")), 1))


@implements(np.nonzero)
def nonzero(a: Any) -> tuple[Array, ...]:
    """The positions of what is not 0, one vector for each axis."""
    (array,) = arrays(a)
    if array.ndim == 0:
        raise ValueError("an array without axes has no positions; use atleast_1d(x) first.")
    return tuple(Array(bound_to(each, array._device)) for each in _positions(array))


def _positions(array: Array) -> list[Value]:
    rest = true_positions(reshape(cast(array._value, "bool"), (array.size,)))
    found: list[Value] = []
    for length in array.shape[:0:-1]:
        found.append(binary("remainder", rest, max(length, 1)))
        rest = binary("floor_divide", rest, max(length, 1))
    return [rest, *found[::-1]]


@implements(np.flatnonzero)
def flatnonzero(a: Any) -> Array:
    """The positions of what is not 0, counted over all elements."""
    (array,) = arrays(a)
    return Array(bound_to(true_positions(reshape(cast(array._value, "bool"), (array.size,))), array._device))


@implements(np.argwhere)
def argwhere(a: Any) -> Array:
    """The positions of what is not 0, one row for each."""
    (array,) = arrays(a)
    if array.ndim == 0:
        count = int(bool(array))
        return Array(bound_to(filled((count, 0), 0, "int64"), array._device))
    columns = [reshape(each, (*each.spec.shape, 1)) for each in _positions(array)]
    return Array(bound_to(apply(Concatenate(1), *columns), array._device))


@implements(np.compress)
def compress(condition: Any, a: Any, axis: int | None = None, out: Any = None) -> Any:
    """The parts along an axis for which the condition, a vector, holds."""
    mask, array = arrays(condition, a)
    if mask.ndim != 1:
        raise ValueError(f"the condition is a vector, not {mask.ndim} axes.")
    return take(array, Array(true_positions(cast(mask._value, "bool"))), axis, out)


@implements(np.extract)
def extract(condition: Any, arr: Any) -> Array:
    """The elements for which the condition holds, in one row."""
    mask, array = arrays(condition, arr)
    chosen = true_positions(reshape(cast(mask._value, "bool"), (mask.size,)))
    return take(array, Array(chosen))  # type: ignore[no-any-return]


# By position


@implements(np.take)
def take(a: Any, indices: Any, axis: int | None = None, out: Any = None, mode: str = "raise") -> Any:
    """Elements at positions along an axis, or counted over all elements."""
    array = to_array(a, device_of(a, indices))
    value = array._value
    if axis is None:
        value, position = reshape(value, (array.size,)), 0
    else:
        position = normal_axis(axis, array.ndim)
    length = value.spec.shape[position]
    if isinstance(indices, Array):
        picks = fold(indices._value, length, mode)
    else:
        picks = _known(np.asarray(indices), length, mode, position, value)
    if length == 0 and picks.spec.size:
        raise IndexError("cannot take elements from an axis of length 0.")
    return deliver(Array(apply(Gather(position), value, picks)), out)


def _known(positions: np.ndarray[Any, Any], length: int, mode: str, axis: int, beside: Value) -> Value:
    """Positions that are known here are checked here."""
    if positions.size == 0 and positions.dtype == np.float64:
        positions = positions.astype(np.int64)
    if positions.dtype.kind not in "iub":
        raise TypeError(f"positions are integers, not {positions.dtype}.")
    positions = positions.astype(np.int64)
    match mode:
        case "wrap":
            positions = positions % max(length, 1)
        case "clip":
            positions = positions.clip(0, max(length - 1, 0))
        case "raise":
            if positions.size and not (positions.min() >= -length and positions.max() < length):
                worst = positions.max() if positions.max() >= length else positions.min()
                raise IndexError(f"index {worst} is out of bounds for axis {axis} with size {length}.")
            positions = np.where(positions < 0, positions + length, positions)
        case _:
            raise ValueError(f'mode is "raise", "wrap" or "clip", not {mode!r}.')
    return on_device(positions, beside.device)


@implements(np.take_along_axis)
def take_along_axis(arr: Any, indices: Any, axis: int | None = -1) -> Array:
    """Elements at positions that differ from line to line, as `argsort` gives them."""
    array, index = arrays(arr, indices)
    value = array._value
    if axis is None:
        if index.ndim != 1:
            raise ValueError("without an axis, the positions are a vector.")
        value, position = reshape(value, (array.size,)), 0
    else:
        position = normal_axis(axis, array.ndim)
    lines, picks, back = lines_along(value, index._value, position)
    last = len(lines.spec.shape) - 1
    return Array(permute(apply(Gather(last, last), lines, picks), back))


@implements(np.choose)
def choose(a: Any, choices: Any, out: Any = None, mode: str = "raise") -> Any:
    """Elements of several arrays: `a` says from which array each is taken."""
    device = device_of(a, *choices)
    index = to_array(a, device)._value
    options = [to_array(each, device)._value for each in choices]
    if not options:
        raise ValueError("there is nothing to choose from.")
    count = len(options)
    positions = checked_index(cast(index, "int64"), count) if mode == "raise" else fold(index, count, mode)
    shape = broadcast_shapes(positions.spec.shape, *(each.spec.shape for each in options))
    kind = common_dtype(*(each.spec.dtype for each in options))
    result = broadcast(cast(options[0], kind), shape)
    for number, option in enumerate(options[1:], 1):
        result = recording.where(compare("equal", positions, number), cast(option, kind), result)
    if count == 1:  # the check of the positions must not get lost
        result = recording.where(compare("equal", positions, 0), result, result)
    return deliver(Array(bound_to(broadcast(result, shape), device)), out)


@implements(np.select)
def select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Array:
    """For each element, the choice that belongs to the first true condition."""
    if len(condlist) != len(choicelist):
        raise ValueError(f"{len(condlist)} conditions do not fit {len(choicelist)} choices.")
    if not len(condlist):
        raise ValueError("select needs at least one condition.")
    device = device_of(*condlist, *choicelist, default)
    choices = [_operand(each, device) for each in (*choicelist, default)]
    kinds = (to_array(each, device).dtype if type(each) is bool else each for each in choices)
    kind = dtype_name(np.result_type(*(each.spec.dtype if isinstance(each, Value) else each for each in kinds)))
    values = [cast(each, kind) if isinstance(each, Value) else recording.constant(each, kind) for each in choices]
    result = values[-1]
    for condition, value in zip(reversed(condlist), reversed(values[:-1]), strict=True):
        mask = to_array(condition, device)._value
        if mask.spec.dtype != "bool":
            raise TypeError(f"select: a condition is an array of bool, not of {mask.spec.dtype}.")
        result = recording.where(mask, value, result)
    return Array(bound_to(result, device))


@implements(np.piecewise)
def piecewise(x: Any, condlist: Any, funclist: Sequence[Any], *args: Any, **kw: Any) -> Array:
    """Another function, or number, where each condition holds. Each is called with just those elements."""
    (array,) = arrays(x)
    if np.isscalar(condlist) or (array.ndim and not isinstance(condlist[0], list) and ndim(condlist[0]) == 0):
        condlist = [condlist]
    conditions = [Array(cast(to_array(each, array._device)._value, "bool")) for each in condlist]
    if len(conditions) == len(funclist) - 1:
        others = conditions[0]
        for condition in conditions[1:]:
            others = others | condition
        conditions.append(~others)
    elif len(conditions) != len(funclist):
        raise ValueError(f"with {len(conditions)} conditions, {len(conditions)} or one more functions are needed.")
    result = Array(bound_to(filled(array.shape, 0, array._value.spec.dtype), array._device))
    for condition, function in zip(conditions, funclist, strict=True):
        if not callable(function):
            result[condition] = function
            continue
        chosen = array[condition]
        if chosen.size:
            result[condition] = function(chosen, *args, **kw)
    return result


@implements(np.ix_)
def ix_(*args: Any) -> tuple[Array, ...]:
    """Vectors of positions, or masks, shaped so that indexing with all of them picks a grid."""
    vectors = arrays(*args)
    result = []
    for number, vector in enumerate(vectors):
        if vector.ndim != 1:
            raise ValueError(f"ix_ takes vectors, not {vector.ndim} axes.")
        if vector.dtype == np.bool_:
            vector = Array(bound_to(true_positions(vector._value), vector._device))
        elif vector.size == 0 and not isinstance(args[number], np.ndarray | Array):
            vector = Array(bound_to(cast(vector._value, "int64"), vector._device))
        result.append(
            view(vector, Reshape(tuple(vector.size if axis == number else 1 for axis in range(len(vectors)))))
        )
    return tuple(result)


@implements(np.tril_indices_from)
def tril_indices_from(arr: Any, k: int = 0) -> tuple[Array, Array]:
    """The positions on and below a diagonal of a matrix."""
    (array,) = arrays(arr)
    rows, columns = _matrix_shape(array)
    one, other = (to_array(each, array._device) for each in np.tril_indices(rows, k, columns))
    return one, other


@implements(np.triu_indices_from)
def triu_indices_from(arr: Any, k: int = 0) -> tuple[Array, Array]:
    """The positions on and above a diagonal of a matrix."""
    (array,) = arrays(arr)
    rows, columns = _matrix_shape(array)
    one, other = (to_array(each, array._device) for each in np.triu_indices(rows, k, columns))
    return one, other


def _matrix_shape(array: Array) -> tuple[int, int]:
    if array.ndim != 2:
        raise ValueError(f"a matrix has two axes, not {array.ndim}.")
    return array.shape[0], array.shape[1]


@implements(np.diag_indices_from)
def diag_indices_from(arr: Any) -> tuple[Array, ...]:
    """The positions on the main diagonal of an array whose axes are of equal length."""
    (array,) = arrays(arr)
    if array.ndim < 2 or len(set(array.shape)) != 1:
        raise ValueError(f"a main diagonal needs at least two axes, all of one length; the shape is {array.shape}.")
    places = bound_to(apply(Iota(array.shape[0], "int64")), array._device)
    return tuple(Array(places) for _ in range(array.ndim))
