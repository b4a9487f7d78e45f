"""Whether a kernel's result is that of its reference: pure comparison of two arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from anygpu.base.float_errors import float_errors_ignored
from anygpu.base.typing import HostArray

#: A share of each value, near 0 of the typical one; or a share of each value and a number that is added to it.
Tolerance = float | tuple[float, float]

#: In epsilons of the type. One operation may add as much as docs/reference/tolerances.md says, 32 of float32 for a
#: function; a kernel has several of them, and sums of some hundred numbers.
_EPSILONS = {"float16": 8, "float32": 256, "float64": 256, "complex64": 512, "complex128": 512}


#: As many values show what is typical of an array.
_SAMPLES = 1 << 16
_PIECE = 1 << 18


class Difference(NamedTuple):
    """Where two arrays differ first, in C order."""

    position: tuple[int, ...]
    found: Any
    expected: Any
    #: In how many they do.
    places: int


def default_tolerance(dtype: np.dtype[Any]) -> float:
    """The difference that is allowed between two right answers; 0 for whole numbers and bools."""
    return _EPSILONS[dtype.name] * float(np.finfo(dtype).eps) if dtype.name in _EPSILONS else 0.0


def first_difference(found: HostArray, expected: HostArray, tolerance: Tolerance | None = None) -> Difference | None:
    """The first place where two arrays of one shape and type differ by more than they may.

    A single tolerance is a share: of the expected value, or where that is less, of the median of all that are not 0. So
    neither a sum that comes close to 0 nor an array of tiny numbers is judged by a scale that is not its own.
    """
    flat, wanted = found.reshape(-1), expected.reshape(-1)
    typical = _typical(wanted)
    first: int | None = None
    places = 0
    # In pieces, so that what is compared in a wider type stays in the processor's caches.
    for begin in range(0, flat.size, _PIECE):
        one, other = flat[begin : begin + _PIECE], wanted[begin : begin + _PIECE]
        where = np.flatnonzero(one != other)
        if where.size:
            where = where[~_is_close(one[where], other[where], tolerance, typical)]
        if where.size and first is None:
            first = begin + int(where[0])
        places += where.size
    if first is None:
        return None
    position = tuple(int(each) for each in np.unravel_index(first, found.shape))
    return Difference(position, found[position].item(), expected[position].item(), places)


@float_errors_ignored
def _is_close(
    found: HostArray, expected: HostArray, tolerance: Tolerance | None, typical: float
) -> npt.NDArray[np.bool_]:
    dtype = found.dtype
    if tolerance is None:
        tolerance = default_tolerance(dtype)
    if dtype.kind == "b" or not np.any(tolerance):
        return np.asarray((found != found) & (expected != expected))
    # Whole numbers wrap around in their own type, and floats overflow.
    wide: Any = np.complex128 if dtype.kind == "c" else np.float64 if dtype.itemsize < 8 else np.longdouble
    found, expected = found.astype(wide), expected.astype(wide)
    distance, size = np.abs(found - expected), np.abs(expected)
    if isinstance(tolerance, tuple):
        allowed = tolerance[0] * size + tolerance[1]
    else:
        # Below the smallest normal number some devices have only 0.
        least = float(np.finfo(dtype).tiny) if dtype.kind == "f" else 0.0
        allowed = np.maximum(tolerance * np.maximum(size, typical), least)
    near = (distance <= allowed) & np.isfinite(size) & np.isfinite(found)
    return np.asarray(near | (np.isnan(found) & np.isnan(expected)))


def _typical(values: HostArray) -> float:
    """The median of all that are not 0, as some thousand of them show it."""
    sizes = np.abs(values[:: max(1, values.size // _SAMPLES)]).astype(np.float64)
    sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
    return float(np.median(sizes)) if sizes.size else 0.0
