"""One thread for work that no caller should wait for: opening devices, compiling, trying candidates."""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator

Job = Callable[[], None]

#: How long the end of Python waits for a library that must not be interrupted.
_PATIENCE = 30.0
#: With nothing to do for so long, what was only needed for jobs is let go of.
_IDLE_SECONDS = 2.0


class Background:
    """Runs jobs one after the other on a thread that is started with the first of them.

    One thread and not many, so that trials do not disturb each other's times, and the caller's own work gets most of
    the machine.
    """

    def __init__(self, when_idle: Callable[[], None] = lambda: None) -> None:
        """`when_idle` is called on the thread when there was nothing to do for a while."""
        self._when_idle = when_idle
        self.begin_anew()

    def begin_anew(self) -> None:
        """Without a thread and without jobs: in a child that was forked off, which has neither."""
        self._jobs: deque[Job] = deque()
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._idle = threading.Condition(self._lock)
        self._waiting = 0
        self._thread: threading.Thread | None = None
        self._closed = False
        self._holding = 0

    def submit(self, job: Job) -> None:
        """A job must not raise: it deals with its own errors."""
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
        """Whether jobs are waiting or running."""
        return self._waiting > 0

    def settle(self, timeout: float | None = None) -> bool:
        """Wait until every job is done; whether that happened in time."""
        with self._idle:
            return self._idle.wait_for(lambda: self._waiting == 0 or self._closed, timeout)

    @property
    def closed(self) -> bool:
        """Long jobs look at it between their steps."""
        return self._closed

    @contextlib.contextmanager
    def must_finish(self) -> Iterator[None]:
        """Around the use of a library of this process: it would crash if Python ended under its feet."""
        self._holding += 1
        try:
            yield
        finally:
            self._holding -= 1

    def close(self) -> None:
        """Drop what has not begun. What has is waited for only if it must not be interrupted."""
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
        """Run the jobs one after the other, until there are none for a while."""
        while (job := self._next()) is not None:
            try:
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
        """The next job, when there is one; `None` when there are to be no more."""

        def is_there() -> bool:
            return bool(self._jobs) or self._closed

        with self._lock:
            arrived = self._arrived.wait_for(is_there, _IDLE_SECONDS)
        if not arrived:
            self._when_idle()
        with self._lock:
            self._arrived.wait_for(is_there)
            return None if self._closed else self._jobs.popleft()
