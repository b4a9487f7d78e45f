"""Explorers: children at low priority, in which devices are tried out while callers compute elsewhere.

No caller ever waits for an explorer, and none of its arrays outlives a trial. There is one at a time, so that no more
than one takes memory of a card beside the workers that serve callers.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from anygpu.engines.catalogue import EngineEntry
from anygpu.hardware.device import Device

if TYPE_CHECKING:
    from anygpu.workers.child_process import Child
    from anygpu.workers.process import ProcessWorker


class Explorers:
    """The explorer that this process has, if it has one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: ProcessWorker | None = None
        #: Its child, also while it opens its device.
        self._child: Child | None = None
        self._generation = 0

    def worker(self, entry: EngineEntry, device: Device, adopted: Child | None = None) -> ProcessWorker:
        """The open explorer of a device, in place of that of another. `adopted` is a child that may become one.

        Only one thread opens explorers. Raises what opening a device raises, and `OSError` where no child can be
        started.
        """
        # Most processes explore nothing.
        from anygpu.workers.child_process import Child
        from anygpu.workers.probe_messages import ServeRequest
        from anygpu.workers.process import ProcessWorker

        known = self._worker
        if known is not None and known.alive and known.device.id == device.id:
            return known
        self.close()
        if adopted is None or adopted.link is None or adopted.process.poll() is not None:
            adopted = Child(ServeRequest(low_priority=True), serves=True)
        with self._lock:
            self._generation += 1
            self._child = adopted
        self._worker = ProcessWorker(adopted, entry, device, generation=self._generation)
        return self._worker

    def close(self) -> None:
        """End it. It saves what it has compiled first."""
        worker = self._forget()
        if worker is not None:
            worker.close()

    def kill(self) -> None:
        """End it at once. A run that is under way raises `DeviceLost`."""
        with self._lock:
            if self._child is not None:
                self._child.process.kill()
        self.close()

    def _forget(self) -> ProcessWorker | None:
        with self._lock:
            worker, self._worker, self._child = self._worker, None, None
        return worker

    def forked(self) -> None:
        """Called in a forked child: the explorer belongs to the parent."""
        self._lock = threading.Lock()
        self._worker = self._child = None
