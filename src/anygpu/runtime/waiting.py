"""Tasks that wait for other tasks: while a lane thread is blocked, a spare thread runs the task that it waits for.

A lane has few threads. If all of them waited for queued tasks, no thread would be left to run those. So a lane thread
reports when it begins to wait for a future, of any runtime, and when it goes on; meanwhile a spare thread, at most one
for each blocked thread, runs the awaited task. A spare thread takes awaited tasks only, never new ones: there are as
many spare threads as tasks are nested deep, not as many as there are tasks.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, Protocol
from weakref import ref

from anygpu.runtime.future_lock import Bell


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
    """The waiters of `concurrent.futures.wait` and `as_completed`, which hold the future's lock when they register."""

    __slots__ = ("_future",)

    def __init__(self, future: Awaitable) -> None:
        super().__init__()
        self._future = ref(future)

    def append(self, waiter: Any) -> None:
        if isinstance(waiter.event, threading.Event):
            # Nobody tells it anything before it is in all lists.
            waiter.event = Bell()
        super().append(waiter)
        future = self._future()
        if future is not None:
            begin(future, soon=True)

    def remove(self, waiter: Any) -> None:
        super().remove(waiter)
        end(soon=True)
