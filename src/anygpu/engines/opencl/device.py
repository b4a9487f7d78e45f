"""OpenCL devices: pyopencl's errors as ours, parts as devices of their own, facts, and opening one.

Status codes become errors of ours. A partition by ANYGPU_OPENCL_SUBDEVICES makes several devices of one. `describe` has
the facts, each with a reason where it is missing, and `open_device` finds out how memory is shared with the host.
"""

from __future__ import annotations

import ctypes
from typing import Any, Literal, NamedTuple

import numpy as np
import pyopencl as cl

from anygpu.engines.codegen.target import Target
from anygpu.engines.opencl import memory
from anygpu.errors import AnyGPUError, DeviceLost, InvalidOption, InvalidProgram, OutOfMemory, TooBig
from anygpu.hardware import host
from anygpu.hardware.device import (
    Device,
    DeviceForm,
    DeviceKind,
    Unavailable,
    normal_pci,
    normal_uuid,
    reasons_for,
    unknown_facts,
)

# -- pyopencl's errors as ours, by their codes


#: Of the extension cl_khr_icd: the loader works, and no driver is registered with it.
PLATFORM_NOT_FOUND = -1001

_NO_MEMORY = frozenset(
    (
        cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE,
        cl.status_code.OUT_OF_RESOURCES,
        cl.status_code.OUT_OF_HOST_MEMORY,
    )
)
_NO_KERNEL = frozenset(
    (
        cl.status_code.BUILD_PROGRAM_FAILURE,
        cl.status_code.COMPILE_PROGRAM_FAILURE,
        cl.status_code.LINK_PROGRAM_FAILURE,
        cl.status_code.INVALID_BUILD_OPTIONS,
        cl.status_code.INVALID_KERNEL_NAME,
    )
)


def is_refusal_of_a_kernel(error: BaseException) -> bool:
    return isinstance(error, cl.Error) and error.code in _NO_KERNEL


def classify(error: BaseException, device: str, limit: int | None = None) -> AnyGPUError | None:
    """One of ours; `None` for the user's own, and for what is one of ours already."""
    if isinstance(error, AnyGPUError):
        return None
    if isinstance(error, MemoryError):
        # Where memory is the host's own, Python and NumPy are the ones who cannot get it.
        return OutOfMemory(device)
    if not isinstance(error, cl.Error):
        return None
    if error.code in _NO_KERNEL:
        return InvalidProgram(f"The OpenCL compiler of {device} refuses a kernel: {error}")
    return by_code(error.code, device, limit)


def by_code(code: int, device: str, limit: int | None = None) -> AnyGPUError | None:
    """Our error for a status code of OpenCL, or `None` where the code tells nothing about the device."""
    if code in _NO_MEMORY:
        return OutOfMemory(device)
    if code == cl.status_code.INVALID_BUFFER_SIZE:
        return TooBig(device, None, limit)
    if code == cl.status_code.DEVICE_NOT_AVAILABLE:
        return DeviceLost(device)
    return None


# -- parts of a device: to keep processors free, and to try out several devices on one machine
# `ANYGPU_OPENCL_SUBDEVICES=2` cuts every device that can be cut into two equal parts; `3,1` takes parts of three and of
# one compute unit and leaves the rest alone, and `3,` takes only one of three. The parts `opencl:0.0`, `opencl:0.1`, …
# stand in the list *instead of* the whole device, because they are the same processors. Without the variable no device
# is cut.


VARIABLE = "ANYGPU_OPENCL_SUBDEVICES"


