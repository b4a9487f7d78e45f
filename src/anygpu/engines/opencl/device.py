"""An OpenCL device, opened: its context, its queue, and what code generation must know of it."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import pyopencl as cl

from anygpu.codegen.target import Target
from anygpu.engines.opencl.memory import works_in_place
from anygpu.hardware.device import Device

#: How the host gets at the device's memory; see `anygpu.engines.opencl.memory`.
HostSharing = Literal["shared", "mapped", "staged"]

#: Known to kernels by these names; whatever else a device has is of no use to them.
_KERNEL_FEATURES = ("f16", "f64", "i64", "subgroups")

#: No OpenCL device is known that stops a loop by itself.
_NO_LOOP_LIMIT = 2**31 - 1


class OpenDevice(NamedTuple):
    id: str
    device: Any
    context: Any
    queue: Any
    target: Target
    sharing: HostSharing
    #: In bytes: where a part of a buffer may begin.
    alignment: int
    build_options: tuple[str, ...]

    @property
    def largest_block(self) -> int:
        return int(self.device.max_mem_alloc_size)

    def another_queue(self) -> Any:
        """Another in-order queue, for transfers beside the kernels of the first."""
        return cl.CommandQueue(self.context)


def open_device(device: Any, described: Device, sharing: HostSharing | None = None) -> OpenDevice:
    """`sharing` is found out when it is not given."""
    context = cl.Context([device])
    # Profiling costs nothing that could be measured: 372 µs for 50 kernels on PoCL, against 359 µs without it.
    queue = cl.CommandQueue(context, properties=_queue_properties(device))
    alignment = max(int(device.mem_base_addr_align) // 8, 1)
    return OpenDevice(
        id=described.id,
        device=device,
        context=context,
        queue=queue,
        target=target_of(device, described),
        sharing=sharing or _sharing(device, context, queue, alignment),
        alignment=alignment,
        build_options=_build_options(device),
    )


def target_of(device: Any, described: Device) -> Target:
    return Target(
        dialect="opencl",
        features=tuple(feature for feature in _KERNEL_FEATURES if feature in described.features),
        group_limit=min(int(device.max_work_group_size), int(device.max_work_item_sizes[0])),
        group_memory=int(device.local_mem_size),
        bindings=_bindings(device),
        binding_bytes=int(device.max_mem_alloc_size),
        groups_per_dimension=None,
        loop_limit=_NO_LOOP_LIMIT,
        scalar_invocations=bool(device.type & cl.device_type.CPU),
        vector_width=max(int(device.native_vector_width_float), 1),
    )


def _bindings(device: Any) -> int:
    """The number of buffers that a kernel's parameters have room for, each with an offset, and one number more."""
    pointer, number = int(device.address_bits) // 8, 4
    return (int(device.max_parameter_size) - number) // (pointer + number)


def _queue_properties(device: Any) -> int:
    return int(device.queue_properties & cl.command_queue_properties.PROFILING_ENABLE)


def _sharing(device: Any, context: Any, queue: Any, alignment: int) -> HostSharing:
    if not device.host_unified_memory:
        return "staged"
    if device.type & cl.device_type.CPU and works_in_place(context, queue, alignment):
        return "shared"
    return "mapped"


def _build_options(device: Any) -> tuple[str, ...]:
    """Never the ones that trade correctness for speed."""
    # No warnings: what a user's function compares with itself is compared with itself, and PoCL prints that.
    options = ["-cl-std=CL1.2", "-w"]
    if device.single_fp_config & cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT:
        options.append("-cl-fp32-correctly-rounded-divide-sqrt")
    return tuple(options)
