"""A simulated fleet: figures that were measured, promises that hold in every scenario, and costs that do not grow."""

from __future__ import annotations

import sys

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anygpu.errors import InvalidOption
from anygpu.fleet.simulation.scenario import (
    PATTERNS,
    Arrivals,
    Faults,
    InvariantBroken,
    Ledger,
    Scenario,
    SimulatedFuture,
    SimulatedNetwork,
)
from anygpu.fleet.simulation.simulate import breaks_first, simulate
from anygpu.receipts.receipt import users_line

#: Sixteen blocking lanes, a Ray actor each, two cores: seconds of a launch, and the share of the time that devices
#: were busy.
MEASURED = {0.02: 0.78, 0.1: 0.97}


def lanes_of_16(seconds: float) -> Scenario:
    return Scenario(
        devices=16,
        tasks=round(80 / seconds),
        task_seconds=seconds,
        noise=0.0,
        batching=False,
        kinds=1,
        arrivals=Arrivals(pattern="closed"),
    )


@pytest.mark.parametrize("seconds", MEASURED)
def test_sixteen_devices_are_as_busy_as_was_measured(seconds: float) -> None:
    report = simulate(lanes_of_16(seconds))
    assert report.devices_busy == pytest.approx(MEASURED[seconds], rel=0.15)


scenarios = st.builds(
    Scenario,
    devices=st.integers(1, 40),
    nodes=st.none() | st.integers(1, 10),
    drivers=st.just(1),
    in_flight=st.integers(1, 2),
    tasks=st.integers(1, 300),
    kinds=st.integers(1, 5),
    tenants=st.integers(1, 4),
    priorities=st.integers(0, 10),
    deadline=st.none() | st.floats(0.05, 5.0),
    queue=st.none() | st.integers(1, 400),
    arrivals=st.builds(
        Arrivals,
        pattern=st.sampled_from(PATTERNS),
        load=st.floats(0.1, 3.0),
        burst=st.integers(1, 100),
        period=st.floats(0.5, 10.0),
        clients=st.none() | st.integers(1, 60),
    ),
    launch_seconds=st.floats(0.0, 0.05),
    task_seconds=st.floats(1e-3, 0.3),
    marginal=st.floats(0.0, 1.0),
    noise=st.floats(0.0, 0.5),
    batching=st.booleans(),
    faults=st.builds(
        Faults,
        actors=st.floats(0.0, 600.0),
        nodes=st.floats(0.0, 200.0),
        links=st.floats(0.0, 200.0),
        node_back=st.floats(0.1, 40.0),
        link_cut=st.floats(0.1, 30.0),
    ),
    seed=st.integers(0, 2**32),
)


@pytest.mark.full
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scenarios)
def test_every_task_comes_to_one_end_whatever_happens(scenario: Scenario) -> None:
    report = simulate(scenario)
    assert report.lost_tasks == report.results_twice == 0
    assert report.delivered + sum(report.failed.values()) + report.refused == scenario.tasks
    # A device never has more to do than there is time; what is on its way at the end is not counted.
    assert 0 <= report.devices_busy <= 1 + 1e-9
    assert set(report.failed) <= {"PoisonTask", "DeadlineExceeded", "DeviceLost", "DeviceHung", "DeviceUnavailable"}
    if scenario.deadline is None and not scenario.faults.any:
        assert not report.failed


@pytest.mark.full
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scenarios)
def test_the_same_seed_gives_the_same_report(scenario: Scenario) -> None:
    assert simulate(scenario).same_every_time == simulate(scenario).same_every_time


def test_another_seed_gives_another_report() -> None:
    scenario = Scenario(tasks=200)
    other = msgspec.structs.replace(scenario, seed=1)
    assert simulate(scenario).seconds != simulate(other).seconds


def test_faults_are_survived() -> None:
    faults = Faults(actors=60.0, nodes=30.0, links=30.0)
    report = simulate(Scenario(devices=32, tasks=2000, faults=faults, arrivals=Arrivals(load=0.5), seed=3))
    assert report.faults > 0
    assert report.lost_launches > 0
    assert report.repeated > 0
    assert report.delivered == 2000


