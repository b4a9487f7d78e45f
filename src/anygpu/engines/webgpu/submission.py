"""The one way to the device's queue: how much work goes there at once, and submissions that repeat."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import wgpu
from wgpu.backends import wgpu_native

from anygpu.engines.codegen.kernel import Kernel
from anygpu.engines.driver import Bytes, Counters

# -- how much work goes to the device at once, decided without it
#
# Systems reset a device whose submission runs too long (Windows after 2 s, others after 5 to 10 s), and a desktop
# that shares the device stands still meanwhile. So long kernels are cut along their groups, each part in a submission
# of its own. How long a kernel takes is guessed from its flops and bytes by careful rates, until it has been
# measured.


#: No dispatch is meant to run longer, and no submission of several.
DISPATCH_SECONDS = 0.2
SUBMISSION_SECONDS = 1.0

#: Slower than any device that is worth using: a software adapter with a kernel that does not suit it.
CAREFUL_FLOPS_PER_SECOND = 0.5e9
CAREFUL_BYTES_PER_SECOND = 0.5e9

#: How much slower than measured a kernel may be the next time, and how much slower than the slowest one that was
#: measured a kernel may be that never was.
_MARGIN_OF_MEASURED = 2.0
_MARGIN_OF_UNKNOWN = 8.0


#: A kernel is measured so often, and so many kernels are remembered.
MEASUREMENTS = 3
REMEMBERED_KERNELS = 4096


class SubmittedWork(NamedTuple):
    """One command as pacing sees it."""

    seconds: float
    groups: int = 0
    #: Whether a part of the groups can be run alone.
    divisible: bool = False


class GridPart(NamedTuple):
    """A command, or some of its groups."""

    command: int
    first_group: int
    groups: int


def careful_seconds(kernel: Kernel) -> float:
    return kernel.flops / CAREFUL_FLOPS_PER_SECOND + kernel.bytes_moved / CAREFUL_BYTES_PER_SECOND


def cut(groups: int, seconds: float, *, limit: float, fold: int) -> list[tuple[int, int]]:
    """First group and number of groups of each part, so that none is expected to pass `limit` seconds.

    A part of more than `fold` groups is dispatched as whole rows of that many, and what fills up the last row would be
    of the next part: so every such part but the last is a whole number of rows.
    """
    if seconds <= limit or groups <= 1:
        return [(0, groups)]
    size = max(1, int(groups * (limit / seconds)))
    if size > fold:
        size = size // fold * fold
    return [(first, min(size, groups - first)) for first in range(0, groups, size)]


def plan(
    works: Sequence[SubmittedWork],
    *,
    fold: int,
    dispatch_seconds: float = DISPATCH_SECONDS,
    submission_seconds: float = SUBMISSION_SECONDS,
) -> list[list[GridPart]]:
    """Group commands into submissions, in their order, each once or in parts that cover its groups once."""
    submissions: list[list[GridPart]] = [[]]
    filled = 0.0
    for command, work in enumerate(works):
        if work.seconds > dispatch_seconds:
            parts = cut(work.groups, work.seconds, limit=dispatch_seconds, fold=fold) if work.divisible else []
            whole = [GridPart(command, 0, work.groups)]
            submissions += [[GridPart(command, *part)] for part in parts] or [whole]
            submissions.append([])
            filled = 0.0
            continue
        if submissions[-1] and filled + work.seconds > submission_seconds:
            submissions.append([])
            filled = 0.0
        submissions[-1].append(GridPart(command, 0, work.groups))
        filled += work.seconds
    return [submission for submission in submissions if submission]


class KernelPace:
    """The measured times of a device's kernels, in multiples of the careful guess."""

    def __init__(self) -> None:
        """Nothing is measured yet; unknown kernels take as long as assumed."""
        #: For each kernel's text the least that was measured, and how often it was.
        self._measured: dict[str, tuple[float, int]] = {}
        self._unknown = 1.0

    @property
    def unknown(self) -> float:
        """The multiple for a kernel that was never measured."""
        return self._unknown

    def wants(self, source: str) -> bool:
        """Whether a measurement would still teach something. The first is often too long: the driver compiles in it."""
        return source not in self._measured or self._measured[source][1] < MEASUREMENTS

    def learn(self, sources: Iterable[str], multiple: float) -> None:
        """Record kernels that ran together: measured seconds by carefully guessed seconds."""
        for source in sources:
            least, count = self._measured.pop(source, (multiple, 0))
            self._measured[source] = min(least, multiple), count + 1
        while len(self._measured) > REMEMBERED_KERNELS:
            del self._measured[next(iter(self._measured))]
        slowest = max((least for least, _ in self._measured.values()), default=1.0)
        self._unknown = max(slowest, min(1.0, slowest * _MARGIN_OF_UNKNOWN))

    def seconds(self, source: str, careful: float) -> float:
        """Expected seconds of a kernel, on the safe side."""
        known = self._measured.get(source)
        return careful * (self._unknown if known is None else known[0] * _MARGIN_OF_MEASURED)


