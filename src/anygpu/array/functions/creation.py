"""Creation of arrays: filled, from other arrays, and from other libraries.

Nothing here takes memory that is not needed: `zeros` is one number repeated, `arange` and `eye` are made of a counter.

Every function records a value on a device; nothing is allocated before it is needed. `asarray` and `from_dlpack` take
what other libraries have, `full` and its relatives repeat one number, and triangles and diagonals are selections by
position.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from anygpu.array.core import recording
from anygpu.array.core.arguments import (
    arrays,
    bound_to,
    counting,
    counting_dtype,
    device_among,
    filled,
    holds_array,
    spec_of,
    to_array,
    view,
)
from anygpu.array.core.array import Array, as_value, device_of
from anygpu.array.core.device import ArrayDevice, device_for, to_numpy_dtype
from anygpu.array.core.expression import Value, active_tracer
from anygpu.array.core.overrides import implements
from anygpu.array.core.recording import (
    apply,
    binary,
    broadcast,
    cast,
    compare,
    dtype_name,
    full_shape,
    reshape,
    where,
)
from anygpu.array.core.structure import require_plain
from anygpu.array.core.traced_scalar import TracedScalar
from anygpu.array.functions.manipulation import diagonal
from anygpu.base.typing import HostArray
from anygpu.program.dtypes import DType, promote
from anygpu.program.primitives import Broadcast, Concatenate, Flip, Pad, Reshape, Scan, Shape


@implements(np.asarray)
def asarray(
    obj: Any,
    /,
    dtype: npt.DTypeLike | None = None,
    order: str | None = None,
    *,
    device: object | None = None,
    copy: bool | None = None,
    like: object | None = None,
) -> Array:
    """An array of whatever can be one.

    An `Array` is returned as it is, unless another type, another device or a copy is asked for. Everything else is
    copied now, because the caller may change it later; so `copy=False` is refused there.
    """
    if type(obj) is np.ndarray and copy is not False:  # at once, as that is the rule
        values = obj if dtype is None else np.asarray(obj, dtype)
        where = device_for(device)
        return Array(as_value(values, where)) if values.ndim and values.dtype.kind != "O" else _from_host(values, where)
    target = device_for(device) if device is not None else device_among(obj)
    if isinstance(obj, Array):
        return _converted(obj, dtype, target, copy)
    if copy is False:
        if hasattr(obj, "__dlpack__") and not isinstance(obj, np.ndarray | np.generic):
            return _converted(from_dlpack(obj, device=device, copy=False), dtype, target, False)
        raise ValueError(
            f"a {type(obj).__name__} is copied to the device: omit copy=False, or use from_dlpack(x, copy=False)."
        )
    if hasattr(obj, "__dlpack__") and not isinstance(obj, np.ndarray | np.generic):
        return _converted(_imported(obj, target), dtype, target, None)
    if isinstance(obj, list | tuple) and holds_array(obj):
        return _converted(to_array(obj, target), dtype, target, None)
    require_plain(obj, "asarray")
    return _from_host(np.asarray(obj, dtype=dtype), target)


def _converted(array: Array, dtype: npt.DTypeLike | None, target: ArrayDevice, copy: bool | None) -> Array:
    """The array in another type or on another device, or itself where it has both.

    With `copy=False` a copy that is needed is a `ValueError`; with `copy=True` the result is never the array itself.
    """
    needs_copy = array._device is not target or (dtype is not None and dtype_name(dtype) != dtype_name(array.dtype))
    if needs_copy and copy is False:
        raise ValueError("another type or device needs a copy: omit copy=False.")
    moved = array.to_device(target)
    if dtype is not None:
        moved = moved.astype(dtype, copy=False)
    return moved.copy() if copy and moved is array else moved


def _from_host(values: HostArray, target: ArrayDevice) -> Array:
    """An array of host values on a device. Raises `OverflowError` for integers that no type holds."""
    if values.dtype.kind == "O" and values.size and all(type(each) is int for each in values.flat):
        raise OverflowError("a Python integer is too large for every integer type; use floats.")
    return Array(bound_to(as_value(values, target), target))


def _imported(obj: Any, target: ArrayDevice) -> Array:
    """A copy of another library's array, through DLPack when the device can read it and through the host otherwise."""
    try:
        buffer = target.adopt(obj)
    except (BufferError, RuntimeError, TypeError, ValueError):
        return _from_host(np.asarray(obj), target)
    return _from_host(target.download(buffer), target)


