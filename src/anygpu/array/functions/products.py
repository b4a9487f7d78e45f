"""Products of arrays: of vectors, of matrices and of everything that `einsum` can spell.

All of them are contractions of labelled values (see `matrices`). `einsum` reads its subscripts, checks lengths and
contracts two operands at a time, in NumPy's order or in the cheapest one.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import EllipsisType
from typing import Any

import numpy as np

from anygpu.array.core import recording
from anygpu.array.core.arguments import diagonal_path, slice_axis
from anygpu.array.core.array import Array, as_array, device_of
from anygpu.array.core.call_notes import without_axes
from anygpu.array.core.expression import Value, active_tracer, is_ordered
from anygpu.array.core.installed_numpy import CROSSES_PLANES
from anygpu.array.core.overrides import implements
from anygpu.array.core.views import attach
from anygpu.array.functions.matrices import (
    Labelled,
    Labels,
    follow,
    multiply,
    multiply_all,
    stacked,
)
from anygpu.program.dtypes import KIND, promote_all
from anygpu.program.primitives import Concatenate, Contract, Permute, Primitive, Reduce, Reshape, Spec

_MATRICES = Contract((1,), (0,))

# Labels of the axes that a product is about; see `contraction`.
_ROW, _INNER, _COLUMN = 0, 1, 2


@implements(np.matmul)
def matmul(x1: Any, x2: Any, /) -> Array:
    """The matrix product. Vectors count as a row on the left and as a column on the right; stacks broadcast."""
    x, y = _alike(x1, x2)
    left_shape, right_shape = x.spec.shape, y.spec.shape
    dimensions = len(left_shape), len(right_shape)
    if dimensions in ((2, 2), (2, 1)) and left_shape[1] == right_shape[0]:  # by far the most common: kept quick
        return Array(recording.apply(_MATRICES, x, y, spec=Spec(left_shape[:1] + right_shape[1:], x.spec.dtype)))
    if 0 in dimensions:
        raise ValueError("matmul takes arrays with at least one axis; use x * y to multiply by a single number.")
    left = (_INNER,) if dimensions[0] == 1 else (_ROW, _INNER)
    right = (_INNER,) if dimensions[1] == 1 else (_INNER, _COLUMN)
    return Array(stacked(x, left, y, right, left[:-1] + right[1:]))


@implements(np.vecdot)
def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Array:
    """Scalar products of the vectors along an axis; the first ones are conjugated, and all other axes broadcast."""
    x, y = _alike(x1, x2)
    x, y = _with_axis_last(x, axis), _with_axis_last(y, axis)
    return Array(stacked(_conjugate(x), (_INNER,), y, (_INNER,), ()))


@implements("matvec")
def matvec(x1: Any, x2: Any, /) -> Array:
    """Matrices times vectors, where both may be stacks."""
    x, y = _alike(x1, x2)
    return Array(stacked(x, (_ROW, _INNER), y, (_INNER,), (_ROW,)))


@implements("vecmat")
def vecmat(x1: Any, x2: Any, /) -> Array:
    """Conjugated vectors times matrices, where both may be stacks."""
    x, y = _alike(x1, x2)
    return Array(stacked(_conjugate(x), (_INNER,), y, (_INNER, _COLUMN), (_COLUMN,)))


@implements(np.tensordot)
def tensordot(a: Any, b: Any, axes: Any = 2) -> Array:
    """Products summed over `axes`: a count (the last of `a` with the first of `b`), or the axes of both."""
    x, y = _alike(a, b)
    of_x, of_y = _paired_axes(axes, x, y)
    if any(x.spec.shape[i] != y.spec.shape[j] for i, j in zip(of_x, of_y, strict=True)):
        raise ValueError(
            f"shape-mismatch for sum: axes {of_x} of the shape {x.spec.shape} and axes {of_y} of the shape "
            f"{y.spec.shape} do not have the same lengths."
        )
    value = _over_axes(x, of_x, y, of_y)
    if value.spec.shape:
        return Array(value)
    return without_axes(Array(value))  # NumPy reshapes a matrix here


@implements(np.dot)
def dot(a: Any, b: Any) -> Array:
    """The sum over the last axis of `a` and the last but one of `b`; with a single number, a product."""
    x, y = _alike(a, b)
    if not x.spec.shape or not y.spec.shape:
        return Array(recording.binary("multiply", x, y))
    axis = max(len(y.spec.shape) - 2, 0)
    _check_inner("dot", x, len(x.spec.shape) - 1, y, axis)
    return Array(_over_axes(x, (len(x.spec.shape) - 1,), y, (axis,)))


@implements(np.inner)
def inner(a: Any, b: Any, /) -> Array:
    """The sum over the last axis of both; with a single number, a product."""
    x, y = _alike(a, b)
    if not x.spec.shape or not y.spec.shape:
        return Array(recording.binary("multiply", x, y))
    last = len(x.spec.shape) - 1, len(y.spec.shape) - 1
    _check_inner("inner", x, last[0], y, last[1])
    return Array(_over_axes(x, last[:1], y, last[1:]))


@implements(np.outer)
def outer(a: Any, b: Any) -> Array:
    """Each element of `a` with each of `b`, after both have been flattened."""
    x, y = _alike(a, b)
    column, row = recording.reshape(x, (x.spec.size, 1)), recording.reshape(y, (1, y.spec.size))
    return Array(recording.binary("multiply", column, row))


@implements(np.kron)
def kron(a: Any, b: Any) -> Array:
    """The Kronecker product: blocks of `b`, scaled by the elements of `a`."""
    x, y = _alike(a, b)
    count = max(len(x.spec.shape), len(y.spec.shape))
    outside = (1,) * (count - len(x.spec.shape)) + x.spec.shape
    inside = (1,) * (count - len(y.spec.shape)) + y.spec.shape
    blocks = recording.reshape(x, tuple(length for n in outside for length in (n, 1)))
    cells = recording.reshape(y, tuple(length for n in inside for length in (1, n)))
    scaled = recording.binary("multiply", blocks, cells)
    return Array(recording.reshape(scaled, tuple(n * m for n, m in zip(outside, inside, strict=True))))


@implements(np.cross)
def cross(a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None) -> Array:
    """Return the cross product of vectors in space; a vector in the plane has 0 as its third component.

    For two vectors in the plane, which older versions of NumPy take, only the third component is returned.
    """
    if axis is not None:
        axisa = axisb = axisc = axis
    x, y = _alike(a, b)
    if not x.spec.shape or not y.spec.shape:
        raise ValueError("cross takes arrays with at least one axis, along which the vectors lie.")
    x, y = _with_axis_last(x, axisa), _with_axis_last(y, axisb)
    if x.spec.shape[-1] not in (2, 3) or y.spec.shape[-1] not in (2, 3):
        raise ValueError(
            "incompatible dimensions for cross product: vectors have 2 or 3 components, "
            f"not {x.spec.shape[-1]} and {y.spec.shape[-1]}."
        )
    if 2 in (x.spec.shape[-1], y.spec.shape[-1]):
        if (tracer := active_tracer.get()) is not None:
            tracer.stop("it calls np.cross with vectors of two components, which NumPy warns about or refuses")
        if not CROSSES_PLANES:
            raise ValueError(
                "cross takes vectors of 3 components, as the installed NumPy does, "
                f"not {x.spec.shape[-1]} and {y.spec.shape[-1]}. Give those in the plane a third one, 0."
            )
    shape = recording.broadcast_shapes(x.spec.shape[:-1], y.spec.shape[:-1])
    p, q = _components(x), _components(y)
    if len(p) == len(q) == 2:
        return Array(_minor(p, q, 0, 1, shape))
    parts = [recording.reshape(_minor(p, q, i, j, shape), (*shape, 1)) for i, j in ((1, 2), (2, 0), (0, 1))]
    axisc = recording.normal_axis(axisc, len(shape) + 1)
    result = recording.apply(Concatenate(len(shape)), *parts)
    return Array(recording.permute(result, (*range(axisc), len(shape), *range(axisc, len(shape)))))


@implements(np.trace)
def trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Array:
    """The sum of a diagonal. Small integers are summed as 64-bit ones, as in NumPy."""
    x = as_array(a)._value
    if len(x.spec.shape) < 2:
        raise ValueError(f"trace takes an array with at least two axes, not one of shape {x.spec.shape}.")
    first, second = (recording.normal_axis(axis, len(x.spec.shape)) for axis in (axis1, axis2))
    if first == second:
        raise ValueError("axis1 and axis2 cannot be the same.")
    diagonal = follow(x, diagonal_path(x.spec.shape, first, second, offset))
    wanted = recording.total_dtype(x.spec.dtype) if dtype is None else recording.dtype_name(dtype)
    last = len(diagonal.spec.shape) - 1
    if wanted == "bool":
        return Array(recording.apply(Reduce("any", (last,)), recording.cast(diagonal, "bool")))
    return Array(recording.apply(Reduce("sum", (last,)), recording.cast(diagonal, wanted)))


@implements(np.einsum)
def einsum(*operands: Any, dtype: Any = None, casting: str = "safe", order: str = "K", optimize: Any = False) -> Array:
    """Einstein's summation: `einsum("ij,jk->ik", a, b)` or `einsum(a, [0, 1], b, [1, 2], [0, 2])`.

    `order` and `optimize` are accepted and change nothing: several operands are always multiplied in a good order.
    """
    arrays, terms, result = _spelled(operands)
    named = [_labels_of(term, array.ndim) for term, array in zip(terms, arrays, strict=True)]
    kept = _result_labels(terms, named, result)
    _check_lengths(named, arrays)
    values = [array._value for array in arrays]
    wanted = promote_all(*(value.spec.dtype for value in values)) if dtype is None else recording.dtype_name(dtype)
    for value in values:
        if not np.can_cast(value.spec.dtype, wanted, casting):  # type: ignore[arg-type]
            raise TypeError(
                f'einsum cannot cast {value.spec.dtype} to {wanted} with casting="{casting}"; write casting="unsafe".'
            )
    if len(arrays) == 1 and set(kept) == set(named[0]) and wanted == values[0].spec.dtype:
        return _moved(arrays[0], named[0], kept)
    if wanted == "float16" and (tracer := active_tracer.get()) is not None:
        tracer.stop("it calls np.einsum with float16, where NumPy rounds each step")
    ready = [_single(recording.cast(value, wanted), labels) for value, labels in zip(values, named, strict=True)]
    return Array(multiply_all(ready, kept))


# Operands


def _alike(a: Any, b: Any) -> tuple[Value, Value]:
    """Both operands as values of one type."""
    device = device_of(a, b)
    x, y = as_array(a, device)._value, as_array(b, device)._value
    if x.spec.dtype != y.spec.dtype:
        dtype = promote_all(x.spec.dtype, y.spec.dtype)
        return recording.cast(x, dtype), recording.cast(y, dtype)
    return x, y


def _conjugate(x: Value) -> Value:
    """The complex conjugate; real values as they are."""
    return recording.unary("conj", x) if KIND[x.spec.dtype] == "complex" else x


def _with_axis_last(x: Value, axis: int) -> Value:
    """The value with one axis moved to the end."""
    position = recording.normal_axis(axis, len(x.spec.shape))
    others = tuple(each for each in range(len(x.spec.shape)) if each != position)
    return recording.permute(x, (*others, position))


def _over_axes(x: Value, of_x: Sequence[int], y: Value, of_y: Sequence[int]) -> Value:
    """The product of all other axes, those of `x` first, summed over the pairs of axes."""
    left = list(range(len(x.spec.shape)))
    right = [len(left) + axis for axis in range(len(y.spec.shape))]
    for i, j in zip(of_x, of_y, strict=True):
        right[j] = left[i]
    shared = {left[i] for i in of_x}
    keep = tuple(label for label in (*left, *right) if label not in shared)
    return multiply(Labelled(x, tuple(left)), Labelled(y, tuple(right)), keep).value


def _check_inner(name: str, x: Value, i: int, y: Value, j: int) -> None:
    """Raise `ValueError` unless two axes have the same length."""
    if x.spec.shape[i] != y.spec.shape[j]:
        raise ValueError(
            f"{name}: the shapes {x.spec.shape} and {y.spec.shape} are not aligned: axis {i} of the first has the "
            f"length {x.spec.shape[i]}, axis {j} of the second {y.spec.shape[j]}."
        )


def _paired_axes(axes: Any, x: Value, y: Value) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes of both operands that `tensordot` sums over."""
    dimensions = len(x.spec.shape), len(y.spec.shape)
    if hasattr(axes, "__index__"):
        count = axes.__index__()
        if not 0 <= count <= min(dimensions):
            raise ValueError(f"axes={count} is out of range for arrays with {dimensions[0]} and {dimensions[1]} axes.")
        return tuple(range(dimensions[0] - count, dimensions[0])), tuple(range(count))
    first, second = axes
    of_x, of_y = (
        tuple(recording.normal_axis(axis, n) for axis in (each if np.iterable(each) else (each,)))
        for each, n in zip((first, second), dimensions, strict=True)
    )
    if len(of_x) != len(of_y):
        raise ValueError(f"shape-mismatch for sum: axes={axes} names {len(of_x)} and {len(of_y)} axes.")
    if len(set(of_x)) != len(of_x) or len(set(of_y)) != len(of_y):
        raise ValueError(f"duplicate axes are not allowed in tensordot: {axes}.")
    return of_x, of_y


