"""Lanes: the threads that take tasks from the queue, those of one device on one lane, and run them there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from anygpu.runtime.jobs import Job

#: A lane with nothing to do looks again so often while tasks wait for other lanes: one of those may be stuck.
LOOK_AGAIN = 0.05


#: For less, no other thread is woken: they would only be in each other's way.
_MOMENT = 2e-3

#: Not a device: the lane on which functions are recorded whose caller has ruled NumPy out.
PLANNING = "planning"


class Lane:
    """One device and the threads that use it. All of this is read and written with the runtime's lock held."""

    def __init__(self, name: str, width: int, lock: Any, work: Callable[[Lane], None]) -> None:
        self.name = name
        #: Threads at most: one for a device, some for NumPy.
        self.width = width
        self.wakened = threading.Condition(lock)
        self.idle = 0
        #: Of those, the ones that do not look again until they are woken.
        self.asleep = 0
        #: What runs, with the moment it began.
        self.running: dict[int, tuple[list[Job], float]] = {}
        #: Predicted seconds of what waits for this lane.
        self.backlog = 0.0
        #: Bytes that what runs is predicted to need.
        self.used_bytes = 0
        self.done = 0
        self.failed = 0
        self.busy_seconds = 0.0
        self.ended = False
        self.threads: list[threading.Thread] = []
        self._work = work
        #: Threads that wait for other tasks, and those that were started in their place.
        self.blocked = 0
        self.spare: set[threading.Thread] = set()
        #: Tasks in the queue for this lane that a thread of a lane waits for, the first first.
        self.awaited: dict[Job, None] = {}

    def wake(self, now: float | None = None) -> None:
        """There is something to take. Nobody is woken for it if somebody who is at work will take it in a moment."""
        if now is not None and self.backlog < _MOMENT and self._soon_free(now):
            return
        if self.idle:
            self.wakened.notify()
        elif len(self.threads) < self.width and not self.ended:
            thread = threading.Thread(
                target=self._work, args=(self,), name=f"anygpu-{self.name}-{len(self.threads)}", daemon=True
            )
            thread.start()
            self.threads.append(thread)

    @property
    def active(self) -> int:
        """Threads that run something, and do not wait for other tasks."""
        return len(self.running) - self.blocked

    def _soon_free(self, now: float) -> bool:
        """Whether one is at work on what has always been short; should it be stuck, another one looks again soon."""
        if self.idle <= self.asleep:
            return False
        return any(
            now - began < _MOMENT and jobs[0].call.state.skip_planning > 0 and len(jobs) * jobs[0].seconds < _MOMENT
            for jobs, began in self.running.values()
        )

    def wait(self, *, look_again: bool) -> None:
        """For something to take."""
        if look_again or self.running:
            self.wakened.wait(LOOK_AGAIN)
        else:
            self.asleep += 1
            self.wakened.wait()
            self.asleep -= 1

    def rouse(self) -> None:
        """Tasks wait for another lane, which has no time: let one thread look again and again."""
        if not self.threads:
            self.wake()
        elif self.idle and self.asleep == self.idle:
            self.wakened.notify()

    def waiting(self, now: float) -> float:
        """Seconds until a thread of this lane is free, as far as that can be told."""
        if self.idle or self.active < self.width:
            return 0.0
        left = []
        for jobs, began in self.running.values():
            elapsed = now - began
            predicted = sum(job.seconds for job in jobs)
            # What takes longer than predicted may take as long again.
            left.append(max(predicted - elapsed, elapsed / 2))
        return min(left)
