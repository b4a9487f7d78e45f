"""Counts, sums and quantiles of calls, by function and device, in a fixed memory.

`Statistics` folds receipts, one after the other; `Summary` is what it knows at a moment, as a record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from anygpu.base.display import drawn
from anygpu.base.printable import encode_json, printable
from anygpu.base.units import readable_bytes, readable_seconds
from anygpu.observe.batch import Batch
from anygpu.observe.parts import StepTally
from anygpu.observe.sketch import Sketch
from anygpu.receipts import PHASES, Receipt

#: Functions that are counted by name; all others together are "other".
MOST_FUNCTIONS = 200
#: Names of errors that are counted of one function.
MOST_ERRORS = 20
#: Longer names are cut where they are shown in a table.
_LONGEST = 60
OTHER = "other"

#: What "lately" is: so many parts of so many seconds.
PARTS, PART_SECONDS = 5, 60.0

_PHASES = (*PHASES, "other")


class Quantiles(msgspec.Struct, frozen=True, kw_only=True):
    """Of the seconds of calls, each within 1 %."""

    count: int
    total: float
    p50: float | None
    p90: float | None
    p99: float | None
    most: float


class CallStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one function on one device."""

    function: str
    device: str
    #: All that ended, with a value or without.
    calls: int
    #: Those that raised, by the name of the error.
    errors: dict[str, int]
    #: Calls that were tried on another device before.
    fallbacks: int
    #: Operations that the device lacks and the host did.
    host_operations: int
    bytes_to_device: int
    bytes_to_host: int
    bytes_skipped: int
    #: Programs that were compiled.
    compilations: int
    #: Seconds by phase; they add up to those of the calls.
    phases: dict[str, float]
    #: Of calls for which a time was predicted: both sums, without what is not predicted: planning and waiting.
    predicted_seconds: float
    seconds_of_predicted: float
    #: Since the beginning, and in the last five minutes.
    seconds: Quantiles
    lately: Quantiles
    #: Seconds of named parts of `run`, of calls that have some: a training step's are forward, backward and optimizer.
    parts: dict[str, float] = {}
    #: Attempts that failed and were made again on the same device, as a step is that was out of memory.
    repeats: int = 0
    #: The highest of the calls for which it was measured, and what had been predicted for that call.
    peak_bytes: int | None = None
    predicted_bytes: int | None = None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What has been seen since statistics were begun."""

    schema: str = "anygpu.statistics/1"
    #: How long that is.
    seconds: float
    calls: tuple[CallStatistics, ...]
    #: Whether anything is counted.
    observed: bool = True

    def to_json(self) -> bytes:
        return msgspec.json.format(encode_json(self), indent=2)

    def __str__(self) -> str:
        if not self.observed:
            return "Nothing is counted. Call anygpu.observe.start() first, or set ANYGPU_OBSERVE=1."
        if not self.calls:
            return f"No calls in {readable_seconds(self.seconds)}."
        rows: list[tuple[str, ...]] = [
            ("function", "device", "calls", "errors", "fallbacks", "total", "p50", "p90", "p99", "moved")
        ]
        rows += [_row(each) for each in self.calls]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        return "\n".join("  ".join(_cells(row, widths)).rstrip() for row in rows)

    def _repr_html_(self) -> str | None:
        return drawn(self)


class _Series:
    """One function on one device."""

    def __init__(self) -> None:
        self.calls = 0
        self.errors: dict[str, int] = {}
        self.fallbacks = 0
        self.host_operations = 0
        self.bytes_to_device = 0
        self.bytes_to_host = 0
        self.bytes_skipped = 0
        self.compilations = 0
        self.phases = dict.fromkeys(_PHASES, 0.0)
        self.predicted_seconds = 0.0
        self.seconds_of_predicted = 0.0
        self.sketch = Sketch()
        self.step = StepTally()
        #: The newest last, each with the number of its part of time.
        self.parts: deque[tuple[int, Sketch]] = deque(maxlen=PARTS + 1)

    def part(self, number: int) -> Sketch:
        for known, sketch in self.parts:
            if known == number:
                return sketch
        sketch = Sketch()
        self.parts.append((number, sketch))
        return sketch

    def add_receipt(self, receipt: Receipt) -> None:
        phases = self.phases
        for name in _PHASES:
            phases[name] += getattr(receipt.phases, name)
        attempts = receipt.attempts
        if attempts and not attempts[-1].succeeded:
            self.add_error(attempts[-1].error or OTHER)
        self.fallbacks += any(attempt.device != receipt.device for attempt in attempts)
        self.host_operations += len(receipt.host_operations)
        self.bytes_to_device += receipt.bytes_to_device
        self.bytes_to_host += receipt.bytes_to_host
        self.bytes_skipped += receipt.bytes_skipped
        if receipt.driver is not None:
            self.compilations += receipt.driver.compilations
        if receipt.predicted_seconds is not None:
            self.predicted_seconds += receipt.predicted_seconds
            # What is done once for a shape is not predicted, nor what others are waited for.
            once = receipt.phases.trace + receipt.phases.plan + receipt.phases.compile + receipt.phases.queue
            self.seconds_of_predicted += receipt.seconds - once
        self.step.add(receipt)

    def add_error(self, name: str) -> None:
        known = name if name in self.errors or len(self.errors) < MOST_ERRORS else OTHER
        self.errors[known] = self.errors.get(known, 0) + 1

    def summary(self, function: str, device: str, now: int) -> CallStatistics:
        lately = Sketch()
        for number, sketch in self.parts:
            if now - PARTS < number <= now:
                lately.merge(sketch)
        return CallStatistics(
            function=function,
            device=device,
            calls=self.calls,
            errors=dict(self.errors),
            fallbacks=self.fallbacks,
            host_operations=self.host_operations,
            bytes_to_device=self.bytes_to_device,
            bytes_to_host=self.bytes_to_host,
            bytes_skipped=self.bytes_skipped,
            compilations=self.compilations,
            phases=dict(self.phases),
            predicted_seconds=self.predicted_seconds,
            seconds_of_predicted=self.seconds_of_predicted,
            seconds=_quantiles(self.sketch),
            lately=_quantiles(lately),
            parts=dict(self.step.parts),
            repeats=self.step.repeats,
            peak_bytes=self.step.peak_bytes,
            predicted_bytes=self.step.predicted_bytes,
        )


class Statistics:
    """Folds what calls leave behind. For one thread at a time."""

    def __init__(self, begin: float) -> None:
        self._begin = begin
        self._series: dict[tuple[str, str], _Series] = {}
        self._functions: set[str] = set()

    def add(self, seen: Iterable[Batch]) -> None:
        for batch in seen:
            series = self._of(self._key(batch.function, batch.device))
            series.calls += len(batch.seconds)
            for receipt in batch.receipts:
                series.add_receipt(receipt)
            for failure in batch.failures:
                series.add_error(failure.error)
            if not batch.receipts:
                run = float(batch.run.sum())
                total = float(batch.seconds.sum())
                series.phases["run"] += run
                series.phases["plan"] += total - run
                if batch.predicted is not None:
                    series.predicted_seconds += batch.predicted * len(batch.seconds)
                    series.seconds_of_predicted += run
            series.sketch.add(batch.seconds)
            first, last = self._part(float(batch.ends.min())), self._part(float(batch.ends.max()))
            if first == last:
                series.part(first).add(batch.seconds)
                continue
            parts = (batch.ends - self._begin) // PART_SECONDS
            for part in range(first, last + 1):
                series.part(part).add(batch.seconds[parts == part])

    def summary(self, now: float) -> Summary:
        part = self._part(now)
        calls = [series.summary(*key, part) for key, series in self._series.items()]
        calls.sort(key=lambda each: -each.seconds.total)
        return Summary(seconds=now - self._begin, calls=tuple(calls))

    def histograms(self, bounds: Sequence[float]) -> dict[tuple[str, str], list[int]]:
        """By function and device: how many calls took at most so many seconds, for each bound."""
        return {key: series.sketch.counts_up_to(bounds) for key, series in self._series.items()}

    def _part(self, now: float) -> int:
        return int((now - self._begin) // PART_SECONDS)

    def _key(self, function: str, device: str) -> tuple[str, str]:
        if function not in self._functions:
            if len(self._functions) >= MOST_FUNCTIONS:
                return OTHER, device
            self._functions.add(function)
        return function, device

    def _of(self, key: tuple[str, str]) -> _Series:
        found = self._series.get(key)
        if found is None:
            found = self._series[key] = _Series()
        return found


def _row(each: CallStatistics) -> tuple[str, ...]:

    times = (each.seconds.total, each.seconds.p50, each.seconds.p90, each.seconds.p99)
    return (
        printable(each.function, most=_LONGEST),
        each.device,
        str(each.calls),
        str(sum(each.errors.values())),
        str(each.fallbacks),
        *(readable_seconds(time or 0.0) for time in times),
        readable_bytes(each.bytes_to_device + each.bytes_to_host),
    )


def _cells(row: tuple[str, ...], widths: list[int]) -> list[str]:
    """Words to the left, numbers to the right."""
    words = [cell.ljust(width) for cell, width in zip(row[:2], widths, strict=False)]
    return words + [cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True)]


def _quantiles(sketch: Sketch) -> Quantiles:
    return Quantiles(
        count=sketch.count,
        total=sketch.total,
        p50=sketch.quantile(0.5),
        p90=sketch.quantile(0.9),
        p99=sketch.quantile(0.99),
        most=sketch.most,
    )
