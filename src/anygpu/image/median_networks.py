"""The median of a fixed number of arrays by a sorting network, so that all of it is one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np


def median_of(parts: Sequence[Any]) -> Any:
    """The elementwise median of an odd number of arrays."""
    wires = list(parts)
    for low, high, keeps_low, keeps_high in _network(len(wires)):
        one, other = wires[low], wires[high]
        if keeps_low:
            wires[low] = np.minimum(one, other)
        if keeps_high:
            wires[high] = np.maximum(one, other)
    return wires[len(wires) // 2]


@cache
def _network(count: int) -> list[tuple[int, int, bool, bool]]:
    """Comparisons after which the median is in the middle: those of Batcher's merge sort on which it depends."""
    comparisons: list[tuple[int, int]] = []
    p = 1
    while p < count:
        k = p
        while k >= 1:
            for j in range(k % p, count - k, 2 * k):
                starts = range(j, min(j + k, count - k))
                comparisons += [(i, i + k) for i in starts if i // (2 * p) == (i + k) // (2 * p)]
            k //= 2
        p *= 2
    needed = {count // 2}
    kept: list[tuple[int, int, bool, bool]] = []
    for low, high in reversed(comparisons):
        if low in needed or high in needed:
            kept.append((low, high, low in needed, high in needed))
            needed |= {low, high}
    return kept[::-1]
