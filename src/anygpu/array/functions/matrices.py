"""Products of values whose axes have labels, and steps on matrices in the last two axes of a value.

Both are the common ground of `matmul`, `tensordot`, `einsum`, linear algebra and norms. Labels are integers. Axes that
broadcast as a stack have negative ones, counted from the last axis as NumPy aligns them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from anygpu.array.core import recording
from anygpu.array.core.arguments import slice_axis
from anygpu.array.core.device import ArrayDevice
from anygpu.array.core.expression import Value
from anygpu.program.dtypes import KIND, REAL_PART, DType, promote
from anygpu.program.ops.along_axis import UnorderedReduce
from anygpu.program.primitives import (
    Argsort,
    Cast,
    Contract,
    Flip,
    Gather,
    Iota,
    Linear,
    Primitive,
    Reduce,
    Sort,
    Spec,
    product,
)

# -- products of values whose axes have labels: the common ground of `matmul`, `tensordot`, `einsum` and their relatives
#
# Labels are integers. Axes that broadcast as a stack have negative ones, counted from the last axis as NumPy aligns
# them.


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
    total = recording.apply(
        Reduce("any", axes) if x.value.spec.dtype == "bool" else UnorderedReduce("sum", axes), x.value
    )
    return Labelled(total, tuple(label for label in x.labels if label in keep))


def arranged(x: Labelled, order: Labels) -> Value:
    return recording.permute(x.value, _positions(x, order))


def follow(value: Value, path: Sequence[Primitive]) -> Value:
    """The value after a sequence of primitives."""
    for op in path:
        value = recording.apply(op, value)
    return value


def _positions(x: Labelled, labels: Labels) -> tuple[int, ...]:
    return tuple(x.labels.index(label) for label in labels)


def _with_stack(value: Value, core: Labels) -> Labelled:
    """The value with labels for its last axes, and negative ones for the axes that broadcast before them.

    Raises `ValueError` where it has too few axes.
    """
    free = len(value.spec.shape) - len(core)
    if free < 0:
        raise ValueError(f"an operand of shape {value.spec.shape} has too few axes: at least {len(core)} are needed.")
    return Labelled(value, (*range(-free, 0), *core))


def _without_repeats(x: Labelled, beside: Labelled) -> Labelled:
    """The value without axes of length 1 that the other operand has longer.

    Such axes broadcast, and need not be repeated for a product.
    """
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


# -- steps on matrices in the last two axes of a value, of which linear algebra and its norms are composed


def dimensions(x: Value) -> int:
    return len(x.spec.shape)


def transposed_order(count: int) -> tuple[int, ...]:
    return (*range(count - 2), count - 1, count - 2)


def adjoint(x: Value) -> Value:
    """Transposed and, if it is complex, conjugated."""
    turned = recording.permute(x, transposed_order(dimensions(x)))
    return recording.unary("conj", turned) if KIND[x.spec.dtype] == "complex" else turned


def product_of(x: Value, y: Value) -> Value:
    """The matrix product of stacks."""
    dtype = promote(x.spec.dtype, y.spec.dtype)
    return stacked(recording.cast(x, dtype), (0, 1), recording.cast(y, dtype), (1, 2), (0, 2))


def power(base: Value, exponent: int) -> Value:
    """By repeated squaring; the exponent is at least 1."""
    if exponent == 1:
        return base
    half = power(base, exponent // 2)
    square = product_of(half, half)
    return product_of(square, base) if exponent % 2 else square


def product_of_chain(chain: Sequence[Value]) -> Value:
    """The product of matrices, split where that is cheapest, for every stretch of the chain from short to long."""
    lengths = [chain[0].spec.shape[0], *(each.spec.shape[1] for each in chain)]
    best: dict[tuple[int, int], tuple[int, int]] = {(i, i + 1): (0, i) for i in range(len(chain))}
    for size in range(2, len(chain) + 1):
        for i in range(len(chain) - size + 1):
            j = i + size
            best[i, j] = min(
                (best[i, k][0] + best[k, j][0] + lengths[i] * lengths[k] * lengths[j], k) for k in range(i + 1, j)
            )

    def multiplied(i: int, j: int) -> Value:
        split = best[i, j][1]
        return chain[i] if j == i + 1 else product_of(multiplied(i, split), multiplied(split, j))

    return multiplied(0, len(chain))


def identity(size: int, dtype: DType, device: ArrayDevice | None) -> Value:
    """The identity matrix as a value on a device."""
    count = Value(Iota(size, "int64"), (), Spec((size,), "int64"), device)
    same = recording.binary("equal", recording.reshape(count, (size, 1)), recording.reshape(count, (1, size)))
    return recording.apply(Cast(dtype), same)


def with_last_axis(x: Value) -> Value:
    return recording.reshape(x, (*x.spec.shape, 1))


def between(x: Value, start: int, stop: int) -> Value:
    """A part of the last axis; what lies outside of it is left out."""
    length = x.spec.shape[-1]
    return slice_axis(x, dimensions(x) - 1, min(max(start, 0), length), min(stop, length))


def first(x: Value) -> Value:
    """The first of the last axis, which stays."""
    return between(x, 0, 1)


def last(x: Value) -> Value:
    return between(x, x.spec.shape[-1] - 1, x.spec.shape[-1])


def count_true(x: Value) -> Value:
    return recording.apply(Reduce("sum", (dimensions(x) - 1,)), recording.cast(x, "int64"))


def divided_rows(x: Value, s: Value, large: Value) -> Value:
    """Each row of the matrices divided by its number in `s`, where that is large enough, and 0 elsewhere."""
    inverse = recording.where(large, recording.binary("divide", 1, recording.where(large, s, 1)), 0)
    return recording.binary("multiply", with_last_axis(inverse), x)


def epsilon(dtype: DType) -> float:
    return float(np.finfo(REAL_PART.get(dtype, dtype)).eps)


def solve_together(x: Value, y: Value) -> Value:
    """Equations with one matrix and a stack of right sides: all of these side by side, so it is factorised once."""
    count = dimensions(y)
    *stack, rows, columns = y.spec.shape
    beside = recording.permute(y, (count - 2, *range(count - 2), count - 1))
    solved = recording.apply(Linear("solve"), x, recording.reshape(beside, (rows, y.spec.size // rows)))
    apart = recording.reshape(solved, (rows, *stack, columns))
    return recording.permute(apart, (*range(1, count - 1), 0, count - 1))


# Singular values


def svd_parts(x: Value, *, full: bool = False) -> tuple[Value, Value, Value]:
    """The three factors U, S and Vh of a singular value decomposition; with `full`, U and Vh are square."""
    return (
        recording.apply(Linear("svd", 0, full), x),
        recording.apply(Linear("svd", 1, full), x),
        recording.apply(Linear("svd", 2, full), x),
    )


def svd_parts_of_hermitian(x: Value) -> tuple[Value, Value, Value]:
    """The singular values of a Hermitian matrix are the sizes of its eigenvalues; their signs go to one side."""
    values, vectors = recording.apply(Linear("eigh", 0), x), recording.apply(Linear("eigh", 1), x)
    axis = dimensions(values) - 1
    sizes = recording.unary("abs", values)
    order = recording.apply(Flip((axis,)), recording.apply(Argsort(axis), sizes))
    left = recording.apply(Gather(axis + 1, axis), vectors, order)
    signs = recording.binary("copysign", recording.constant(1.0, values.spec.dtype), values)
    signs = recording.apply(Gather(axis, axis), signs, order)
    row = recording.reshape(signs, (*signs.spec.shape[:-1], 1, signs.spec.shape[-1]))
    return left, recording.apply(Gather(axis, axis), sizes, order), adjoint(recording.binary("multiply", left, row))


def singular_values(x: Value, *, hermitian: bool = False) -> Value:
    """In descending order."""
    if not hermitian:
        return recording.apply(Linear("svdvals"), x)
    sizes = recording.unary("abs", recording.apply(Linear("eigvalsh"), x))
    axis = dimensions(sizes) - 1
    return recording.apply(Flip((axis,)), recording.apply(Sort(axis), sizes))


# Norms


def vector_norms(x: Value, order: Any, axis: int) -> Value:
    """The norm of the vectors along an axis, which is gone from the result."""
    if isinstance(order, str):
        raise ValueError(f"Invalid norm order '{order}' for vectors: it is a number, or inf or -inf.")
    if order == 2:
        return recording.unary("sqrt", _sum(recording.squared_length(x), axis))
    if order == 0:
        nonzero = recording.compare("not_equal", x, 0)
        return _sum(recording.cast(nonzero, REAL_PART.get(x.spec.dtype, x.spec.dtype)), axis)
    sizes = recording.unary("abs", x)
    if order == math.inf:
        return _largest(sizes, axis)
    if order == -math.inf:
        return recording.apply(Reduce("min", (axis,)), sizes)
    if order == 1:
        return _sum(sizes, axis)
    exponent = float(order)
    total = _sum(recording.binary("power", sizes, exponent), axis)
    return recording.binary("power", total, 1 / exponent)


def matrix_norms(x: Value, order: Any) -> Value:
    """The norm of the matrices in the last two axes, which are gone from the result."""
    columns = dimensions(x) - 1
    rows = columns - 1
    if order in ("fro", "f"):
        return recording.unary("sqrt", recording.apply(Reduce("sum", (rows, columns)), recording.squared_length(x)))
    if order == "nuc" or order in (2, -2):
        if x.spec.dtype in ("float16", "bfloat16"):
            raise TypeError(f"array type {x.spec.dtype} is unsupported in linalg; convert it with astype(np.float32).")
        s = singular_values(x)
        if order == "nuc":
            return _sum(s, rows)
        return _largest(s, rows) if order == 2 else recording.apply(Reduce("min", (rows,)), s)
    if order not in (1, -1, math.inf, -math.inf):
        raise ValueError(f"Invalid norm order for matrices: {order!r}; it is 1, -1, 2, -2, inf, -inf, 'fro' or 'nuc'.")
    sums = _sum(recording.unary("abs", x), rows if order in (1, -1) else columns)
    return _largest(sums, rows) if order > 0 else recording.apply(Reduce("min", (rows,)), sums)


def _sum(x: Value, axis: int) -> Value:
    return recording.apply(Reduce("sum", (axis,)), x)


def _largest(x: Value, axis: int) -> Value:
    """The largest of numbers that are not negative; of none, 0, as the sum of none is."""
    return recording.apply(Reduce("max" if x.spec.shape[axis] else "sum", (axis,)), x)
