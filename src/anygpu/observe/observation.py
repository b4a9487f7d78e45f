"""Records the calls of this process while it is observed, and samples its memory and devices.

Every call leaves a note in a buffer, which takes a fraction of a microsecond. The buffer is folded into statistics when
it is full or when a summary is asked for: no thread runs for it, and its memory does not grow.

`Observation` has the calls, `Sampler` is the thread that looks at memory and devices now and then, and `Describing`
makes a `Snapshot` of all of it.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from anygpu.base.interrupts import TryAcquire
from anygpu.base.version import __version__
from anygpu.engines.protocol import Memory
from anygpu.errors import AnyGPUError
from anygpu.hardware import host
from anygpu.hardware.usage import Usage
from anygpu.hardware.usage.reading import UsageReader
from anygpu.observe.snapshot import (
    Advice,
    Anomaly,
    CallRecord,
    DeviceMemoryUse,
    FallbackRecord,
    ProcessInfo,
    Snapshot,
    call_of,
    fallback_of,
)
from anygpu.observe.statistics import RunningStatistics, Summary, batches
from anygpu.observe.watching import MemorySample, ProcessWatch
from anygpu.receipts.notes import Failure, Note, Origin, Seen
from anygpu.receipts.receipt import Receipt
from anygpu.runtime.health import Health
from anygpu.runtime.runtime import existing_runtime
from anygpu.workers.device_arrays.registry import DeviceRegistry, registry
from anygpu.workers.worker import Worker

#: Calls that wait to be folded. Folding many at once is cheaper for each.
BUFFERED = 512
#: Calls that are remembered one by one, and those that did not run where they were meant to.
RECENT, FALLBACKS = 1000, 100
#: Anomalies that are remembered.
ANOMALIES = 100

_clock = time.perf_counter

_Folded = tuple[list[Note], list[tuple[Receipt | Failure, float]]]


class Observation:
    """Records calls: it is called with each of them, on whatever thread the call ended.

    Buffers are deques, whose `append` needs no lock; the statistics behind them are guarded by one, which is held while
    a buffer is folded and never while a call is taken in.
    """

    def __init__(self) -> None:
        now = _clock()
        #: Added to times of `time.perf_counter`, these become seconds since 1970.
        self.epoch = time.time() - now
        self._statistics = RunningStatistics(now)
        self._folding = threading.RLock()
        #: Calls that wait to be folded: those that left a note, and others with when they ended.
        self._notes: deque[Note] = deque()
        self._others: deque[tuple[Receipt | Failure, float]] = deque()
        #: The latest folded calls in parts, each with the number of its last call.
        self._recent: deque[tuple[int, _Folded]] = deque()
        self._fallbacks: deque[FallbackRecord] = deque(maxlen=FALLBACKS)
        #: Number of the newest call that was folded.
        self._number = 0
        self._watch = ProcessWatch()
        self._anomalies: deque[Anomaly] = deque(maxlen=ANOMALIES)
        #: Anomalies that have not been reported.
        self._untold: deque[Anomaly] = deque(maxlen=ANOMALIES)

    def __call__(self, seen: Seen, origin: Origin | None) -> None:
        """Take in one call. It is buffered, and folded into the statistics with many others."""
        # For every call, also of functions that take a microsecond.
        if type(seen) is tuple:
            notes = self._notes
            notes.append(seen)  # type: ignore[arg-type]
            if len(notes) >= BUFFERED:
                self._fold(wait=False)
        else:
            one: Receipt | Failure = seen  # type: ignore[assignment]
            self._others.append((one, _clock()))
            if len(self._others) >= BUFFERED:
                self._fold(wait=False)

    def summary(self) -> Summary:
        """Counts, sums and quantiles up to now."""
        self._fold()
        with self._folding:
            return self._statistics.summary(_clock())

    def summary_and_histograms(self, bounds: Sequence[float]) -> tuple[Summary, dict[tuple[str, str], list[int]]]:
        """Both of the same calls: by function and device, how many took at most so many seconds, for each bound."""
        self._fold()
        with self._folding:
            return self._statistics.summary(_clock()), self._statistics.histograms(bounds)

    def recent(self, since: int = 0) -> list[CallRecord]:
        """The latest calls whose number is higher than `since`, at most `RECENT`, about in the order they ended in.

        Their records are made here and not when calls end, because most are never asked for.
        """
        self._fold()
        with self._folding:
            parts = list(self._recent)
        found: list[CallRecord] = []
        for number, (notes, others) in parts:
            ended: list[tuple[Seen, float]] = [(note, note[3]) for note in notes]
            ended += others
            ended.sort(key=_end)
            first = number - len(ended) + 1
            found += [
                call_of(seen, end + self.epoch, each) for each, (seen, end) in enumerate(ended, first) if each > since
            ]
        return found[-RECENT:]

    def fallbacks(self) -> list[FallbackRecord]:
        """The latest calls that did not run where they were first meant to."""
        self._fold()
        with self._folding:
            return list(self._fallbacks)

    def add_sample(self, sample: MemorySample) -> None:
        """Add a sample of what the process and its devices use now, and look for leaks and throttling in it."""
        with self._folding:
            self._note(self._watch.add_sample(sample, time.time()))

    def anomalies(self) -> list[Anomaly]:
        """The latest anomalies, at most `ANOMALIES`, the newest last."""
        self._fold()
        with self._folding:
            return list(self._anomalies)

    def take_untold(self) -> list[Anomaly]:
        """Anomalies that were found since the last call of this: each is returned once."""
        with self._folding:
            found = list(self._untold)
            self._untold.clear()
        return found

    def _note(self, found: list[Anomaly]) -> None:
        """Remembers anomalies for snapshots, and for the one who reports them."""
        self._anomalies.extend(found)
        self._untold.extend(found)

    @property
    def calls(self) -> int:
        """The number of calls that have ended so far."""
        self._fold()
        return self._number

    def _fold(self, *, wait: bool = True) -> None:
        """Add the buffered calls to the statistics, and look for anomalies in them.

        With `wait=False` it gives up if another thread folds. Calls that end meanwhile stay in the buffer for the next
        time.
        """
        # A call may end in the middle of this on the same thread, by a signal or the garbage collector: it does not
        # wait for itself, and is folded by the next.
        with TryAcquire(self._folding, None if wait else 0.0) as acquired:
            if not acquired:
                return
            # More may come meanwhile, and only this thread takes: what is there now is taken, one by one.
            take_note, take_other = self._notes.popleft, self._others.popleft
            notes = [take_note() for _ in range(len(self._notes))]
            others = [take_other() for _ in range(len(self._others))]
            if not notes and not others:
                return
            seen = batches(notes, others)
            self._statistics.add(seen)
            self._note(self._watch.add_calls(seen, time.time()))
            self._number += len(notes) + len(others)
            self._recent.append((self._number, (notes[-RECENT:], others[-RECENT:])))
            while self._number - self._recent[0][0] >= RECENT:
                self._recent.popleft()
            for one, end in others:
                if isinstance(one, Receipt):
                    found = fallback_of(one, end + self.epoch)
                    if found is not None:
                        self._fallbacks.append(found)


def _end(ended: tuple[Seen, float]) -> float:
    return ended[1]


#: Seconds between two samples while calls come.
PERIOD = 2.0

_log = logging.getLogger("anygpu.observe")


class Sampler:
    """A daemon thread that samples every `period` seconds in which there were calls, until it is closed.

    Anomalies are logged as warnings; `told` is called with each, on the sampler's thread.
    """

    def __init__(
        self,
        observation: Observation,
        sample: Callable[[], MemorySample],
        told: Callable[[Anomaly], object] | None = None,
        period: float = PERIOD,
    ) -> None:
        self._observation = observation
        self._sample = sample
        self._told = told
        self._period = period
        self._over = threading.Event()
        self._calls = 0
        self._thread = threading.Thread(target=self._work, name="anygpu observer", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread, waiting for a sample that is being taken, one period at most."""
        self._over.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(self._period)

    def _work(self) -> None:
        """The loop of the thread. An error is logged, and the next sample is taken as usual."""
        while not self._over.wait(self._period):
            try:
                self.look()
            except Exception:  # noqa: BLE001 - what is observed has to go on
                _log.exception("devices could not be sampled")

    def look(self) -> None:
        """Sample, if there were calls since the last time, and tell what was found."""
        calls = self._observation.calls
        if calls != self._calls:
            self._calls = calls
            self._observation.add_sample(self._sample())
        for anomaly in self._observation.take_untold():
            _log.warning("%s", anomaly.sentence)
            if self._told is not None:
                try:
                    self._told(anomaly)
                except Exception:  # noqa: BLE001 - the user's own
                    _log.exception("the callback for anomalies raised")


