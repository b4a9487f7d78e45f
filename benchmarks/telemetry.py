"""What a span costs: `python -m benchmarks.telemetry [--json] [--check]`.

Processor time of a quiet call beyond that of one that is only counted, with and without an SDK that records. Kinds take
turns, and medians count.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import NoOpTracerProvider

import anygpu as ag
from anygpu import observe
from benchmarks.report import Figure, arguments, publish

CALLS, ROUNDS = 300, 21


class Nowhere(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


@ag.offload
def quiet(x: Any) -> Any:
    return x + 1


def seconds_of_a_call() -> float:
    x = np.ones(16)
    begin = time.thread_time()
    for _ in range(CALLS):
        quiet(x)
    return (time.thread_time() - begin) / CALLS


def main() -> None:
    options = arguments(__doc__)
    recording = TracerProvider()
    recording.add_span_processor(BatchSpanProcessor(Nowhere()))
    meters = MeterProvider([InMemoryMetricReader()])
    silent: dict[str, Any] = {"tracer_provider": NoOpTracerProvider(), "meter_provider": NoOpMeterProvider()}
    kinds: dict[str, dict[str, Any]] = {
        "nothing records": silent,
        "metrics alone": {**silent, "meter_provider": meters},
        "one span": {**silent, "tracer_provider": recording, "phases": False},
        "a span and its phases": {**silent, "tracer_provider": recording},
        "spans and metrics": {"tracer_provider": recording, "meter_provider": meters},
        "recording, but shorter than longer_than": {**silent, "tracer_provider": recording, "longer_than": 1.0},
    }
    observe.start()
    seconds_of_a_call()
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(ROUNDS):
        bare = seconds_of_a_call()
        for name, given in kinds.items():
            telemetry: AbstractContextManager[Any] = observe.telemetry(**given)
            with telemetry:
                times[name].append(seconds_of_a_call() - bare)
    recording.shutdown()
    figures = [
        Figure(name=f"a quiet call more, {name}", value=float(np.median(each)) * 1e6, unit="µs")
        for name, each in times.items()
    ]
    publish(figures, options)


if __name__ == "__main__":
    main()
