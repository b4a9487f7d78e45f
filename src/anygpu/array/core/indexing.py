"""Indexing in all its forms. Slices, integers, `None` and `...` give views; arrays of positions or masks copies.

A key is parsed to `Basic`: a path of movement primitives, and positions for the axes that are picked from. Picks become
one gather or scatter over the picked axes, flattened.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from anygpu.array.core import recording
from anygpu.array.core.abstract_device import AbstractDevice
from anygpu.array.core.arguments import known_positions
from anygpu.array.core.array import Array, as_value
from anygpu.array.core.call_notes import note, without_axes
from anygpu.array.core.expression import Value, active_tracer
from anygpu.array.core.numpy_results import Returns
from anygpu.array.core.recording import apply, binary, broadcast, broadcast_shapes, cast, permute, reshape, where
from anygpu.array.core.views import attach, put, write
from anygpu.program.dtypes import DType
from anygpu.program.primitives import (
    Flip,
    Gather,
    Primitive,
    Reshape,
    Scatter,
    Shape,
    Slice,
    product,
)

Positions = Value | npt.NDArray[np.int64]


class Basic(NamedTuple):
    """The part of a key that is a view: the steps to it, and where arrays of positions then apply."""

    path: tuple[Primitive, ...]
    shape: Shape
    #: For each axis of `shape` that is picked from, the positions.
    picks: dict[int, Positions]
    #: Whether an ellipsis that stands for no axis lies between picks: then NumPy puts their axes first.
    apart: bool = False


def get(array: Array, key: Any) -> Array:
    """The part of an array that a key selects; a view where NumPy makes one. Raises `IndexError` as NumPy does.

    Masks are computed at once, because the shape of the result depends on their values. Positions that are arrays of
    ours are checked when the program runs.
    """
    if type(key) is slice and array._stored.spec.shape and (key.step is None or key.step > 0):
        leading = _leading(array._stored.spec.shape, key)  # the most common key of all
        return attach(Array(apply(leading, array._value)), array, (leading,))
    basic = _parse(array, key)
    value = array._value
    for op in basic.path:
        value = apply(op, value)
    if basic.picks:
        picked = Array(_pick(value, basic))
        tracer = active_tracer.get()
        if isinstance(tracer, AbstractDevice):
            note(tracer, _PICKED, operator.getitem, (array, _smaller_key(key)), {}, picked)
        return picked
    if not basic.shape and _is_element(key, array.ndim):
        return Array(value)
    if not basic.shape and array._is_number:
        return without_axes(Array(value))
    return attach(Array(value), array, basic.path)


#: What arrays of positions give is new, and how it lies in memory depends on where they stand.
_PICKED = Returns("new", "odd", "number")


def _smaller_key(key: Any) -> Any:
    """A key of the same kind for an array with few elements, to ask NumPy how the result lies in memory."""
    if isinstance(key, tuple):
        return tuple(map(_smaller_key, key))
    if isinstance(key, list):
        key = np.asarray(key)
    if type(key) is np.ndarray and key.dtype != np.bool_:
        return np.zeros([min(length, 2) for length in key.shape], np.int64)
    return slice(None) if isinstance(key, slice) else 0 if _is_integer(key) and type(key) is not bool else key


def _is_element(key: Any, dimensions: int) -> bool:
    """Whether NumPy gives a number of its own for the key, and no view: there is an integer for each axis."""
    items = _as_tuple(key)
    return len(items) == dimensions and not any(each is Ellipsis for each in items)


def _leading(shape: Shape, key: slice) -> Slice:
    """The slice of the first axis, and the whole of all others."""
    start, stop, step, _ = _normal_slice(key, shape[0])
    rest = len(shape) - 1
    return Slice((start, *(0,) * rest), (stop, *shape[1:]), (step, *(1,) * rest))


def put_at(array: Array, key: Any, new: Any) -> None:
    """Do `array[key] = new`, also when the array is a view or has some; `new` is cast to the array's dtype.

    Python numbers that do not fit raise `OverflowError`. The write is recorded, not done.
    """
    if not isinstance(new, Array) and isinstance(new, bool | int | float | complex):
        source = recording.constant(new, _checked_dtype(new, array))
    else:
        source = new._value if isinstance(new, Array) else as_value(np.asarray(new), array._device)
    source = cast(source, array._stored.spec.dtype)
    if isinstance(key, Array) and key.dtype == np.bool_ and key.shape == array.shape and source.spec.size == 1:
        # One value under a mask needs no positions, so nothing has to be computed for it.
        write(array, where(key._value, reshape(source, ()), array._value))
        return
    basic = _parse(array, key)
    tracer = active_tracer.get()
    is_element = not (basic.shape or basic.picks) and all(each is not Ellipsis for each in _as_tuple(key))
    if tracer is not None and is_element and source.spec.shape:
        tracer.stop("it assigns an array with axes to an element, which NumPy refuses since version 2.4")
    value = array._value
    for op in basic.path:
        value = apply(op, value)
    changed = _scatter(value, basic, source) if basic.picks else broadcast(_squeezed(source, basic.shape), basic.shape)
    write(array, put(array._value, basic.path, changed))


def _checked_dtype(new: Any, array: Array) -> DType:
    """The dtype in which new elements are written; raises `OverflowError` for integers that do not fit."""
    dtype = array._stored.spec.dtype
    if isinstance(new, int) and not isinstance(new, bool):
        recording._check_range(new, dtype)
    return "complex128" if isinstance(new, complex) else dtype


def _squeezed(value: Value, shape: Shape) -> Value:
    """The value without leading axes of length 1 beyond those of `shape`, as NumPy lets them go in an assignment."""
    while len(value.spec.shape) > len(shape) and value.spec.shape[0] == 1:
        value = reshape(value, value.spec.shape[1:])
    return value


def _parse(array: Array, key: Any) -> Basic:
    """The key as a path of slices, flips and a reshape, and positions along the axes that are picked from.

    Beside arrays of positions a single integer counts as one of them, which decides where NumPy puts the picked axes.
    """
    items = _expanded(_as_tuple(key), array.ndim)
    starts, stops, steps = [], [], []
    flips: list[int] = []
    shape: list[int] = []
    picks: dict[int, Positions] = {}
    axis = 0
    # Beside arrays of positions a single integer counts as one of them: that decides where their axes go.
    picking = any(
        not (item is None or item is Ellipsis or isinstance(item, slice) or _is_integer(item)) for item in items
    )
    before_dots: int | None = None
    for item in items:
        if item is Ellipsis:
            before_dots = len(picks)
            continue
        if item is None:
            shape.append(1)
            continue
        if not isinstance(item, Array) and isinstance(item, np.bool_ | bool):
            picks[len(shape)] = np.zeros(int(item), np.int64)
            shape.append(1)
            continue
        length = array.shape[axis]
        if isinstance(item, slice):
            start, stop, step, backwards = _normal_slice(item, length)
            if backwards:
                flips.append(axis)
            shape.append(-(-(stop - start) // step))
        elif _is_integer(item) and not picking:
            start = _checked(int(item), axis, length)
            stop, step = start + 1, 1
        else:
            start, stop, step = 0, length, 1
            picks[len(shape)] = _positions(item, axis, length)
            shape.append(length)
        starts.append(start)
        stops.append(stop)
        steps.append(step)
        axis += 1
    path: list[Primitive] = []
    if tuple(stops) != array.shape or any(starts) or any(step != 1 for step in steps):
        path.append(Slice(tuple(starts), tuple(stops), tuple(steps)))
    if flips:
        path.append(Flip(tuple(flips)))
    sliced = tuple(-(-(b - a) // c) for a, b, c in zip(starts, stops, steps, strict=True))
    if sliced != tuple(shape) or not path:
        path.append(Reshape(tuple(shape)))
    apart = before_dots is not None and 0 < before_dots < len(picks)
    return Basic(tuple(path), tuple(shape), picks, apart)


def _as_tuple(key: Any) -> tuple[Any, ...]:
    """The key as a tuple."""
    return key if isinstance(key, tuple) else (key,)


def _expanded(key: tuple[Any, ...], dimensions: int) -> list[Any]:
    """The items of a key, one for each axis: masks as positions, lists as arrays, `...` as the `:` that are missing.

    Raises `IndexError` for too many items, or a second `...`.
    """
    items: list[Any] = []
    for item in key:
        if isinstance(item, list | tuple):
            item = np.asarray(item) if len(item) else np.zeros(0, np.int64)
        if isinstance(item, Array | np.ndarray) and item.dtype == np.bool_ and item.ndim:
            items.extend(_of_mask(item))
        elif isinstance(item, Array | np.ndarray) and item.dtype == np.bool_:
            items.append(bool(item))
        else:
            items.append(item)
    used = sum(not (item is None or item is Ellipsis or type(item) in (bool, np.bool_)) for item in items)
    if used > dimensions:
        raise IndexError(f"too many indices: the array has {dimensions} axes, and {used} are indexed.")
    rest: list[Any] = [slice(None)] * (dimensions - used)
    dots = [position for position, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index has at most one ellipsis (...).")
    position = dots[0] if dots else len(items)
    # One that stands for no axis stays: it still separates what is on both sides of it.
    return items[:position] + (rest or [Ellipsis] * len(dots)) + items[position + 1 :]


class _Mask(NamedTuple):
    """The positions of one axis of a mask, and how long the mask was there."""

    positions: npt.NDArray[np.int64]
    length: int


def _of_mask(mask: Array | npt.NDArray[np.bool_]) -> list[_Mask]:
    """The positions at which a mask is true, for each of its axes. The mask is computed, as their number decides the
    shape.
    """
    values = np.asarray(mask)
    return [_Mask(where_true, n) for where_true, n in zip(values.nonzero(), values.shape, strict=True)]


def _normal_slice(item: slice, length: int) -> tuple[int, int, int, bool]:
    """The start, stop and positive step of a slice, and whether it is reversed."""
    start, stop, step = item.indices(length)
    count = len(range(start, stop, step))
    if count == 0:
        return 0, 0, 1, False
    last = start + (count - 1) * step
    if count == 1:
        return start, start + 1, 1, False
    return (start, last + 1, step, False) if step > 0 else (last, start + 1, -step, True)


def _is_integer(item: Any) -> bool:
    """Whether an item of a key is one integer."""
    if isinstance(item, Array | _Mask):
        return False
    if isinstance(item, np.ndarray) and (item.ndim or item.dtype.kind not in "iu"):
        return False
    return hasattr(item, "__index__")


def _checked(position: int, axis: int, length: int) -> int:
    """The position counted from the start; raises `IndexError` if it is out of bounds."""
    if not -length <= position < length:
        raise IndexError(f"index {position} is out of bounds for axis {axis} with size {length}.")
    return position % length


def _positions(item: Any, axis: int, length: int) -> Positions:
    """The positions that an array or a mask selects along an axis, counted from the start.

    Those that are known are checked, with NumPy's `IndexError`; those of an array of ours only when the program runs.
    """
    if isinstance(item, _Mask):
        if item.length != length:
            raise IndexError(f"a mask of length {item.length} does not fit axis {axis} of length {length}.")
        return item.positions
    if isinstance(item, Array) and item.dtype.kind in "iu":
        index = cast(item._value, "int64")
        return where(binary("less", index, 0), binary("add", index, length), index)
    values = np.asarray(item)
    if values.dtype.kind not in "iu":
        raise IndexError(f"an index is an integer, a slice, None, ... or an array of integers or bools, not {item!r}.")
    return known_positions(values.astype(np.int64), length, axis)


def _linear(value: Value, basic: Basic) -> tuple[Value, Shape, tuple[int, ...]]:
    """The position of each picked element, counted over the picked axes together; the shape of the picks; the picked
    axes.

    Positions outside of their own axis become -1, which is outside everywhere, so that the gather raises.
    """
    axes = tuple(basic.picks)
    lengths = tuple(basic.shape[axis] for axis in axes)
    known = all(isinstance(each, np.ndarray) for each in basic.picks.values())
    try:
        shape = broadcast_shapes(*(_shape_of(each) for each in basic.picks.values()))
    except ValueError as error:
        raise IndexError(f"the arrays of positions do not fit together: {error}") from None
    if known:
        indices = [np.broadcast_to(np.asarray(each), shape) for each in basic.picks.values()]
        position = np.ravel_multi_index(tuple(indices), lengths) if product(shape) else np.zeros(shape, np.int64)
        return _on_device_of(np.asarray(position, np.int64), value), shape, axes
    total: Value | None = None
    inside: Value | None = None
    for length, each in zip(lengths, basic.picks.values(), strict=True):
        index = broadcast(each if isinstance(each, Value) else _on_device_of(each, value), shape)
        fits = binary("bitwise_and", binary("greater_equal", index, 0), binary("less", index, length))
        total = index if total is None else binary("add", binary("multiply", total, length), index)
        inside = fits if inside is None else binary("bitwise_and", inside, fits)
    assert total is not None
    assert inside is not None
    # A position outside its own axis could still be inside all axes together; -1 is outside everywhere.
    return (total if len(axes) == 1 else where(inside, total, -1)), shape, axes


def _on_device_of(positions: npt.NDArray[np.int64], beside: Value) -> Value:
    """Positions as a constant, or on the device of a value if they are many."""
    if positions.nbytes <= recording.MAX_CONSTANT_BYTES or beside.device is None:
        return recording.literal(positions)
    return as_value(positions, beside.device)


def _shape_of(positions: Positions) -> Shape:
    """The shape of positions."""
    return positions.spec.shape if isinstance(positions, Value) else positions.shape


def _orders(basic: Basic, axes: tuple[int, ...], picked: Shape) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The order that brings the picked axes to the front, and the one that brings the result to where NumPy has it."""
    others = tuple(axis for axis in range(len(basic.shape)) if axis not in axes)
    count = len(picked)
    together = not basic.apart and axes == tuple(range(axes[0], axes[0] + len(axes)))
    before = sum(axis < axes[0] for axis in others) if together else 0
    result = (
        *range(count, count + before),
        *range(count),
        *range(count + before, count + len(others)),
    )
    return axes + others, result


def _pick(value: Value, basic: Basic) -> Value:
    """The elements at some positions."""
    position, shape, axes = _linear(value, basic)
    front, back = _orders(basic, axes, shape)
    moved = permute(value, front)
    rest = moved.spec.shape[len(axes) :]
    flat = reshape(moved, (product(moved.spec.shape[: len(axes)]), *rest))
    return permute(apply(Gather(0), flat, position), back)


def _scatter(value: Value, basic: Basic, source: Value) -> Value:
    """A value with other elements at some positions."""
    position, shape, axes = _linear(value, basic)
    front, back = _orders(basic, axes, shape)
    moved = permute(value, front)
    rest = moved.spec.shape[len(axes) :]
    flat = reshape(moved, (product(moved.spec.shape[: len(axes)]), *rest))
    result_shape = tuple((*shape, *rest)[axis] for axis in back)
    updates = broadcast(_squeezed(source, result_shape), result_shape)
    updates = permute(updates, tuple(back.index(axis) for axis in range(len(back))))
    changed = reshape(apply(Scatter("set", 0), flat, position, updates), moved.spec.shape)
    return permute(changed, tuple(front.index(axis) for axis in range(len(front))))
