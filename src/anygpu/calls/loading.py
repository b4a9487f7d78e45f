"""Load the modules that calls need later, on a thread that rarely holds Python's lock.

There are two: `planning` and `native`. Forks wait for them, except while they wait themselves.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
from collections.abc import Callable

#: The module that plans calls; importing it loads everything that planning needs.
PLANNING = "anygpu.placement.place_call"
#: The module that places native code, which needs neither devices nor plans.
NATIVE = "anygpu.native.trial"


class Loading:
    """Loads one module, once, on a thread, with steps before and after the import."""

    def __init__(self, module: str, last_name: str) -> None:
        """`last_name` is what the module defines last."""
        self._module, self._last_name = module, last_name
        #: Whether what was to be done after it has been done.
        self.is_ready = False
        self.thread: threading.Thread | None = None

    def is_done(self) -> bool:
        """Return whether all of the module is loaded."""
        # It is among the modules as soon as its import has begun.
        return hasattr(sys.modules.get(self._module), self._last_name)

    def begin(self, *then: Callable[[], None], first: Callable[[], None] | None = None) -> None:
        """Start the thread, unless it was started: it calls `first`, imports the module, and calls each of `then`."""
        if self.thread is None:
            importlib.import_module("anygpu.base.forks")  # late, and not in the middle of a fork
            self.thread = threading.Thread(target=self._load, args=(first, then), name="anygpu-loading", daemon=True)
            self.thread.start()

    def is_under_way(self) -> bool:
        """Return whether the thread runs.

        It drops an error of the import, which is raised again where the module is imported next.
        """
        return self.thread is not None and self.thread.is_alive()

    def _load(self, first: Callable[[], None] | None, then: tuple[Callable[[], None], ...]) -> None:
        """Run the first step, import the module, and run the others; called on the thread."""
        from anygpu.base import forks

        # Python may end meanwhile, which makes imports fail; a caller that needs it gets the error.
        with contextlib.suppress(Exception), forks.no_fork(), _yielding():
            if self._module == PLANNING:
                # `logging` takes its lock before a fork, and planning makes loggers.
                importlib.import_module("logging")
                forks.watch()
            if first is not None:
                first()
            importlib.import_module(self._module)
            for each in then:
                each()
                self.is_ready = True


def _yielding() -> contextlib.AbstractContextManager[None]:
    from anygpu.calls.background import yielding  # late: loaded on the thread

    return yielding()


planning = Loading(PLANNING, "place")
native = Loading(NATIVE, "prepare")

is_loaded, begin, is_under_way = planning.is_done, planning.begin, planning.is_under_way


def _begin_anew() -> None:
    """Forget the threads in a forked child, so that unfinished imports are started again."""
    for which in (planning, native):
        which.thread = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
