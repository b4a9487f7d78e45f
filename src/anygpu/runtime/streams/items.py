"""Streams of functions that are called with each item, or with each chunk, as if there were no others.

Each call is placed like any call of an offloaded function, and results are written in order. Functions whose chunks are
parts of one program are in `anygpu.runtime.streams.streaming`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from anygpu.array.core.structure import flatten
from anygpu.calls.offload import Offloaded
from anygpu.calls.options import Options
from anygpu.errors import InvalidOption, OverBudget
from anygpu.hardware.host import resident_bytes
from anygpu.placement.planner import Planner
from anygpu.receipts.notes import publish
from anygpu.receipts.receipt import Attempt, Phases, Receipt
from anygpu.runtime.future import Progress, showing
from anygpu.runtime.streams.pipeline import (
    CHUNK_BYTES,
    IN_FLIGHT,
    LEAST_BYTES,
    NOT_PREDICTED,
    USABLE,
    Clock,
    StageSeconds,
    StageState,
    Streamed,
    bytes_of_a_step,
    overlap,
)
from anygpu.runtime.streams.resuming import check_apart
from anygpu.runtime.streams.sinks import Joined, ListSink, StreamSink, ToFunction, sink_of
from anygpu.runtime.streams.sources import InMemory, StreamSource

#: A function that is not traced is assumed to need this many times the size of its arguments.
_UNKNOWN_TEMPORARIES = 6


class Items:
    """A stream of a function that is called with each item, or with each chunk, as if there were no others."""

    def __init__(
        self,
        task: str,
        function: Callable[..., Any],
        wanted: Options,
        planner: Callable[[], Planner],
        sink: Any,
        *,
        resume: bool,
    ) -> None:
        """Makes a stream of calls, each placed like any call of an offloaded function.

        Raises `InvalidOption` for `resume`.
        """
        if resume:
            raise InvalidOption(
                "resume=True needs a function that is recorded for the whole of its sources, which have to be files."
            )
        self._task = task
        self._offloaded: Offloaded[..., Any] = Offloaded(function, wanted, planner)
        self._given = sink
        self._several = isinstance(sink, tuple | list)
        self._receipts: list[Receipt] = []
        self._clock = Clock()
        self._done = 0
        self._held = 0
        self._most = 0

    def run(self, source: Any, axis: int, progress: Progress) -> Streamed:
        """Call the function with each item of an iterable, and write its results in order."""
        items = iter(source)
        numbers = iter(range(1 << 62))

        def read() -> tuple[tuple[Any, ...], int, int] | None:
            with self._clock.adding_to("read"):
                for item in items:
                    number = next(numbers)
                    return (item,), number, number + 1
            return None

        total = len(source) if hasattr(source, "__len__") else None
        known = [InMemory(each) for each in source if type(each) is np.ndarray] if isinstance(source, list) else []
        sinks: list[StreamSink] = [ListSink()] if self._given is None else self._sinks(known)
        try:
            return self._go(read, sinks, axis, progress, total)
        finally:
            if hasattr(items, "close"):
                items.close()

    def chunks(self, sources: list[StreamSource], axis: int, length: int, budget: int, progress: Progress) -> Streamed:
        """Call the function with each chunk of arrays.

        Raises `OverBudget` if one row of them does not fit into memory.
        """
        row = sum(bytes_of_a_step(each, axis) for each in sources)
        most = min(CHUNK_BYTES, int(budget * USABLE) // (IN_FLIGHT + _UNKNOWN_TEMPORARIES))
        size = max(1, min(max(1, length), most // max(1, row)))
        if size * row > most and length > 1:
            raise OverBudget("the host", int(row * (IN_FLIGHT + _UNKNOWN_TEMPORARIES) / USABLE), budget)
        begin = 0
        begun_with = resident_bytes()

        def read() -> tuple[tuple[Any, ...], int, int] | None:
            nonlocal begin, size
            if begin >= length and (begin or self._done):
                return None
            if resident_bytes() - begun_with > budget and size * row > LEAST_BYTES:
                size = max(1, size // 2)
            start, stop = begin, min(begin + size, length)
            begin = max(1, stop)
            with self._clock.adding_to("read"):
                # In memory of its own, because the function may keep a reference to it.
                parts = tuple(each.read(axis, start, stop, None) for each in sources)
            return parts, start, stop

        sinks: list[StreamSink] = [Joined(axis)] if self._given is None else self._sinks(sources)
        return self._go(read, sinks, axis, progress, length)

    def _sinks(self, sources: Sequence[StreamSource]) -> list[StreamSink]:
        """Makes the sinks that the caller named, and checks that they are apart from the sources."""
        sinks = [sink_of(each) for each in (self._given if self._several else (self._given,))]
        # The result of a chunk may be longer or shorter than the chunk, so nothing is done in place.
        check_apart(sinks, sources, [False] * len(sinks))
        return sinks

    def _go(
        self,
        read: Callable[[], tuple[tuple[Any, ...], int, int] | None],
        sinks: list[StreamSink],
        axis: int,
        progress: Progress,
        total: int | None,
    ) -> Streamed:
        """Read, call and write at once, until `read` returns `None`."""
        clock = self._clock = Clock()
        rows = [0] * len(sinks)

        def compute(item: tuple[tuple[Any, ...], int, int]) -> Iterator[tuple[Any, int, int]]:
            parts, start, stop = item
            value, receipt = self._offloaded.run(*parts)
            self._count(receipt, parts, value)
            yield value, start, stop

        def write(item: tuple[Any, int, int]) -> None:
            value, start, stop = item
            with clock.adding_to("write"):
                for number, (each, part) in enumerate(zip(sinks, self._parts(value, len(sinks)), strict=True)):
                    if isinstance(each, ToFunction | ListSink | Joined):
                        each.write(part, start, stop)
                    else:
                        first, rows[number] = rows[number], rows[number] + np.shape(part)[axis]
                        each.write(part, first, rows[number])
            self._done = stop
            advance(stop)

        try:
            for each in sinks:
                each.begin(None, axis, 1)
            with showing(progress, self._task, total) as advance:
                overlap(StageState(), read, compute, write)
            values = [each.finish() for each in sinks]
        finally:
            for each in sinks:
                each.abandon()
        return self._streamed(tuple(values) if self._several else values[0])

    def _parts(self, value: Any, wanted: int) -> Sequence[Any]:
        """Returns one array for each sink; raises `InvalidOption` if the function returned another number of them."""
        if not self._several:
            return (value,)
        if not isinstance(value, tuple | list) or len(value) != wanted:
            raise InvalidOption(
                f"{self._task} must return {wanted} arrays, one for each sink; got {type(value).__name__}."
            )
        return value

    def _count(self, receipt: Receipt, parts: Sequence[Any], value: Any) -> None:
        """Adds the receipt of one call to that of its device, and the memory that is in flight to the peak."""
        held = sum(_nbytes(each) for each in flatten((tuple(parts), value))[0])
        self._most = max(self._most, IN_FLIGHT * held + (receipt.peak_bytes or 0))
        # One for each device is enough: phases are added up.
        for number, each in enumerate(self._receipts):
            if each.device == receipt.device:
                self._receipts[number] = _added(each, receipt)
                break
        else:
            self._receipts.append(receipt)
        self._held += 1

    def _streamed(self, value: Any) -> Streamed:
        """Makes the report of the stream from its clock and its calls' receipts, and publishes one receipt for all."""
        clock, receipts = self._clock, self._receipts
        total = clock.total
        phases = [each.phases for each in receipts]
        seconds = StageSeconds(
            read=clock.read,
            transfer=sum(each.write + each.read + each.queue for each in phases),
            compute=sum(each.run + each.compile for each in phases),
            write=clock.write,
            total=total,
        )
        unknown = {"predicted_seconds": NOT_PREDICTED}
        how = f"in {self._held} calls"
        if receipts:
            main = max(receipts, key=lambda each: each.phases.total)
            together = main.phases
            for each in receipts:
                if each is not main:
                    together = _sum(together, each.phases)
            failures = [failure for each in receipts for failure in each.failures]
            spent = msgspec.structs.replace(together, other=0.0)
            receipt = msgspec.structs.replace(
                main,
                phases=msgspec.structs.replace(spent, other=max(0.0, total - spent.total)),
                attempts=(*failures, Attempt(device=main.device, phases=together)),
                predicted_seconds=None,
                unknown={**main.unknown, **unknown},
                how=how,
            )
        else:
            nothing = dict.fromkeys(("device_seconds", "peak_bytes", "kernels"), "there was nothing to compute")
            receipt = Receipt(
                task=self._task,
                device="numpy",
                kind="cpu",
                reason="there was nothing to compute.",
                phases=Phases(other=total),
                how=how,
                unknown={**unknown, **nothing},
            )
        publish(receipt)
        return Streamed(value, receipt, self._held, seconds, self._most)


def _added(one: Receipt, other: Receipt) -> Receipt:
    """Returns two receipts of one device as one: times and bytes add up, and memory is that of the larger."""
    known = one.peak_bytes is not None and other.peak_bytes is not None
    return msgspec.structs.replace(
        one,
        phases=_sum(one.phases, other.phases),
        attempts=(*one.attempts, *other.failures),
        bytes_to_device=one.bytes_to_device + other.bytes_to_device,
        bytes_to_host=one.bytes_to_host + other.bytes_to_host,
        bytes_skipped=one.bytes_skipped + other.bytes_skipped,
        peak_bytes=max(one.peak_bytes or 0, other.peak_bytes or 0) if known else one.peak_bytes,
    )


def _sum(one: Phases, other: Phases) -> Phases:
    first, second = msgspec.structs.asdict(one), msgspec.structs.asdict(other)
    return Phases(**{name: first[name] + second[name] for name in first})


def _nbytes(value: Any) -> int:
    found = getattr(value, "nbytes", 0)
    return found if isinstance(found, int) else 0
