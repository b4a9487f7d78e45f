"""The search for the fastest way to run a step, on tables of times with bumps and noise."""

from __future__ import annotations

import dataclasses
import functools
import math
import random

import pytest

from anygpu.base.disturbance import Reading
from anygpu.pytorch.planning import FormPlanner, Kept
from anygpu.pytorch.step_plans import (
    MOST_TRIALS,
    Drift,
    Fitting,
    StepWay,
    WayTimes,
    cost_of_each,
    fastest,
    next_of,
    next_on,
)
from tests.pytorch.test_planning import MB, Machine, select

#: The time of a step may be this many times the best that an exhaustive search finds.
MOST_SLOWER = 1 / 0.85


@dataclasses.dataclass(frozen=True)
class Surface(Machine):
    """Times that depend on the size in no simple way: each has a factor of its own."""

    seed: int = 0
    #: Sizes up to this stay in a cache, and each row takes that much less.
    cached_rows: int = 0
    cached: float = 1.0
    #: How far a size may be off the line through all of them.
    bump: float = 0.25

    def factor(self, size: int) -> float:
        # Sizes that are near to each other use the same kernels.
        bump = 1 + self.bump * _bump(self.seed, round(2 * math.log2(size)))
        return bump * (self.cached if size <= self.cached_rows else 1.0)

    def seconds(self, way: StepWay, rows: int) -> float:
        count = math.ceil(rows / way.micro_batch)
        share = len(way.checkpoint) / self.layers
        return (count * self.each + rows * self.row * self.factor(way.micro_batch)) * (1 + share / 3)

    def best_seconds(self) -> float:
        """Of halves, with none, half and all of the layers checkpointed, as `benchmarks.pytorch_budget` searches."""
        names = tuple(f"layer{number}" for number in range(self.layers))
        sizes = {math.ceil(self.rows / 2**power) for power in range(self.rows.bit_length() + 1)}
        ways = [StepWay("float32", size, layers) for size in sizes for layers in ((), names[::2], names)]
        return min(self.seconds(way, self.rows) for way in ways if self.true_peak(way) <= 0.9 * self.budget)


@functools.cache
def _bump(seed: int, place: int) -> float:
    return random.Random(1000 * seed + place).uniform(-1, 1)


def surface(seed: int) -> Surface:
    draw = random.Random(seed)
    rows = draw.choice([24, 64, 100, 128, 256])
    layers = draw.randrange(2, 13)
    whole = rows * layers * 100
    return Surface(
        seed=seed,
        layers=layers,
        rows=rows,
        budget=int(1000 + whole / draw.choice([1.2, 2, 5, 10])) * MB,
        off=draw.uniform(0.9, 1.1),
        each=draw.choice([0.0, 1e-4, 1e-3, 3e-3]),
        cached_rows=draw.choice([0, 4, 8, 16]),
        cached=draw.uniform(0.6, 1.0),
        bump=draw.choice([0.0, 0.1, 0.25]),
    )


def noise(draw: random.Random) -> float:
    """Some per cent for each step, and every tenth is disturbed."""
    usual = math.exp(abs(draw.gauss(0, 0.04)))
    return usual * draw.uniform(1.2, 3.0) if draw.random() < 0.1 else usual


def steps_until_settled(machine: Surface, planner: FormPlanner, draw: random.Random) -> int:
    for step in range(4 * MOST_TRIALS):
        if planner.settled:
            return step
        plan = planner.next(machine.rows)
        way = StepWay(plan.precision, plan.micro_batch, plan.checkpoint)
        while machine.true_peak(way) > machine.budget:
            again = planner.failed(plan, machine.rows)
            assert again is not None
            plan, way = again, StepWay(again.precision, again.micro_batch, again.checkpoint)
        seconds = machine.seconds(way, machine.rows) * noise(draw)
        planner.ran(plan, machine.rows, seconds, machine.true_peak(way))
    raise AssertionError("it searches without end")


def planner_of(machine: Surface, **options: object) -> FormPlanner:
    return FormPlanner(Fitting(machine.predict, select, machine.budget), machine.rows, **options)  # type: ignore[arg-type]


def way_of(planner: FormPlanner, rows: int) -> StepWay:
    plan = planner.next(rows)
    return StepWay(plan.precision, plan.micro_batch, plan.checkpoint)


def test_of_a_thousand_surfaces_with_bumps_and_noise_99_in_100_end_near_the_best() -> None:
    near, most = 0, 0
    for seed in range(1000):
        machine = surface(seed)
        planner = planner_of(machine)
        most = max(most, steps_until_settled(machine, planner, random.Random(seed)))
        way = way_of(planner, machine.rows)
        near += machine.seconds(way, machine.rows) <= MOST_SLOWER * machine.best_seconds()
    assert near >= 990
    assert most <= MOST_TRIALS


def test_it_does_not_stop_at_the_first_size_that_is_not_faster() -> None:
    """A convolution as it was measured: 64 rows at once, 32 and 16 are alike, and 8 stay in the cache."""
    machine = Surface(layers=6, rows=128, budget=39_000 * MB, each=1e-4, cached_rows=8, cached=0.75, bump=0.0)
    planner = planner_of(machine)
    assert planner.next(128).micro_batch >= 43
    steps_until_settled(machine, planner, random.Random(1))
    way = way_of(planner, 128)
    assert way.micro_batch <= 8
    assert machine.seconds(way, 128) <= 1.05 * machine.best_seconds()
    assert "the fastest of" in planner.next(128).reason


class Disturbances:
    """Says what the test knows of a step."""

    disturbed = False

    def begin(self, now: float) -> Reading:
        return Reading(now, 0.0, 0.0)

    def end(self, begun: Reading, now: float) -> bool:
        return self.disturbed


