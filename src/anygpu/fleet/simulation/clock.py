"""A clock that goes from event to event."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any


class EventClock:
    """Calls what was scheduled, in the order of time; what is due at the same time in the order of scheduling."""

    __slots__ = ("_events", "_numbers", "now", "stopped")

    def __init__(self) -> None:
        self.now = 0.0
        #: Whether nothing more is to happen.
        self.stopped = False
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = count()

    def __call__(self) -> float:
        return self.now

    def at(self, when: float, call: Callable[..., None], *given: Any) -> None:
        """Schedule a call. What is due already is called next."""
        heapq.heappush(self._events, (when if when > self.now else self.now, next(self._numbers), call, given))

    def run(self) -> None:
        """Until somebody stops it, or nothing is left to happen."""
        events, pop = self._events, heapq.heappop
        while events and not self.stopped:
            self.now, _, call, given = pop(events)
            call(*given)
