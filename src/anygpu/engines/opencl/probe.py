"""What an OpenCL device says of itself, as our facts."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pyopencl as cl

from anygpu.engines.opencl.partition import VARIABLE
from anygpu.hardware import host
from anygpu.hardware.cards import normal_pci, normal_uuid
from anygpu.hardware.device import Device, DeviceKind, Form, Unavailable, reasons_for, unknown_facts

#: Of the extensions cl_khr_device_uuid and cl_khr_pci_bus_info, which pyopencl has no names for.
_DEVICE_UUID_KHR = 0x106A
_DEVICE_PCI_BUS_INFO_KHR = 0x410F


def describe(device_id: str, device: Any) -> Device:
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


def _form_and_kind(device: Any) -> tuple[Form, DeviceKind]:
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


def no_platform(detail: str) -> Unavailable:
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
    return Unavailable(
        id="opencl",
        engine="opencl",
        state="absent",
        cause="no_device",
        reason=f"OpenCL has a driver ({', '.join(platforms)}), but it finds no device.",
        fix="Check that the driver fits your hardware and that you may open its device node: ls -l /dev/dri",
    )


def too_few_units(device_id: str, device: Any) -> Unavailable:
    units = int(device.max_compute_units)
    return Unavailable(
        id=device_id,
        engine="opencl",
        state="present",
        cause="failed",
        reason=f"{device.name.strip()} has {units} compute units, too few for the parts that {VARIABLE} asks for.",
        fix=f"Unset {VARIABLE}, or ask for parts that have at most {units} compute units together.",
    )