def _components(x: Value) -> list[Value]:
    """The components of vectors in the last axis."""
    *lengths, count = x.spec.shape
    return [recording.reshape(slice_axis(x, len(lengths), k, k + 1), tuple(lengths)) for k in range(count)]


def _minor(p: list[Value], q: list[Value], i: int, j: int, shape: tuple[int, ...]) -> Value:
    """p[i] q[j] − p[j] q[i], where a third component that is missing is 0."""
    first = recording.binary("multiply", p[i], q[j]) if i < len(p) and j < len(q) else None
    second = recording.binary("multiply", p[j], q[i]) if j < len(p) and i < len(q) else None
    if first is not None and second is not None:
        result = recording.binary("subtract", first, second)
    elif first is not None:
        result = first
    else:
        result = recording.unary("negative", second) if second is not None else p[0]
    return recording.broadcast(result, shape)


# Spelling of `einsum`: a term is the labels of one operand, in which an ellipsis stands for all axes it does not name.

_Term = list[int | EllipsisType]


def _spelled(operands: tuple[Any, ...]) -> tuple[list[Array], list[_Term], _Term | None]:
    """The arrays, their terms and the term of the result, which is `None` when it is left to the rule."""
    if len(operands) < 2:
        raise ValueError(
            'einsum takes a string such as "ij,jk->ik" and the arrays, or each array followed by its list of labels.'
        )
    if isinstance(operands[0], str):
        given, terms, result = operands[1:], *_from_string(operands[0])
    else:
        pairs = len(operands) // 2
        given = operands[: 2 * pairs : 2]
        terms = [_from_list(each) for each in operands[1 : 2 * pairs : 2]]
        result = _from_list(operands[-1]) if len(operands) % 2 else None
    if len(given) != len(terms):
        raise ValueError(f"einsum: {len(terms)} operands are spelled out, and {len(given)} are given.")
    device = device_of(*given)
    return [as_array(each, device) for each in given], terms, result


