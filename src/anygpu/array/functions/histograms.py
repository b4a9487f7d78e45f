"""Histograms. Bins are computed or found by binary search, and counted by a scatter that adds."""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from anygpu.array.core.abstract_device import AbstractDevice
from anygpu.array.core.arguments import arrays, bound_to, filled, ndim, same_dtype, slice_axis, to_array
from anygpu.array.core.array import Array, device_of
from anygpu.array.core.device import ArrayDevice
from anygpu.array.core.expression import Value
from anygpu.array.core.overrides import implements
from anygpu.array.core.recording import apply, binary, cast, compare, constant, dtype_name, reshape, unary, where
from anygpu.array.functions.ranges import linspace
from anygpu.program.dtypes import KIND, DType, is_inexact
from anygpu.program.primitives import Flip, Gather, Iota, Reduce, Scatter, Search, product

Range = tuple[Any, Any] | None


@implements(np.histogram_bin_edges)
def histogram_bin_edges(a: Any, bins: Any = 10, range: Range = None, weights: Any = None) -> Array:
    """The edges that `histogram` uses."""
    (array,) = arrays(a)
    return Array(bound_to(_edges(_flat(array), bins, range, weights, array._device), array._device))


@implements(np.histogram)
def histogram(
    a: Any, bins: Any = 10, range: Range = None, density: bool | None = None, weights: Any = None
) -> tuple[Array, Array]:
    """The number of elements, or the sum of their weights, in each bin; and the edges of the bins.

    Without a range the bins reach from the smallest element to the largest; nothing is computed for that now. If these
    are not finite, or too near to each other for so many bins, the edges are NaN and all bins are empty, where NumPy
    raises an error.
    """
    (array,) = arrays(a)
    values = _flat(array)
    edges = _edges(values, bins, range, weights, array._device)
    heavy = None
    if weights is not None:
        heavy = to_array(weights, array._device)._value
        if heavy.spec.shape != array.shape:
            raise ValueError(f"weights of shape {heavy.spec.shape} do not fit {array.shape}.")
        heavy = reshape(heavy, (array.size,))
    are_equal = not isinstance(bins, str) and not ndim(bins)
    counts = _counted([_bin_of(values, edges, are_equal=are_equal)], [edges.spec.shape[0] - 1], heavy)
    if density:
        counts = _density(counts, [edges])
    return Array(bound_to(counts, array._device)), Array(bound_to(edges, array._device))


def _flat(array: Array) -> Value:
    value = reshape(array._value, (array.size,))
    return cast(value, "uint8") if value.spec.dtype == "bool" else value


def _edges(values: Value, bins: Any, range_: Range, weights: Any, device: ArrayDevice, *, typed: bool = True) -> Value:
    """The edges of the bins; `typed` ones have the type of the elements, others that of the range."""
    if isinstance(bins, str):  # how many bins there are depends on the values
        host = np.asarray(Array(values))
        return to_array(np.histogram_bin_edges(host, bins, range_, weights), device)._value
    if ndim(bins) == 1:
        return _given_edges(bins, device)
    if ndim(bins):
        raise ValueError("bins are a number, a vector of edges, or the name of a rule.")
    count = operator.index(bins)
    if count < 1:
        raise ValueError(f"the number of bins is 1 or more, not {count}.")
    first, last = _outer_edges(values, range_, device)
    kind = _edges_dtype(values, range_) if typed else None
    if not isinstance(first, Array):
        with np.errstate(all="ignore"):
            steps = np.linspace(first, last, count + 1, dtype=kind)
        if typed and (steps[:-1] >= steps[1:]).any():
            raise ValueError(f"the range from {first} to {last} is too narrow for {count} bins.")
    edges: Value = linspace(first, last, count + 1, dtype=kind, device=device)._value
    return _sound(edges, device, strictly=typed) if isinstance(first, Array) else edges


