"""Spans of calls: under the caller's own, with the receipts' times, sent to a collector over HTTP."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

import anygpu as ag
from anygpu import observe
from anygpu.base import events
from anygpu.errors import InvalidOption
from anygpu.observe.open_telemetry import ORDER
from anygpu.observe.statistics import MOST_FUNCTIONS
from anygpu.receipts.notes import Failure, HostNote, Origin, made, origin_here
from anygpu.receipts.receipt import Attempt, HostOperation, Phases, Receipt
from tests.observe.collector import Collected, collector
from tests.observe.test_metrics import HOSTILE, receipt
from tests.support.observing import tell

X = np.arange(8.0)


@ag.offload
def rise(x: Any) -> Any:
    return x + 1


@ag.offload
def fail(x: Any) -> Any:
    raise ArithmeticError("as it should")


def fall(x: Any) -> Any:
    return x - 1


@pytest.fixture(autouse=True)
def unobserved() -> Iterator[None]:
    observe.stop()
    yield
    observe.stop()
    assert not events.calls


@pytest.fixture
def memory() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(memory: InMemorySpanExporter) -> TracerProvider:
    found = TracerProvider()
    found.add_span_processor(SimpleSpanProcessor(memory))
    return found


def by_name(memory: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in memory.get_finished_spans()}


def duration(span: Any) -> int:
    found: int = span.end_time - span.start_time
    return found


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def context_of(span: ReadableSpan) -> trace.SpanContext:
    found = span.get_span_context()
    assert found is not None
    return found


def attributes(span: Any) -> dict[str, Any]:
    """Of a span as the protocol has it."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


def nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def test_a_collector_gets_spans_with_the_receipts_times_under_the_callers_own() -> None:
    with collector() as there:
        spans = BatchSpanProcessor(OTLPSpanExporter(f"{there.url}/v1/traces"))
        provider = TracerProvider()
        provider.add_span_processor(spans)
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{there.url}/v1/metrics"), 1e9)
        meters = MeterProvider([reader])
        seen: list[Any] = []

        def look(one: Any, origin: Origin | None) -> None:
            seen.append(one)

        events.calls.append(look)
        tracer = provider.get_tracer("the program's own")
        try:
            with observe.telemetry(tracer_provider=provider, meter_provider=meters):
                with tracer.start_as_current_span("request") as own:
                    for _ in range(20):
                        rise(X)
                    ag.run(fall, X, on="numpy")
                    future = ag.submit(fall, X)
                    with pytest.raises(ArithmeticError):
                        fail(X)
                # Waited for outside: where it was submitted counts.
                future.result()
                provider.force_flush()
                meters.force_flush()
        finally:
            events.calls.remove(look)
            provider.shutdown()
            meters.shutdown()
    check_spans(there, seen, own)
    check_points(there, seen)


def check_spans(there: Collected, seen: list[Any], own: Any) -> None:
    ours = [span for scope, span in there.spans if scope == "anygpu"]
    calls = [span for span in ours if not span.name.startswith("anygpu.")]
    assert len(calls) == len(seen) == 23
    request = next(span for scope, span in there.spans if scope != "anygpu")
    assert {span.trace_id for span in ours} == {request.trace_id}
    assert {span.parent_span_id for span in calls} == {request.span_id}
    # In the order of their ends, as receipts come; a task's may come at any time.
    for name in ("rise", "fall", "fail"):
        expected = sorted(nanoseconds(seconds_of(one)) for one in seen if name_of(one) == name)
        found = sorted(each.end_time_unix_nano - each.start_time_unix_nano for each in calls if each.name == name)
        assert found == expected, name
    for span in calls:
        inside = [each for each in ours if each.parent_span_id == span.span_id]
        assert all(each.name.removeprefix("anygpu.") in ORDER for each in inside)
        assert all(span.start_time_unix_nano <= each.start_time_unix_nano for each in inside)
        # Rounded to nanoseconds, one by one.
        assert all(each.end_time_unix_nano <= span.end_time_unix_nano + 1 for each in inside)
        if span.name == "fail":
            assert span.status.code == 2
            assert attributes(span)["error.type"] == "ArithmeticError"
            assert not inside
        else:
            assert span.status.code == 0
            assert "anygpu.run" in {each.name for each in inside}
            # Theirs is of another clock than receipts', which is read at another moment.
            assert request.start_time_unix_nano <= span.start_time_unix_nano + 1_000_000
        assert attributes(span)["anygpu.device"] == "numpy"
        assert attributes(span)["code.function.name"] == span.name
    phases = sum(
        each.end_time_unix_nano - each.start_time_unix_nano for each in ours if each.name.startswith("anygpu.")
    )
    expected_phases = sum(
        getattr(made(one).phases, name) for one in seen if not isinstance(one, Failure) for name in ORDER
    )
    assert phases == pytest.approx(expected_phases * 1e9, abs=len(ours))


