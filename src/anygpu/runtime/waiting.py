"""Tasks that wait for other tasks: while a lane thread is blocked, a spare thread runs the task that it waits for.

A lane has few threads. If all of them waited for queued tasks, no thread would be left to run those. So a lane thread
reports when it begins to wait for a future, of any runtime, and when it goes on; meanwhile a spare thread, at most one
for each blocked thread, runs the awaited task. A spare thread takes awaited tasks only, never new ones: there are as
many spare threads as tasks are nested deep, not as many as there are tasks.
"""

from __future__ import annotations

import queue
import threading
import time
from types import TracebackType
from typing import Any, Protocol
from weakref import ref


class Awaitable(Protocol):
    """A future that is told when a lane thread waits for it."""

    def _awaited(self, *, soon: bool = False) -> None: ...


class Seat(Protocol):
    """A lane thread, as its scheduler sees it. With `soon` the call does not wait for the scheduler's lock."""

    def block(self, *, soon: bool = False) -> None:
        """The thread waits for a future from now on."""

    def unblock(self, *, soon: bool = False) -> None: ...


class _Here(threading.local):
    seat: Seat | None = None
    #: Futures that this thread waits for: several in an event loop, or in `concurrent.futures.wait`.
    waits = 0


here = _Here()


def begin(future: Awaitable, *, soon: bool = False) -> None:
    """Report that this thread is about to wait for the future, if it is a lane thread."""
    seat = here.seat
    if seat is not None:
        future._awaited(soon=soon)
        here.waits += 1
        if here.waits == 1:
            seat.block(soon=soon)


def end(*, soon: bool = False) -> None:
    seat = here.seat
    if seat is not None and here.waits:
        here.waits -= 1
        if here.waits == 0:
            seat.unblock(soon=soon)


class Waiting:
    """A context around waiting for a future; does nothing outside lane threads."""

    __slots__ = ("_future",)

    def __init__(self, future: Awaitable) -> None:
        self._future = future

    def __enter__(self) -> None:
        begin(self._future)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end()


class Waiters(list[Any]):
    """The waiters of a future: those of `concurrent.futures.wait` and `as_completed`."""

    __slots__ = ("_future",)

    def __init__(self, future: Any) -> None:
        super().__init__()
        self._future: ref[Any] = ref(future)

    def append(self, waiter: Any) -> None:
        """Add a waiter, and tell it at once if the future was done after the waiting thread took its snapshot."""
        if isinstance(waiter.event, threading.Event):
            # Nothing has set it yet: futures of others, which are locked until all have the waiter, come before.
            waiter.event = InterruptibleEvent()
        future: Any = self._future()
        with future._lock:
            super().append(waiter)
            done = future._lock.done_since_snapshot
        begin(future, soon=True)
        if not done:
            return
        if future._lock.state != "FINISHED":
            waiter.add_cancelled(future)
        elif future._exception is not None:
            waiter.add_exception(future)
        else:
            waiter.add_result(future)

    def remove(self, waiter: Any) -> None:
        super().remove(waiter)
        end(soon=True)


class InterruptibleEvent:
    """A `threading.Event` for one waiting thread, which may be interrupted.

    The `Condition` in `threading.Event` stays locked after an interrupt at the wrong moment, and then `set` never
    returns. A `SimpleQueue` is of C.
    """

    __slots__ = ("_set", "_wakes")

    def __init__(self) -> None:
        self._set = False
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._wakes.put(None)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, `timeout` seconds at most; returns whether it is."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self._set:
            try:
                self._wakes.get(timeout=None if until is None else max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
        return self._set
