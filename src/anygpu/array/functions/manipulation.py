"""Shapes and axes of one array. A view in NumPy is a view here, and a read-only one refuses writes.

Reshaping and reordering give views that share memory where NumPy's do. Splitting, rolling, repeating and tiling follow;
these copy, as in NumPy.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from anygpu.array.core import recording
from anygpu.array.core.arguments import arrays, diagonal_path, ndim, on_device, slice_axis, view
from anygpu.array.core.array import Array
from anygpu.array.core.call_notes import without_axes
from anygpu.array.core.expression import Value
from anygpu.array.core.overrides import implements
from anygpu.array.core.recording import apply, full_shape, infer_length, normal_axes, normal_axis
from anygpu.array.core.views import REPEATS, layout_of
from anygpu.program.primitives import (
    Broadcast,
    Concatenate,
    Flip,
    Gather,
    Permute,
    Primitive,
    Reshape,
    Shape,
    Windows,
    product,
)

_BESIDE = "NumPy warns that it may show an element more than once. Write y = x.copy() and change that."
_DIAGONAL = "NumPy's diagonals are read-only. Write x[np.arange(n), np.arange(n)] = values."


# Shapes


@implements(np.reshape)
def reshape(a: Any, shape: Any, order: str = "C", *, copy: bool | None = None) -> Array:
    """The same elements in another shape; one length may be -1 and is then whatever is left."""
    (array,) = arrays(a)
    wanted = _wanted_shape(shape, array)
    if _order(order) == "F":
        turned = reshape(transpose(array), wanted[::-1], copy=copy)
        return turned if len(wanted) == 1 else transpose(turned)
    if copy:
        return Array(apply(Reshape(wanted), array._value))
    result = view(array, Reshape(wanted))
    if copy is False and (result._view is None or (_is_doubtful(result) and not _is_doubtful(array))):
        raise ValueError("this reshape may need a copy: omit copy=False.")
    return result


def _is_doubtful(array: Array) -> bool:
    """Whether it is not known if NumPy would have made a view."""
    return array._view is not None and array._view.refusal is not None


def _order(order: str) -> str:
    """The order in memory, if it can be asked for."""
    if order not in ("C", "F"):
        raise NotImplementedError(f'the order in memory is the device\'s own: use order="C" or "F", not {order!r}.')
    return order


def _wanted_shape(shape: Any, array: Array) -> Shape:
    """The shape that is asked for, with -1 replaced."""
    lengths = tuple(operator.index(each) for each in shape) if np.iterable(shape) else (operator.index(shape),)
    if any(length < -1 for length in lengths):
        raise ValueError(f"lengths are 0 or more, or -1 for the rest; got {lengths}.")
    wanted = infer_length(lengths, array.size)
    if product(wanted) != array.size:
        raise ValueError(f"cannot reshape an array of {array.size} elements into the shape {lengths}.")
    return wanted


@implements(np.ravel)
def ravel(a: Any, order: str = "C") -> Array:
    """All elements in one row: a view of what lies in memory in that order without gaps, otherwise a copy."""
    (array,) = arrays(a)
    layout = layout_of(array)
    row = (array.size,)
    if layout is None:
        return reshape(array, row, order)
    is_dense = layout.flags.c_contiguous if _order(order) == "C" else layout.flags.f_contiguous
    return reshape(array, row, order, copy=None if is_dense else True)


@implements(np.expand_dims)
def expand_dims(a: Any, axis: int | Sequence[int] = 0) -> Array:
    """New axes of length 1, at these positions of the result."""
    (array,) = arrays(a)
    count = array.ndim + (len(axis) if isinstance(axis, tuple | list) else 1)
    new = normal_axes(axis, count)
    rest = iter(array.shape)
    return view(array, Reshape(tuple(1 if each in new else next(rest) for each in range(count))))


@implements(np.squeeze)
def squeeze(a: Any, axis: int | Sequence[int] | None = None) -> Array:
    """Without axes of length 1: all of them, or those that are named."""
    (array,) = arrays(a)
    if axis is None or (array.ndim == 0 and axis in (0, -1)):  # NumPy lets the axis pass that is not there
        gone = tuple(each for each, length in enumerate(array.shape) if length == 1)
    else:
        gone = normal_axes(axis, array.ndim)
    if any(array.shape[each] != 1 for each in gone):
        raise ValueError(f"cannot drop an axis that is not of length 1: the shape is {array.shape}, the axes {gone}.")
    if not gone:
        return array
    return view(array, Reshape(tuple(length for each, length in enumerate(array.shape) if each not in gone)))


@implements(np.atleast_1d)
def atleast_1d(*arys: Any) -> Any:
    return _each(arys, lambda array: array if array.ndim else view(array, Reshape((1,))))


@implements(np.atleast_2d)
def atleast_2d(*arys: Any) -> Any:
    return _each(arys, lambda array: array if array.ndim > 1 else view(array, Reshape((1, array.size))))


@implements(np.atleast_3d)
def atleast_3d(*arys: Any) -> Any:
    """NumPy's rule: a vector becomes (1, n, 1), a matrix (n, m, 1)."""

    def grown(array: Array) -> Array:
        if array.ndim > 2:
            return array
        shape = (*array.shape, 1) if array.ndim == 2 else (1, array.size, 1)
        return view(array, Reshape(shape))

    return _each(arys, grown)


