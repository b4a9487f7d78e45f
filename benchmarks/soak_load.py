"""The load of a soak: clients that do everything a runtime offers and check every result, and faults that are real."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import numpy.typing as npt

import anygpu as ag
from anygpu.errors import DeadlineExceeded, DeviceHung, DeviceLost, NotANumber, QueueFull
from anygpu.runtime.future import Future
from anygpu.runtime.runtime import Runtime
from anygpu.workers.device_arrays.registry import registry
from anygpu.workers.process import ProcessWorker
from tests.support.fault_schedule import LOSSES, Kind
from tests.support.faults import FaultyRegistry

Vector = npt.NDArray[np.float32]

#: Seconds after which a task counts as lost, unless the soak is told otherwise.
PATIENCE = 120.0
DEVICES = ("opencl", "webgpu")
SIZE, LARGE = 256, 1 << 20
#: Arrays that each client of them keeps on a device.
RESIDENT = 6
#: Seconds between two faults, on average; and how long a worker is stopped before it is ended, if nobody ends it.
FAULTS, STOPPED = 4.0, 2.0
#: How long one faulty device is used before it is given up for another one, in seconds.
FAULTY_SECONDS = 45.0
WINDOW = 16


def chain(x: Any) -> Any:
    return np.sqrt(np.abs(np.maximum((x * 1.5 + 0.25) * x - 0.5, -2.0) * 0.5)) + 1.0


def product(matrix: Any, x: Any) -> Any:
    return matrix @ x


def scaled(x: Any) -> Any:
    return x * 0.5 + 1.0


class Tally:
    """What became of everything; any thread tells it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Tasks with a right result, or with the error that was asked for.
        self.done = 0
        self.wrong = 0
        self.lost = 0
        #: What else there was to count, such as refusals and faults.
        self.counts: Counter[str] = Counter()
        #: Files in shared memory that were made.
        self.names: set[str] = set()
        #: How often clients did what, the seconds of all of them, and of the longest.
        self.actions: dict[str, tuple[int, float, float]] = {}
        #: The first of each kind of loss, as text.
        self.stories: dict[str, str] = {}

    def count(self, what: str, times: int = 1) -> None:
        with self._lock:
            self.counts[what] += times

    def right(self, is_right: bool) -> None:
        with self._lock:
            if is_right:
                self.done += 1
            else:
                self.wrong += 1

    def took(self, what: str, seconds: float) -> None:
        """One of the clients' actions, from beginning to end."""
        with self._lock:
            times, total, longest = self.actions.get(what, (0, 0.0, 0.0))
            self.actions[what] = (times + 1, total + seconds, max(longest, seconds))

    def expected(self, what: str) -> None:
        """An error that had to come, or that may."""
        with self._lock:
            self.done += 1
            self.counts[what] += 1

    def losing(self, where: str, error: BaseException) -> None:
        kind = f"{where}: {type(error).__name__}"
        with self._lock:
            self.lost += 1
            self.counts[f"lost in {kind}"] += 1
            if kind not in self.stories:
                self.stories[kind] = "".join(traceback.format_exception(error)[-6:])


