"""Work through a `Runtime` while its devices fail for real, and what came of it: for the benchmark and for tests.

Every task knows its number, which is the first value of its vector, so that a result which went to the wrong task, or
came from a device that was lost in between, is seen.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from anygpu.errors import AnyGPUError, DeadlineExceeded, DeviceHung, PoisonTask
from anygpu.runtime.runtime import Runtime
from benchmarks.soak_watch import Held, held, left_over
from tests.support.fault_schedule import LOSSES, Kind
from tests.support.faults import FaultyRegistry, Killer

Vector = npt.NDArray[np.float32]

#: Constants by which faulty engines know the programs of the tasks from those that the runtime runs on its own.
ORDINARY, POISON, ENDLESS = 1.49951171875, 1.0009765625, 1.001953125

#: Tasks that wait or run at once: enough to be batched, and few enough to see each fault's own consequences.
WINDOW = 16

#: Between two tasks of one caller, while something else hangs.
PAUSE = 0.02

#: After this a task counts as lost.
PATIENCE = 120.0


# The engine with faults knows its tasks by a constant in their programs: a global number would be an input.


def smooth(x: Any, mark: float = ORDINARY) -> Any:
    return np.maximum(x * mark + 0.25, -2.0) * 0.5


def poisonous(x: Any, mark: float = POISON) -> Any:
    return np.maximum(x * mark + 0.25, -2.0)


def endless(x: Any, mark: float = ENDLESS) -> Any:
    return np.maximum(x * mark + 0.25, -2.0)


class Tally(msgspec.Struct, kw_only=True):
    """What came of many tasks."""

    tasks: int = 0
    #: Without a result in time, or with an error.
    lost: int = 0
    wrong: int = 0
    #: Futures that were told to be done more than once, or never.
    not_once: int = 0
    errors: dict[str, int] = {}
    events: int = 0
    #: Of the events, those between the end of encoding and the submission.
    at_submit: int = 0
    #: Seconds from each fault until the next worker of the device ran something.
    replaced: list[float] = []
    bytes_left: int = 0
    #: What there is more of when all is closed than there was before.
    left: dict[str, int] = {}
    seconds: float = 0.0

    def replaced_by(self, share: float) -> float:
        return float(np.quantile(self.replaced, share)) if self.replaced else 0.0


class Stream:
    """Numbered tasks of one function, so many of them at once as the window allows."""

    def __init__(self, runtime: Runtime, function: Callable[[Any], Any], *, size: int, window: int = WINDOW) -> None:
        self._runtime = runtime
        self._function = function
        self._base = np.linspace(-3, 3, size).astype(np.float32)
        self._expected: Vector = function(self._base)
        self._slots = threading.Semaphore(window)
        self._counting = threading.Lock()
        self._told: Counter[int] = Counter()
        self._futures: dict[int, Any] = {}
        self.listeners: list[Callable[[Any], None]] = []
        self.tally = Tally()

    def submit(self, **options: Any) -> None:
        """One task more, as soon as there is room for it."""
        self._slots.acquire()
        number = self.tally.tasks
        self.tally.tasks += 1
        x = self._base.copy()
        x[0] = number
        future = self._runtime.submit(self._function, x, **options)
        self._futures[number] = future
        future.add_done_callback(lambda future: self._done(number, future))

    def _done(self, number: int, future: Any) -> None:
        with self._counting:
            self._told[number] += 1
            error = future.exception() if not future.cancelled() else None
            if error is not None or future.cancelled():
                self.tally.lost += 1
                name = type(error).__name__ if error is not None else "cancelled"
                self.tally.errors[name] = self.tally.errors.get(name, 0) + 1
            elif not self._is_right(number, future.result()):
                self.tally.wrong += 1
            self._futures.pop(number, None)
        for listener in self.listeners:
            listener(future)
        self._slots.release()

    def _is_right(self, number: int, value: Vector) -> bool:
        first = self._function(np.array([number], np.float32))
        return bool(
            value.shape == self._expected.shape
            and np.allclose(value[1:], self._expected[1:], rtol=1e-5, atol=1e-6)
            and np.allclose(value[:1], first, rtol=1e-6)
        )

    def finish(self) -> Tally:
        """Wait for the rest, and count."""
        end = time.monotonic() + PATIENCE
        for future in list(self._futures.values()):
            try:
                future.exception(max(0.1, end - time.monotonic()))
            except TimeoutError:
                continue
            except BaseException as error:  # noqa: BLE001 - cancelled; counted by the callback
                del error
        with self._counting:
            self.tally.lost += len(self._futures)
            self.tally.not_once = sum(self._told[number] != 1 for number in range(self.tally.tasks))
        return self.tally


def left_since(before: Held) -> dict[str, int]:
    """How much there is more of now, when everything is closed."""
    after = held()
    return {
        "processes": len(left_over(before.children, after.children)),
        "files": len(left_over(before.files, after.files)),
        "threads": max(0, after.native_threads - before.native_threads),
        "segments of shared memory": max(0, after.segments - before.segments),
    }


@contextmanager
def faulty(engine: str, *, drivers: Path | None = None, others: Sequence[str] = (), **options: Any) -> Iterator[Any]:
    """A runtime over a faulty device, and its places."""
    known = FaultyRegistry(engine, drivers=drivers, others=others)
    known.schedule.watch(ORDINARY)
    try:
        with Runtime(known=known, **options) as runtime:
            yield runtime, known
    finally:
        known.close()


def losses(
    count: int, kinds: Sequence[Kind] = LOSSES, *, drivers: Path | None = None, seed: int = 0, gap: int = 3
) -> Tally:
    """The device is destroyed `count` times in the middle of work, at each of these moments equally often."""
    before = held()
    with faulty("webgpu", drivers=drivers) as (runtime, known):
        stream = Stream(runtime, smooth, size=4096)
        on = {"on": "webgpu", "fallback": "raise"}
        begin = _warmed(stream, on)
        known.schedule.arrange(kinds, count=count, gap=gap, seed=seed)
        while known.schedule.planned:
            stream.submit(**on)
        # The last one may be found only by the task after it.
        for _ in range(2 * WINDOW):
            stream.submit(**on)
        tally = stream.finish()
        tally.seconds = time.monotonic() - begin
        tally.events = known.schedule.times_injected(*LOSSES)
        tally.at_submit = known.schedule.times_injected(Kind.LOSE_AT_SUBMIT)
        tally.replaced = known.schedule.replacements().tolist()
        tally.bytes_left = known.bytes_in_use()
    tally.left = left_since(before)
    return tally


def shortages(
    count: int, kind: Kind, *, engine: str = "webgpu", drivers: Path | None = None, seed: int = 0, gap: int = 3
) -> Tally:
    """`count` times the worker has no memory for the results of a run. Counts those that really ended for that."""
    with faulty(engine, drivers=drivers) as (runtime, known):
        stream = Stream(runtime, smooth, size=300_000, window=8)
        on = {"on": engine, "fallback": "raise"}
        begin = _warmed(stream, on)
        known.schedule.arrange([kind], count=count, gap=gap, seed=seed)
        while known.schedule.planned:
            stream.submit(**on)
        tally = stream.finish()
        tally.seconds = time.monotonic() - begin
        tally.events = known.schedule.without_memory()
        tally.bytes_left = known.bytes_in_use()
    return tally


def kills(count: int, tasks: int, *, engine: str = "opencl", seed: int = 0) -> Tally:
    """SIGKILL from outside, `count` times over so many tasks: once in each of as many parts, in its first half.

    Of parts that are longer than four windows no task meets two of them.
    """
    before = held()
    with faulty(engine) as (runtime, known):
        stream = Stream(runtime, smooth, size=4096)
        on = {"on": engine, "fallback": "raise"}
        begin = _warmed(stream, on)
        part = (tasks - WINDOW) / count
        at = (part * (np.arange(count) + np.random.default_rng(seed).uniform(0, 0.5, count))).astype(int) + 1
        killer = Killer(known, at.tolist(), seed=seed)
        stream.listeners.append(killer.finished)
        for number in range(tasks):
            killer.wait(number - 2 * WINDOW)
            stream.submit(**on)
        killer.wait(tasks)
        tally = stream.finish()
        killer.close()
        tally.seconds = time.monotonic() - begin
        tally.events = len(killer.moments)
        tally.replaced = known.schedule.next_generations(killer.moments).tolist()
        tally.bytes_left = known.bytes_in_use()
    tally.left = left_since(before)
    return tally


class Poisoned(NamedTuple):
    """What came of a task that kills every worker, and of those beside it."""

    error: BaseException | None
    workers_killed: int
    others: Tally
    #: What a second task of the same function ends with.
    again: BaseException | None


def poison(others: int, *, engine: str = "opencl") -> Poisoned:
    with faulty(engine) as (runtime, known):
        known.schedule.mark(POISON, Kind.KILL)
        stream = Stream(runtime, smooth, size=4096)
        on = {"on": engine, "fallback": "raise"}
        _warmed(stream, on)
        # No numbers of tasks, which would be taken for those of others.
        x = np.full(4096, 0.5, np.float32)
        future = runtime.submit(poisonous, x, **on)
        for _ in range(others):
            stream.submit(**on)
        error = future.exception(PATIENCE)
        tally = stream.finish()
        killed = known.schedule.times_injected(Kind.KILL)
        again = runtime.submit(poisonous, x, **on).exception(PATIENCE)
        tally.events = killed
        tally.replaced = known.schedule.replacements().tolist()
    return Poisoned(error, killed, tally, again)


class Hung(msgspec.Struct, kw_only=True):
    """What came of kernels that never end."""

    hangs: int = 0
    #: Not ended by `DeadlineExceeded` or `DeviceHung`.
    untyped: dict[str, int] = {}
    #: For each, the seconds that passed after its deadline; and those without what this process stood still for.
    late: list[float] = []
    late_running: list[float] = []
    replaced: list[float] = []
    #: For each healthy device the seconds of its tasks while nothing hung, and while something did.
    calm: dict[str, list[float]] = {}
    meanwhile: dict[str, list[float]] = {}
    wrong: int = 0

    def slower(self, device: str) -> float:
        """How much longer the 99th percentile of its tasks took."""
        calm, meanwhile = (float(np.quantile(each[device], 0.99)) for each in (self.calm, self.meanwhile))
        return meanwhile / calm


def hangs(
    count: int,
    *,
    engine: str,
    drivers: Path | None = None,
    others: Sequence[str] = (),
    deadline: float = 1.0,
    each: float = 2.0,
) -> Hung:
    """A kernel that never ends, `count` times; between them nothing hangs for `each` seconds.

    Meanwhile one caller for each healthy device has tasks done there, with pauses: where devices are made of processor
    cores a kernel that never ends takes one of them, and the others must not have been busy before.
    """
    hung = Hung()
    with faulty(engine, drivers=drivers, others=others) as (runtime, known):
        on = {"on": engine, "fallback": "raise"}
        x = np.full(4096, 0.5, np.float32)
        # Both are compiled once before, so that the deadline passes in the kernel and not in its compiler.
        for function in (smooth, endless):
            runtime.submit(function, x, **on).result(PATIENCE)
        known.schedule.mark(ENDLESS, Kind.HANG)
        clients = [_Client(runtime, device) for device in ("numpy", *others)]
        stalls = Stalls()
        try:
            for _ in range(count):
                _look_at(clients, hung.calm, each)
                begin, stood_still = time.monotonic(), stalls.seconds
                future = runtime.submit(endless, x, deadline=deadline, **on)
                for client in clients:
                    client.begin()
                error = future.exception(PATIENCE)
                late = time.monotonic() - begin - deadline
                hung.late.append(late)
                hung.late_running.append(max(0.0, late - (stalls.seconds - stood_still)))
                # Until the device is back, which takes time of the processor as well.
                value = runtime.submit(smooth, x, **on).result(PATIENCE)
                hung.wrong += not np.allclose(value, smooth(x), rtol=1e-5)
                for client in clients:
                    hung.meanwhile.setdefault(client.device, []).extend(client.end())
                if not isinstance(error, DeadlineExceeded | DeviceHung):
                    name = type(error).__name__
                    hung.untyped[name] = hung.untyped.get(name, 0) + 1
            hung.hangs = known.schedule.times_injected(Kind.HANG)
            hung.replaced = known.schedule.replacements().tolist()
        finally:
            stalls.close()
            for client in clients:
                client.close()
        hung.wrong += sum(client.wrong for client in clients)
    return hung


class Stalls:
    """How long this process stood still: stopped by a signal, or without a processor on a busy machine."""

    #: Seconds between two looks, and beyond that what counts.
    LOOK, LATE = 0.02, 0.1

    def __init__(self) -> None:
        self.seconds = 0.0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        last = time.monotonic()
        while not self._closed.wait(self.LOOK):
            now = time.monotonic()
            if now - last > self.LOOK + self.LATE:
                self.seconds += now - last - self.LOOK
            last = now

    def close(self) -> None:
        self._closed.set()
        self._thread.join()


class _Client:
    """A caller of one device, on a thread of its own: one task after the other."""

    def __init__(self, runtime: Runtime, device: str) -> None:
        self.device = device
        self.wrong = 0
        self._runtime = runtime
        self._taken: list[float] = []
        self._lock = threading.Lock()
        self._closed = False
        self._x = np.linspace(-3, 3, 200_000).astype(np.float32)
        self._expected = smooth(self._x)
        self._call()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _call(self) -> None:
        value = self._runtime.submit(smooth, self._x, on=self.device, fallback="raise").result(PATIENCE)
        self.wrong += not np.allclose(value, self._expected, rtol=1e-5, atol=1e-6)

    def _work(self) -> None:
        while not self._closed:
            begin = time.perf_counter()
            self._call()
            taken = time.perf_counter() - begin
            with self._lock:
                self._taken.append(taken)
            time.sleep(PAUSE)

    def begin(self) -> None:
        self.end()

    def end(self) -> list[float]:
        """The seconds of the tasks that have ended since the last time."""
        with self._lock:
            taken, self._taken = self._taken, []
        return taken

    def close(self) -> None:
        self._closed = True
        self._thread.join(PATIENCE)


def _look_at(clients: Sequence[_Client], into: dict[str, list[float]], seconds: float) -> None:
    for client in clients:
        client.begin()
    time.sleep(seconds)
    for client in clients:
        into.setdefault(client.device, []).extend(client.end())


def _warmed(stream: Stream, options: dict[str, Any]) -> float:
    """Some tasks before anything happens: the device is open, the function recorded. When that was done."""
    for _ in range(4):
        stream.submit(**options)
    stream.finish()
    if stream.tally.lost or stream.tally.wrong:
        raise AnyGPUError(f"{stream.tally.errors or 'results were wrong'} before anything was broken.")
    return time.monotonic()


def is_poison(error: BaseException | None) -> bool:
    return isinstance(error, PoisonTask)