def _each(arys: tuple[Any, ...], grow: Any) -> Any:
    """One array that has grown, or a tuple of several."""
    grown = tuple(grow(array) for array in arrays(*arys))
    return grown[0] if len(grown) == 1 else grown


@implements(np.broadcast_shapes)
def broadcast_shapes(*shapes: int | Sequence[int]) -> Shape:
    """The shape that arrays of these shapes have together."""
    return recording.broadcast_shapes(*(full_shape(shape) for shape in shapes))


@implements(np.broadcast_to)
def broadcast_to(array: Any, shape: int | Sequence[int], subok: bool = False) -> Array:
    """Repeated to a shape, without taking memory for it; the result is read-only, as in NumPy."""
    (source,) = arrays(array)
    return _broadcast(without_axes(source) if source._is_number else source, full_shape(shape), REPEATS)


def _broadcast(source: Array, wanted: Shape, refusal: str) -> Array:
    """A view of an array in another shape; raises with `refusal` if it does not fit."""
    fits = len(source.shape) <= len(wanted) and all(
        own in (1, length) for own, length in zip(source.shape[::-1], wanted[::-1], strict=False)
    )
    if not fits:
        raise ValueError(f"an array of shape {source.shape} cannot be broadcast to {wanted}.")
    return view(source, Broadcast(wanted), refusal=refusal)


@implements(np.broadcast_arrays)
def broadcast_arrays(*args: Any, subok: bool = False) -> tuple[Array, ...]:
    """All in the one shape that they have together."""
    given = arrays(*args)
    shape = recording.broadcast_shapes(*(array.shape for array in given))
    if all(array.shape == shape for array in given):
        return tuple(given)
    return tuple(array if array.shape == shape else _broadcast(array, shape, _BESIDE) for array in given)


# Axes


@implements(np.transpose)
def transpose(a: Any, axes: Sequence[int] | None = None) -> Array:
    """The axes in another order; reversed when none is given."""
    (array,) = arrays(a)
    if axes is None:
        return view(array, Permute(tuple(range(array.ndim))[::-1]))
    if len(axes) != array.ndim:
        raise ValueError(f"an order of {array.ndim} axes is needed, not {tuple(axes)}.")
    order = tuple(normal_axis(axis, array.ndim) for axis in axes)
    if len(set(order)) != len(order):
        raise ValueError(f"an axis is named twice in {tuple(axes)}.")
    return view(array, Permute(order))


permute_dims = transpose


@implements(np.matrix_transpose)
def matrix_transpose(x: Any, /) -> Array:
    """With the last two axes exchanged."""
    (array,) = arrays(x)
    if array.ndim < 2:
        raise ValueError(f"a matrix has at least two axes; the shape is {array.shape}.")
    return swapaxes(array, -1, -2)


