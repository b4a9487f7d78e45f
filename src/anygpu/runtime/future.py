"""The future that `submit` returns, and the progress of calls with many items.

`Future` is a `concurrent.futures.Future` that can be awaited and has a receipt. Before it come short pauses for event
loops, and what a lane's thread reports when it waits for another task: its place is taken by a spare thread meanwhile.
`FutureLock` replaces the condition of the standard library's future.
"""

from __future__ import annotations

import _thread
import asyncio
import concurrent.futures
import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any, Protocol
from weakref import WeakKeyDictionary, ref

from anygpu.base.events import drawn
from anygpu.receipts.receipt import Receipt

# -- short pauses of a thread that computes in Python beside an event loop
#
# Python's lock goes from a thread that computes to any of those who wait, every 5 ms. Beside a few such threads, a loop
# that has something to do may wait for several turns. A thread that sleeps for a moment leaves it the lock at once.


#: A thread computes for so many seconds without a pause, and of that length is a pause.
STRETCH, PAUSE = 1e-3, 1e-4


class GivingWay:
    """`pause()` sleeps for a moment if the last pause was too long ago; only if that is `wanted` at all."""

    __slots__ = ("_until", "_wanted")

    def __init__(self, *, wanted: bool = True) -> None:
        self._wanted = wanted
        self._until = time.monotonic() + STRETCH if wanted else 0.0

    def pause(self) -> None:
        """Sleeps for `PAUSE` seconds if the last pause was more than `STRETCH` seconds ago."""
        if self._wanted and time.monotonic() > self._until:
            time.sleep(PAUSE)
            self._until = time.monotonic() + STRETCH


# -- tasks that wait for other tasks: while a lane thread is blocked, a spare thread runs the task that it waits for
#
# A lane has few threads. If all of them waited for queued tasks, no thread would be left to run those. So a lane thread
# reports when it begins to wait for a future, of any runtime, and when it goes on; meanwhile a spare thread, at most
# one for each blocked thread, runs the awaited task. A spare thread takes awaited tasks only, never new ones: there are
# as many spare threads as tasks are nested deep, not as many as there are tasks.


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
    """Reports that this thread waits no longer; the scheduler is told when the outermost wait has ended."""
    seat = here.seat
    if seat is not None and here.waits:
        here.waits -= 1
        if here.waits == 0:
            seat.unblock(soon=soon)


class LaneWaiting:
    """A context around waiting for a future; does nothing outside lane threads."""

    __slots__ = ("_future",)

    def __init__(self, future: Awaitable) -> None:
        self._future = future

    def __enter__(self) -> None:
        begin(self._future)

    def __exit__(self, *raised: object) -> None:
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


#: Finished tasks that an event loop is told about in one turn, so that it can do other things in between.
_AT_A_TIME = 32

#: The states in which Python's `concurrent.futures` counts a future as done.
_DONE = ("FINISHED", "CANCELLED_AND_NOTIFIED")

_log = logging.getLogger(__name__)


