"""The adapters of this machine, described as devices; opened no further than listing needs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from anygpu.hardware import host, vulkan
from anygpu.hardware.cards import plain_name
from anygpu.hardware.device import Device, DeviceForm, Unavailable, reasons_for, unknown_facts
from anygpu.hardware.sysfs import vendor_name

#: Best first: a card that is seen through several interfaces is used through the first that works.
BACKENDS = ("Vulkan", "Metal", "D3D12", "OpenGL")

_FORMS: dict[str, DeviceForm] = {"DiscreteGPU": "discrete", "IntegratedGPU": "integrated", "CPU": "software"}

#: Renderers that compute on the CPU and do not always say so.
_SOFTWARE_NAMES = ("llvmpipe", "softpipe", "swiftshader", "lavapipe", "microsoft basic render")

#: wgpu's names of features, and anygpu's.
FEATURES = {
    "shader-f16": "f16",
    "shader-f64": "f64",
    "shader-int64": "i64",
    "subgroup": "subgroups",
    "subgroups": "subgroups",
    "timestamp-query": "timestamps",
}

_LIMITS = (
    "max-buffer-size",
    "max-storage-buffer-binding-size",
    "max-storage-buffers-per-shader-stage",
    "max-compute-workgroup-storage-size",
    "max-compute-invocations-per-workgroup",
    "max-compute-workgroups-per-dimension",
    "min-storage-buffer-offset-alignment",
)


class VulkanFacts:
    """Identity and memory of the adapters from Vulkan, since wgpu passes on neither."""

    def __init__(self) -> None:
        try:
            self._devices = vulkan.read()
        except (OSError, vulkan.VulkanError):
            self._devices = []

    def of(self, info: dict[str, Any]) -> vulkan.VulkanDevice | None:
        """The next device of that model: both sides list equal cards in the same order."""
        for position, device in enumerate(self._devices):
            if (device.vendor_id, device.device_id) == (info["vendor_id"], info["device_id"]):
                return self._devices.pop(position)
        return None


def one_per_card(adapters: Iterable[Any]) -> list[list[Any]]:
    """Adapters of one name on different backends are one card; of one name on one backend, several."""
    cards: dict[tuple[str, int], list[Any]] = {}
    seen: Counter[tuple[str, str]] = Counter()
    for adapter in sorted(adapters, key=lambda each: BACKENDS.index(each.info["backend_type"])):
        name, backend = plain_name(adapter.info["device"]), adapter.info["backend_type"]
        cards.setdefault((name, seen[name, backend]), []).append(adapter)
        seen[name, backend] += 1
    return list(cards.values())


def describe(device_id: str, adapter: Any, others: tuple[str, ...], facts: vulkan.VulkanDevice | None) -> Device:
    info = adapter.info
    software = any(name in info["device"].lower() for name in _SOFTWARE_NAMES)
    form: DeviceForm = "software" if software else _FORMS.get(info["adapter_type"], "virtual")
    is_pci = 0 < info["vendor_id"] <= 0xFFFF
    unknown = {"compute_capability": host.NOT_NVIDIA if info["vendor_id"] != 0x10DE else "WebGPU does not tell it"}
    if form == "software":
        unknown |= host.processor_unknowns()
    else:
        unknown["load"] = "WebGPU does not tell how busy a device is"
    memory_total, memory_free, uuid, pci = None, None, None, None
    if facts is not None:
        memory_total, memory_free, uuid, pci = facts.memory_total, facts.memory_free, facts.uuid, facts.pci
        unknown |= facts.unknown
    elif info["backend_type"] == "Metal":
        # Apple's GPUs work in the machine's own memory.
        memory_total, memory_free = host.memory_total(), host.memory_free()
        unknown |= unknown_facts("Metal gives no UUID or PCI address", "uuid", "pci")
    else:
        why = f"{info['backend_type']} does not tell it, and no Vulkan driver knows this device"
        unknown |= unknown_facts(why, "memory_total", "memory_free", "uuid", "pci")
    if form == "software":
        # A software adapter has no memory or identity of its own: both are the processor's.
        memory_total, memory_free, uuid, pci = host.memory_total(), host.memory_free(), None, None
        unknown |= host.processor_unknowns()
    driver = f"{facts.driver_name} {facts.driver_version}" if facts is not None else info["description"] or None
    if driver is None:
        unknown["driver"] = f"{info['backend_type']} does not tell it"
    known = {"memory_total": memory_total, "memory_free": memory_free, "driver": driver, "uuid": uuid, "pci": pci}
    features = {FEATURES[name] for name in adapter.features if name in FEATURES}
    if form in ("software", "integrated"):
        features.add("unified_memory")
    return Device(
        id=device_id,
        engine="webgpu",
        kind="cpu" if form == "software" else "gpu",
        form=form,
        name=info["device"],
        state="usable",
        api=info["backend_type"],
        also_through=others,
        vendor=vendor_name(info["vendor_id"]) if is_pci else info["vendor"] or None,
        memory_total=memory_total,
        memory_free=memory_free,
        driver=driver,
        uuid=uuid,
        pci=pci,
        model=f"{info['vendor_id']:04x}:{info['device_id']:04x}" if is_pci else None,
        features=tuple(sorted(features)),
        limits={name: adapter.limits[name] for name in _LIMITS if name in adapter.limits},
        unknown=reasons_for(unknown, known),
    )


def seen_through(device: Device, view: Any) -> Device:
    """The same card through another interface, which may offer less."""
    api = view.info["backend_type"]
    if api == device.api:
        return device
    features = {FEATURES[name] for name in view.features if name in FEATURES}
    others = tuple(name for name in (device.api, *device.also_through) if name != api)
    return msgspec.structs.replace(
        device,
        api=api,
        also_through=others,
        features=tuple(sorted(features | ({"unified_memory"} & set(device.features)))),
        limits={name: view.limits[name] for name in _LIMITS if name in view.limits},
    )


def why_nothing() -> Unavailable:
    if sys.platform == "darwin":
        return Unavailable(
            id="webgpu",
            engine="webgpu",
            state="absent",
            cause="no_device",
            reason="Metal offers no GPU on this Mac.",
            fix="WebGPU needs macOS on Apple silicon, or on an Intel Mac from 2012 or later.",
        )
    detail: str | None = None
    found_driver = True
    try:
        vulkan.read()
    except OSError as error:
        return Unavailable(
            id="webgpu",
            engine="webgpu",
            state="absent",
            cause="no_loader",
            reason="The Vulkan loader is not installed, so no GPU driver can be found.",
            fix="Install the Vulkan loader (on Debian and Ubuntu: apt install libvulkan1 mesa-vulkan-drivers).",
            detail=str(error),
        )
    except vulkan.VulkanError as error:
        found_driver, detail = error.code != vulkan.NO_DRIVER, str(error)
    return Unavailable(
        id="webgpu",
        engine="webgpu",
        state="absent",
        cause="no_device" if found_driver else "no_driver",
        reason="Vulkan has drivers, but none of them finds a GPU."
        if found_driver
        else "The Vulkan loader is installed, but no driver is registered with it.",
        fix="Install your GPU's Vulkan driver (on Debian and Ubuntu: apt install mesa-vulkan-drivers).",
        detail=detail,
    )
