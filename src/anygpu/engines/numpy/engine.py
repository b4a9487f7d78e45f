"""NumPy: the reference and the floor. It is always there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from anygpu.base.typing import HostArray
from anygpu.engines.host_arrays import HostArrays
from anygpu.engines.numpy import lowering
from anygpu.engines.protocol import verified
from anygpu.hardware.device import Device, Unavailable, VerifiedType
from anygpu.program.graph import Program


class NumpyEngine(HostArrays):
    name: ClassVar[str] = "numpy"

    def discover(self) -> list[Device | Unavailable]:
        return [self._processor("NumPy " + np.__version__)]

    def verify(self, device: Device, *, deep: bool = False) -> Device | Unavailable:
        def compute(dtype: VerifiedType, values: HostArray) -> HostArray:
            return np.asarray(values * values + np.asarray(3, dtype) * values)

        return verified(device, compute, deep=deep)

    def compile(self, program: Program, device: Device) -> Program:
        return program

    def execute(self, executable: Program, buffers: Sequence[HostArray]) -> list[HostArray]:
        return lowering.run(executable, buffers)

    def close(self) -> None:
        pass
