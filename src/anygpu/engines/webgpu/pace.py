"""How much work goes to the device at once, decided without it.

Systems reset a device whose submission runs too long (Windows after 2 s, others after 5 to 10 s), and a desktop that
shares the device stands still meanwhile. So long kernels are cut along their groups, each part in a submission of its
own. How long a kernel takes is guessed from its flops and bytes by careful rates, until it has been measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import wgpu
from wgpu.backends import wgpu_native

from anygpu.codegen.kernel import Kernel
from anygpu.engines.driver import Bytes

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


class Work(NamedTuple):
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
    works: Sequence[Work],
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
    # WebGPU promises nanoseconds, wgpu gives the device's own ticks, and wgpu-py has no name for their length: so it is
    # asked of the library below, and without an answer there is no device time.
    try:
        return float(wgpu_native.lib.wgpuQueueGetTimestampPeriod(device.queue._internal))
    except AttributeError:
        return 0.0
