"""Changes are found soon, and noise is none: on series with the noise of a shared machine."""

from __future__ import annotations

import numpy as np
import pytest

from anygpu.observe.watching import LevelWatch, leak, time_until


def times(generator: np.random.Generator, count: int, level: float = 1e-3, spread: float = 0.1) -> np.ndarray:
    """Log-normal noise; one call in fifty takes two to ten times as long, and so do bursts of up to four in a row."""
    found = level * np.exp(generator.normal(0, spread, count))
    slow = generator.random(count) < 0.02
    found[slow] *= generator.uniform(2, 10, slow.sum())
    for begin in np.flatnonzero(generator.random(count) < 0.001):
        found[begin : begin + generator.integers(1, 3)] *= generator.uniform(2, 5)
    return found


@pytest.mark.sampled(gate=2)
@pytest.mark.parametrize("spread", [0.02, 0.1, 0.2])
def test_a_day_without_a_change_has_at_most_one_alarm(spread: float) -> None:
    generator = np.random.default_rng(3)
    watch = LevelWatch()
    alarms = [watch.add(seconds) for seconds in times(generator, 86_400, spread=spread).tolist()]
    assert sum(alarm is not None for alarm in alarms) <= 1


@pytest.mark.parametrize("spread", [0.02, 0.1, 0.2])
def test_a_slowdown_by_half_is_found_within_thirty_calls(spread: float) -> None:
    generator = np.random.default_rng(4)
    late = 0
    for _ in range(100):
        watch = LevelWatch()
        for seconds in times(generator, 500, spread=spread).tolist():
            watch.add(seconds)
        for number, seconds in enumerate(times(generator, 200, 1.5e-3, spread).tolist(), 1):
            found = watch.add(seconds)
            if found is not None:
                assert found.kind == "slower"
                assert 1.1 < found.factor < 2.2
                assert found.calls_ago <= number + 20
                late += number > 30
                break
        else:
            late += 1
    assert late <= 2


def test_one_slow_call_is_no_change_and_the_way_back_is_one() -> None:
    watch = LevelWatch()
    assert not any(watch.add(1e-3) for _ in range(100))
    assert watch.add(10.0) is None
    assert not any(watch.add(1e-3) for _ in range(100))
    slower = [found for _ in range(60) if (found := watch.add(2e-3))]
    assert [found.kind for found in slower] == ["slower"]
    assert str(slower[0]).startswith("has taken 2.0 times as long for the last ")
    faster = [found for _ in range(60) if (found := watch.add(1e-3))]
    assert [found.kind for found in faster] == ["faster"]


def memory(generator: np.random.Generator, count: int, per_call: float) -> list[tuple[float, int]]:
    """Some noise of an allocator, whose blocks come and go."""
    base = 300e6 + generator.integers(0, 8, count) * 512e3 + generator.normal(0, 100e3, count)
    return [(float(call), int(value + per_call * call)) for call, value in enumerate(base)]


def test_a_leak_of_a_megabyte_in_a_hundred_calls_is_found_before_twenty() -> None:
    generator = np.random.default_rng(5)
    for _ in range(50):
        samples = memory(generator, 2_000, 10_486)
        found = next((calls for calls in range(100, 2_001, 100) if leak(samples[max(0, calls - 1000) : calls])), None)
        assert found is not None
        assert found * 10_486 < 20 << 20


def test_memory_that_stays_or_fills_a_cache_is_no_leak() -> None:
    generator = np.random.default_rng(6)
    alarms = 0
    for _ in range(200):
        samples = memory(generator, 1_000, 0.0)
        filled = [(step, int(value + 30e6 * (1 - np.exp(-step / 80)))) for step, value in samples]
        alarms += leak(samples) is not None
        alarms += leak(filled) is not None
    assert alarms == 0


def test_nine_forecasts_in_ten_hold() -> None:
    generator = np.random.default_rng(7)
    held = 0
    for _ in range(1_000):
        drift, spread = generator.uniform(0.5, 5), generator.uniform(0.1, 3)
        walk = np.cumsum(drift + spread * generator.standard_normal(4_000))
        seen = [(float(time), float(value)) for time, value in enumerate(walk[:120])]
        forecast = time_until(walk[119] + 400, seen)
        if forecast is None:
            continue
        reached = np.flatnonzero(walk[120:] >= walk[119] + 400)
        truth = reached[0] + 1 if len(reached) else np.inf
        held += forecast.earliest <= truth <= forecast.latest
    assert 850 <= held <= 950


def test_what_does_not_grow_never_runs_out() -> None:
    generator = np.random.default_rng(8)
    flat = [(float(time), 100 + float(value)) for time, value in enumerate(generator.normal(0, 1, 200))]
    assert time_until(1e6, flat) is None
    assert time_until(1e6, flat[:5]) is None
    assert time_until(50.0, flat) == (0.0, 0.0, 0.0)


def test_a_line_is_forecast_exactly() -> None:
    line = [(float(time), 10.0 * time) for time in range(50)]
    forecast = time_until(1490.0, line)
    assert forecast is not None
    assert forecast.seconds == pytest.approx(100.0)
    assert forecast.earliest == pytest.approx(100.0)
