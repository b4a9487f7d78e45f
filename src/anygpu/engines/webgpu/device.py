"""Opening a device: everything that the adapter offers, and less of it step by step where it refuses."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
import wgpu

from anygpu.codegen.target import Target
from anygpu.engines.webgpu.probe import FEATURES
from anygpu.engines.webgpu.subgroups import subgroup_size
from anygpu.errors import DeviceUnavailable

#: What kernels and clocks can use; each adapter has some of it. The last two are one feature, renamed between versions.
#: Left out on purpose: "immediates" (slower from Python than a uniform with a dynamic offset: 9 against 6 µs for each
#: launch) and "pipeline-cache" (wgpu-py 0.32 lists the feature and offers no call that uses it).
USEFUL_FEATURES = ("timestamp-query", "shader-f16", "shader-f64", "shader-int64", "subgroup", "subgroups")

#: The features whose drivers are oldest and most used: kept for one step longer.
_COMMON_FEATURES = ("timestamp-query", "shader-f16")

#: What every WebGPU device must offer, of the limits that computing meets.
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
