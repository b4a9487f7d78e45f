"""The WebGPU engine: the adapters of this machine, whether they compute, and how they are opened."""

from __future__ import annotations

import weakref
from typing import Any, ClassVar

import numpy as np
import wgpu

from anygpu.base.typing import HostArray
from anygpu.engines.compiling_engine import CompilingEngine
from anygpu.engines.protocol import Memory, failed, verified
from anygpu.engines.webgpu.device import (
    VulkanFacts,
    classify,
    describe,
    destroy,
    find_types_fast,
    one_per_card,
    open_device,
    seen_through,
    why_nothing,
)
from anygpu.engines.webgpu.driver import WebGPUDriver
from anygpu.errors import AnyGPUError, DeviceUnavailable
from anygpu.hardware.device import Device, Unavailable, VerifiedType, unknown_facts

# -- the engine
#
# Which devices there are, whether they compute, and how they are opened.


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


class WebGPUEngine(CompilingEngine):
    name: ClassVar[str] = "webgpu"
    libraries: ClassVar[tuple[str, ...]] = ("wgpu",)

    def __init__(self) -> None:
        super().__init__()
        find_types_fast()
        # For each device id, the adapters that lead to it, best interface first.
        self._views: dict[str, list[Any]] = {}
        self._opened: list[Any] = []
        self._drivers: weakref.WeakSet[WebGPUDriver] = weakref.WeakSet()

    def discover(self) -> list[Device | Unavailable]:
        cards = one_per_card(wgpu.gpu.enumerate_adapters_sync())
        if not cards:
            return [why_nothing()]
        facts = VulkanFacts()
        found: list[Device | Unavailable] = []
        for index, views in enumerate(cards):
            device_id = f"{self.name}:{index}"
            self._views[device_id] = views
            others = tuple(view.info["backend_type"] for view in views[1:])
            found.append(describe(device_id, views[0], others, facts.of(views[0].info)))
        return found

    def verify(self, device: Device, *, deep: bool = False) -> Device | Unavailable:
        outcome: Device | Unavailable | None = None
        for view in self._views[device.id]:
            candidate = seen_through(device, view)
            try:
                outcome = verified(candidate, _Computer(self._open_to_verify(view, deep=deep)), deep=deep)
            except Exception as error:  # noqa: BLE001 - any failure of a driver is a fact about the device
                outcome = failed(candidate, error)
            if isinstance(outcome, Device):
                return outcome
        assert outcome is not None, "a discovered device has at least one view"
        return outcome

    def _open_to_verify(self, adapter: Any, *, deep: bool) -> Any:
        wanted = [name for name in _FEATURE_OF_TYPE.values() if deep and name in adapter.features]
        opened = adapter.request_device_sync(required_features=wanted)
        self._opened.append(opened)
        return opened

    def open(self, device: Device) -> WebGPUDriver:
        """A driver of its own for the device, through the interface that it was found usable with."""
        if device.id not in self._views:
            self.discover()
        for view in self._views.get(device.id, ()):
            if view.info["backend_type"] == device.api:
                opened = open_device(view, device.id)
                driver = WebGPUDriver(opened, device_id=device.id, software=device.software)
                self._drivers.add(driver)
                return driver
        raise DeviceUnavailable(device.id, [f"{device.api} no longer offers {device.name}."], device=device.id)

    def memory(self, device: Device) -> Memory:
        view = self._views[device.id][0]
        facts = VulkanFacts().of(view.info)
        if facts is None:
            return Memory(
                in_use=self.bytes_in_use(device),
                by_owner=self.bytes_by_owner(device),
                unknown=unknown_facts(f"{device.api} does not tell its memory", "total", "free"),
            )
        unknown = {} if facts.memory_free is not None else {"free": facts.unknown["memory_free"]}
        return Memory(
            total=facts.memory_total,
            free=facts.memory_free,
            in_use=self.bytes_in_use(device),
            by_owner=self.bytes_by_owner(device),
            unknown=unknown,
        )

    def classify(self, error: BaseException, device: Device) -> AnyGPUError | None:
        return classify(error, device.id)

    def close(self) -> None:
        self.close_sessions()
        while self._drivers:
            self._drivers.pop().close()
        while self._opened:
            destroy(self._opened.pop())


class _Computer:
    """Runs the verification kernel on one open wgpu device."""

    def __init__(self, device: Any) -> None:
        self._device = device

    def __call__(self, dtype: VerifiedType, values: HostArray) -> HostArray:
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
