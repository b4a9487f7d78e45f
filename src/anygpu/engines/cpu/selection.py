"""Sorts of which few places are read, such as a median: these are found without sorting the rest.

`places_that_are_read` asks a program, `first_positions` does it for positions, and `select` for values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from anygpu.base.typing import HostArray
from anygpu.program.dtypes import KIND
from anygpu.program.graph import Program
from anygpu.program.primitives import Argsort, Constant, Gather, Slice, Sort

#: The part of a row whose first positions are found faster than the row is sorted.
_FEW_OF_ROW = 8
#: Places that are found one by one.
_MOST_PLACES = 16
#: A long row: a sample of it tells where a place is, nearly; how many elements the sample has; and by how many standard
#: deviations a place may be elsewhere.
_LONG_ROW, _SAMPLE, _DEVIATIONS = 1 << 15, (2048, 65536), 3.0
#: So many groups of neighbouring places are found one by one: each takes a pass over the row.
_MOST_GROUPS = 5
#: Elements of a long row that are looked at together: they are in the cache for the next look.
_BLOCK = 1 << 16
#: A fraction of a row by which samples step, so that their steps go with no period of the data.
_GOLDEN = 0.6180339887498949


def places_that_are_read(program: Program, node: int) -> Sequence[int]:
    """The places along the axis of a sort that others read; none where all are read, or nearly.

    For positions they begin with the first one.
    """
    op = program.nodes[node].op
    if not isinstance(op, Sort | Argsort) or node in program.outputs:
        return ()
    if KIND[program.specs[program.nodes[node].inputs[0]].dtype] == "complex":
        return ()
    shape = program.specs[node].shape
    axis = op.axis % len(shape)
    places: set[int] = set()
    for reader, inputs in program.nodes:
        if node in inputs:
            found = _places_of(program, reader, inputs, node, axis)
            if found is None:
                return ()
            places.update(found)
    if isinstance(op, Sort):
        return sorted(places) if 0 < len(places) <= min(_MOST_PLACES, shape[axis] // 2) else ()
    count = max(places, default=-1) + 1
    return range(count) if 0 < count <= shape[axis] // _FEW_OF_ROW else ()


def _places_of(program: Program, reader: Any, inputs: Sequence[int], node: int, axis: int) -> Sequence[int] | None:
    """The places along an axis of a node that one reader reads; `None` for all."""
    if isinstance(reader, Slice):
        found = range(reader.starts[axis], reader.stops[axis], reader.steps[axis])
        return found if len(found) <= program.specs[node].shape[axis] // 2 else None
    index = program.nodes[inputs[-1]].op
    picks = isinstance(reader, Gather) and reader.axis == axis and not reader.batch and inputs[0] == node
    if picks and isinstance(index, Constant):
        return [int(each) for each in np.frombuffer(index.data, index.dtype)]
    return None


def first_positions(x: HostArray, axis: int, count: int, *, stable: bool = True) -> HostArray:
    """The first of the positions that `argsort` along an axis returns, without sorting all of them.

    Where it is not `stable`, rows with equal elements among the first ones are sorted as NumPy does.
    """
    moved = np.moveaxis(x, axis, -1)
    rows = moved.reshape(-1, moved.shape[-1])
    limits = np.partition(rows, count - 1, axis=1)[:, count - 1 : count]
    among = rows <= limits
    # Several values may equal the last of the first ones, and NaN is not below itself.
    alone = np.count_nonzero(among, axis=1) == count
    if alone.all():
        places = np.nonzero(among)[1].reshape(-1, count)
        order = np.argsort(np.take_along_axis(rows, places, 1), axis=1, kind="stable")
        found = np.take_along_axis(places, order, 1)
        if not stable:
            ordered = np.take_along_axis(rows, found, 1)
            tied = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)
            if tied.any():
                found[tied] = np.argsort(rows[tied], axis=1)[:, :count]
    else:
        found = np.empty((len(rows), count), np.int64)
        found[~alone] = np.argsort(rows[~alone], axis=1, kind="stable" if stable else None)[:, :count]
        if alone.any():
            found[alone] = first_positions(rows[alone], 1, count, stable=stable)
    return np.moveaxis(found.reshape(*moved.shape[:-1], count), -1, axis)


def select(x: HostArray, axis: int, places: Sequence[int], result: HostArray) -> None:
    """Write what a sort along an axis has at some places, which are in order, to these places of the result."""
    rows = np.moveaxis(x, axis, -1)
    found = np.moveaxis(result, axis, -1)
    # NumPy compares float16 one by one, which takes longer than its partition.
    if rows.shape[-1] < _LONG_ROW or x.dtype == np.float16:
        found[..., places] = np.partition(rows, places, axis=-1)[..., places]
        return
    for row in np.ndindex(rows.shape[:-1]):
        found[row][places] = _selected(rows[row], places)


def _selected(row: HostArray, places: Sequence[int]) -> list[Any]:
    """The elements at some places of a long row if it were sorted: the last, the first, and others by a sample."""
    sample: HostArray | None = None
    found: dict[int, Any] = {}
    last = len(row) - 1
    ends = [0, *(at for at, (one, other) in enumerate(pairwise(places), 1) if other - one > 1), len(places)]
    if len(ends) - 1 > _MOST_GROUPS:
        return list(np.partition(row, places)[list(places)])
    for begin, end in pairwise(ends):
        near = list(places[begin:end])
        if near == [last]:
            found[last] = row.max()  # NaN, where there is one, as NaN comes last
            continue
        if near == [0]:
            found[0] = np.fmin.reduce(row)
            continue
        sample = _sampled(row) if sample is None else sample
        found.update(zip(near, _between(row, near, sample), strict=True))
    return [found[place] for place in places]


def _sampled(row: HostArray) -> HostArray:
    """Some elements of a row, in order."""
    count = min(max(int(len(row) ** (2 / 3)), _SAMPLE[0]), _SAMPLE[1])
    step = int(len(row) * _GOLDEN) | 1
    return np.sort(row[np.arange(count) * step % len(row)])


def _run_of(row: HostArray, value: Any) -> tuple[int, int]:
    """The first place of a value in a row if it were sorted, and how many equal elements there are."""
    if value != value:
        count = int(np.count_nonzero(row != row))
        return len(row) - count, count
    return int(np.count_nonzero(row < value)), int(np.count_nonzero(row == value))


def _between(row: HostArray, places: Sequence[int], sample: HostArray) -> HostArray:
    """The elements at neighbouring places, among those that are between two of the sample."""
    share = len(sample) / len(row)
    margin = _DEVIATIONS * math.sqrt(len(sample)) / 2
    low = sample[max(int(places[0] * share - margin), 0)]
    high = sample[min(int(places[-1] * share + margin), len(sample) - 1)]
    if low == high or low != low:  # picking out most of a row takes longer than NumPy's partition
        first, count = _run_of(row, low)
        if first <= places[0] and places[-1] < first + count:
            return np.full(len(places), low)
    below, parts = 0, []
    for begin in range(0, len(row), _BLOCK):
        block = row[begin : begin + _BLOCK]
        small = block < low
        below += int(np.count_nonzero(small))
        np.logical_not(small, out=small)
        small &= block <= high
        parts.append(block[small])
    middle = np.concatenate(parts)
    inside = [place - below for place in places]
    if inside[0] < 0 or inside[-1] >= len(middle):
        return np.asarray(np.partition(row, places)[list(places)])
    return np.asarray(np.partition(middle, inside)[inside])
