"""The device's own clock."""

from __future__ import annotations

from typing import Any

import numpy as np
import wgpu
from wgpu.backends import wgpu_native

from anygpu.engines.driver import Bytes

_FEATURE = "timestamp-query"
TICKS_BYTES = 16


class Stopwatch:
    """Two timestamps around one piece of work: a begin and an end, which may be in different submissions."""

    def __init__(self, device: Any, nanoseconds_per_tick: float) -> None:
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
        """What `ticks` holds, once it was read; `None` from a clock that ran backwards."""
        begin, end = (int(value) for value in ticks.view(np.uint64))
        return (end - begin) * self._period * 1e-9 if end >= begin else None


def stopwatch_of(device: Any) -> Stopwatch | None:
    """`None` where the device has no clock, or does not tell how long its ticks are."""
    period = _nanoseconds_per_tick(device) if _FEATURE in device.features else 0.0
    return Stopwatch(device, period) if period > 0 else None


def _nanoseconds_per_tick(device: Any) -> float:
    # WebGPU promises nanoseconds, wgpu gives the device's own ticks, and wgpu-py has no name for their length: so it is
    # asked of the library below, and without an answer there is no device time.
    try:
        return float(wgpu_native.lib.wgpuQueueGetTimestampPeriod(device.queue._internal))
    except AttributeError:
        return 0.0
