"""Elements picked by condition or by position, or changed in place; flat and multi-dimensional indices.

Functions that change an array in place come first; they record a new value and assign it. Then conditions, positions of
true elements, whose number is known only when it runs, and picking along axes.
"""

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
    counting,
    deliver,
    filled,
    known_positions,
    line_or_axis,
    ndim,
    on_device,
    to_array,
    view,
)
from anygpu.array.core.array import Array, device_of, is_numpys
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
    permute,
    reshape,
)
from anygpu.array.core.traced_scalar import TracedScalar
from anygpu.array.core.views import write
from anygpu.program.dtypes import is_integer
from anygpu.program.primitives import Concatenate, Gather, Iota, Reduce, Reshape, Scan, Scatter, Search, Update, product

# -- functions that change an array in place, and indices


def _target(array: Any, name: str) -> Array:
    """The array that is changed in place. Raises `TypeError` for anything but an `Array`."""
    if not isinstance(array, Array):
        raise TypeError(f"{name} changes an anygpu Array, not a {type(array).__name__}.")
    return array


@implements(np.copyto)
def copyto(dst: Any, src: Any, casting: Any = "same_kind", where: Any = True) -> None:
    """Put values into an array, everywhere or where a mask is true."""
    if is_numpys(dst):
        mask = np.asarray(where) if isinstance(where, Array) else where
        np.copyto(dst, np.asarray(src), casting=casting, where=mask)
        return
    target = _target(dst, "copyto")
    dtype = target._value.spec.dtype
    if type(src) is TracedScalar:
        if np.result_type(dtype, src.sample) != dtype and not np.can_cast(type(src.sample), dtype, casting):
            raise TypeError(f"Python's {src.__class__.__name__} cannot become {dtype} under casting={casting!r}.")
        source: Value = src.value(dtype)
    elif type(src) in (bool, int, float, complex):
        if np.result_type(dtype, src) != dtype and not np.can_cast(np.asarray(src).dtype, dtype, casting):
            raise TypeError(f"{src!r} cannot become {dtype} under casting={casting!r}.")
        source = to_array(np.full((), src, dtype), target._device)._value
    else:
        source = to_array(src, target._device)._value
        if not np.can_cast(source.spec.dtype, dtype, casting):
            raise TypeError(f"{source.spec.dtype} cannot become {dtype} under casting={casting!r}.")
    new = broadcast(cast(source, dtype), target.shape)
    if where is not True:
        mask = broadcast(to_array(where, target._device)._value, target.shape)
        new = recording.where(mask, new, target._value)
    write(target, new)


@implements(np.putmask)
def putmask(a: Any, mask: Any, values: Any) -> None:
    """Where the mask is true, the value of the same place in `values`, which is repeated when it is too short."""
    target = _target(a, "putmask")
    chosen = _mask(mask, target)
    source = _source(values, target, safely=True)
    if source is None:
        return
    places = binary("remainder", counting(target.size, "int64"), source.spec.size)
    new = reshape(apply(Gather(0), source, places), target.shape)
    write(target, recording.where(chosen, new, target._value))


@implements(np.place)
def place(arr: Any, mask: Any, vals: Any) -> None:
    """Where the mask is true, the next of the values, from the beginning again when they run out."""
    target = _target(arr, "place")
    chosen = _mask(mask, target)
    source = _source(vals, target, safely=True)
    if source is None:
        if bool(np.asarray(mask).any()):
            raise ValueError("place: vals is empty.")
        return
    flat = reshape(chosen, (target.size,))
    if target.size == 0:
        return
    # How many true places come before this one; before the first there is none, and there nothing is put in.
    order = binary("subtract", apply(Scan("sum", 0), cast(flat, "int64")), 1)
    places = binary("remainder", order, source.spec.size)
    new = reshape(apply(Gather(0), source, places), target.shape)
    write(target, recording.where(chosen, new, target._value))


