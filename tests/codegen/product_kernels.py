"""Kernels of the matmul and convolution templates on lavapipe or PoCL, with accessors written by hand."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyopencl as cl
import wgpu

from anygpu.base.typing import HostArray
from anygpu.engines.codegen.target import SYNTAX, ComputeType, Dialect, Target
from anygpu.engines.codegen.templates.matmul import Sizes, Tiling, Vectors, grid, parts, text

#: The same devices with the limits that they have, and with fewer: a tiling is right on both.
TARGETS: dict[str, Target] = {
    "wgsl": Target(
        dialect="wgsl", features=("f64", "i64", "subgroups"), group_limit=1024, group_memory=32768, subgroup_size=8
    ),
    "wgsl-plain": Target(dialect="wgsl"),
    "opencl": Target(
        dialect="opencl",
        features=("f64", "i64"),
        group_limit=4096,
        group_memory=2 << 20,
        groups_per_dimension=None,
        loop_limit=1 << 31,
    ),
    "opencl-least": Target(dialect="opencl", features=("f64", "i64"), group_memory=32768, groups_per_dimension=None),
}
NUMPY: dict[ComputeType, str] = {
    "i32": "int32",
    "u32": "uint32",
    "i64": "int64",
    "u64": "uint64",
    "f32": "float32",
    "f64": "float64",
}
GELU: dict[Dialect, str] = {
    "wgsl": "fn gelu(x: f32) -> f32 {\n    return x / (1f + exp(-1.702 * x));\n}",
    "opencl": "float gelu(float x) {\n    return x / (1.0f + exp(-1.702f * x));\n}",
}


class Layout:
    """How the operands of a product lie in memory, and what happens to its totals."""

    def __init__(
        self,
        *,
        transposed_a: bool = False,
        transposed_b: bool = False,
        gelu: bool = False,
        vectors: bool = True,
        adds: bool = False,
    ) -> None:
        self.transposed_a, self.transposed_b, self.gelu, self.vectors = transposed_a, transposed_b, gelu, vectors
        #: Totals are added to what is in the result, which shows if one is stored twice.
        self.adds = adds

    def flags(self, dialect: Dialect, sizes: Sizes) -> Vectors:
        """Vectors need whole vectors in WGSL; OpenCL reads them from anywhere."""
        if not self.vectors:
            return Vectors()
        anywhere = dialect == "opencl"
        m, n, k = (anywhere or length % 4 == 0 for length in (sizes.m, sizes.n, sizes.k))
        return Vectors(
            a_k=k and not self.transposed_a,
            a_m=m and self.transposed_a,
            b_n=n and not self.transposed_b,
            b_k=k and self.transposed_b,
            out_n=n,
        )


def matmul_source(
    dialect: Dialect, type: ComputeType, sizes: Sizes, tiling: Tiling, layout: Layout, folded: bool = False
) -> str:
    """Buffers: a, b, out, and bias [n] before out when the totals go through bias and gelu."""
    flags, words, width = layout.flags(dialect, sizes), SYNTAX[dialect].types[type], tiling.vector
    wgsl = dialect == "wgsl"
    m, n, k = sizes.m, sizes.n, sizes.k
    a_place = f"(batch * {k} + k) * {m} + m" if layout.transposed_a else f"(batch * {m} + m) * {k} + k"
    b_place = f"(batch * {n} + n) * {k} + k" if layout.transposed_b else f"(batch * {k} + k) * {n} + n"
    split = parts(tiling, sizes) > 1
    out_place = f"({f'(part * {sizes.batch} + batch)' if split else 'batch'} * {m} + m) * {n} + n"
    names = ["a", "b", *(["bias"] if layout.gelu else []), "out"]
    whole = {"a": flags.a_k or flags.a_m, "b": flags.b_n or flags.b_k, "out": flags.out_n, "bias": flags.out_n}
    takes = "" if wgsl else "".join(f"__global {words}* {each}, " for each in names)
    vector = (f"vec{width}<{words}>" if wgsl else f"{words}{width}") if width > 1 else words
    functions = [GELU[dialect]] if layout.gelu else []

    def function(name: str, positions: str, kind: str, body: str, value: str = "") -> None:
        arguments = [each.strip() for each in positions.split(",")]
        if wgsl:
            taken = ", ".join([f"{each}: i32" for each in arguments] + ([f"total: {value}"] if value else []))
            head = f"fn {name}({taken})" + (f" -> {kind}" if kind else "")
        else:
            taken = ", ".join([f"int {each}" for each in arguments] + ([f"{value} total"] if value else []))
            head = f"{kind or 'void'} {name}({takes}{taken})"
        functions.append(f"{head} {{\n    {body}\n}}")

    def element(buffer: str, place: str) -> str:
        if wgsl and whole[buffer] and width > 1:
            return f"{buffer}[({place}) / {width}][({place}) % {width}]"
        return f"{buffer}[{place}]"

    def elements(buffer: str, place: str) -> str:
        return f"{buffer}[({place}) / {width}]" if wgsl else f"vload{width}(0, {buffer} + {place})"

    function("load_a", "batch, m, k", words, f"return {element('a', a_place)};")
    function("load_b", "batch, k, n", words, f"return {element('b', b_place)};")
    if width > 1:
        if flags.a_k or flags.a_m:
            name = "load_a_vector" if flags.a_k else "load_a_vector_m"
            function(name, "batch, m, k", vector, f"return {elements('a', a_place)};")
        if flags.b_n or flags.b_k:
            name = "load_b_vector" if flags.b_n else "load_b_vector_k"
            function(name, "batch, k, n", vector, f"return {elements('b', b_place)};")
    target, positions = ("store_part", "part, batch, m, n") if split else ("store_out", "batch, m, n")
    value = f"gelu(total + {element('bias', 'n')})" if layout.gelu else "total"
    added = f"{element('out', out_place)} + " if layout.adds else ""
    function(target, positions, "", f"{element('out', out_place)} = {added}{value};", words)
    if flags.out_n and width > 1:
        value = "total"
        before = ""
        if layout.gelu:
            sums = "total + " + (f"bias[n / {width}]" if wgsl else f"vload{width}(0, bias + n)")
            before = f"let sums = {sums};" if wgsl else f"const {vector} sums = {sums};"
            digits = "0123456789abcdef"
            each = ", ".join(f"gelu(sums[{c}])" if wgsl else f"gelu(sums.s{digits[c]})" for c in range(width))
            value = f"{vector}({each})" if wgsl else f"({vector})({each})"
        if layout.adds:
            value = f"{elements('out', out_place)} + {value}"
        put = f"out[({out_place}) / {width}] = {value};" if wgsl else f"vstore{width}({value}, 0, out + {out_place});"
        function(f"{target}_vector", positions, "", f"{before}\n    {put}".strip(), vector)
    groups = grid(sizes, tiling)[0]
    if wgsl:
        declared = [
            f"@group(0) @binding({i}) var<storage, {'read_write' if each == 'out' else 'read'}> "
            f"{each}: array<{vector if whole[each] else words}>;"
            for i, each in enumerate(names)
        ]
        group = "let group = i32(group_id.x + group_id.y * 65535u);"
        if folded or groups > 65535:
            group += f"\nif (group >= {groups}) {{\n    return;\n}}"
        return text(
            "wgsl",
            type,
            sizes,
            tiling,
            flags,
            declarations="\n".join(declared),
            functions="\n".join(functions),
            name="matmul",
            parameters="",
            pass_="",
            group=group,
        )
    return text(
        "opencl",
        type,
        sizes,
        tiling,
        flags,
        declarations="",
        functions="\n".join(functions),
        name="matmul",
        parameters=takes.removesuffix(", "),
        pass_="".join(f"{each}, " for each in names),
        group="const int group = get_group_id(0);",
    )


class Launch:
    """A built kernel on its buffers; the last of them is the result."""

    def __init__(
        self, dialect: Dialect, source: str, name: str, arrays: Sequence[HostArray], groups: int, size: int
    ) -> None:
        self.like = arrays[-1]
        self.device: Any = (_WebGPU if dialect == "wgsl" else _OpenCL)(source, name, arrays, groups, size)

    def run(self) -> float:
        """Seconds by the device's clock."""
        return float(self.device.run())

    def result(self) -> HostArray:
        result: HostArray = self.device.read(self.like)
        self.device.close()
        return result


