"""Sorting, partition and binary search, and vectors as sets.

Sorting is stable and puts NaN last. Distinct values are found by sorting and comparing neighbours, and sets are unions
of such vectors.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from anygpu.array.core.arguments import arrays, bound_to, filled, line_or_axis, ndim, same_dtype, slice_axis, to_array
from anygpu.array.core.array import Array, device_of
from anygpu.array.core.device import ArrayDevice
from anygpu.array.core.expression import Value, active_tracer
from anygpu.array.core.overrides import implements
from anygpu.array.core.recording import apply, binary, cast, compare, normal_axis, permute, reshape, unary
from anygpu.array.functions.selection import take_along_axis, true_positions
from anygpu.program.dtypes import is_inexact, is_integer
from anygpu.program.primitives import Argsort, Concatenate, Flip, Gather, Reduce, Scan, Scatter, Search, Sort, product

# -- sorting and searching


def _along(a: Any, axis: int | None) -> tuple[Value, int]:
    """The value to sort and its axis; without an axis, the flattened value. Raises `AxisError` without axes."""
    (array,) = arrays(a)
    return line_or_axis(array, axis)


def _is_stable(kind: str | None, stable: bool | None) -> bool:
    """Whether equal elements have to keep their order: as it was asked for, and always outside of a trace.

    A function of NumPy's arrays that is being traced gets what NumPy's default gives it.
    """
    return bool(stable) or kind not in (None, "quicksort") or active_tracer.get() is None


def _require_stable(kind: str | None, stable: bool | None) -> None:
    """End a trace where NumPy orders equal elements otherwise than our sort, which is stable."""
    tracer = active_tracer.get()
    if tracer is not None and not _is_stable(kind, stable):
        tracer.stop("it sorts in descending order, where only stable=True defines the order of equal elements")


def _no_fields(order: object) -> None:
    if order is not None:
        raise TypeError("order= is for arrays with named fields, which do not exist here.")


@implements(np.sort)
def sort(
    a: Any,
    axis: int | None = -1,
    kind: str | None = None,
    order: object = None,
    *,
    stable: bool | None = None,
    descending: bool | None = None,
) -> Array:
    """Return the elements sorted along an axis, the largest first with `descending`. NaN is last both ways.

    The sort is stable, as that of `argsort` is.
    """
    _no_fields(order)
    value, position = _along(a, axis)
    if not descending:
        return Array(apply(Sort(position, _is_stable(kind, stable)), value))
    _require_stable(kind, stable)
    if is_inexact(value.spec.dtype):
        return Array(unary("negative", apply(Sort(position), unary("negative", value))))
    turn = Flip((position,))
    return Array(apply(turn, apply(Sort(position), apply(turn, value))))


@implements(np.argsort)
def argsort(
    a: Any,
    axis: int | None = -1,
    kind: str | None = None,
    order: object = None,
    *,
    stable: bool | None = None,
    descending: bool | None = None,
) -> Array:
    """The positions that sort. They are stable, but where a function of NumPy's arrays is traced whose NumPy is not."""
    _no_fields(order)
    if ndim(a) == 0 and axis in (-1, 0):  # NumPy sorts one number too, but only here
        axis = None
    value, position = _along(a, axis)
    if not descending:
        return Array(apply(Argsort(position, _is_stable(kind, stable)), value))
    _require_stable(kind, stable)
    if is_inexact(value.spec.dtype):
        return Array(apply(Argsort(position), unary("negative", value)))
    # Backwards twice: equal elements keep their order.
    turn = Flip((position,))
    last = value.spec.shape[position] - 1
    places = apply(turn, apply(Argsort(position), apply(turn, value)))
    return Array(binary("subtract", max(last, 0), places))


@implements(np.sort_complex)
def sort_complex(a: Any) -> Array:
    """Sorted by real and then by imaginary part, as complex numbers."""
    (array,) = arrays(a)
    kind = array._value.spec.dtype
    small = kind in ("int8", "int16", "uint8", "uint16", "complex64")
    return sort(Array(cast(array._value, "complex64" if small else "complex128")))


@implements(np.partition)
def partition(a: Any, kth: Any, axis: int | None = -1, kind: str = "introselect", order: object = None) -> Array:
    """Smaller elements before the k-th, larger ones after it; this implementation sorts."""
    _stop_trace("partition")
    _check_kth(a, kth, axis)
    return sort(a, axis, "stable", order)


