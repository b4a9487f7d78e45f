"""Steps on matrices in the last two axes of a value, of which linear algebra and its norms are composed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from anygpu.array.core import recording
from anygpu.array.core.device import ArrayDevice
from anygpu.array.core.expression import Value
from anygpu.array.functions.contraction import stacked
from anygpu.program.dtypes import KIND, REAL_PART, DType, promote
from anygpu.program.primitives import (
    Argsort,
    Cast,
    Flip,
    Gather,
    Iota,
    Linear,
    Reduce,
    Slice,
    Sort,
    Spec,
)


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
    count = Value(Iota(size, "int64"), (), Spec((size,), "int64"), device)
    same = recording.binary("equal", recording.reshape(count, (size, 1)), recording.reshape(count, (1, size)))
    return recording.apply(Cast(dtype), same)


def with_last_axis(x: Value) -> Value:
    return recording.reshape(x, (*x.spec.shape, 1))


def between(x: Value, start: int, stop: int) -> Value:
    """A part of the last axis; what lies outside of it is left out."""
    *lengths, length = x.spec.shape
    zeros, ones = (0,) * len(lengths), (1,) * len(lengths)
    start, stop = min(max(start, 0), length), min(stop, length)
    return recording.apply(Slice((*zeros, start), (*lengths, stop), (*ones, 1)), x)


def first(x: Value) -> Value:
    """The first of the last axis, which stays."""
    return between(x, 0, 1)


def last(x: Value) -> Value:
    return between(x, x.spec.shape[-1] - 1, x.spec.shape[-1])


def count_true(x: Value) -> Value:
    return recording.apply(Reduce("sum", (dimensions(x) - 1,)), recording.cast(x, "int64"))


def squares(x: Value) -> Value:
    """The squared size of every element."""
    if KIND[x.spec.dtype] != "complex":
        return recording.binary("multiply", x, x)
    real, imag = recording.unary("real", x), recording.unary("imag", x)
    return recording.binary("add", recording.binary("multiply", real, real), recording.binary("multiply", imag, imag))


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
        return recording.unary("sqrt", _sum(squares(x), axis))
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
        return recording.unary("sqrt", recording.apply(Reduce("sum", (rows, columns)), squares(x)))
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
