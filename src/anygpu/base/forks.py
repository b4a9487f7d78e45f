"""Forks of a process that has threads of anygpu: threads release what they hold, or the child makes it anew.

A forked child has one thread. What other threads held at the fork stays held in the child: locks, half-imported
modules, pipes to a process that is being started. So

- background threads, and code that starts a process, work in `no_fork`: a fork waits for the end of the block, or for
  a block of `fork_allowed` in it, which is around everything that takes long;
- a fork also waits until no thread imports modules of anygpu;
- `lock` and `rlock` make locks that are free in the child;
- a fork waits for at most `PATIENCE` seconds. The child then imports half-imported modules anew.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Collection, Iterator
from typing import Any

#: Seconds that a fork waits for other threads, and they for it: each may need a lock that the other holds.
PATIENCE = 2.0

_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def lock() -> threading.Lock:
    """Return a new lock, which a forked child finds free."""
    made = threading.Lock()
    _locks.add(made)
    return made


def rlock() -> threading.RLock:
    """Return a new reentrant lock, which a forked child finds free."""
    made = threading.RLock()
    _locks.add(made)
    return made


class _Forks:
    """The threads that a fork must wait for, and those that fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._busy: set[int] = set()
        self._forking: list[int] = []

    def enter(self) -> bool:
        """Wait until no other thread forks, and count this one as busy; return whether it was not before."""
        me = threading.get_ident()
        with self._lock:
            if me in self._busy:
                return False
            self._changed.wait_for(lambda: not self._forking or me in self._forking, PATIENCE)
            self._busy.add(me)
            return True

    def leave(self) -> bool:
        """Count this thread as busy no more; return whether it was."""
        me = threading.get_ident()
        if me not in self._busy:  # nothing to wait for: most calls come from the user's own threads
            return False
        with self._lock:
            self._busy.discard(me)
            self._changed.notify_all()
            return True

    def before(self) -> None:
        """Wait until all threads that are busy or import modules of anygpu are forking themselves."""
        until = time.monotonic() + PATIENCE
        with self._lock:
            self._forking.append(threading.get_ident())
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._busy.issubset(self._forking), PATIENCE)
        while not _importing().issubset(self._forking) and time.monotonic() < until:
            time.sleep(1e-3)  # nothing tells of the end of an import

    def after_in_parent(self) -> None:
        me = threading.get_ident()
        with self._lock:
            if me in self._forking:
                self._forking.remove(me)
            self._changed.notify_all()

    def after_in_child(self) -> None:
        lost = (self._busy | _importing()) - {threading.get_ident()}
        busy = self._busy - lost
        self.__init__()  # type: ignore[misc]  # its lock may be held
        self._busy = busy
        for each in list(_locks):
            each._at_fork_reinit()
        if lost:
            _forget_imports(lost)


_forks = _Forks()


@contextlib.contextmanager
def no_fork() -> Iterator[None]:
    """Have forks on other threads wait for the end of the block."""
    entered = _forks.enter()
    try:
        yield
    finally:
        if entered:
            _forks.leave()


@contextlib.contextmanager
def fork_allowed() -> Iterator[None]:
    """Let processes fork in this part of a `no_fork` block: the thread holds nothing that a child would miss.

    At its end, wait for a fork that is under way.
    """
    left = _forks.leave()
    try:
        yield
    finally:
        if left:
            _forks.enter()


def _module_locks() -> dict[str, Any]:
    """Return CPython's locks of modules being imported, as weak references; there is no public way to them."""
    locks: dict[str, Any] = getattr(sys.modules.get("_frozen_importlib"), "_module_locks", {})
    return locks


def _importing() -> set[int]:
    """Return the threads that import modules of anygpu, as user threads do in calls that first need them."""
    ours = [lock for name, lock in list(_module_locks().items()) if name.startswith("anygpu.")]
    return {owner for each in ours if (owner := getattr(each(), "owner", None)) is not None}


def _forget_imports(threads: Collection[int]) -> None:
    """Have modules imported anew that these threads were importing, as nothing else frees their locks."""
    for name, reference in list(_module_locks().items()):
        if getattr(reference(), "owner", None) in threads:
            del _module_locks()[name]
            if getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False):
                del sys.modules[name]


def watch() -> None:
    """Register the hooks that make forks wait.

    Call it again after loading a library that takes a lock before forks: the hooks registered last run first.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=_forks.before, after_in_child=_forks.after_in_child, after_in_parent=_forks.after_in_parent
        )


watch()
