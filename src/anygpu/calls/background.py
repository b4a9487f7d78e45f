"""Work beside the user's calls: one thread for it, what it may cost, and how soon Python's lock goes back to the calls.

- `Background` runs jobs that no caller should wait for (opening devices, compiling, trials) one after the other.
- `Pace` bounds what they take. Exploring is worth its processor time only for calls to come, and how many there will be
  is not known. So it may take a share of the time that calls have taken so far, in this process and in earlier ones: a
  function that is called for a second in one process and never again is left alone.
- `yielding` shortens Python's switch interval while a thread of anygpu runs Python code.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator

from anygpu.base import forks

# -- the thread

Job = Callable[[], None]

#: How long the end of Python waits for a library that must not be interrupted.
_PATIENCE = 30.0
#: With nothing to do for so long, what was only needed for jobs is let go of.
_IDLE_SECONDS = 2.0


class Background:
    """Runs jobs one after the other on a thread that is started with the first of them.

    One thread and not many, so that trials do not disturb each other's times, and the caller's own work gets most of
    the machine. It is a daemon, and `close` is registered with `atexit`. Any thread may call its methods.
    """

    def __init__(self, when_idle: Callable[[], None] = lambda: None) -> None:
        """`when_idle` is called on the thread when there was nothing to do for a while."""
        self._when_idle = when_idle
        self.begin_anew()
        _all.add(self)

    def begin_anew(self) -> None:
        """Begin without a thread and without jobs, with new locks: also for a forked child, which has none of the
        threads.
        """
        self._jobs: deque[Job] = deque()
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._idle = threading.Condition(self._lock)
        self._waiting = 0
        self._thread: threading.Thread | None = None
        self._closed = False
        self._holding = 0

    def submit(self, job: Job) -> None:
        """Run a job on the thread, after those before it; drop it after `close`. A job deals with its own errors."""
        with self._lock:
            if self._closed:
                return
            self._waiting += 1
            self._jobs.append(job)
            self._arrived.notify()
            if self._thread is None:
                # A daemon, because Python waits for others before it calls what was registered with atexit.
                self._thread = threading.Thread(target=self._work, name="anygpu-background", daemon=True)
                self._thread.start()
                atexit.register(self.close)

    @property
    def busy(self) -> bool:
        """Return whether jobs are waiting or running."""
        return self._waiting > 0

    def settle(self, timeout: float | None = None) -> bool:
        """Wait until every job is done; return whether that happened in time."""
        with self._idle:
            return self._idle.wait_for(lambda: self._waiting == 0 or self._closed, timeout)

    @property
    def closed(self) -> bool:
        """Return whether `close` was called; long jobs ask between their steps."""
        return self._closed

    @contextlib.contextmanager
    def must_finish(self) -> Iterator[None]:
        """Keep Python from ending while the block uses a library that would crash then."""
        self._holding += 1
        try:
            with forks.fork_allowed():
                yield
        finally:
            self._holding -= 1

    def close(self) -> None:
        """Drop the jobs that have not begun, and let no more in.

        A job that runs is waited for up to `_PATIENCE` seconds if it is in `must_finish`, and otherwise left to end
        with Python.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            thread = self._thread
            self._idle.notify_all()
            self._arrived.notify_all()
        if thread is not None:
            atexit.unregister(self.close)
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=_PATIENCE if self._holding else 0.0)

    def _work(self) -> None:
        """Run the jobs one after the other until `close`; one that raises is logged, and the next one runs."""
        while (job := self._next()) is not None:
            try:
                with forks.no_fork():
                    job()
            except Exception:
                import logging  # late: it takes 5 ms, and jobs do not fail

                logging.getLogger(__name__).exception("a job in the background failed")
            finally:
                with self._idle:
                    self._waiting -= 1
                    if self._waiting == 0:
                        self._idle.notify_all()

    def _next(self) -> Job | None:
        """Wait for the next job; `None` after `close`. After `_IDLE_SECONDS` without one, call `when_idle`."""

        def is_there() -> bool:
            return bool(self._jobs) or self._closed

        with self._lock:
            arrived = self._arrived.wait_for(is_there, _IDLE_SECONDS)
        if not arrived:
            self._when_idle()
        with self._lock:
            self._arrived.wait_for(is_there)
            return None if self._closed else self._jobs.popleft()


_all: weakref.WeakSet[Background] = weakref.WeakSet()


# -- its pace

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
    """Return the seconds that earlier processes must have spent in calls to examine the machine at the first one."""
    from anygpu.hardware.gpu_presence import software_devices_are_automatic  # native code needs this file without it

    return LOOKING_AT_ONCE if software_devices_are_automatic() else _ENGINES * PROBE_SECONDS / LOOK_SHARE


class Pace:
    """The seconds that exploring may take, and has taken; a context manager around what is explored.

    `clock` is the planner's. Times are read by all threads, and written by the background thread alone.
    """

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
        """Return the seconds that exploring may take when calls have taken `calls` seconds in all."""
        return max(0.0, (calls + self.earlier) * SHARE - self.spent)

    def missing(self, seconds: float, calls: float) -> float:
        """Return the seconds of calls still needed before exploring may take this long."""
        return max(0.0, (self.spent + seconds) / SHARE - calls - self.earlier)

    def look_after(self, *, is_first: bool) -> float:
        """Return the seconds of calls needed before the first look, or before the next engine is probed."""
        seconds = LOADING_SECONDS if is_first else self.looked + PROBE_SECONDS
        return max(LOOKING, seconds / LOOK_SHARE - self.earlier)

    def __enter__(self) -> None:
        """Begin to count the time of exploring. Only the background thread does, so blocks are not nested."""
        self._began = self._clock()
        self.exploring = True

    def __exit__(self, *_: object) -> None:
        self.exploring = False
        self.spent += self._clock() - self._began


# -- Python's lock

#: Python's lock goes back to the calls after so long, where 5 ms are usual: those with many short operations would
#: otherwise wait 5 ms for each of them.
_SWITCH_SECONDS = 2e-4


class _Switching:
    """Python's switch interval, a setting of the process: the first block shortens it, the last one puts it back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks = 0
        self._usual = self._ours = 0.0

    def shorten(self) -> None:
        """Shorten the interval, if this is the first block."""
        with self._lock:
            self._blocks += 1
            if self._blocks == 1:
                self._usual = sys.getswitchinterval()
                sys.setswitchinterval(min(self._usual, _SWITCH_SECONDS))
                self._ours = sys.getswitchinterval()

    def put_back(self) -> None:
        """Put the interval back, if this was the last block."""
        with self._lock:
            self._blocks -= 1
            if self._blocks == 0:
                self.undo()

    @property
    def is_short(self) -> bool:
        """Return whether a block is under way."""
        return self._blocks > 0

    def undo(self) -> None:
        """Put the interval back, unless other code has set it meanwhile."""
        if sys.getswitchinterval() == self._ours:
            # Python cuts it to whole microseconds, which floats rarely are.
            sys.setswitchinterval(self._usual + 5e-7)


_switching = _Switching()


@contextlib.contextmanager
def yielding() -> Iterator[None]:
    """Shorten Python's switch interval in a block that runs Python beside the user's calls.

    A call that wants Python's lock then gets it after 0.2 ms instead of 5 ms. Blocks may be nested, and on any threads.
    """
    switching = _switching
    switching.shorten()
    try:
        yield
    finally:
        switching.put_back()


def _in_child() -> None:
    """Reset all background work in a forked child, which has none of its parent's threads."""
    global _switching
    for each in list(_all):
        each.begin_anew()
    if _switching.is_short:
        _switching.undo()
    _switching = _Switching()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
