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


class FutureLock(_thread.RLock):  # type: ignore[misc]
    """In place of a future's `Condition`, whose `with` can be interrupted between acquiring its lock and entering.

    `with` is that of C. `acquire` and `release` are for those who look at several futures: they take another lock,
    which is let go of when they are not there any more.
    """

    #: Whether one has it who cannot be interrupted.
    _changes = False

    def __init__(self) -> None:
        self._other = _thread.allocate_lock()

    @property
    def _frames(self) -> list[FrameType]:
        """Functions that have asked for it, and not let go of it. Few futures have any."""
        frames: list[FrameType] = self.__dict__.setdefault("frames", [])
        return frames

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self._frames.append(sys._getframe(2))  # before: it may be interrupted in between
        self._take()
        return True

    def release(self) -> None:
        # In this order: if it is interrupted in between, one too many is in the list, and that does no harm.
        self._other.release()
        self._frames.remove(sys._getframe(2))

    def change(self) -> None:
        """Nobody looks at the future until `changed`. Not for a thread that can be interrupted."""
        if not self._other.acquire(blocking=False):
            self._take()
        self._changes = True

    def changed(self) -> None:
        self._changes = False
        self._other.release()

    def _take(self) -> None:
        """Wait for the other lock, but not for one who will never let go of it."""
        while not self._other.acquire(timeout=_LOOKING_SECONDS):
            asked = self._frames.copy()
            alive = _on_a_stack()
            if asked and not self._changes and not any(id(frame) in alive for frame in asked):
                self._frames[:] = [frame for frame in self._frames if frame not in asked]
                self._other.release()

    def notify_all(self) -> None:
        """Does nothing: waiters are called back instead."""

    def wait(self, timeout: float | None = None) -> bool:
        return False


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
