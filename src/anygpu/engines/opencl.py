"""OpenCL through pyopencl: GPUs, and CPUs through PoCL, with whatever driver the system has registered."""

from __future__ import annotations

import ctypes
from typing import Any, ClassVar

import numpy as np
import pyopencl as cl

from anygpu.engines.protocol import Memory, failed, verified
from anygpu.errors import AnyGPUError, DeviceLost, OutOfMemory, TooBig
from anygpu.hardware import host
from anygpu.hardware.cards import normal_pci, normal_uuid
from anygpu.hardware.device import Device, Form, Kind, Unavailable, reasons_for, unknown_facts
from anygpu.hardware.verification import Values, VerifiedType

#: Of the extension cl_khr_icd: the loader works, and no driver is registered with it.
PLATFORM_NOT_FOUND = -1001

#: Of the extensions cl_khr_device_uuid and cl_khr_pci_bus_info, which pyopencl has no names for.
_DEVICE_UUID_KHR = 0x106A
_DEVICE_PCI_BUS_INFO_KHR = 0x410F

_C_TYPES = {"float32": "float", "int32": "int", "float16": "half", "float64": "double", "int64": "long"}
_ENABLE = {"float16": "cl_khr_fp16", "float64": "cl_khr_fp64"}

_KERNEL = """\
{enable}
__kernel void verify(__global const {type} *x, __global {type} *y) {{
    const size_t i = get_global_id(0);
    y[i] = x[i] * x[i] + ({type})3 * x[i];
}}
"""


class OpenCLEngine:
    name: ClassVar[str] = "opencl"

    def __init__(self) -> None:
        self._found: dict[str, Any] = {}

    def discover(self) -> list[Device | Unavailable]:
        try:
            platforms = cl.get_platforms()
        except cl.Error as error:
            if error.code == PLATFORM_NOT_FOUND:
                return [_no_platform(str(error))]
            raise
        devices = [device for platform in platforms for device in _devices_of(platform)]
        if not devices:
            return [_no_device([platform.name.strip() for platform in platforms])]
        described: list[Device | Unavailable] = []
        for index, device in enumerate(devices):
            device_id = f"{self.name}:{index}"
            self._found[device_id] = device
            described.append(_describe(device_id, device))
        return described

    def verify(self, device: Device, *, deep: bool = False) -> Device | Unavailable:
        try:
            context = cl.Context([self._found[device.id]])
            queue = cl.CommandQueue(context)

            def compute(dtype: VerifiedType, values: Values) -> Values:
                return _compute(context, queue, dtype, values)

            return verified(device, compute, deep=deep)
        except Exception as error:  # noqa: BLE001 - any failure of a driver is a fact about the device
            return failed(device, error)

    def memory(self, device: Device) -> Memory:
        total = int(self._found[device.id].global_mem_size)
        return Memory(total=total, unknown={"free": "OpenCL does not tell how much memory is free"})

    def classify(self, error: BaseException, device: Device) -> AnyGPUError | None:
        if not isinstance(error, cl.Error):
            return None
        status = cl.status_code
        if error.code == status.INVALID_BUFFER_SIZE:
            return TooBig(device.id, None, device.limits.get("max-buffer-size"))
        if error.code in (status.MEM_OBJECT_ALLOCATION_FAILURE, status.OUT_OF_RESOURCES, status.OUT_OF_HOST_MEMORY):
            return OutOfMemory(device.id)
        if error.code == status.DEVICE_NOT_AVAILABLE:
            return DeviceLost(device.id)
        return None

    def close(self) -> None:
        self._found.clear()


def _devices_of(platform: Any) -> list[Any]:
    try:
        return list(platform.get_devices())
    except cl.Error as error:
        if error.code == cl.status_code.DEVICE_NOT_FOUND:
            return []
        raise


def _compute(context: Any, queue: Any, dtype: VerifiedType, values: Values) -> Values:
    enable = f"#pragma OPENCL EXTENSION {_ENABLE[dtype]} : enable" if dtype in _ENABLE else ""
    program = cl.Program(context, _KERNEL.format(enable=enable, type=_C_TYPES[dtype])).build()
    flags = cl.mem_flags
    source = cl.Buffer(context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=values)
    target = cl.Buffer(context, flags.WRITE_ONLY, values.nbytes)
    cl.Kernel(program, "verify")(queue, values.shape, None, source, target)
    result = np.empty_like(values)
    cl.enqueue_copy(queue, result, target, is_blocking=True)
    return result


def _describe(device_id: str, device: Any) -> Device:
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
        engine=OpenCLEngine.name,
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


def _form_and_kind(device: Any) -> tuple[Form, Kind]:
    if device.type & cl.device_type.CPU:
        return "software", "cpu"
    if device.type & cl.device_type.GPU:
        return ("integrated" if device.host_unified_memory else "discrete"), "gpu"
    return "discrete", "npu"


def _features(device: Any) -> tuple[str, ...]:
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


def _no_platform(detail: str) -> Unavailable:
    return Unavailable(
        id="opencl",
        engine="opencl",
        state="absent",
        cause="no_driver",
        reason="The OpenCL loader works, but no OpenCL driver is registered with it.",
        fix="Install your GPU's OpenCL driver; for the CPU: apt install pocl-opencl-icd",
        detail=detail,
    )


def _no_device(platforms: list[str]) -> Unavailable:
    return Unavailable(
        id="opencl",
        engine="opencl",
        state="absent",
        cause="no_device",
        reason=f"OpenCL has a driver ({', '.join(platforms)}), but it finds no device.",
        fix="Check that the driver fits your hardware and that you may open its device node: ls -l /dev/dri",
    )
