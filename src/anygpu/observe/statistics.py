"""Counts, sums and quantiles of calls, by function and device, in a fixed memory.

`Sketch` has quantiles of times, `CallBatch` is how calls arrive, `RunningStatistics` folds them one after the other,
and `Summary` is what it knows at a moment, as a record and as text.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from anygpu.base.events import drawn
from anygpu.base.printable import encode_json
from anygpu.base.tables import Column, to_text
from anygpu.base.units import readable_seconds
from anygpu.receipts.notes import Failure, Note
from anygpu.receipts.receipt import PHASES, Receipt

RELATIVE_ERROR = 0.01
_GAMMA = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_PER_LOG = 1 / math.log(_GAMMA)
#: Shorter and longer times count as these: a nanosecond, and some eleven days.
_LEAST, _MOST = 1e-9, 1e6
#: Buckets are added this many at a time, so that arrays do not grow with every new value.
_STEP = 32
#: Up to so many times, every count fits into 32 bits.
_MOST_SMALL = 2**31 - 1


class Sketch:
    """Times that have been seen, in seconds, as counts in buckets that grow by 2 %.

    Quantiles are within 1 % of a time that was seen, however many there were; sum and maximum are exact. A sketch takes
    some kilobytes at most, and two can be merged.
    """

    __slots__ = ("_counts", "_first", "count", "most", "total")

    def __init__(self) -> None:
        self.count = 0
        #: The sum and the longest one, exactly.
        self.total = 0.0
        self.most = 0.0
        #: The number of the first bucket that there is room for.
        self._first = 0
        #: In half the memory as long as no count can overflow.
        self._counts: NDArray[np.integer] = np.zeros(0, np.int32)

    def add(self, seconds: NDArray[np.float64]) -> None:
        """Counts times. Those beyond a nanosecond or eleven days count as these."""
        if not len(seconds):
            return
        self.count += len(seconds)
        self.total += float(seconds.sum())
        self.most = max(self.most, float(seconds.max()))
        buckets = np.ceil(np.log(np.clip(seconds, _LEAST, _MOST)) * _PER_LOG).astype(np.int64)
        low, high = int(buckets.min()), int(buckets.max())
        self._make_room(low, high)
        self._counts[low - self._first : high - self._first + 1] += np.bincount(buckets - low)

    def merge(self, other: Sketch) -> None:
        """Adds all times of another sketch."""
        if not other.count:
            return
        self.count += other.count
        self.total += other.total
        self.most = max(self.most, other.most)
        self._make_room(other._first, other._first + len(other._counts) - 1)
        begin = other._first - self._first
        self._counts[begin : begin + len(other._counts)] += other._counts

    def quantile(self, share: float) -> float | None:
        """The time that this share of all times does not exceed, within 1 %; `None` before the first."""
        if not self.count:
            return None
        rank = math.ceil(share * self.count) or 1
        bucket = int(np.searchsorted(np.cumsum(self._counts), rank)) + self._first
        middle = 2 * math.exp(bucket / _PER_LOG) / (1 + _GAMMA)
        return min(middle, self.most)

    def counts_up_to(self, bounds: Sequence[float]) -> list[int]:
        """For each bound, which rise, how many times did not exceed it.

        A bucket counts where all of it is below the bound: a time that is less than 2 % shorter may be missing.
        """
        if not self.count:
            return [0] * len(bounds)
        # A bound that is one of a bucket belongs to it, whatever the rounding.
        last = np.floor(np.log(np.asarray(bounds, float)) * _PER_LOG + 1e-9).astype(np.int64) - self._first
        below = np.concatenate(([0], np.cumsum(self._counts)))
        counts: list[int] = below[np.clip(last + 1, 0, len(self._counts))].tolist()
        return counts

    @property
    def nbytes(self) -> int:
        return self._counts.nbytes

    def _make_room(self, low: int, high: int) -> None:
        """Extends the buckets so that those from `low` to `high` are there, a block of `_STEP` at a time."""
        if self.count > _MOST_SMALL and self._counts.dtype == np.int32:
            self._counts = self._counts.astype(np.int64)
        counts, first = self._counts, self._first
        if len(counts) and first <= low and high < first + len(counts):
            return
        if len(counts):
            low, high = min(low, first), max(high, first + len(counts) - 1)
        begin = low // _STEP * _STEP
        room = np.zeros((high // _STEP + 1) * _STEP - begin, counts.dtype)
        if len(counts):
            room[first - begin : first - begin + len(counts)] = counts
        self._first, self._counts = begin, room


#: Names of parts that are kept of one function, and characters of each. All others together are "other".
MOST_PARTS, LONGEST_PART = 16, 40
_OTHER = "other"


def add_parts(sums: dict[str, float], parts: Mapping[str, float]) -> None:
    """Adds seconds to sums by name, which stay few whatever the names are.

    Names are cut, and those beyond `MOST_PARTS` are counted together. Seconds that are no positive number are left out.
    """
    for given, seconds in parts.items():
        if not 0.0 < seconds < float("inf"):  # a clock that went backwards, or no number
            continue
        name = given[:LONGEST_PART]
        if name not in sums and len(sums) >= MOST_PARTS:
            name = _OTHER
        sums[name] = sums.get(name, 0.0) + seconds


def repeats_of(receipt: Receipt) -> int:
    """Attempts that failed and were made again on the device on which the call ended."""
    return sum(not attempt.succeeded and attempt.device == receipt.device for attempt in receipt.attempts[:-1])


def breakdown(phases: Mapping[str, float], parts: Mapping[str, float]) -> list[tuple[str, float]]:
    """Seconds of calls with parts, by step in the order in which they happen; without those that took no time."""
    before = [("wait", phases.get("queue", 0.0)), ("transfer", phases.get("write", 0.0) + phases.get("read", 0.0))]
    named = [*before, *parts.items()]
    rest = sum(phases.values()) - sum(seconds for _, seconds in named)
    return [(name, seconds) for name, seconds in [*named, ("rest", rest)] if seconds > 0.0]


CallTimes = NDArray[np.float64]


class CallBatch(NamedTuple):
    """Calls of one function on one device; each array has an element for each call."""

    function: str
    device: str
    #: Seconds that the caller waited, and when that ended.
    seconds: CallTimes
    ends: CallTimes
    #: Seconds of the function itself: without tracing, planning, compiling and waiting for a turn.
    run: CallTimes
    #: Seconds that were predicted for each of them; `None` if nothing was.
    predicted: float | None = None
    #: The receipts and failures that they were made of, beside notes.
    receipts: Sequence[Receipt] = ()
    failures: Sequence[Failure] = ()


def batches(notes: Sequence[Note], others: Iterable[tuple[Receipt | Failure, float]]) -> list[CallBatch]:
    """The calls by function and device: those that left a note, and others with when they ended."""
    return [*_of_notes(notes), *_of_others(others)]


def _of_notes(notes: Sequence[Note]) -> Iterable[CallBatch]:
    """Batches of calls on NumPy; those of one call site that say the same are together."""
    groups: dict[int, list[Note]] = {}
    for note in notes:
        # Calls of one call site share what they say, until that changes.
        group = groups.get(id(note[0]))
        if group is None:
            groups[id(note[0])] = [note]
        else:
            group.append(note)
    for group in groups.values():
        said = group[0][0]
        _, begins, readies, ends = zip(*group, strict=True)
        begin, ready, end = np.array(begins), np.array(readies), np.array(ends)
        yield CallBatch(said.task, "numpy", end - begin, end, end - ready, said.predicted)


def _of_others(others: Iterable[tuple[Receipt | Failure, float]]) -> Iterable[CallBatch]:
    """Batches of receipts and of failures, by function and device."""
    groups: dict[tuple[bool, str, str], list[tuple[Receipt | Failure, float]]] = {}
    for one, end in others:
        groups.setdefault((type(one) is Failure, one.task, one.device), []).append((one, end))
    for (failed, function, device), group in groups.items():
        ends = np.array([end for _, end in group])
        if failed:
            failures = [one for one, _ in group if isinstance(one, Failure)]
            seconds = np.array([one.end - one.begin for one in failures])
            yield CallBatch(function, device, seconds, ends, seconds, failures=failures)
        else:
            receipts = [one for one, _ in group if isinstance(one, Receipt)]
            seconds = np.array([one.phases.total for one in receipts])
            before = [one.phases.trace + one.phases.plan + one.phases.compile + one.phases.queue for one in receipts]
            yield CallBatch(function, device, seconds, ends, seconds - np.array(before), receipts=receipts)


#: Functions that are counted by name; all others together are "other".
MOST_FUNCTIONS = 200
#: Names of errors that are counted of one function.
MOST_ERRORS = 20
OTHER = "other"

#: The parts of "lately", and the seconds of each.
PARTS, PART_SECONDS = 5, 60.0

_PHASES = (*PHASES, "other")


class Quantiles(msgspec.Struct, frozen=True, kw_only=True):
    """Quantiles of the seconds of calls, each within 1 %."""

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
    #: Calls that raised, by the name of the error.
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
    #: Predicted and actual seconds of calls with a prediction, without what is not predicted: planning and waiting.
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
    """Statistics of all calls since they were begun."""

    schema: str = "anygpu.statistics/1"
    #: How long that is.
    seconds: float
    calls: tuple[CallStatistics, ...]
    #: Whether anything is counted.
    observed: bool = True

    def to_json(self) -> bytes:
        """The document as indented JSON, in UTF-8."""
        return msgspec.json.format(encode_json(self), indent=2)

    def __str__(self) -> str:
        if not self.observed:
            return "Nothing is counted. Call anygpu.observe.start() first, or set ANYGPU_OBSERVE=1."
        if not self.calls:
            return f"No calls in {readable_seconds(self.seconds)}."
        return to_text(SUMMARY, self.calls)

    def _repr_html_(self) -> str | None:
        return drawn(self)


#: The table of a summary, in which times are those since the beginning.
SUMMARY: tuple[Column[CallStatistics], ...] = (
    Column("function", lambda each: each.function),
    Column("device", lambda each: each.device),
    Column("calls", lambda each: each.calls, "count"),
    Column("errors", lambda each: sum(each.errors.values()), "count", tone="bad"),
    Column("fallbacks", lambda each: each.fallbacks, "count"),
    Column("total", lambda each: each.seconds.total, "seconds"),
    Column("p50", lambda each: each.seconds.p50, "seconds"),
    Column("p90", lambda each: each.seconds.p90, "seconds"),
    Column("p99", lambda each: each.seconds.p99, "seconds"),
    Column("moved", lambda each: each.bytes_to_device + each.bytes_to_host, "bytes"),
)

#: Counts of a tally that are summed as they are.
_COUNTS = (
    "calls", "fallbacks", "host_operations", "repeats", "compilations",
    "bytes_to_device", "bytes_to_host", "bytes_skipped",
)  # fmt: skip


class CallTally:
    """Sums over calls of one function on one device, in a fixed memory.

    The profiler's tallies and the statistics' series are both made of it.
    """

    def __init__(self) -> None:
        self.calls = self.fallbacks = self.host_operations = self.compilations = self.repeats = 0
        self.bytes_to_device = self.bytes_to_host = self.bytes_skipped = 0
        #: Calls that raised, by the name of the error.
        self.errors: dict[str, int] = {}
        #: Seconds by phase, and by named part of `run`.
        self.phases = dict.fromkeys(_PHASES, 0.0)
        self.parts: dict[str, float] = {}
        self.peak_bytes: int | None = None
        self.predicted_bytes: int | None = None

    def add_receipt(self, receipt: Receipt) -> None:
        """Add all but the call itself and its phases."""
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
        # Most receipts have none of the rest.
        if receipt.parts:
            add_parts(self.parts, receipt.parts)
        if len(attempts) > 1:
            self.repeats += repeats_of(receipt)
        if receipt.peak_bytes is not None or receipt.predicted_bytes is not None:
            self._add_memory(receipt.peak_bytes, receipt.predicted_bytes)

    def add_error(self, name: str, count: int = 1) -> None:
        """Counts calls that raised; names of errors beyond `MOST_ERRORS` are counted together."""
        known = name if name in self.errors or len(self.errors) < MOST_ERRORS else OTHER
        self.errors[known] = self.errors.get(known, 0) + count

    def _add_memory(self, peak: int | None, predicted: int | None) -> None:
        """Keeps the highest peak, with what was predicted for that call.

        A peak beside another call's prediction would say nothing of the prediction.
        """
        if (peak or 0, predicted or 0) > (self.peak_bytes or 0, self.predicted_bytes or 0):
            self.peak_bytes, self.predicted_bytes = peak, predicted

    def merge(self, other: CallTally) -> None:
        """Adds the sums of another tally."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name, count in other.errors.items():
            self.add_error(name, count)
        for name, seconds in other.phases.items():
            self.phases[name] += seconds
        add_parts(self.parts, other.parts)
        self._add_memory(other.peak_bytes, other.predicted_bytes)

    def sums(self) -> dict[str, Any]:
        """The fields that `CallStatistics` and `FunctionProfile` have in common, by name."""
        names = (*_COUNTS, "peak_bytes", "predicted_bytes")
        copies = {"phases": dict(self.phases), "parts": dict(self.parts), "errors": dict(self.errors)}
        return {**{name: getattr(self, name) for name in names}, **copies}


