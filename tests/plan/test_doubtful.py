"""What was learnt on a busy machine is undone on a calm one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anygpu.placement.plan.candidate_history import Remembered
from anygpu.placement.plan.choosing import LONGEST_IN_DOUBT, DeviceChooser
from anygpu.placement.plan.chunking import BatchTimes, weigh

UNDONE = LONGEST_IN_DOUBT + 10


class Calls:
    """Calls of one function whose candidates take so long on a calm machine, and so many times that on a busy one."""

    def __init__(self, slowdown: dict[str, float], **seconds: float) -> None:
        self.seconds, self.slowdown = seconds, slowdown
        self.chooser = DeviceChooser("numpy")
        self.busy = False
        self.trials = 0
        self.trial: str | None = None

    def took(self, name: str) -> float:
        return self.seconds[name] * (self.slowdown.get(name, 1.0) if self.busy else 1.0)

    def call(self) -> str:
        chooser = self.chooser
        if chooser.calls == 1:
            chooser.consider(self.seconds)
        if self.trial is not None:
            chooser.tried(self.trial, self.took(self.trial), busy=self.busy)
            self.trial = None
        choice = chooser.choose()
        assert choice == chooser.choose(), "asking changes nothing"
        if choice.checks is not None:
            chooser.begin_sample(choice.checks)
        chooser.measured(choice.candidate, self.took(choice.candidate), busy=self.busy)
        self.trial = chooser.to_try()
        if self.trial is not None:
            chooser.begin_trial(self.trial)
            self.trials += 1
        return choice.candidate


def run(calls: Calls, count: int, *, busy: bool) -> list[str]:
    calls.busy = busy
    return [calls.call() for _ in range(count)]


@pytest.mark.parametrize("long", [30, 300, 3000])
def test_a_device_that_lost_on_a_busy_machine_is_back(long: int) -> None:
    calls = Calls({"numpy": 1.5, "gpu": 20.0}, numpy=1.0, gpu=0.3)
    assert run(calls, long, busy=True)[-1] == "numpy"
    went = run(calls, UNDONE, busy=False)
    assert went[-1] == "gpu"
    assert calls.chooser.current == "gpu"


def test_a_device_that_had_the_work_and_lost_it_is_back() -> None:
    calls = Calls({"numpy": 1.2, "gpu": 10.0}, numpy=1.0, gpu=0.5)
    assert run(calls, 50, busy=False)[-1] == "gpu"
    assert run(calls, 200, busy=True)[-1] == "numpy"
    assert run(calls, UNDONE, busy=False)[-1] == "gpu"


def test_a_baseline_that_a_load_has_slowed_is_measured_again() -> None:
    calls = Calls({"numpy": 3.0, "gpu": 1.0}, numpy=1.0, gpu=1.4)
    assert run(calls, 60, busy=True)[-1] == "gpu"
    run(calls, UNDONE, busy=False)
    assert calls.chooser.current == "numpy"


def test_a_doubtful_memory_is_no_reason_not_to_try() -> None:
    def chooser(doubtful: bool) -> DeviceChooser:
        found = DeviceChooser("numpy")
        found.measured("numpy", 1.0)
        found.consider({"numpy": 1.0, "gpu": 0.3})
        found.recall({"gpu": Remembered(4.0, 0.0, 10, "measured today", doubtful)})
        return found

    assert chooser(True).to_try() == "gpu"
    assert chooser(False).to_try() is None


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 60), st.booleans()), max_size=6),
    st.floats(1.0, 8.0),
    st.floats(1.0, 30.0),
    st.floats(0.1, 0.6),
)
def test_whatever_the_load_was_the_faster_one_has_the_work_in_the_end(
    weather: list[tuple[int, bool]], numpy: float, gpu: float, seconds: float
) -> None:
    calls = Calls({"numpy": numpy, "gpu": gpu}, numpy=1.0, gpu=seconds)
    run(calls, 2, busy=True)
    for count, busy in weather:
        run(calls, count, busy=busy)
    run(calls, UNDONE, busy=False)
    assert calls.chooser.current == "gpu"


# -- batches

SINGLE, LAUNCH = 1e-3, 10e-3


def launches(times: BatchTimes, count: int, seconds: float, *, busy: bool) -> int:
    """How many of so many times 256 calls wait together they become one launch, which takes so long."""
    made = 0
    for _ in range(count):
        plan = weigh(
            256,
            single=SINGLE,
            together=lambda size: times.estimate(size, LAUNCH),
            compiling=lambda size: 0.0 if size == 256 else 1e9,
            bytes_of=lambda size: 1,
            room=None,
            latency=0.25,
        ).plan
        if plan is not None:
            made += 1
            times.measured(256, seconds, LAUNCH, disturbed=busy)
        else:
            times.passed_over(256, calm=not busy)
    return made


@pytest.mark.parametrize("long", [1, 20, 1000])
def test_a_launch_that_was_slow_on_a_busy_machine_is_made_again_when_it_is_calm(long: int) -> None:
    times = BatchTimes()
    assert launches(times, long, 1.5, busy=True) < 20
    assert launches(times, 10, LAUNCH, busy=False) >= 8


def test_a_slow_launch_between_others_changes_nothing_on_a_busy_machine() -> None:
    times = BatchTimes()
    launches(times, 3, LAUNCH, busy=True)
    launches(times, 3, 1.5, busy=True)
    assert launches(times, 10, LAUNCH, busy=True) == 10


def test_a_launch_that_is_slow_on_a_calm_machine_is_given_up() -> None:
    times = BatchTimes()
    assert launches(times, 100, 1.5, busy=False) <= 2


def test_what_compiling_took_on_a_busy_machine_is_believed_in_part() -> None:
    times = BatchTimes()
    times.compiled(5.0, 0.1, disturbed=True)
    assert times.compiling(0.1) <= 0.2
    times.compiled(0.3, 0.1)
    assert times.compiling(0.1) == pytest.approx(0.3)
    times.compiled(5.0, 0.1, disturbed=True)
    assert times.compiling(0.1) == pytest.approx(0.3)
