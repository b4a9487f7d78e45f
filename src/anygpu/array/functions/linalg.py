"""Linear algebra: the Array API's `linalg` extension and the rest of `numpy.linalg`.

Shapes and types are checked at once; what depends on values, such as a singular matrix, is a `LinAlgError` when it is
computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from anygpu.array.core import recording
from anygpu.array.core.arguments import diagonal_path
from anygpu.array.core.array import Array, as_array, device_of
from anygpu.array.core.device import ArrayDevice
from anygpu.array.core.expression import Value, active_tracer, compute
from anygpu.array.core.installed_numpy import has_real_eigenvalues
from anygpu.array.core.overrides import implements
from anygpu.array.core.views import attach
from anygpu.array.functions import matrices, products
from anygpu.array.functions.matrices import follow
from anygpu.program.dtypes import KIND, REAL_PART, DType, is_inexact, promote
from anygpu.program.functions import LinearFunction
from anygpu.program.primitives import Contract, Linear, Permute, Reduce, Slice, product

#: Exported by `anygpu.linalg`.
__all__ = [
    "EigResult", "EighResult", "LinAlgError", "QRResult", "SVDResult", "SlogdetResult", "cholesky", "cond", "cross",
    "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "inv", "lstsq", "matmul", "matrix_norm", "matrix_power",
    "matrix_rank", "matrix_transpose", "multi_dot", "norm", "outer", "pinv", "qr", "slogdet", "solve", "svd",
    "svdvals", "tensordot", "tensorinv", "tensorsolve", "trace", "vecdot", "vector_norm",
]  # fmt: skip

LinAlgError = np.linalg.LinAlgError


#: `None` is an answer of its own there.
_NOT_GIVEN: Any = object()


class EigResult(NamedTuple):
    """The eigenvalues and eigenvectors of a matrix."""

    eigenvalues: Array
    eigenvectors: Array


class EighResult(NamedTuple):
    """The eigenvalues and eigenvectors of a Hermitian matrix."""

    eigenvalues: Array
    eigenvectors: Array


class QRResult(NamedTuple):
    """A matrix with orthonormal columns, and an upper triangular one."""

    Q: Array
    R: Array


class SlogdetResult(NamedTuple):
    """The sign and the logarithm of the absolute value of a determinant."""

    sign: Array
    logabsdet: Array


class SVDResult(NamedTuple):
    """The singular vectors and values of a matrix."""

    U: Array
    S: Array
    Vh: Array


# Products: as in the main namespace, with the standard's stricter signatures


@implements(np.linalg.matmul)
def matmul(x1: Any, x2: Any, /) -> Array:
    """The matrix product; see `anygpu.matmul`."""
    return products.matmul(x1, x2)


@implements(np.linalg.vecdot)
def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Array:
    """Scalar products of vectors; see `anygpu.vecdot`."""
    return products.vecdot(x1, x2, axis=axis)


@implements(np.linalg.tensordot)
def tensordot(x1: Any, x2: Any, /, *, axes: Any = 2) -> Array:
    """Products summed over pairs of axes; see `anygpu.tensordot`."""
    return products.tensordot(x1, x2, axes)


@implements(np.linalg.outer)
def outer(x1: Any, x2: Any, /) -> Array:
    """Each element of one vector with each of the other."""
    device = device_of(x1, x2)
    x, y = as_array(x1, device), as_array(x2, device)
    if x.ndim != 1 or y.ndim != 1:
        raise ValueError(f"linalg.outer takes two vectors, not arrays with {x.ndim} and {y.ndim} axes.")
    return products.outer(x, y)


@implements(np.linalg.cross)
def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Array:
    """The cross product of vectors with three components."""
    device = device_of(x1, x2)
    x, y = as_array(x1, device), as_array(x2, device)
    lengths = [each.shape[recording.normal_axis(axis, each.ndim)] for each in (x, y)]
    if lengths != [3, 3]:
        raise ValueError(f"linalg.cross takes vectors with 3 components, not {lengths[0]} and {lengths[1]}.")
    return products.cross(x, y, axis=axis)


@implements(np.linalg.multi_dot)
def multi_dot(arrays: Sequence[Any]) -> Array:
    """The product of a chain of matrices in the order that takes the least work."""
    if len(arrays) < 2:
        raise ValueError("multi_dot takes at least two arrays.")
    device = device_of(*arrays)
    if len(arrays) == 2:
        return products.dot(as_array(arrays[0], device), as_array(arrays[1], device))
    chain = [as_array(each, device)._value for each in arrays]
    row, column = (len(chain[end].spec.shape) == 1 for end in (0, -1))
    if row:
        chain[0] = recording.reshape(chain[0], (1, *chain[0].spec.shape))
    if column:
        chain[-1] = matrices.with_last_axis(chain[-1])
    if any(len(each.spec.shape) != 2 for each in chain):
        raise LinAlgError("multi_dot takes matrices, and vectors at the two ends.")
    result = matrices.product_of_chain(chain)
    height, width = result.spec.shape
    return Array(recording.reshape(result, (height,) * (not row) + (width,) * (not column)))


@implements(np.linalg.matrix_power)
def matrix_power(a: Any, n: int) -> Array:
    """The matrix times itself, `n` times over; negative powers are those of the inverse."""
    x = as_array(a)
    _check_square(x._value)
    if not hasattr(n, "__index__"):
        raise TypeError("the exponent of a matrix power is an integer.")
    exponent = n.__index__()
    if exponent == 0:
        value = x._value
        return Array(recording.broadcast(matrices.identity(x.shape[-1], value.spec.dtype, value.device), x.shape))
    base = inv(x) if exponent < 0 else x
    return base if abs(exponent) == 1 else Array(matrices.power(base._value, abs(exponent)))


# Parts of matrices


@implements(np.linalg.matrix_transpose)
def matrix_transpose(x: Any, /) -> Array:
    """The last two axes exchanged; a view."""
    base = as_array(x)
    if base.ndim < 2:
        raise ValueError(f"matrix_transpose takes arrays with at least two axes, not {base.ndim}.")
    path = (Permute(matrices.transposed_order(base.ndim)),)
    return attach(Array(follow(base._value, path)), base, path)


@implements(np.linalg.diagonal)
def diagonal(x: Any, /, *, offset: int = 0) -> Array:
    """The diagonal of the last two axes, along a new last axis; a view that cannot be written to."""
    base = as_array(x)
    if base.ndim < 2:
        raise ValueError(f"diagonal takes arrays with at least two axes, not {base.ndim}.")
    path = diagonal_path(base.shape, base.ndim - 2, base.ndim - 1, offset)
    refusal = "a diagonal is read-only, as in NumPy. Assign to the array itself: x[..., i, i] = values."
    return attach(Array(follow(base._value, path)), base, path, refusal)


@implements(np.linalg.trace)
def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Array:
    """The sum of the diagonal of the last two axes."""
    return products.trace(x, offset, -2, -1, dtype)


# Equations


@implements(np.linalg.inv)
def inv(a: Any) -> Array:
    """The inverse."""
    return _linear("inv", _square(a))


@implements(np.linalg.solve)
def solve(a: Any, b: Any) -> Array:
    """The `x` with `a @ x = b`. A `b` with one axis is one vector, otherwise a stack of matrices."""
    x, y = _prepared(a, b)
    _check_square(x)
    vector = len(y.spec.shape) == 1
    if not y.spec.shape:
        raise ValueError("solve: b needs at least one axis.")
    if vector:
        y = recording.reshape(y, (*y.spec.shape, 1))
    *stack, rows, _ = x.spec.shape
    *right_stack, right_rows, columns = y.spec.shape
    if rows != right_rows:
        raise ValueError(f"solve: a has {rows} rows and b has {right_rows}; they must have the same number.")
    common = recording.broadcast_shapes(tuple(stack), tuple(right_stack))
    if product(tuple(stack)) == 1 and product(tuple(right_stack)) > 1 and rows:
        result = matrices.solve_together(recording.reshape(x, (rows, rows)), y)
    else:
        x = recording.broadcast(x, (*common, rows, rows))
        y = recording.broadcast(y, (*common, rows, columns))
        result = recording.apply(Linear("solve"), x, y)
    return Array(recording.reshape(result, (*common, rows) if vector else (*common, rows, columns)))


@implements(np.linalg.tensorsolve)
def tensorsolve(a: Any, b: Any, axes: Sequence[int] | None = None) -> Array:
    """The `x` with `tensordot(a, x, x.ndim) = b`."""
    device = device_of(a, b)
    x, y = as_array(a, device)._value, as_array(b, device)._value
    order = list(range(len(x.spec.shape)))
    for axis in axes or ():
        order.remove(axis)
        order.append(axis)
    x = recording.permute(x, tuple(order))
    shape = x.spec.shape[-(len(x.spec.shape) - len(y.spec.shape)) :]
    size = product(shape)
    if x.spec.size != size**2:
        raise LinAlgError(f"tensorsolve: the axes of b must have as many elements in a as the others; {x.spec} is a.")
    solution = solve(Array(recording.reshape(x, (size, size))), Array(recording.reshape(y, (y.spec.size,))))
    return Array(recording.reshape(solution._value, shape))


@implements(np.linalg.tensorinv)
def tensorinv(a: Any, ind: int = 2) -> Array:
    """The inverse for `tensordot(…, ind)`."""
    x = as_array(a)._value
    if ind <= 0:
        raise ValueError("tensorinv: ind counts the first axes, so it is at least 1.")
    shape = x.spec.shape[ind:] + x.spec.shape[:ind]
    rows = product(x.spec.shape[ind:])
    if rows == 0 or x.spec.size % rows:
        raise ValueError(f"tensorinv: an array of shape {x.spec.shape} is not a square matrix with ind={ind}.")
    inverse = inv(Array(recording.reshape(x, (rows, x.spec.size // rows))))
    return Array(recording.reshape(inverse._value, shape))


@implements(np.linalg.lstsq)
def lstsq(a: Any, b: Any, rcond: Any = None) -> tuple[Array, Array, int, Array]:
    """The least-squares solution, the residuals, the rank and the singular values.

    Whether there are residuals depends on the rank, so all four are computed at once. As in NumPy, the work is done in
    double precision, for which the default `rcond` is made.
    """
    x, y = _prepared(a, b)
    vector = len(y.spec.shape) == 1
    if vector:
        y = recording.reshape(y, (*y.spec.shape, 1))
    for each in (x, y):
        if len(each.spec.shape) != 2:
            raise LinAlgError(f"lstsq takes a matrix and a vector or matrix, not an array of shape {each.spec.shape}.")
    (rows, columns), (right_rows, count) = x.spec.shape, y.spec.shape
    if rows != right_rows:
        raise LinAlgError(f"lstsq: a has {rows} rows and b has {right_rows}; they must have the same number.")
    dtype = x.spec.dtype
    wide: DType = "complex128" if KIND[dtype] == "complex" else "float64"
    x, y = recording.cast(x, wide), recording.cast(y, wide)
    u, s, vh = matrices.svd_parts(x)
    epsilon = np.finfo(np.float64).eps
    limit = epsilon * max(rows, columns) if rcond is None else epsilon if rcond < 0 else float(rcond)
    large = recording.binary("greater", s, recording.binary("multiply", matrices.first(s), limit))
    projected = matrices.product_of(matrices.adjoint(u), y)
    solution = matrices.product_of(matrices.adjoint(vh), matrices.divided_rows(projected, s, large))
    distance = recording.squared_length(recording.binary("subtract", y, matrices.product_of(x, solution)))
    residuals = recording.cast(recording.apply(Reduce("sum", (0,)), distance), REAL_PART.get(dtype, dtype))
    solution = recording.reshape(recording.cast(solution, dtype), (columns,) if vector else (columns, count))
    singular = recording.cast(s, REAL_PART.get(dtype, dtype))
    rank = matrices.count_true(large)
    compute([solution, residuals, rank, singular], Array(solution)._device)
    full = int(Array(rank))
    if full != columns or rows <= columns:
        residuals = follow(residuals, (Slice((0,), (0,), (1,)),))
    return Array(solution), Array(residuals), full, Array(singular)


@implements(np.linalg.pinv)
def pinv(a: Any, rcond: Any = None, hermitian: bool = False, *, rtol: Any = _NOT_GIVEN) -> Array:
    """The pseudo-inverse; singular values up to `rtol` times the largest count as zero."""
    if rcond is not None and rtol is not _NOT_GIVEN:
        raise ValueError("pinv: rtol and rcond are two names of one thing; give one of them.")
    array = as_array(a)
    if array.ndim < 2:
        raise LinAlgError(f"pinv takes arrays with at least two axes, not {array.ndim}.")
    *stack, rows, columns = array.shape
    if rows * columns == 0:
        return Array(recording.reshape(array._value, (*stack, columns, rows)))
    (x,) = _prepared(array)
    u, s, vh = matrices.svd_parts_of_hermitian(x) if hermitian else matrices.svd_parts(x)
    limit = rcond
    if limit is None:
        limit = 1e-15 if rtol is _NOT_GIVEN else rtol
    if limit is None:
        limit = max(rows, columns) * matrices.epsilon(x.spec.dtype)
    large = recording.binary("greater", s, _scaled(matrices.first(s), limit, array._device))
    return Array(matrices.product_of(matrices.adjoint(vh), matrices.divided_rows(matrices.adjoint(u), s, large)))


# Numbers that tell about a matrix


@implements(np.linalg.det)
def det(a: Any) -> Array:
    """The determinant."""
    return _linear("det", _square(a))


@implements(np.linalg.slogdet)
def slogdet(a: Any) -> SlogdetResult:
    """The determinant as its sign and the logarithm of its size."""
    x = _square(a)
    return SlogdetResult(_linear("slogdet", x, 0), _linear("slogdet", x, 1))


@implements(np.linalg.matrix_rank)
def matrix_rank(A: Any, tol: Any = None, hermitian: bool = False, *, rtol: Any = None) -> Array:  # noqa: N803
    """How many singular values are larger than `tol`, or than `rtol` times the largest."""
    if tol is not None and rtol is not None:
        raise ValueError("matrix_rank: tol and rtol cannot be both set.")
    array = as_array(A)
    if array.ndim < 2:
        if (tracer := active_tracer.get()) is not None:
            tracer.stop("it calls np.linalg.matrix_rank with a vector, which gives a Python number")
        nonzero = recording.compare("not_equal", array._value, 0)
        return Array(recording.cast(recording.apply(Reduce("any", tuple(range(array.ndim))), nonzero), "int64"))
    (x,) = _prepared(array)
    s = matrices.singular_values(x, hermitian=hermitian)
    if tol is not None:
        limit = matrices.with_last_axis(as_array(tol, array._device)._value)
    else:
        factor = max(array.shape[-2:]) * matrices.epsilon(s.spec.dtype) if rtol is None else rtol
        limit = _scaled(matrices.first(s), factor, array._device)
    return Array(matrices.count_true(recording.binary("greater", s, limit)))


@implements(np.linalg.cond)
def cond(x: Any, p: Any = None) -> Array:
    """The condition number: in the 2-norm from singular values, else the norms of the matrix and its inverse."""
    a = _stack_of_matrices(x)
    if product(a.spec.shape[-2:]) == 0:
        raise LinAlgError("cond is not defined on empty arrays.")
    if p is None or p in (2, -2):
        s = matrices.singular_values(a)
        largest, least = matrices.first(s), matrices.last(s)
        ratio = recording.binary("divide", *((least, largest) if p == -2 else (largest, least)))
        result = recording.reshape(ratio, ratio.spec.shape[:-1])
    else:
        _check_square(a)
        # A singular matrix has an infinite condition; it is kept away from the inverse, which would be an error.
        sign = recording.apply(Linear("slogdet", 0), a)
        singular = recording.compare("equal", sign, 0)
        unit = matrices.identity(a.spec.shape[-1], a.spec.dtype, a.device)
        regular = recording.where(recording.reshape(singular, (*singular.spec.shape, 1, 1)), unit, a)
        inverse = recording.apply(Linear("inv"), regular)
        product_of_norms = recording.binary("multiply", *(matrices.matrix_norms(each, p) for each in (a, inverse)))
        result = recording.where(singular, math.nan, product_of_norms)
    axes = (len(a.spec.shape) - 2, len(a.spec.shape) - 1)
    has_nan = recording.apply(Reduce("any", axes), recording.unary("isnan", a))
    unknown = recording.binary("bitwise_and", recording.unary("isnan", result), recording.unary("invert", has_nan))
    return Array(recording.where(unknown, math.inf, result))


# Norms


@implements(np.linalg.norm)
def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Array:
    """The norm of vectors (one axis) or of matrices (two axes), or of all elements."""
    value = _inexact(as_array(x)._value)
    shape = value.spec.shape
    dimensions = len(shape)
    if axis is None:
        if ord is None or (ord in ("f", "fro") and dimensions == 2) or (ord == 2 and dimensions == 1):
            flat = recording.reshape(value, (value.spec.size,))
            if value.spec.dtype in ("float32", "float64"):  # a product, whose last bit is another one than a sum's
                length = recording.unary("sqrt", recording.apply(Contract((0,), (0,)), flat, flat))
            else:
                length = matrices.vector_norms(flat, 2, 0)
            return Array(recording.reshape(length, (1,) * dimensions if keepdims else ()))
        axes = tuple(range(dimensions))
    else:
        axes = tuple(recording.normal_axis(each, dimensions) for each in (axis if isinstance(axis, tuple) else (axis,)))
    if len(axes) == 1:
        result = matrices.vector_norms(value, 2 if ord is None else ord, axes[0])
    elif len(axes) == 2:
        if axes[0] == axes[1]:
            raise ValueError("Duplicate axes given: the rows and columns of a matrix are different axes.")
        others = tuple(each for each in range(dimensions) if each not in axes)
        result = matrices.matrix_norms(recording.permute(value, others + axes), "fro" if ord is None else ord)
    else:
        raise ValueError(f"Improper number of dimensions to norm: it takes one axis or two, not {len(axes)}.")
    kept = tuple(1 if each in axes else n for each, n in enumerate(shape))
    return Array(recording.reshape(result, kept) if keepdims else result)


@implements(np.linalg.vector_norm)
def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Array:
    """The norm over one axis, or over several as if they were one."""
    value = _inexact(as_array(x)._value)
    shape = value.spec.shape
    axes = recording.normal_axes(axis, len(shape))
    others = tuple(each for each in range(len(shape)) if each not in axes)
    rest = tuple(shape[each] for each in others)
    flat = recording.reshape(recording.permute(value, axes + others), (product(tuple(shape[a] for a in axes)), *rest))
    result = matrices.vector_norms(flat, ord, 0)
    kept = tuple(1 if each in axes else n for each, n in enumerate(shape))
    return Array(recording.reshape(result, kept) if keepdims else result)


@implements(np.linalg.matrix_norm)
def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Array:
    """The norm of matrices in the last two axes."""
    return norm(x, ord, (-2, -1), keepdims)


# Decompositions


@implements(np.linalg.cholesky)
def cholesky(a: Any, /, *, upper: bool = False) -> Array:
    """The lower (or upper) triangular factor; only that triangle of `a` is looked at."""
    x = _square(a)
    factor = recording.apply(Linear("cholesky"), matrices.adjoint(x) if upper else x)
    return Array(matrices.adjoint(factor) if upper else factor)


@implements(np.linalg.qr)
@overload
def qr(a: Any, mode: Literal["reduced", "complete"] = ...) -> QRResult: ...
@implements(np.linalg.qr)
@overload
def qr(a: Any, mode: Literal["r"]) -> Array: ...
@implements(np.linalg.qr)
def qr(a: Any, mode: str = "reduced") -> QRResult | Array:
    """An orthogonal and an upper triangular factor; with `mode="r"` only the latter."""
    if mode == "raw":
        raise NotImplementedError('qr: mode="raw" is LAPACK\'s own form. Use mode="reduced", "complete" or "r".')
    if mode not in ("reduced", "complete", "r"):
        raise ValueError(f'qr: mode is "reduced", "complete" or "r", not {mode!r}.')
    x = _stack_of_matrices(a)
    full = mode == "complete"
    triangle = Array(recording.apply(Linear("qr", 1, full), x))
    return triangle if mode == "r" else QRResult(Array(recording.apply(Linear("qr", 0, full), x)), triangle)


@implements(np.linalg.svd)
@overload
def svd(a: Any, full_matrices: bool = ..., compute_uv: Literal[True] = ..., hermitian: bool = ...) -> SVDResult: ...
@implements(np.linalg.svd)
@overload
def svd(a: Any, full_matrices: bool, compute_uv: Literal[False], hermitian: bool = ...) -> Array: ...
@implements(np.linalg.svd)
@overload
def svd(a: Any, full_matrices: bool = ..., *, compute_uv: Literal[False], hermitian: bool = ...) -> Array: ...
@implements(np.linalg.svd)
def svd(a: Any, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False) -> SVDResult | Array:
    """Singular values in descending order, and the vectors on both sides."""
    x = _stack_of_matrices(a)
    if not compute_uv:
        return Array(matrices.singular_values(x, hermitian=hermitian))
    parts = matrices.svd_parts_of_hermitian(x) if hermitian else matrices.svd_parts(x, full=full_matrices)
    return SVDResult(*map(Array, parts))


@implements(np.linalg.svdvals)
def svdvals(x: Any, /) -> Array:
    """Singular values in descending order."""
    return Array(matrices.singular_values(_stack_of_matrices(x)))


@implements(np.linalg.eigh)
def eigh(a: Any, UPLO: str = "L") -> EighResult:  # noqa: N803
    """Eigenvalues in ascending order and eigenvectors of Hermitian matrices, of which one triangle is looked at."""
    x = _hermitian(a, UPLO)
    return EighResult(_linear("eigh", x, 0), _linear("eigh", x, 1))


@implements(np.linalg.eigvalsh)
def eigvalsh(a: Any, UPLO: str = "L") -> Array:  # noqa: N803
    """Eigenvalues of Hermitian matrices in ascending order."""
    return _linear("eigvalsh", _hermitian(a, UPLO))


@implements(np.linalg.eig)
def eig(a: Any) -> EigResult:
    """Return eigenvalues and right eigenvectors.

    NumPy before 2.5 returns real numbers for a real matrix if all its eigenvalues are real; where it is installed, they
    are computed at once.
    """
    x = _square(a)
    parts = [recording.apply(Linear("eig", part), x) for part in (0, 1)]
    if KIND[x.spec.dtype] != "complex" and has_real_eigenvalues() and _all_real(parts):
        parts = [recording.unary("real", part) for part in parts]
    return EigResult(*map(Array, parts))


@implements(np.linalg.eigvals)
def eigvals(a: Any) -> Array:
    """Eigenvalues, in no particular order; see `eig`."""
    x = _square(a)
    values = recording.apply(Linear("eig"), x)
    if KIND[x.spec.dtype] != "complex" and has_real_eigenvalues() and _all_real([values]):
        values = recording.unary("real", values)
    return Array(values)


# Operands


def _prepared(*given: Any) -> list[Value]:
    """All operands in one type that linear algebra is done in."""
    device = device_of(*given)
    values = [as_array(each, device)._value for each in given]
    dtype: DType = "float32"
    for value in values:
        own = value.spec.dtype
        if own in ("float16", "bfloat16"):
            raise TypeError(f"array type {own} is unsupported in linalg; convert it with astype(np.float32) first.")
        dtype = promote(dtype, own if is_inexact(own) else "float64")
    return [recording.cast(value, dtype) for value in values]


def _stack_of_matrices(a: Any) -> Value:
    """The argument as a value with at least two axes."""
    (x,) = _prepared(a)
    if len(x.spec.shape) < 2:
        raise LinAlgError(f"an array with at least two axes is needed, not one with {len(x.spec.shape)}.")
    return x


def _square(a: Any) -> Value:
    """The argument as a value of square matrices."""
    (x,) = _prepared(a)
    _check_square(x)
    return x


def _check_square(x: Value) -> None:
    """Raise `LinAlgError` unless the last two axes are those of a square matrix."""
    if len(x.spec.shape) < 2 or x.spec.shape[-1] != x.spec.shape[-2]:
        raise LinAlgError(f"the last two axes must be those of a square matrix; the shape is {x.spec.shape}.")


def _hermitian(a: Any, triangle: str) -> Value:
    """The argument as Hermitian matrices whose lower triangle counts."""
    if triangle.upper() not in ("L", "U"):
        raise ValueError(f"UPLO is 'L' or 'U', not {triangle!r}.")
    x = _square(a)
    return x if triangle.upper() == "L" else matrices.adjoint(x)


def _inexact(x: Value) -> Value:
    """The value as floats or complex numbers."""
    return x if is_inexact(x.spec.dtype) else recording.cast(x, "float64")


def _scaled(s: Value, factor: Any, device: ArrayDevice) -> Value:
    """Each of the largest singular values, times a number or times one for each matrix."""
    if not isinstance(factor, Array) and isinstance(factor, int | float):
        return recording.binary("multiply", s, float(factor))
    return recording.binary("multiply", s, matrices.with_last_axis(as_array(factor, device)._value))


def _linear(fn: LinearFunction, x: Value, part: int = 0) -> Array:
    """One result of a decomposition."""
    return Array(recording.apply(Linear(fn, part), x))


def _all_real(parts: Sequence[Value]) -> bool:
    """Compute the parts of a decomposition together, and look whether its eigenvalues, the first part, are real."""
    values = Array(parts[0])
    compute(parts, values._device)
    return bool((np.asarray(values).imag == 0).all())
