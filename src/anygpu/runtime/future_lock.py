"""What Python's `concurrent.futures.wait` and `as_completed` take and leave in a future, made safe against interrupts.

Both take the locks of all their futures, one after the other and with functions of Python, and then wait for an event.
Who is interrupted there leaves a lock behind that nobody has any more, of a future or of the event; and the thread of a
device that delivers a result would wait for it for ever, and with it everybody's tasks.
"""

from __future__ import annotations

import _thread
import queue
import sys
import time
from types import FrameType

#: Seconds for which others may look at a future before it is asked whether they still do.
_LOOKING_SECONDS = 0.02
#: Between two looks at something that takes microseconds.
_SHORTLY = 1e-4


class FutureLock(_thread.RLock):  # type: ignore[misc]
    """In place of a future's `Condition`, whose `with` can be interrupted between acquiring its lock and entering.

    `with` is that of C. `acquire` and `release` are for those who look at several futures. Any number of them may look
    at once; only who changes the future waits until they are done, or not there any more.
    """

    #: Whether somebody changes the future, or waits to.
    _changes = False

    def __init__(self) -> None:
        self._changing = _thread.allocate_lock()

    def _lookers(self) -> list[FrameType]:
        """Functions that look at the future, or were interrupted while they did. Few futures have any."""
        lookers: list[FrameType] = self.__dict__.setdefault("lookers", [])
        return lookers

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        looker, lookers = sys._getframe(2), self._lookers()
        while True:
            # In this order: either who changes the future sees it in the list, or it sees that the future changes.
            lookers.append(looker)
            if not self._changes:
                return True
            lookers.remove(looker)
            time.sleep(_SHORTLY)

    def release(self) -> None:
        self._lookers().remove(sys._getframe(2))

    def change(self) -> None:
        """Nobody looks at the future until `changed`. Not for a thread that can be interrupted."""
        self._changing.acquire()
        self._changes = True
        lookers = self.__dict__.get("lookers")
        if lookers:
            _wait_for(lookers)

    def changed(self) -> None:
        self._changes = False
        self._changing.release()

    def notify_all(self) -> None:
        """Does nothing: waiters are called back instead."""

    def wait(self, timeout: float | None = None) -> bool:
        return False


def _wait_for(lookers: list[FrameType]) -> None:
    """Until all of them are done, or were interrupted. Nobody comes to stay meanwhile."""
    until = time.monotonic() + _LOOKING_SECONDS
    while lookers:
        if time.monotonic() < until:
            time.sleep(_SHORTLY)
            continue
        asked = lookers.copy()  # before the stacks: one that comes later may be on none of them yet
        alive = _on_a_stack()
        for looker in asked:
            # One that has left by itself meanwhile is not in the list any more.
            if id(looker) not in alive and looker in lookers:
                lookers.remove(looker)
        until = time.monotonic() + _LOOKING_SECONDS


def _on_a_stack() -> set[int]:
    """All functions that run now, in any thread."""
    found: set[int] = set()
    for top in sys._current_frames().values():
        frame: FrameType | None = top
        while frame is not None:
            found.add(id(frame))
            frame = frame.f_back
    return found


class Bell:
    """In place of the `threading.Event` that a waiter is told by. One thread waits for it, and may be interrupted."""

    __slots__ = ("_rung", "_set")

    def __init__(self) -> None:
        self._set = False
        self._rung: queue.SimpleQueue[None] = queue.SimpleQueue()

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._rung.put(None)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        until = None if timeout is None else time.monotonic() + timeout
        while not self._set:
            try:
                self._rung.get(timeout=None if until is None else max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
        return self._set