def _from_string(text: str) -> tuple[list[_Term], _Term | None]:
    """The labels of operands and result in a string for `einsum`"""
    inputs, arrow, output = text.replace(" ", "").partition("->")
    terms = [_from_word(word) for word in inputs.split(",")]
    return terms, _from_word(output) if arrow else None


def _from_word(word: str) -> _Term:
    """The labels of one operand in a string for `einsum`"""
    before, dots, after = word.partition("...")
    for letter in before + after:
        if not (letter.isascii() and letter.isalpha()):
            raise ValueError(
                f'einsum: {letter!r} in "{word}" is not a label. Labels are letters; "..." stands for all other axes, '
                'commas separate operands, and "->" comes once, before the result.'
            )
    return [*map(ord, before), *((Ellipsis,) if dots else ()), *map(ord, after)]


def _from_list(labels: Any) -> _Term:
    """The labels of one operand in a list for `einsum`"""
    term: _Term = []
    for label in labels:
        if label is Ellipsis:
            term.append(Ellipsis)
        elif not hasattr(label, "__index__"):
            raise TypeError(f"einsum: a label in a list is an integer or an ellipsis (...), not {label!r}.")
        elif not 0 <= label.__index__() < 52:
            raise ValueError(f"einsum: {label} is not within the range of labels, 0 to 51.")
        else:
            term.append(label.__index__())
    if term.count(Ellipsis) > 1:
        raise ValueError("einsum: a list of labels has at most one ellipsis (...).")
    return term


