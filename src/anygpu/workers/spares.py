"""Children that are kept beside the workers: spares for those that are lost, and the explorer.

`Spares` has one spare for each engine, from its first loss on and for a while after the last one. `Explorers` has the
one child in which devices are tried out in the background, at low priority. Both load the code of children only when
they need one, as most processes never do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from anygpu.base.forks import lock
from anygpu.engines.catalogue import EngineEntry
from anygpu.hardware.device import Device

if TYPE_CHECKING:
    from anygpu.workers.child_process import Child, Spare
    from anygpu.workers.process import ProcessWorker


# -- spares for workers that are lost: one for each engine, from its first loss on, and for a while after the last one


#: How long a spare is kept after the last loss. It takes 30 MB of memory.
KEEP_SECONDS = 300.0


class Spares:
    """The spares of one process."""

    def __init__(self, seconds: float = KEEP_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        """Starts no spare: the first one is started by the first loss.

        Each is kept for `seconds` after the last one.
        """
        self._seconds = seconds
        self._clock = clock
        self._closed = False
        self._lock = lock()
        #: By engine, also those that are still starting.
        self._spares: dict[str, Spare] = {}
        #: When each is given up, and who does it.
        self._until: dict[str, float] = {}
        self._timers: dict[str, threading.Timer] = {}
        self._starting: dict[str, threading.Thread] = {}
        #: Engines whose copies could not be opened while other children could, or which make none.
        self._without_copies: set[str] = set()

    def replacement(self, entry: EngineEntry) -> Child | None:
        """A child for a worker that was lost, at once if there is a spare; `None` if it has to be started as usual.

        Without a spare, one is started and copied: that takes no longer than starting the child, and the next loss
        finds it ready.
        """
        # Most processes lose nothing.
        from anygpu.workers.child_process import Spare, can_copy

        name = entry.name
        with self._lock:
            spare = self._spares.get(name)
            if spare is not None and not spare.suits(entry):
                self._give_up(name)
                spare = None
            is_new = spare is None and can_copy() and name not in self._without_copies and not self._closed
        try:
            if is_new:
                spare = Spare(entry)
                if not self._keep(spare):
                    return None
                spare.wait()
        except OSError:
            self.refuse(entry)
            return None
        child = spare.take() if spare is not None else None
        with self._lock:
            if spare is not None and spare.copies is False:
                self._without_copies.add(name)
            if spare is not None and spare.gone:
                self._give_up(name, spare)
            self._until[name] = self._clock() + self._seconds
        return child

    def replenish(self, entry: EngineEntry) -> None:
        """After a loss: where a spare is used up by each, the next one is started in the background."""
        from anygpu.workers.child_process import Spare, can_copy

        name = entry.name

        def start() -> None:
            spare: Spare | None = None
            try:
                spare = Spare(entry, quietly=True)
                if self._keep(spare):
                    spare.wait()
            except OSError:
                with self._lock:
                    self._starting.pop(name, None)
                    if spare is not None:
                        self._give_up(name, spare)

        with self._lock:
            copies = can_copy() and name not in self._without_copies
            if copies or self._closed or name in self._spares or name in self._starting:
                return
            thread = threading.Thread(target=start, name=f"anygpu-spare-{name}", daemon=True)
            self._starting[name] = thread
            thread.start()

    def refuse(self, entry: EngineEntry) -> None:
        """Copies of this engine's spare do not work: from now on none is made."""
        with self._lock:
            self._without_copies.add(entry.name)
            self._give_up(entry.name)

    def processes(self) -> dict[str, int]:
        """The process of each spare, by engine."""
        with self._lock:
            return {name: spare.process_id for name, spare in self._spares.items() if not spare.gone}

    def _keep(self, spare: Spare) -> bool:
        """Take it in, unless there is one already."""
        name = spare.entry.name
        with self._lock:
            self._starting.pop(name, None)
            wanted = not self._closed and name not in self._spares
            if wanted:
                self._spares[name] = spare
                self._until[name] = self._clock() + self._seconds
                self._expect_expiry(name, self._seconds)
        if not wanted:
            spare.kill()
        return wanted

    def _expect_expiry(self, name: str, seconds: float) -> None:
        """Starts the daemon timer that gives up the spare of an engine after so many seconds. The lock is held."""
        timer = threading.Timer(seconds, self._expire, [name])
        timer.daemon, timer.name = True, "anygpu-spare-expiry"
        self._timers[name] = timer
        timer.start()

    def _expire(self, name: str) -> None:
        """Gives up a spare whose time is over, or waits for the rest if a loss has prolonged it.

        Runs on the timer's thread.
        """
        with self._lock:
            if self._timers.get(name) is not threading.current_thread():
                return
            left = self._until[name] - self._clock()
            if left > 0:
                self._expect_expiry(name, left)
            else:
                self._give_up(name)

    def _give_up(self, name: str, only: Spare | None = None) -> None:
        """Ends the spare of an engine, if it is `only` that one. The lock is held."""
        spare = self._spares.get(name)
        if spare is not None and only in (None, spare):
            del self._spares[name]
            timer = self._timers.pop(name, None)
            if timer is not None:
                timer.cancel()
            if not spare.gone:
                spare.kill()

    def close(self) -> None:
        """End all of them. Workers that came from them go on."""
        with self._lock:
            self._closed = True
            ending = [*self._starting.values(), *self._timers.values()]
            for name in list(self._spares):
                self._give_up(name)
        for thread in ending:
            if thread is not threading.current_thread():
                thread.join(5)
        with self._lock:
            self._closed = False

    def forked(self) -> None:
        """Called in a forked child: the spares belong to the parent."""
        for spare in self._spares.values():
            spare.forked()
        self._spares, self._until, self._timers, self._starting = {}, {}, {}, {}


# -- explorers: children at low priority, in which devices are tried out while callers compute elsewhere
#
# No caller ever waits for an explorer, and none of its arrays outlives a trial. There is one at a time, so that no more
# than one takes memory of a card beside the workers that serve callers.


class Explorers:
    """The explorer that this process has, if it has one."""

    def __init__(self) -> None:
        """Starts without an explorer; generations count the workers that it was opened for."""
        self._lock = lock()
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
        from anygpu.workers.child_messages import ServeRequest
        from anygpu.workers.child_process import Child
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
        self._worker = self._child = None
