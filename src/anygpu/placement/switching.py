"""How soon Python's lock goes back to the user's calls while other threads of ours run Python."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator

#: Python's lock goes back to the calls after so long, where 5 ms are usual: those with many short operations would
#: otherwise wait 5 ms for each of them.
_SWITCH_SECONDS = 2e-4
#: What is done at leisure takes such a share of one processor's time; and the longest pause.
_SHARE, _LONGEST_PAUSE = 0.25, 0.5


class _Switching:
    """Python's switch interval, which is the process's: the first block shortens it, and the last puts it back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks = 0
        self._usual = self._ours = 0.0

    def shorten(self) -> None:
        """Shorten the interval, if this is the first block."""
        with self._lock:
            self._blocks += 1
            if self._blocks == 1:
                self._usual = sys.getswitchinterval()
                sys.setswitchinterval(min(self._usual, _SWITCH_SECONDS))
                self._ours = sys.getswitchinterval()

    def put_back(self) -> None:
        """Put the interval back, if this was the last block."""
        with self._lock:
            self._blocks -= 1
            if self._blocks == 0:
                self.undo()

    @property
    def is_short(self) -> bool:
        """Whether a block is under way."""
        return self._blocks > 0

    def undo(self) -> None:
        """Not where somebody else has set it meanwhile."""
        if sys.getswitchinterval() == self._ours:
            # Python cuts it to whole microseconds, which floats rarely are.
            sys.setswitchinterval(self._usual + 5e-7)


_switching = _Switching()


@contextlib.contextmanager
def yielding() -> Iterator[None]:
    """In a block that runs Python beside the user's calls: the calls get Python's lock soon when they want it."""
    switching = _switching
    switching.shorten()
    try:
        yield
    finally:
        switching.put_back()


@contextlib.contextmanager
def at_leisure(operation: float = 0.0) -> Iterator[None]:
    """The same for what is not urgent: a pause follows the block, so that calls lose little of their time to it.

    Calls of NumPy of this many seconds each run without Python's lock, and lose only what they wait for it between two.
    """
    begin = time.thread_time()
    with yielding():
        yield
    waiting = _SWITCH_SECONDS / (_SWITCH_SECONDS + operation)
    pause(min((time.thread_time() - begin) * waiting / _SHARE, _LONGEST_PAUSE))


pause = time.sleep


def _in_child() -> None:
    """Blocks on other threads never end in a child."""
    global _switching
    if _switching.is_short:
        _switching.undo()
    _switching = _Switching()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
