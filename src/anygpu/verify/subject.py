"""The device that is verified, opened as it is for a user's calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from anygpu.base.typing import HostArray
from anygpu.device_arrays.handle import DeviceHandle
from anygpu.device_arrays.registry import DeviceRegistry, registry
from anygpu.engines.catalogue import entry_of
from anygpu.engines.isolation import Isolation
from anygpu.hardware.device import Device
from anygpu.placement.known import Known
from anygpu.placement.machine import machine_of
from anygpu.placement.offload import Calls, Result
from anygpu.placement.options import options
from anygpu.placement.planner import Planner
from anygpu.program.graph import Program
from anygpu.workers.worker import Ran, Worker

#: Seconds after which a case counts as hung. Compiling a large program takes some of them.
CASE_SECONDS = 60.0


class _PlannerOfOne(Planner):
    """Knows one device, so that no other is probed while it is verified."""

    def __init__(self, device: Device, places: DeviceRegistry) -> None:
        super().__init__(known=places)
        self._machine = machine_of((device,), ())


class Subject:
    """One device. Its worker is a process of its own, whatever the engine, so that a crash is a finding."""

    def __init__(self, device: Device, *, places: DeviceRegistry = registry, timeout: float = CASE_SECONDS) -> None:
        self.device = device
        self.places = places
        self.timeout = timeout
        #: NumPy itself cannot crash, and is in this process anyway.
        self.isolation: Isolation = "thread" if entry_of(device.id).probe_in == "here" else "process"
        self._planner = _PlannerOfOne(device, places)
        self._options = options(on=device.id, fallback="raise", check="off", isolation=self.isolation, timeout=timeout)
        #: By function, so that a second call knows what the first has learnt.
        self._calls: dict[Callable[..., Any], Calls] = {}

    @property
    def worker(self) -> Worker:
        """The open worker; one that has died is replaced."""
        return self.places.worker(self.device.id, isolation=self.isolation)

    @property
    def handle(self) -> DeviceHandle:
        """The device as arrays use it."""
        return self.places.find(self.device.id, isolation=self.isolation)

    def run(self, program: Program, inputs: Sequence[HostArray]) -> Ran:
        """Run a program; what the device lacks runs on the host, and is listed in the result."""
        return self.worker.run(program, inputs, timeout=self.timeout)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Result:
        """Call a function as `anygpu.run` does with `on=` and `fallback="raise"`."""
        calls = self._calls.get(function)
        if calls is None:
            calls = self._calls[function] = Calls(function, Known(self._options), lambda: self._planner)
        return calls.run(*arguments)