def test_an_answer_that_a_short_cut_delays_is_not_asked_for_again() -> None:
    faults = Faults(links=2000.0, link_cut=2.0)
    report = simulate(Scenario(devices=16, tasks=500, faults=faults, arrivals=Arrivals(load=0.5)))
    assert report.lost_launches == 0
    assert report.repeated == 0
    assert report.latency.p99 > 2.0


def test_tasks_that_wait_together_become_launches() -> None:
    busy = Arrivals(pattern="bursts", burst=200, load=2.0)
    report = simulate(Scenario(devices=4, tasks=1000, kinds=1, launch_seconds=0.02, task_seconds=0.02, arrivals=busy))
    assert report.tasks_per_launch > 2
    alone = simulate(
        Scenario(devices=4, tasks=1000, kinds=1, launch_seconds=0.02, task_seconds=0.02, arrivals=busy, batching=False)
    )
    assert alone.tasks_per_launch == 1
    assert report.seconds < alone.seconds


def test_a_hundred_devices_are_all_used_at_once() -> None:
    busy = Arrivals(pattern="closed")
    report = simulate(
        Scenario(devices=300, tasks=6000, driver_launch=0.0, driver_task=0.0, arrivals=busy, batching=False)
    )
    assert report.devices_busy > 0.9


@pytest.mark.full
def test_the_driver_is_the_bound_of_short_launches_and_more_drivers_move_it() -> None:
    short = Scenario(devices=200, tasks=4000, task_seconds=0.02, batching=False, arrivals=Arrivals(pattern="closed"))
    one = simulate(short)
    assert one.throughput < 1.02 / short.driver_launch
    assert one.driver_busy > 0.9
    assert "The bound is the driver" in one.breaks_first
    four = simulate(msgspec.structs.replace(short, drivers=4, tenants=4))
    assert four.throughput > 3 * one.throughput


def test_tenants_share_the_devices() -> None:
    report = simulate(Scenario(devices=8, tasks=500, tenants=3, drivers=2, priorities=10, arrivals=Arrivals(load=1.5)))
    assert report.delivered == 500


def test_what_breaks_first_is_said_in_words() -> None:
    scenario = Scenario()
    assert breaks_first(scenario, 0.95, 0.2, 0.1, 0).startswith("The bound is the devices.")
    assert breaks_first(scenario, 0.3, 0.2, 0.97, 0).startswith("The bound is the link of a node.")
    assert "With 2.0 times the load it would be the devices." in breaks_first(scenario, 0.5, 0.2, 0.1, 0)
    assert breaks_first(scenario, 0.5, 0.2, 0.1, 7).startswith("The queue:")


def test_a_result_that_comes_twice_is_found() -> None:
    ledger = Ledger(2, lambda: None)
    future = SimulatedFuture(ledger, None)
    future.set_result(1)
    future.set_result(1)
    assert (ledger.delivered, ledger.twice) == (1, 1)
    assert "bug in anygpu" in str(InvariantBroken(["1 task was lost"], 7))


@pytest.mark.parametrize(
    "given",
    [
        {"devices": 0},
        {"drivers": 3, "devices": 2},
        {"task_seconds": 0.0},
        {"priorities": 11},
        {"noise": float("nan")},
        {"network": SimulatedNetwork(bytes_per_second=0.0)},
        {"faults": Faults(actors=-1.0)},
        {"arrivals": Arrivals(rate=0.0)},
    ],
)
def test_a_scenario_that_cannot_be_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(InvalidOption):
        Scenario(**given)  # type: ignore[arg-type]


def test_warnings_of_the_caller_are_still_about_its_own_lines() -> None:
    report = simulate(Scenario(devices=4, tasks=200, faults=Faults(actors=3600.0), arrivals=Arrivals(load=0.5)))
    assert report.repeated > 0, "the line of a task is set where it is tried again"
    here = sys._getframe().f_lineno + 1
    assert users_line() == (__file__, here)