# -- the device's own clock


_FEATURE = "timestamp-query"
TICKS_BYTES = 16


class Stopwatch:
    """Two timestamps around one piece of work: a begin and an end, which may be in different submissions."""

    def __init__(self, device: Any, nanoseconds_per_tick: float) -> None:
        """Two timestamps on the device, and the buffer that they are read from."""
        self._period = nanoseconds_per_tick
        self._queries = device.create_query_set(type="timestamp", count=2)
        usage = wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
        self.ticks = device.create_buffer(size=TICKS_BYTES, usage=usage)

    def marks(self, *, begins: bool, ends: bool) -> dict[str, Any]:
        """Arguments for a compute pass that begins or ends the work, or both."""
        writes: dict[str, Any] = {"query_set": self._queries}
        if begins:
            writes["beginning_of_pass_write_index"] = 0
        if ends:
            writes["end_of_pass_write_index"] = 1
        return {"timestamp_writes": writes}

    def resolve(self, encoder: Any) -> None:
        encoder.resolve_query_set(self._queries, 0, 2, self.ticks, 0)

    def seconds(self, ticks: Bytes) -> float | None:
        """Seconds between both ticks, once they were read; `None` from a clock that ran backwards."""
        begin, end = (int(value) for value in ticks.view(np.uint64))
        return (end - begin) * self._period * 1e-9 if end >= begin else None


def stopwatch_of(device: Any) -> Stopwatch | None:
    """`None` where the device has no clock, or does not tell how long its ticks are."""
    period = _nanoseconds_per_tick(device) if _FEATURE in device.features else 0.0
    return Stopwatch(device, period) if period > 0 else None


def _nanoseconds_per_tick(device: Any) -> float:
    """Nanoseconds of one tick of the device's clock; 0 where that is not known."""
    # WebGPU promises nanoseconds, wgpu gives the device's own ticks, and wgpu-py has no name for their length: so it is
    # asked of the library below, and without an answer there is no device time.
    try:
        return float(wgpu_native.lib.wgpuQueueGetTimestampPeriod(device.queue._internal))
    except AttributeError:
        return 0.0


# -- submissions that repeat, straight to the library's C functions
#
# wgpu-py makes Python objects and C structs for every command buffer, pass and launch, which takes several times as
# long as the library's own part. Nothing of it changes when a launch repeats. So its parts are kept as the library's
# own pointers, and given to the same functions that wgpu-py calls. None of this is wgpu-py's public interface: where
# any of it is missing, `native_calls` returns `None`, and launches are encoded in the ordinary way each time.


_CHECKED = (
    "wgpuDeviceCreateCommandEncoder",
    "wgpuCommandEncoderBeginComputePass",
    "wgpuComputePassEncoderEnd",
    "wgpuCommandEncoderFinish",
    "wgpuCommandEncoderClearBuffer",
    "wgpuCommandEncoderCopyBufferToBuffer",
    "wgpuQueueSubmit",
    "wgpuDeviceCreateBindGroupLayout",
)
_PLAIN = (
    "wgpuComputePassEncoderSetPipeline",
    "wgpuComputePassEncoderSetBindGroup",
    "wgpuComputePassEncoderDispatchWorkgroups",
    "wgpuComputePassEncoderRelease",
    "wgpuCommandEncoderRelease",
    "wgpuCommandBufferRelease",
    "wgpuBindGroupLayoutRelease",
)


class NativeLaunch(NamedTuple):
    """A launch as C functions take it."""

    pipeline: Any
    group: Any
    offset_count: int
    offsets: Any
    grid: tuple[int, int, int]


class NativeClear(NamedTuple):
    """Zeros in a part of a buffer."""

    buffer: Any
    offset: int
    nbytes: int


class NativeCopy(NamedTuple):
    """A copy between two buffers."""

    source: Any
    source_offset: int
    target: Any
    target_offset: int
    nbytes: int


NativeStep = NativeLaunch | NativeClear | NativeCopy


class Replay(NamedTuple):
    """A whole submission. `keep` are the Python objects whose pointers are in it, so that they stay."""

    steps: Sequence[NativeStep]
    dispatches: int
    keep: Sequence[Any]


