"""Tasks on their way into the queue, and out of it when their time is over.

`Intake` takes submissions from callers that must not wait for the queue's lock, above all from event loops, and admits
them on a thread. `Deadlines` is the thread that expires tasks, over `DeadlineHeap`, which has no thread or clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, Literal, TypeVar

import msgspec

from anygpu.base.interrupts import uninterrupted
from anygpu.calls.options import TaskOptions
from anygpu.receipts.notes import Origin
from anygpu.receipts.receipt import Receipt
from anygpu.runtime.future import GivingWay
from anygpu.runtime.lanes import Job

# -- tasks on their way into the queue, from callers that must not wait for the queue's lock
#
# Lanes hold that lock for microseconds, but on a busy machine the thread that holds it may be descheduled, and callers
# would wait with it. So a caller that finds the lock taken leaves the task here, and the intake thread, or the next
# lane that looks for work, admits it. A task from an event loop is not processed before the loop has had its turn: a
# thousand submissions at once block the loop only for as long as creating a thousand futures takes.


_log = logging.getLogger(__name__)

#: Seconds to wait for the turn of an event loop.
_TURN = 0.05


#: When the intake thread looks: at once, after the loop's turn, or never again.
_Ring = Literal["now", "in a moment", "over"]


class Submission(msgspec.Struct):
    """A submitted task that was not processed yet."""

    future: Any
    function: Any
    arguments: tuple[Any, ...]
    given: TaskOptions
    submitted: float
    #: The receipt lists that were active where it was submitted.
    receipt_sinks: tuple[list[Receipt], ...]
    #: The user's own line where it was submitted.
    line: tuple[str, int]
    #: NumPy's floating-point modes there, if they are not as usual.
    modes: Any = None
    #: The call, where it was made already.
    call: Any = None
    #: `None` if nobody observes.
    origin: Origin | None = None


class Intake:
    """Tasks that have been accepted, and are not in the queue yet."""

    def __init__(self, let_in: Callable[[], None]) -> None:
        """Makes an empty intake; its thread is started with the first task that needs one.

        `let_in` admits what has arrived, and takes the queue's lock for it. Callers of `put` never do.
        """
        self._let_in = let_in
        self._items: deque[Job | Submission] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._bell: queue.SimpleQueue[_Ring] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._over = False
        #: The loop whose turn is awaited.
        self._turn_of: asyncio.AbstractEventLoop | None = None
        #: Whether the thread looks within `_TURN` by itself.
        self._looks_soon = False

    def __len__(self) -> int:
        return len(self._items)

    def put(self, job: Job) -> None:
        """Never waits."""
        self._items.append(job)
        self._ring("now")

    def put_soon(self, submission: Submission, loop: asyncio.AbstractEventLoop) -> None:
        """Never waits, and does nothing before the loop has had its turn."""
        self._items.append(submission)
        # Waking the thread costs more than all else here, so it is done once for all that is submitted in one turn.
        if self._turn_of is not loop:
            self._turn_of = loop
            loop.call_soon(self._turn)
        if not self._looks_soon:
            self._ring("in a moment")

    def _turn(self) -> None:
        """The loop has had its turn."""
        self._turn_of = None
        self._bell.put("now")

    def call(self, tell: Callable[[], None]) -> None:
        """Run a callback on the intake thread, for a caller that must not wait. Callbacks run in order."""
        self._calls.append(tell)
        self._ring("now")

    def hurry(self) -> None:
        """A thread blocks the loop to wait for a task that is here: process it now."""
        self._bell.put("now")

    def _ring(self, when: _Ring) -> None:
        self._bell.put(when)
        if self._thread is None:
            uninterrupted(self._start)

    def _start(self) -> None:
        """Starts the intake thread unless there is one, or the intake has ended."""
        with self._starting:
            if self._thread is None and not self._over:  # one that was interrupted may come here late
                thread = threading.Thread(target=self._watch, name="anygpu-intake", daemon=True)
                thread.start()
                self._thread = thread

    def take(self) -> Iterator[Job | Submission]:
        """All tasks that are here. The caller must hold the queue's lock."""
        way = GivingWay()
        while self._items:
            item = self._items.popleft()
            if isinstance(item, Submission):  # of a loop, which goes on meanwhile
                way.pause()
            yield item

    def close(self) -> None:
        """End the thread and wait for it."""
        self.end()
        _join(self._thread)

    def end(self) -> None:
        """End the thread without waiting for it."""
        with self._starting:
            self._over = True
        self._bell.put("over")

    def _watch(self) -> None:
        """The thread that takes submitted calls in, several at a time, and runs deferred callbacks.

        It waits a moment for an event loop that is still submitting, and ends when the intake does.
        """
        while (ring := self._next_ring()) != "over":
            if not self._items and not self._calls:
                continue
            if ring == "in a moment":
                # Not for long: the loop may be blocked by a thread that waits for this very task, or be closed.
                until = time.monotonic() + _TURN
                self._looks_soon = True
                with contextlib.suppress(queue.Empty):
                    while ring == "in a moment":
                        ring = self._bell.get(timeout=max(0.0, until - time.monotonic()))
                # Before it looks: whoever has submitted, and not rung because of this, is seen.
                self._looks_soon = False
            try:
                while self._calls:
                    self._calls.popleft()()
                self._let_in()
            except BaseException:  # noqa: BLE001 - a task of one caller must not keep out those of the others
                _log.exception("a task could not be queued")
            if ring == "over":
                return

    def _next_ring(self) -> _Ring:
        """The thread stays awake for a while after it had work, so that a loop which submits again need not wake it."""
        self._looks_soon = True
        try:
            return self._bell.get(timeout=_TURN)
        except queue.Empty:
            pass
        finally:
            self._looks_soon = False
        return "now" if self._items else self._bell.get()