# -- makes the `Snapshot` of this process: from its observation, its runtime, and the devices that it has open
#
# Whoever asks gets an answer at once. Readings of devices are a second old at most, and a worker that is busy is not
# waited for: its memory is left out.


#: Readings of devices are not taken more often than this.
READING_SECONDS = 1.0
#: How long a device may take to say what memory is in use; and how old what it said last may be.
PATIENCE, STALE = 0.03, 5.0
_LONGEST_COMMAND = 200


class Describing:
    """Describes this process again and again: makes its snapshots, and the samples in which anomalies are looked for.

    May be used by several threads at once. Devices are read at most once a second, whoever asks.
    """

    def __init__(
        self,
        observation: Observation,
        advice: Callable[[], Sequence[Advice]] = tuple,
        *,
        places: DeviceRegistry = registry,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._observation = observation
        self._advice = advice
        #: Whoever looks at the process, and the sampler, read the same devices.
        self._reading = threading.Lock()
        self._since = time.time()
        self._places = places
        self._clock = clock
        self._reader = UsageReader()
        self._read_at: float | None = None
        self._usage: dict[str, Usage] = {}
        self._memories: dict[str, _MemoryOfDevice] = {}

    def take(self, since: int | None = 0) -> Snapshot:
        """A snapshot with the single calls after that number; `None` for none.

        Takes milliseconds: a device that is busy is waited for `PATIENCE` seconds at most, and its memory left out
        then.
        """
        seen = self._observation
        usage, memory = self._read_devices()
        return Snapshot(
            time=time.time(),
            process=self._process(),
            statistics=seen.summary(),
            calls=() if since is None else tuple(seen.recent(since)),
            fallbacks=tuple(seen.fallbacks()),
            runtime=_health(),
            usage=usage,
            memory=memory,
            anomalies=tuple(seen.anomalies()),
            advice=tuple(self._advice()),
        )

    def sample(self) -> MemorySample:
        """The resident memory of the process and the memory and use of its devices, for finding leaks and throttling.

        The limits are what the process holds plus what is free: what others hold leaves less for it.
        """
        usage, memory = self._read_devices()
        own = host.resident_bytes()
        # What others hold leaves less for this process.
        limits = {"host": own + host.memory_free()}
        for device, held in memory.items():
            free = usage[device].memory_free if device in usage else None
            if free is not None:
                limits[device] = held.bytes + free
        return MemorySample(own, memory, usage, limits)

    def _process(self) -> ProcessInfo:
        """Who this process is, with its processor time and resident memory up to now."""
        return ProcessInfo(
            pid=os.getpid(),
            command=_command(),
            version=__version__,
            since=self._since,
            processor_seconds=time.process_time(),
            memory_bytes=host.resident_bytes(),
        )

    def _read_devices(self) -> tuple[dict[str, Usage], dict[str, DeviceMemoryUse]]:
        """Use and memory by device, at most `READING_SECONDS` old.

        Devices that did not tell their memory are left out.
        """
        with self._reading:
            self._read_again()
            found = {device: each.latest() for device, each in self._memories.items()}
            return self._usage, {device: memory for device, memory in found.items() if memory is not None}

    def _read_again(self) -> None:
        """Read the use and memory of open devices, if the last reading is old enough."""
        now = self._clock()
        if self._read_at is not None and now - self._read_at < READING_SECONDS:
            return
        self._read_at = now
        workers = self._places.open_workers()
        self._usage = self._reader.read([worker.device for worker in workers])
        asked = []
        for worker in workers:
            if worker.device.engine == "numpy":
                continue  # what it has is the memory of the process
            known = self._memories.get(worker.device.id)
            if known is None or known.worker is not worker:
                known = self._memories[worker.device.id] = _MemoryOfDevice(worker, self._clock)
            known.ask()
            asked.append(known)
        latest = time.monotonic() + PATIENCE
        for each in asked:
            each.wait(max(0.0, latest - time.monotonic()))


class _MemoryOfDevice:
    """Asks a worker for its memory. It answers between two calls, so a thread of its own waits for it."""

    def __init__(self, worker: Worker, clock: Callable[[], float]) -> None:
        self.worker = worker
        self._clock = clock
        self._answered = threading.Event()
        self._answered.set()
        self._known: tuple[float, DeviceMemoryUse] | None = None
        self._peak = 0

    def ask(self) -> None:
        """Starts a thread that asks, unless one still waits for an answer or the worker is dead."""
        if not self._answered.is_set() or not self.worker.alive:
            return  # it is busy still, and will answer once
        self._answered.clear()
        try:
            threading.Thread(target=self._ask, name="anygpu-observed-memory", daemon=True).start()
        except RuntimeError:  # there are too many threads, or the process ends
            self._answered.set()

    def wait(self, seconds: float) -> None:
        """Waits until the worker has answered, so many seconds at most."""
        self._answered.wait(seconds)

    def latest(self) -> DeviceMemoryUse | None:
        """The last answer; `None` if it is older than `STALE` seconds, or the worker is dead."""
        known = self._known
        if known is None or self._clock() - known[0] > STALE or not self.worker.alive:
            return None
        return known[1]

    def _ask(self) -> None:
        """The thread's work: stores the answer with its time, and the highest that was seen.

        Errors leave what was known.
        """
        try:
            memory: Memory | None = self.worker.memory()
        except AnyGPUError:
            memory = None  # it was lost, or closed
        if memory is not None and (memory.by_owner or memory.in_use is not None):
            held = sum(memory.by_owner.values()) or memory.in_use or 0
            self._peak = max(self._peak, held)
            self._known = self._clock(), DeviceMemoryUse(bytes=held, peak_bytes=self._peak, by_owner=memory.by_owner)
        self._answered.set()


def _health() -> Health | None:
    """The health of the runtime behind `submit` and `map`; `None` as long as there is none. It creates no runtime."""
    runtime = existing_runtime()
    return None if runtime is None else runtime.health()


def _command() -> str:
    """The command line of this process with its quotes, cut to 200 characters."""
    words = sys.orig_argv or sys.argv
    return shlex.join(words)[:_LONGEST_COMMAND]
