"""Explorers: workers at low or idle priority, in which devices are tried out while callers compute elsewhere.

No caller ever waits for an explorer, and none of its arrays outlives a trial. So it can be paused at any moment, and
ended when there is nothing more to find out.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from anygpu.engines.catalogue import EngineEntry
from anygpu.hardware.device import Device
from anygpu.workers import priority

if TYPE_CHECKING:
    from anygpu.workers.child_process import Child
    from anygpu.workers.process import ProcessWorker


class Explorers:
    """The explorers of one process, by device."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workers: dict[str, ProcessWorker] = {}
        #: Every child that is or becomes an explorer.
        self._children: dict[str, Child] = {}
        self._generation = 0
        self._paused = False
        #: How often they were paused: a time that was taken across a pause means nothing.
        self.pauses = 0

    def worker(self, entry: EngineEntry, device: Device, adopted: Child | None = None) -> ProcessWorker:
        """The open explorer of a device; one that has died is replaced. `adopted` is a child that may become one.

        Only one thread opens explorers. Raises what opening a device raises, and `OSError` where no child can be
        started.
        """
        # Most processes explore nothing.
        from anygpu.workers.child_process import Child
        from anygpu.workers.probe_messages import ServeRequest
        from anygpu.workers.process import ProcessWorker

        known = self._workers.get(device.id)
        if known is not None and known.alive:
            return known
        if adopted is None or adopted.link is None or adopted.process.poll() is not None:
            adopted = Child(ServeRequest(low_priority=True), serves=True)
        with self._lock:
            self._generation += 1
            self._children[device.id] = adopted
            if self._paused:
                priority.pause(adopted.process.pid)
        # A graphics card needs the processor for little, which it should get on a busy machine, too.
        is_processor = device.form in ("host", "software")
        opened = ProcessWorker(adopted, entry, device, generation=self._generation, idle=is_processor)
        self._workers[device.id] = opened
        return opened

    def pause(self) -> None:
        """Stop them until `resume`, also in the middle of a run."""
        with self._lock:
            if not self._paused:
                self._paused = True
                self.pauses += 1
                for child in self._children.values():
                    priority.pause(child.process.pid)

    def resume(self) -> None:
        with self._lock:
            if self._paused:
                self._paused = False
                for child in self._children.values():
                    priority.resume(child.process.pid)

    def close(self) -> None:
        """End them. They save what they have compiled first."""
        self.resume()
        workers = self._forget()
        for worker in workers:
            worker.close()

    def kill(self) -> None:
        """End them at once. A run that is under way raises `DeviceLost`."""
        with self._lock:
            for child in self._children.values():
                child.process.kill()
        for worker in self._forget():
            worker.close()

    def _forget(self) -> list[ProcessWorker]:
        with self._lock:
            workers = list(self._workers.values())
            self._workers.clear()
            self._children.clear()
        return workers

    def forked(self) -> None:
        """Called in a forked child: the explorers belong to the parent."""
        self._lock = threading.Lock()
        self._workers, self._children = {}, {}
        self._paused = False
