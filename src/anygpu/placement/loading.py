"""Loads what plans calls, on a thread beside the calls, which spend most of their time without Python's lock."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
from collections.abc import Callable

from anygpu.processors import ProcessorUse, usable_processors

#: The module that plans calls; importing it loads everything that planning needs.
PLANNING = "anygpu.placement.place_call"

#: Whoever forks in the middle of an import of their own may keep the thread waiting.
_PATIENCE = 5.0

_thread: threading.Thread | None = None
_use = ProcessorUse(usable_processors())


def is_loaded() -> bool:
    """Whether what plans calls has been loaded."""
    # It is among the modules as soon as its import has begun.
    return hasattr(sys.modules.get(PLANNING), "place")


def costs_little() -> bool:
    """Whether a thread may load it.

    Calls that use every processor wait for the slowest one, so there it would cost several times what it takes.
    """
    return _use.has_spare()


def begin(then: Callable[[], None] = lambda: None) -> None:
    """Begin to load it, once, and do `then` what it is needed for.

    Whoever needs it before that is done waits for the rest, as for any import.
    """
    global _thread
    if _thread is None:
        _thread = threading.Thread(target=_load, args=(then,), name="anygpu-loading", daemon=True)
        _thread.start()


def is_under_way() -> bool:
    """Whether it is being loaded. If that has failed, whoever imports it gets the error."""
    return _thread is not None and _thread.is_alive()


def _load(then: Callable[[], None]) -> None:
    # Python may end meanwhile, which makes imports fail; a caller that needs it gets the error.
    with contextlib.suppress(Exception):
        importlib.import_module(PLANNING)
        then()


def _finish() -> None:
    """A child that is forked off in the middle of an import would wait for its end for ever."""
    if _thread is not None:
        _thread.join(_PATIENCE)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_finish)
