"""Arguments for a trial where the user's own are not at hand: the same whenever they are made."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from anygpu.array.core.device import to_numpy_dtype
from anygpu.base.typing import HostArray
from anygpu.program.primitives import Spec

#: The least and the greatest value of an array.
Range = tuple[float, float]

_SEED = 20_250_607


def samples(specs: Sequence[Spec], ranges: Sequence[Range | None] = ()) -> list[HostArray]:
    """An array for each spec, of numbers in its range.

    Where that is not known, floats lie between -1 and 1, and whole numbers between 0 and the shortest axis of all: a
    kernel may use them as indices.
    """
    random = np.random.default_rng(_SEED)
    axes = [n for spec in specs for n in spec.shape if n]
    top = max(min(axes, default=2) - 1, 1)
    known = [*ranges, *[None] * (len(specs) - len(ranges))]
    return [_sample(random, spec, reach, top) for spec, reach in zip(specs, known, strict=True)]


def _sample(random: np.random.Generator, spec: Spec, reach: Range | None, top: int) -> HostArray:
    dtype = to_numpy_dtype(spec.dtype)
    if dtype.kind == "b":
        return random.integers(0, 2, spec.shape).astype(dtype)
    if reach is not None and not all(map(math.isfinite, reach)):
        reach = None
    if dtype.kind in "iu":
        first, last = (int(each) for each in (reach or (0, min(top, np.iinfo(dtype).max))))
        return random.integers(first, last, spec.shape, dtype=dtype, endpoint=True)
    low, high = reach or (-1.0, 1.0)
    real = low + (high - low) * random.random(spec.shape, np.float32)
    if dtype.kind == "c":
        return (real + 1j * random.permutation(real, axis=-1) if spec.shape else real + 0j).astype(dtype)
    return np.asarray(real).astype(dtype)
