"""Products of values whose axes have labels: the common ground of `matmul`, `tensordot`, `einsum` and their relatives.

Labels are integers. Axes that broadcast as a stack have negative ones, counted from the last axis as NumPy aligns them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from anygpu.array.core import recording
from anygpu.array.core.expression import Value
from anygpu.program.primitives import (
    Contract,
    Permute,
    Primitive,
    Reduce,
    Reshape,
    Shape,
    Slice,
    product,
)

Labels = tuple[int, ...]


class Labelled(NamedTuple):
    """A value and the label of each of its axes, all different."""

    value: Value
    labels: Labels

    def length(self, label: int) -> int:
        return self.value.spec.shape[self.labels.index(label)]

    def lengths(self) -> dict[int, int]:
        return dict(zip(self.labels, self.value.spec.shape, strict=True))


def multiply(one: Labelled, other: Labelled, keep: Sequence[int]) -> Labelled:
    """Products of two values of one type, summed over every label that is not kept.

    An axis of length 1 beside a longer one of the same label is dropped, not repeated: a stack that broadcasts costs
    no memory, and one matrix product serves all of it.
    """
    one, other = _without_repeats(one, other), _without_repeats(other, one)
    one = summed(one, [label for label in one.labels if label in keep or label in other.labels])
    other = summed(other, [label for label in other.labels if label in keep or label in one.labels])
    shared = [label for label in one.labels if label in other.labels]
    inner = tuple(label for label in shared if label not in keep)
    if not inner:
        return _elementwise(one, other, keep)
    batch = tuple(label for label in keep if label in shared)
    value = recording.apply(
        Contract(
            left=_positions(one, inner),
            right=_positions(other, inner),
            left_batch=_positions(one, batch),
            right_batch=_positions(other, batch),
        ),
        one.value,
        other.value,
    )
    free = tuple(label for each in (one, other) for label in each.labels if label not in shared)
    return Labelled(value, batch + free)


def multiply_all(operands: Sequence[Labelled], keep: Labels) -> Value:
    """The product of all operands with the kept labels in their order; the pair that shrinks most goes first."""
    waiting = list(operands)
    while len(waiting) > 1:
        first, second = _best_pair(waiting, keep)
        others = [each for position, each in enumerate(waiting) if position not in (first, second)]
        needed = (*keep, *dict.fromkeys(label for each in others for label in each.labels if label not in keep))
        waiting = [*others, multiply(waiting[first], waiting[second], needed)]
    return arranged(summed(waiting[0], keep), keep)


def stacked(one: Value, left: Labels, other: Value, right: Labels, result: Labels) -> Value:
    """What NumPy calls a generalised ufunc: the last axes are labelled, and all axes before them broadcast."""
    x, y = _with_stack(one, left), _with_stack(other, right)
    for label in left:
        if label in right and x.length(label) != y.length(label):
            raise ValueError(
                f"the shapes {one.spec.shape} and {other.spec.shape} do not fit: the axes to be summed over "
                f"have the lengths {x.length(label)} and {y.length(label)}."
            )
    stack = recording.broadcast_shapes(
        one.spec.shape[: len(one.spec.shape) - len(left)], other.spec.shape[: len(other.spec.shape) - len(right)]
    )
    order = (*range(-len(stack), 0), *result)
    return arranged(multiply(x, y, order), order)


def summed(x: Labelled, keep: Sequence[int]) -> Labelled:
    """The sum over all other labels; for bool, whether any is true."""
    axes = tuple(axis for axis, label in enumerate(x.labels) if label not in keep)
    if not axes:
        return x
    total = recording.apply(Reduce("any" if x.value.spec.dtype == "bool" else "sum", axes), x.value)
    return Labelled(total, tuple(label for label in x.labels if label in keep))


def arranged(x: Labelled, order: Labels) -> Value:
    return recording.permute(x.value, _positions(x, order))


def diagonal_path(shape: Shape, axis1: int, axis2: int, offset: int = 0) -> tuple[Primitive, ...]:
    """The movements to a diagonal of two axes, which lies along a new last axis."""
    rest = tuple(axis for axis in range(len(shape)) if axis not in (axis1, axis2))
    rows, columns = shape[axis1], shape[axis2]
    first_row, first_column = max(-offset, 0), max(offset, 0)
    count = max(0, min(rows - first_row, columns - first_column))
    start = first_row * columns + first_column if count else 0
    stop = start + (count - 1) * (columns + 1) + 1 if count else 0
    lengths = tuple(shape[axis] for axis in rest)
    order = (*rest, axis1, axis2)
    path: list[Primitive] = [] if order == tuple(range(len(shape))) else [Permute(order)]
    path.append(Reshape((*lengths, rows * columns)))
    path.append(Slice((*(0 for _ in rest), start), (*lengths, stop), (*(1 for _ in rest), columns + 1)))
    return tuple(path)


def follow(value: Value, path: Sequence[Primitive]) -> Value:
    for op in path:
        value = recording.apply(op, value)
    return value


def _positions(x: Labelled, labels: Labels) -> tuple[int, ...]:
    return tuple(x.labels.index(label) for label in labels)


def _with_stack(value: Value, core: Labels) -> Labelled:
    free = len(value.spec.shape) - len(core)
    if free < 0:
        raise ValueError(f"an operand of shape {value.spec.shape} has too few axes: at least {len(core)} are needed.")
    return Labelled(value, (*range(-free, 0), *core))


def _without_repeats(x: Labelled, beside: Labelled) -> Labelled:
    lengths = beside.lengths()
    kept = [
        (label, length)
        for label, length in zip(x.labels, x.value.spec.shape, strict=True)
        if length != 1 or lengths.get(label, 1) == 1
    ]
    return Labelled(recording.reshape(x.value, tuple(length for _, length in kept)), tuple(label for label, _ in kept))


def _elementwise(one: Labelled, other: Labelled, keep: Sequence[int]) -> Labelled:
    """Nothing to sum over: an ordinary product, which engines fuse with what is around it."""
    order = tuple(label for label in keep if label in one.labels or label in other.labels)
    factors = []
    for each in (one, other):
        lengths = each.lengths()
        value = arranged(each, tuple(label for label in order if label in lengths))
        factors.append(recording.reshape(value, tuple(lengths.get(label, 1) for label in order)))
    return Labelled(recording.binary("multiply", factors[0], factors[1]), order)


def _best_pair(operands: Sequence[Labelled], keep: Labels) -> tuple[int, int]:
    """The pair whose product is smallest against what goes into it; pairs without a common label come last."""
    if len(operands) == 2:
        return 0, 1
    best: tuple[bool, int, int, int] | None = None
    for first, one in enumerate(operands):
        for second in range(first + 1, len(operands)):
            other = operands[second]
            needed = set(keep).union(
                *(each.labels for position, each in enumerate(operands) if position not in (first, second))
            )
            lengths = one.lengths()
            for label, length in other.lengths().items():
                lengths[label] = max(length, lengths.get(label, 1)) if length else 0
            size = product(tuple(length for label, length in lengths.items() if label in needed))
            gain = size - one.value.spec.size - other.value.spec.size
            apart = not set(one.labels) & set(other.labels) and bool(one.labels) and bool(other.labels)
            candidate = (apart, gain, first, second)
            if best is None or candidate < best:
                best = candidate
    return best[2:] if best is not None else (0, 1)