def test_a_disturbance_over_half_of_the_search_does_not_mislead_it() -> None:
    far = 0
    for seed in range(100):
        machine = surface(seed)
        watch = Disturbances()
        planner = planner_of(machine, watch=watch)
        draw = random.Random(seed)
        begin = draw.randrange(12)
        for step in range(MOST_TRIALS + 20):
            if planner.settled:
                break
            plan = planner.next(machine.rows)
            way = way_of(planner, machine.rows)
            watch.disturbed = begin <= step < begin + 15
            seconds = (2.0 if watch.disturbed else 1.0) * noise(draw) * machine.seconds(way, machine.rows)
            planner.ran(plan, machine.rows, seconds, machine.peak(way))
        assert planner.settled
        way = way_of(planner, machine.rows)
        far += machine.seconds(way, machine.rows) > MOST_SLOWER * machine.best_seconds()
    assert far <= 2


def test_on_a_machine_that_is_always_busy_it_settles_all_the_same() -> None:
    machine = surface(5)
    watch = Disturbances()
    watch.disturbed = True
    planner = planner_of(machine, watch=watch)
    assert 20 < steps_until_settled(machine, planner, random.Random(5)) <= MOST_TRIALS + 20


def test_a_later_run_searches_nothing_until_times_drift() -> None:
    machine = surface(3)
    kept: list[Kept] = []
    steps_until_settled(machine, planner_of(machine, keep=kept.append), random.Random(3))
    later = planner_of(machine, kept=kept[-1], keep=kept.append)
    assert later.settled
    draw = random.Random(4)

    def run(slower: float) -> bool:
        plan = later.next(machine.rows)
        way = way_of(later, machine.rows)
        later.ran(plan, machine.rows, slower * noise(draw) * machine.seconds(way, machine.rows), machine.true_peak(way))
        return later.settled

    assert all(run(1.0) for _ in range(400))
    assert not [run(1.6) for _ in range(16)][-1]
    assert [run(1.6) for _ in range(MOST_TRIALS)][-1]
    assert len(kept) == 2


def ways(*sizes: int) -> list[StepWay]:
    return [StepWay("float32", size) for size in sizes]


def test_a_ladder_is_left_after_two_ways_in_a_row_that_are_slow() -> None:
    ladder = ways(8, 4, 2, 1)
    times: dict[StepWay, list[float]] = {}
    for seconds in (1.0, 1.6):
        way = next_on(ladder, times)
        assert way is not None
        times[way] = [seconds]
    assert next_on(ladder, times) == ladder[2]
    times[ladder[2]] = [1.7]
    # The second walk finds that one of the slow ones was disturbed, so the first one goes on.
    order = []
    while (way := next_on(ladder, times)) is not None:
        order.append(way)
        times.setdefault(way, []).append(1.2 if way is ladder[1] else 1.8)
    assert order == [ladder[0], ladder[1], ladder[3], ladder[2], ladder[3]]


def test_a_ladder_on_which_each_way_is_faster_is_walked_to_its_end() -> None:
    ladder = ways(1, 2, 3, 4, 5)
    times: dict[StepWay, list[float]] = {}
    for seconds in (1.0, 0.8, 0.6, 0.45, 0.3):
        way = next_on(ladder, times, 1.1)
        assert way is not None
        times[way] = [seconds, seconds]
    assert list(times) == ladder
    assert next_on(ladder, times, 1.1) is None


def test_what_did_not_fit_or_is_hopeless_is_not_measured_again() -> None:
    ladder = ways(8, 4)
    times: WayTimes = {ladder[0]: [math.inf], ladder[1]: [1.0, 1.1]}
    assert next_on(ladder, times) is None
    assert fastest(ladder, times) == ladder[1]
    assert next_on(ladder, {ladder[0]: [1.0, 1.0], ladder[1]: [2.6]}) is None


def test_only_ways_that_may_be_the_fastest_are_measured_a_third_time() -> None:
    first, second, third = ways(8, 4, 2)
    times: WayTimes = {first: [1.0, 1.2], second: [1.1, 1.1], third: [1.3, 1.4]}
    assert next_of([first, second, third], times) == first
    assert next_of([first, second], {**times, first: [1.0, 1.2, 1.0]}) == second
    assert next_of([first, second], {first: [1.0] * 3, second: [1.1] * 3}) is None
    assert next_of([first, third], times) is None
    assert next_of([first], {first: [math.inf]}) is None


def test_where_it_makes_no_difference_more_rows_at_once_stay() -> None:
    first, second = ways(8, 4)
    assert fastest([first, second], {first: [1.0], second: [0.98]}) == first
    assert fastest([first, second], {first: [1.0], second: [0.9]}) == second


def test_what_one_more_micro_batch_costs_is_taken_where_it_costs_most() -> None:
    assert cost_of_each([(2, 1.0), (4, 0.8), (8, 1.2)]) == pytest.approx(0.1)
    assert cost_of_each([(2, 1.0)]) == 0.5
    assert cost_of_each([(2, 1.0), (4, 0.8), (8, math.inf)]) == 0.0
    assert cost_of_each([]) == 0.0


def test_searches_become_rarer() -> None:
    drift = Drift()
    held = []
    for _ in range(3):
        drift.settled(20)
        steps = 1
        while not drift.seen(1.0 if steps <= 16 else 2.0):
            steps += 1
        held.append(steps)
    assert held == [200, 400, 800]


def test_a_run_that_is_far_slower_than_the_earlier_one_searches_again() -> None:
    drift = Drift()
    drift.settled(0, earlier=1.0)
    assert any(drift.seen(2.5) for _ in range(160))
    drift = Drift()
    drift.settled(0, earlier=1.0)
    assert not any(drift.seen(1.8) for _ in range(500))
