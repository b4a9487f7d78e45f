"""Tasks that run on their callers' own threads, beside the lanes, while nothing else is open.

Two changes of thread take longer than all that is done for a task, and a caller who waits for one task has a thread to
spare. Between any two steps the caller may be interrupted. So a visit is a part of its caller's frame and ends with it,
in whichever way that is left; the scheduler has no other reference to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from weakref import WeakSet


class Visit:
    """One such task."""

    __slots__ = ("__weakref__", "_tell_end", "began", "device", "predicted", "task")

    def __init__(self, task: str, device: str, predicted: float, tell_end: Callable[[], None]) -> None:
        self.task = task
        self.device = device
        self.predicted = predicted
        self.began = time.monotonic()
        self._tell_end: Callable[[], None] | None = tell_end

    def end(self) -> None:
        """May be called twice."""
        tell, self._tell_end = self._tell_end, None
        if tell is not None:
            tell()

    def __del__(self) -> None:
        self.end()

    @property
    def is_open(self) -> bool:
        return self._tell_end is not None


class Visits:
    """Those of one scheduler."""

    def __init__(self, tell_end: Callable[[], None]) -> None:
        self._tell_end = tell_end
        self._visits: WeakSet[Visit] = WeakSet()

    def begin(self, task: str, device: str, predicted: float) -> Visit:
        visit = Visit(task, device, predicted, self._tell_end)
        self._visits.add(visit)
        return visit

    def open(self) -> list[Visit]:
        return [visit for visit in list(self._visits) if visit.is_open]

    def __len__(self) -> int:
        return len(self.open()) if self._visits else 0