def _mask(mask: Any, target: Array) -> Value:
    """The mask in the target's shape. Raises `ValueError` for another number of elements."""
    value = to_array(mask, target._device)._value
    if value.spec.size != target.size:
        raise ValueError(f"a mask of shape {value.spec.shape} does not fit an array of shape {target.shape}.")
    return reshape(cast(value, "bool"), target.shape)


def _source(values: Any, target: Array, *, safely: bool) -> Value | None:
    """The values that `place` or `putmask` takes from, flattened and in the target's type; `None` for none at all.

    With `safely`, a type that does not fit into the target's is a `TypeError`.
    """
    value = to_array(values, target._device)._value
    if safely and hasattr(values, "dtype") and not np.can_cast(values.dtype, target.dtype, "safe"):
        raise TypeError(f"{values.dtype} does not fit safely into {target.dtype}: convert it with astype first.")
    if value.spec.size == 0:
        return None
    return reshape(cast(value, target._value.spec.dtype), (value.spec.size,))


@implements(np.put)
def put(a: Any, ind: Any, v: Any, mode: str = "raise") -> None:
    """Put values at positions that count over all elements."""
    target = _target(a, "put")
    index = to_array(ind, target._device)._value
    if index.spec.size == 0:
        return
    if target.size == 0:
        raise IndexError("cannot replace elements of an empty array")
    source = _source(v, target, safely=False)
    if source is None:
        return
    count = index.spec.size
    positions = fold(reshape(index, (count,)), target.size, mode)
    updates = apply(Gather(0), source, binary("remainder", counting(count, "int64"), source.spec.size))
    flat = reshape(target._value, (target.size,))
    write(target, reshape(apply(Scatter("set", 0), flat, positions, updates), target.shape))


