"""No child outlives its parent, however that ends."""

from __future__ import annotations

import os
import signal
import sys
import threading


def end_with_parent(*, watch: bool = True) -> None:
    """End this process when the parent closes its end of standard input, on purpose or by being killed.

    Without `watch` no thread is started, and only Linux ends it.
    """
    if sys.platform == "linux":
        import fcntl

        # The kernel then sends a signal, whose default action ends the process even inside of a driver call that
        # holds the interpreter's lock.
        signal.signal(signal.SIGIO, signal.SIG_DFL)
        fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)

    def wait() -> None:
        os.read(0, 1)
        os._exit(1)

    if watch:
        threading.Thread(target=wait, daemon=True).start()
