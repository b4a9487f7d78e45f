"""The array namespace: every name of the Python Array API standard 2024.12. `anygpu` passes them on as its own."""

# ruff: noqa: F401, F403, F811 - these imports are the exports, and some share the names of the standard's arguments

from typing import Any

# NumPy's own types, so that they compare with everything as NumPy's do.
from numpy import (
    bool,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)

from anygpu.array.core.array import Array
from anygpu.array.functions import creation, elementwise, manipulation
from anygpu.array.functions.concatenation import (
    concat,
    stack,
)
from anygpu.array.functions.creation import (
    asarray,
    empty,
    empty_like,
    eye,
    from_dlpack,
    full,
    full_like,
    ones,
    ones_like,
    tril,
    triu,
    zeros,
    zeros_like,
)
from anygpu.array.functions.elementwise import *
from anygpu.array.functions.manipulation import (
    broadcast_to,
    expand_dims,
    flip,
    matrix_transpose,
    moveaxis,
    permute_dims,
    repeat,
    reshape,
    roll,
    squeeze,
    tile,
    unstack,
)
from anygpu.array.functions.numeric import diff
from anygpu.array.functions.products import (
    matmul,
    tensordot,
    vecdot,
)
from anygpu.array.functions.ranges import arange, linspace
from anygpu.array.functions.reductions import (
    all,
    any,
    argmax,
    argmin,
    count_nonzero,
    cumulative_prod,
    cumulative_sum,
    max,
    mean,
    min,
    prod,
    std,
    sum,
    var,
)
from anygpu.array.functions.selection import nonzero, take, take_along_axis, where
from anygpu.array.functions.sorting import (
    argsort,
    searchsorted,
    sort,
    unique_all,
    unique_counts,
    unique_inverse,
    unique_values,
)
from anygpu.array.functions.types import (
    __array_namespace_info__,
    astype,
    can_cast,
    e,
    finfo,
    iinfo,
    inf,
    isdtype,
    nan,
    newaxis,
    pi,
    result_type,
)

# Where NumPy's functions of the same name are called or answer otherwise.


def clip(x: Any, /, min: Any = None, max: Any = None) -> Array:
    """Numbers below `min` become `min`, and those above `max` become `max`; `None` is no limit."""
    return elementwise.clip(x, min, max)


def meshgrid(*arrays: Any, indexing: str = "xy") -> list[Array]:
    """The coordinates of every point of the grid that the vectors span."""
    return list(creation.meshgrid(*arrays, indexing=indexing))


def broadcast_arrays(*arrays: Any) -> list[Array]:
    """All in the one shape that they have together."""
    return list(manipulation.broadcast_arrays(*arrays))


_NOT_EXPORTED = ("Any", "creation", "elementwise", "manipulation")
__all__ = [
    *sorted(name for name in dir() if not name.startswith("_") and name not in _NOT_EXPORTED),
    "__array_namespace_info__",
]
