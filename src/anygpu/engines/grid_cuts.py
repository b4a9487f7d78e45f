"""How a kernel that would run too long is cut along its groups: pure decisions, for every engine that compiles."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

#: A dispatch that runs much longer makes a desktop stutter, cannot be given up, and is killed by some systems at 2 s.
LONGEST_SECONDS = 0.2


class AssumedPace(NamedTuple):
    """What a device is sure to reach, for kernels that have never run. Too low only means a few cuts too many."""

    flops_per_second: float = 2e9
    bytes_per_second: float = 2e9

    def seconds(self, flops: float, bytes_moved: float) -> float:
        return max(flops / self.flops_per_second, bytes_moved / self.bytes_per_second)


class GridCut(NamedTuple):
    """A part of a grid."""

    first_group: int
    groups: int


def cuts(groups: int, seconds: float, *, longest: float = LONGEST_SECONDS, most: int | None = None) -> list[GridCut]:
    """Parts in order that cover `groups`, each of at most `longest` seconds by the estimate and `most` groups.

    They are as equal as they can be, because some compilers specialise a kernel to the size of its grid.
    """
    if groups <= 0:
        return []
    pieces = max(1, math.ceil(seconds / longest))
    if most is not None:
        pieces = max(pieces, -(-groups // most))
    pieces = min(pieces, groups)
    bounds = [groups * piece // pieces for piece in range(pieces + 1)]
    return [GridCut(first, after - first) for first, after in itertools.pairwise(bounds)]