def check_points(there: Collected, seen: list[Any]) -> None:
    assert there.units["anygpu.call.duration"] == "s"
    points = {
        (attributes(point)["code.function.name"], attributes(point).get("error.type")): point
        for point in there.points["anygpu.call.duration"]
    }
    assert {key: point.count for key, point in points.items()} == {
        ("rise", None): 20,
        ("fall", None): 2,
        ("fail", "ArithmeticError"): 1,
    }
    total = sum(seconds_of(one) for one in seen if name_of(one) == "rise")
    assert points["rise", None].sum == pytest.approx(total)
    phases = there.points["anygpu.call.phase.time"]
    assert sum(point.as_double for point in phases) == pytest.approx(sum(seconds_of(one) for one in seen))
    assert there.units["anygpu.io"] == "By"


def seconds_of(one: Any) -> float:
    return one.end - one.begin if isinstance(one, Failure) else made(one).seconds


def name_of(one: Any) -> str:
    name: str = one.task if isinstance(one, Failure | Receipt) else one[0].task
    return name


def test_phases_adjoin_and_what_happened_is_told(memory: InMemorySpanExporter, provider: TracerProvider) -> None:
    failed = Attempt(device="webgpu:0", phases=Phases(), error="OutOfMemory", message="2 GB of 1 GB")
    host = HostOperation(operation="Sort", reason="no sort there", line="a.py:3", bytes_moved=8)
    one = receipt(
        device="opencl:0",
        phases=Phases(
            trace=0.001, plan=0.002, compile=0.003, queue=0.004, write=0.005, run=0.006, read=0.007, other=0.1
        ),
        attempts=(failed, Attempt(device="opencl:0", phases=Phases())),
        host_operations=(host,),
        bytes_to_device=10,
    )
    with observe.telemetry(tracer_provider=provider):
        tell(one)
    spans = by_name(memory)
    call = spans.pop("score")
    assert duration(call) == nanoseconds(0.128)
    at = call.start_time
    for name in ORDER:
        span = spans.pop(f"anygpu.{name}")
        assert parent_of(span) == context_of(call).span_id
        assert span.start_time == at
        assert duration(span) == nanoseconds(getattr(one.phases, name))
        at = span.end_time
    assert not spans
    assert call.end_time is not None
    assert call.end_time - (at or 0) == nanoseconds(0.1), "the rest is no phase"
    assert call.attributes is not None
    assert call.attributes["anygpu.bytes_to_device"] == 10
    assert call.attributes["anygpu.predicted_seconds"] == 0.004
    assert call.attributes["anygpu.device.kind"] == "gpu"
    told = {event.name: dict(event.attributes or {}) for event in call.events}
    assert told == {
        "anygpu.attempt_failed": {
            "anygpu.device": "webgpu:0",
            "error.type": "OutOfMemory",
            "exception.message": "2 GB of 1 GB",
        },
        "anygpu.host_operation": {
            "anygpu.operation": "Sort",
            "anygpu.reason": "no sort there",
            "anygpu.line": "a.py:3",
        },
    }


def test_a_call_without_a_trace_is_one_of_its_own(memory: InMemorySpanExporter, provider: TracerProvider) -> None:
    with observe.telemetry(tracer_provider=provider, phases=False):
        rise(X)
    [span] = memory.get_finished_spans()
    assert span.parent is None


def test_a_task_belongs_to_where_it_was_submitted(memory: InMemorySpanExporter, provider: TracerProvider) -> None:
    tracer = provider.get_tracer("own")
    with observe.telemetry(tracer_provider=provider):
        with tracer.start_as_current_span("submitted here") as own:
            origin = origin_here()
        assert isinstance(origin, Origin)
        with tracer.start_as_current_span("delivered here"):
            thread = threading.Thread(target=tell, args=(receipt(), origin))
            thread.start()
            thread.join()
    assert parent_of(by_name(memory)["score"]) == own.get_span_context().span_id


