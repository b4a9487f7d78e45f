"""Times that were measured while something else had the processors are known to be doubtful, and are replaced."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anygpu.base import disturbance
from anygpu.base.disturbance import (
    INTERVAL,
    LEAST_WAITING,
    MOST_LOST,
    MOST_SPREAD,
    TELLING,
    Conditions,
    DisturbanceWatch,
    Reading,
    conditions,
    read_processors,
    spread,
)
from anygpu.testing import FakeProcessors, ManualClock

SECONDS = st.floats(1e-6, 1e3)


# -- conditions


@given(SECONDS, SECONDS, SECONDS)
def test_more_waiting_never_makes_a_time_less_doubtful(seconds: float, processor: float, waiting: float) -> None:
    calm, busy = Conditions(seconds, processor, waiting), Conditions(seconds, processor, 2 * waiting)
    assert 0 <= calm.lost <= busy.lost < 1
    assert busy.disturbed or not calm.disturbed


@given(SECONDS, SECONDS)
def test_without_waiting_nothing_is_doubtful_but_for_its_spread(seconds: float, processor: float) -> None:
    for waiting in (0.0, None):
        assert not Conditions(seconds, processor, waiting).disturbed
        assert not Conditions(seconds, processor, waiting, MOST_SPREAD).disturbed
        assert Conditions(seconds, processor, waiting, MOST_SPREAD * 1.01).disturbed


def test_half_of_the_processor_is_doubtful_and_a_short_wait_is_not() -> None:
    assert Conditions(1.0, 0.5, 0.5).disturbed
    assert not Conditions(1.0, 1.0, 0.5 * MOST_LOST).disturbed
    # A thread that mostly sleeps, and had to wait for a moment when it woke up.
    assert not Conditions(1.0, 0.001, 0.9 * LEAST_WAITING).disturbed


@given(st.lists(st.floats(0, 1e3), max_size=8))
def test_the_spread_is_that_of_the_two_best(times: list[float]) -> None:
    found = spread(times)
    assert (found is None) == (len(times) < 2)
    assert found is None or found >= 1.0
    if found is not None:
        assert spread([*times, 2e3]) == found, "one that was disturbed changes nothing"


@given(SECONDS, SECONDS, SECONDS, SECONDS)
def test_threads_that_have_ended_make_no_reading_negative(one: float, other: float, ran: float, waited: float) -> None:
    found = conditions(Reading(one, ran, waited), Reading(other, 0.0, 0.0))
    assert min(found.seconds, found.processor, found.waiting or 0.0) >= 0
    assert conditions(Reading(one, ran, None), Reading(other, ran, waited)).waiting is None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these files")
def test_a_reading_of_this_process() -> None:
    before = read_processors()
    while read_processors().processor <= before.processor:
        pass
    assert before.waiting is not None
    assert math.isfinite(before.seconds)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these files")
def test_a_system_that_does_not_tell(tmp_path: Path) -> None:
    processes = str(tmp_path)
    assert read_processors(processes=processes).waiting is None
    for process in ("self", "17"):
        (tmp_path / process / "task" / "1").mkdir(parents=True)
        (tmp_path / process / "task" / "1" / "schedstat").write_text("0 0")
    assert read_processors(processes=processes).waiting is None
    (tmp_path / "self" / "task" / "1" / "schedstat").write_text("2000000000 1000000000 5\n")
    assert read_processors(processes=processes)[1:] == (2.0, 1.0)
    (tmp_path / "17" / "task" / "1" / "schedstat").write_text("500000000 3000000000 5\n")
    assert read_processors(17, processes=processes)[1:] == (2.5, 4.0)


# -- the watch


class Watched:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.processors = FakeProcessors(self.clock)
        self.readings = 0
        self.watch = DisturbanceWatch(self._read)

    def _read(self) -> Reading:
        self.readings += 1
        return self.processors()

    def measure(self, seconds: float) -> bool:
        begun = self.watch.begin(self.clock())
        self.clock.advance(seconds)
        return self.watch.end(begun, self.clock())


def test_a_busy_machine_is_noticed_and_so_is_its_end() -> None:
    watched = Watched()
    assert not watched.measure(1.0)
    watched.processors.busy = 0.6
    assert watched.measure(1.0)
    assert not watched.watch.is_calm
    watched.processors.busy = 0.0
    assert not watched.measure(1.0)
    assert watched.watch.is_calm


def test_short_calls_share_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disturbance, "RARELY", 0.0)  # however long one takes here
    watched = Watched()
    for _ in range(1000):
        watched.measure(1e-3)
    assert watched.readings <= 3 * 1000 * 1e-3 / TELLING
    watched = Watched()
    for _ in range(1000):
        watched.measure(1e-6)
    assert watched.readings == 1


def test_short_calls_are_judged_by_the_interval_they_are_in() -> None:
    watched = Watched()
    watched.processors.busy = 0.7
    found = [watched.measure(1e-3) for _ in range(300)]
    assert all(found[int((INTERVAL + TELLING) / 1e-3) :])
    watched.processors.busy = 0.0
    found = [watched.measure(1e-3) for _ in range(300)]
    assert not any(found[int(2 * (INTERVAL + TELLING) / 1e-3) :])


def test_what_was_between_two_measurements_says_nothing() -> None:
    watched = Watched()
    watched.measure(0.1)
    watched.processors.busy = 0.9
    watched.clock.advance(10.0)
    watched.processors.busy = 0.0
    assert not watched.measure(0.1)
