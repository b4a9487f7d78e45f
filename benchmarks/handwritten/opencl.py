"""Workloads by hand on pyopencl: kernels, buffers and arguments are made once, and nothing stands between them and the
queue."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyopencl as cl

from anygpu.base.typing import HostArray
from benchmarks.handwritten.workloads import Workload

_KERNELS = Path(__file__).parent / "opencl_kernels"


class Step(NamedTuple):
    """A kernel of a file, the numbers it is compiled with, how many work-items it has, and which buffers it takes.

    Buffers are numbered: the workload's arguments first, then what lies between steps, and the result last.
    """

    file: str
    defines: dict[str, int | str]
    items: int
    buffers: tuple[int, ...]
    group: int = 1


class Plan(NamedTuple):
    steps: list[Step]
    #: Floats in each buffer that lies between two steps.
    between: tuple[int, ...] = ()


class ByHand:
    """A device of pyopencl, with the caches that somebody would write who has only these workloads."""

    def __init__(self) -> None:
        device = next(device for platform in cl.get_platforms() for device in platform.get_devices())
        self.name = str(device.name)
        self.is_software = device.type == cl.device_type.CPU
        self._context = cl.Context([device])
        self._queue = cl.CommandQueue(self._context, properties=cl.command_queue_properties.PROFILING_ENABLE)

    def prepared(self, workload: Workload, arguments: Sequence[HostArray], result: HostArray) -> Prepared:
        return Prepared(self._context, self._queue, plan_of(workload), arguments, result)


class Prepared:
    """One workload, ready to run."""

    def __init__(self, context: Any, queue: Any, plan: Plan, arguments: Sequence[HostArray], result: HostArray) -> None:
        self._queue = queue
        self._arguments = arguments
        self._result = (result.shape, result.dtype)
        sizes = [*(each.nbytes for each in arguments), *(4 * count for count in plan.between), result.nbytes]
        self._buffers = [cl.Buffer(context, cl.mem_flags.READ_WRITE, size) for size in sizes]
        self._launches = []
        for step in plan.steps:
            kernel = _built(context, step)
            kernel.set_args(*(self._buffers[number] for number in step.buffers))
            self._launches.append((kernel, (step.items,), (step.group,)))
        self._upload()
        queue.finish()

    def resident(self) -> float:
        """A call with everything on the device: seconds until the result is there."""
        begin = time.perf_counter()
        self._launch()
        self._queue.finish()
        return time.perf_counter() - begin

    def device_seconds(self) -> tuple[float, float]:
        """By the device's clock, and by the host's around it."""
        begin = time.perf_counter()
        events = self._launch()
        self._queue.finish()
        elapsed = time.perf_counter() - begin
        return sum(event.profile.end - event.profile.start for event in events) * 1e-9, elapsed

    def round_trip(self) -> HostArray:
        """From NumPy to NumPy."""
        self._upload()
        self._launch()
        shape, dtype = self._result
        result = np.empty(shape, dtype)
        cl.enqueue_copy(self._queue, result, self._buffers[-1], is_blocking=True)
        return result

    def _upload(self) -> None:
        for values, buffer in zip(self._arguments, self._buffers, strict=False):
            cl.enqueue_copy(self._queue, buffer, values, is_blocking=False)

    def _launch(self) -> list[Any]:
        queue = self._queue
        return [cl.enqueue_nd_range_kernel(queue, kernel, items, group) for kernel, items, group in self._launches]


def _built(context: Any, step: Step) -> Any:
    source = (_KERNELS / f"{step.file}.cl").read_text()
    options = ["-cl-mad-enable", *(f"-D{name}={value}" for name, value in step.defines.items())]
    return cl.Kernel(cl.Program(context, source).build(options), step.file)


def plan_of(workload: Workload) -> Plan:
    """The form of kernel that was fastest for each workload, of those tried on a processor with AVX-512.

    Everywhere a work-item is a thread of the processor that works on long vectors. Groups that share memory and wait
    for each other took 10 to 20 times as long.
    """
    size = workload.size
    match workload.kind:
        case "chain":
            return Plan([Step("chain", {}, size["COUNT"] // 16, (0, 1), group=256)])
        case "sum_last":
            return Plan([_sum_rows(size["ROWS"], size["COLUMNS"], (0, 1))])
        case "sum_all":
            runs = 256
            first = _sum_rows(runs, size["ROWS"] * size["COLUMNS"] // runs, (0, 1))
            return Plan([first, _sum_rows(1, runs, (1, 2), group=1)], between=(runs,))
        case "sum_first":
            return _sum_first(size["ROWS"], size["COLUMNS"])
        case "softmax":
            return Plan([Step("softmax", {"COLUMNS": size["COLUMNS"]}, size["ROWS"], (0, 1), group=16)])
        case "layer_norm":
            return Plan([Step("layer_norm", {"COLUMNS": size["COLUMNS"]}, size["ROWS"], (0, 1, 2, 3), group=16)])
        case "matmul":
            return Plan([_matmul(size, (0, 1, 2))])
        case "matmul_bias_gelu":
            return Plan([_matmul(size, (0, 1, 2, 3), BIAS_GELU=1)])
        case "attention":
            return Plan([_attention(size)])
        case "matmul_int8":
            return Plan([_matmul_int8(size)])
        case "convolution":
            return _convolution(size)
        case "transpose":
            return Plan([Step("transpose", dict(size), size["ROWS"] * size["COLUMNS"] // 256, (0, 1), group=16)])
        case "gather":
            rows = 16
            return Plan([Step("gather", {"ROWS_EACH": rows, "INDEX": "int"}, size["COUNT"] // rows, (0, 1, 2))])
    raise ValueError(f"there is no kernel for {workload.kind}.")


def _sum_rows(rows: int, columns: int, buffers: tuple[int, ...], *, group: int = 16) -> Step:
    return Step("sum_rows", {"COLUMNS": columns}, rows, buffers, group=group)


def _sum_first(rows: int, columns: int) -> Plan:
    chunk, strips = 64, columns // 128
    chunks = rows // chunk
    first = Step("sum_columns", {"COLUMNS": columns, "CHUNK": chunk}, strips * chunks, (0, 1))
    second = Step("sum_columns", {"COLUMNS": columns, "CHUNK": chunks}, strips, (1, 2))
    return Plan([first, second], between=(chunks * columns,))


def _matmul(size: Mapping[str, int], buffers: tuple[int, ...], **defines: int) -> Step:
    rows, columns = size["ROWS"], size["COLUMNS"]
    # Sixteen vectors of sums, as wide as the columns allow: half of the registers, and the other half for the operands.
    vectors = 4 if columns % 64 == 0 else 2
    tile_rows = 16 // vectors
    tile: dict[str, int | str] = {**size, **defines, "TILE_ROWS": tile_rows, "TILE_VECTORS": vectors}
    strips = columns // (16 * vectors)
    # Copying a strip of b pays where b does not fit into the second cache, and where many rows use the copy.
    if 4 * size["INNER"] * columns > 1 << 20:
        panel = 512
        return Step("matmul", {**tile, "PANEL_ROWS": panel}, strips * (rows // panel), buffers)
    return Step("matmul", tile, strips * (rows // tile_rows), buffers)


def _matmul_int8(size: Mapping[str, int]) -> Step:
    rows, strips = size["ROWS"], size["COLUMNS"] // 64
    if rows == 1:
        return Step("matmul_int8", {**size, "TILE_VECTORS": 4}, strips, (0, 1, 2, 3))
    panel = min(rows, 512)
    tile = {"TILE_ROWS": 4, "TILE_VECTORS": 4, "PANEL_ROWS": panel}
    return Step("matmul_int8", {**size, **tile}, strips * (rows // panel), (0, 1, 2, 3))


def _attention(size: Mapping[str, int]) -> Step:
    tile = {"VECTORS": 4, "KEYS": 64, "KEY_TILE": 4, "VALUE_TILE": 4}
    groups = size["HEADS"] * (size["COUNT"] // 64)
    # Powers of two are easier than powers of e.
    scale = f"{size['DEPTH'] ** -0.5 * np.log2(np.e):.9g}f"
    return Step("attention", {**size, **tile, "SCALE": scale}, groups, (0, 1, 2, 3))


def _convolution(size: Mapping[str, int]) -> Plan:
    tile = {"TILE_CHANNELS": 4, "TILE_VECTORS": 4}
    across = size["WIDTH"] // 64 * (size["OUT_CHANNELS"] // 4)
    return Plan([Step("convolution", {**size, **tile}, across * size["HEIGHT"] * size["IMAGES"], (0, 1, 2))])