@implements(np.swapaxes)
def swapaxes(a: Any, axis1: int, axis2: int) -> Array:
    """A view with two axes exchanged."""
    (array,) = arrays(a)
    one, other = normal_axis(axis1, array.ndim), normal_axis(axis2, array.ndim)
    order = list(range(array.ndim))
    order[one], order[other] = order[other], order[one]
    return view(array, Permute(tuple(order)))


@implements(np.moveaxis)
def moveaxis(a: Any, source: int | Sequence[int], destination: int | Sequence[int]) -> Array:
    """Some axes at other positions; the others keep their order."""
    (array,) = arrays(a)
    sources, targets = (
        [normal_axis(axis, array.ndim) for axis in (axes if isinstance(axes, tuple | list) else (axes,))]
        for axes in (source, destination)
    )
    if len(sources) != len(targets):
        raise ValueError(f"moveaxis: {len(sources)} axes cannot go to {len(targets)} positions.")
    if len(set(sources)) != len(sources) or len(set(targets)) != len(targets):
        raise ValueError(f"moveaxis: an axis is named twice in {source} or {destination}.")
    order = [axis for axis in range(array.ndim) if axis not in sources]
    for target, axis in sorted(zip(targets, sources, strict=True)):
        order.insert(target, axis)
    return view(array, Permute(tuple(order)))


@implements(np.rollaxis)
def rollaxis(a: Any, axis: int, start: int = 0) -> Array:
    """The axis before position `start`. `moveaxis` says the same more clearly."""
    (array,) = arrays(a)
    position = normal_axis(axis, array.ndim)
    target = operator.index(start)
    if target < 0:
        target += array.ndim
    if not 0 <= target <= array.ndim:
        raise np.exceptions.AxisError(f"start={start} is outside -{array.ndim} … {array.ndim}.")
    order = [each for each in range(array.ndim) if each != position]
    order.insert(target - (position < target), position)
    return view(array, Permute(tuple(order)))


@implements(np.flip)
def flip(m: Any, axis: int | Sequence[int] | None = None) -> Array:
    """Backwards along the axes; along all of them when none is given."""
    (array,) = arrays(m)
    return view(array, Flip(normal_axes(axis, array.ndim)))


@implements(np.fliplr)
def fliplr(m: Any) -> Array:
    return flip(_at_least(m, 2), 1)


@implements(np.flipud)
def flipud(m: Any) -> Array:
    return flip(_at_least(m, 1), 0)


def _at_least(m: Any, dimensions: int) -> Array:
    """The argument as an array with at least so many axes."""
    (array,) = arrays(m)
    if array.ndim < dimensions:
        raise ValueError(f"at least {dimensions} axes are needed; the shape is {array.shape}.")
    return array


@implements(np.rot90)
def rot90(m: Any, k: int = 1, axes: Sequence[int] = (0, 1)) -> Array:
    """Turned by 90 degrees `k` times, from the first of the two axes towards the second."""
    (array,) = arrays(m)
    plane = tuple(axes)
    if len(plane) != 2:
        raise ValueError(f"rot90 turns in a plane of two axes, not {plane}.")
    one, other = (normal_axis(axis, array.ndim) for axis in plane)
    if one == other:
        raise ValueError(f"rot90: the two axes of {plane} are the same one.")
    turns = k % 4
    if turns == 0:
        return view(array, Reshape(array.shape))
    if turns == 2:
        return flip(array, (one, other))
    order = list(range(array.ndim))
    order[one], order[other] = order[other], order[one]
    turn: tuple[Primitive, Primitive] = (Flip((other,)), Permute(tuple(order)))
    return view(array, *(turn if turns == 1 else turn[::-1]))


@implements(np.diagonal)
def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    """The diagonals of two axes, along a new last axis. Read-only, as in NumPy."""
    (array,) = arrays(a)
    if array.ndim < 2:
        raise ValueError(f"a diagonal needs at least two axes; the shape is {array.shape}.")
    one, other = normal_axis(axis1, array.ndim), normal_axis(axis2, array.ndim)
    if one == other:
        raise ValueError("a diagonal needs two different axes.")
    return view(array, *diagonal_path(array.shape, one, other, offset), refusal=_DIAGONAL)