@implements(np.argpartition)
def argpartition(a: Any, kth: Any, axis: int | None = -1, kind: str = "introselect", order: object = None) -> Array:
    """The positions that partition; this implementation sorts."""
    _stop_trace("argpartition")
    _check_kth(a, kth, axis)
    return argsort(a, axis, "stable", order)


def _stop_trace(name: str) -> None:
    """Leave a function of NumPy's arrays to NumPy: the order beside the k-th element follows from its introselect."""
    tracer = active_tracer.get()
    if tracer is not None:
        tracer.stop(f"it calls np.{name}, where only NumPy has the order beside the k-th element; np.sort defines one")


def _check_kth(a: Any, kth: Any, axis: int | None) -> None:
    """Raise `ValueError` for positions of a partition that are outside of the axis."""
    value, position = _along(a, axis)
    length = value.spec.shape[position]
    for each in np.atleast_1d(np.asarray(kth)).tolist():
        if not -length <= each < length:
            raise ValueError(f"kth={each} is out of bounds for an axis of length {length}.")


@implements(np.lexsort)
def lexsort(keys: Any, axis: int = -1) -> Array:
    """The positions that sort by several keys, of which the last counts first."""
    parts = arrays(*keys)
    if not parts:
        raise TypeError("lexsort needs at least one key.")
    if len({part.shape for part in parts}) > 1:
        raise ValueError("lexsort: all keys have one shape.")
    if parts[0].ndim == 0:
        return Array(reshape(apply(Argsort(0), reshape(parts[0]._value, (1,))), ()))
    position = normal_axis(axis, parts[0].ndim)
    order = argsort(parts[0], position, "stable")
    for part in parts[1:]:
        step = argsort(take_along_axis(part, order, position), position, "stable")
        order = take_along_axis(order, step, position)
    return order


@implements(np.searchsorted)
def searchsorted(a: Any, v: Any, side: Literal["left", "right"] = "left", sorter: Any = None) -> Array:
    """Where each value belongs in a sorted vector: before equal elements, or after them."""
    if side not in ("left", "right"):
        raise ValueError(f'side is "left" or "right", not {side!r}.')
    device = device_of(a, v)
    line, values = (to_array(each, device)._value for each in (a, v))
    if len(line.spec.shape) != 1:
        raise ValueError(f"searchsorted looks in a vector, not in {len(line.spec.shape)} axes.")
    if sorter is not None:
        order = to_array(sorter, device)._value
        if not is_integer(order.spec.dtype):
            raise TypeError(f"sorter holds integers, as argsort gives them, and not {order.spec.dtype}.")
        if order.spec.shape != line.spec.shape:
            raise ValueError(f"sorter holds one position for each of {line.spec.size} elements.")
        line = apply(Gather(0), line, order)
    line, values = same_dtype(line, values)
    return Array(apply(Search(side), line, values))


# -- sets: how many distinct elements there are depends on the values, so that number is computed