@implements(np.fill_diagonal)
def fill_diagonal(a: Any, val: Any, wrap: bool = False) -> None:
    """Put values on the main diagonal, again and again from the beginning; with `wrap` also below a square."""
    target = _target(a, "fill_diagonal")
    if target.ndim < 2:
        raise ValueError("a diagonal needs at least two axes.")
    if target.ndim > 2 and len(set(target.shape)) != 1:
        raise ValueError(f"a diagonal of more than two axes needs them of one length, not {target.shape}.")
    columns = target.shape[1]
    step = columns + 1 if target.ndim == 2 else sum(target.shape[0] ** power for power in range(target.ndim))
    stop = target.size if target.ndim > 2 or wrap else min(target.size, columns * columns)
    source = _source(val, target, safely=False)
    if source is None or stop == 0:
        return
    count = -(-stop // step)
    values = apply(Gather(0), source, binary("remainder", counting(count, "int64"), source.spec.size))
    flat = reshape(target._value, (target.size,))
    write(target, reshape(apply(Update((0,), (step,)), flat, values), target.shape))


@implements(np.put_along_axis)
def put_along_axis(arr: Any, indices: Any, values: Any, axis: int | None) -> None:
    """The inverse of `take_along_axis`: put values at positions that differ from line to line."""
    target = _target(arr, "put_along_axis")
    index = to_array(indices, target._device)._value
    source = cast(to_array(values, target._device)._value, target._value.spec.dtype)
    value, position = line_or_axis(target, axis)
    lines, picks, back = lines_along(value, index, position)
    updates = recording.permute(broadcast(source, _pick_shape(value, index, position)), _to_last(value, position))
    changed = apply(Scatter("set", len(lines.spec.shape) - 1, len(lines.spec.shape) - 1), lines, picks, updates)
    write(target, reshape(recording.permute(changed, back), target.shape))


def _pick_shape(value: Value, index: Value, axis: int) -> tuple[int, ...]:
    shape = value.spec.shape
    return (*shape[:axis], index.spec.shape[axis], *shape[axis + 1 :])


def _to_last(value: Value, axis: int) -> tuple[int, ...]:
    return (*(each for each in range(len(value.spec.shape)) if each != axis), axis)


def lines_along(value: Value, index: Value, axis: int) -> tuple[Value, Value, tuple[int, ...]]:
    """Values and positions with the axis last and the same other axes, and the order that undoes it."""
    if len(value.spec.shape) != len(index.spec.shape):
        raise ValueError(
            f"positions for an array of {len(value.spec.shape)} axes need as many, not {len(index.spec.shape)}."
        )
    if not is_integer(index.spec.dtype):
        raise IndexError(f"positions are integers, not {index.spec.dtype}.")
    order = _to_last(value, axis)
    lines, picks = recording.permute(value, order), recording.permute(index, order)
    stack = broadcast_shapes(lines.spec.shape[:-1], picks.spec.shape[:-1])
    length = lines.spec.shape[-1]
    lines = broadcast(lines, (*stack, length))
    picks = broadcast(fold(picks, length, "raise"), (*stack, picks.spec.shape[-1]))
    return lines, picks, tuple(order.index(each) for each in range(len(order)))


def fold(index: Value, length: int, mode: str) -> Value:
    """Positions as an engine takes them: negative ones count from the end, or as the mode says."""
    if not is_integer(index.spec.dtype):
        raise TypeError(f"positions are integers, not {index.spec.dtype}.")
    positions = cast(index, "int64")
    match mode:
        case "raise":
            return recording.where(binary("less", positions, 0), binary("add", positions, length), positions)
        case "wrap":
            return binary("remainder", positions, length)
        case "clip":
            return binary("minimum", binary("maximum", positions, 0), length - 1)
    raise ValueError(f'mode is "raise", "wrap" or "clip", not {mode!r}.')


@implements(np.ravel_multi_index)
def ravel_multi_index(multi_index: Any, dims: Sequence[int], mode: Any = "raise", order: str = "C") -> Array:
    """One position over all elements, from one for each axis."""
    place_ = device_of(*multi_index)
    parts = [to_array(each, place_)._value for each in multi_index]
    lengths = tuple(dims)
    if len(parts) != len(lengths):
        raise ValueError(f"{len(parts)} positions do not fit {len(lengths)} axes.")
    modes = mode if isinstance(mode, tuple | list) else (mode,) * len(lengths)
    shape = broadcast_shapes(*(part.spec.shape for part in parts))
    if order == "F":
        parts, lengths, modes = parts[::-1], lengths[::-1], tuple(modes)[::-1]
    total: Value = broadcast(recording.constant(0, "int64"), shape)
    for part, length, how in zip(parts, lengths, modes, strict=True):
        index = cast(part, "int64")
        # Here a negative position does not count from the end, as in NumPy.
        index = checked_index(index, length) if how == "raise" else fold(index, length, how)
        total = binary("add", binary("multiply", total, length), broadcast(index, shape))
    return Array(total)


@implements(np.unravel_index)
def unravel_index(indices: Any, shape: int | Sequence[int], order: str = "C") -> tuple[Array, ...]:
    """One position for each axis, from one over all elements."""
    index = to_array(indices, device_of(indices))._value
    if not is_integer(index.spec.dtype):
        raise TypeError(f"positions are integers, not {index.spec.dtype}.")
    lengths = recording.full_shape(shape)
    rest = checked_index(cast(index, "int64"), product(lengths))
    result: list[Array] = []
    for length in lengths if order == "F" else lengths[::-1]:
        result.append(Array(binary("remainder", rest, length)))
        rest = binary("floor_divide", rest, length)
    return tuple(result if order == "F" else result[::-1])


# -- elements picked


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
    """For each axis the positions of the elements that are true, in C order. Their number is known when it runs."""
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
    value, position = line_or_axis(to_array(a, device_of(a, indices)), axis)
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
            positions = known_positions(positions, length, axis)
        case _:
            raise ValueError(f'mode is "raise", "wrap" or "clip", not {mode!r}.')
    return on_device(positions, beside.device)


@implements(np.take_along_axis)
def take_along_axis(arr: Any, indices: Any, axis: int | None = -1) -> Array:
    """Elements at positions that differ from line to line, as `argsort` gives them."""
    array, index = arrays(arr, indices)
    if axis is None and index.ndim != 1:
        raise ValueError("without an axis, the positions are a vector.")
    value, position = line_or_axis(array, axis)
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
    """Rows and columns. Raises `ValueError` for anything but two axes."""
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
