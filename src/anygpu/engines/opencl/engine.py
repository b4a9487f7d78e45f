"""The OpenCL engine: which devices there are, whether they compute, and how to open them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pyopencl as cl

from anygpu.base.typing import HostArray
from anygpu.engines.compiling_engine import CompilingEngine
from anygpu.engines.opencl.device import (
    PLATFORM_NOT_FOUND,
    VARIABLE,
    HostSharing,
    Partition,
    can_be_cut,
    classify,
    cut,
    describe,
    no_device,
    no_platform,
    open_device,
    read_partition,
    too_few_units,
)
from anygpu.engines.opencl.driver import OpenCLDriver
from anygpu.engines.protocol import Memory, failed, verified
from anygpu.errors import AnyGPUError
from anygpu.hardware.device import Device, Unavailable, VerifiedType

_C_TYPES = {"float32": "float", "int32": "int", "float16": "half", "float64": "double", "int64": "long"}
_ENABLE = {"float16": "cl_khr_fp16", "float64": "cl_khr_fp64"}

_KERNEL = """\
{enable}
__kernel void verify(__global const {type} *x, __global {type} *y) {{
    const size_t i = get_global_id(0);
    y[i] = x[i] * x[i] + ({type})3 * x[i];
}}
"""


class OpenCLEngine(CompilingEngine):
    name: ClassVar[str] = "opencl"
    libraries: ClassVar[tuple[str, ...]] = ("pyopencl", "pocl-binary-distribution")

    def __init__(self, subdevices: str | None = None) -> None:
        """`subdevices` is what the variable ANYGPU_OPENCL_SUBDEVICES says, unless it is given."""
        super().__init__()
        self._partition = read_partition(os.environ.get(VARIABLE, "") if subdevices is None else subdevices)
        self._found: dict[str, Any] = {}

    def discover(self) -> list[Device | Unavailable]:
        try:
            platforms = cl.get_platforms()
        except cl.Error as error:
            if error.code == PLATFORM_NOT_FOUND:
                return [no_platform(str(error))]
            raise
        devices = [device for platform in platforms for device in _devices_of(platform)]
        if not devices:
            return [no_device([platform.name.strip() for platform in platforms])]
        described: list[Device | Unavailable] = []
        for index, device in enumerate(devices):
            device_id = f"{self.name}:{index}"
            parts = dict(_parts_of(device_id, device, self._partition))
            self._found |= parts
            described += [describe(each_id, each) for each_id, each in parts.items()]
            if not parts:
                described.append(too_few_units(device_id, device))
        return described

    def verify(self, device: Device, *, deep: bool = False) -> Device | Unavailable:
        try:
            context = cl.Context([self._found[device.id]])
            queue = cl.CommandQueue(context)

            def compute(dtype: VerifiedType, values: HostArray) -> HostArray:
                return _compute(context, queue, dtype, values)

            return verified(device, compute, deep=deep)
        except Exception as error:  # noqa: BLE001 - any failure of a driver is a fact about the device
            return failed(device, error)

    def open(self, device: Device, *, sharing: HostSharing | None = None) -> OpenCLDriver:
        """The device ready for kernels. How the host gets at its memory is found out, unless it is given."""
        return OpenCLDriver(open_device(self._found[device.id], device, sharing))

    def memory(self, device: Device) -> Memory:
        total = int(self._found[device.id].global_mem_size)
        return Memory(
            total=total,
            in_use=self.bytes_in_use(device),
            by_owner=self.bytes_by_owner(device),
            unknown={"free": "OpenCL does not tell how much memory is free"},
        )

    def classify(self, error: BaseException, device: Device) -> AnyGPUError | None:
        return classify(error, device.id, device.limits.get("max-buffer-size"))

    def close(self) -> None:
        self.close_sessions()
        self._found.clear()


def _devices_of(platform: Any) -> list[Any]:
    try:
        return list(platform.get_devices())
    except cl.Error as error:
        if error.code == cl.status_code.DEVICE_NOT_FOUND:
            return []
        raise


def _parts_of(device_id: str, device: Any, partition: Partition | None) -> Iterator[tuple[str, Any]]:
    """The device itself, or its parts; nothing when it is too small for them."""
    if partition is None or not can_be_cut(device):
        yield device_id, device
    elif units := partition.units_of(int(device.max_compute_units)):
        for number, part in enumerate(cut(device, units)):
            yield f"{device_id}.{number}", part


def _compute(context: Any, queue: Any, dtype: VerifiedType, values: HostArray) -> HostArray:
    enable = f"#pragma OPENCL EXTENSION {_ENABLE[dtype]} : enable" if dtype in _ENABLE else ""
    program = cl.Program(context, _KERNEL.format(enable=enable, type=_C_TYPES[dtype])).build()
    flags = cl.mem_flags
    source = cl.Buffer(context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=values)
    target = cl.Buffer(context, flags.WRITE_ONLY, values.nbytes)
    cl.Kernel(program, "verify")(queue, values.shape, None, source, target)
    result = np.empty_like(values)
    cl.enqueue_copy(queue, result, target, is_blocking=True)
    return result
