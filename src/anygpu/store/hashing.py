"""Whether two contents on a device are equal, computed where they are. On the host, hashes of their bytes tell.

A fingerprint (two sums, a few bytes to the host) finds candidates, and a comparison there (1 byte to the host) most of
those that differ; what is left is merged only if its bytes are equal.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anygpu.array.core.array import Array

#: Bytes that are compared on the host at once.
_PIECE = 16 << 20


def fingerprint_of(x: Array) -> bytes:
    """Equal for equal contents on one device, which computes it; almost always another for others."""
    return bytes(np.asarray(fingerprints(x)).tobytes())


def fingerprints(x: Array) -> Array:
    flat = x.reshape(-1)
    if flat.dtype.kind == "c":
        return np.concatenate([fingerprints(flat.real), fingerprints(flat.imag)])  # type: ignore[return-value]
    if flat.dtype.kind in "biu":
        numbers = flat.astype(np.uint32)
        weights = _positions(flat, np.uint32) * np.uint32(2654435761) + np.uint32(1)
    else:
        numbers = flat.astype(np.float32) if flat.dtype.itemsize < 4 else flat
        weights = (_positions(flat, np.uint32) * np.uint32(40503) & np.uint32(0xFFFF)).astype(numbers.dtype) + 1
    dtype: Any = numbers.dtype
    return np.stack([np.sum(numbers, dtype=dtype), np.sum(numbers * weights, dtype=dtype)])  # type: ignore[return-value]


def _positions(flat: Array, dtype: Any) -> Array:
    from anygpu.array.functions.ranges import arange

    return arange(flat.size, dtype=dtype, device=flat._device)


def are_equal(one: Array, other: Array) -> bool:
    """Bit by bit: 0.0 is not -0.0, and what holds a NaN is never found equal.

    Values of fractions do not tell everything, because a device may take subnormal numbers for 0. So those that seem
    equal there are compared on the host, in pieces.
    """
    if not np.all(_same(one, other)):
        return False
    if one.dtype.kind not in "fc":
        return True
    first, second = one.reshape(-1), other.reshape(-1)
    step = max(1, _PIECE // one.dtype.itemsize)
    pieces = (slice(start, start + step) for start in range(0, one.size, step))
    return all(np.asarray(first[each]).tobytes() == np.asarray(second[each]).tobytes() for each in pieces)


def _same(one: Array, other: Array) -> Array:
    if one.dtype.kind == "c":
        return _same(one.real, other.real) & _same(one.imag, other.imag)
    same = one == other
    if one.dtype.kind == "f":
        same = same & (np.signbit(one) == np.signbit(other))
    return same
