"""Devices that are really destroyed under a runtime: on both adapters, at every moment of a run. Nobody's task is lost.

The same at full count: `python -m benchmarks.faults --what losses`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from anygpu.array.trace.traced import Traced
from anygpu.array.trace.tracing import trace
from anygpu.errors import DeviceLost
from benchmarks.faults_scenarios import losses
from tests.support.fault_schedule import LOSSES, Kind, Schedule
from tests.support.faults import SWIFTSHADER, FaultyRegistry

X = np.linspace(-3, 3, 4096).astype(np.float32)
TRACED = trace(lambda x: x + x, (X,), {})
assert isinstance(TRACED, Traced)
TWICE = TRACED.program


@pytest.mark.full
@pytest.mark.parametrize(
    ("drivers", "kinds"),
    [(None, LOSSES), (SWIFTSHADER, (Kind.LOSE_AT_SUBMIT, Kind.LOSE_IN_FLIGHT))],
    ids=["lavapipe", "swiftshader"],
)
def test_losses_in_the_middle_of_work_cost_no_task(drivers: Path | None, kinds: tuple[Kind, ...]) -> None:
    tally = losses(len(kinds), kinds, drivers=drivers, seed=7)
    assert tally.events == len(kinds)
    assert (tally.lost, tally.wrong, tally.not_once, tally.errors) == (0, 0, 0, {})
    assert len(tally.replaced) == len(kinds)
    assert tally.bytes_left == 0


@pytest.fixture
def known() -> Iterator[FaultyRegistry]:
    known = FaultyRegistry("webgpu")
    yield known
    known.close()


def test_a_loss_between_the_end_of_encoding_and_the_submission_ends_the_process(known: FaultyRegistry) -> None:
    # The injected fault is the real one: the library aborts, and nothing but a process of its own survives that.
    worker = known.worker(known.device)
    np.testing.assert_array_equal(worker.run(TWICE, [X]).results[0], X + X)
    known.schedule.next_is(Kind.LOSE_AT_SUBMIT)
    with pytest.raises(DeviceLost, match="SIGABRT"):
        worker.run(TWICE, [X])
    assert not worker.alive
    again = known.worker(known.device)
    assert again.generation == 2
    np.testing.assert_array_equal(again.run(TWICE, [X]).results[0], X + X)
    (seconds,) = known.schedule.replacements()
    assert seconds > 0


def test_a_plan_is_the_same_for_the_same_seed_and_has_each_kind_equally_often() -> None:
    plans = []
    for seed in (1, 1, 2):
        schedule = Schedule()
        schedule.arrange(LOSSES, count=40, gap=3, seed=seed)
        plans.append(schedule.rows["kind"][:400].copy())
        assert schedule.planned == 40
        schedule.close()
        assert not schedule.path.exists()
    np.testing.assert_array_equal(plans[0], plans[1])
    assert (plans[0] != plans[2]).any()
    assert [int((plans[0] == kind).sum()) for kind in LOSSES] == [10] * len(LOSSES)
