"""Metrics of calls and devices: what Prometheus reads agrees with the receipts, and no name does harm."""

from __future__ import annotations

import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import prometheus_client
import prometheus_client.parser
import pytest
from prometheus_client import Metric

import anygpu as ag
from anygpu import observe
from anygpu.base.metric_families import MOST_CHARACTERS, Family, Sample, to_text, visible
from anygpu.errors import InvalidOption
from anygpu.hardware.usage import READINGS, Usage
from anygpu.observe.metrics import BUCKETS, anomaly_families, call_families, usage_families
from anygpu.observe.snapshot import Anomaly
from anygpu.observe.statistics import MOST_FUNCTIONS, RunningStatistics, Sketch
from anygpu.receipts.notes import Failure, HostNote, Seen
from anygpu.receipts.receipt import Attempt, DriverWork, Phases, Receipt
from benchmarks.metrics_scrape import compare, full
from benchmarks.prometheus_process import program
from tests.observe.test_statistics import add
from tests.support.observing import tell


@ag.offload
def twice(x: Any) -> Any:
    return x * 2


@pytest.fixture(autouse=True)
def unobserved() -> Iterator[None]:
    observe.stop()
    yield
    observe.stop()


def receipt(task: str = "score", device: str = "webgpu:0", run: float = 0.002, **given: object) -> Receipt:
    known: dict[str, object] = {
        "task": task,
        "device": device,
        "kind": "gpu",
        "reason": "",
        "phases": Phases(plan=0.0005, write=0.001, run=run),
        "device_seconds": run,
        "peak_bytes": 10,
        "kernels": 1,
        "predicted_seconds": 0.004,
    }
    return Receipt(**{**known, **given})  # type: ignore[arg-type]


def families(seen: list[Seen]) -> dict[str, dict[tuple[str, ...], float]]:
    """As Prometheus' own client reads the text: samples by name, each by the values of its labels."""
    return parsed(text_of(seen))


def text_of(seen: list[Seen]) -> str:
    statistics = RunningStatistics(0.0)
    add(statistics, seen, 1.0)
    return to_text(call_families(statistics.summary(2.0), statistics.histograms(BUCKETS)))


