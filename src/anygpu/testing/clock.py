"""Time that only moves when it is told to."""

from __future__ import annotations


class ManualClock:
    """Stands in for `time.perf_counter` and `time.monotonic`: call it to read it."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: float) -> float:
        if seconds < 0:
            raise ValueError(f"time does not run backwards: {seconds}")
        self._now += seconds
        return self._now