def _sound(edges: Value, device: ArrayDevice, *, strictly: bool) -> Value:
    """Edges of which it is known when they are computed whether they go up: if not, they are NaN.

    NumPy raises an error then. So a program that stands for a function of NumPy's meets an index out of range instead.
    """
    count = edges.spec.shape[0] - 1
    before, after = (slice_axis(edges, 0, begin, begin + count) for begin in (0, 1))
    go_up = apply(Reduce("all", (0,)), compare("less" if strictly else "less_equal", before, after))
    if type(device) is not AbstractDevice:
        return where(go_up, edges, constant(math.nan, edges.spec.dtype))
    return apply(Gather(0), edges, where(go_up, apply(Iota(count + 1, "int32")), constant(-1, "int32")))


def _edges_dtype(values: Value, range_: Range) -> DType:
    """Floating point that holds the elements; numbers in the range adapt to them."""
    limits = () if range_ is None else range_
    known = (each.dtype if isinstance(each, Array) else each for each in limits)
    kind = dtype_name(np.result_type(values.spec.dtype, *known))
    return kind if is_inexact(kind) else "float64"


def _given_edges(bins: Any, device: ArrayDevice) -> Value:
    """The edges of bins as a value.

    Edges on the host must not decrease, or a `ValueError` says so; others are not read.
    """
    if not isinstance(bins, Array):
        steps = np.asarray(bins)
        if (steps[:-1] > steps[1:]).any():
            raise ValueError("the edges of bins must not decrease.")
    return to_array(bins, device)._value


def _outer_edges(values: Value, range_: Range, device: ArrayDevice) -> tuple[Any, Any]:
    """The first and the last edge: those of the range, or the extremes of the values, or 0 and 1 where there are none.

    Two equal edges are moved apart by 0.5 each. Raises `ValueError` for a range that goes down or is not finite.
    """
    if range_ is not None:
        first, last = range_
        if isinstance(first, Array) or isinstance(last, Array):
            return _spread(*(to_array(each, device)._value for each in (first, last)))
        if first > last:
            raise ValueError(f"the range must go up, not from {first} to {last}.")
        if not (math.isfinite(first) and math.isfinite(last)):
            raise ValueError(f"the range from {first} to {last} is not finite.")
        return (first - 0.5, last + 0.5) if first == last else (first, last)
    if values.spec.size == 0:
        return 0.0, 1.0
    return _spread(apply(Reduce("min", (0,)), values), apply(Reduce("max", (0,)), values))


def _spread(first: Value, last: Value) -> tuple[Array, Array]:
    """A range of no width gets a width of 1."""
    kind: DType = first.spec.dtype if is_inexact(first.spec.dtype) else "float64"
    first, last = cast(first, kind), cast(last, kind)
    margin = where(compare("equal", first, last), constant(0.5, kind), constant(0.0, kind))
    return Array(binary("subtract", first, margin)), Array(binary("add", last, margin))


def _bin_of(values: Value, edges: Value, *, are_equal: bool) -> tuple[Value, Value]:
    """The bin of each element, and whether it is in one; the last bin includes its right edge.

    Bins that `are_equal` in width are computed, as NumPy does: the edges decide where that is a little off.
    """
    count = edges.spec.shape[0] - 1
    line, points = same_dtype(edges, values)
    first, last = (reshape(slice_axis(line, 0, each, each + 1), ()) for each in (0, count))
    if not are_equal and is_inexact(line.spec.dtype):  # nothing is beyond NaN, which given edges may end with
        last = where(unary("isnan", last), constant(math.inf, line.spec.dtype), last)
    inside = binary("bitwise_and", compare("greater_equal", points, first), compare("less_equal", points, last))
    if not are_equal:
        position = binary("subtract", apply(Search("right"), line, points), 1)
        return binary("minimum", binary("maximum", position, 0), count - 1), inside
    share = binary("divide", binary("subtract", points, first), binary("subtract", last, first))
    place = where(inside, binary("multiply", share, count), constant(0, share.spec.dtype))
    position = binary("minimum", cast(place, "int32"), count - 1)
    left, right = (apply(Gather(0), slice_axis(line, 0, begin, begin + count), position) for begin in (0, 1))
    position = binary("subtract", position, cast(compare("less", points, left), "int32"))
    is_next = binary("bitwise_and", compare("greater_equal", points, right), compare("less", position, count - 1))
    position = binary("add", position, cast(is_next, "int32"))
    return cast(binary("minimum", binary("maximum", position, 0), count - 1), "int64"), inside


