"""The pace of exploring: it takes a share of what the calls have taken.

Exploring is worth its processor time only for calls to come, and nobody knows how many will. So it may take a share of
the time that calls have taken so far, in this process and in earlier ones: a function that is called for a second in
one process and never again is left alone.
"""

from __future__ import annotations

from collections.abc import Callable

from anygpu.hardware.gpu_presence import software_devices_are_automatic

#: Looking at the machine, and loading what traces functions, takes 0.2 s of Python's time, which callers feel. That is
#: worth it once calls have taken so long in this process, or with the first call if earlier ones have spent so long.
LOOKING, LOOKING_AT_ONCE = 2.0, 3.0
#: Seconds that looking at the machine may take for each second of calls: at first what Python takes for it, with what
#: is remembered of earlier probes; then a child for each engine, one after the other, and what it is expected to take.
#: Where software devices stand in for GPUs, all are probed at once after `LOOKING` instead.
LOOK_SHARE, LOADING_SECONDS, PROBE_SECONDS = 0.03, 0.2, 1.0
#: As many engines are probed with the first call if earlier processes have paid for them.
_ENGINES = 5
#: Seconds that exploring may take for each second of calls. It slows them down a little: by what it takes of the
#: memory's bandwidth, and of Python's lock.
SHARE = 0.25


def looking_at_once() -> float:
    """The seconds that earlier processes must have spent in calls for a look at the machine with the first one."""
    return LOOKING_AT_ONCE if software_devices_are_automatic() else _ENGINES * PROBE_SECONDS / LOOK_SHARE


class Pace:
    """What exploring may cost, and what it has taken. `clock` is the planner's."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        #: Seconds that exploring has taken.
        self.spent = 0.0
        #: Seconds that probing has taken, which is looking at the machine.
        self.looked = 0.0
        #: Seconds of calls in earlier processes, of functions that are not explored yet.
        self.earlier = 0.0
        #: Whether times of calls may be longer than usual, because something is being explored beside them.
        self.exploring = False
        self._began = 0.0

    def allowance(self, calls: float) -> float:
        """The seconds that exploring may take now, when calls have taken `calls` seconds in all."""
        return max(0.0, (calls + self.earlier) * SHARE - self.spent)

    def missing(self, seconds: float, calls: float) -> float:
        """The seconds that calls still have to take until exploring may take so long."""
        return max(0.0, (self.spent + seconds) / SHARE - calls - self.earlier)

    def look_after(self, *, is_first: bool) -> float:
        """The seconds that calls must have taken in all before the first look, or before the next engine is probed."""
        seconds = LOADING_SECONDS if is_first else self.looked + PROBE_SECONDS
        return max(LOOKING, seconds / LOOK_SHARE - self.earlier)

    def __enter__(self) -> None:
        """Something is being explored from now on, on the one thread that does."""
        self._began = self._clock()
        self.exploring = True

    def __exit__(self, *_: object) -> None:
        self.exploring = False
        self.spent += self._clock() - self._began