class FutureLock(_thread.RLock):  # type: ignore[misc]
    """A future's lock and state, in place of the `threading.Condition` of `concurrent.futures.Future`.

    `with lock:` is that of the C class, which an interrupt cannot leave locked. `acquire` and `release` are called by
    `concurrent.futures.wait` and `as_completed` alone, for all their futures in turn, and there Ctrl-C may come between
    the two. So they lock nothing: `acquire` takes a snapshot of the state for the calling thread, which sees only that
    until `release`. What happens to the future meanwhile is made up for when the thread adds its waiter
    (`anygpu.runtime.future.Waiters`). A snapshot that an interrupt leaves behind is never read again: the next
    `acquire` of the thread lays another one on top of it.
    """

    #: Whether the calling thread is in a block of `with lock:`.
    _is_owned: Callable[[], bool]

    def __init__(self) -> None:
        self.state = "PENDING"
        #: By thread. Empty for most futures, which are not waited for in this way.
        self.snapshots: dict[int, list[str]] = {}

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Takes a snapshot of the state for this thread; never waits."""
        self.snapshots.setdefault(_thread.get_ident(), []).append(self.state)
        return True

    def release(self) -> None:
        self.snapshots[_thread.get_ident()].pop()

    @property
    def snapshot(self) -> str:
        """The state as the calling thread sees it."""
        mine = self.snapshots.get(_thread.get_ident())
        return mine[-1] if mine else self.state

    @property
    def done_since_snapshot(self) -> bool:
        """Whether the future is done, and was not yet when the calling thread took its snapshot."""
        return self.state in _DONE and self.snapshot not in _DONE

    def notify_all(self) -> None:
        """Does nothing: `Future.result` waits for a lock of its own."""


def _call_back(function: Callable[[Any], object], future: Future) -> None:
    """Calls a callback of a done future, and logs whatever it raises: the thread of a lane must go on."""
    try:
        function(future)
    except BaseException:  # noqa: BLE001 - as `concurrent.futures` does for most of them
        _log.exception("the callback %r of a task raised an error", function)


class Future(concurrent.futures.Future[Any]):
    """The result of a task, some day: `future.result()`, or `await future`.

    As every future of Python's `concurrent.futures`, with the receipt of what happened, and with a `cancel` that also
    stops a running task between its pieces. Callbacks run on the thread of the device, so they should be short.
    """

    def __init__(self, cancel: Callable[[Future], bool], awaited: Callable[[Future, bool], None] | None = None) -> None:
        """Makes a pending future, whose lock and state replace those of `concurrent.futures.Future`.

        `cancel` asks the scheduler to cancel the task, and returns whether it will not deliver. `awaited` tells the
        scheduler that a thread of a lane waits for it, so that the task is run even if all threads wait.
        """
        self._lock = FutureLock()
        super().__init__()
        self._condition = self._lock  # type: ignore[assignment]
        self._cancel_task = cancel
        self._tell_awaited = awaited
        self._waiters = Waiters(self)
        #: Whether a lane thread waits for it.
        self._is_awaited = False
        #: For a task submitted in an event loop: called when a thread blocks the loop to wait for it.
        self._hurry: Callable[[], None] | None = None
        self._receipt: Receipt | Callable[[], Receipt] | None = None

    @property
    def _state(self) -> str:
        """The state: in a method of this class, which holds the lock, the present one; else the thread's snapshot."""
        lock = self._lock
        if not lock.snapshots or lock._is_owned():
            return lock.state
        return lock.snapshot

    @_state.setter
    def _state(self, state: str) -> None:
        self._lock.state = state

    @property
    def is_of_a_loop(self) -> bool:
        """Whether its task was submitted in an event loop."""
        return self._hurry is not None

    @property
    def receipt(self) -> Receipt | None:
        """The receipt; `None` until the task is done, and if it failed."""
        made = self._receipt
        if callable(made):
            # Creating a receipt takes longer than a small task, so it is created on demand.
            made = self._receipt = made()
        return made

    def _repr_html_(self) -> str | None:
        return drawn(self)

    def done(self) -> bool:
        """Whether it has a value or an error, or was cancelled."""
        return self._lock.state not in ("PENDING", "RUNNING")

    def result(self, timeout: float | None = None) -> Any:
        """Returns the value, or raises the task's error; raises `TimeoutError` after `timeout` seconds."""
        self._wait(timeout)
        if self._lock.state == "FINISHED" and self._exception is None:
            return self._result  # nothing changes any more, so no lock is needed
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Returns the task's error, or `None` if it succeeded; raises `TimeoutError` after `timeout` seconds."""
        self._wait(timeout)
        return super().exception(0)

    def _wait(self, timeout: float | None) -> None:
        """Wait until it is done; raises `TimeoutError` after `timeout` seconds."""
        if self._lock.state not in ("PENDING", "RUNNING"):
            return
        if self._hurry is not None:
            self._hurry()
        # A plain C lock, so that Ctrl-C leaves nothing behind that a lane thread would wait for.
        sleeper = threading.Lock()
        sleeper.acquire()

        def wake(_: object) -> None:
            sleeper.release()

        super().add_done_callback(wake)
        try:
            with LaneWaiting(self):
                if not sleeper.acquire(
                    timeout=-1 if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX)
                ):
                    raise TimeoutError
        finally:
            with contextlib.suppress(ValueError), self._lock:
                self._done_callbacks.remove(wake)  # type: ignore[attr-defined]

    def wait(self) -> None:
        """Wait until it is done, in whichever way."""
        with contextlib.suppress(concurrent.futures.CancelledError):
            self.exception()

    def _awaited(self, *, soon: bool = False) -> None:
        """A lane thread is about to wait for it."""
        self._is_awaited = True
        if self._tell_awaited is not None:
            self._tell_awaited(self, soon)

    def cancel(self) -> bool:
        """Whether the task will not deliver: it waited still, or runs in pieces and stops after this one."""
        return self._cancel_task(self)

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Adds a callback as in `concurrent.futures`.

        Every exception of it is logged, as it must not end a lane's thread.
        """
        super().add_done_callback(partial(_call_back, fn))

    def cancelled(self) -> bool:
        """Whether it was cancelled, also if that was between two of its pieces."""
        return super().cancelled() or (
            self.done() and issubclass(type(self.exception()), concurrent.futures.CancelledError)
        )

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait inside an event loop without blocking it. Cancelling the awaiting task cancels this future."""
        if not self.done():
            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[None] = loop.create_future()
            mailbox = _mailbox_of(loop)
            self.add_done_callback(lambda _: mailbox.put(waiter))
            try:
                with LaneWaiting(self):
                    yield from waiter
            except asyncio.CancelledError:
                self.cancel()
                raise
        if self._lock.state == "FINISHED" and self._exception is None:
            return self._result
        if self.cancelled():
            raise asyncio.CancelledError
        return self.result()


