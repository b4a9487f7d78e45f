"""The one way to the device's queue, and submissions that repeat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from anygpu.engines.driver import Counters

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
    buffer: Any
    offset: int
    nbytes: int


class NativeCopy(NamedTuple):
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
        self._device = device
        self._counters = counters
        #: Bytes that were written to the queue and that no submission has taken along yet.
        self.written = 0

    def send(self, encoder: Any) -> None:
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
