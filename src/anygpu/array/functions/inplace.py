"""Functions that change an array in place, and flat and multi-dimensional indices into one another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anygpu.array.core import recording
from anygpu.array.core.arguments import checked_index, counting, to_array
from anygpu.array.core.array import Array, device_of, is_numpys
from anygpu.array.core.expression import Value
from anygpu.array.core.overrides import implements
from anygpu.array.core.recording import apply, binary, broadcast, broadcast_shapes, cast, normal_axis, reshape, where
from anygpu.array.core.traced_scalar import TracedScalar
from anygpu.array.core.views import write
from anygpu.program.dtypes import is_integer
from anygpu.program.primitives import Gather, Scan, Scatter, Update, product


def _target(array: Any, name: str) -> Array:
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
    write(target, where(chosen, new, target._value))


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
    write(target, where(chosen, new, target._value))


def _mask(mask: Any, target: Array) -> Value:
    value = to_array(mask, target._device)._value
    if value.spec.size != target.size:
        raise ValueError(f"a mask of shape {value.spec.shape} does not fit an array of shape {target.shape}.")
    return reshape(cast(value, "bool"), target.shape)


def _source(values: Any, target: Array, *, safely: bool) -> Value | None:
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
    value = target._value
    if axis is None:
        value, position = reshape(value, (target.size,)), 0
    else:
        position = normal_axis(axis, target.ndim)
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
            return where(binary("less", positions, 0), binary("add", positions, length), positions)
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