class Partition(NamedTuple):
    """Either a number of equal parts, or the compute units of each part."""

    equal: int | None = None
    counts: tuple[int, ...] = ()

    def units_of(self, compute_units: int) -> tuple[int, ...] | None:
        """The compute units of each part; `None` when the device has too few."""
        counts = self.counts if self.equal is None else (compute_units // self.equal,) * self.equal
        return counts if all(counts) and sum(counts) <= compute_units else None


def read_partition(text: str) -> Partition | None:
    """What the variable says; `None` when it asks for whole devices."""
    words = [word.strip() for word in text.split(",")]
    if words in ([""], ["0"]):
        return None
    listed = len(words) > 1
    if listed and not words[-1]:
        words.pop()
    if not all(word.isascii() and word.isdigit() and int(word) > 0 for word in words):
        raise InvalidOption(
            f"{VARIABLE} is a number of equal parts, as 2, or the compute units of each, as 3,1 or 3,; got {text!r}."
        )
    numbers = tuple(int(word) for word in words)
    return Partition(counts=numbers) if listed else Partition(equal=numbers[0])


def can_be_cut(device: Any) -> bool:
    kinds = device.partition_properties
    return int(device.partition_max_sub_devices) > 0 and cl.device_partition_property.BY_COUNTS in kinds


def cut(device: Any, units: tuple[int, ...]) -> list[Any]:
    return list(device.create_sub_devices([cl.device_partition_property.BY_COUNTS, *units]))


# -- the facts of a device


#: Of the extensions cl_khr_device_uuid and cl_khr_pci_bus_info, which pyopencl has no names for.
_DEVICE_UUID_KHR = 0x106A
_DEVICE_PCI_BUS_INFO_KHR = 0x410F


def describe(device_id: str, device: Any) -> Device:
    """The record of a device, with a reason for each fact that OpenCL does not tell."""
    form, kind = _form_and_kind(device)
    uuid, pci = _identity(device)
    # OpenCL knows how much memory there is, never how much is free, except where it is the host's own.
    total = int(device.global_mem_size)
    free = min(total, host.memory_free()) if kind == "cpu" else None
    unknown = {"compute_capability": host.NOT_NVIDIA}
    if kind == "cpu":
        unknown |= host.processor_unknowns()
    else:
        unknown |= {
            "memory_free": "OpenCL does not tell how much memory is free",
            "load": "OpenCL does not tell how busy a device is",
            **unknown_facts("this OpenCL driver does not give it", "uuid", "pci"),
        }
    capability = _capability(device)
    known = {"memory_free": free, "uuid": uuid, "pci": pci, "compute_capability": capability}
    return Device(
        id=device_id,
        engine="opencl",
        kind=kind,
        form=form,
        name=device.name.strip(),
        state="usable",
        api=" ".join(device.version.split()[:2]),
        vendor=device.vendor.strip() or None,
        memory_total=total,
        memory_free=free,
        driver=f"{device.platform.name.strip()} {device.driver_version.strip()}",
        compute_capability=capability,
        uuid=uuid,
        pci=pci,
        features=_features(device),
        limits={
            "max-buffer-size": int(device.max_mem_alloc_size),
            "max-compute-workgroup-storage-size": int(device.local_mem_size),
            "max-compute-invocations-per-workgroup": int(device.max_work_group_size),
            "min-storage-buffer-offset-alignment": int(device.mem_base_addr_align) // 8,
            "compute-units": int(device.max_compute_units),
        },
        unknown=reasons_for(unknown, known),
    )


def _form_and_kind(device: Any) -> tuple[DeviceForm, DeviceKind]:
    """Whether a device is software, integrated or a card, and of which kind."""
    if device.type & cl.device_type.CPU:
        return "software", "cpu"
    if device.type & cl.device_type.GPU:
        return ("integrated" if device.host_unified_memory else "discrete"), "gpu"
    return "discrete", "npu"


def _features(device: Any) -> tuple[str, ...]:
    """The names of the features that kernels may use."""
    extensions = device.extensions.split()
    features = {"i64", "timestamps"}  # both belong to every full OpenCL profile
    if "cl_khr_fp16" in extensions:
        features.add("f16")
    if "cl_khr_fp64" in extensions or device.double_fp_config:
        features.add("f64")
    if "cl_khr_subgroups" in extensions or "cl_intel_subgroups" in extensions:
        features.add("subgroups")
    if device.host_unified_memory:
        features.add("unified_memory")
    return tuple(sorted(features))


def _identity(device: Any) -> tuple[str | None, str | None]:
    """UUID and PCI address, from whichever of the vendors' extensions the driver has."""
    extensions = device.extensions.split()
    uuid = pci = None
    if "cl_khr_device_uuid" in extensions:
        uuid = normal_uuid(_raw_info(device, _DEVICE_UUID_KHR, 16))
    if "cl_khr_pci_bus_info" in extensions and (raw := _raw_info(device, _DEVICE_PCI_BUS_INFO_KHR, 16)):
        domain, bus, slot, function = np.frombuffer(raw, np.uint32).tolist()
        pci = f"{domain:04x}:{bus:02x}:{slot:02x}.{function:x}"
    elif "cl_nv_device_attribute_query" in extensions:
        bus, slot = device.pci_bus_id_nv, device.pci_slot_id_nv
        domain = getattr(device, "pci_domain_id_nv", 0)
        pci = f"{domain:04x}:{bus:02x}:{slot >> 3:02x}.{slot & 7:x}"
    elif "cl_amd_device_attribute_query" in extensions:
        topology = device.topology_amd
        pci = f"0000:{topology.bus & 0xFF:02x}:{topology.device:02x}.{topology.function:x}"
    return uuid, normal_pci(pci)


def _capability(device: Any) -> str | None:
    """The compute capability of an NVIDIA card; `None` for others."""
    if "cl_nv_device_attribute_query" in device.extensions.split():
        return f"{device.compute_capability_major_nv}.{device.compute_capability_minor_nv}"
    return None


def _raw_info(device: Any, parameter: int, size: int) -> bytes | None:
    """Ask the loader that pyopencl is linked with; `None` where the system does not resolve it that way."""
    try:
        get_info = ctypes.CDLL(cl._cl.__file__).clGetDeviceInfo
    except (OSError, AttributeError):
        return None
    value = ctypes.create_string_buffer(size)
    get_info.argtypes = [ctypes.c_void_p, ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p]
    status = get_info(device.int_ptr, parameter, size, value, None)
    return value.raw if status == 0 else None


def no_platform(detail: str) -> Unavailable:
    """The report that no OpenCL driver is installed."""
    return Unavailable(
        id="opencl",
        engine="opencl",
        state="absent",
        cause="no_driver",
        reason="The OpenCL loader works, but no OpenCL driver is registered with it.",
        fix="Install your GPU's OpenCL driver; for the CPU: apt install pocl-opencl-icd",
        detail=detail,
    )


def no_device(platforms: list[str]) -> Unavailable:
    """The report that OpenCL drivers find no device."""
    return Unavailable(
        id="opencl",
        engine="opencl",
        state="absent",
        cause="no_device",
        reason=f"OpenCL has a driver ({', '.join(platforms)}), but it finds no device.",
        fix="Check that the driver fits your hardware and that you may open its device node: ls -l /dev/dri",
    )


def too_few_units(device_id: str, device: Any) -> Unavailable:
    """The report that a device cannot be partitioned as the variable asks for."""
    units = int(device.max_compute_units)
    return Unavailable(
        id=device_id,
        engine="opencl",
        state="present",
        cause="failed",
        reason=f"{device.name.strip()} has {units} compute units, too few for the parts that {VARIABLE} asks for.",
        fix=f"Unset {VARIABLE}, or ask for parts that have at most {units} compute units together.",
    )


# -- opening: context, queue, and what code generation must know


#: How the host gets at the device's memory; see `anygpu.engines.opencl.memory`.
HostSharing = Literal["shared", "mapped", "staged"]

#: Known to kernels by these names; whatever else a device has is of no use to them.
_KERNEL_FEATURES = ("f16", "f64", "i64", "subgroups")

#: No OpenCL device is known that stops a loop by itself.
_NO_LOOP_LIMIT = 2**31 - 1


class OpenDevice(NamedTuple):
    """A device with its context and queue, and what drivers need to know of it."""

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
    """The target of code generation: features and limits of a device."""
    return Target(
        dialect="opencl",
        features=tuple(feature for feature in _KERNEL_FEATURES if feature in described.features),
        group_limit=min(int(device.max_work_group_size), int(device.max_work_item_sizes[0])),
        group_memory=int(device.local_mem_size),
        bindings=_bindings(device),
        binding_bytes=int(device.max_mem_alloc_size),
        groups_per_dimension=None,
        loop_limit=_NO_LOOP_LIMIT,
    )


def _bindings(device: Any) -> int:
    """The number of buffers that a kernel's parameters have room for, each with an offset, and one number more."""
    pointer, number = int(device.address_bits) // 8, 4
    return (int(device.max_parameter_size) - number) // (pointer + number)


def _queue_properties(device: Any) -> int:
    return int(device.queue_properties & cl.command_queue_properties.PROFILING_ENABLE)


def _sharing(device: Any, context: Any, queue: Any, alignment: int) -> HostSharing:
    """How a device shares memory with the host: not at all, by mapping, or in place."""
    if not device.host_unified_memory:
        return "staged"
    if device.type & cl.device_type.CPU and memory.works_in_place(context, queue, alignment):
        return "shared"
    return "mapped"


def _build_options(device: Any) -> tuple[str, ...]:
    """Never the ones that trade correctness for speed."""
    # No warnings: what a user's function compares with itself is compared with itself, and PoCL prints that.
    options = ["-cl-std=CL1.2", "-w"]
    if device.single_fp_config & cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT:
        options.append("-cl-fp32-correctly-rounded-divide-sqrt")
    return tuple(options)
