"""For tests of the runtime: tasks that run until they are let go, so that nothing depends on how fast a machine is."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from anygpu.runtime.future import Future
from anygpu.runtime.runtime import Runtime

#: Nothing here takes so long; a test that waits for it has failed.
PATIENCE = 120.0

#: Threads of NumPy's lane.
WIDTH = min(4, os.cpu_count() or 1)


class Gate:
    """A function that returns its argument once it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self._opened = threading.Event()
        self.calls = 0

    def __call__(self, value: Any = None) -> Any:
        self.calls += 1
        self.entered.set()
        if not self._opened.wait(PATIENCE):
            raise TimeoutError("nobody has opened the gate")
        return value

    def wait(self) -> None:
        if not self.entered.wait(PATIENCE):
            raise TimeoutError("nobody has come to the gate")

    def open(self) -> None:
        self._opened.set()


def make_late(runtime: Runtime, future: Future) -> None:
    """Let the time of a task be over now that waits or runs, and that was submitted with a deadline far away.

    So a test has it expire while it does what the test needs it to do, however long it took the machine to begin that.
    """
    scheduler = runtime._scheduler
    with scheduler.lock:
        job = scheduler._jobs[future]
        job.until = time.monotonic()
    scheduler._deadlines.add(job.number, job, job.until)


def until_running(future: Future) -> None:
    """Wait until a thread of its device has begun with a task."""
    end = time.monotonic() + PATIENCE
    while not future.running():
        if future.done() or time.monotonic() > end:
            raise TimeoutError("the task has not been seen running")


class Held:
    """NumPy's lane, all of its threads busy until they are released, one by one or together."""

    def __init__(self, runtime: Runtime, *, deadline: float | None = None) -> None:
        self.gates = [Gate() for _ in range(WIDTH)]
        self.futures: list[Future] = []
        for gate in self.gates:
            self.futures.append(runtime.submit(gate, on="numpy", deadline=deadline))
            gate.wait()

    def open_one(self) -> None:
        """Only one thread goes on, so that what waits runs in order."""
        self.gates[0].open()

    def open(self) -> None:
        for gate in self.gates:
            gate.open()

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()
