"""Short pauses of a thread that computes in Python beside an event loop.

Python's lock goes from a thread that computes to any of those who wait, every 5 ms. Beside a few such threads, a loop
that has something to do may wait for several turns. A thread that sleeps for a moment leaves it the lock at once.
"""

from __future__ import annotations

import time

#: A thread computes for so many seconds without a pause, and of that length is a pause.
STRETCH, PAUSE = 1e-3, 1e-4


class GivingWay:
    """`pause()` sleeps for a moment if the last pause was too long ago; only if that is `wanted` at all."""

    __slots__ = ("_until", "_wanted")

    def __init__(self, *, wanted: bool = True) -> None:
        self._wanted = wanted
        self._until = time.monotonic() + STRETCH if wanted else 0.0

    def pause(self) -> None:
        if self._wanted and time.monotonic() > self._until:
            time.sleep(PAUSE)
            self._until = time.monotonic() + STRETCH