@functools.cache
def _webgpu_device() -> Any:
    adapters = wgpu.gpu.enumerate_adapters_sync()
    adapter = next(each for each in adapters if each.info["backend_type"] == "Vulkan")
    limits = {
        "max-compute-workgroup-storage-size": 32768,
        "max-compute-invocations-per-workgroup": 1024,
        "max-compute-workgroup-size-x": 1024,
    }
    features = ["shader-f64", "shader-int64", "timestamp-query", "subgroup"]
    return adapter.request_device_sync(required_features=features, required_limits=limits)


class _WebGPU:
    def __init__(self, source: str, name: str, arrays: Sequence[HostArray], groups: int, size: int) -> None:
        device = self.device = _webgpu_device()
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
        self.buffers = [device.create_buffer_with_data(data=_words(each), usage=usage) for each in arrays]
        kinds = ["read-only-storage"] * (len(arrays) - 1) + ["storage"]
        entries = [
            {"binding": i, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": kind}}
            for i, kind in enumerate(kinds)
        ]
        layout = device.create_bind_group_layout(entries=entries)
        self.pipeline = device.create_compute_pipeline(
            layout=device.create_pipeline_layout(bind_group_layouts=[layout]),
            compute={"module": device.create_shader_module(code=source), "entry_point": name},
        )
        bound = [{"binding": i, "resource": {"buffer": each}} for i, each in enumerate(self.buffers)]
        self.bound = device.create_bind_group(layout=layout, entries=bound)
        self.groups = groups
        self.times = device.create_query_set(type="timestamp", count=2)
        usage = wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
        self.resolved = device.create_buffer(size=16, usage=usage)

    def run(self) -> float:
        encoder = self.device.create_command_encoder()
        stamps = {"query_set": self.times, "beginning_of_pass_write_index": 0, "end_of_pass_write_index": 1}
        compute = encoder.begin_compute_pass(timestamp_writes=stamps)
        compute.set_pipeline(self.pipeline)
        compute.set_bind_group(0, self.bound)
        compute.dispatch_workgroups(min(self.groups, 65535), -(-self.groups // 65535))
        compute.end()
        encoder.resolve_query_set(self.times, 0, 2, self.resolved, 0)
        self.device.queue.submit([encoder.finish()])
        begin, end = np.frombuffer(self.device.queue.read_buffer(self.resolved), np.uint64)
        return float(end - begin) * 1e-9

    def read(self, like: HostArray) -> HostArray:
        data = np.frombuffer(self.device.queue.read_buffer(self.buffers[-1]), np.uint8)
        return data[: like.nbytes].view(like.dtype).reshape(like.shape)

    def close(self) -> None:
        for buffer in [*self.buffers, self.resolved]:
            buffer.destroy()


def _words(values: HostArray) -> bytes:
    """Never empty, and whole vectors: a buffer has at least one."""
    data = values.tobytes()
    return data + bytes(-len(data) % 32 or (32 if not data else 0))


@functools.cache
def _opencl_queue() -> Any:
    context = cl.Context([cl.get_platforms()[0].get_devices()[0]])
    return cl.CommandQueue(context, properties=cl.command_queue_properties.PROFILING_ENABLE)


class _OpenCL:
    def __init__(self, source: str, name: str, arrays: Sequence[HostArray], groups: int, size: int) -> None:
        self.queue = _opencl_queue()
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        self.buffers = [
            cl.Buffer(self.queue.context, flags, hostbuf=np.frombuffer(_words(each), np.uint8)) for each in arrays
        ]
        self.kernel = cl.Kernel(cl.Program(self.queue.context, source).build(cache_dir=False), name)
        self.kernel.set_args(*self.buffers)
        self.groups, self.size = groups, size

    def run(self) -> float:
        event = cl.enqueue_nd_range_kernel(self.queue, self.kernel, (self.groups * self.size,), (self.size,))
        event.wait()
        return float(event.profile.end - event.profile.start) * 1e-9

    def read(self, like: HostArray) -> HostArray:
        result = np.empty_like(like)
        cl.enqueue_copy(self.queue, result, self.buffers[-1])
        return result

    def close(self) -> None:
        self.queue.finish()
        for buffer in self.buffers:
            buffer.release()
