"""Time that only moves when it is told to, and processors that are as busy as a test says."""

from __future__ import annotations

from collections.abc import Callable

from anygpu.base.disturbance import Reading


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


# -- processors that are as busy as a test says


class FakeProcessors:
    """Stands in for `base.disturbance.read_processors`: our threads wait for the share `busy` of the clock's time."""

    def __init__(self, clock: Callable[[], float], busy: float = 0.0) -> None:
        self._clock = clock
        self._busy = busy
        self._last = clock()
        self._processor = self._waiting = 0.0

    @property
    def busy(self) -> float:
        return self._busy

    @busy.setter
    def busy(self, share: float) -> None:
        self()
        self._busy = share

    def __call__(self) -> Reading:
        now = self._clock()
        passed, self._last = now - self._last, now
        self._waiting += passed * self._busy
        self._processor += passed * (1.0 - self._busy)
        return Reading(now, self._processor, self._waiting)
