"""Makes the `Snapshot` of this process: from its observation, its runtime, and the devices that it has open.

Whoever asks gets an answer at once. Readings of devices are a second old at most, and a worker that is busy is not
waited for: its memory is left out.
"""

from __future__ import annotations

import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Sequence

from anygpu._version import __version__
from anygpu.device_arrays.registry import DeviceRegistry, registry
from anygpu.engines.protocol import Memory
from anygpu.errors import AnyGPUError
from anygpu.hardware import host
from anygpu.hardware.usage.reading import UsageReader
from anygpu.hardware.usage.usage import Usage
from anygpu.observe.observation import Observation
from anygpu.observe.snapshot import Advice, DeviceMemory, Process, Snapshot
from anygpu.observe.watching import Sample
from anygpu.runtime.health import Health
from anygpu.runtime.runtime import existing_runtime
from anygpu.workers.worker import Worker

#: Readings of devices are not taken more often than this.
READING_SECONDS = 1.0
#: How long a device may take to say what memory is in use; and how old what it said last may be.
PATIENCE, STALE = 0.03, 5.0
_LONGEST_COMMAND = 200


class Describing:
    """Describes this process again and again."""

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
        """A snapshot with the single calls after that number; `None` for none."""
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

    def sample(self) -> Sample:
        """A sample of what is watched for leaks and throttling."""
        usage, memory = self._read_devices()
        own = host.resident_bytes()
        # What others hold leaves less for this process.
        limits = {"host": own + host.memory_free()}
        for device, held in memory.items():
            free = usage[device].memory_free if device in usage else None
            if free is not None:
                limits[device] = held.bytes + free
        return Sample(own, memory, usage, limits)

    def _process(self) -> Process:
        return Process(
            pid=os.getpid(),
            command=_command(),
            version=__version__,
            since=self._since,
            processor_seconds=time.process_time(),
            memory_bytes=host.resident_bytes(),
        )

    def _read_devices(self) -> tuple[dict[str, Usage], dict[str, DeviceMemory]]:
        with self._reading:
            self._read_again()
            found = {device: each.latest() for device, each in self._memories.items()}
            return self._usage, {device: memory for device, memory in found.items() if memory is not None}

    def _read_again(self) -> None:
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
        self._known: tuple[float, DeviceMemory] | None = None
        self._peak = 0

    def ask(self) -> None:
        if not self._answered.is_set() or not self.worker.alive:
            return  # it is busy still, and will answer once
        self._answered.clear()
        try:
            threading.Thread(target=self._ask, name="anygpu-observed-memory", daemon=True).start()
        except RuntimeError:  # there are too many threads, or the process ends
            self._answered.set()

    def wait(self, seconds: float) -> None:
        self._answered.wait(seconds)

    def latest(self) -> DeviceMemory | None:
        known = self._known
        if known is None or self._clock() - known[0] > STALE or not self.worker.alive:
            return None
        return known[1]

    def _ask(self) -> None:
        try:
            memory: Memory | None = self.worker.memory()
        except AnyGPUError:
            memory = None  # it was lost, or closed
        if memory is not None and (memory.by_owner or memory.in_use is not None):
            held = sum(memory.by_owner.values()) or memory.in_use or 0
            self._peak = max(self._peak, held)
            self._known = self._clock(), DeviceMemory(bytes=held, peak_bytes=self._peak, by_owner=memory.by_owner)
        self._answered.set()


def _health() -> Health | None:
    runtime = existing_runtime()
    return None if runtime is None else runtime.health()


def _command() -> str:
    words = sys.orig_argv or sys.argv
    return shlex.join(words)[:_LONGEST_COMMAND]
