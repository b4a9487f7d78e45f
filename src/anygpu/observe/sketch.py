"""Quantiles of any number of times in a fixed memory, each within 1 % of a true value.

The counts of logarithmic buckets, as in DDSketch (Masson, Rim and Lee, VLDB 2019): a bucket's bounds are 2 % apart, so
its middle is at most 1 % away from anything in it. Sketches of the same quantity can be added.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

RELATIVE_ERROR = 0.01
_GAMMA = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_PER_LOG = 1 / math.log(_GAMMA)
#: Shorter and longer times count as these: a nanosecond, and some eleven days.
_LEAST, _MOST = 1e-9, 1e6
#: Buckets are added this many at a time, so that arrays do not grow with every new value.
_STEP = 32
#: Up to so many times, every count fits into 32 bits.
_MOST_SMALL = 2**31 - 1


class Sketch:
    """Times that have been seen, in seconds."""

    __slots__ = ("_counts", "_first", "count", "most", "total")

    def __init__(self) -> None:
        self.count = 0
        #: The sum and the longest one, exactly.
        self.total = 0.0
        self.most = 0.0
        #: The number of the first bucket that there is room for.
        self._first = 0
        #: In half the memory as long as no count can overflow.
        self._counts: NDArray[np.integer] = np.zeros(0, np.int32)

    def add(self, seconds: NDArray[np.float64]) -> None:
        if not len(seconds):
            return
        self.count += len(seconds)
        self.total += float(seconds.sum())
        self.most = max(self.most, float(seconds.max()))
        buckets = np.ceil(np.log(np.clip(seconds, _LEAST, _MOST)) * _PER_LOG).astype(np.int64)
        low, high = int(buckets.min()), int(buckets.max())
        self._make_room(low, high)
        self._counts[low - self._first : high - self._first + 1] += np.bincount(buckets - low)

    def merge(self, other: Sketch) -> None:
        if not other.count:
            return
        self.count += other.count
        self.total += other.total
        self.most = max(self.most, other.most)
        self._make_room(other._first, other._first + len(other._counts) - 1)
        begin = other._first - self._first
        self._counts[begin : begin + len(other._counts)] += other._counts

    def quantile(self, share: float) -> float | None:
        """The time that this share of all times does not exceed; `None` before the first."""
        if not self.count:
            return None
        rank = math.ceil(share * self.count) or 1
        bucket = int(np.searchsorted(np.cumsum(self._counts), rank)) + self._first
        middle = 2 * math.exp(bucket / _PER_LOG) / (1 + _GAMMA)
        return min(middle, self.most)

    def counts_up_to(self, bounds: Sequence[float]) -> list[int]:
        """For each bound, which rise, how many times did not exceed it.

        A bucket counts where all of it is below the bound: a time that is less than 2 % shorter may be missing.
        """
        if not self.count:
            return [0] * len(bounds)
        # A bound that is one of a bucket belongs to it, whatever the rounding.
        last = np.floor(np.log(np.asarray(bounds, float)) * _PER_LOG + 1e-9).astype(np.int64) - self._first
        below = np.concatenate(([0], np.cumsum(self._counts)))
        counts: list[int] = below[np.clip(last + 1, 0, len(self._counts))].tolist()
        return counts

    @property
    def nbytes(self) -> int:
        return self._counts.nbytes

    def _make_room(self, low: int, high: int) -> None:
        if self.count > _MOST_SMALL and self._counts.dtype == np.int32:
            self._counts = self._counts.astype(np.int64)
        counts, first = self._counts, self._first
        if len(counts) and first <= low and high < first + len(counts):
            return
        if len(counts):
            low, high = min(low, first), max(high, first + len(counts) - 1)
        begin = low // _STEP * _STEP
        room = np.zeros((high // _STEP + 1) * _STEP - begin, counts.dtype)
        if len(counts):
            room[first - begin : first - begin + len(counts)] = counts
        self._first, self._counts = begin, room
