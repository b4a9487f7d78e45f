"""Anomalies are said once, in sentences, and reach the log and a callback."""

from __future__ import annotations

import logging

import pytest

from anygpu.hardware.usage import READINGS, Usage
from anygpu.observe.observation import Observation, Sampler
from anygpu.observe.snapshot import Anomaly, DeviceMemoryUse
from anygpu.observe.statistics import CallBatch, batches
from anygpu.observe.watching import MOST_VALUES, MemorySample, ProcessWatch
from anygpu.receipts.notes import HostNote, Note
from anygpu.receipts.receipt import Phases, Receipt

MIB = 1 << 20


SAID = HostNote("score", "it is a test", None)


def note(seconds: float) -> Note:
    return SAID, 0.0, 0.0, seconds


def notes(seconds: float, count: int = 10) -> list[CallBatch]:
    return batches([note(seconds)] * count, [])


def receipts(run: float, predicted: float) -> list[CallBatch]:
    return batches([], [(receipt(run, predicted), 0.0)] * 10)


def receipt(run: float, predicted: float) -> Receipt:
    unknown = dict.fromkeys(("device_seconds", "peak_bytes", "kernels"), "it is a test")
    return Receipt(
        task="score",
        device="opencl:0",
        kind="gpu",
        reason="it is a test",
        phases=Phases(run=run, compile=10.0),
        predicted_seconds=predicted,
        unknown=unknown,
    )


def usage(throttled: tuple[str, ...]) -> Usage:
    missing = [name for name in READINGS if name != "throttled"]
    return Usage(card="nvidia:0", source="nvml", throttled=throttled, unknown=dict.fromkeys(missing, "it is a test"))


def kinds(found: list[Anomaly]) -> list[str]:
    return [each.kind for each in found]


def told(watch: ProcessWatch, seconds: float, since: float, until: float, count: int = 10) -> list[Anomaly]:
    """What is said while calls take so long, ten times a second."""
    return [
        found
        for tenth in range(int(since * 10), int(until * 10))
        for found in watch.add_calls(notes(seconds, count), tenth / 10)
    ]


def test_a_function_that_became_slower_is_named_with_both_times() -> None:
    watch = ProcessWatch()
    assert told(watch, 2e-3, 0, 2) == []
    found = told(watch, 5e-3, 2, 35)
    assert kinds(found) == ["slower"]
    assert found[0].sentence.startswith("score on numpy takes 2.5 times as long as it did: ")
    assert found[0].sentence.endswith("5 ms instead of 2 ms.")
    # And when it is as fast as before.
    assert kinds(told(watch, 2e-3, 35, 120)) == ["faster"]


def test_what_does_not_last_is_not_told() -> None:
    watch = ProcessWatch()
    assert told(watch, 2e-3, 0, 5) == []
    for minute in range(1, 6):
        assert told(watch, 5e-3, 60 * minute, 60 * minute + 10) == []
        assert told(watch, 2e-3, 60 * minute + 10, 60 * minute + 60) == []


def test_a_function_that_became_faster_is_no_news() -> None:
    watch = ProcessWatch()
    assert told(watch, 5e-3, 0, 5) == told(watch, 2e-3, 5, 60) == []


def test_many_calls_at_once_are_watched_by_groups() -> None:
    watch = ProcessWatch()
    assert told(watch, 1e-3, 0, 2, 100 * MOST_VALUES) == []
    assert kinds(told(watch, 3e-3, 2, 35, 100 * MOST_VALUES)) == ["slower"]


def test_functions_of_microseconds_are_not_watched() -> None:
    watch = ProcessWatch()
    assert told(watch, 2e-6, 0, 5, 1000) == told(watch, 2e-5, 5, 60, 1000) == []


def test_predictions_that_do_not_hold_are_said_once() -> None:
    watch = ProcessWatch()
    found = [each for _ in range(20) for each in watch.add_calls(receipts(0.01, 0.003), 1.0)]
    assert kinds(found) == ["slower than predicted"]
    assert "3.3 times as long on opencl:0 as predicted" in found[0].sentence
    for _ in range(10):
        watch.add_calls(receipts(0.003, 0.003), 1.0)
    again = [each for _ in range(20) for each in watch.add_calls(receipts(0.01, 0.003), 1.0)]
    assert "slower than predicted" in kinds(again)


def test_compiling_says_nothing_of_a_function() -> None:
    watch = ProcessWatch()
    assert [each for _ in range(20) for each in watch.add_calls(receipts(0.003, 0.003), 1.0)] == []


def test_a_leak_is_found_and_when_memory_will_be_full() -> None:
    watch = ProcessWatch()
    found: list[Anomaly] = []
    for step in range(60):
        watch.add_calls(notes(1e-3), float(step))
        held = {"opencl:0": DeviceMemoryUse(bytes=(100 + step) * MIB, peak_bytes=0)}
        found += watch.add_sample(MemorySample(50 * MIB, held, {}, {"opencl:0": 1000 * MIB}), 2.0 * step)
    assert kinds(found) == ["leak", "memory runs out"]
    assert found[0].sentence.startswith("The memory of this process on opencl:0 only grows: ")
    assert found[0].sentence.endswith(" a call.")
    assert "is full in about " in found[1].sentence


def test_caches_that_fill_in_the_first_minute_are_no_leak() -> None:
    watch = ProcessWatch()
    found: list[Anomaly] = []
    for step in range(120):
        watch.add_calls(notes(1e-3), float(step))
        held = {"opencl:0": DeviceMemoryUse(bytes=(100 + 10 * min(step, 29)) * MIB, peak_bytes=0)}
        found += watch.add_sample(MemorySample(50 * MIB, held, {}, {}), 2.0 * step)
    assert found == []


def test_a_slow_leak_is_found_after_hours() -> None:
    watch = ProcessWatch()
    found: list[Anomaly] = []
    for step in range(3 * 1800):
        watch.add_calls(notes(1e-3, 1), float(step))
        found += watch.add_sample(MemorySample(100 * MIB + step * 4096, {}, {}, {}), 2.0 * step)
    assert kinds(found) == ["leak"]


def test_a_device_that_throttles_is_named_until_it_stops() -> None:
    watch = ProcessWatch()
    hot = MemorySample(MIB, {}, {"torch:cuda:0": usage(("it is too hot",))}, {})
    fine = MemorySample(MIB, {}, {"torch:cuda:0": usage(())}, {})
    (found,) = watch.add_sample(hot, 1.0)
    assert found.sentence == "torch:cuda:0 runs slower than it could: it is too hot."
    assert watch.add_sample(hot, 2.0) == []
    assert watch.add_sample(fine, 3.0) == []
    assert kinds(watch.add_sample(hot, 4.0)) == ["throttled"]


def test_anomalies_reach_the_log_and_a_callback(caplog: pytest.LogCaptureFixture) -> None:
    observation, told = Observation(), []

    def tell(anomaly: Anomaly) -> None:
        told.append(anomaly)
        raise RuntimeError("the callback is broken")

    hot = MemorySample(MIB, {}, {"torch:cuda:0": usage(("it is too hot",))}, {})
    sampler = Sampler(observation, lambda: hot, tell, period=3600)
    sampler.look()
    assert told == []  # nothing was called, and nothing was sampled
    observation(note(1e-3), None)
    with caplog.at_level(logging.WARNING, "anygpu.observe"):
        sampler.look()
        sampler.look()
    sampler.close()
    assert kinds(told) == ["throttled"]
    assert kinds(observation.anomalies()) == ["throttled"]
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["torch:cuda:0 runs slower than it could: it is too hot.", "the callback for anomalies raised"]
