"""Fakes for tests: an engine, a clock and processors that do as a test says.

`FakeEngine` has no library behind it: its devices are scripted, and its faults are real. Programs run in NumPy,
whatever the device claims to be. A `hang` really blocks, an `abort` really kills the process. Run faulty devices
through `FakeEngine.entry()`, which makes the probe happen in a child, as it does for real engines.

`ManualClock` only moves when it is told to, and `FakeProcessors` are as busy as a test says.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from anygpu.base.disturbance import Reading
from anygpu.base.typing import HostArray
from anygpu.engines.catalogue import EngineEntry
from anygpu.engines.numpy import lowering
from anygpu.engines.protocol import Lack, Memory, verified
from anygpu.errors import AnyGPUError, DeviceLost, OutOfMemory
from anygpu.hardware.device import Device, DeviceKind, Unavailable, VerifiedType, unknown_facts
from anygpu.program.graph import Program

#: hang          blocks for ever                      abort     dies of SIGABRT
#: segfault      dies of SIGSEGV                      exit      leaves with code 3, saying nothing
#: print         writes to standard output, harmless  garbage   writes nonsense where messages belong
#: wrong_result  computes one value wrongly           raise     raises RuntimeError
Fault = Literal["hang", "abort", "segfault", "exit", "print", "garbage", "wrong_result", "raise"]


class FakeDeviceLost(Exception):
    """The error that the fake's "library" raises when its device is gone."""


def fake_device(
    device_id: str = "fake:0", *, kind: DeviceKind = "gpu", memory: int = 8 << 30, **facts: object
) -> Device:
    """A plausible device; any field of `Device` can be given. Fields that are left out and unknown have a reason."""
    unknown = unknown_facts("it is a fake", "driver", "compute_capability", "load", "uuid", "pci")
    usual = {
        "id": device_id,
        "engine": device_id.partition(":")[0],
        "kind": kind,
        "form": "discrete" if kind == "gpu" else "host",
        "name": f"Fake {kind.upper()}",
        "state": "usable",
        "api": "Fake",
        "memory_total": memory,
        "memory_free": memory,
    }
    known = {**usual, **facts}
    reasons = {name: why for name, why in unknown.items() if known.get(name) is None}
    return Device(**{"unknown": reasons, **known})  # type: ignore[arg-type]


class FakeEngine:
    """Devices and faults from a script.

    A fault's key says when it strikes: a device id while that device is verified, "discover" while devices are listed,
    and "execute fake:0" while a program runs on the device of that id.
    """

    def __init__(
        self,
        name: str = "fake",
        devices: Sequence[Device | Unavailable] | None = None,
        faults: Mapping[str, Fault] | None = None,
    ) -> None:
        self.name = name
        self.closed = False
        self._devices = [fake_device(f"{name}:0")] if devices is None else list(devices)
        self._faults = dict(faults or {})

    def entry(self) -> EngineEntry:
        """The entry that the catalogue would have, so that a child process can make the same engine."""
        script = _Script(name=self.name, devices=tuple(self._devices), faults=self._faults)
        return EngineEntry(
            name=self.name,
            target="anygpu.testing.fakes:scripted",
            options={"script": msgspec.json.encode(script).decode()},
        )

    def discover(self) -> list[Device | Unavailable]:
        _suffer(self._faults.get("discover"))
        return list(self._devices)

    def verify(self, device: Device, *, deep: bool = False) -> Device | Unavailable:
        fault = self._faults.get(device.id)
        _suffer(fault)

        def compute(dtype: VerifiedType, values: HostArray) -> HostArray:
            result = values * values + np.asarray(3, dtype) * values
            if fault == "wrong_result":
                result[-1] += 1
            return np.asarray(result)

        return verified(device, compute, deep=deep)

    def supports(self, program: Program, device: Device) -> list[Lack]:
        return [
            Lack(position, f"the fake has no {spec.dtype}")
            for position, spec in enumerate(program.specs)
            if spec.dtype == "bfloat16"
        ]

    def compile(self, program: Program, device: Device) -> FakeExecutable:
        return FakeExecutable(program=program, device=device.id)

    def upload(self, values: HostArray, device: Device) -> HostArray:
        return np.array(values, order="C")

    def download(self, buffer: HostArray) -> HostArray:
        return buffer

    def execute(self, executable: FakeExecutable, buffers: Sequence[HostArray]) -> list[HostArray]:
        fault = self._faults.get(f"execute {executable.device}")
        _suffer(fault)
        results = lowering.run(executable.program, buffers)
        return [_spoilt(each) for each in results] if fault == "wrong_result" else results

    def native(self, buffer: HostArray) -> HostArray:
        return buffer

    def adopt(self, array: Any, device: Device) -> HostArray:
        return np.from_dlpack(array)

    def synchronize(self, device: Device) -> None:
        pass

    def memory(self, device: Device) -> Memory:
        return Memory(total=device.memory_total, free=device.memory_free)

    def classify(self, error: BaseException, device: Device) -> AnyGPUError | None:
        if isinstance(error, FakeDeviceLost):
            return DeviceLost(device.id)
        if isinstance(error, MemoryError):
            return OutOfMemory(device.id)
        return None

    def close(self) -> None:
        self.closed = True


