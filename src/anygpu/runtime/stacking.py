"""Stacks the arguments of several calls for one launch, and splits its results.

A row holds the inputs of one call, a column one input of all calls. Every caller gets results in memory of its own: a
view would keep the whole launch alive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anygpu.array.core.array import Array
from anygpu.array.core.device import to_numpy_dtype
from anygpu.array.trace.traced import CallInputs, Traced
from anygpu.base.typing import HostArray
from anygpu.placement.call import Call
from anygpu.program.graph import Program
from anygpu.program.primitives import Spec

#: For each input of the program, whether it is stacked.
Marks = tuple[bool, ...]

#: From this many bytes on, arrays are compared by address before they count as different: a shared matrix matters.
_LARGE = 16 << 10


def rows_of(traced: Traced, calls: Sequence[Call]) -> list[CallInputs]:
    """The inputs of the calls, up to the first call without any: for its values the function itself might raise."""
    rows: list[CallInputs] = []
    inputs = traced.inputs
    for call in calls:
        given = inputs(call.function, call.arguments, call.keywords)
        if given is None:
            break
        rows.append(given)
    return rows


def alike(program: Program, rows: list[CallInputs]) -> list[CallInputs]:
    """The rows up to the first that does not fit: by shape, or because it lacks the large array of the first two."""
    count = len(rows)
    if count < 2:
        return rows
    for position, spec in enumerate(program.inputs):
        first, shape = rows[0][position], spec.shape
        shares = spec.nbytes >= _LARGE and _is_same(first, rows[1][position])
        for number in range(count):
            value = rows[number][position]
            if value is first and number:
                continue
            fits = (isinstance(value, np.ndarray) and value.shape == shape) or isinstance(value, Array)
            if not fits or (shares and not _is_same(value, first)):
                count = number
                break
    return rows[:count]


def differing(program: Program, rows: Sequence[Sequence[Any]]) -> Marks:
    """Which inputs differ between the rows."""
    return tuple([_differs(spec, [row[position] for row in rows]) for position, spec in enumerate(program.inputs)])


def _differs(spec: Spec, column: Sequence[Any]) -> bool:
    first = column[0]
    if all(value is first for value in column):
        return False
    if not spec.shape:
        # By their bits: 0 and -0 are equal, but 1/0 and 1/-0 are not.
        return any(value.tobytes() != first.tobytes() for value in column)
    return spec.nbytes < _LARGE or not all(_is_same(value, first) for value in column)


def _is_same(one: Any, other: Any) -> bool:
    """Whether both are the same memory with the same strides: `w.T` is a new object each time."""
    if one is other:
        return True
    if not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray):
        return False
    return (
        one.strides == other.strides
        and one.dtype == other.dtype
        and one.__array_interface__["data"] == other.__array_interface__["data"]
    )


def covers(marks: Marks, needed: Marks) -> bool:
    return all(mark or not must for mark, must in zip(marks, needed, strict=True))


def stack(column: Sequence[Any], spec: Spec, size: int) -> HostArray:
    """One array of the column, padded with its first value."""
    dtype = to_numpy_dtype(spec.dtype)
    whole = [*column, *(column[0],) * (size - len(column))]
    if not spec.shape:
        return np.array(whole, dtype)
    # Handles any memory order, without a Python step for each row.
    stacked: HostArray = np.empty((size * spec.shape[0], *spec.shape[1:]), dtype)
    np.concatenate(whole, out=stacked, casting="unsafe")
    return stacked.reshape(size, *spec.shape)


def as_given(value: Any, spec: Spec) -> HostArray:
    return np.asarray(np.asarray(value) if isinstance(value, Array) else value, to_numpy_dtype(spec.dtype))


def split(traced: Traced, results: Sequence[HostArray], rows: Sequence[CallInputs]) -> list[Any]:
    """The return value of each call."""
    count = len(rows)
    columns: list[list[Any]] = []
    for result in results:
        taken = result[:count]
        columns.append([row.copy() for row in taken] if result.ndim > 1 else list(taken))
    return [traced.rebuild(made, given) for made, given in zip(zip(*columns, strict=True), rows, strict=True)]