class _Series(CallTally):
    """The calls of one function on one device, with their quantiles: of all time, and of the last minutes."""

    def __init__(self) -> None:
        super().__init__()
        self.predicted_seconds = 0.0
        self.seconds_of_predicted = 0.0
        self.sketch = Sketch()
        #: The newest last, each with the number of its minute.
        self.minutes: deque[tuple[int, Sketch]] = deque(maxlen=PARTS + 1)

    def minute(self, number: int) -> Sketch:
        """The sketch of a minute, counted from the beginning; the oldest is dropped for a new one."""
        for known, sketch in self.minutes:
            if known == number:
                return sketch
        sketch = Sketch()
        self.minutes.append((number, sketch))
        return sketch

    def add_receipt(self, receipt: Receipt) -> None:
        super().add_receipt(receipt)
        phases = self.phases
        for name in _PHASES:
            phases[name] += getattr(receipt.phases, name)
        if receipt.predicted_seconds is not None:
            self.predicted_seconds += receipt.predicted_seconds
            # What is done once for a shape is not predicted, nor what others are waited for.
            once = receipt.phases.trace + receipt.phases.plan + receipt.phases.compile + receipt.phases.queue
            self.seconds_of_predicted += receipt.seconds - once

    def summary(self, function: str, device: str, now: int) -> CallStatistics:
        """The statistics at the minute `now`; "lately" are the last five minutes, the present one included."""
        lately = Sketch()
        for number, sketch in self.minutes:
            if now - PARTS < number <= now:
                lately.merge(sketch)
        return CallStatistics(
            function=function,
            device=device,
            predicted_seconds=self.predicted_seconds,
            seconds_of_predicted=self.seconds_of_predicted,
            seconds=_quantiles(self.sketch),
            lately=_quantiles(lately),
            **self.sums(),
        )