class FakeExecutable(msgspec.Struct, frozen=True):
    program: Program
    device: str


def _spoilt(values: HostArray) -> HostArray:
    """One element of another value."""
    result = np.array(values)
    if result.size:
        result.flat[-1] = not result.flat[-1]
    return result


class _Script(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    devices: tuple[Device | Unavailable, ...]
    faults: dict[str, Fault]


def scripted(script: str) -> FakeEngine:
    """The engine that `FakeEngine.entry` described, in another process."""
    told = msgspec.json.decode(script, type=_Script)
    return FakeEngine(told.name, told.devices, told.faults)


def _suffer(fault: Fault | None) -> None:
    """Does what the fault says, in this process."""
    match fault:
        case "hang":
            # Waits in C without giving up the interpreter's lock, as a wedged driver call does.
            ctypes.PyDLL(None).pause()
            threading.Event().wait()
        case "abort":
            os.abort()
        case "segfault":
            ctypes.string_at(0)
        case "exit":
            os._exit(3)
        case "print":
            os.write(1, b"a chatty driver\n")
        case "garbage":
            _write_into_the_channel(b"\x00\xff{ this is not a message\n")
        case "raise":
            raise RuntimeError("the fake driver is in a bad mood")
        case "wrong_result" | None:
            pass


def _write_into_the_channel(data: bytes) -> None:
    """Into every pipe that is open beside the standard three; one of them carries the messages."""
    for name in os.listdir("/proc/self/fd") if sys.platform == "linux" else ():  # noqa: PTH208 - only numbers
        descriptor = int(name)
        link = Path(f"/proc/self/fd/{name}")
        if descriptor > 2 and link.is_fifo():
            os.write(descriptor, data)


class ManualClock:
    """Stands in for `time.perf_counter` and `time.monotonic`: call it to read it."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: float) -> float:
        """Moves the clock, and returns the new time. Raises `ValueError` for a negative number of seconds."""
        if seconds < 0:
            raise ValueError(f"time does not run backwards: {seconds}")
        self._now += seconds
        return self._now


# -- processors that are as busy as a test says


class FakeProcessors:
    """Stands in for `base.disturbance.read_processors`: our threads wait for the share `busy` of the clock's time.

    Setting `busy` counts from that moment of the clock on.
    """

    def __init__(self, clock: Callable[[], float], busy: float = 0.0) -> None:
        self._clock = clock
        self._busy = busy
        self._last = clock()
        self._processor = self._waiting = 0.0

    @property
    def busy(self) -> float:
        return self._busy

    @busy.setter
    def busy(self, share: float) -> None:
        self()
        self._busy = share

    def __call__(self) -> Reading:
        now = self._clock()
        passed, self._last = now - self._last, now
        self._waiting += passed * self._busy
        self._processor += passed * (1.0 - self._busy)
        return Reading(now, self._processor, self._waiting)
