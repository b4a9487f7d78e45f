"""Tasks on their way into the queue, from callers that must not wait for the queue's lock.

Lanes hold that lock for microseconds, but on a busy machine a thread that holds it may be kept waiting for its turn,
and its callers would wait with it. So who finds the lock taken leaves the task here, and a thread of its own, or the
next lane that looks for work, lets it in. What comes from an event loop is not even looked at before the loop has had
its turn: a thousand tasks that are submitted at once hold it up for what a thousand futures take, and no longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec

from anygpu.interrupts import uninterrupted
from anygpu.placement.options import TaskOptions
from anygpu.receipts import Receipt
from anygpu.runtime.jobs import Job

_log = logging.getLogger(__name__)

#: A loop that has not had its turn after so many seconds is not waited for.
_TURN = 0.05


#: When to look at what is here: at once, when the loop has had its turn, or never again.
_Ring = Literal["now", "in a moment", "over"]


class Submission(msgspec.Struct):
    """A task that nobody has looked at yet."""

    future: Any
    function: Any
    arguments: tuple[Any, ...]
    given: TaskOptions
    submitted: float
    #: Who collects receipts where it was submitted.
    receipt_sinks: tuple[list[Receipt], ...]
    #: The user's own line where it was submitted.
    line: tuple[str, int]
    #: NumPy's floating-point modes there, if they are not as usual.
    modes: Any = None


class Intake:
    """Tasks that have been accepted, and are not in the queue yet."""

    def __init__(self, let_in: Callable[[], None]) -> None:
        self._let_in = let_in
        self._items: deque[Job | Submission] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._bell: queue.SimpleQueue[_Ring] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, job: Job) -> None:
        """Never waits."""
        self._items.append(job)
        self._ring("now")

    def put_soon(self, submission: Submission, loop: asyncio.AbstractEventLoop) -> None:
        """Never waits, and nothing is done before the loop has had its turn."""
        self._items.append(submission)
        loop.call_soon(self._bell.put, "now")
        self._ring("in a moment")

    def call(self, tell: Callable[[], None]) -> None:
        """Let our thread tell something, from one that must not wait. In the order in which they came."""
        self._calls.append(tell)
        self._ring("now")

    def hurry(self) -> None:
        """Somebody holds the loop up to wait for what is here."""
        self._bell.put("now")

    def _ring(self, when: _Ring) -> None:
        self._bell.put(when)
        if self._thread is None:
            uninterrupted(self._start)

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(target=self._watch, name="anygpu-intake", daemon=True)
                thread.start()
                self._thread = thread

    def take(self) -> Iterator[Job | Submission]:
        """Everything that is here; called with the queue's lock held."""
        while self._items:
            yield self._items.popleft()

    def close(self) -> None:
        """Let the thread end, and wait for that."""
        thread = self._thread
        if thread is not None:
            self._bell.put("over")
            if thread is not threading.current_thread():
                thread.join(5)

    def end(self) -> None:
        """Let the thread end, without waiting for it."""
        if self._thread is not None:
            self._bell.put("over")

    def _watch(self) -> None:
        while (ring := self._bell.get()) != "over":
            if not self._items and not self._calls:
                continue
            if ring == "in a moment":
                # Not for long: the loop may be held up by somebody who waits for this very task, or be closed.
                until = time.monotonic() + _TURN
                with contextlib.suppress(queue.Empty):
                    while ring == "in a moment":
                        ring = self._bell.get(timeout=max(0.0, until - time.monotonic()))
            try:
                while self._calls:
                    self._calls.popleft()()
                self._let_in()
            except BaseException:  # noqa: BLE001 - a task of one caller must not keep out those of the others
                _log.exception("a task could not be queued")
            if ring == "over":
                return
