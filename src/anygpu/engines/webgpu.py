"""WebGPU through wgpu: Vulkan, Metal, Direct3D 12 and OpenGL, from a small install and with no vendor SDK."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any, ClassVar

import msgspec
import numpy as np
import wgpu

from anygpu.engines.protocol import Memory, failed, verified
from anygpu.errors import AnyGPUError, DeviceLost, OutOfMemory
from anygpu.hardware import host, vulkan
from anygpu.hardware.cards import plain_name
from anygpu.hardware.device import Device, Form, Unavailable, reasons_for, unknown_facts
from anygpu.hardware.sysfs import vendor_name
from anygpu.hardware.verification import Values, VerifiedType

#: Best first: a card that is seen through several interfaces is used through the first that works.
BACKENDS = ("Vulkan", "Metal", "D3D12", "OpenGL")

_FORMS: dict[str, Form] = {"DiscreteGPU": "discrete", "IntegratedGPU": "integrated", "CPU": "software"}

#: Renderers that compute on the CPU and do not always say so.
_SOFTWARE_NAMES = ("llvmpipe", "softpipe", "swiftshader", "lavapipe", "microsoft basic render")

_FEATURES = {
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

#: wgpu reports these two as validation errors with nothing but words; the tests provoke both for real.
_WORDS_FOR_LOST = ("Parent device is lost",)
_WORDS_FOR_OUT_OF_MEMORY = ("Not enough memory left",)

_WGSL_TYPES = {"float32": "f32", "int32": "i32", "float16": "f16", "float64": "f64", "int64": "i64"}
_FEATURE_OF_TYPE = {"float16": "shader-f16", "float64": "shader-f64", "int64": "shader-int64"}

_KERNEL = """\
{enable}
@group(0) @binding(0) var<storage, read> x: array<{type}>;
@group(0) @binding(1) var<storage, read_write> y: array<{type}>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
    if (id.x < arrayLength(&y)) {{
        y[id.x] = x[id.x] * x[id.x] + {type}(3) * x[id.x];
    }}
}}
"""


class WebGPUEngine:
    name: ClassVar[str] = "webgpu"

    def __init__(self) -> None:
        # For each device id, the adapters that lead to it, best interface first.
        self._views: dict[str, list[Any]] = {}
        self._opened: list[Any] = []

    def discover(self) -> list[Device | Unavailable]:
        cards = _one_per_card(wgpu.gpu.enumerate_adapters_sync())
        if not cards:
            return [_why_nothing()]
        facts = _VulkanFacts()
        found: list[Device | Unavailable] = []
        for index, views in enumerate(cards):
            device_id = f"{self.name}:{index}"
            self._views[device_id] = views
            others = tuple(view.info["backend_type"] for view in views[1:])
            found.append(_describe(device_id, views[0], others, facts.of(views[0].info)))
        return found

    def verify(self, device: Device, *, deep: bool = False) -> Device | Unavailable:
        outcome: Device | Unavailable | None = None
        for view in self._views[device.id]:
            candidate = _seen_through(device, view)
            try:
                outcome = verified(candidate, _Computer(self._open(view, deep=deep)), deep=deep)
            except Exception as error:  # noqa: BLE001 - any failure of a driver is a fact about the device
                outcome = failed(candidate, error)
            if isinstance(outcome, Device):
                return outcome
        assert outcome is not None, "a discovered device has at least one view"
        return outcome

    def _open(self, adapter: Any, *, deep: bool) -> Any:
        wanted = [name for name in _FEATURE_OF_TYPE.values() if deep and name in adapter.features]
        opened = adapter.request_device_sync(required_features=wanted)
        self._opened.append(opened)
        return opened

    def memory(self, device: Device) -> Memory:
        view = self._views[device.id][0]
        facts = _VulkanFacts().of(view.info)
        if facts is None:
            return Memory(unknown=unknown_facts(f"{device.api} does not tell its memory", "total", "free"))
        unknown = {} if facts.memory_free is not None else {"free": facts.unknown["memory_free"]}
        return Memory(total=facts.memory_total, free=facts.memory_free, unknown=unknown)

    def classify(self, error: BaseException, device: Device) -> AnyGPUError | None:
        if isinstance(error, wgpu.GPUOutOfMemoryError):
            return OutOfMemory(device.id)
        if isinstance(error, wgpu.GPUError):
            words = str(error)
            if any(known in words for known in _WORDS_FOR_LOST):
                return DeviceLost(device.id)
            if any(known in words for known in _WORDS_FOR_OUT_OF_MEMORY):
                return OutOfMemory(device.id)
        return None

    def close(self) -> None:
        while self._opened:
            self._opened.pop().destroy()


class _Computer:
    """Runs the verification kernel on one open wgpu device."""

    def __init__(self, device: Any) -> None:
        self._device = device

    def __call__(self, dtype: VerifiedType, values: Values) -> Values:
        device = self._device
        # A storage buffer's size is a multiple of four bytes; float16 at an odd count is not.
        padded = -(-values.nbytes // 4) * 4
        data = values.tobytes().ljust(padded, b"\0")
        enable = "enable f16;" if dtype == "float16" else ""
        module = device.create_shader_module(code=_KERNEL.format(enable=enable, type=_WGSL_TYPES[dtype]))
        pipeline = device.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "main"})
        source = device.create_buffer_with_data(data=data, usage=wgpu.BufferUsage.STORAGE)
        target = device.create_buffer(size=padded, usage=wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC)
        group = device.create_bind_group(
            layout=pipeline.get_bind_group_layout(0),
            entries=[
                {"binding": index, "resource": {"buffer": buffer, "offset": 0, "size": padded}}
                for index, buffer in enumerate((source, target))
            ],
        )
        encoder = device.create_command_encoder()
        compute_pass = encoder.begin_compute_pass()
        compute_pass.set_pipeline(pipeline)
        compute_pass.set_bind_group(0, group)
        compute_pass.dispatch_workgroups(-(-values.size // 64))
        compute_pass.end()
        device.queue.submit([encoder.finish()])
        result = bytes(device.queue.read_buffer(target))
        return np.frombuffer(result, dtype)[: values.size]


class _VulkanFacts:
    """What Vulkan says of the adapters, since wgpu passes on neither identity nor memory."""

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


def _one_per_card(adapters: Iterable[Any]) -> list[list[Any]]:
    """Adapters of one name on different backends are one card; of one name on one backend, several."""
    cards: dict[tuple[str, int], list[Any]] = {}
    seen: Counter[tuple[str, str]] = Counter()
    for adapter in sorted(adapters, key=lambda each: BACKENDS.index(each.info["backend_type"])):
        name, backend = plain_name(adapter.info["device"]), adapter.info["backend_type"]
        cards.setdefault((name, seen[name, backend]), []).append(adapter)
        seen[name, backend] += 1
    return list(cards.values())


def _describe(device_id: str, adapter: Any, others: tuple[str, ...], facts: vulkan.VulkanDevice | None) -> Device:
    info = adapter.info
    software = any(name in info["device"].lower() for name in _SOFTWARE_NAMES)
    form: Form = "software" if software else _FORMS.get(info["adapter_type"], "virtual")
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
    features = {_FEATURES[name] for name in adapter.features if name in _FEATURES}
    if form in ("software", "integrated"):
        features.add("unified_memory")
    return Device(
        id=device_id,
        engine=WebGPUEngine.name,
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


def _seen_through(device: Device, view: Any) -> Device:
    """The same card through another interface, which may offer less."""
    api = view.info["backend_type"]
    if api == device.api:
        return device
    features = {_FEATURES[name] for name in view.features if name in _FEATURES}
    others = tuple(name for name in (device.api, *device.also_through) if name != api)
    return msgspec.structs.replace(
        device,
        api=api,
        also_through=others,
        features=tuple(sorted(features | ({"unified_memory"} & set(device.features)))),
        limits={name: view.limits[name] for name in _LIMITS if name in view.limits},
    )


def _why_nothing() -> Unavailable:
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