def _counted(found: Sequence[tuple[Value, Value]], lengths: Sequence[int], heavy: Value | None) -> Value:
    """Counts, or sums of weights, in a grid of bins."""
    position, inside = found[0]
    for (each, there), length in zip(found[1:], lengths[1:], strict=True):
        position = binary("add", binary("multiply", position, length), each)
        inside = binary("bitwise_and", inside, there)
    kind: DType = "int64" if heavy is None else heavy.spec.dtype
    inner: DType = "int64" if kind == "bool" else kind
    amounts = cast(inside, inner)
    if heavy is not None:
        amounts = where(inside, cast(heavy, inner), constant(0, inner))
    empty = filled((product(tuple(lengths)),), 0, inner)
    return cast(reshape(apply(Scatter("add", 0), empty, position, amounts), tuple(lengths)), kind)


def _density(counts: Value, edges: Sequence[Value]) -> Value:
    """Counts as a density, whose integral is 1. In float64, as in NumPy, whatever the edges are."""
    # Small integers and bools are added without leaving their type.
    whole = counts if is_inexact(counts.spec.dtype) else cast(counts, "float64")
    total = apply(Reduce("sum", tuple(builtins.range(len(edges)))), whole)
    result = counts
    for axis, each_line in enumerate(edges):
        line = cast(each_line, "uint8") if each_line.spec.dtype == "bool" else each_line
        length = line.spec.shape[0]
        widths = binary("subtract", slice_axis(line, 0, 1, length), slice_axis(line, 0, 0, length - 1))
        shape = tuple(length - 1 if each == axis else 1 for each in range(len(edges)))
        result = binary("divide", result, reshape(cast(widths, "float64"), shape))
    return binary("divide", result, total)


@implements(np.histogramdd)
def histogramdd(
    sample: Any,
    bins: Any = 10,
    range: Sequence[Range] | None = None,
    density: bool | None = None,
    weights: Any = None,
) -> tuple[Array, tuple[Array, ...]]:
    """`histogram` for points with several coordinates: a matrix of points, or one vector for each coordinate."""
    columns, device = _coordinates(sample)
    count = len(columns)
    bins_each = bins if isinstance(bins, tuple | list) or ndim(bins) else (bins,) * count
    if len(bins_each) != count:
        raise ValueError(f"bins for {len(bins_each)} coordinates do not fit {count}.")
    ranges = range if range is not None else (None,) * count
    if len(ranges) != count:
        raise ValueError(f"ranges for {len(ranges)} coordinates do not fit {count}.")
    edges = [
        _edges(column, each, limits, None, device, typed=False)
        for column, each, limits in zip(columns, bins_each, ranges, strict=True)
    ]
    found = [_bin_of(column, edge, are_equal=False) for column, edge in zip(columns, edges, strict=True)]
    heavy = None if weights is None else to_array(weights, device)._value
    if heavy is not None:
        if KIND[heavy.spec.dtype] == "complex":
            raise TypeError("the weights of points in several dimensions are real numbers.")
        heavy = cast(heavy, "float64")
    counts = cast(_counted(found, [edge.spec.shape[0] - 1 for edge in edges], heavy), "float64")
    result = _density(counts, edges) if density else counts
    return Array(bound_to(result, device)), tuple(Array(bound_to(edge, device)) for edge in edges)


