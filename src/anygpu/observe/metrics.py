"""The metrics of an observed process, for its own endpoint, for model servers and for Prometheus' Python client.

Names and units follow Prometheus' conventions: base units, `_total` for what only grows. What is not known has no
sample, never the value 0. Functions beyond 200 are counted as "other", so that the number of series is bounded.

The tables `_COUNTERS`, `_LABELLED`, `_GAUGES` and `_USAGE` say what each metric is and how it is read; OpenTelemetry
uses them too. `ObservedMetrics` puts all families together, and `ObservedCollector` hands them to Prometheus' client.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from anygpu.base import version
from anygpu.base.metric_families import Family, MetricKind, Sample, histogram_samples, single, visible
from anygpu.errors import InvalidOption, MissingExtra
from anygpu.hardware.host import resident_bytes
from anygpu.hardware.usage import Usage
from anygpu.hardware.usage.reading import UsageReader
from anygpu.observe.observation import Observation
from anygpu.observe.snapshot import Anomaly
from anygpu.observe.statistics import CallStatistics, Summary
from anygpu.runtime.health import Health, runtime_families
from anygpu.runtime.runtime import existing_runtime
from anygpu.workers.device_arrays.registry import registry

if TYPE_CHECKING:
    from prometheus_client.core import Metric

#: Upper bounds of the histogram of calls, in seconds: two in a factor of ten, because calls take from microseconds to
#: minutes and each bound is a series for every function and device.
BUCKETS = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)

Histograms = Mapping[tuple[str, str], Sequence[int]]


def call_families(summary: Summary, histograms: Histograms, buckets: Sequence[float] = BUCKETS) -> Iterator[Family]:
    """Metrics of calls, by function and device. `histograms` are their counts up to each of the buckets.

    Every family is there, also without a sample, so that the names on an endpoint do not change with what was called.
    """
    calls = [({"function": each.function, "device": each.device}, each) for each in summary.calls]

    for name, text, value in _COUNTERS:
        yield Family(name, "counter", text, [Sample(value(each), labels) for labels, each in calls])
    yield Family(
        "anygpu_call_seconds",
        "histogram",
        "What callers waited. A bucket may lack calls that took less than 2 % less than its bound.",
        [
            sample
            for labels, each in calls
            for sample in histogram_samples(
                labels, buckets, [*histograms[each.function, each.device], each.calls], each.seconds.total
            )
        ],
    )
    for name, kind, text, label, values in _LABELLED:
        samples = [
            Sample(value, {**labels, label: key})
            for labels, each in calls
            for key, value in values(each).items()
            if value is not None
        ]
        yield Family(name, kind, text, samples)
    for name, text, known in _GAUGES:
        found = [(known(each), labels) for labels, each in calls]
        yield Family(name, "gauge", text, [Sample(value, labels) for value, labels in found if value is not None])


CounterValues = Callable[[CallStatistics], Mapping[str, float | None]]

#: Counters of calls: name, help, and how it is read.
_COUNTERS: tuple[tuple[str, str, Callable[[CallStatistics], float]], ...] = (
    ("anygpu_calls_total", "Calls that ended, with a value or without.", lambda each: each.calls),
    ("anygpu_errors_total", "Calls that raised.", lambda each: sum(each.errors.values())),
    ("anygpu_fallbacks_total", "Calls that failed on another device before.", lambda each: each.fallbacks),
    ("anygpu_repeats_total", "Attempts that failed and were made again on the same device.",
     lambda each: each.repeats),
    ("anygpu_host_operations_total", "Operations that the device lacks and the host did.",
     lambda each: each.host_operations),
    ("anygpu_skipped_bytes_total", "Bytes that were there already and not moved.", lambda each: each.bytes_skipped),
    ("anygpu_compilations_total", "Programs that were compiled.", lambda each: each.compilations),
    ("anygpu_call_predicted_seconds_total", "Predicted for calls, where there was a prediction.",
     lambda each: each.predicted_seconds),
    ("anygpu_call_measured_seconds_total", "What these calls took.", lambda each: each.seconds_of_predicted),
)  # fmt: skip
#: Metrics with one more label: name, kind, help, the label, and the values by label.
_LABELLED: tuple[tuple[str, MetricKind, str, str, CounterValues], ...] = (
    ("anygpu_call_recent_seconds", "summary", "Quantiles of the last five minutes, each within 1 %.", "quantile",
     lambda each: {"0.5": each.lately.p50, "0.9": each.lately.p90, "0.99": each.lately.p99}),
    ("anygpu_call_phase_seconds_total", "counter",
     "Seconds of calls by phase; all phases together are those of the calls.", "phase",
     lambda each: {name: seconds for name, seconds in each.phases.items() if seconds}),
    ("anygpu_call_part_seconds_total", "counter",
     "Seconds of named parts of the phase run, of calls that have some: those of a training step.", "part",
     lambda each: each.parts),
    ("anygpu_errors_by_class_total", "counter", "Calls that raised, by the error's class.", "error",
     lambda each: each.errors),
    ("anygpu_bytes_total", "counter", "Bytes that were moved.", "direction",
     lambda each: {"to_device": each.bytes_to_device, "to_host": each.bytes_to_host}),
)  # fmt: skip
#: Gauges of calls that may be unknown.
_GAUGES: tuple[tuple[str, str, Callable[[CallStatistics], float | None]], ...] = (
    ("anygpu_call_peak_bytes", "The most memory that a call had at once.", lambda each: each.peak_bytes),
    ("anygpu_call_predicted_bytes", "What was predicted for that call.", lambda each: each.predicted_bytes),
)


def counter(wanted: str) -> tuple[str, CounterValues]:
    """The help and the values of a counter of calls, by the label that tells them apart; "" where there is none.

    Raises `StopIteration` for a name that is in none of the tables: names are written in the source.
    """
    plain = {name: (text, read) for name, text, read in _COUNTERS}
    if wanted in plain:
        text, read = plain[wanted]
        return text, lambda each: {"": read(each)}
    return next((text, values) for name, _, text, _, values in _LABELLED if name == wanted)


#: Names of usage gauges, what they are, and how they are read; `None` has no sample.
_USAGE: tuple[tuple[str, str, Callable[[Usage], float | None]], ...] = (
    ("anygpu_device_memory_used_bytes", "Memory of the card in use, by all processes.", lambda each: each.memory_used),
    ("anygpu_device_memory_size_bytes", "Memory that the card has.", lambda each: each.memory_total),
    ("anygpu_device_utilization_ratio", "Share of the time in which it was busy, 0 to 1.", lambda each: each.load),
    ("anygpu_device_temperature_celsius", "Temperature of the card.", lambda each: each.temperature),
    ("anygpu_device_power_watts", "Power that the card takes.", lambda each: each.power),
    ("anygpu_device_power_limit_watts", "Power that the card may take.", lambda each: each.power_limit),
    ("anygpu_device_clock_hertz", "Clock of the card.", lambda each: each.clock),
    ("anygpu_device_clock_limit_hertz", "Clock that the card may have.", lambda each: each.clock_limit),
    (
        "anygpu_device_throttled",
        "1 while the card runs slower than it could.",
        lambda each: None if each.throttled is None else bool(each.throttled),
    ),
)


def usage_families(usage: Mapping[str, Usage]) -> Iterator[Family]:
    """Metrics of devices. Devices of one card have the same values, and the label `card` to tell."""
    for name, text, read in _USAGE:
        values = [(device, each.card, read(each)) for device, each in usage.items()]
        samples = [
            Sample(value, {"device": device, "card": card}) for device, card, value in values if value is not None
        ]
        yield Family(name, "gauge", text, samples)


def anomaly_families(anomalies: Iterable[Anomaly]) -> Iterator[Family]:
    """One gauge: when an anomaly was last found, in seconds since 1970, by kind, subject and device."""
    latest: dict[tuple[str, str, str], float] = {}
    for each in anomalies:
        key = (each.kind, each.subject, each.device or "")
        latest[key] = max(each.time, latest.get(key, 0.0))
    yield Family(
        "anygpu_anomaly_timestamp_seconds",
        "gauge",
        "When this was last found not to be as it was.",
        [
            Sample(when, {"kind": kind, "subject": subject, "device": device})
            for (kind, subject, device), when in latest.items()
        ],
    )


def own_families() -> Iterator[Family]:
    """Metrics of this process, under the names that every client library of Prometheus has for them."""
    yield single(
        "process_cpu_seconds_total",
        "counter",
        "Total user and system CPU time spent in seconds.",
        time.process_time(),
    )
    yield single("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", resident_bytes())


class ObservedMetrics:
    """The metrics of this process, for one reader: loads of devices are those since it last asked.

    `find` returns the observation at the moment, which may be stopped and started again; without one, calls have no
    samples. May be used by several threads.
    """

    def __init__(
        self,
        find: Callable[[], Observation | None],
        *,
        buckets: Sequence[float] = BUCKETS,
        health: Callable[[], Health | None] | None = None,
    ) -> None:
        #: The observation at the moment; it may have been stopped, and started again.
        self._find = find
        self._buckets = tuple(buckets)
        self._health = health
        self._reader = UsageReader()
        self._reading = threading.Lock()

    def families(self) -> list[Family]:
        """All families that there are, also those without a sample; reads the devices that are open now."""
        observation = self._find()
        histograms: Histograms
        if observation is None:
            summary, histograms = Summary(seconds=0.0, calls=(), observed=False), {}
        else:
            summary, histograms = observation.summary_and_histograms(self._buckets)
        found = [
            Family("anygpu_build_info", "gauge", "1, with the version.", [Sample(1, {"version": version.__version__})]),
            Family("anygpu_observed", "gauge", "1 while calls are counted.", [Sample(observation is not None)]),
            *call_families(summary, histograms, self._buckets),
            *usage_families(self._usage()),
            *anomaly_families(() if observation is None else observation.anomalies()),
        ]
        health = self._health() if self._health is not None else None
        return found if health is None else [*found, *runtime_families(health)]

    def _usage(self) -> dict[str, Usage]:
        """The use of open devices by their ids.

        One thread reads at a time, because loads are differences of two readings.
        """
        with self._reading:
            return self._reader.read([worker.device for worker in registry.open_workers()])


def default_health() -> Health | None:
    """The health of the runtime behind `submit` and `map`; `None` as long as neither was called."""
    runtime = existing_runtime()
    return None if runtime is None else runtime.health()


def check_buckets(bounds: Sequence[float]) -> tuple[float, ...]:
    """The bounds as floats. Raises `InvalidOption` unless they are positive, finite and rising."""
    found = tuple(float(each) for each in bounds)
    if not found or found[0] <= 0 or found[-1] == float("inf") or any(a >= b for a, b in pairwise(found)):
        raise InvalidOption(f"buckets are seconds, more than 0, which rise; got {tuple(bounds)!r}.")
    return found


class ObservedCollector:
    """A collector for any registry of Prometheus' Python client: `prometheus_client.REGISTRY.register(collector)`.

    It shows the calls of this process and its devices, in programs that have an endpoint already. Raises `MissingExtra`
    where the client is not installed.
    """

    def __init__(self, metrics: ObservedMetrics) -> None:
        try:
            from prometheus_client.core import Metric
        except ModuleNotFoundError as error:
            raise MissingExtra("prometheus-client", "observe") from error
        self._metric = Metric
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """All metrics with their samples, as the registry asks for them at each scrape."""
        return self._converted(self._metrics.families())

    def describe(self) -> Iterable[Metric]:
        """The families without samples: the registry asks which names are taken."""
        return self._converted([family._replace(samples=[]) for family in self._metrics.families()])

    def _converted(self, families: Iterable[Family]) -> Iterator[Metric]:
        """Our families as the client's metrics. Label values lose characters that would not be visible."""
        for name, kind, text, samples in families:
            # The client adds the suffix of counters by itself.
            metric = self._metric(name.removesuffix("_total") if kind == "counter" else name, text, kind)
            for value, labels, suffix in samples:
                metric.add_sample(name + suffix, {key: visible(each) for key, each in labels.items()}, value)
            yield metric
