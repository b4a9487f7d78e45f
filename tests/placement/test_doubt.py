"""A device whose predictions were far off is predicted with that doubt, and says so."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from anygpu.calls.background import LOOKING
from anygpu.calls.offload import Offloaded
from anygpu.calls.options import options
from anygpu.placement.plan.plan import Candidate
from anygpu.placement.planner import Planner
from tests.support.slowed import SlowedRegistry

pytestmark = pytest.mark.software_devices("a call that names no device has candidates that compute on the processor")

DEVICE = "opencl:0"
VECTOR = np.linspace(0.0, 1.0, 10_000, dtype=np.float32)
MATRIX = VECTOR.reshape(100, 100)


def planner_with(clock: Any = time.perf_counter) -> Planner:
    planner = Planner(known=SlowedRegistry(DEVICE), clock=clock)
    planner.seconds = LOOKING
    planner.wake()
    assert planner.settle(120)
    return planner


@pytest.fixture
def hurried() -> Planner:
    """A planner for which every call takes far longer than was predicted."""
    return planner_with(lambda: 1e4 * time.perf_counter())


def offloaded(planner: Planner, function: Any, **asked: Any) -> Offloaded[..., Any]:
    return Offloaded(function, options(**asked), lambda: planner)


def explained(planner: Planner, function: Any, *arguments: Any) -> Candidate:
    found = offloaded(planner, function).explain(*arguments).candidate(DEVICE)
    assert found is not None
    return found


def call_twice(planner: Planner, function: Any) -> None:
    """Nothing is learnt from the first call there, which fills caches."""
    forced = offloaded(planner, function, on=DEVICE)
    forced(VECTOR)
    forced(VECTOR)


def product(x: Any) -> Any:
    return x @ x


def test_what_others_took_changes_the_prediction_for_a_new_program_and_its_reason(hurried: Planner) -> None:
    before = explained(hurried, product, MATRIX)
    assert before.phases is not None
    assert before.seconds == pytest.approx(before.phases.total)
    assert "too low" not in before.sentence
    call_twice(hurried, lambda x: x * 2 + 1)
    one = explained(hurried, product, MATRIX)
    assert one.seconds == pytest.approx(before.seconds), "one program may have had its own reasons"
    call_twice(hurried, lambda x: np.cumsum(x))
    after = explained(hurried, product, MATRIX)
    assert after.seconds == pytest.approx(20 * before.seconds, rel=1e-3)
    assert f"predictions for {DEVICE} were 20× too low so far" in after.sentence
    assert after.sentence.startswith("its calibration says ")


def test_a_device_that_did_as_predicted_is_not_doubted() -> None:
    planner = planner_with()
    device = planner.machine().device(DEVICE)
    assert device is not None
    for name in ("one", "another"):
        planner.corrections.learn(DEVICE, 1000.0, 1200.0, program=name)
    found = explained(planner, product, MATRIX)
    assert found.phases is not None
    assert found.seconds == pytest.approx(found.phases.total)
    assert "so far" not in found.sentence


def test_a_calibration_ends_the_doubt(hurried: Planner) -> None:
    for factor in (2.0, 3.0):
        call_twice(hurried, lambda x, factor=factor: np.sort(x * factor, axis=0))
    assert hurried.corrections.programs(DEVICE) == 2
    device = hurried.machine().device(DEVICE)
    assert device is not None
    hurried.clock = time.perf_counter
    hurried.calibrate(device, seconds=0.1)
    assert hurried.corrections.programs(DEVICE) == 0


def test_a_trial_in_the_background_teaches_as_well() -> None:
    planner = planner_with()
    x = np.random.default_rng(0).normal(size=900_000).astype(np.float32)

    def chain(x: Any) -> Any:
        for _ in range(20):
            x = np.maximum(x * 1.01 + 0.5, -2.0)
        return x

    call = offloaded(planner, chain)
    for _ in range(200):  # a busy machine rests between trials
        call(x)
        assert planner.settle(120)
        if planner.corrections.programs(DEVICE):
            break
    (site,) = call._table.sites.values()
    facts = {name: (track.why_failed, track.due, track.rough) for name, track in site.chooser.tracks.items()}
    assert planner.corrections.programs(DEVICE) == 1, (site.chooser.calls, site.chooser.pinned, facts)


def test_predictions_that_were_made_before_are_made_again(hurried: Planner) -> None:
    """A call site that was evaluated before others have run, and tries nothing that has become hopeless."""
    x = np.random.default_rng(0).normal(size=(300, 300)).astype(np.float32)
    call = offloaded(hurried, product)
    found = call.explain(x).candidate(DEVICE)
    assert found is not None
    for number in range(3):
        hurried.corrections.learn(DEVICE, found.seconds, 15 * found.seconds, program=str(number))
    version = hurried.corrections.version
    call(x)
    assert hurried.settle(120)
    (site,) = call._table.sites.values()
    assert site.candidates.corrected >= version, "a trial may have taught more since"
    assert site.candidates.predictions[DEVICE].doubt is not None