def _labels_of(term: _Term, dimensions: int) -> Labels:
    """The label of each axis of an operand."""
    named = len(term) - term.count(Ellipsis)
    if named > dimensions or (named < dimensions and Ellipsis not in term):
        raise ValueError(
            f"einsum: {named} labels are given for an operand with {dimensions} axes"
            + ('; add "..." for the axes without a label.' if named < dimensions else ".")
        )
    return _unfolded(term, dimensions - named)


def _unfolded(term: _Term, count: int) -> Labels:
    """The ellipsis as labels of its own, negative so that they align from the last and come first when sorted."""
    labels: list[int] = []
    for label in term:
        labels.extend(range(-count, 0) if isinstance(label, EllipsisType) else (label,))
    return tuple(labels)


def _result_labels(terms: list[_Term], named: list[Labels], result: _Term | None) -> Labels:
    """The label of each axis of the result."""
    everything = [label for labels in named for label in labels]
    if result is None:
        return tuple(sorted(label for label in set(everything) if label < 0 or everything.count(label) == 1))
    dots = max(0, -min(everything, default=0))
    if dots and Ellipsis not in result:
        raise ValueError('einsum: the operands have axes under "..."; the result must have "..." too.')
    kept = _unfolded(result, dots)
    for label in kept:
        if kept.count(label) > 1:
            raise ValueError(f"einsum: the label {_shown(label)} is in the result more than once.")
        if label not in everything:
            raise ValueError(f"einsum: the label {_shown(label)} is in the result, but in no operand.")
    return kept


