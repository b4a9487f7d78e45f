"""Loads the modules that calls need later, on a thread beside the calls, which hold Python's lock for little of their
time.

`planning` and `native` are the two that there are. Forks wait for them: a child that is forked off in the middle of an
import would never finish it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import threading
from collections.abc import Callable

#: The module that plans calls; importing it loads everything that planning needs.
PLANNING = "anygpu.placement.place_call"
#: The module that places native code, which needs neither devices nor plans.
NATIVE = "anygpu.placement.native"

#: Whoever forks in the middle of an import of their own may keep the thread waiting.
_PATIENCE = 5.0


class Loading:
    """The loading of one module, once, on a thread, with what is done before and after it."""

    def __init__(self, module: str, last_name: str) -> None:
        """`last_name` is what the module defines last."""
        self._module, self._last_name = module, last_name
        #: Whether what was to be done after it has been done.
        self.is_ready = False
        self.thread: threading.Thread | None = None
        self.threads: list[threading.Thread] = []

    def is_done(self) -> bool:
        """Whether all of the module is loaded."""
        # It is among the modules as soon as its import has begun.
        return hasattr(sys.modules.get(self._module), self._last_name)

    def begin(self, *then: Callable[[], None], first: Callable[[], None] | None = None) -> None:
        """Start the thread, unless it was started: it calls `first`, imports the module, and calls each of `then`."""
        if self.thread is None:
            _guard_forks(self._module)
            self.thread = threading.Thread(target=self._load, args=(first, then), name="anygpu-loading", daemon=True)
            self.threads.append(self.thread)
            self.thread.start()

    def is_under_way(self) -> bool:
        """Whether the thread runs. An error of the import is dropped there; the next code that imports the module gets
        it.
        """
        return self.thread is not None and self.thread.is_alive()

    def _load(self, first: Callable[[], None] | None, then: tuple[Callable[[], None], ...]) -> None:
        """On the thread: do what is to be done first, import the module, and do the rest."""
        from anygpu.placement.background import yielding

        # Python may end meanwhile, which makes imports fail; a caller that needs it gets the error.
        with contextlib.suppress(Exception), yielding():
            if first is not None:
                first()
            importlib.import_module(self._module)
            for each in then:
                each()
                self.is_ready = True


planning = Loading(PLANNING, "place")
native = Loading(NATIVE, "prepare")

is_loaded, begin, is_under_way = planning.is_done, planning.begin, planning.is_under_way


def _finish() -> None:
    """Before a fork: wait for the threads, at most `_PATIENCE` seconds each."""
    for which in (planning, native):
        for each in which.threads:  # which may become more meanwhile
            each.join(_PATIENCE)


@functools.cache
def _guard_forks(module: str) -> None:
    """Have forks wait for what is being loaded."""
    if module == PLANNING:
        # It takes its lock before a fork, and planning makes loggers: what is registered last is called first.
        importlib.import_module("logging")
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_finish)