class NativeCalls:
    """The library's own functions on one device.

    `checked` are those of wgpu-py that raise what the library finds wrong; a plain one finds nothing wrong, or only
    together with the end of its pass.
    """

    def __init__(self, device: Any, ffi: Any, lib: Any, checked: Any) -> None:
        """The few functions of wgpu-native that a submission needs, without wgpu's Python objects around them."""
        self._ffi = ffi
        self._device, self._queue = device._internal, device.queue._internal
        # Empty structs: no labels, no timestamps.
        self._encoder_descriptor = ffi.new("WGPUCommandEncoderDescriptor *")
        self._pass_descriptor = ffi.new("WGPUComputePassDescriptor *")
        self._buffer_descriptor = ffi.new("WGPUCommandBufferDescriptor *")
        self._layout_descriptor = ffi.new("WGPUBindGroupLayoutDescriptor *")
        self._buffers = ffi.new("WGPUCommandBuffer[1]")
        (
            self._new_encoder,
            self._begin_pass,
            self._end_pass,
            self._finish,
            self._clear,
            self._copy,
            self._submit,
            self._new_layout,
        ) = (getattr(checked, name) for name in _CHECKED)
        (
            self._set_pipeline,
            self._set_group,
            self._dispatch,
            self._release_pass,
            self._release_encoder,
            self._release_buffer,
            self._release_layout,
        ) = (getattr(lib, name) for name in _PLAIN)

    def launch(self, pipeline: Any, group: Any, place: int | None, grid: tuple[int, ...]) -> NativeLaunch:
        """`place` is the dynamic offset of the launch's numbers."""
        offsets = self._ffi.NULL if place is None else self._ffi.new("uint32_t[]", [place])
        columns, rows, layers = (*grid, 1, 1)[:3]
        return NativeLaunch(
            pipeline._internal, group._internal, int(place is not None), offsets, (columns, rows, layers)
        )

    def submit(self, replay: Replay) -> None:
        """Encode and submit a replay, and release all that was made for it."""
        encoder = self._new_encoder(self._device, self._encoder_descriptor)
        try:
            self._encode(encoder, replay.steps)
            # Raises when the device is lost. What is not finished must never be submitted (see `gate`).
            buffer = self._finish(encoder, self._buffer_descriptor)
        finally:
            self._release_encoder(encoder)
        try:
            self._buffers[0] = buffer
            self._submit(self._queue, 1, self._buffers)
        finally:
            self._release_buffer(buffer)

    def _encode(self, encoder: Any, steps: Sequence[NativeStep]) -> None:
        """Encode the steps: launches share a pass until a copy comes between them."""
        in_pass: Any = None
        pipeline: Any = None
        try:
            for step in steps:
                if type(step) is NativeLaunch:
                    if in_pass is None:
                        in_pass, pipeline = self._begin_pass(encoder, self._pass_descriptor), None
                    if step.pipeline is not pipeline:
                        pipeline = step.pipeline
                        self._set_pipeline(in_pass, pipeline)
                    self._set_group(in_pass, 0, step.group, step.offset_count, step.offsets)
                    self._dispatch(in_pass, *step.grid)
                    continue
                if in_pass is not None:
                    self._end_pass(in_pass)
                    self._release_pass(in_pass)
                    in_pass = None
                if type(step) is NativeClear:
                    self._clear(encoder, *step)
                else:
                    self._copy(encoder, *step)
            if in_pass is not None:
                self._end_pass(in_pass)
        finally:
            if in_pass is not None:
                self._release_pass(in_pass)

    def ask(self) -> None:
        """Raises the library's error if the device is lost."""
        self._release_layout(self._new_layout(self._device, self._layout_descriptor))


def native_calls(device: Any) -> NativeCalls | None:
    """`None` where wgpu-py is not built as this expects."""
    try:
        from wgpu.backends.wgpu_native._api import libf
        from wgpu.backends.wgpu_native._ffi import ffi, lib

        return NativeCalls(device, ffi, lib, libf)
    except Exception:  # noqa: BLE001 - another version of wgpu-py, and cffi raises errors of its own
        return None


# -- the one way to the device's queue
#
# The library ends the whole process when a submission is not valid: after the device was lost, or with a buffer that
# was destroyed or is mapped. So every submission passes through here; nothing is ever destroyed while it could be
# submitted (it is let go, and the library frees it after its last use); and encoding is finished right before the
# submission, which fails softly when the device is lost. A device that is lost between these two calls still takes the
# process with it: nothing in the process can prevent that, and it is why workers are processes.


class Gate:
    """Submits, and counts what it submits."""

    def __init__(self, device: Any, counters: Counters) -> None:
        """Submits to a device's queue, and counts."""
        self._device = device
        self._counters = counters
        #: Bytes that were written to the queue and that no submission has taken along yet.
        self.written = 0

    def send(self, encoder: Any) -> None:
        """Finish and submit what was encoded."""
        finished = encoder.finish()
        self._device.queue.submit([finished])
        self._counters.submits += 1
        self.written = 0

    def replay(self, replay: Replay, native: NativeCalls) -> None:
        """`send` of a submission that was sent before."""
        native.submit(replay)
        self._counters.submits += 1
        self.written = 0

    def flush(self) -> None:
        """Start with what was written. The library also gives back the memory that it used for it."""
        if self.written:
            self.send(self._device.create_command_encoder())