def _shown(label: int) -> str:
    return repr(chr(label)) if label >= 52 else str(label)


def _check_lengths(named: list[Labels], arrays: list[Array]) -> None:
    """Raise `ValueError` where axes of one label have different lengths.

    Within one operand, a diagonal, they must be equal; between operands a length of 1 broadcasts.
    """
    lengths: dict[int, int] = {}
    for labels, array in zip(named, arrays, strict=True):
        own: dict[int, int] = {}
        for label, length in zip(labels, array.shape, strict=True):
            if own.setdefault(label, length) != length:
                raise ValueError(
                    f"einsum: the axes with the label {_shown(label)} of one operand have the lengths {own[label]} and "
                    f"{length}; a diagonal needs equal ones."
                )
        for label, length in own.items():
            known = lengths.get(label, 1)
            if 1 not in (known, length) and known != length:
                shapes = ", ".join(str(each.shape) for each in arrays)
                raise ValueError(f"einsum: operands could not be broadcast together: the shapes are {shapes}.")
            lengths[label] = length if known == 1 else known


def _diagonals(shape: tuple[int, ...], labels: Labels) -> tuple[list[Primitive], Labels]:
    """The movements that take the diagonal wherever a label is there twice, and the labels after that."""
    path: list[Primitive] = []
    while (twice := next((label for label in labels if labels.count(label) > 1), None)) is not None:
        first = labels.index(twice)
        second = labels.index(twice, first + 1)
        path.extend(diagonal_path(shape, first, second))
        rest = [axis for axis in range(len(labels)) if axis not in (first, second)]
        shape = (*(shape[axis] for axis in rest), shape[first])
        labels = (*(labels[axis] for axis in rest), twice)
    return path, labels


def _single(value: Value, labels: Labels) -> Labelled:
    path, left = _diagonals(value.spec.shape, labels)
    return Labelled(follow(value, path), left)


def _moved(array: Array, labels: Labels, kept: Labels) -> Array:
    """One operand and nothing to sum: a view, as in NumPy."""
    path, left = _diagonals(array.shape, labels)
    refusal = None
    if path and (len(path) > 2 or array._view is not None or not is_ordered(array._stored)):
        refusal = "this is a diagonal of a view, made by einsum. Assign to the array itself: x[i, i] = values."
    order = tuple(left.index(label) for label in kept)
    if order != tuple(range(len(order))):
        path.append(Permute(order))
    way = tuple(path) or (Reshape(array.shape),)
    return attach(Array(follow(array._value, way)), array, way, refusal)