@implements(np.lib.stride_tricks.sliding_window_view)
def sliding_window_view(
    x: Any,
    window_shape: int | Sequence[int],
    axis: int | Sequence[int] | None = None,
    *,
    subok: bool = False,
    writeable: bool = False,
) -> Array:
    """All windows of a shape, along new last axes. Read-only: an element is in several windows."""
    (array,) = arrays(x)
    if writeable:
        raise NotImplementedError("windows cannot be written to here: change the array that they show.")
    sizes = full_shape(window_shape)
    if axis is None:
        axes = tuple(range(array.ndim))
    else:
        axes = tuple(normal_axis(each, array.ndim) for each in (axis if isinstance(axis, tuple | list) else (axis,)))
    if len(sizes) != len(axes):
        raise ValueError(f"a window of shape {sizes} needs as many axes, not {axes}.")
    left = list(array.shape)
    for each, length in zip(axes, sizes, strict=True):
        left[each] -= length - 1
        if left[each] < 1 or length < 1:
            raise ValueError(f"a window of shape {sizes} does not fit into {array.shape} along {axes}.")
    steps = [Windows(each, length, 1) for each, length in zip(axes, sizes, strict=True)]
    return view(array, *steps, refusal=REPEATS)


# Parts


@implements("unstack")
def unstack(x: Any, /, *, axis: int = 0) -> tuple[Array, ...]:
    """The parts along an axis, one by one."""
    (array,) = arrays(x)
    position = normal_axis(axis, array.ndim)
    before = (slice(None),) * position
    return tuple(array[(*before, each)] for each in range(array.shape[position]))


@implements(np.array_split)
def array_split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Array]:
    """Cut before each of the positions, or into so many parts of nearly equal length."""
    (array,) = arrays(ary)
    position = normal_axis(axis, array.ndim)
    length = array.shape[position]
    if ndim(indices_or_sections):
        cuts = [0, *np.asarray(indices_or_sections).tolist(), length]
    else:
        count = operator.index(indices_or_sections)
        if count < 1:
            raise ValueError(f"the number of parts is 1 or more, not {count}.")
        size, longer = divmod(length, count)
        cuts = [part * size + min(part, longer) for part in range(count + 1)]
    before = (slice(None),) * position
    return [array[(*before, slice(*each))] for each in pairwise(cuts)]


@implements(np.split)
def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Array]:
    """`array_split` into parts of equal length."""
    (array,) = arrays(ary)
    length = array.shape[normal_axis(axis, array.ndim)]
    if not ndim(indices_or_sections) and length % operator.index(indices_or_sections):
        raise ValueError(f"{length} elements cannot be split into {indices_or_sections} equal parts; use array_split.")
    return array_split(array, indices_or_sections, axis)


@implements(np.hsplit)
def hsplit(ary: Any, indices_or_sections: Any) -> list[Array]:
    array = _at_least(ary, 1)
    return split(array, indices_or_sections, 1 if array.ndim > 1 else 0)


@implements(np.vsplit)
def vsplit(ary: Any, indices_or_sections: Any) -> list[Array]:
    return split(_at_least(ary, 2), indices_or_sections, 0)


@implements(np.dsplit)
def dsplit(ary: Any, indices_or_sections: Any) -> list[Array]:
    return split(_at_least(ary, 3), indices_or_sections, 2)


@implements(np.trim_zeros)
def trim_zeros(filt: Any, trim: str = "fb", axis: int | Sequence[int] | None = None) -> Array:
    """Without the zeros at the front and the back. How many they are has to be computed."""
    (array,) = arrays(filt)
    sides = trim.lower()
    if sides not in ("fb", "bf", "f", "b"):
        raise ValueError(f'trim is "f", "b" or "fb", not {trim!r}.')
    axes = normal_axes(axis, array.ndim)
    key = [slice(None)] * array.ndim
    found = np.argwhere(np.asarray(array) != 0)
    for each in axes:
        if not len(found):
            key[each] = slice(0, 0)
            continue
        first, last = int(found[:, each].min()), int(found[:, each].max())
        key[each] = slice(first if "f" in sides else None, last + 1 if "b" in sides else None)
    return array[tuple(key)]


# Elements again and again, or elsewhere


