"""Opening a device: everything that the adapter offers, and less of it step by step where it refuses."""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
import wgpu

from anygpu.engines.codegen.target import Target
from anygpu.errors import AnyGPUError, DeviceLost, DeviceUnavailable, OutOfMemory
from anygpu.hardware import host, vulkan
from anygpu.hardware.device import Device, DeviceForm, Unavailable, plain_name, reasons_for, unknown_facts
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
        """What Vulkan knows of the devices; nothing where there is no Vulkan."""
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
    """The record of a card as one adapter shows it, with what Vulkan tells beside WebGPU.

    `others` are further interfaces that show the same card. Each fact that is missing has its reason.
    """
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
    """The report that WebGPU has no device: no loader, no driver, or drivers that find no GPU."""
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


# -- what wgpu's errors mean: by type where the library tells them apart, else by the one table of its words


#: wgpu reports these two as validation errors with nothing but words; the tests provoke both for real.
WORDS_FOR_LOST = ("Parent device is lost",)
WORDS_FOR_OUT_OF_MEMORY = ("Not enough memory left",)


def classify(error: BaseException, device: str, *, requested: int | None = None) -> AnyGPUError | None:
    """One of ours, or `None` when it says nothing about the device."""
    if isinstance(error, AnyGPUError):
        return None
    # Python's own and NumPy's as well: what comes from the device or goes there passes through memory of the host.
    if isinstance(error, wgpu.GPUOutOfMemoryError | MemoryError):
        return OutOfMemory(device, requested)
    if isinstance(error, wgpu.GPUError):
        words = str(error)
        if any(known in words for known in WORDS_FOR_LOST):
            return DeviceLost(device)
        if any(known in words for known in WORDS_FOR_OUT_OF_MEMORY):
            return OutOfMemory(device, requested)
    return None


def innermost(error: BaseException) -> str:
    """The library's message without the lines that only say that there is one."""
    lines = [line.strip() for line in str(error).splitlines()]
    return "\n".join(line for line in lines if line and line not in ("Validation Error", "Caused by:"))


# -- types of C that wgpu-py looks up by their text
#
# For each of some fifty types, cffi parses the text together with a declaration of every type of the library, although
# a text needs only those that it names. Nothing outside of cffi's parser changes that, and the parser is only handed a
# shorter list: what it makes of a text stays its own. `python -m benchmarks.webgpu_types` measures the need: a process
# that opens a device takes 0.07 s of a processor for it instead of 0.44 s.


_WORDS = re.compile(r"\w+")


def find_types_fast() -> None:
    """Let cffi see only the declarations that a text names, for the whole process; may be called twice.

    Does nothing where wgpu-py or cffi are made in another way.
    """
    try:
        from wgpu.backends.wgpu_native._ffi import ffi
    except ImportError:
        return
    parser = getattr(ffi, "_parser", None)
    if parser is None or not isinstance(getattr(parser, "_declarations", None), dict):
        return
    if not getattr(parser.parse_type, "is_fast", False):
        parser.parse_type = _with_named_declarations(parser)


def _with_named_declarations(parser: Any) -> Any:
    """A parser of C types that looks at the declarations which a text names, and not at all thousands."""
    parse = parser.parse_type
    # cffi calls it with a lock of its own; this lock is for other callers.
    lock = threading.RLock()

    def parse_type(text: str) -> Any:
        words = set(_WORDS.findall(text))
        with lock:
            everything = parser._declarations
            # Keys are such as "typedef WGPULimits" and "struct WGPULimits".
            parser._declarations = {key: value for key, value in everything.items() if key.split()[-1] in words}
            try:
                return parse(text)
            finally:
                parser._declarations = everything

    parse_type.is_fast = True  # type: ignore[attr-defined]
    return parse_type


# -- how many neighbouring invocations surely are one subgroup
#
# Drivers tell a range. On hardware, the smallest of it is sure. Software adapters tell one that they do not use: theirs
# is as many lanes as the processor's registers have, and is asked for.


_ASK = """
@group(0) @binding(0) var<storage, read_write> sizes: array<u32, 64>;

@compute @workgroup_size(64)
fn ask(@builtin(local_invocation_index) lane: u32, @builtin(subgroup_size) size: u32) {
    sizes[lane] = size;
}
"""


def subgroup_size(opened: Any, *, software: bool) -> int:
    """The size, or 0 when it is unknown."""
    if not {"subgroup", "subgroups"} & set(opened.features):
        return 0
    if software:
        return _asked(opened)
    info = opened.adapter_info
    # The first of these names is a slip of the pen in wgpu-py 0.32.
    smallest = (info.get(name) for name in ("stackgroup_min_size", "subgroup_min_size", "subgroupMinSize"))
    return next((int(size) for size in smallest if size), 0)


