"""Workloads by hand on wgpu: pipelines, bind groups and buffers are made once, and nothing stands between them and the
queue."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import wgpu

from anygpu.base.typing import HostArray
from benchmarks.handwritten.workloads import Workload

_KERNELS = Path(__file__).parent / "webgpu_kernels"

#: How many invocations a subgroup has to have: lavapipe's with registers of 256 bits.
LANES = 8

#: So much is written at once: the library is slow with more.
_PIECE = 16 << 20

_USAGE = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST


class Step(NamedTuple):
    """A kernel of a file, the numbers in its text, how many groups it has, and which buffers it takes.

    Buffers are numbered: the workload's arguments first, then what lies between steps, and the result last.
    """

    file: str
    numbers: Mapping[str, int]
    groups: int
    buffers: tuple[int, ...]


class Plan(NamedTuple):
    steps: list[Step]
    #: Floats in each buffer that lies between two steps.
    between: tuple[int, ...] = ()


class ByHand:
    """A device of wgpu, with the caches that somebody would write who has only these workloads."""

    def __init__(self) -> None:
        adapter = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
        self.name = f"{adapter.info['device']} ({adapter.info['description']})"
        self.is_software = adapter.info["adapter_type"] == "CPU"
        missing = {"timestamp-query", "subgroup"} - set(adapter.features)
        if missing:
            raise SystemExit(f"{self.name} lacks {' and '.join(sorted(missing))}, which these kernels use.")
        limits = {"max-compute-workgroup-storage-size": adapter.limits["max-compute-workgroup-storage-size"]}
        self._device = adapter.request_device_sync(
            required_features=["timestamp-query", "subgroup"], required_limits=limits
        )
        lanes = _subgroup_size(self._device)
        if lanes != LANES:
            raise SystemExit(f"these kernels are for subgroups of {LANES}; those of {self.name} have {lanes}.")

    def prepared(self, workload: Workload, arguments: Sequence[HostArray], result: HostArray) -> Prepared:
        return Prepared(self._device, plan_of(workload), arguments, result)


class Prepared:
    """One workload, ready to run."""

    def __init__(self, device: Any, plan: Plan, arguments: Sequence[HostArray], result: HostArray) -> None:
        self._device = device
        self._arguments = [values.reshape(-1).view(np.uint8) for values in arguments]
        self._result = result
        sizes = [*(each.nbytes for each in arguments), *(4 * count for count in plan.between), result.nbytes]
        self._buffers = [device.create_buffer(size=size, usage=_USAGE) for size in sizes]
        readable = wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.MAP_READ
        self._landing = device.create_buffer(size=result.nbytes, usage=readable)
        self._clock = _Clock(device)
        self._launches = [_launch(device, step, self._buffers) for step in plan.steps]
        self._upload()

    def resident(self) -> float:
        """A call with everything on the device: seconds until the result is there."""
        begin = time.perf_counter()
        encoder = self._device.create_command_encoder()
        self._encode(encoder.begin_compute_pass())
        self._device.queue.submit([encoder.finish()])
        self._device._poll_wait()
        return time.perf_counter() - begin

    def device_seconds(self) -> tuple[float, float]:
        """By the device's clock, and by the host's around it."""
        begin = time.perf_counter()
        encoder = self._device.create_command_encoder()
        self._encode(encoder.begin_compute_pass(timestamp_writes=self._clock.marks))
        self._clock.resolve(encoder)
        self._device.queue.submit([encoder.finish()])
        self._device._poll_wait()
        return self._clock.seconds(), time.perf_counter() - begin

    def round_trip(self) -> HostArray:
        """From NumPy to NumPy."""
        self._upload()
        encoder = self._device.create_command_encoder()
        self._encode(encoder.begin_compute_pass())
        encoder.copy_buffer_to_buffer(self._buffers[-1], 0, self._landing, 0, self._result.nbytes)
        self._device.queue.submit([encoder.finish()])
        self._landing.map_sync("READ_NOSYNC")
        mapped = self._landing.read_mapped(copy=False)
        result = np.frombuffer(mapped, self._result.dtype).reshape(self._result.shape).copy()
        mapped.release()
        self._landing.unmap()
        return result

    def _upload(self) -> None:
        queue = self._device.queue
        for data, buffer in zip(self._arguments, self._buffers, strict=False):
            for first in range(0, len(data), _PIECE):
                queue.write_buffer(buffer, first, data[first : first + _PIECE])
                if first + _PIECE < len(data):
                    queue.submit([])

    def _encode(self, compute: Any) -> None:
        for pipeline, bind_group, groups in self._launches:
            compute.set_pipeline(pipeline)
            compute.set_bind_group(0, bind_group)
            compute.dispatch_workgroups(groups)
        compute.end()


class _Clock:
    """Timestamps around one pass."""

    def __init__(self, device: Any) -> None:
        self._queries = device.create_query_set(type="timestamp", count=2)
        self._resolved = device.create_buffer(size=16, usage=wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC)
        self._queue = device.queue
        self.marks = {
            "query_set": self._queries,
            "beginning_of_pass_write_index": 0,
            "end_of_pass_write_index": 1,
        }

    def resolve(self, encoder: Any) -> None:
        encoder.resolve_query_set(self._queries, 0, 2, self._resolved, 0)

    def seconds(self) -> float:
        begin, end = np.frombuffer(self._queue.read_buffer(self._resolved), np.uint64)
        return float(int(end) - int(begin)) * 1e-9


def _launch(device: Any, step: Step, buffers: Sequence[Any]) -> tuple[Any, Any, int]:
    numbers = {"LANES": LANES, **step.numbers}
    module = device.create_shader_module(code=text_of(step.file, numbers))
    pipeline = device.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": step.file})
    entries = [
        {"binding": binding, "resource": {"buffer": buffers[number], "offset": 0, "size": buffers[number].size}}
        for binding, number in enumerate(step.buffers)
    ]
    group = device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
    return pipeline, group, step.groups


def _subgroup_size(device: Any) -> int:
    code = """
        @group(0) @binding(0) var<storage, read_write> size: array<u32, 1>;
        @compute @workgroup_size(128)
        fn look(@builtin(subgroup_size) lanes: u32, @builtin(local_invocation_index) lane: u32) {
            if (lane == 0u) { size[0] = lanes; }
        }
    """
    module = device.create_shader_module(code=code)
    pipeline = device.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "look"})
    size = device.create_buffer(size=4, usage=_USAGE)
    entries = [{"binding": 0, "resource": {"buffer": size, "offset": 0, "size": 4}}]
    encoder = device.create_command_encoder()
    compute = encoder.begin_compute_pass()
    compute.set_pipeline(pipeline)
    compute.set_bind_group(0, device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries))
    compute.dispatch_workgroups(1)
    compute.end()
    device.queue.submit([encoder.finish()])
    return int(np.frombuffer(device.queue.read_buffer(size), np.uint32)[0])


def text_of(file: str, numbers: Mapping[str, int]) -> str:
    """A kernel's text. WGSL cannot unroll, and registers have no indices: so lines between `$for name in count` and
    `$end` are repeated with `$name` replaced, and those after `$if NAME` are there only where the number is given."""
    lines = (_KERNELS / f"{file}.wgsl").read_text(encoding="utf-8").splitlines()
    constants = [f"const {name} = {value}u;" for name, value in numbers.items()]
    return "\n".join([*constants, *_expanded(iter(lines), numbers)])


def _expanded(lines: Iterator[str], numbers: Mapping[str, int]) -> list[str]:
    done: list[str] = []
    for line in lines:
        words = line.split()
        match words[:1]:
            case ["$for"]:
                _, name, _, count = words
                body = _expanded(lines, numbers)
                for value in range(numbers.get(count) or int(count)):
                    done += [re.sub(rf"\${name}(?=u?\b|_)", str(value), each) for each in body]
            case ["$if"]:
                body = _expanded(lines, numbers)
                done += body if words[1] in numbers else []
            case ["$end"]:
                return done
            case _:
                done.append(line)
    return done


def plan_of(workload: Workload) -> Plan:
    """The form of kernel that was fastest for each workload, of those tried on lavapipe.

    There every load and store is a loop over the lanes of a subgroup, whether they are neighbours or not: so vectors of
    four are loaded everywhere, few values twice, and barriers are avoided.
    """
    size = workload.size
    match workload.kind:
        case "chain":
            numbers = {**size, "GROUP": 256}
            return Plan([Step("chain", numbers, size["COUNT"] // (4 * 4 * 256), (0, 1))])
        case "sum_last":
            return Plan([_sum_rows(size["ROWS"], size["COLUMNS"])])
        case "sum_all":
            runs = 4096
            first = _sum_rows(runs, size["ROWS"] * size["COLUMNS"] // runs)
            return Plan([first, Step("sum_partials", {"COUNT": runs}, 1, (1, 2))], between=(runs,))
        case "sum_first":
            return _sum_first(size["ROWS"], size["COLUMNS"])
        case "softmax":
            return Plan([Step("softmax", _row_numbers(size), size["ROWS"], (0, 1))])
        case "layer_norm":
            numbers = {**_row_numbers(size), "ROWS_EACH": 16}
            return Plan([Step("layer_norm", numbers, size["ROWS"] // 16, (0, 1, 2, 3))])
        case "matmul":
            return Plan([_matmul(size)])
        case "matmul_bias_gelu":
            return Plan([_matmul_panel({**size, "BIAS_GELU": 1}, (0, 1, 3, 2))])
        case "attention":
            queries = 4
            numbers = {**size, "QUERIES": queries, "PARTS": size["DEPTH"] // 4}
            return Plan([Step("attention", numbers, size["HEADS"] * size["COUNT"] // (queries * LANES), (0, 1, 2, 3))])
        case "matmul_int8":
            return Plan([_matmul_int8(size)])
        case "convolution":
            numbers = {**size, "OUT_BLOCKS": size["OUT_CHANNELS"] // LANES}
            groups = size["WIDTH"] // (4 * LANES) * size["HEIGHT"] * size["IMAGES"]
            return Plan([Step("convolution", numbers, groups, (0, 1, 2))])
        case "transpose":
            numbers = {**size, "GROUP": 64, "BLOCKS": 8}
            return Plan([Step("transpose", numbers, size["ROWS"] * size["COLUMNS"] // (16 * 64 * 8), (0, 1))])
        case "gather":
            numbers = {**size, "GROUP": 64, "VECTORS": size["COLUMNS"] // 4}
            return Plan([Step("gather", numbers, size["COUNT"] // 64, (0, 1, 2))])
    raise ValueError(f"there is no kernel for {workload.kind}.")


def _sum_rows(rows: int, columns: int) -> Step:
    return Step("sum_rows", {"ROWS": rows, "COLUMNS": columns, "GROUP": 64}, rows // 64, (0, 1))


def _sum_first(rows: int, columns: int) -> Plan:
    chunk, group = 64, 64
    chunks, strips = rows // chunk, columns // 4 // group
    first = {"ROWS": rows, "COLUMNS": columns, "CHUNK": chunk, "GROUP": group}
    second = {"ROWS": chunks, "COLUMNS": columns, "CHUNK": chunks, "GROUP": group}
    steps = [Step("sum_columns", first, strips * chunks, (0, 1)), Step("sum_columns", second, strips, (1, 2))]
    return Plan(steps, between=(chunks * columns,))


def _row_numbers(size: Mapping[str, int]) -> dict[str, int]:
    return {**size, "VECTORS": size["COLUMNS"] // 4 // LANES}


def _matmul(size: Mapping[str, int]) -> Step:
    # Copying a strip of b pays where b does not fit into the caches, and where many rows use the copy.
    if 4 * size["INNER"] * size["COLUMNS"] > 1 << 20:
        return _matmul_panel(size, (0, 1, 2))
    blocks = 32 // LANES
    groups = size["ROWS"] // (blocks * LANES) * (size["COLUMNS"] // (4 * LANES))
    return Step("matmul", {**size, "ROW_BLOCKS": blocks}, groups, (0, 1, 2))


def _matmul_panel(size: Mapping[str, int], buffers: tuple[int, ...]) -> Step:
    numbers = {**size, "ROW_BLOCKS": 32 // LANES, "PANEL_ROWS": 256, "PANEL_DEPTH": 256}
    groups = size["ROWS"] // 256 * (size["COLUMNS"] // (4 * LANES))
    return Step("matmul_panel", numbers, groups, buffers)


def _matmul_int8(size: Mapping[str, int]) -> Step:
    if size["ROWS"] == 1:
        return Step("vector_int8", size, size["COLUMNS"] // (4 * LANES), (0, 1, 2, 3))
    group = 128
    groups = size["ROWS"] // 32 * (size["COLUMNS"] // (4 * group))
    return Step("matmul_int8", {**size, "ROW_BLOCKS": 32 // LANES, "GROUP": group}, groups, (0, 1, 2, 3))