class Gate:
    """Lets everybody work, or waits until nobody does."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._active = 0
        self._shut = False

    @contextmanager
    def through(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._shut)
            self._active += 1
        try:
            yield
        finally:
            with self._changed:
                self._active -= 1
                self._changed.notify_all()

    @contextmanager
    def quiet(self, patience: float = PATIENCE) -> Iterator[bool]:
        """Nobody works meanwhile, if all come to an end in time."""
        with self._changed:
            self._shut = True
            is_quiet = self._changed.wait_for(lambda: self._active == 0, patience)
        try:
            yield is_quiet
        finally:
            with self._changed:
                self._shut = False
                self._changed.notify_all()


class Client:
    """One caller, on a thread of its own, who does something else each time."""

    def __init__(self, runtime: Runtime, tally: Tally, gate: Gate, seed: int, patience: float) -> None:
        self._runtime = runtime
        self._tally = tally
        self._patience = patience
        self._gate = gate
        self._random = np.random.default_rng(seed)
        self._matrix: Vector = np.random.default_rng(1).standard_normal((SIZE, SIZE), np.float32)
        self._matrix /= SIZE
        self._resident: list[tuple[Any, Vector]] = []
        self._stopped = False
        self._actions: list[tuple[float, Callable[[], None]]] = [
            (5, self._small),
            (2, self._large),
            (5, self._single),
            (5, self._many),
            (2, self._mapped),
            (5, self._arrays),
            (2, self._cancelled),
            (2, self._late),
            (1, self._flood),
        ]
        self.thread = threading.Thread(target=self._work, name=f"soak-client-{seed}", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        weights = np.array([weight for weight, _ in self._actions])
        while not self._stopped:
            number = int(self._random.choice(len(weights), p=weights / weights.sum()))
            with self._gate.through():
                action = self._actions[number][1]
                name = action.__name__.strip("_")
                begin = time.monotonic()
                try:
                    action()
                except BaseException as error:  # noqa: BLE001 - whatever it is, it should not have come
                    self._tally.losing(name, error)
                self._tally.took(name, time.monotonic() - begin)
        self._resident.clear()

    def stop(self) -> None:
        self._stopped = True

    # -- what they have in common

    def _device(self) -> str:
        return str(self._random.choice(DEVICES))

    def _vector(self, size: int = SIZE) -> Vector:
        return self._random.standard_normal(size, np.float32)

    def _submit(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Future:
        """While others fill the queue, later."""
        while True:
            try:
                return self._runtime.submit(function, *arguments, **options)
            except QueueFull:
                self._tally.count("QueueFull")
                time.sleep(0.005)

    def _check(self, where: str, future: Future, expected: Any, *allowed: type[BaseException]) -> None:
        try:
            value = future.result(self._patience)
        except allowed as error:
            self._tally.expected(type(error).__name__)
        except BaseException as error:  # noqa: BLE001 - counted
            self._tally.losing(where, error)
        else:
            self._tally.right(agrees(value, expected))

    # -- what they do

    def _small(self) -> None:
        given = [self._vector() for _ in range(40)]
        on = None if self._random.random() < 0.5 else "numpy"
        futures = [self._submit(chain, x, on=on) for x in given]
        for x, future in zip(given, futures, strict=True):
            self._check("small", future, chain(x))

    def _large(self) -> None:
        x = self._vector(LARGE)
        on = str(self._random.choice(["numpy", *DEVICES]))
        self._check("large", self._submit(chain, x, on=on), chain(x))

    def _single(self) -> None:
        on = self._device()
        for _ in range(10):
            x = self._vector()
            self._check("single", self._submit(product, self._matrix, x, on=on), self._matrix @ x)

    def _many(self) -> None:
        given, on = [self._vector() for _ in range(int(self._random.integers(32, 160)))], self._device()
        futures = [self._submit(product, self._matrix, x, on=on) for x in given]
        for x, future in zip(given, futures, strict=True):
            self._check("many", future, self._matrix @ x)

    def _mapped(self) -> None:
        given, on = [self._vector() for _ in range(64)], self._device()
        shape, nan = (int(each) for each in self._random.choice(64, 2, replace=False))
        given[shape] = given[shape][:-1]
        given[nan][3] = np.nan
        refused: dict[int, tuple[type[Exception], ...]] = {nan: (NotANumber,), shape: (ValueError, TypeError)}
        outcomes = self._runtime.map(product, [self._matrix] * 64, given, on=on, nan="raise")
        for number, (x, outcome) in enumerate(zip(given, outcomes, strict=True)):
            expected = refused.get(number)
            if expected is not None and (outcome.error is None or isinstance(outcome.error, expected)):
                # A result is wrong here; another error says nothing of the result, and is a loss.
                self._tally.right(outcome.error is not None)
            elif isinstance(outcome.error, QueueFull):
                self._tally.expected("QueueFull in map")
            elif outcome.error is not None:
                self._tally.losing("mapped", outcome.error)
            else:
                self._tally.right(agrees(outcome.value, self._matrix @ x))

    def _arrays(self) -> None:
        """Arrays that stay on a device, over its losses; some made there by earlier calls."""
        if len(self._resident) < RESIDENT:
            x = self._vector(4096)
            self._resident.append((ag.asarray(x, device="opencl"), x))
        place = int(self._random.integers(len(self._resident)))
        array, expected = self._resident[place]
        try:
            made = self._submit(scaled, array).result(self._patience)
            value = np.asarray(made)
        except DeviceLost:
            # Named as lost: that is allowed for what cannot be had again, and all of these can.
            self._tally.count("arrays named as lost")
            del self._resident[place]
            raise
        wanted = scaled(expected)
        self._tally.right(agrees(value, wanted))
        if self._random.random() < 0.2:
            self._resident[place] = (made, wanted)
        elif self._random.random() < 0.1:
            del self._resident[place]

    def _cancelled(self) -> None:
        given, on = [self._vector() for _ in range(40)], self._device()
        futures = [self._submit(chain, x, on=on) for x in given]
        for future in futures[::2]:
            future.cancel()
        for x, future in zip(given, futures, strict=True):
            self._check("cancelled", future, chain(x), concurrent.futures.CancelledError)

    def _late(self) -> None:
        given, on = [self._vector() for _ in range(10)], self._device()
        seconds = float(10 ** self._random.uniform(-3, -0.3))
        futures = [self._submit(chain, x, on=on, deadline=seconds) for x in given]
        for x, future in zip(given, futures, strict=True):
            self._check("late", future, chain(x), DeadlineExceeded, DeviceHung)

    def _flood(self) -> None:
        """As many as it takes to fill the queue, and some more."""
        x, accepted = self._vector(), []
        for _ in range(self._runtime.limit + 50):
            try:
                accepted.append(self._runtime.submit(chain, x, on="numpy"))
            except QueueFull:
                self._tally.expected("QueueFull")
        wanted = chain(x)
        for future in accepted:
            self._check("flood", future, wanted)


class FaultyClient:
    """A runtime of its own over a device that is lost, out of memory or hung as planned; now and then a new one."""

    def __init__(self, tally: Tally, gate: Gate, seed: int, patience: float) -> None:
        self._tally = tally
        self._patience = patience
        self._gate = gate
        self._random = np.random.default_rng(seed)
        self._stopped = False
        self.thread = threading.Thread(target=self._work, name="soak-faulty", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self._stopped = True

    def _work(self) -> None:
        while not self._stopped:
            try:
                self._one_device()
            except BaseException as error:  # noqa: BLE001 - whatever it is, it should not have come
                self._tally.losing("faulty", error)

    def _one_device(self) -> None:
        with self._gate.through():
            known = FaultyRegistry("webgpu")
            self._tally.names.add(known.schedule.path.name)
            runtime = Runtime(known=known)
        try:
            end = time.monotonic() + FAULTY_SECONDS
            while not self._stopped and time.monotonic() < end:
                with self._gate.through():
                    self._some(runtime, known)
            schedule = known.schedule
            for kind in Kind:
                if kind is not Kind.NOTHING:
                    self._tally.count(f"fault: {kind.name.lower()}", schedule.times_injected(kind))
        finally:
            with self._gate.through():
                runtime.close()
                known.close()

    def _some(self, runtime: Runtime, known: FaultyRegistry) -> None:
        on: dict[str, Any] = {"on": "webgpu", "fallback": "raise"}
        if self._random.random() < 0.02:
            known.schedule.next_is(Kind.HANG)
            x = self._numbered(1)[0]
            try:
                value = runtime.submit(chain, x, deadline=1.0, **on).result(self._patience)
            except (DeadlineExceeded, DeviceHung) as error:
                self._tally.expected(f"hung: {type(error).__name__}")
            else:
                self._tally.right(agrees(value, chain(x)))
            return
        if not known.schedule.planned:
            kinds = (*LOSSES, Kind.NO_ROOM, Kind.OVER_BUDGET, Kind.KILL)
            known.schedule.arrange(kinds, count=14, gap=20, seed=int(self._random.integers(1 << 30)))
        given = self._numbered(WINDOW)
        futures = [runtime.submit(chain, x, **on) for x in given]
        for x, future in zip(given, futures, strict=True):
            try:
                value = future.result(self._patience)
            except BaseException as error:  # noqa: BLE001 - counted
                self._tally.losing("faulty device", error)
            else:
                self._tally.right(agrees(value, chain(x)))

    def _numbered(self, count: int) -> list[Vector]:
        """The first value is the number by which faults know tasks, so that none is hit three times."""
        given = list(self._random.standard_normal((count, SIZE), np.float32))
        for x, number in zip(given, self._random.choice(1 << 20, count, replace=False), strict=True):
            x[0] = number
        return given


class Faults:
    """Kills workers of the devices that everybody uses, or stops them so that they hang; at random moments.

    A device is left alone until something was done there again: a task that is killed three times is refused as poison,
    and on a slow machine that would happen by chance to one that is still on its way.
    """

    def __init__(self, runtime: Runtime, tally: Tally, gate: Gate, seed: int) -> None:
        self._runtime = runtime
        self._tally = tally
        #: For each device, the tasks that it had done when its worker was killed.
        self._done: dict[str, int] = {}
        self._gate = gate
        self._random = np.random.default_rng(seed)
        self._stopped = threading.Event()
        self.thread = threading.Thread(target=self._work, name="soak-faults", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _work(self) -> None:
        while not self._stopped.wait(0.5 + self._random.exponential(FAULTS - 0.5)):
            with self._gate.through():
                done = {lane.device: lane.done for lane in self._runtime.health().lanes}
                workers = [
                    each
                    for each in list(registry._workers.values())
                    if isinstance(each, ProcessWorker)
                    and each.alive
                    and done.get(each.device.id, 0) > self._done.get(each.device.id, -1)
                ]
                if not workers:
                    continue
                worker = workers[int(self._random.integers(len(workers)))]
                victim = worker.process_id
                self._done[worker.device.id] = done.get(worker.device.id, 0)
                with suppress(ProcessLookupError):
                    if self._random.random() < 0.25:
                        # Nobody answers there any more; whoever has a deadline ends it, or this does.
                        os.kill(victim, signal.SIGSTOP)
                        self._tally.count("fault: stopped")
                        self._stopped.wait(STOPPED)
                    else:
                        self._tally.count("fault: killed")
                    os.kill(victim, signal.SIGKILL)


def agrees(value: Any, expected: Any) -> bool:
    found = np.asarray(value)
    return found.shape == expected.shape and bool(np.allclose(found, expected, rtol=1e-3, atol=1e-4))