def _asked(opened: Any) -> int:
    """The subgroup size, asked by a small kernel; 0 where the device does not run it."""
    try:
        module = opened.create_shader_module(code=_ASK)
        pipeline = opened.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "ask"})
        buffer = opened.create_buffer(size=256, usage=wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC)
        group = opened.create_bind_group(
            layout=pipeline.get_bind_group_layout(0),
            entries=[{"binding": 0, "resource": {"buffer": buffer, "offset": 0, "size": 256}}],
        )
        encoder = opened.create_command_encoder()
        step = encoder.begin_compute_pass()
        step.set_pipeline(pipeline)
        step.set_bind_group(0, group)
        step.dispatch_workgroups(1)
        step.end()
        opened.queue.submit([encoder.finish()])
        sizes = np.frombuffer(opened.queue.read_buffer(buffer), np.uint32)
        buffer.destroy()
    except wgpu.GPUError:
        return 0
    return int(sizes.min())


#: Features that kernels and clocks can use; each adapter has some. The last two are one, renamed between versions.
#: Left out on purpose: "immediates" (slower from Python than a uniform with a dynamic offset: 9 against 6 µs for each
#: launch) and "pipeline-cache" (wgpu-py 0.32 lists the feature and offers no call that uses it).
USEFUL_FEATURES = ("timestamp-query", "shader-f16", "shader-f64", "shader-int64", "subgroup", "subgroups")

#: The features whose drivers are oldest and most used: kept for one step longer.
_COMMON_FEATURES = ("timestamp-query", "shader-f16")

#: The limits of compute that every WebGPU device must offer.
GUARANTEED_LIMITS = {
    "max-buffer-size": 256 << 20,
    "max-storage-buffer-binding-size": 128 << 20,
    "max-storage-buffers-per-shader-stage": 8,
    "max-compute-workgroup-storage-size": 16384,
    "max-compute-invocations-per-workgroup": 256,
    "max-compute-workgroup-size-x": 256,
    "max-compute-workgroup-size-y": 256,
    "max-compute-workgroup-size-z": 64,
    "max-compute-workgroups-per-dimension": 65535,
}

#: What a kernel can use is known in code generation under the names on the right of FEATURES.
_TARGET_FEATURES = ("f16", "f64", "i64", "subgroups")

#: Far above any loop that is worth writing: only software adapters are known to stop loops.
_LOOP_LIMIT_OF_HARDWARE = 1 << 24


class Request(NamedTuple):
    """One step of the ladder: what to ask the adapter for."""

    features: tuple[str, ...]
    limits: dict[str, int]


def ladder(features: Iterable[str], limits: Mapping[str, int]) -> list[Request]:
    """Requests from the best to the least, for an adapter that says it has these features and limits.

    Drivers are known to list what they then refuse; a device with less is better than none.
    """
    offered = set(features)
    useful = tuple(name for name in USEFUL_FEATURES if name in offered)
    common = tuple(name for name in _COMMON_FEATURES if name in offered)
    own = dict(limits)
    guaranteed = own | {name: min(value, own.get(name, value)) for name, value in GUARANTEED_LIMITS.items()}
    steps = [Request(useful, own), Request(common, own), Request((), own), Request((), guaranteed)]
    return [step for position, step in enumerate(steps) if step not in steps[:position]]


def open_device(adapter: Any, device_id: str) -> Any:
    """An open wgpu device with as much as the adapter gives."""
    refusals: list[str] = []
    for step in ladder(adapter.features, adapter.limits):
        try:
            return adapter.request_device_sync(required_features=list(step.features), required_limits=step.limits)
        except (RuntimeError, wgpu.GPUError) as error:
            asked = ", ".join(step.features) or "no features"
            refusals.append(f"{adapter.info['device']} refused to open with {asked}: {error}")
    raise DeviceUnavailable(device_id, refusals, device=device_id)


def target_of(opened: Any, *, software: bool) -> Target:
    """The open device as kernels see it: from what it was opened with, not from what was listed."""
    limits = opened.limits
    named = {FEATURES[name] for name in opened.features if name in FEATURES}
    target = Target(
        dialect="wgsl",
        features=tuple(name for name in _TARGET_FEATURES if name in named),
        group_limit=min(limits["max-compute-invocations-per-workgroup"], limits["max-compute-workgroup-size-x"]),
        group_memory=limits["max-compute-workgroup-storage-size"],
        bindings=limits["max-storage-buffers-per-shader-stage"],
        binding_bytes=round_down(limits["max-storage-buffer-binding-size"], alignment_of(opened)),
        groups_per_dimension=limits["max-compute-workgroups-per-dimension"],
        subgroup_size=subgroup_size(opened, software=software),
        emulated=software,
    )
    return target if software else msgspec.structs.replace(target, loop_limit=_LOOP_LIMIT_OF_HARDWARE)


def destroy(opened: Any) -> None:
    """Let go of a device that is no longer wanted, without wgpu's report that it was lost."""
    log = logging.getLogger("wgpu")
    log.addFilter(_nothing)
    try:
        opened.destroy()
    finally:
        log.removeFilter(_nothing)


def _nothing(record: logging.LogRecord) -> bool:
    return False


def alignment_of(opened: Any) -> int:
    return int(opened.limits["min-storage-buffer-offset-alignment"])


def round_down(value: int, step: int) -> int:
    return value // step * step