class RunningStatistics:
    """Folds what calls leave behind. For one thread at a time.

    `begin` and all other times are those of one clock, in seconds.
    """

    def __init__(self, begin: float) -> None:
        self._begin = begin
        self._series: dict[tuple[str, str], _Series] = {}
        self._functions: set[str] = set()

    def add(self, seen: Iterable[CallBatch]) -> None:
        """Adds calls: counts, sums, and their times to the sketches of all time and of their minutes.

        Calls without a receipt have two phases only, plan and run.
        """
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
                series.minute(first).add(batch.seconds)
                continue
            parts = (batch.ends - self._begin) // PART_SECONDS
            for part in range(first, last + 1):
                series.minute(part).add(batch.seconds[parts == part])

    def summary(self, now: float) -> Summary:
        """All statistics up to `now`, the functions that took most time first."""
        part = self._part(now)
        calls = [series.summary(*key, part) for key, series in self._series.items()]
        calls.sort(key=lambda each: -each.seconds.total)
        return Summary(seconds=now - self._begin, calls=tuple(calls))

    def histograms(self, bounds: Sequence[float]) -> dict[tuple[str, str], list[int]]:
        """By function and device: how many calls took at most so many seconds, for each bound."""
        return {key: series.sketch.counts_up_to(bounds) for key, series in self._series.items()}

    def _part(self, now: float) -> int:
        """The number of the minute of a time."""
        return int((now - self._begin) // PART_SECONDS)

    def _key(self, function: str, device: str) -> tuple[str, str]:
        """The function under which calls are counted: "other" for those beyond `MOST_FUNCTIONS`."""
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


def _quantiles(sketch: Sketch) -> Quantiles:
    return Quantiles(
        count=sketch.count,
        total=sketch.total,
        p50=sketch.quantile(0.5),
        p90=sketch.quantile(0.9),
        p99=sketch.quantile(0.99),
        most=sketch.most,
    )
