"""What engines have in common whose buffers are NumPy's own arrays: nothing is copied that need not be."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from anygpu.base.typing import HostArray
from anygpu.engines.protocol import Lack, Memory
from anygpu.errors import AnyGPUError, OutOfMemory
from anygpu.hardware import host
from anygpu.hardware.device import Device
from anygpu.program.graph import Program


class HostArrays:
    """The part of an engine that handles arrays in the memory of this process."""

    name: ClassVar[str]

    def _processor(self, api: str) -> Device:
        """The processor as the one device of this engine."""
        return Device(
            id=self.name,
            engine=self.name,
            kind="cpu",
            form="host",
            name=host.processor_name(),
            state="usable",
            api=api,
            memory_total=host.memory_total(),
            memory_free=host.memory_free(),
            features=("f16", "f64", "i64", "unified_memory"),
            unknown={**host.processor_unknowns(), "driver": host.NO_DRIVER},
        )

    def supports(self, program: Program, device: Device) -> list[Lack]:
        return [
            Lack(position, f"NumPy has no {spec.dtype}")
            for position, spec in enumerate(program.specs)
            if spec.dtype == "bfloat16"
        ]

    def upload(self, values: HostArray, device: Device) -> HostArray:
        return np.array(values, order="C")

    def borrow(self, values: HostArray, device: Device) -> HostArray:
        return np.asarray(values)

    def download(self, buffer: HostArray) -> HostArray:
        return buffer

    def native(self, buffer: HostArray) -> HostArray:
        # A broadcast is read-only, which older consumers of DLPack cannot be told; an array that runs backwards makes
        # torch abort the process.
        exportable = buffer.flags.writeable and all(stride >= 0 for stride in buffer.strides)
        return buffer if exportable else buffer.copy()

    def adopt(self, array: Any, device: Device) -> HostArray:
        return np.from_dlpack(array)

    def synchronize(self, device: Device) -> None:
        pass

    def memory(self, device: Device) -> Memory:
        return Memory(total=host.memory_total(), free=host.memory_free())

    def classify(self, error: BaseException, device: Device) -> AnyGPUError | None:
        if isinstance(error, MemoryError):
            return OutOfMemory(device.id, free=host.memory_free())
        return None
