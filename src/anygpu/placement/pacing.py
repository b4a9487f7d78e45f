"""The pace of exploring: it stops when calls have stopped, and takes a share of what the calls have taken.

Exploring is worth its processor time only for calls to come, and nobody knows how many will. So it may take a share of
the time that calls have taken so far, in this process and in earlier ones: a function that is called for a second in
one process and never again is left alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

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
#: Calls have stopped when none has come for so long.
QUIET_SECONDS = 1.0
#: How often that is looked at, while something is being explored.
_LOOK_SECONDS = 0.2
#: Seconds that exploring may take for each second of calls. It runs on cores that nobody else wants, and slows calls
#: down all the same: by what it takes of the memory's bandwidth, and of Python's lock.
SHARE = 0.25
#: The same while the calls leave a processor idle, and the seconds that exploring may take then before calls have paid.
SPARE_SHARE, HEAD_START = 0.35, 1.0


def looking_at_once() -> float:
    """The seconds that earlier processes must have spent in calls for a look at the machine with the first one."""
    return LOOKING_AT_ONCE if software_devices_are_automatic() else _ENGINES * PROBE_SECONDS / LOOK_SHARE


class Pausable(Protocol):
    def pause(self) -> None: ...

    def resume(self) -> None: ...


class Pace:
    """When exploring goes on, and what it may cost. `clock` is the planner's."""

    def __init__(
        self, clock: Callable[[], float], explorers: Pausable, has_spare: Callable[[], bool] = lambda: False
    ) -> None:
        """`has_spare` says whether the calls leave a processor idle."""
        self._clock = clock
        self._explorers = explorers
        self._has_spare = has_spare
        #: Seconds that exploring has taken.
        self.spent = 0.0
        #: Seconds that probing has taken, which is looking at the machine.
        self.looked = 0.0
        #: Seconds of calls in earlier processes, of functions that are not explored yet.
        self.earlier = 0.0
        self._last_call = clock()
        #: One entry for each call that is being planned or run.
        self._calls: dict[object, None] = {}
        #: How many wait for exploring to end, and want it to go on.
        self._awaited = 0
        self._exploring = 0
        self._paused = False
        self._changed = threading.Condition()
        self._watcher: threading.Thread | None = None

    # -- calls

    def begin_call(self) -> object:
        """A call has begun: what explores goes on."""
        call = object()
        self._calls[call] = None
        if self._paused:
            self._notify()
        return call

    def end_call(self, call: object) -> None:
        self._last_call = self._clock()
        self._calls.pop(call, None)

    @property
    def exploring(self) -> bool:
        """Whether times of calls may be longer than usual, because something is being explored beside them."""
        return self._exploring > 0 and not self._paused

    # -- exploring

    def allowance(self, calls: float) -> float:
        """The seconds that exploring may take now, when calls have taken `calls` seconds in all."""
        share, head_start = self._terms
        return max(0.0, (calls + self.earlier) * share + head_start - self.spent)

    def affords(self, seconds: float, calls: float) -> bool:
        """Whether the calls alone have paid for so many seconds: for what is of use to other functions, later on."""
        return seconds <= (calls + self.earlier) * SHARE - self.spent

    def missing(self, seconds: float, calls: float) -> float:
        """The seconds that calls still have to take until exploring may take so long."""
        share, head_start = self._terms
        return max(0.0, (self.spent + seconds - head_start) / share - calls - self.earlier)

    def look_after(self, *, is_first: bool) -> float:
        """The seconds that calls must have taken in all before the first look, or before the next engine is probed."""
        seconds = LOADING_SECONDS if is_first else self.looked + PROBE_SECONDS
        return max(LOOKING, seconds / LOOK_SHARE - self.earlier)

    @property
    def _terms(self) -> tuple[float, float]:
        """The share of the calls' time, and the seconds before that."""
        return (SPARE_SHARE, HEAD_START) if self._has_spare() else (SHARE, 0.0)

    def __enter__(self) -> None:
        """Something is being explored from now on, on this thread."""
        self._began = self._clock()
        with self._changed:
            self._exploring += 1
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="anygpu-pace", daemon=True)
                self._watcher.start()

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._exploring -= 1
            self.spent += self._clock() - self._began
            self._changed.notify_all()

    def await_end(self) -> None:
        """Somebody waits for the end of exploring, until `stop_awaiting`."""
        with self._changed:
            self._awaited += 1
            self._changed.notify_all()

    def stop_awaiting(self) -> None:
        with self._changed:
            self._awaited -= 1

    def forked(self) -> None:
        """In a child that was forked off: nobody explores, and nobody will let go of the lock."""
        self._changed = threading.Condition()
        self._calls, self._awaited, self._exploring = {}, 0, 0
        self._paused, self._watcher = False, None

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    @property
    def _is_quiet(self) -> bool:
        return not self._calls and not self._awaited and self._clock() - self._last_call > QUIET_SECONDS

    def _watch(self) -> None:
        with self._changed:
            while self._exploring:
                if self._is_quiet:
                    self._pause()
                else:
                    self._changed.wait(_LOOK_SECONDS)
            self._watcher = None

    def _pause(self) -> None:
        """Until the next call. The caller holds the lock."""
        begin = self._clock()
        self._paused = True
        self._explorers.pause()
        while self._exploring and not self._calls and not self._awaited:
            self._changed.wait()
        self._paused = False
        self._explorers.resume()
        self.spent -= self._clock() - begin