@implements(np.from_dlpack)
def from_dlpack(x: Any, /, *, device: object | None = None, copy: bool | None = None) -> Array:
    """An array of another library that speaks DLPack, without a copy where the engine allows."""
    target = device_for(device) if device is not None else device_of(x)
    if isinstance(x, Array):
        if target is x._device and not copy:
            return view(x, Reshape(x.shape))
        return _converted(x, None, target, copy)
    if not hasattr(x, "__dlpack__"):
        raise TypeError(f"a {type(x).__name__} does not speak DLPack; use asarray.")
    buffer = target.adopt(x)
    native = target.native(buffer)
    if copy:
        return _from_host(np.array(target.download(buffer)), target)
    if copy is False and native.__dlpack_device__() != x.__dlpack_device__():
        raise ValueError(f"the array is not on {target.device}, so it has to be copied: omit copy=False.")
    return Array(Value.on(target, buffer, spec_of(native)))


@implements(np.copy)
def copy(a: Any, order: str = "K", subok: bool = False) -> Array:
    """The same values in an array of its own."""
    return asarray(a, copy=True)


# One number everywhere


@implements(np.full)
def full(
    shape: int | Sequence[int],
    fill_value: Any,
    dtype: npt.DTypeLike | None = None,
    order: str = "C",
    *,
    device: object | None = None,
    like: object | None = None,
) -> Array:
    """`fill_value` in every place; it may be an array that broadcasts to the shape."""
    target = device_for(device) if device is not None else device_of(fill_value)
    lengths = full_shape(shape)
    if isinstance(fill_value, Array):
        wanted = dtype_name(dtype) if dtype is not None else fill_value._value.spec.dtype
        return Array(broadcast(cast(fill_value.to_device(target)._value, wanted), lengths))
    if type(fill_value) is TracedScalar:
        return Array(broadcast(fill_value.strong if dtype is None else fill_value.value(dtype_name(dtype)), lengths))
    tracer = active_tracer.get()
    if tracer is not None and dtype is not None and not _fits(fill_value, to_numpy_dtype(dtype_name(dtype))):
        tracer.stop("it fills an array with a value that does not fit its type, about which NumPy warns")
    values = np.full(np.shape(fill_value), fill_value, dtype)
    return Array(bound_to(broadcast(as_value(values, target), lengths), target))


def _fits(fill_value: Any, dtype: np.dtype[Any]) -> bool:
    """Return whether NumPy converts the fill value without a warning."""
    if np.iscomplexobj(fill_value) and dtype.kind != "c":
        return False
    try:
        with np.errstate(all="raise", under="ignore"):
            np.asarray(fill_value).astype(dtype)
    except FloatingPointError:
        return False
    return True


@implements(np.zeros)
def zeros(
    shape: int | Sequence[int],
    dtype: npt.DTypeLike | None = None,
    order: str = "C",
    *,
    device: object | None = None,
    like: object | None = None,
) -> Array:
    """An array of zeros on a device, the default one unless it is named.

    `order` and `like` are NumPy's, and change nothing.
    """
    return _repeated(shape, 0, dtype, device_for(device))


@implements(np.ones)
def ones(
    shape: int | Sequence[int],
    dtype: npt.DTypeLike | None = None,
    order: str = "C",
    *,
    device: object | None = None,
    like: object | None = None,
) -> Array:
    """An array of ones on a device, the default one unless it is named.

    `order` and `like` are NumPy's, and change nothing.
    """
    return _repeated(shape, 1, dtype, device_for(device))


@implements(np.empty)
def empty(
    shape: int | Sequence[int],
    dtype: npt.DTypeLike | None = None,
    order: str = "C",
    *,
    device: object | None = None,
    like: object | None = None,
) -> Array:
    """Zeros: there is no uninitialised memory here."""
    return _repeated(shape, 0, dtype, device_for(device))


def _repeated(shape: int | Sequence[int], number: int, dtype: npt.DTypeLike | None, target: ArrayDevice) -> Array:
    name: DType = "float64" if dtype is None else dtype_name(dtype)
    return Array(bound_to(filled(full_shape(shape), number, name), target))


@implements(np.full_like)
def full_like(
    a: Any,
    fill_value: Any,
    dtype: npt.DTypeLike | None = None,
    order: str = "K",
    subok: bool = True,
    shape: int | Sequence[int] | None = None,
    *,
    device: object | None = None,
) -> Array:
    """`full` with the shape, dtype and device of another array unless others are given."""
    lengths, name, target = _likeness(a, dtype, shape, device)
    return full(lengths, fill_value, to_numpy_dtype(name), device=target)


