"""Evaluates functions of the kernel dialects at many points, straight on lavapipe (wgpu) and PoCL (pyopencl)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache
from typing import Any, get_args

import numpy as np
import pyopencl as cl
import wgpu

from anygpu.base.typing import HostArray
from anygpu.engines.codegen.functions.library import definitions
from anygpu.engines.codegen.kernel import Binding, Kernel, Output, Schedule, Slot
from anygpu.engines.codegen.target import ComputeType, Dialect
from anygpu.program.primitives import Spec

_GROUP = 64
DIALECTS: tuple[Dialect, ...] = get_args(Dialect)
#: How a value of each type lies in the buffers of these tests.
STORED: dict[ComputeType, type[np.generic]] = {
    "bool": np.uint32,
    "i32": np.int32,
    "u32": np.uint32,
    "i64": np.int64,
    "u64": np.uint64,
    "f32": np.float32,
    "f64": np.float64,
}
_C: dict[ComputeType, str] = {
    "bool": "uint",
    "i32": "int",
    "u32": "uint",
    "i64": "long",
    "u64": "ulong",
    "f32": "float",
    "f64": "double",
}


#: Every result is stored as 64 bits, so that functions of all types can share a kernel.
_AS_BITS: dict[Dialect, dict[ComputeType, str]] = {
    "wgsl": {
        "bool": "u64(select(0u, 1u, {}))",
        "i32": "u64(bitcast<u32>({}))",
        "u32": "u64({})",
        "i64": "bitcast<u64>({})",
        "u64": "{}",
        "f32": "u64(bitcast<u32>({}))",
        "f64": "bitcast<u64>({})",
    },
    "opencl": {
        "bool": "({}) ? 1 : 0",
        "i32": "as_uint({})",
        "u32": "{}",
        "i64": "as_ulong({})",
        "u64": "{}",
        "f32": "as_uint({})",
        "f64": "as_ulong({})",
    },
}


def evaluate(
    dialect: Dialect,
    functions: Sequence[tuple[str, ComputeType]],
    arguments: Sequence[ComputeType],
    points: Sequence[HostArray],
    width: int = 1,
) -> list[HostArray]:
    """The values of functions, each given by its name and the type of its result, at all points: in one kernel.

    With a width, the functions take vectors, and give vectors of the type that they take.
    """
    if width > 1:
        return _evaluate_vectors(functions, arguments, points, width)
    # A function without operands is evaluated as often as there are points.
    given = ["xyz"[i] if type != "bool" else f"({'xyz'[i]} != 0u)" for i, type in enumerate(arguments)]
    calls = [_AS_BITS[dialect][result].format(f"{name}({', '.join(given)})") for name, result in functions]
    types = tuple(arguments) or ("f32",)
    stored = [np.ascontiguousarray(each, STORED[type]) for each, type in zip(points, types, strict=True)]
    text = definitions(dialect, [name for name, _ in functions])
    run = _run_webgpu if dialect == "wgsl" else _run_opencl
    rows = run(text, calls, types, stored).reshape(len(functions), stored[0].size)
    # The lower bytes come first on every machine that these devices run on.
    return [
        row.view(STORED[result])[:: 8 // np.dtype(STORED[result]).itemsize]
        for row, (_, result) in zip(rows, functions, strict=True)
    ]


def _run_webgpu(text: str, calls: list[str], arguments: Sequence[ComputeType], points: list[HostArray]) -> HostArray:
    count = points[0].size
    lines = [
        f"@group(0) @binding({i}) var<storage, read> input_{i}: array<{'u32' if type == 'bool' else type}>;"
        for i, type in enumerate(arguments)
    ]
    lines.append(f"@group(0) @binding({len(points)}) var<storage, read_write> output: array<u64>;")
    lines += [text, "@compute @workgroup_size(64)", "fn evaluate(@builtin(global_invocation_id) id: vec3<u32>) {"]
    lines += [f"    let i = id.x;\n    if (i >= {count}u) {{\n        return;\n    }}"]
    lines += [f"    let {'xyz'[i]} = input_{i}[i];" for i in range(len(points))]
    lines += [f"    output[i + {row * count}u] = {each};" for row, each in enumerate(calls)]
    slots = [Slot(each.nbytes, "constant", each.tobytes()) for each in points]
    slots.append(Slot(len(calls) * count * 8, "output"))
    kernel = Kernel(
        name="evaluate",
        source="\n".join([*lines, "}"]),
        bindings=tuple(Binding(i, "read" if i < len(points) else "write") for i in range(len(slots))),
        groups=-(-count // 64),
        group_size=64,
    )
    output = Output(len(points), Spec((len(calls) * count,), "uint64"))
    return run_on_webgpu(Schedule(slots=tuple(slots), steps=(kernel,), outputs=(output,)))[0].copy()


def run_on_webgpu(schedule: Schedule) -> list[HostArray]:
    """The outputs of a schedule of constants and kernels."""
    device = _device()
    usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
    buffers = [
        device.create_buffer(size=slot.nbytes, usage=usage)
        if slot.data is None
        else device.create_buffer_with_data(data=slot.data, usage=usage)
        for slot in schedule.slots
    ]
    encoder = device.create_command_encoder()
    commands = encoder.begin_compute_pass()
    for kernel in schedule.kernels:
        module = device.create_shader_module(code=kernel.source)
        pipeline = device.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": kernel.name})
        entries = [{"binding": i, "resource": {"buffer": buffers[each.slot]}} for i, each in enumerate(kernel.bindings)]
        commands.set_pipeline(pipeline)
        commands.set_bind_group(0, device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries))
        commands.dispatch_workgroups(kernel.groups)
    commands.end()
    device.queue.submit([encoder.finish()])
    values = [
        np.frombuffer(device.queue.read_buffer(buffers[each.slot]), each.spec.dtype).reshape(each.spec.shape)
        for each in schedule.outputs
    ]
    for buffer in buffers:
        buffer.destroy()
    return values


@cache
def _device() -> Any:
    adapters = wgpu.gpu.enumerate_adapters_sync()
    adapter = next(each for each in adapters if each.info["backend_type"] == "Vulkan")
    return adapter.request_device_sync(required_features=["shader-f64", "shader-int64"])


def _run_opencl(text: str, calls: list[str], arguments: Sequence[ComputeType], points: list[HostArray]) -> HostArray:
    count = points[0].size
    parameters = [f"__global const {_C[type]} *input_{i}" for i, type in enumerate(arguments)]
    lines = [text, f"__kernel void evaluate({', '.join(parameters)}, __global ulong *output) {{"]
    lines += ["    const size_t i = get_global_id(0);"]
    lines += [f"    const {_C[type]} {'xyz'[i]} = input_{i}[i];" for i, type in enumerate(arguments)]
    lines += [f"    output[i + {row * count}] = {each};" for row, each in enumerate(calls)]
    return _launch_opencl("\n".join([*lines, "}"]), points, count, np.empty(len(calls) * count, np.uint64))


def _launch_opencl(text: str, points: list[HostArray], invocations: int, values: HostArray) -> HostArray:
    queue = _queue()
    program = cl.Program(queue.context, text).build(cache_dir=False)
    flags = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
    inputs = [cl.Buffer(queue.context, flags, hostbuf=each) for each in points]
    output = cl.Buffer(queue.context, cl.mem_flags.WRITE_ONLY, values.nbytes)
    # A group size of its own choice might be a large prime number, over which PoCL's compiler takes minutes.
    group = None if invocations % _GROUP else (_GROUP,)
    cl.Kernel(program, "evaluate")(queue, (invocations,), group, *inputs, output)
    cl.enqueue_copy(queue, values, output)
    queue.finish()
    return values


def _evaluate_vectors(
    functions: Sequence[tuple[str, ComputeType]],
    arguments: Sequence[ComputeType],
    points: Sequence[HostArray],
    width: int,
) -> list[HostArray]:
    vectors = -(-points[0].size // (width * _GROUP)) * _GROUP
    stored = [np.resize(each.astype(STORED[arguments[0]]), vectors * width) for each in points]
    given = ", ".join(f"vload{width}(get_global_id(0), input_{i})" for i in range(len(points)))
    results = []
    for name, result in functions:
        parameters = [f"__global const {_C[arguments[0]]} *input_{i}" for i in range(len(points))]
        text = f"""{definitions("opencl", [name])}