def test_short_calls_have_no_span_if_so_asked(memory: InMemorySpanExporter, provider: TracerProvider) -> None:
    with observe.telemetry(tracer_provider=provider, longer_than=0.01, phases=False):
        tell(receipt("short", run=0.001))
        tell(receipt("long", run=0.02))
    assert [span.name for span in memory.get_finished_spans()] == ["long"]
    with pytest.raises(InvalidOption, match="longer_than is a number of seconds"):
        observe.telemetry(longer_than=-1)


def test_a_trace_that_is_not_sampled_has_no_spans_of_ours() -> None:
    memory = InMemorySpanExporter()
    provider = TracerProvider(sampler=ALWAYS_OFF)
    provider.add_span_processor(SimpleSpanProcessor(memory))
    with observe.telemetry(tracer_provider=provider):
        rise(X)
    assert not memory.get_finished_spans()


def test_after_closing_nothing_is_made(memory: InMemorySpanExporter, provider: TracerProvider) -> None:
    telemetry = observe.telemetry(tracer_provider=provider)
    telemetry.close()
    telemetry.close()
    rise(X)
    assert not memory.get_finished_spans()


def test_an_sdk_that_fails_fails_no_call(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(trace.NoOpTracerProvider):
        def get_tracer(self, *arguments: Any, **named: Any) -> Any:
            return None

    with observe.telemetry(tracer_provider=Broken()):
        assert rise(X)[0] == 1
        assert rise(X)[0] == 1
    assert caplog.text.count("OpenTelemetry failed") == 1


def test_hostile_names_reach_the_collector_harmless() -> None:
    with collector() as there:
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{there.url}/v1/traces")))
        with observe.telemetry(tracer_provider=provider, phases=False):
            now = time.perf_counter()
            for name in HOSTILE:
                tell((HostNote(name, name, None), now - 1, now - 1, now))
        provider.shutdown()
    names = [span.name for _, span in there.spans]
    assert len(set(names)) == len(HOSTILE)
    assert all(name.isprintable() for name in names)


def test_functions_beyond_the_limit_share_their_points() -> None:
    with collector() as there:
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{there.url}/v1/metrics"), 1e9)
        meters = MeterProvider([reader])
        with observe.telemetry(meter_provider=meters, longer_than=1e9):
            for number in range(MOST_FUNCTIONS + 30):
                tell((HostNote(f"f{number}", "", None), 0.0, 0.0, 0.1))
            meters.force_flush()
        meters.shutdown()
    counts = {attributes(each)["code.function.name"]: each.count for each in there.points["anygpu.call.duration"]}
    assert len(counts) == MOST_FUNCTIONS + 1
    assert counts["other"] == 30


SCRIPT = """
import sys, numpy as np, anygpu as ag
import anygpu.observe
@ag.offload
def f(x): return x
f(np.ones(3))
anygpu.observe.start()
f(np.ones(3))
assert not [name for name in sys.modules if name.startswith(("opentelemetry", "prometheus_client"))]
with anygpu.observe.telemetry():
    f(np.ones(3))
loaded = {name.split(".")[1] for name in sys.modules if name.startswith("opentelemetry.")}
assert "sdk" not in loaded and "trace" in loaded, loaded
"""


def test_only_the_api_is_imported_and_only_when_asked_for() -> None:
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, timeout=200)


WITHOUT = """
import sys
sys.modules["{library}"] = None
import anygpu, anygpu.observe
try:
    anygpu.observe.{call}()
except anygpu.MissingExtra as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("library", "call", "package"),
    [
        ("opentelemetry", "telemetry", "opentelemetry-api"),
        ("prometheus_client", "prometheus_collector", "prometheus-client"),
    ],
)
def test_without_the_extra_the_command_is_named(library: str, call: str, package: str) -> None:
    script = WITHOUT.format(library=library, call=call)
    said = subprocess.run(
        [sys.executable, "-c", script], check=True, timeout=200, capture_output=True, text=True
    ).stdout
    assert said.strip() == f"{package} is not installed. Install it with: pip install {package}"