class _Mailbox:
    """Tells a loop, from other threads, which of its tasks can go on.

    One call to the loop for many of them, and few in each of its turns: a batch of a thousand that is done at once must
    not keep the loop from everything else.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Makes the mailbox of one loop, which it does not keep alive."""
        self._loop = ref(loop)
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._announced = False
        #: When the loop was last told, or came.
        self._seen = 0.0

    def put(self, waiter: asyncio.Future[None]) -> None:
        """Wake this waiter in its event loop. Many wake-ups become one callback of the loop."""
        self._waiters.append(waiter)
        if self._announced:
            if time.monotonic() - self._seen > STRETCH:
                # The loop was told and does not come: it waits for Python's lock.
                time.sleep(PAUSE)
        else:
            self._announced = True
            self._seen = time.monotonic()
            loop = self._loop()
            try:
                if loop is not None:
                    loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:  # the loop is closed
                self._waiters.clear()

    def _deliver(self) -> None:
        """Resolve some of the waiters, and come again for the rest, so that the loop can do other work in between."""
        self._seen = time.monotonic()
        for _ in range(_AT_A_TIME):
            if not self._waiters:
                break
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
        if not self._waiters:
            self._announced = False
        loop = self._loop()
        if self._waiters and loop is not None:  # also one that came just now, and was not announced
            self._announced = True
            loop.call_soon(self._deliver)


_mailboxes: WeakKeyDictionary[asyncio.AbstractEventLoop, _Mailbox] = WeakKeyDictionary()


def _mailbox_of(loop: asyncio.AbstractEventLoop) -> _Mailbox:
    """Returns the mailbox of a loop, which is made for the first task that is awaited there."""
    found = _mailboxes.get(loop)
    if found is None:
        found = _mailboxes[loop] = _Mailbox(loop)
    return found


# -- progress


#: True for a bar in the terminal, or a callback that takes the numbers of finished and of all items (None if unknown).
Progress = bool | Callable[[int, int | None], object]


@contextlib.contextmanager
def showing(wanted: Progress, task: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Yields a callback that takes the number of finished items. A bar is drawn on standard error, by rich."""
    if callable(wanted):
        yield lambda done: (wanted(done, total), None)[1]
        return
    if not wanted:
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True)) as bar:
        number = bar.add_task(task, total=total)
        yield lambda done: bar.update(number, completed=done)