def _join(thread: threading.Thread | None) -> None:
    """Waits for the end of a thread, five seconds at most, unless it is the caller's own."""
    if thread is not None and thread is not threading.current_thread():
        thread.join(5)


# -- deadlines: a heap of them, and one thread that expires items in time


T = TypeVar("T")


#: Finished entries that may accumulate beyond the live ones before the heap is rebuilt.
_SLACK = 1024


class DeadlineHeap(Generic[T]):
    """Items by their deadlines, without a clock or a lock. Forgetting one needs no lock of the caller's either."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._live: dict[int, T] = {}

    @property
    def first(self) -> float | None:
        """The next deadline, of an item that may have been forgotten; `None` if there is none."""
        return self._heap[0][0] if self._heap else None

    def add(self, number: int, item: T, at: float) -> None:
        heapq.heappush(self._heap, (at, number))
        self._live[number] = item

    def forget(self, number: int) -> bool:
        """The item has finished. Its heap entry stays until there are many such: whether that is so."""
        self._live.pop(number, None)
        return len(self._heap) > 2 * len(self._live) + _SLACK

    def sweep(self) -> None:
        """Drop the entries of items that were forgotten."""
        self._heap = [entry for entry in self._heap if entry[1] in self._live]
        heapq.heapify(self._heap)

    def pop(self) -> T | None:
        """The item with the first deadline; `None` if it was forgotten."""
        _, number = heapq.heappop(self._heap)
        return self._live.pop(number, None)

    def __len__(self) -> int:
        """Items that were not forgotten."""
        return len(self._live)

    @property
    def entries(self) -> int:
        """All entries, also those of items that were forgotten."""
        return len(self._heap)


class Deadlines(Generic[T]):
    """Calls `expire(item)` for each item at its deadline, unless it was forgotten. The thread starts with the first."""

    def __init__(self, expire: Callable[[T], None], clock: Callable[[], float], name: str) -> None:
        """Makes an empty watch over deadlines, which are times of `clock`; `name` is that of its thread.

        `expire` is called on that thread without any lock of this object held.
        """
        self._expire = expire
        self._clock = clock
        self._name = name
        self._changed = threading.Condition()
        self.items: DeadlineHeap[T] = DeadlineHeap()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, number: int, item: T, at: float) -> None:
        """Let this item expire at that time. The thread is started with the first one."""
        with self._changed:
            if self._closed:
                return
            first = self.items.first
            self.items.add(number, item, at)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name=self._name, daemon=True)
                self._thread.start()
            elif first is None or at < first:
                self._changed.notify()

    def forget(self, number: int) -> None:
        """The item has finished."""
        if self.items.forget(number):
            with self._changed:
                self.items.sweep()

    def end(self) -> None:
        """Let the thread end, without waiting for it."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def close(self) -> None:
        """Lets the thread end and joins it for five seconds at most, unless it is the caller's own."""
        self.end()
        _join(self._thread)

    def _watch(self) -> None:
        """The thread that waits for the next deadline, and expires one item after the other."""
        while True:
            with self._changed:
                while not self._closed:
                    first = self.items.first
                    left = first - self._clock() if first is not None else None
                    if left is not None and left <= 0:
                        break
                    self._changed.wait(left)
                if self._closed:
                    return
                item = self.items.pop()
            if item is not None:
                try:
                    self._expire(item)
                except BaseException:  # noqa: BLE001 - a callback of one caller must not cost the others their deadlines
                    _log.exception("a task could not be told that its deadline has passed")
                del item
