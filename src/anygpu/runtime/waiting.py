"""Tasks that wait for other tasks: while the thread of a lane is blocked, another one runs what it waits for.

A lane has few threads. If all of them waited for tasks in the queue, nobody would be left to run those. So the thread
of a lane says when it begins to wait for a future, of whichever runtime, and when it goes on; what it waits for is run
by a spare thread, at most one for each thread that is blocked. A spare thread takes only tasks that are waited for,
never new ones from the queue: there are as many as tasks are nested deep, and not as many as there are tasks.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, Protocol
from weakref import ref


class Awaitable(Protocol):
    """A future, as far as it is told that the thread of a lane waits for it."""

    def _awaited(self, *, soon: bool = False) -> None: ...


class Seat(Protocol):
    """A thread of a lane, as its scheduler sees it. With `soon` nothing waits for the scheduler's lock."""

    def block(self, *, soon: bool = False) -> None:
        """It waits for a future from now on."""

    def unblock(self, *, soon: bool = False) -> None: ...


class _Here(threading.local):
    seat: Seat | None = None
    #: Futures that are waited for: more than one in an event loop, or in `concurrent.futures.wait`.
    waits = 0


here = _Here()


def begin(future: Awaitable, *, soon: bool = False) -> None:
    """This thread, which is that of a lane, is about to wait for it."""
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
    """Around everything that waits for a future on the thread of a lane; elsewhere it does nothing."""

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
    """Those who wait for a future by `concurrent.futures.wait` or `as_completed`: they hold its lock when they come."""

    __slots__ = ("_future",)

    def __init__(self, future: Awaitable) -> None:
        super().__init__()
        self._future = ref(future)

    def append(self, waiter: Any) -> None:
        super().append(waiter)
        future = self._future()
        if future is not None:
            begin(future, soon=True)

    def remove(self, waiter: Any) -> None:
        super().remove(waiter)
        end(soon=True)
