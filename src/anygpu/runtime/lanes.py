"""Lanes: one per device, with the threads that take tasks from the queue and run them there."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

from anygpu.runtime.jobs import Job

#: Seconds after which an idle lane looks again while tasks wait for other lanes: one of those may be stuck.
LOOK_AGAIN = 0.05
#: Of more lanes than this, each looks less often: all of them together look as often as so many would.
LOOKING = 64

#: For a backlog shorter than this many seconds no other thread is woken.
_MOMENT = 2e-3

#: Not a device: the lane that traces functions whose caller has excluded NumPy.
PLANNING = "planning"


class LaneLoad:
    """What runs on one device, and what waits for it. It has no thread and no clock; the scheduler's lock guards it.

    What runs its tasks is woken by `notify` and `start`: threads here, events in a simulation.
    """

    def __init__(self, name: str, width: int) -> None:
        self.name = name
        #: Maximum number of threads: one for a device, several for NumPy.
        self.width = width
        self.started = 0
        self.idle = 0
        #: Idle threads that sleep until they are woken.
        self.asleep = 0
        #: By thread, the running jobs and their start time.
        self.running: dict[int, tuple[list[Job], float]] = {}
        #: Predicted seconds of the tasks that wait for this lane.
        self.backlog = 0.0
        #: Predicted bytes of the running tasks.
        self.used_bytes = 0
        self.done = 0
        self.failed = 0
        #: Launches of several tasks at once, and the tasks in them.
        self.batches = 0
        self.batched = 0
        self.busy_seconds = 0.0
        self.ended = False
        #: Threads that wait for other tasks.
        self.blocked = 0
        #: Queued tasks of this lane that a lane thread waits for, in order.
        self.awaited: dict[Job, None] = {}

    def notify(self) -> None:
        """Let one idle thread look for a task."""
        raise NotImplementedError

    def start(self) -> None:
        """Start one more thread, which looks for a task."""
        raise NotImplementedError

    def wake(self, now: float | None = None) -> None:
        """Wake a thread for a new task, unless a running one will be free within `_MOMENT`."""
        if now is not None and self.backlog < _MOMENT and self._soon_free(now):
            return
        if self.idle:
            self.notify()
        elif self.started < self.width and not self.ended:
            self.start()

    def rouse(self, *, also_polling: bool = False) -> None:
        """Tasks wait for another lane, which is busy: let one thread of this lane poll the queue.

        One that polls the queue anyway is left alone, unless it may be long until it does.
        """
        if not self.started:
            self.wake()
        elif self.idle and (also_polling or self.asleep == self.idle):
            self.notify()

    @property
    def active(self) -> int:
        """Threads that run something, and do not wait for other tasks."""
        return len(self.running) - self.blocked

    def _soon_free(self, now: float) -> bool:
        """Whether a running thread will finish a short task shortly; if it hangs, an idle one looks again soon."""
        if self.idle <= self.asleep:
            return False
        return any(
            now - began < _MOMENT and jobs[0].call.site.skip_planning > 0 and len(jobs) * jobs[0].seconds < _MOMENT
            for jobs, began in self.running.values()
        )

    def patience(self, lanes: int, *, look_again: bool) -> float | None:
        """The seconds that an idle thread waits, being one of so many lanes; `None` until it is woken."""
        return LOOK_AGAIN * max(1.0, lanes / LOOKING) if look_again or self.running else None

    def waiting(self, now: float) -> float:
        """Estimated seconds until a thread of this lane is free."""
        if self.idle or self.active < self.width:
            return 0.0
        shortest = math.inf
        for jobs, began in self.running.values():
            elapsed = now - began
            predicted = jobs[0].seconds if len(jobs) == 1 else sum([job.seconds for job in jobs])
            # A task that exceeds its prediction may take as long again.
            shortest = min(shortest, max(predicted - elapsed, elapsed / 2))
        return shortest


class Lane(LaneLoad):
    """One device and the threads that use it. The scheduler's lock guards all of it."""

    def __init__(self, name: str, width: int, lock: Any, work: Callable[[Lane], None]) -> None:
        super().__init__(name, width)
        self.wakened = threading.Condition(lock)
        self.threads: list[threading.Thread] = []
        self._work = work
        #: The threads that were started in place of blocked ones.
        self.spare: set[threading.Thread] = set()
        #: A second thread, which has the arguments of the next large task uploaded while one runs.
        self.ahead: threading.Thread | None = None

    def notify(self) -> None:
        self.wakened.notify()

    def start(self) -> None:
        thread = threading.Thread(
            target=self._work, args=(self,), name=f"anygpu-{self.name}-{len(self.threads)}", daemon=True
        )
        thread.start()
        self.threads.append(thread)
        self.started += 1

    def wait(self, lanes: int, *, look_again: bool) -> None:
        """Wait for a task; there are so many lanes."""
        seconds = self.patience(lanes, look_again=look_again)
        if seconds is not None:
            self.wakened.wait(seconds)
        else:
            self.asleep += 1
            self.wakened.wait()
            self.asleep -= 1
