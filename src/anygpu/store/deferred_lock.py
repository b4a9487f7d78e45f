"""The lock of a store, with deferred calls of finalizers, which run on any thread and so must never wait."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any

from anygpu.base.interrupts import may_be_interrupted, soon

#: A call to make once the lock is held.
Note = Callable[[], None]


class _Gone(weakref.ref[Any]):
    """Becomes a note when its object is gone. That is done by a function of C, which no interrupt can come into."""

    __slots__ = ("bell", "note")

    note: Note
    #: Tells the lock of it, in Python: if that is interrupted, the note is found at the next use.
    bell: weakref.ref[Any]

    __hash__ = object.__hash__
    __eq__ = object.__eq__


class DeferredLock:
    """A lock that is not taken twice by one thread. Whoever lets go of it first does what notes say.

    Never `with guard:` in the main thread, where an interrupt could leave it taken: there `anygpu.base.interrupts` lets
    another thread do it. Only what looks at one thing may take the plain lock instead: `with guard.lock:`.
    """

    def __init__(self) -> None:
        self._notes: deque[Note | _Gone] = deque()
        self._watched: set[_Gone] = set()
        self.anew()

    def anew(self) -> None:
        """Also called in a forked child, where no thread is left to release the lock."""
        self.lock = threading.Lock()
        self._changed = threading.Condition(self.lock)

    def __enter__(self) -> None:
        self.lock.acquire()
        try:
            self._settle()
        except BaseException:
            self.lock.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._settle()
        finally:
            self.lock.release()
        self._look_again()

    def note(self, note: Note) -> None:
        """Make the call now if the lock is free, else when it is released. Never waits."""
        self._notes.append(note)
        self._ring()

    def note_when_gone(self, thing: object, note: Note) -> Callable[[], None]:
        """Make the call when the object is gone, wherever that is, unless the function returned is called before.

        The caller must hold the lock.
        """
        bell = weakref.ref(thing, self._ring)
        gone = _Gone(thing, self._notes.append)  # the last is called first
        gone.note, gone.bell = note, bell
        self._watched.add(gone)
        return partial(self._watched.discard, gone)

    def _ring(self, _: object = None) -> None:
        if not may_be_interrupted():
            self._look_again()
        if self._notes:
            soon(self.settle)

    @property
    def has_notes(self) -> bool:
        return bool(self._notes)

    def settle(self) -> None:
        """Make the deferred calls. Waits for the lock."""
        with self:
            pass

    def wait(self) -> None:
        """Release the lock until `changed` is called. The caller must hold it."""
        self._changed.wait()

    def changed(self) -> None:
        self._changed.notify_all()

    def unlocked(self) -> _Unlocked:
        """A context that releases the lock for a slow step. The caller must hold it."""
        return _Unlocked(self.lock)

    def _settle(self) -> None:
        while self._notes:
            note = self._notes.popleft()
            if isinstance(note, _Gone):
                self._watched.discard(note)
                note = note.note
            note()

    def _look_again(self) -> None:
        # A call may have been deferred between the last look and the release.
        while self._notes and self.lock.acquire(blocking=False):
            try:
                self._settle()
            finally:
                self.lock.release()


class _Unlocked:
    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        self._lock.release()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.acquire()