class UniqueAll(NamedTuple):
    """The results of `unique_all`, by the names of the Array API."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    values: Array
    inverse_indices: Array


class _Distinct(NamedTuple):
    """Sorted rows, and which of them differ from the one before."""

    rows: Value
    #: Which row came from where; only when that was asked for.
    order: Value | None
    begins: Value
    positions: Value


def _rows(array: Array, axis: int | None) -> tuple[Value, int]:
    """One row for each thing that can be equal to another."""
    if axis is None:
        return reshape(array._value, (array.size, 1)), 0
    position = normal_axis(axis, array.ndim)
    front = (position, *(each for each in range(array.ndim) if each != position))
    shape = array.shape
    width = product(tuple(shape[each] for each in front[1:]))
    return reshape(permute(array._value, front), (shape[position], width)), position


def _distinct(rows: Value, *, ordered: bool, equal_nan: bool) -> _Distinct:
    """`ordered` asks for where each row came from; without it a single column is sorted directly."""
    count, width = rows.spec.shape
    order = None
    if width == 1 and not ordered:
        held = Array(apply(Sort(0), rows))
    else:
        # Held as arrays, they are kept when the number of distinct rows is computed, and not computed again.
        keeper = Array(_order(rows))
        order = keeper._value
        held = Array(apply(Gather(0), rows, order))
    in_order = held._value
    if count == 0:
        return _Distinct(in_order, order, begins := filled((0,), False, "bool"), true_positions(begins))
    here, before = slice_axis(in_order, 0, 1, count), slice_axis(in_order, 0, 0, count - 1)
    differs = compare("not_equal", here, before)
    if equal_nan and is_inexact(rows.spec.dtype):
        both = binary("bitwise_and", unary("isnan", here), unary("isnan", before))
        differs = binary("bitwise_and", differs, unary("invert", both))
    anywhere = reshape(differs, (count - 1,)) if width == 1 else apply(Reduce("any", (1,)), differs)
    begins = apply(Concatenate(0), filled((1,), True, "bool"), anywhere)
    return _Distinct(in_order, order, begins, true_positions(begins))


def _order(rows: Value) -> Value:
    """The positions that sort rows, by the first column first. Sorting is stable, so the last column begins."""
    count, width = rows.spec.shape
    order: Value | None = None
    for column in reversed(range(width)):
        key = reshape(slice_axis(rows, 1, column, column + 1), (count,))
        if order is None:
            order = apply(Argsort(0), key)
        else:
            order = apply(Gather(0), order, apply(Argsort(0), apply(Gather(0), key, order)))
    return order if order is not None else filled((count,), 0, "int64")


def _inverse(order: Value, begins: Value) -> Value:
    """For each row, in the order that it was given in, the number of the distinct row that it is."""
    (count,) = order.spec.shape
    if count == 0:
        return filled((0,), 0, "int64")
    numbers = binary("subtract", apply(Scan("sum", 0), cast(begins, "int64")), 1)
    return apply(Scatter("set", 0), filled((count,), 0, "int64"), order, numbers)


def _counts(found: _Distinct) -> Value:
    """How often each distinct value occurs: the distances of their first positions in sorted order."""
    count = found.rows.spec.shape[0]
    (length,) = found.positions.spec.shape
    ends = apply(Concatenate(0), found.positions, filled((1,), count, "int64"))
    return binary("subtract", slice_axis(ends, 0, 1, length + 1), slice_axis(ends, 0, 0, length))


@implements(np.unique)
def unique(
    ar: Any,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    sorted: bool = True,
) -> Any:
    """The distinct elements, or along an axis the distinct parts, in order."""
    (array,) = arrays(ar)
    rows, position = _rows(array, axis)
    found = _distinct(rows, ordered=return_index or return_inverse, equal_nan=equal_nan and axis is None)
    picked = apply(Gather(0), found.rows, found.positions)
    if axis is None:
        values = reshape(picked, (picked.spec.shape[0],))
        shape = array.shape
    else:
        others = (*array.shape[:position], *array.shape[position + 1 :])
        values = reshape(picked, (picked.spec.shape[0], *others))
        values = permute(values, (*range(1, position + 1), 0, *range(position + 1, array.ndim)))
        shape = (array.shape[position],)
    results = [values]
    if return_index and found.order is not None:
        results.append(apply(Gather(0), found.order, found.positions))
    if return_inverse and found.order is not None:
        results.append(reshape(_inverse(found.order, found.begins), shape))
    if return_counts:
        results.append(_counts(found))
    bound = tuple(Array(bound_to(each, array._device)) for each in results)
    return bound[0] if len(bound) == 1 else bound


@implements(np.unique_all)
def unique_all(x: Any, /) -> UniqueAll:
    """Distinct elements, where each is first, which of them each element is, and how often it occurs."""
    return UniqueAll(*unique(x, True, True, True, equal_nan=False))


@implements(np.unique_counts)
def unique_counts(x: Any, /) -> UniqueCounts:
    return UniqueCounts(*unique(x, return_counts=True, equal_nan=False))


@implements(np.unique_inverse)
def unique_inverse(x: Any, /) -> UniqueInverse:
    return UniqueInverse(*unique(x, return_inverse=True, equal_nan=False))


@implements(np.unique_values)
def unique_values(x: Any, /) -> Array:
    return unique(x, equal_nan=False)  # type: ignore[no-any-return]


@implements(np.isin)
def isin(
    element: Any,
    test_elements: Any,
    assume_unique: bool = False,
    invert: bool = False,
    *,
    kind: str | None = None,
) -> Array:
    """Whether each element is among the others."""
    array, others = arrays(element, test_elements)
    if others.size == 0:
        return Array(bound_to(filled(array.shape, invert, "bool"), array._device))
    line, possible = reshape(others._value, (others.size,)), None
    if {array._value.spec.dtype, line.spec.dtype} == {"int64", "uint64"}:
        # They have no common type, so both become unsigned, and those that the other cannot have are left out.
        is_signed = array._value.spec.dtype == "int64"
        possible = compare("greater_equal" if is_signed else "less", array._value, 0 if is_signed else 2**63)
        values, line = cast(array._value, "uint64"), cast(line, "uint64")
    else:
        values, line = same_dtype(array._value, line)
    ordered = apply(Sort(0), line)
    position = binary("minimum", apply(Search("left"), ordered, values), others.size - 1)
    found = compare("equal", apply(Gather(0), ordered, position), values)
    if possible is not None:
        found = binary("bitwise_and", found, possible)
    return Array(unary("invert", found) if invert else found)


def _flat(x: Array, *, distinct: bool) -> Array:
    return Array(reshape(x._value, (x.size,))) if distinct else unique(x)


def _pick(value: Value, mask: Value, device: ArrayDevice) -> Array:
    return Array(bound_to(apply(Gather(0), value, true_positions(mask)), device))


@implements(np.union1d)
def union1d(ar1: Any, ar2: Any) -> Array:
    """The elements of either, sorted."""
    one, other = arrays(ar1, ar2)
    parts = same_dtype(*(reshape(each._value, (each.size,)) for each in (one, other)))
    return unique(Array(apply(Concatenate(0), *parts)))  # type: ignore[no-any-return]


@implements(np.intersect1d)
def intersect1d(ar1: Any, ar2: Any, assume_unique: bool = False, return_indices: bool = False) -> Any:
    """The elements of both, sorted; optionally with the first position of each."""
    one, other = arrays(ar1, ar2)
    places: list[Value] | None = None
    if assume_unique:
        sets = [reshape(each._value, (each.size,)) for each in (one, other)]
    else:
        found = [unique(each, return_index=True) for each in (one, other)]
        sets = [each[0]._value for each in found]
        places = [each[1]._value for each in found]
    first, second = same_dtype(*sets)
    both = apply(Concatenate(0), first, second)
    keeper = Array(apply(Argsort(0), both))
    order = keeper._value
    held = Array(apply(Gather(0), both, order))
    ordered = held._value
    count = both.spec.shape[0]
    if count < 2:
        twice = filled((0,), 0, "int64")
    else:
        before, after = slice_axis(ordered, 0, 0, count - 1), slice_axis(ordered, 0, 1, count)
        twice = true_positions(compare("equal", before, after))
    common = Array(bound_to(apply(Gather(0), ordered, twice), one._device))
    if not return_indices:
        return common
    in_first = apply(Gather(0), order, twice)
    in_second = binary("subtract", apply(Gather(0), order, binary("add", twice, 1)), first.spec.shape[0])
    if places is not None:
        in_first, in_second = (
            apply(Gather(0), each, at) for each, at in zip(places, (in_first, in_second), strict=True)
        )
    return common, Array(bound_to(in_first, one._device)), Array(bound_to(in_second, one._device))


@implements(np.setdiff1d)
def setdiff1d(ar1: Any, ar2: Any, assume_unique: bool = False) -> Array:
    """The elements of the first that are not in the second."""
    one, other = arrays(ar1, ar2)
    left = _flat(one, distinct=assume_unique)
    return _pick(left._value, isin(left, other, invert=True)._value, one._device)


@implements(np.setxor1d)
def setxor1d(ar1: Any, ar2: Any, assume_unique: bool = False) -> Array:
    """The elements of exactly one of them, sorted."""
    one, other = arrays(ar1, ar2)
    parts = same_dtype(*(_flat(each, distinct=assume_unique)._value for each in (one, other)))
    ordered = apply(Sort(0), apply(Concatenate(0), *parts))
    count = ordered.spec.shape[0]
    if count == 0:
        return Array(bound_to(ordered, one._device))
    differs = compare("not_equal", slice_axis(ordered, 0, 1, count), slice_axis(ordered, 0, 0, count - 1))
    edge = filled((1,), True, "bool")
    alone = binary("bitwise_and", apply(Concatenate(0), edge, differs), apply(Concatenate(0), differs, edge))
    return _pick(ordered, alone, one._device)