__kernel void evaluate({", ".join(parameters)}, __global {_C[result]} *output) {{
    vstore{width}({name}({given}), get_global_id(0), output);
}}"""
        results.append(_launch_opencl(text, stored, vectors, np.empty(vectors * width, STORED[result])))
    return [values[: points[0].size] for values in results]


def time_on_opencl(schedule: Schedule, times: int) -> list[list[float]]:
    """Seconds of each kernel of a schedule, each run so many times."""
    queue = _queue()
    flags = cl.mem_flags.READ_WRITE
    buffers = [
        cl.Buffer(queue.context, flags, slot.nbytes)
        if slot.data is None
        else cl.Buffer(queue.context, flags | cl.mem_flags.COPY_HOST_PTR, hostbuf=np.frombuffer(slot.data, np.uint8))
        for slot in schedule.slots
    ]
    kernels = []
    for step in schedule.kernels:
        kernels.append(cl.Kernel(cl.Program(queue.context, step.source).build(cache_dir=False), step.name))
        kernels[-1].set_args(*(buffers[binding.slot] for binding in step.bindings))
    seconds: list[list[float]] = [[] for _ in kernels]
    for _ in range(times):
        for number, (step, kernel) in enumerate(zip(schedule.kernels, kernels, strict=True)):
            began = time.perf_counter()
            cl.enqueue_nd_range_kernel(queue, kernel, (step.groups * step.group_size,), (step.group_size,)).wait()
            seconds[number].append(time.perf_counter() - began)
    return seconds


@cache
def _queue() -> Any:
    return cl.CommandQueue(cl.Context([cl.get_platforms()[0].get_devices()[0]]))
