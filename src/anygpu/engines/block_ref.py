"""Blocks of a device's memory that go back by themselves."""

from __future__ import annotations

from anygpu.engines.driver import Extent
from anygpu.memory.adaptors import Stats
from anygpu.memory.resource import Block

#: Whom memory is counted for.
ARRAYS, TEMPORARIES, CONSTANTS, TUNING = "arrays", "temporaries", "constants", "tuning"


class BlockRef:
    """A block that goes back when the last array in it is gone."""

    __slots__ = ("__weakref__", "_memory", "block")

    def __init__(self, memory: Stats, nbytes: int, owner: str) -> None:
        self._memory = memory
        self.block: Block = memory.allocate(nbytes, owner=owner)

    def __del__(self) -> None:
        block = getattr(self, "block", None)
        if block is not None:
            self._memory.release(block)

    def extent(self, nbytes: int) -> Extent:
        """Its first bytes."""
        return Extent(self.block.handle, 0, nbytes)


def window_of(extent: Extent, window: tuple[int, int] | None) -> Extent:
    """What a kernel sees of an extent. Of what begins at an offset, the last window may turn out to show nothing."""
    if window is None:
        return extent
    first, nbytes = window
    left = extent.nbytes - first
    if left <= 0:
        return Extent(extent.block, extent.offset, min(extent.nbytes, 4))
    return Extent(extent.block, extent.offset + first, min(nbytes, left))
