"""An engine as another package would bring it: PoCL by another name, on what anygpu has for engines that compile."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
import numpy as np
import pyopencl as cl

from anygpu.base.typing import HostArray
from anygpu.engines.compiling_engine import CompilingEngine
from anygpu.engines.opencl.device import classify, describe, open_device
from anygpu.engines.opencl.engine import OpenCLDriver
from anygpu.engines.protocol import Memory, failed, verified
from anygpu.errors import AnyGPUError
from anygpu.hardware.device import Device, Unavailable, VerifiedType

_TYPES = {"float32": "float", "int32": "int", "float64": "double", "int64": "long"}
_SOURCE = """
__kernel void verify(__global const {type} *x, __global {type} *y) {{
    size_t i = get_global_id(0);
    y[i] = x[i] * x[i] + 3 * x[i];
}}
"""


class ToyEngine(CompilingEngine):
    name: ClassVar[str] = "toy"
    libraries: ClassVar[tuple[str, ...]] = ("pyopencl",)

    def __init__(self) -> None:
        super().__init__()
        self._found: dict[str, Any] = {}

    def discover(self) -> list[Device | Unavailable]:
        devices = [device for platform in cl.get_platforms() for device in platform.get_devices()]
        self._found = {f"{self.name}:{index}": device for index, device in enumerate(devices)}
        described = (describe(device_id, device) for device_id, device in self._found.items())
        return [msgspec.structs.replace(device, engine=self.name) for device in described]

    def verify(self, device: Device, *, deep: bool = False) -> Device | Unavailable:
        context = cl.Context([self._found[device.id]])
        queue = cl.CommandQueue(context)

        def compute(dtype: VerifiedType, values: HostArray) -> HostArray:
            source = cl.Buffer(context, cl.mem_flags.COPY_HOST_PTR, hostbuf=values)
            target = cl.Buffer(context, cl.mem_flags.WRITE_ONLY, values.nbytes)
            program = cl.Program(context, _SOURCE.format(type=_TYPES[dtype])).build()
            cl.Kernel(program, "verify")(queue, values.shape, None, source, target)
            result = np.empty_like(values)
            cl.enqueue_copy(queue, result, target, is_blocking=True)
            return result

        try:
            return verified(device, compute, deep=deep)
        except cl.Error as error:
            return failed(device, error)

    def open(self, device: Device) -> OpenCLDriver:
        return OpenCLDriver(open_device(self._found[device.id], device, None))

    def memory(self, device: Device) -> Memory:
        return Memory(
            total=int(self._found[device.id].global_mem_size),
            in_use=self.bytes_in_use(device),
            unknown={"free": "OpenCL does not tell how much memory is free"},
        )

    def classify(self, error: BaseException, device: Device) -> AnyGPUError | None:
        return classify(error, device.id, device.limits.get("max-buffer-size"))

    def close(self) -> None:
        self.close_sessions()
        self._found.clear()
