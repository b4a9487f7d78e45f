"""Devices that fail for real, and are killed: for tests of whatever has to survive that.

`FaultyRegistry` has one device whose worker lives in a child process and follows a `Schedule` of faults, beside healthy
ones. `Killer` sends SIGKILL to that worker at chosen points of the work, and `limited` takes a process's memory away.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import resource
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import psutil

from anygpu.engines.catalogue import EngineEntry, catalogue
from anygpu.errors import DeviceUnavailable
from anygpu.hardware.device import Device, Unavailable
from anygpu.workers.device_arrays.registry import DeviceRegistry
from anygpu.workers.process import ProcessWorker
from tests.support.fault_schedule import Schedule

#: The manifest of SwiftShader's Vulkan driver, which comes with Debian's chromium.
SWIFTSHADER = Path("/usr/lib/chromium/vk_swiftshader_icd.json")

#: The repository, by which children find this package: they have none of their parent's paths.
_ROOT = str(Path(__file__).parents[2])

#: How long something may take that takes a moment on a machine with nothing else to do.
_PATIENCE = 120.0


class FaultyRegistry(DeviceRegistry):
    """One device with faults, in a child process, and healthy devices of the engines in `others`."""

    def __init__(self, engine: str = "webgpu", *, drivers: Path | None = None, others: Sequence[str] = ()) -> None:
        """`drivers` names the Vulkan driver that the device is to be of, when it is not the machine's own."""
        super().__init__()
        _let_children_import_tests()
        if drivers is not None and not drivers.is_file():
            raise DeviceUnavailable(f'on="{engine}"', [f"{drivers} is not there: install what brings it."])
        self.schedule = Schedule()
        self.device = f"{engine}:0"
        self._engines = (engine, "numpy", *others)
        options = {"engine": engine, "schedule": str(self.schedule.path)}
        if drivers is not None:
            options["drivers"] = str(drivers)
        self._options = options

    def _with_faults(self, entry: EngineEntry) -> EngineEntry:
        if entry.name != self._engines[0]:
            return entry
        target = "tests.support.faulty_engines:faulty_engine"
        return msgspec.structs.replace(entry, target=target, options=self._options)

    def _everything(self, *, low_priority: bool = False) -> list[Device | Unavailable]:
        return self._probe([entry for entry in catalogue() if entry.name in self._engines], low_priority=low_priority)

    def _probe_new(self, entries: Sequence[EngineEntry], *, low_priority: bool) -> None:
        super()._probe_new([self._with_faults(entry) for entry in entries], low_priority=low_priority)
        # A driver of Vulkan that was asked for comes first; the others may be seen through another interface.
        name = self._engines[0]
        if name in self._probed:
            self._probed[name] = [item for item in self._probed[name] if item.id in (self.device, name)]

    def _entry_to_open(self, device: Device) -> EngineEntry:
        entry = super()._entry_to_open(device)
        return self._with_faults(entry) if device.id == self.device else entry

    @property
    def victim(self) -> ProcessWorker | None:
        """The worker of the faulty device, if it is alive. Never opens one."""
        worker = self._workers.get((self.device, "process"))
        return worker if isinstance(worker, ProcessWorker) and worker.alive else None

    def bytes_in_use(self, patience: float = _PATIENCE) -> int:
        """What arrays and temporaries take on the faulty device, as its engine counts; asks its worker.

        Until that is nothing, or for so many seconds: the runtime may be finding out about the device meanwhile.
        """
        end = time.monotonic() + patience
        while True:
            self.worker(self.device).memory()
            in_use = int(self.schedule.head["bytes_in_use"][0])
            if not in_use or time.monotonic() > end:
                return in_use
            time.sleep(0.05)

    def close(self) -> None:
        super().close()
        self.schedule.close()


def _let_children_import_tests() -> None:
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if _ROOT not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, paths), _ROOT])


class Killer:
    """Kills the worker of a faulty device, at chosen numbers of finished tasks and at random moments after them."""

    def __init__(self, known: FaultyRegistry, at: Sequence[int], *, seed: int, spread: float = 0.005) -> None:
        """`at`: how many tasks are done when it strikes; within `spread` seconds, so that it hits what runs then."""
        self._known = known
        self._at = sorted(at)
        self._delays = np.random.default_rng(seed).uniform(0, spread, len(self._at))
        self._finished = self._struck = 0
        self._changed = threading.Condition()
        self._closed = False
        #: When each was killed, by `time.monotonic`.
        self.moments: list[float] = []
        self._thread = threading.Thread(target=self._work, name="anygpu-killer", daemon=True)
        self._thread.start()

    def finished(self, _: object = None) -> None:
        """One task more is done; fits `Future.add_done_callback`."""
        with self._changed:
            self._finished += 1
            self._changed.notify_all()

    def wait(self, at: int) -> None:
        """Until it has struck for every number of finished tasks up to `at`.

        Whoever submits tasks waits for it now and then: else they might all be done before a busy machine lets it
        strike, and one task might meet three strikes.
        """
        due = bisect.bisect_right(self._at, at)
        with self._changed:
            if not self._changed.wait_for(lambda: self._struck >= due, _PATIENCE):
                raise TimeoutError(f"it has struck {self._struck} times, and not {due}")

    def _work(self) -> None:
        for at, delay in zip(self._at, self._delays, strict=True):
            with self._changed:
                self._changed.wait_for(lambda at=at: self._closed or self._finished >= at)  # type: ignore[misc]
                if self._closed:
                    return
            time.sleep(delay)
            victim = self._next_victim()
            if victim is not None:
                self.moments.append(time.monotonic())
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim.process_id, signal.SIGKILL)
            with self._changed:
                self._struck += 1
                self._changed.notify_all()

    def _next_victim(self) -> ProcessWorker | None:
        end = time.monotonic() + _PATIENCE
        while not self._closed and time.monotonic() < end:
            victim = self._known.victim
            if victim is not None:
                return victim
            time.sleep(0.002)
        return None

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()


@contextlib.contextmanager
def limited(process_id: int, room: int) -> Iterator[None]:
    """Meanwhile the process may have no more than `room` bytes beyond what it has now."""
    mapped = psutil.Process(process_id).memory_info().vms
    soft, hard = resource.prlimit(process_id, resource.RLIMIT_AS)
    resource.prlimit(process_id, resource.RLIMIT_AS, (mapped + room, hard))
    try:
        yield
    finally:
        # It may not have lived that long.
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(process_id, resource.RLIMIT_AS, (soft, hard))
