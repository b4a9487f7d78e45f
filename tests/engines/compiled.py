"""An engine that compiles, opened on the device of this machine, and functions run there as programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np

from anygpu.array.trace.tracing import record
from anygpu.base.typing import HostArray
from anygpu.engines.codegen.target import Target
from anygpu.engines.compiling_session import DeviceArray, Session
from anygpu.engines.driver import Counters
from anygpu.engines.opencl.engine import OpenCLEngine
from anygpu.engines.webgpu.engine import WebGPUEngine
from anygpu.hardware.device import Device
from anygpu.program.graph import Program
from anygpu.program.primitives import Spec

NAMES = ("webgpu", "opencl")


class Running:
    """One open engine."""

    def __init__(self, name: str) -> None:
        self.engine: Any = WebGPUEngine() if name == "webgpu" else OpenCLEngine()
        self.device: Device = next(each for each in self.engine.discover() if isinstance(each, Device))

    @property
    def session(self) -> Session:
        found: Session = self.engine.session(self.device)
        return found

    @property
    def counters(self) -> Counters:
        return msgspec.structs.replace(self.session.counters)

    def up(self, values: HostArray) -> DeviceArray:
        found: DeviceArray = self.engine.upload(np.asarray(values), self.device)
        return found

    def down(self, array: DeviceArray) -> HostArray:
        found: HostArray = self.engine.download(array)
        return found

    def execute(self, program: Program, arrays: Sequence[DeviceArray]) -> list[DeviceArray]:
        found: list[DeviceArray] = self.engine.execute(self.engine.compile(program, self.device), arrays)
        return found

    def run(self, function: Callable[..., Any], *arrays: DeviceArray) -> list[DeviceArray]:
        return self.execute(record(function, *(array.spec for array in arrays)), arrays)

    def values(self, function: Callable[..., Any], *arrays: HostArray) -> list[HostArray]:
        """There and back."""
        return [self.down(each) for each in self.run(function, *(self.up(each) for each in arrays))]

    def narrow_target(self, **limits: Any) -> Target:
        """Let programs be compiled as for a device that can do less."""
        driver: Any = self.session.driver
        target: Target = msgspec.structs.replace(driver.target, **limits)
        if hasattr(driver, "_target"):
            driver._target = target
        else:
            driver._opened = msgspec.structs.replace(driver._opened, target=target)
        return target


@contextmanager
def running(name: str) -> Iterator[Running]:
    opened = Running(name)
    try:
        yield opened
    finally:
        opened.engine.close()


def spec_of(values: HostArray) -> Spec:
    return Spec(values.shape, values.dtype.name)  # type: ignore[arg-type]
