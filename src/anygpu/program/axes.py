"""Where the axes of a primitive's inputs are in its result: one rule a primitive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple

from anygpu.program import primitives as p
from anygpu.program.attention import Attend
from anygpu.program.custom import Custom
from anygpu.program.primitives import Primitive, Shape, Spec, free_axes, product

#: It goes on from an input.
KEPT: Final = "kept"
#: It is made here, and all that is along it is the same: it can have any length.
NEW: Final = "new"
#: A stretch of it can be taken without the rest, if the inputs are there as a whole.
FROM_WHOLE: Final = "from whole"

Origin = Literal["kept", "new", "from whole"]


class Axes(NamedTuple):
    """For each input and each of its axes, the axis of the result along which the same position stays the same.

    That is a strong word: a piece of the result along that axis is the primitive, applied to the same piece of every
    input that has an axis going there and to the whole of all others. `None` stands for an axis that is mixed.
    """

    inputs: tuple[tuple[int | None, ...], ...]
    #: For each axis of the result where it comes from; `None` when every element along it depends on others.
    result: tuple[Origin | None, ...]


def axes_of(op: Primitive, result: Spec, inputs: Sequence[Spec]) -> Axes:
    """The rule for one primitive between values of these shapes."""
    passed = tuple(tuple(each) for each in _RULES[type(op)](op, result.shape, [each.shape for each in inputs]))
    reached = {axis for each in passed for axis in each if axis is not None}
    otherwise = _OTHERWISE.get(type(op))
    return Axes(passed, tuple(KEPT if axis in reached else otherwise for axis in range(len(result.shape))))


Passed = Sequence[Sequence[int | None]]


def _nothing(op: Primitive, result: Shape, inputs: Sequence[Shape]) -> Passed:
    return [[None] * len(each) for each in inputs]


def _every(op: Primitive, result: Shape, inputs: Sequence[Shape]) -> Passed:
    return [range(len(each)) for each in inputs]


def _reduce(op: p.Reduce, result: Shape, inputs: Sequence[Shape]) -> Passed:
    left = free_axes(inputs[0], op.axes)
    return [[left.index(axis) if axis in left else None for axis in range(len(inputs[0]))]]


def _but_one(op: Any, result: Shape, inputs: Sequence[Shape]) -> Passed:
    """What works along its one axis, and keeps the others where they are."""
    return [[axis if axis != op.axis else None for axis in range(len(each))] for each in inputs]


def _reshape(op: p.Reshape, result: Shape, inputs: Sequence[Shape]) -> Passed:
    """An axis is kept if it has its length and as many elements come before it: then as many come after it, too."""
    places: dict[tuple[int, int], int] = {}
    for axis, length in enumerate(result):
        key = (product(result[:axis]), length)
        places[key] = axis if key not in places else -1
    (shape,) = inputs
    keys = [(product(shape[:axis]), length) for axis, length in enumerate(shape)]
    found = [places.get(key, -1) if key[1] > 1 and keys.count(key) == 1 else -1 for key in keys]
    return [[axis if axis >= 0 else None for axis in found]]


def _permute(op: p.Permute, result: Shape, inputs: Sequence[Shape]) -> Passed:
    return [[op.axes.index(axis) for axis in range(len(op.axes))]]


def _broadcast(op: p.Broadcast, result: Shape, inputs: Sequence[Shape]) -> Passed:
    (shape,) = inputs
    first = len(result) - len(shape)
    return [[first + axis if length == result[first + axis] else None for axis, length in enumerate(shape)]]


def _slice(op: p.Slice, result: Shape, inputs: Sequence[Shape]) -> Passed:
    """All of an axis, or a part of it: then it is another axis."""
    return [[axis if length == result[axis] else None for axis, length in enumerate(inputs[0])]]


def _update(op: p.Update, result: Shape, inputs: Sequence[Shape]) -> Passed:
    x, new = inputs
    kept = [axis if length == new[axis] else None for axis, length in enumerate(x)]
    return [kept, kept]


def _flip(op: p.Flip, result: Shape, inputs: Sequence[Shape]) -> Passed:
    return [[axis if axis not in op.axes else None for axis in range(len(result))]]


def _pad(op: p.Pad, result: Shape, inputs: Sequence[Shape]) -> Passed:
    return [[axis if length == result[axis] else None for axis, length in enumerate(inputs[0])], []]


def _contract(op: p.Contract, result: Shape, inputs: Sequence[Shape]) -> Passed:
    x, y = inputs
    rows, columns = free_axes(x, op.left, op.left_batch), free_axes(y, op.right, op.right_batch)
    left, right = (*op.left_batch, *rows), (*op.right_batch, *columns)
    stack = len(op.left_batch)
    places = [*range(stack), *range(stack + len(rows), len(result))]
    return [
        [left.index(axis) if axis in left else None for axis in range(len(x))],
        [places[right.index(axis)] if axis in right else None for axis in range(len(y))],
    ]


def _gather(op: p.Gather, result: Shape, inputs: Sequence[Shape]) -> Passed:
    x, indices = inputs
    grown = len(indices) - op.batch - 1
    return [_around(op.axis, grown, len(x)), [*range(op.batch), *range(op.axis, op.axis + grown + 1)]]


def _scatter(op: p.Scatter, result: Shape, inputs: Sequence[Shape]) -> Passed:
    x, indices, _updates = inputs
    grown = len(indices) - op.batch - 1
    kept = [axis if axis != op.axis else None for axis in range(len(x))]
    added = [None] * (grown + 1)
    return [kept, [*range(op.batch), *added], [*range(op.axis), *added, *range(op.axis + 1, len(x))]]


def _around(axis: int, grown: int, count: int) -> list[int | None]:
    return [*range(axis), None, *range(axis + 1 + grown, count + grown)]


def _search(op: p.Search, result: Shape, inputs: Sequence[Shape]) -> Passed:
    return [[None], range(len(result))]


def _linear(op: p.Linear, result: Shape, inputs: Sequence[Shape]) -> Passed:
    stack = list(range(len(inputs[0]) - 2))
    if op.fn == "solve":  # every right-hand side is a problem of its own
        return [[*stack, None, None], [*stack, None, len(result) - 1]]
    return [[*stack, None, None]]


def _attend(op: Attend, result: Shape, inputs: Sequence[Shape]) -> Passed:
    """Queries are independent of one another, unless how many keys one sees depends on where it is."""
    stack = list(range(len(result) - 2))
    row = None if op.causal else len(result) - 2
    return [[*stack, row, None], [*stack, None, None], [*stack, None, len(result) - 1], [*stack, row, None]][
        : len(inputs)
    ]


_RULES: dict[type[Primitive], Callable[[Any, Shape, Sequence[Shape]], Passed]] = {
    p.Input: _nothing,
    p.Constant: _nothing,
    p.Iota: _nothing,
    p.Unary: _every,
    p.Binary: _every,
    p.Select: _every,
    p.Cast: _every,
    p.Reduce: _reduce,
    p.Scan: _but_one,
    p.Reshape: _reshape,
    p.Permute: _permute,
    p.Broadcast: _broadcast,
    p.Slice: _slice,
    p.Update: _update,
    p.Flip: _flip,
    p.Pad: _pad,
    p.Concatenate: _but_one,
    p.Windows: _but_one,
    p.Contract: _contract,
    p.Gather: _gather,
    p.Scatter: _scatter,
    p.Sort: _but_one,
    p.Argsort: _but_one,
    p.Search: _search,
    p.Fourier: _but_one,
    p.Linear: _linear,
    Attend: _attend,
    Custom: _nothing,
}

#: Where an axis of the result comes from that no input passes on.
_OTHERWISE: dict[type[Primitive], Origin] = {
    p.Input: NEW,
    p.Constant: FROM_WHOLE,
    p.Iota: FROM_WHOLE,
    p.Broadcast: NEW,
    p.Reshape: FROM_WHOLE,
    p.Slice: FROM_WHOLE,
    p.Update: FROM_WHOLE,
    p.Flip: FROM_WHOLE,
    p.Pad: FROM_WHOLE,
    p.Concatenate: FROM_WHOLE,
    p.Windows: FROM_WHOLE,
}
