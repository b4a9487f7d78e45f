"""Calls as spans of OpenTelemetry, inside whatever trace their caller is in, and as its metrics.

Only the API is used: where the data goes is the business of the program, which sets up an SDK, or of whoever starts it
with `opentelemetry-instrument`. A span is made when its call has ended, with the times of the receipt.

`Telemetry` makes spans and the histogram of durations as calls end; `_Observed` reads the other counters from the
statistics of the process when a reader of metrics asks for them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Self

from anygpu.base import events, version
from anygpu.base.metric_families import visible
from anygpu.errors import MissingExtra
from anygpu.observe.metrics import BUCKETS, CounterValues, counter
from anygpu.observe.snapshot import ended
from anygpu.observe.statistics import MOST_FUNCTIONS, OTHER, Summary
from anygpu.receipts.notes import Failure, Origin, Seen
from anygpu.receipts.receipt import Phases, Receipt

try:
    from opentelemetry import metrics, trace
    from opentelemetry.context import Context, get_current
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from opentelemetry.trace import Span, StatusCode, TracerProvider
except ModuleNotFoundError as error:
    raise MissingExtra("opentelemetry-api", "observe") from error

_log = logging.getLogger("anygpu.observe")

#: Names of attributes; those without "anygpu" are OpenTelemetry's own.
FUNCTION, ERROR, DEVICE = "code.function.name", "error.type", "anygpu.device"
#: The order that phases are shown in. Some alternate in reality: a receipt has their sums.
ORDER = ("trace", "plan", "queue", "compile", "write", "run", "read")
#: Operations on the host that one span tells of.
_MOST_EVENTS = 10
#: Characters of a reason or a message.
_SENTENCE = 1000
#: Seconds for which a summary is good: a reader asks for all instruments at once.
_SUMMARY_SECONDS = 1.0

SpanAttributes = dict[str, str | bool | int | float]


class Telemetry:
    """Makes spans and metrics of all calls until it is closed. It is a context manager.

    Spans are made on the thread on which a call ended. An error of the SDK is logged once and never reaches the caller.
    """

    def __init__(
        self,
        summary: Callable[[], Summary],
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        phases: bool = True,
        longer_than: float = 0.0,
    ) -> None:
        release = version.__version__
        self._tracer = trace.get_tracer("anygpu", release, tracer_provider)
        self._phases = phases
        self._longer_than = longer_than
        self._functions: set[str] = set()
        self._has_failed = False
        self._closed = False
        meter = metrics.get_meter("anygpu", release, meter_provider)
        self._duration = meter.create_histogram(
            "anygpu.call.duration",
            unit="s",
            description="What callers waited.",
            explicit_bucket_boundaries_advisory=BUCKETS,
        )
        observed = _Observed(summary, lambda: self._closed)
        for metric, name, unit, label in _COUNTERS:
            text, read = counter(metric)
            meter.create_observable_counter(name, [observed.callback(label, read)], unit=unit, description=text)
        events.calls.append(self._observe)

    def close(self) -> None:
        """Make no more of them. May be called twice."""
        if not self._closed:
            self._closed = True
            events.calls.remove(self._observe)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # -- calls

    def _observe(self, seen: Seen, origin: Origin | None) -> None:
        """Takes in a call that has ended; no exception leaves it."""
        try:
            self._tell(seen, origin)
        except Exception:  # noqa: BLE001 - an SDK may do what it wants, and the call has succeeded
            if not self._has_failed:
                self._has_failed = True
                _log.exception("OpenTelemetry failed, and further failures are not logged")

    def _tell(self, seen: Seen, origin: Origin | None) -> None:
        """Count a call in the metrics, and make a span of it if it was long enough.

        The span's parent is the one that was current where the call was made or submitted. Its end is now for a
        receipt, and the measured end for a note or a failure.
        """
        now = time.time_ns()
        task, device, seconds, phases, failed, *_ = ended(seen)
        end = now
        if not isinstance(seen, Receipt):
            # Notes and failures have the time that they ended at, by another clock.
            end -= _nanoseconds(time.perf_counter() - (seen.end if isinstance(seen, Failure) else seen[3]))
        context = get_current() if origin is None else origin.context.run(get_current)
        self._count(task, device, failed, seconds, context)
        if seconds < self._longer_than:
            return
        name = visible(task)
        start = end - _nanoseconds(seconds)
        # With what a sampler may decide by.
        attributes: SpanAttributes = {FUNCTION: name, DEVICE: visible(device)}
        span = self._tracer.start_span(name, context, attributes=attributes, start_time=start)
        if not span.is_recording():
            return
        if failed is not None:
            span.set_attribute(ERROR, visible(failed))
            span.set_status(StatusCode.ERROR, visible(failed))
        if isinstance(seen, Receipt):
            _describe(span, seen, end)
        elif not isinstance(seen, Failure):
            said = seen[0]
            span.set_attribute("anygpu.reason", visible(said.reason, _SENTENCE))
            if said.predicted is not None:
                span.set_attribute("anygpu.predicted_seconds", said.predicted)
        if self._phases and not isinstance(seen, Failure):
            self._add_phases(span, phases, start)
        span.end(end)

    def _count(self, task: str, device: str, failed: str | None, seconds: float, context: Context) -> None:
        """Records the duration of a call, by function and device, and the class of its error.

        Functions beyond `MOST_FUNCTIONS` are counted together as "other", so that the number of series is bounded.
        """
        if task not in self._functions:
            if len(self._functions) < MOST_FUNCTIONS:
                self._functions.add(task)
            else:
                task = OTHER
        attributes: SpanAttributes = {FUNCTION: visible(task), DEVICE: visible(device)}
        if failed is not None:
            attributes[ERROR] = visible(failed)
        self._duration.record(seconds, attributes, context)

    def _add_phases(self, span: Span, phases: Phases, start: int) -> None:
        """Adds a span for each phase inside of the call's, one after the other.

        A receipt has the sums of phases and not when each began: the order is `ORDER`.
        """
        inside = trace.set_span_in_context(span)
        passed = 0.0
        for name in ORDER:
            seconds: float = getattr(phases, name)
            if seconds > 0:
                part = self._tracer.start_span(f"anygpu.{name}", inside, start_time=start + _nanoseconds(passed))
                passed += seconds
                part.end(start + _nanoseconds(passed))


def _describe(span: Span, receipt: Receipt, end: int) -> None:
    """Sets the attributes of a call's span, and adds failed attempts and operations on the host as events.

    Values that are not known are left out. Texts are made printable and cut to `_SENTENCE` characters.
    """
    attributes: SpanAttributes = {
        "anygpu.device.kind": receipt.kind,
        "anygpu.reason": visible(receipt.reason, _SENTENCE),
        "anygpu.bytes_to_device": receipt.bytes_to_device,
        "anygpu.bytes_to_host": receipt.bytes_to_host,
        "anygpu.bytes_skipped": receipt.bytes_skipped,
        "anygpu.attempts": len(receipt.attempts),
    }
    for name in (
        "predicted_seconds",
        "device_seconds",
        "peak_bytes",
        "predicted_bytes",
        "kernels",
        "program",
        "node",
        "how",
    ):
        value = getattr(receipt, name)
        if value is not None:
            attributes[f"anygpu.{name}"] = visible(value, _SENTENCE) if isinstance(value, str) else value
    span.set_attributes(attributes)
    for attempt in receipt.failures:
        told: SpanAttributes = {DEVICE: visible(attempt.device), ERROR: visible(attempt.error or OTHER)}
        if attempt.message:
            told["exception.message"] = visible(attempt.message, _SENTENCE)
        span.add_event("anygpu.attempt_failed", told, end)
    for host in receipt.host_operations[:_MOST_EVENTS]:
        said: SpanAttributes = {
            "anygpu.operation": visible(host.operation),
            "anygpu.reason": visible(host.reason, _SENTENCE),
        }
        if host.line is not None:
            said["anygpu.line"] = visible(host.line)
        span.add_event("anygpu.host_operation", said, end)


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


# -- metrics that are counted already

#: Counters of `metrics` by name, with their name and unit here, and the attribute that tells their values apart.
_COUNTERS = (
    ("anygpu_call_phase_seconds_total", "anygpu.call.phase.time", "s", "anygpu.phase"),
    ("anygpu_call_part_seconds_total", "anygpu.call.part.time", "s", "anygpu.part"),
    ("anygpu_repeats_total", "anygpu.repeats", "{attempt}", ""),
    ("anygpu_bytes_total", "anygpu.io", "By", "anygpu.direction"),
    ("anygpu_fallbacks_total", "anygpu.fallbacks", "{call}", ""),
    ("anygpu_host_operations_total", "anygpu.host_operations", "{operation}", ""),
    ("anygpu_compilations_total", "anygpu.compilations", "{program}", ""),
)


class _Observed:
    """Reads all counters from one summary, which is at most `_SUMMARY_SECONDS` old."""

    def __init__(self, summary: Callable[[], Summary], closed: Callable[[], bool]) -> None:
        self._summary = summary
        self._closed = closed
        self._latest: tuple[float, Summary] | None = None

    def callback(self, label: str, read: CounterValues) -> Callable[[CallbackOptions], Iterable[Observation]]:
        """A callback of the meter that yields the values of a counter, by function, device and `label`."""

        def look(options: CallbackOptions) -> Iterable[Observation]:
            # The API has no way to take a callback back.
            if self._closed():
                return
            for each in self._now().calls:
                attributes = {FUNCTION: visible(each.function), DEVICE: visible(each.device)}
                for key, value in read(each).items():
                    if value is not None:
                        yield Observation(value, {**attributes, label: visible(key)} if label else attributes)

        return look

    def _now(self) -> Summary:
        """The summary of this moment; one that was made within the last second is used again."""
        now = time.monotonic()
        if self._latest is None or now - self._latest[0] > _SUMMARY_SECONDS:
            self._latest = now, self._summary()
        return self._latest[1]
