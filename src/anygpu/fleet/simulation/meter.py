"""What our own code takes for a decision, as it is: this is measured, not simulated."""

from __future__ import annotations

import time

#: One of so many decisions is measured: asking for the processor's time takes a microsecond, and decisions take few.
#: A prime number, so that every kind of decision has its turn.
EVERY = 17


class Meter:
    """Adds up the processor seconds of decisions, from a sample of them."""

    __slots__ = ("_count", "_seconds")

    def __init__(self) -> None:
        self._count = 0
        self._seconds = 0.0

    def begin(self) -> float:
        """Before a decision; 0 if it is not measured."""
        self._count += 1
        return 0.0 if self._count % EVERY else time.thread_time()

    def end(self, begun: float) -> None:
        if begun:
            self._seconds += time.thread_time() - begun

    @property
    def seconds(self) -> float:
        """Of all decisions, as far as the sample tells."""
        return self._seconds * EVERY
