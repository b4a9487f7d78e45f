"""`ANYGPU_OBSERVE=1`: observe a process whose program cannot be changed, from the moment that it imports anygpu."""

from __future__ import annotations

import os
import sys

from anygpu import observe
from anygpu.workers.child_start import WORKER_ARGUMENT, is_frozen

VARIABLE = "ANYGPU_OBSERVE"
_NO = ("", "0", "off", "no", "false")


def observe_if_asked() -> None:
    """Not in a child of a frozen application that only has a device open; those of an interpreter have no variable."""
    if os.environ.get(VARIABLE, "").strip().lower() in _NO:
        return
    if not (is_frozen() and sys.argv[1:2] == [WORKER_ARGUMENT]):
        observe.start()
