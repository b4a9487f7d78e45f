"""The memory of opaque tasks, as it was seen: what a call with so many rows will take, and which devices have that.

Pure functions of what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from anygpu.base.units import readable_bytes


class Short(NamedTuple):
    """A device without the memory for a call."""

    device: str
    needed: int
    free: int

    @property
    def sentence(self) -> str:
        return (
            f"{self.device} needs about {readable_bytes(self.needed)} for it, and {readable_bytes(self.free)} are free."
        )


def predicted_peak(seen: Mapping[int, int], rows: int) -> int | None:
    """The bytes that a call with so many rows takes, from peaks that were seen with others; `None` without any.

    What was seen with that number of rows is believed. Else the line through what was seen tells: the part that does
    not grow with the rows is at least 0, and more rows never take less than fewer. One number of rows alone says that
    memory grows with the rows, which is too little for fewer rows, and enough for more.
    """
    if rows in seen:
        return seen[rows]
    if not seen:
        return None
    if len(seen) == 1:
        ((known, peak),) = seen.items()
        return peak * rows // known if known else peak
    slope, constant = _line(seen)
    least = max((peak for known, peak in seen.items() if known < rows), default=0)
    most = min((peak for known, peak in seen.items() if known > rows), default=None)
    value = max(least, int(constant + slope * rows))
    return value if most is None or most < least else min(value, most)


def _line(seen: Mapping[int, int]) -> tuple[float, float]:
    """The slope and the constant of the line with the least squares, neither of which is negative."""
    count = len(seen)
    middle, level = sum(seen) / count, sum(seen.values()) / count
    spread = sum((rows - middle) ** 2 for rows in seen)
    slope = sum((rows - middle) * (peak - level) for rows, peak in seen.items()) / spread
    constant = level - slope * middle
    if slope < 0:
        return 0.0, level
    if constant < 0:
        return sum(rows * peak for rows, peak in seen.items()) / sum(rows * rows for rows in seen), 0.0
    return slope, constant


def without_memory(needed: Mapping[str, int | None], free: Mapping[str, int | None]) -> list[Short]:
    """The devices that have less free than a call is predicted to take there. What is not known excludes none."""
    found: list[Short] = []
    for device, peak in needed.items():
        there = free.get(device)
        if peak is not None and there is not None and there < peak:
            found.append(Short(device, peak, there))
    return found