def _coordinates(sample: Any) -> tuple[list[Value], ArrayDevice]:
    """The columns of a matrix, or the vectors of a list."""
    if not isinstance(sample, Array | np.ndarray):
        parts = arrays(*sample)
        return [_flat(part) for part in parts], parts[0]._device
    table = to_array(sample, device_of(sample))
    rows = table.shape[0]
    value = reshape(table._value, (rows, table.size // rows if rows else 1))
    columns = builtins.range(value.spec.shape[1])
    return [reshape(slice_axis(value, 1, each, each + 1), (rows,)) for each in columns], table._device


@implements(np.histogram2d)
def histogram2d(
    x: Any,
    y: Any,
    bins: Any = 10,
    range: Sequence[Range] | None = None,
    density: bool | None = None,
    weights: Any = None,
) -> tuple[Array, Array, Array]:
    """`histogram` for points in the plane."""
    count = len(bins) if isinstance(bins, tuple | list) or ndim(bins) else 1
    if count not in (1, 2):
        bins = (bins, bins)
    counts, (rows, columns) = histogramdd([x, y], bins, range, density, weights)
    return counts, rows, columns


@implements(np.bincount)
def bincount(x: Any, /, weights: Any = None, minlength: int = 0) -> Array:
    """How often each integer from 0 occurs.

    How many these are depends on the largest, so that is computed, unless `minlength` has room for all of the type:
    256 for bytes.
    """
    (array,) = arrays(x)
    if array.ndim != 1:
        raise ValueError(f"bincount takes a vector, not {array.ndim} axes.")
    value = array._value
    if not np.can_cast(array.dtype, np.int64, "safe") and array.size:
        raise TypeError(f"bincount counts integers; convert {array.dtype} first.")
    if minlength < 0:
        raise ValueError(f"minlength is 0 or more, not {minlength}.")
    length = operator.index(minlength)
    value = cast(value, "int64")
    if array.size and not (array.dtype.kind in "bu" and length > _largest(array.dtype)):
        ends = [int(Array(apply(Reduce(fn, (0,)), value))) for fn in ("min", "max")]
        if ends[0] < 0:
            raise ValueError("bincount counts integers from 0; there is a negative one.")
        length = max(length, ends[1] + 1)
    kind: DType = "int64" if weights is None or not array.size else "float64"  # of nothing NumPy forgets the weights
    if weights is None:
        amounts = filled((array.size,), 1, kind)
    else:
        amounts = cast(to_array(weights, array._device)._value, kind)
        if amounts.spec.shape != array.shape:
            raise ValueError(f"weights of shape {amounts.spec.shape} do not fit {array.shape}.")
    empty = filled((length,), 0, kind)
    return Array(bound_to(apply(Scatter("add", 0), empty, value, amounts) if length else empty, array._device))


def _largest(dtype: np.dtype[Any]) -> int:
    return 1 if dtype == np.bool_ else int(np.iinfo(dtype).max)


@implements(np.digitize)
def digitize(x: Any, bins: Any, right: bool = False) -> Array:
    """The bin that each element is in, for edges that go up or down. `right` says which edge belongs to a bin."""
    points, edges = arrays(x, bins)
    if edges.ndim != 1:
        raise ValueError(f"the edges are a vector, not {edges.ndim} axes.")
    if "c" in (points.dtype.kind, edges.dtype.kind):
        raise TypeError("complex numbers have no order, and so no bins.")
    line, value = same_dtype(edges._value, points._value)
    length = edges.shape[0]
    side: Literal["left", "right"] = "left" if right else "right"
    if length == 0:
        return Array(apply(Search(side), line, value))
    if isinstance(bins, Array):
        # Which way the edges go is known when it runs.
        falls = compare("greater", *(reshape(slice_axis(line, 0, each, each + 1), ()) for each in (0, length - 1)))
        up = apply(Search(side), where(falls, apply(Flip((0,)), line), line), value)
        return Array(where(falls, binary("subtract", length, up), up))
    steps = np.asarray(bins)
    goes_down = bool(steps[0] > steps[-1])
    wrong = steps[:-1] < steps[1:] if goes_down else steps[:-1] > steps[1:]
    if wrong.any():
        raise ValueError("the edges must all go up, or all go down.")
    if not goes_down:
        return Array(apply(Search(side), line, value))
    return Array(binary("subtract", length, apply(Search(side), apply(Flip((0,)), line), value)))
