"""Exploring stops when calls have stopped, and costs no more than the calls."""

from __future__ import annotations

import threading

import pytest

from anygpu.placement import pacing
from anygpu.placement.pacing import HEAD_START, QUIET_SECONDS, SHARE, SPARE_SHARE, Pace

PATIENCE = 120.0


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Explorers:
    """They note what they are told."""

    def __init__(self) -> None:
        self.paused = threading.Event()
        self.running = threading.Event()
        self.running.set()

    def pause(self) -> None:
        self.running.clear()
        self.paused.set()

    def resume(self) -> None:
        self.paused.clear()
        self.running.set()


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "_LOOK_SECONDS", 0.001)


def test_it_is_paused_once_calls_have_stopped_and_goes_on_with_the_next() -> None:
    clock, explorers = Clock(), Explorers()
    pace = Pace(clock, explorers)
    with pace:
        assert [pace.exploring] == [True]
        pace.end_call(pace.begin_call())
        clock.now += QUIET_SECONDS * 0.9
        assert not explorers.paused.wait(0.05)
        clock.now += QUIET_SECONDS * 0.2
        assert explorers.paused.wait(PATIENCE)
        assert [pace.exploring] == [False]
        call = pace.begin_call()
        assert explorers.running.wait(PATIENCE)
        clock.now += 100
        assert not explorers.paused.wait(0.05), "a long call is under way"
        pace.end_call(call)
        assert not explorers.paused.wait(0.05)
        clock.now += QUIET_SECONDS * 1.1
        assert explorers.paused.wait(PATIENCE)
    assert explorers.running.wait(PATIENCE), "nothing stays paused that is not explored"


def test_it_goes_on_for_whoever_waits_for_its_end() -> None:
    clock, explorers = Clock(), Explorers()
    pace = Pace(clock, explorers)
    with pace:
        clock.now += 10
        assert explorers.paused.wait(PATIENCE)
        pace.await_end()
        assert explorers.running.wait(PATIENCE)
        clock.now += 10
        assert not explorers.paused.wait(0.05)
        pace.stop_awaiting()
        assert explorers.paused.wait(PATIENCE)


def test_it_may_take_a_share_of_what_calls_have_taken() -> None:
    clock = Clock()
    pace = Pace(clock, Explorers())
    assert pace.allowance(0.0) == 0.0
    assert pace.allowance(8.0) == 8.0 * SHARE
    assert pace.missing(2.0, 0.5) == 2.0 / SHARE - 0.5
    with pace:
        call = pace.begin_call()
        clock.now += 2.0
        pace.end_call(call)
    assert pace.spent == 2.0
    assert pace.allowance(12.0) == 12.0 * SHARE - 2.0
    assert pace.allowance(1.0) == 0.0
    assert pace.missing(1.0, 3.0) == 3.0 / SHARE - 3.0
    pace.earlier = 5.0
    assert pace.allowance(7.0) == 12.0 * SHARE - 2.0
    assert pace.missing(1.0, 3.0) == 3.0 / SHARE - 8.0


def test_it_may_take_more_while_a_processor_is_idle() -> None:
    pace = Pace(Clock(), Explorers(), lambda: True)
    assert pace.allowance(0.0) == HEAD_START
    assert pace.missing(HEAD_START, 0.0) == 0.0
    assert pace.allowance(8.0) == 8.0 * SPARE_SHARE + HEAD_START
    assert pace.missing(5.0 + HEAD_START, 0.5) == 5.0 / SPARE_SHARE - 0.5
    assert not pace.affords(1.0, 1.0 / SHARE - 0.1), "what is not for these calls has to be paid first"
    assert pace.affords(1.0, 1.0 / SHARE)


def test_a_pause_costs_nothing() -> None:
    clock, explorers = Clock(), Explorers()
    pace = Pace(clock, explorers)
    with pace:
        clock.now += 10
        assert explorers.paused.wait(PATIENCE)
        clock.now += 1000
        call = pace.begin_call()
        assert explorers.running.wait(PATIENCE)
        pace.end_call(call)
    assert pace.spent == pytest.approx(10)


def test_its_thread_ends_with_exploring() -> None:
    clock = Clock()
    pace = Pace(clock, Explorers())
    for _ in range(3):
        with pace:
            watcher = pace._watcher
            assert watcher is not None
        watcher.join(PATIENCE)
        assert not watcher.is_alive()