@implements(np.zeros_like)
def zeros_like(
    a: Any,
    dtype: npt.DTypeLike | None = None,
    order: str = "K",
    subok: bool = True,
    shape: int | Sequence[int] | None = None,
    *,
    device: object | None = None,
) -> Array:
    """Zeros in the shape and type of an array, on its device, where these are not given."""
    lengths, name, target = _likeness(a, dtype, shape, device)
    return Array(bound_to(filled(lengths, 0, name), target))


@implements(np.ones_like)
def ones_like(
    a: Any,
    dtype: npt.DTypeLike | None = None,
    order: str = "K",
    subok: bool = True,
    shape: int | Sequence[int] | None = None,
    *,
    device: object | None = None,
) -> Array:
    """Ones in the shape and type of an array, on its device, where these are not given."""
    lengths, name, target = _likeness(a, dtype, shape, device)
    return Array(bound_to(filled(lengths, 1, name), target))


@implements(np.empty_like)
def empty_like(
    a: Any,
    dtype: npt.DTypeLike | None = None,
    order: str = "K",
    subok: bool = True,
    shape: int | Sequence[int] | None = None,
    *,
    device: object | None = None,
) -> Array:
    """The same as `zeros_like`: memory that nobody has written is never handed out."""
    return zeros_like(a, dtype, order, subok, shape, device=device)


def _likeness(
    a: Any, dtype: npt.DTypeLike | None, shape: int | Sequence[int] | None, device: object | None
) -> tuple[Shape, DType, ArrayDevice]:
    """The shape, type and device of a new array that is like another one, with what is given in their place."""
    target = device_for(device) if device is not None else device_of(a)
    model = a if isinstance(a, Array) else np.asarray(a)
    return (
        model.shape if shape is None else full_shape(shape),
        dtype_name(model.dtype if dtype is None else dtype),
        target,
    )


# Grids


@implements(np.meshgrid)
def meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> tuple[Array, ...]:
    """Coordinates of a grid, one array for each vector."""
    if indexing not in ("xy", "ij"):
        raise ValueError(f'meshgrid: indexing is "xy" or "ij", not {indexing!r}.')
    count = len(xi)
    result = []
    vectors = arrays(*xi)
    order = list(range(count))
    if indexing == "xy" and count > 1:
        order[:2] = [1, 0]
    lengths = [0] * count
    for position, vector in zip(order, vectors, strict=True):
        lengths[position] = vector.size
    for position, vector in zip(order, vectors, strict=True):
        line = view(vector, Reshape(tuple(vector.size if axis == position else 1 for axis in range(count))))
        if not sparse:
            line = view(line, Broadcast(tuple(lengths)), refusal="it repeats its elements; use copy=True to change it.")
        result.append(line.copy() if copy else line)
    return tuple(result)


@implements(np.indices)
def indices(
    dimensions: Sequence[int], dtype: npt.DTypeLike = int, sparse: bool = False, *, device: object | None = None
) -> Any:
    """For each axis of a grid, the position along it in every place."""
    lengths = full_shape(dimensions)
    target, name = device_for(device), dtype_name(dtype)
    lines = [
        reshape(counting(length, name), tuple(length if each == axis else 1 for each in range(len(lengths))))
        for axis, length in enumerate(lengths)
    ]
    if sparse:
        return tuple(Array(bound_to(line, target)) for line in lines)
    if not lines:
        return Array(bound_to(filled((0,), 0, name), target))
    grids = [reshape(broadcast(line, lengths), (1, *lengths)) for line in lines]
    return Array(bound_to(apply(Concatenate(0), *grids), target))


@implements(np.fromfunction)
def fromfunction(
    function: Callable[..., Any],
    shape: Sequence[int],
    *,
    dtype: npt.DTypeLike = float,
    like: object | None = None,
    **options: Any,
) -> Any:
    """What the function gives for the coordinates of a grid, all at once."""
    grid = indices(shape, dtype)
    return function(*(grid[axis] for axis in range(grid.shape[0])), **options)


# Matrices


def _rows_and_columns(rows: int, columns: int, k: int) -> tuple[Value, Value]:
    """Row number plus k, and column number, ready to be compared."""
    kind = counting_dtype(rows + columns + 1)
    offset = max(-rows, min(columns, operator.index(k)))
    row = binary("add", reshape(counting(rows, kind), (rows, 1)), offset)
    return row, reshape(counting(columns, kind), (1, columns))


