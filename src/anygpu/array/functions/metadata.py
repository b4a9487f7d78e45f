"""Shape and size: facts about an array that need no computation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anygpu.array.core.array import Array
from anygpu.array.core.overrides import implements
from anygpu.array.core.recording import normal_axes
from anygpu.program.primitives import Shape, product


@implements(np.shape)
def shape(a: Any) -> Shape:
    """The lengths of the axes; nothing is computed."""
    return a.shape if isinstance(a, Array) else np.shape(a)


@implements(np.ndim)
def ndim(a: Any) -> int:
    """The number of axes."""
    return len(shape(a))


@implements(np.size)
def size(a: Any, axis: int | Sequence[int] | None = None) -> int:
    """The number of elements, or those along some axes."""
    lengths = shape(a)
    return product(tuple(lengths[each] for each in normal_axes(axis, len(lengths))))
