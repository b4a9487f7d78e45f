"""Which tests of several processes of pytest-xdist run beside each other: most do, and one that needs to is alone."""

from __future__ import annotations

import tempfile
from pathlib import Path


def folder_of(run: str) -> Path:
    """Where the locks of a run are; `run` is its identifier."""
    return Path(tempfile.gettempdir(), f"anygpu-tests-turns-{run}")


class Turns:
    """Locks that processes of one run share. A process gives back what it has when it ends."""

    def __init__(self, run: str) -> None:
        folder = folder_of(run)
        folder.mkdir(exist_ok=True)
        self._queue = (folder / "queue").open("w")
        self._running = (folder / "running").open("w")

    def take(self, *, alone: bool) -> None:
        """Waits until a test may run, beside others or alone. A process that has a turn already gives it back first."""
        import fcntl  # not on Windows, where tests run in one process

        self.give_back()
        # Whoever waits to be alone keeps the queue, so that others do not go on past it.
        fcntl.flock(self._queue, fcntl.LOCK_EX)
        fcntl.flock(self._running, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(self._queue, fcntl.LOCK_UN)

    def give_back(self) -> None:
        import fcntl

        # Not by closing: a process that was forked off meanwhile has it open, too.
        fcntl.flock(self._running, fcntl.LOCK_UN)


#: Of this process, where it is one of several.
ours: Turns | None = None
