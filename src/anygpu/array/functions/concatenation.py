"""Arrays joined into one, and elements inserted or deleted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from anygpu.array.core.arguments import (
    arrays,
    common_dtype,
    deliver,
    known_positions,
    line_or_axis,
    on_device,
    slice_axis,
    to_array,
)
from anygpu.array.core.array import Array
from anygpu.array.core.expression import Value
from anygpu.array.core.overrides import implements
from anygpu.array.core.recording import (
    apply,
    broadcast,
    broadcast_shapes,
    cast,
    dtype_name,
    normal_axis,
    permute,
    reshape,
)
from anygpu.program.dtypes import DType
from anygpu.program.primitives import Concatenate, Gather, product


@implements(np.concatenate)
def concatenate(
    arrays_: Sequence[Any] | Array,
    /,
    axis: int | None = 0,
    out: Any = None,
    *,
    dtype: npt.DTypeLike | None = None,
    casting: Any = "same_kind",
) -> Any:
    """One after the other along an axis that exists; with `axis=None` all elements in one row."""
    parts = _parts(arrays_)
    if axis is None:
        values = [reshape(part._value, (part.size,)) for part in parts]
        axis = 0
    else:
        values = [part._value for part in parts]
    dimensions = len(values[0].spec.shape)
    if dimensions == 0:
        raise ValueError("arrays without axes cannot be concatenated; use stack.")
    position = normal_axis(axis, dimensions)
    for value in values:
        shape = value.spec.shape
        first = values[0].spec.shape
        if len(shape) != dimensions or _others(shape, position) != _others(first, position):
            raise ValueError(f"shapes {first} and {shape} differ elsewhere than along axis {position}.")
    joined = _joined(values, position, dtype, casting, out)
    return deliver(Array(joined), out)


concat = concatenate


def _parts(given: Any) -> list[Array]:
    """The arrays of a sequence. Raises `TypeError` for what is no sequence, and `ValueError` for an empty one."""
    if not isinstance(given, Array | np.ndarray | Sequence):
        raise TypeError(f"a sequence of arrays is needed, not a {type(given).__name__}.")
    parts = arrays(*given)
    if not parts:
        raise ValueError("at least one array is needed.")
    return parts


def _others(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


def _joined(values: Sequence[Value], axis: int, dtype: npt.DTypeLike | None, casting: Any, out: Any = None) -> Value:
    """The values along an axis in one type: `dtype`, or that of `out`, or the one that all of them have in common.

    Raises `TypeError` where both are given, or where `casting` does not allow the conversion.
    """
    wanted: DType
    if dtype is not None:
        if out is not None:
            raise TypeError("either out or dtype, not both: the type is that of out.")
        wanted = dtype_name(dtype)
    elif out is not None:
        wanted = dtype_name(out.dtype)
    else:
        wanted = common_dtype(*(value.spec.dtype for value in values))
    for value in values:
        if not np.can_cast(value.spec.dtype, wanted, casting):
            raise TypeError(f"{value.spec.dtype} cannot become {wanted} under casting={casting!r}.")
    if len(values) == 1:
        return cast(values[0], wanted)
    return apply(Concatenate(axis), *(cast(value, wanted) for value in values))


@implements(np.stack)
def stack(
    arrays: Sequence[Any] | Array,
    /,
    axis: int = 0,
    out: Any = None,
    *,
    dtype: npt.DTypeLike | None = None,
    casting: Any = "same_kind",
) -> Any:
    """Along a new axis."""
    values = [part._value for part in _parts(arrays)]
    shape = values[0].spec.shape
    if any(value.spec.shape != shape for value in values):
        raise ValueError(f"all arrays to stack have one shape; these have {[value.spec.shape for value in values]}.")
    position = normal_axis(axis, len(shape) + 1)
    apart = [reshape(value, (*shape[:position], 1, *shape[position:])) for value in values]
    return deliver(Array(_joined(apart, position, dtype, casting, out)), out)


@implements(np.vstack)
def vstack(tup: Any, *, dtype: npt.DTypeLike | None = None, casting: Any = "same_kind") -> Array:
    """Rows below each other."""
    rows = [_shaped(part, (1, part.size)) if part.ndim < 2 else part for part in _parts(tup)]
    return concatenate(rows, 0, dtype=dtype, casting=casting)  # type: ignore[no-any-return]


@implements(np.hstack)
def hstack(tup: Any, *, dtype: npt.DTypeLike | None = None, casting: Any = "same_kind") -> Array:
    """Columns beside each other; vectors after each other."""
    parts = [_shaped(part, (1,)) if part.ndim == 0 else part for part in _parts(tup)]
    axis = 0 if parts[0].ndim == 1 else 1
    return concatenate(parts, axis, dtype=dtype, casting=casting)  # type: ignore[no-any-return]


@implements(np.dstack)
def dstack(tup: Any) -> Array:
    """Behind each other, along the third axis."""
    parts = [
        part if part.ndim > 2 else _shaped(part, (*part.shape, 1) if part.ndim == 2 else (1, part.size, 1))
        for part in _parts(tup)
    ]
    return concatenate(parts, 2)  # type: ignore[no-any-return]


@implements(np.column_stack)
def column_stack(tup: Any) -> Array:
    """Vectors as the columns of a matrix."""
    columns = [_shaped(part, (part.size, 1)) if part.ndim < 2 else part for part in _parts(tup)]
    return concatenate(columns, 1)  # type: ignore[no-any-return]


def _shaped(part: Array, shape: tuple[int, ...]) -> Array:
    return Array(reshape(part._value, shape))


@implements(np.block)
def block(arrays: Any) -> Array:
    """A matrix of blocks from nested lists: the innermost lists are joined along the last axis, and so on."""
    depth = _depth(arrays)
    leaves = _parts(list(_leaves(arrays)))
    dimensions = max(depth, *(leaf.ndim for leaf in leaves))
    remaining = iter(leaves)

    def joined(item: Any, level: int) -> Value:
        if not isinstance(item, list):
            leaf = next(remaining)
            return reshape(leaf._value, (*(1,) * (dimensions - leaf.ndim), *leaf.shape))
        parts = [Array(joined(each, level + 1)) for each in item]
        return concatenate(parts, level - depth)._value  # type: ignore[no-any-return]

    return Array(joined(arrays, 0))


def _depth(item: Any) -> int:
    """How deep the lists of `np.block` are nested.

    Raises `TypeError` for a tuple, and `ValueError` for an empty list or lists of different depths, as NumPy does.
    """
    if isinstance(item, tuple):
        raise TypeError("block takes nested lists; a tuple in them is ambiguous.")
    if not isinstance(item, list):
        return 0
    if not item:
        raise ValueError("block: a list of blocks cannot be empty.")
    depths = {_depth(each) for each in item}
    if len(depths) != 1:
        raise ValueError("block: all lists must be nested to the same depth.")
    return 1 + depths.pop()


def _leaves(item: Any) -> Any:
    """The items of nested lists that are no lists, in order."""
    if isinstance(item, list):
        for each in item:
            yield from _leaves(each)
    else:
        yield item


# Insertion and deletion


@implements(np.append)
def append(arr: Any, values: Any, axis: int | None = None) -> Array:
    """The values after the array; with `axis=None` all elements of both in one row."""
    return concatenate(arrays(arr, values), axis)  # type: ignore[no-any-return]


@implements(np.delete)
def delete(arr: Any, obj: Any, axis: int | None = None) -> Array:
    """Without some positions along an axis. Which these are decides the shape, so they are computed."""
    (array,) = arrays(arr)
    value, position = line_or_axis(array, axis)
    length = value.spec.shape[position]
    keep = np.ones(length, np.bool_)
    if isinstance(obj, slice):
        keep[obj] = False
    else:
        keep[_positions(obj, length, position)] = False
    kept = np.flatnonzero(keep)
    if len(kept) == length:
        return Array(value)
    if kept.size and kept[-1] - kept[0] == kept.size - 1:  # one stretch is left: no positions have to travel
        return Array(slice_axis(value, position, int(kept[0]), int(kept[-1]) + 1))
    return Array(apply(Gather(position), value, on_device(kept, value.device)))


def _positions(obj: Any, length: int, axis: int) -> npt.NDArray[np.int64]:
    """The positions that `obj` names along an axis of this length, none of them negative.

    A mask becomes the positions of its True elements. Raises `IndexError` for a position out of bounds and for floats,
    and `ValueError` for a mask of another length.
    """
    positions = np.asarray(obj)
    if positions.size == 0 and not isinstance(obj, np.ndarray | Array):
        positions = positions.astype(np.int64)
    if positions.dtype == np.bool_:
        if positions.shape != (length,):
            raise ValueError(f"a mask of shape {positions.shape} does not fit axis {axis} of length {length}.")
        return np.flatnonzero(positions)
    if positions.dtype.kind not in "iu":
        raise IndexError(f"positions are integers or a mask, not {positions.dtype}.")
    return known_positions(positions.astype(np.int64), length, axis)


@implements(np.insert)
def insert(arr: Any, obj: Any, values: Any, axis: int | None = None) -> Array:
    """With values put in before the positions `obj`. These decide the shape, so they are computed."""
    host, source = arrays(arr, values)
    base, position = line_or_axis(host, axis)
    shape = base.spec.shape
    length = shape[position]
    indices = np.arange(*obj.indices(length)) if isinstance(obj, slice) else np.asarray(obj)
    if indices.dtype == np.bool_:
        indices = _positions(indices, length, position)
    if indices.ndim > 1:
        raise ValueError("insert: positions are one integer or a list of them.")
    new = cast(source._value, base.spec.dtype)
    if indices.size == 1:
        return Array(_insert_block(base, position, int(indices.reshape(())[()]), new, alone=indices.ndim == 0))
    indices = np.where(indices < 0, indices + length, indices).astype(np.int64)
    if indices.size and not (indices.min() >= 0 and indices.max() <= length):
        raise IndexError(f"insert: a position is out of bounds for axis {position} with size {length}.")
    count = len(indices)
    grown = (*shape[:position], count, *shape[position + 1 :])
    both = apply(Concatenate(position), base, broadcast(_to_fit(new, grown), grown))
    # Where each element of the result comes from: the array, or the new values after it.
    order = np.argsort(indices, kind="stable")
    places = indices.copy()
    places[order] += np.arange(count)
    origin = np.empty(length + count, np.int64)
    is_old = np.ones(length + count, np.bool_)
    is_old[places] = False
    origin[places] = np.arange(length, length + count)
    origin[is_old] = np.arange(length)
    return Array(apply(Gather(position), both, on_device(origin, base.device)))


def _to_fit(value: Value, shape: tuple[int, ...]) -> Value:
    """Leading axes of length 1 may go, as in an assignment."""
    while len(value.spec.shape) > len(shape) and value.spec.shape[0] == 1:
        value = reshape(value, value.spec.shape[1:])
    return value


def _insert_block(base: Value, axis: int, index: int, new: Value, *, alone: bool) -> Value:
    """All the values before one position, as in `x[:, i:i]`."""
    shape = base.spec.shape
    length = shape[axis]
    if not -length <= index <= length:
        raise IndexError(f"index {index} is out of bounds for axis {axis} with size {length}.")
    index += length if index < 0 else 0
    dimensions = len(shape)
    new = reshape(new, (*(1,) * (dimensions - len(new.spec.shape)), *new.spec.shape))
    if alone:  # one integer: the values have no axis here, and what they have is meant for the other axes
        order = list(range(1, dimensions))
        order.insert(axis, 0)
        new = permute(new, tuple(order))
    count = new.spec.shape[axis]
    grown = broadcast_shapes(new.spec.shape, (*shape[:axis], count, *shape[axis + 1 :]))
    parts = [
        slice_axis(base, axis, 0, index),
        broadcast(new, grown),
        slice_axis(base, axis, index, length),
    ]
    return apply(Concatenate(axis), *parts)


# Line by line


@implements(np.apply_along_axis)
def apply_along_axis(func1d: Callable[..., Any], axis: int, arr: Any, *args: Any, **kwargs: Any) -> Array:
    """What a function of vectors gives for each line along an axis. It is called once for each: slow for many lines."""
    (array,) = arrays(arr)
    position = normal_axis(axis, array.ndim)
    rest = tuple(each for each in range(array.ndim) if each != position)
    stack_shape = tuple(array.shape[each] for each in rest)
    lines = permute(array._value, (*rest, position))
    length = array.shape[position]
    count = product(stack_shape)
    if count == 0:
        raise ValueError(f"there is no line along axis {axis} of the shape {array.shape}.")
    table = Array(reshape(lines, (count, length)))
    results = [to_array(func1d(table[line], *args, **kwargs), array._device)._value for line in range(count)]
    joined = stack([Array(each) for each in results])._value
    shape = results[0].spec.shape
    grid = reshape(joined, (*stack_shape, *shape))
    before = len(rest[:position])
    order = (*range(before), *range(len(rest), len(rest) + len(shape)), *range(before, len(rest)))
    return Array(permute(grid, order))


@implements(np.apply_over_axes)
def apply_over_axes(func: Callable[..., Any], a: Any, axes: int | Sequence[int]) -> Array:
    """`func(x, axis)` for one axis after the other; axes that it drops are put back with length 1."""
    (array,) = arrays(a)
    result = array
    for axis in axes if isinstance(axes, tuple | list) else (axes,):
        position = normal_axis(axis, array.ndim)
        (found,) = arrays(func(result, position))
        if found.ndim != result.ndim:
            shape = found.shape
            found = Array(reshape(found._value, (*shape[:position], 1, *shape[position:])))
            if found.ndim != result.ndim:
                raise ValueError("apply_over_axes: the function does not give an array of the right number of axes.")
        result = found
    return result
