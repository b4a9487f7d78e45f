"""NumPy: the reference and the floor. It is always there."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from anygpu.engines.protocol import Memory, verified
from anygpu.errors import AnyGPUError, OutOfMemory
from anygpu.hardware import host
from anygpu.hardware.device import Device, Unavailable
from anygpu.hardware.verification import Values, VerifiedType


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
        def compute(dtype: VerifiedType, values: Values) -> Values:
            return np.asarray(values * values + np.asarray(3, dtype) * values)

        return verified(device, compute, deep=deep)

    def memory(self, device: Device) -> Memory:
        return Memory(total=host.memory_total(), free=host.memory_free())

    def classify(self, error: BaseException, device: Device) -> AnyGPUError | None:
        if isinstance(error, MemoryError):
            return OutOfMemory(device.id, free=host.memory_free())
        return None

    def close(self) -> None:
        pass
