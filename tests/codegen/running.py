"""Runs the stages of a template straight on lavapipe or PoCL, with plain buffers behind the accessors."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pyopencl as cl
import wgpu

from anygpu.base.typing import HostArray
from anygpu.engines.codegen.functions.library import call, definitions
from anygpu.engines.codegen.target import SYNTAX, ComputeType, Dialect, Target
from anygpu.engines.codegen.templates.stages import Stage, Stages, carried, fill

TARGETS: dict[Dialect, Target] = {
    "wgsl": Target(dialect="wgsl", features=("f64", "i64"), group_memory=16384),
    "opencl": Target(dialect="opencl", features=("f64", "i64"), group_memory=65536),
}
NUMPY: dict[ComputeType, str] = {
    "bool": "uint32",
    "i32": "int32",
    "u32": "uint32",
    "i64": "int64",
    "u64": "uint64",
    "f32": "float32",
    "f64": "float64",
}
COMPUTE: dict[str, ComputeType] = {"bool": "bool", **{name: kind for kind, name in NUMPY.items() if kind != "bool"}}


class Accessor:
    """An array behind an accessor `name(row, i)`: a load with values, a store with none yet, or the status word."""

    def __init__(self, name: str, kind: ComputeType, values: HostArray, end: str) -> None:
        self.name, self.kind = name, kind
        self.values = np.ascontiguousarray(values, NUMPY[kind])
        self.row_length = values.shape[-1]
        self.reads = name.startswith("load")
        self.end = end

    @property
    def buffer(self) -> str:
        return f"{self.name}_values"

    def text(self, dialect: Dialect, taken: str) -> str:
        kind, place = SYNTAX[dialect].types[self.kind], f"{self.buffer}[row * {self.row_length} + i]"
        wgsl = dialect == "wgsl"
        if self.name == "report":
            if wgsl:
                return f"fn report(value: {kind}) {{\n    {self.buffer}[0] = value;\n}}"
            return f"void report({taken}{kind} value) {{\n    {self.buffer}[0] = value;\n}}"
        if self.reads:
            value = f"{place} != 0u" if self.kind == "bool" else place
            head = (
                f"fn {self.name}(row: i32, i: i32) -> {kind}" if wgsl else f"{kind} {self.name}({taken}int row, int i)"
            )
            return f"{head} {{\n    return {value};\n}}"
        value = "value" if self.kind != "bool" else "u32(value)" if wgsl else "(uint)value"
        head = f"fn {self.name}(row: i32, i: i32, value: {kind})"
        head = head if wgsl else f"void {self.name}({taken}int row, int i, {kind} value)"
        return f"{head} {{\n    {place} = {value};\n}}"


def load(name: str, values: HostArray, end: str = "in") -> Accessor:
    return Accessor(name, COMPUTE[values.dtype.name], values, end)


def store(name: str, kind: ComputeType, rows: int, length: int) -> Accessor:
    return Accessor(name, kind, np.zeros((rows, length), NUMPY[kind]), "out")


def status(kind: ComputeType) -> Accessor:
    return Accessor("report", kind, np.zeros((1, 1), NUMPY[kind]), "status")


def kernel_text(dialect: Dialect, stage: Stage, accessors: list[Accessor], kinds: dict[str, ComputeType]) -> str:
    """`kinds` has the buffers of the stage in the order of its parameters."""
    used = [each for each in accessors if each.buffer in kinds]
    calls = {name: call(dialect, fn, kind, TARGETS[dialect]) for name, (fn, kind) in stage.calls.items()}
    library = definitions(dialect, calls.values())
    names = {"name": stage.name, **calls}
    words = SYNTAX[dialect].types
    if dialect == "wgsl":
        texts = []
        for number, (buffer, kind) in enumerate(kinds.items()):
            element = f"atomic<{kind}>" if buffer in stage.atomics else carried(kind)
            called = stage.names.get(buffer, buffer)
            texts.append(f"@group(0) @binding({number}) var<storage, read_write> {called}: array<{element}>;")
        names |= {"declarations": "\n".join(texts), "parameters": "", "pass": "", "taken": ""}
        folded = f"if (group >= {stage.groups}) {{\n    return;\n}}"
        names["group"] = f"let group = i32(group_id.x + group_id.y * 65535u);\n{folded}"
        taken = ""
    else:
        pointers = {
            buffer: f"__global {words[carried(kind)]}* {stage.names.get(buffer, buffer)}"
            for buffer, kind in kinds.items()
        }
        taken = "".join(f"{pointers[each.buffer]}, " for each in used)
        names |= {"declarations": "", "parameters": ", ".join(pointers.values()), "taken": taken}
        names |= {"pass": "".join(f"{each.buffer}, " for each in used), "group": "const int group = get_group_id(0);"}
    names["functions"] = "\n".join([library, *(each.text(dialect, taken) for each in used)])
    return fill(dialect, stage, names)


def run(dialect: Dialect, described: Stages, accessors: list[Accessor]) -> list[HostArray]:
    """The values behind the stores (and the status), in their order."""
    temporaries, stages = described
    device: Any = _WebGPU() if dialect == "wgsl" else _OpenCL()
    kinds: dict[str, ComputeType] = {}
    for accessor in accessors:
        kinds[accessor.buffer] = accessor.kind
        device.create(accessor.buffer, accessor.values)
    for each in temporaries:
        kinds[each.name] = each.type
        # What a temporary holds at first is not promised to be zero.
        rubbish = np.full(each.size, 77, NUMPY[each.type])
        given = rubbish if each.data is None else np.frombuffer(each.data, NUMPY[each.type])
        device.create(each.name, given)
    for stage in stages:
        ends = {*stage.reads, *stage.writes}
        buffers = [each.buffer for each in accessors if each.end in ends] + [
            each.name for each in temporaries if each.name in ends
        ]
        used = {buffer: kinds[buffer] for buffer in buffers}
        device.launch(kernel_text(dialect, stage, accessors, used), stage, buffers)
    results = [device.read(each.buffer, each.values) for each in accessors if not each.reads]
    device.close()
    return results


@functools.cache
def _webgpu_device() -> Any:
    adapters = wgpu.gpu.enumerate_adapters_sync()
    adapter = next(each for each in adapters if each.info["backend_type"] == "Vulkan")
    return adapter.request_device_sync(required_features=["shader-f64", "shader-int64", "timestamp-query"])


@functools.lru_cache(64)
def _module(text: str) -> Any:
    return _webgpu_device().create_shader_module(code=text)


class _WebGPU:
    def __init__(self) -> None:
        self.device = _webgpu_device()
        self.buffers: dict[str, Any] = {}

    def create(self, name: str, values: HostArray) -> None:
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
        self.buffers[name] = self.device.create_buffer_with_data(data=values.tobytes(), usage=usage)

    def prepared(self, text: str, stage: Stage, names: list[str]) -> tuple[Any, Any]:
        entries = [
            {"binding": k, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": "storage"}}
            for k in range(len(names))
        ]
        layout = self.device.create_bind_group_layout(entries=entries)
        pipeline = self.device.create_compute_pipeline(
            layout=self.device.create_pipeline_layout(bind_group_layouts=[layout]),
            compute={"module": _module(text), "entry_point": stage.name},
        )
        bound = [{"binding": k, "resource": {"buffer": self.buffers[name]}} for k, name in enumerate(names)]
        return pipeline, self.device.create_bind_group(layout=layout, entries=bound)

    def encode(self, compute: Any, stage: Stage, ready: tuple[Any, Any]) -> None:
        compute.set_pipeline(ready[0])
        compute.set_bind_group(0, ready[1])
        compute.dispatch_workgroups(min(stage.groups, 65535), -(-stage.groups // 65535))

    def launch(self, text: str, stage: Stage, names: list[str]) -> None:
        encoder = self.device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        self.encode(compute, stage, self.prepared(text, stage, names))
        compute.end()
        self.device.queue.submit([encoder.finish()])

    def read(self, name: str, like: HostArray) -> HostArray:
        return np.frombuffer(self.device.queue.read_buffer(self.buffers[name]), like.dtype).reshape(like.shape)

    def close(self) -> None:
        for buffer in self.buffers.values():
            buffer.destroy()


@functools.cache
def _opencl_queue() -> Any:
    context = cl.Context([cl.get_platforms()[0].get_devices()[0]])
    return cl.CommandQueue(context)


@functools.lru_cache(64)
def _built(text: str) -> Any:
    return cl.Program(_opencl_queue().context, text).build(cache_dir=False)


class _OpenCL:
    def __init__(self) -> None:
        self.queue = _opencl_queue()
        self.buffers: dict[str, Any] = {}

    def create(self, name: str, values: HostArray) -> None:
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        self.buffers[name] = cl.Buffer(self.queue.context, flags, hostbuf=np.array(values))

    def prepared(self, text: str, stage: Stage, names: list[str]) -> Any:
        kernel = cl.Kernel(_built(text), stage.name)
        kernel.set_args(*(self.buffers[name] for name in names))
        return kernel

    def launch(self, text: str, stage: Stage, names: list[str]) -> None:
        kernel = self.prepared(text, stage, names)
        cl.enqueue_nd_range_kernel(self.queue, kernel, (stage.groups * stage.group_size,), (stage.group_size,))

    def read(self, name: str, like: HostArray) -> HostArray:
        result = np.empty_like(like)
        cl.enqueue_copy(self.queue, result, self.buffers[name])
        return result

    def close(self) -> None:
        self.queue.finish()
        for buffer in self.buffers.values():
            buffer.release()