@implements(np.repeat)
def repeat(a: Any, repeats: Any, axis: int | None = None) -> Array:
    """Each element several times in a row. How often may differ: then it decides the shape, and is computed."""
    (array,) = arrays(a)
    value = array._value
    if axis is None or array.ndim == 0:
        value = recording.reshape(value, (array.size,))
        axis = 0 if axis is None else axis
    position = normal_axis(axis, len(value.spec.shape))
    shape = value.spec.shape
    counts = np.asarray(repeats)
    if counts.dtype.kind not in "iub" or counts.ndim > 1:
        raise TypeError(f"repeats must be one integer, or one for each element; got {repeats!r}.")
    if counts.size and counts.min() < 0:
        raise ValueError("repeats are 0 or more.")
    if counts.size == 1:
        return Array(_repeat_all(value, position, int(counts.reshape(())[()])))
    if counts.size != shape[position]:
        raise ValueError(f"{counts.size} repeats do not fit an axis of length {shape[position]}.")
    source = np.repeat(np.arange(shape[position]), counts)
    return Array(apply(Gather(position), value, on_device(source, value.device)))


def _repeat_all(value: Value, axis: int, count: int) -> Value:
    """Repeat each element along an axis equally often."""
    shape = value.spec.shape
    before, length, after = shape[:axis], shape[axis], shape[axis + 1 :]
    each = recording.reshape(value, (*before, length, 1, *after))
    return recording.reshape(
        recording.broadcast(each, (*before, length, count, *after)), (*before, length * count, *after)
    )


@implements(np.tile)
def tile(A: Any, reps: Any) -> Array:  # noqa: N803 - NumPy's name
    """The whole array again and again along each axis."""
    (array,) = arrays(A)
    counts = tuple(int(each) for each in np.atleast_1d(np.asarray(reps)))
    dimensions = max(array.ndim, len(counts))
    shape = (1,) * (dimensions - array.ndim) + array.shape
    counts = (1,) * (dimensions - len(counts)) + counts
    if any(count < 0 for count in counts):
        raise ValueError(f"repetitions are 0 or more, not {counts}.")
    apart = tuple(length for pair in zip(counts, shape, strict=True) for length in pair)
    alone = tuple(length for each in shape for length in (1, each))
    spread = recording.broadcast(recording.reshape(array._value, alone), apart)
    return Array(recording.reshape(spread, tuple(n * count for n, count in zip(shape, counts, strict=True))))


@implements(np.resize)
def resize(a: Any, new_shape: int | Sequence[int]) -> Array:
    """The elements in a new shape, repeated from the beginning when they run out."""
    (array,) = arrays(a)
    wanted = full_shape(new_shape)
    size = product(wanted)
    if array.size == 0:
        return Array(recording.broadcast(recording.constant(0, array._value.spec.dtype), wanted))
    flat = recording.reshape(array._value, (array.size,))
    if size > array.size:
        flat = tile(Array(flat), -(-size // array.size))._value
    return Array(recording.reshape(slice_axis(flat, 0, 0, size), wanted))


@implements(np.roll)
def roll(a: Any, shift: Any, axis: int | Sequence[int] | None = None) -> Array:
    """Moved along an axis; what leaves it at one end comes in at the other."""
    (array,) = arrays(a)
    value = array._value
    if axis is None:
        flat = recording.reshape(value, (array.size,))
        total = int(np.sum(np.asarray(shift)))
        return Array(recording.reshape(rolled(flat, total, 0), array.shape))
    axes = axis if isinstance(axis, tuple | list) else (axis,)
    pairs = np.broadcast(np.asarray(shift), np.asarray([normal_axis(each, array.ndim) for each in axes]))
    if pairs.ndim > 1:
        raise ValueError("roll: shift and axis are integers or lists of them.")
    for distance, each in pairs:
        value = rolled(value, int(distance), int(each))
    return Array(value)


def rolled(value: Value, distance: int, axis: int) -> Value:
    """Move elements along an axis, around its end."""
    length = value.spec.shape[axis]
    cut = (-distance) % length if length else 0
    if cut == 0:
        return value
    parts = slice_axis(value, axis, cut, length), slice_axis(value, axis, 0, cut)
    return apply(Concatenate(axis), *parts)