def parsed(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in prometheus_client.parser.text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def by_labels(family: Metric) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {(each.name, frozenset(each.labels.items())): each.value for each in family.samples}


def promtool_check(text: str) -> None:
    """Names, units, types and help by Prometheus' own rules."""
    done = subprocess.run([program("promtool"), "check", "metrics"], input=text.encode(), capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr.strip(), done.stderr.decode()


def test_calls_become_counters() -> None:
    failed = Attempt(device="webgpu:0", phases=Phases(), error="OutOfMemory", message="")
    ran = Attempt(device="numpy", phases=Phases())
    found = families(
        [
            receipt(bytes_to_device=100, bytes_to_host=40, bytes_skipped=7),
            receipt(bytes_to_device=10, driver=DriverWork(allocations=0, compilations=2, submits=1, dispatches=1)),
            receipt(device="numpy", attempts=(failed, ran)),
            Failure("score", "webgpu:0", "ValueError", 1.0, 1.5),
            (HostNote("quiet", "", None), 1.0, 1.25, 2.0),
        ]
    )
    key = ("score", "webgpu:0")
    assert found["anygpu_calls_total"] == {key: 3, ("score", "numpy"): 1, ("quiet", "numpy"): 1}
    assert found["anygpu_errors_total"] == {key: 1, ("score", "numpy"): 0, ("quiet", "numpy"): 0}
    assert found["anygpu_errors_by_class_total"] == {(*key, "ValueError"): 1}
    assert found["anygpu_fallbacks_total"]["score", "numpy"] == 1
    assert found["anygpu_bytes_total"][(*key, "to_device")] == 110
    assert found["anygpu_bytes_total"][(*key, "to_host")] == 40
    assert found["anygpu_skipped_bytes_total"][key] == 7
    assert found["anygpu_compilations_total"][key] == 2
    assert found["anygpu_call_phase_seconds_total"]["quiet", "numpy", "plan"] == 0.25
    assert found["anygpu_call_phase_seconds_total"]["quiet", "numpy", "run"] == 0.75
    assert found["anygpu_call_phase_seconds_total"][(*key, "run")] == pytest.approx(0.504)
    assert found["anygpu_call_seconds_sum"][key] == pytest.approx(0.507)
    assert found["anygpu_call_seconds_count"][key] == 3
    assert found["anygpu_call_predicted_seconds_total"][key] == pytest.approx(0.008)
    assert found["anygpu_call_measured_seconds_total"][key] == pytest.approx(0.006), "planning is not predicted"
    assert found["anygpu_call_recent_seconds"]["quiet", "numpy", "0.5"] == pytest.approx(1.0, rel=0.01)


def test_the_histogram_has_all_calls_and_bounds_within_two_percent() -> None:
    times = np.random.default_rng(0).lognormal(-5, 2, 5000)
    sketch = Sketch()
    sketch.add(times)
    counts = sketch.counts_up_to(BUCKETS)
    for bound, count in zip(BUCKETS, counts, strict=True):
        assert (times <= bound * 0.98).sum() <= count <= (times <= bound).sum()
    assert counts == sorted(counts)
    assert sketch.counts_up_to([1e-12, 1e9]) == [0, 5000]
    assert Sketch().counts_up_to(BUCKETS) == [0] * len(BUCKETS)


@pytest.mark.parametrize("seconds", [1e-5, 0.001, 0.03, 1.0])
def test_a_call_just_below_a_bound_is_counted_soon(seconds: float) -> None:
    found = families([(HostNote("f", "", None), 0.0, 0.0, seconds * 0.979)])
    buckets = found["anygpu_call_seconds_bucket"]
    assert buckets["f", "numpy", str(seconds)] == 1


def test_functions_beyond_the_limit_share_their_series() -> None:
    found = families([(HostNote(f"f{number}", "", None), 0.0, 0.0, 0.1) for number in range(MOST_FUNCTIONS + 50)])
    assert len(found["anygpu_calls_total"]) == MOST_FUNCTIONS + 1
    assert found["anygpu_calls_total"]["other", "numpy"] == 50


HOSTILE = [
    'say "hello"',
    "two\nlines",
    "carriage\rreturn",
    "back\\slash",
    "back\\nslash",
    "<script>alert(1)</script>",
    "\x1b[31mred\x1b[0m",
    "\\x1b[31mred",
    "\u202egnirts",
    "half \udc80 a pair",
    "nul\0",
    '"} 1\nanygpu_calls_total{function="forged',
    "# HELP anygpu_calls_total forged",
    "",
    "é→日本",
]


def test_no_name_breaks_out_of_its_label() -> None:
    text = text_of([(HostNote(name, "", None), 0.0, 0.0, 0.1) for name in HOSTILE])
    promtool_check(text)
    assert text.replace("\n", "").isprintable(), "nothing in it commands a terminal"
    found = parsed(text)
    assert len(found["anygpu_calls_total"]) == len(HOSTILE), "different names stay different"
    assert set(found["anygpu_calls_total"].values()) == {1}
    assert ("forged", "numpy") not in found["anygpu_calls_total"]


def test_long_names_are_cut_and_stay_different() -> None:
    one, other = visible("x" * 5000), visible("x" * 5001)
    assert len(one) == len(other) == MOST_CHARACTERS
    assert one != other
    assert visible("score") == "score"


def test_what_is_not_known_has_no_sample() -> None:
    known = {"memory_used": 5, "memory_total": 10, "load": 0.25, "throttled": ("temperature",)}
    unknown = {name: "not told" for name in READINGS if name not in known}
    usage = {"webgpu:0": Usage(card="amd:0", source="sysfs", unknown=unknown, **known)}  # type: ignore[arg-type]
    text = to_text(usage_families(usage))
    promtool_check(text)
    found = parsed(text)
    assert found == {
        "anygpu_device_memory_used_bytes": {("webgpu:0", "amd:0"): 5},
        "anygpu_device_memory_size_bytes": {("webgpu:0", "amd:0"): 10},
        "anygpu_device_utilization_ratio": {("webgpu:0", "amd:0"): 0.25},
        "anygpu_device_throttled": {("webgpu:0", "amd:0"): 1},
    }


def test_the_latest_anomaly_of_a_kind_counts() -> None:
    def found(time: float) -> Anomaly:
        return Anomaly(kind="slower", subject="score", device=None, sentence="", time=time)

    text = to_text(anomaly_families([found(5.0), found(9.0), found(7.0)]))
    promtool_check(text)
    assert parsed(text) == {"anygpu_anomaly_timestamp_seconds": {("slower", "score", ""): 9.0}}


def test_the_collector_of_any_registry() -> None:
    registry = prometheus_client.CollectorRegistry()
    registry.register(observe.prometheus_collector(buckets=[0.5, 2.0]))

    with ag.collect_receipts() as receipts:
        for _ in range(7):
            twice(np.ones(8))
        with pytest.raises(TypeError):
            twice("a", "b")  # type: ignore[call-arg]
    labels = {"function": "twice", "device": "numpy"}
    assert registry.get_sample_value("anygpu_calls_total", labels) == 8
    assert registry.get_sample_value("anygpu_errors_total", labels) == 1
    assert registry.get_sample_value("anygpu_call_seconds_bucket", {**labels, "le": "0.5"}) is not None
    seconds = registry.get_sample_value("anygpu_call_seconds_sum", labels)
    assert seconds is not None
    assert seconds >= sum(each.seconds for each in receipts) * (1 - 1e-9)
    text = prometheus_client.generate_latest(registry).decode()
    promtool_check("\n".join(line for line in text.splitlines() if "_created" not in line) + "\n")
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(observe.prometheus_collector())
    observe.stop()
    assert registry.get_sample_value("anygpu_observed") == 0
    assert registry.get_sample_value("anygpu_calls_total", labels) is None


def test_the_collector_writes_the_same_text_as_ours() -> None:
    """Two writers of one thing: theirs and ours agree on every sample, whatever the names."""
    observe.start()
    registry = prometheus_client.CollectorRegistry()
    registry.register(observe.prometheus_collector())
    now = time.perf_counter()
    for name in HOSTILE:
        tell((HostNote(name, "", None), now - 0.1, now - 0.1, now))
    read = prometheus_client.parser.text_string_to_metric_families(prometheus_client.generate_latest(registry).decode())
    theirs = {family.name: by_labels(family) for family in read}
    with observe.serve_metrics(0) as server:
        text = urllib.request.urlopen(server.url).read().decode()
    ours = {each.name: by_labels(each) for each in prometheus_client.parser.text_string_to_metric_families(text)}
    for name in ("anygpu_calls", "anygpu_call_seconds", "anygpu_call_phase_seconds", "anygpu_call_recent_seconds"):
        assert ours[name] == theirs[name]
        assert ours[name]


@pytest.mark.parametrize("buckets", [[], [0.0, 1.0], [2.0, 1.0], [1.0, 1.0], [1.0, float("inf")]])
def test_buckets_that_are_none_are_refused(buckets: list[float]) -> None:
    with pytest.raises(InvalidOption, match="buckets are seconds"):
        observe.prometheus_collector(buckets=buckets)


def test_the_largest_page_passes_and_is_bounded() -> None:
    statistics = full(calls=3)
    text = to_text(call_families(statistics.summary(300.0), statistics.histograms(BUCKETS)))
    assert len(text) < 4 << 20
    promtool_check(text)


def test_text_of_a_family() -> None:
    family = Family("up", "gauge", "Is it?", [Sample(True), Sample(0.5, {"a": 'b"', "c": "d"}, "_x")])
    assert to_text([family]) == '# HELP up Is it?\n# TYPE up gauge\nup 1.0\nup_x{a="b\\"",c="d"} 0.5\n'


@pytest.mark.full
def test_a_real_prometheus_has_the_sums_of_the_receipts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """For a moment; `python -m benchmarks.metrics_scrape` does it for a minute.

    Prometheus waits no longer for an answer than until its next scrape: on a busy machine some may fail, and what the
    others brought is compared.
    """
    compared = compare(tmp_path, 2.0, "200ms", device="numpy")
    assert compared.calls > 10
    assert compared.scrapes - compared.failed_scrapes >= 2
    assert compared.difference < 1e-9
    assert "could not be answered" not in caplog.text
