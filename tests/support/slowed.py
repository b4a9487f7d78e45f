"""A worker that can be made slower while it works, for tests of placement."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from anygpu.engines import Isolation
from anygpu.hardware.device import Device, Unavailable
from anygpu.program.graph import Program
from anygpu.receipts.receipt import Phases
from anygpu.workers.device_arrays.registry import DeviceRegistry, registry
from anygpu.workers.worker import Argument, Ran, Worker


class ProcessorTime:
    """A clock of the processor time of this process, and of what it is told: nothing that others do makes it go on."""

    def __init__(self) -> None:
        self._told = 0.0

    def __call__(self) -> float:
        return time.process_time() + self._told

    def advance(self, seconds: float) -> None:
        self._told += seconds

    def seconds(self, function: Callable[..., Any], *arguments: Any) -> float:
        """What a call of it takes."""
        taken = []
        for _ in range(3):
            begin = self()
            function(*arguments)
            taken.append(self() - begin)
        return min(taken)


class Slowed:
    """Another worker, whose runs take `factor` times as long. The factor may be changed at any moment.

    With a clock of processor time each run takes `seconds` times the factor: the device itself is in another process.
    """

    def __init__(
        self, worker: Worker, factor: float = 1.0, clock: ProcessorTime | None = None, seconds: float = 0.0
    ) -> None:
        self._worker = worker
        self.factor = factor
        self._clock, self._seconds = clock, seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def run(self, program: Program, arguments: Sequence[Argument], **options: Any) -> Ran:
        begin = time.perf_counter()
        ran = self._worker.run(program, arguments, **options)
        if self._clock is not None:
            taken = self._seconds * self.factor
            self._clock.advance(taken)
            return ran._replace(phases=Phases(run=taken))
        more = (time.perf_counter() - begin) * (self.factor - 1)
        if more > 0:
            time.sleep(more)
            ran = ran._replace(phases=msgspec.structs.replace(ran.phases, run=ran.phases.run + more))
        return ran


class SlowedRegistry(DeviceRegistry):
    """NumPy, and one more device of this machine that can be made slower."""

    def __init__(self, device: str, clock: ProcessorTime | None = None, seconds: float = 0.0) -> None:
        super().__init__()
        self._names = ("numpy", device)
        self.slowed = Slowed(registry.worker(device), clock=clock, seconds=seconds)

    def devices(self, *, low_priority: bool = False) -> list[Device]:
        return [device for device in registry.devices() if device.id in self._names]

    def unavailable(self) -> list[Unavailable]:
        return []

    def worker(self, device_id: str, *, isolation: Isolation | None = None) -> Worker:
        return self.slowed if device_id == self._names[1] else registry.worker(device_id, isolation=isolation)

    def explorer(self, device_id: str) -> Worker:
        return self.worker(device_id)

    def is_open(self, device_id: str) -> bool:
        return True
