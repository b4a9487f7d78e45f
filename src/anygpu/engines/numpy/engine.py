"""NumPy: the reference and the floor. It is always there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from anygpu._typing import HostArray
from anygpu.engines.numpy import lowering
from anygpu.engines.protocol import Lack, Memory, verified
from anygpu.errors import AnyGPUError, OutOfMemory
from anygpu.hardware import host
from anygpu.hardware.device import Device, Unavailable
from anygpu.hardware.verification import VerifiedType
from anygpu.program.graph import Program


class NumpyEngine:
    name: ClassVar[str] = "numpy"

    def discover(self) -> list[Device | Unavailable]:
        return [
            Device(
                id="numpy",
                engine=self.name,
                kind="cpu",
                form="host",
                name=host.processor_name(),
                state="usable",
                api="NumPy " + np.__version__,
                memory_total=host.memory_total(),
                memory_free=host.memory_free(),
                features=("f16", "f64", "i64", "unified_memory"),
                unknown={**host.processor_unknowns(), "driver": host.NO_DRIVER},
            )
        ]

    def verify(self, device: Device, *, deep: bool = False) -> Device | Unavailable:
        def compute(dtype: VerifiedType, values: HostArray) -> HostArray:
            return np.asarray(values * values + np.asarray(3, dtype) * values)

        return verified(device, compute, deep=deep)

    def supports(self, program: Program, device: Device) -> list[Lack]:
        return [
            Lack(position, f"NumPy has no {spec.dtype}")
            for position, spec in enumerate(program.specs)
            if spec.dtype == "bfloat16"
        ]

    def compile(self, program: Program, device: Device) -> Program:
        return program

    def upload(self, values: HostArray, device: Device) -> HostArray:
        return np.array(values, order="C")

    def borrow(self, values: HostArray, device: Device) -> HostArray:
        return np.asarray(values)

    def download(self, buffer: HostArray) -> HostArray:
        return buffer

    def execute(self, executable: Program, buffers: Sequence[HostArray]) -> list[HostArray]:
        return lowering.run(executable, buffers)

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

    def close(self) -> None:
        pass
