"""The report of a stream: its result, the time of each stage, and its progress."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import msgspec

from anygpu.base.display import drawn
from anygpu.base.units import readable_bytes, readable_seconds
from anygpu.receipts import Receipt
from anygpu.streams.sources import Source, shortened

Stage = Literal["reading", "computing", "writing"]
#: Larger chunks are not faster.
CHUNK_BYTES = 16 << 20
#: Chunks on their way at once, of arguments and of results: one is worked on by each of two stages, one is between. If
#: memory allows it there are more, so that a stage which is held up for a moment does not hold up the others.
IN_FLIGHT, MOST_IN_FLIGHT = 3, 6
#: The usable share of the memory limit: the rest is for allocator overhead and Python.
USABLE = 0.8
#: Chunks are not made smaller than this because of other memory of the process.
LEAST_BYTES = 1 << 20
#: Receipts say why.
NOT_PREDICTED = "a stream as a whole is not predicted"


class Seconds(msgspec.Struct, frozen=True, kw_only=True):
    """The busy time of each stage. Stages overlap, so their sum exceeds the total."""

    read: float
    #: Transfers to and from the device.
    transfer: float
    compute: float
    write: float
    total: float
    #: Seconds of transfers that overlapped with the computation of another chunk.
    overlapped: float = 0.0


class Streamed(NamedTuple):
    """The result of a stream, with its receipt and timings."""

    #: The array, the path or whatever the results went into; several if the function returns several.
    value: Any
    receipt: Receipt
    chunks: int
    seconds: Seconds
    #: Peak memory: the chunks in flight, and the memory for computing one of them.
    peak_bytes: int

    @property
    def slowest(self) -> Stage:
        """The stage that the others waited for. Computing includes transfers that it waited for."""
        return max(self._stages, key=lambda stage: self._stages[stage])

    @property
    def overlap(self) -> float:
        """The total by the slowest stage: 1 if all others are hidden behind it."""
        slowest = self._stages[self.slowest]
        return self.seconds.total / slowest if slowest > 0 else 1.0

    @property
    def _stages(self) -> dict[Stage, float]:
        seconds = self.seconds
        computing = seconds.transfer + seconds.compute - seconds.overlapped
        return {"reading": seconds.read, "computing": computing, "writing": seconds.write}

    def __str__(self) -> str:
        stages = ", ".join(f"{name} {readable_seconds(value)}" for name, value in self._stages.items())
        return (
            f"{self.receipt.task}: {self.chunks} chunks on {self.receipt.device} in "
            f"{readable_seconds(self.seconds.total)} ({stages}); {self.slowest} was the slowest stage, and the total "
            f"is {self.overlap:.2f} times that; at most {readable_bytes(self.peak_bytes)} at once."
        )

    def _repr_html_(self) -> str | None:
        return drawn(self)


class Clock:
    """Adds up the times of the stages."""

    def __init__(self) -> None:
        self.begin = time.perf_counter()
        self.read = 0.0
        self.write = 0.0

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.read += time.perf_counter() - begin

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.write += time.perf_counter() - begin

    @property
    def total(self) -> float:
        return time.perf_counter() - self.begin


def bytes_of_a_step(source: Source, axis: int) -> int:
    """The bytes of one step along the axis."""
    return math.prod(shortened(source.shape, axis, 1)) * source.dtype.itemsize