@implements(np.eye)
def eye(
    N: int,  # noqa: N803 - NumPy's name
    M: int | None = None,  # noqa: N803
    k: int = 0,
    dtype: npt.DTypeLike | None = None,
    order: str = "C",
    *,
    device: object | None = None,
    like: object | None = None,
) -> Array:
    """Ones on the diagonal that is `k` above the main one, and zeros elsewhere."""
    rows = operator.index(N)
    columns = rows if M is None else operator.index(M)
    name: DType = "float64" if dtype is None else dtype_name(dtype)
    where_one = compare("equal", *_rows_and_columns(rows, columns, k))
    return Array(bound_to(cast(where_one, name), device_for(device)))


@implements(np.identity)
def identity(
    n: int, dtype: npt.DTypeLike | None = None, *, device: object | None = None, like: object | None = None
) -> Array:
    """A square matrix with ones on its diagonal."""
    return eye(n, dtype=dtype, device=device)


@implements(np.tri)
def tri(
    N: int,  # noqa: N803 - NumPy's name
    M: int | None = None,  # noqa: N803
    k: int = 0,
    dtype: npt.DTypeLike | None = None,
    *,
    device: object | None = None,
    like: object | None = None,
) -> Array:
    """Ones on and below the diagonal that is `k` above the main one, and zeros elsewhere."""
    rows = operator.index(N)
    columns = rows if M is None else operator.index(M)
    name: DType = "float64" if dtype is None else dtype_name(dtype)
    below = compare("greater_equal", *_rows_and_columns(rows, columns, k))
    return Array(bound_to(cast(below, name), device_for(device)))


@implements(np.tril)
def tril(m: Any, k: int = 0) -> Array:
    """The part on and below a diagonal; zeros above it."""
    return _triangle(m, k, lower=True)


@implements(np.triu)
def triu(m: Any, k: int = 0) -> Array:
    """The part on and above a diagonal; zeros below it."""
    return _triangle(m, k - 1, lower=False)


def _triangle(m: Any, k: int, *, lower: bool) -> Array:
    """The lower or upper triangle of matrices in the last two axes; a vector is taken for each row, as NumPy does.

    Elements beyond the diagonal `k` become 0. Raises `ValueError` for an array without axes.
    """
    (array,) = arrays(m)
    if array.ndim == 0:
        raise ValueError("a triangle needs an array with at least one axis.")
    value = array._value
    rows, columns = array.shape[-2:] if array.ndim > 1 else (array.size, array.size)
    below = compare("greater_equal", *_rows_and_columns(rows, columns, k))
    zero = recording.constant(0, value.spec.dtype)
    return Array(where(below, value, zero) if lower else where(below, zero, value))


@implements(np.diag)
def diag(v: Any, k: int = 0) -> Array:
    """A matrix with the vector on a diagonal, or the diagonal of a matrix."""
    (array,) = arrays(v)
    if array.ndim == 2:
        return diagonal(array, k)
    if array.ndim != 1:
        raise ValueError(f"diag takes a vector or a matrix, not {array.ndim} axes; use diagonal.")
    value = array._value
    zero = recording.constant(0, value.spec.dtype)
    size = array.size + abs(k)
    line = apply(Pad((0,), (abs(k),)), value, zero)
    spread = reshape(line, (size, 1)) if k >= 0 else line
    return Array(where(compare("equal", *_rows_and_columns(size, size, k)), broadcast(spread, (size, size)), zero))


@implements(np.diagflat)
def diagflat(v: Any, k: int = 0) -> Array:
    """A matrix with all elements on a diagonal."""
    (array,) = arrays(v)
    return diag(Array(reshape(array._value, (array.size,))), k)


@implements(np.vander)
def vander(x: Any, N: int | None = None, increasing: bool = False) -> Array:  # noqa: N803 - NumPy's name
    """Powers of a vector as columns."""
    (array,) = arrays(x)
    if array.ndim != 1:
        raise ValueError(f"vander takes a vector, not {array.ndim} axes.")
    value = cast(array._value, promote(array._value.spec.dtype, "int64"))
    rows, columns = array.size, array.size if N is None else operator.index(N)
    if columns < 1:
        return Array(bound_to(filled((rows, 0), 0, value.spec.dtype), array._device))
    powers = [filled((rows, 1), 1, value.spec.dtype), broadcast(reshape(value, (rows, 1)), (rows, columns - 1))]
    result = apply(Scan("prod", 1), apply(Concatenate(1), *powers))
    return Array(result if increasing else apply(Flip((1,)), result))
