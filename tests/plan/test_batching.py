"""How many calls become one launch: within memory and latency, only where it pays, and compiled once that has paid."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anygpu.placement.plan.chunking import (
    FILLED,
    FIRST_INTERVAL,
    LEAST_FILLED,
    MARGIN,
    SIZES,
    WINDOW,
    BatchPlan,
    BatchTimes,
    Missed,
    weigh,
)

seconds = st.floats(1e-6, 10.0)
tables = st.lists(seconds, min_size=len(SIZES), max_size=len(SIZES))


def ready(size: int) -> float:
    return 0.0


def affine(launch: float, each: float) -> Callable[[int], float]:
    return lambda size: launch + each * size


COMMON = affine(1e-3, 1e-6)


def plan_for(
    waiting: int,
    *,
    single: float = 1e-3,
    together: Callable[[int], float] = COMMON,
    compiling: Callable[[int], float] = ready,
    bytes_of: Callable[[int], int] = lambda size: 1000 * size,
    room: int | None = None,
    latency: float = 0.25,
) -> BatchPlan | None:
    return weigh(
        waiting,
        single=single,
        together=together,
        compiling=compiling,
        bytes_of=bytes_of,
        room=room,
        latency=latency,
    ).plan


def cost(plan: BatchPlan | None, waiting: int, single: float, compiling: Callable[[int], float]) -> float:
    """Of all that wait, as `weigh` counts it."""
    if plan is None:
        return single * waiting
    return plan.seconds * waiting / plan.taken + compiling(plan.size)


# -- one question


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        (0, None),
        (1, None),
        (2, None),
        (3, (4, 3)),
        (4, (4, 4)),
        (9, (4, 4)),
        (10, (16, 10)),
        (38, (16, 16)),
        (39, (64, 39)),
        (200, (256, 200)),
        (976, (1024, 976)),
        (5000, (1024, 1024)),
    ],
)
def test_a_size_is_taken_when_it_is_filled_or_nearly(waiting: int, expected: tuple[int, int] | None) -> None:
    plan = plan_for(waiting, compiling=lambda size: 1e-9)
    assert (None if plan is None else (plan.size, plan.taken)) == expected


def test_what_is_compiled_is_also_used_for_fewer_if_that_is_the_fastest() -> None:
    def compiling(size: int) -> float:
        return 0.0 if size in (4, 256) else 1.0

    for waiting, expected in ((3, 4), (31, 4), (32, 256), (100, 256)):
        plan = plan_for(waiting, compiling=compiling)
        assert plan is not None
        assert (plan.size, plan.taken) == (expected, min(waiting, expected))
    # Unless the padding costs more than it saves.
    plan = plan_for(100, compiling=compiling, together=affine(1e-4, 1e-4))
    assert plan is not None
    assert plan.size == 4


def test_what_is_no_faster_is_not_done() -> None:
    assert plan_for(100, single=1e-3, together=lambda size: 1e-3 * size) is None
    assert plan_for(100, single=1e-3, together=lambda size: 1e-3 * size * (MARGIN + 0.01)) is None
    assert plan_for(100, single=1e-3, together=lambda size: 1e-3 * size * (MARGIN - 0.01)) is not None


def test_the_largest_size_within_the_latency_and_the_room() -> None:
    by_latency = plan_for(2000, together=affine(1e-3, 1e-3), single=2e-3, latency=0.1)
    assert by_latency is not None
    assert by_latency.size == 64
    by_room = plan_for(2000, room=20_000)
    assert by_room is not None
    assert by_room.size == 16
    assert plan_for(2000, room=3_999) is None
    assert plan_for(2000, latency=1e-4) is None


def test_a_size_that_is_slower_than_it_should_be_is_left_for_another() -> None:
    slow = {4: 1e-3, 16: 1e-3, 64: 1e-3, 256: 0.2, 1024: 0.2}
    plan = plan_for(1024, together=slow.__getitem__)
    assert plan is not None
    assert plan.size == 64


@given(
    waiting=st.integers(0, 5000),
    single=seconds,
    together=tables,
    compiling=tables,
    nbytes=st.integers(1, 10**6),
    room=st.none() | st.integers(0, 10**9),
    latency=seconds,
)
def test_a_plan_keeps_every_bound_and_is_worth_it(
    waiting: int,
    single: float,
    together: list[float],
    compiling: list[float],
    nbytes: int,
    room: int | None,
    latency: float,
) -> None:
    takes, compiles = (dict(zip(SIZES, each, strict=True)).__getitem__ for each in (together, compiling))
    plan = plan_for(
        waiting,
        single=single,
        together=takes,
        compiling=compiles,
        bytes_of=lambda size: nbytes * size,
        room=room,
        latency=latency,
    )
    if plan is None:
        return
    assert plan.size in SIZES
    filled = FILLED if compiles(plan.size) > 0 else LEAST_FILLED
    assert filled * plan.size <= plan.taken <= min(plan.size, waiting)
    assert plan.seconds == takes(plan.size) <= latency
    assert room is None or nbytes * plan.size <= room
    assert cost(plan, waiting, single, compiles) <= single * waiting * MARGIN * (1 + 1e-9)


@given(st.integers(2, 5000), seconds, tables, tables, seconds, seconds)
def test_more_latency_never_makes_it_worse(
    waiting: int, single: float, together: list[float], compiling: list[float], one: float, other: float
) -> None:
    takes, compiles = (dict(zip(SIZES, each, strict=True)).__getitem__ for each in (together, compiling))

    def total(latency: float) -> float:
        plan = plan_for(waiting, single=single, together=takes, compiling=compiles, latency=latency)
        return cost(plan, waiting, single, compiles)

    assert total(max(one, other)) <= total(min(one, other)) * (1 + 1e-9)


@given(st.integers(1, 3000), st.integers(1, 3000), st.floats(1e-5, 1e-2), st.floats(1e-8, 1e-3))
def test_more_that_wait_never_make_a_smaller_launch(one: int, other: int, launch: float, each: float) -> None:
    def size(waiting: int) -> int:
        plan = plan_for(waiting, single=launch + each, together=affine(launch, each), latency=math.inf)
        return plan.size if plan is not None else 1

    few, many = min(one, other), max(one, other)
    assert size(few) <= size(many)


# -- compiling


def test_compiling_is_worth_it_at_once_for_many_and_not_for_a_few() -> None:
    def compiling(size: int) -> float:
        return 0.05

    assert plan_for(30, single=4e-4, together=affine(5e-4, 1e-6), compiling=compiling) is None
    plan = plan_for(2000, single=4e-4, together=affine(5e-4, 1e-6), compiling=compiling)
    assert plan is not None
    assert plan.size == 1024


def test_what_is_compiled_already_is_used_meanwhile() -> None:
    def compiling(size: int) -> float:
        return 0.0 if size == 16 else 0.05

    found = weigh(
        70,
        single=4e-4,
        together=affine(5e-4, 1e-6),
        compiling=compiling,
        bytes_of=lambda size: 1,
        room=None,
        latency=1.0,
    )
    assert found.plan is not None
    assert found.plan.size == 16
    assert found.wanted == 64
    assert found.missed == pytest.approx((5.16e-4 * 70 / 16 - 5.64e-4 * 70 / 64) / 70)


def serve(rounds: int, waiting: int, *, single: float, together: Callable[[int], float], once: float) -> float:
    """So many calls wait in each of so many rounds: what they all take, and compiling."""
    missed, compiled = Missed(), set[int]()
    total = 0.0
    for _ in range(rounds):
        left = waiting
        while left:
            found = weigh(
                left,
                single=single,
                together=together,
                compiling=lambda size: 0.0 if size in compiled else missed.left(size, once),
                bytes_of=lambda size: size,
                room=None,
                latency=math.inf,
            )
            plan = found.plan
            taken = plan.taken if plan is not None else 1
            if found.wanted is not None:
                missed.add(found.wanted, found.missed * taken)
            if plan is None:
                total += single
            else:
                total += plan.seconds
                if plan.size not in compiled:
                    compiled.add(plan.size)
                    missed.paid(plan.size)
                    total += once
            left -= taken
    return total


def test_calls_that_keep_coming_pay_for_compiling_in_the_end() -> None:
    """30 tasks of 0.4 ms, again and again, and 50 ms to compile: one by one at first, and never dear."""
    together = affine(5e-4, 1e-6)
    once, single = 0.05, 4e-4
    assert serve(1, 30, single=single, together=together, once=once) == pytest.approx(30 * single)
    rounds = 1000
    spent = serve(rounds, 30, single=single, together=together, once=once)
    at_best = rounds * (together(16) * 2) + once
    assert spent < 1.3 * at_best
    assert spent < 0.15 * rounds * 30 * single


@given(st.integers(1, 60), st.integers(1, 400), st.floats(1e-4, 1.0), st.floats(1e-4, 1e-2), st.floats(1e-7, 1e-4))
def test_compiling_never_costs_much_more_than_not_doing_it(
    rounds: int, waiting: int, once: float, launch: float, each: float
) -> None:
    single = launch + each
    spent = serve(rounds, waiting, single=single, together=affine(launch, each), once=once)
    # Each of five sizes may be compiled just before calls stop coming, for no more than it would have saved so far.
    assert spent <= 2 * rounds * waiting * single * (1 + 1e-9)


# -- what launches take


def test_a_size_that_turns_out_slower_is_given_up_and_tried_again_much_later() -> None:
    times = BatchTimes()
    single, predicted = 1e-3, 2e-3
    launches: list[int] = []
    for number in range(20 * FIRST_INTERVAL):
        plan = weigh(
            16,
            single=single,
            together=lambda size: times.estimate(size, predicted) if size == 16 else math.inf,
            compiling=ready,
            bytes_of=lambda size: 1,
            room=None,
            latency=1.0,
        ).plan
        if plan is None:
            times.passed_over(16)
        else:
            launches.append(number)
            times.measured(16, 0.05, predicted)
    assert launches[0] == 0
    # The intervals double.
    assert launches[1] == FIRST_INTERVAL + 1
    assert len(launches) == 5


def test_one_disturbed_launch_is_forgiven() -> None:
    times = BatchTimes()
    times.measured(16, 1e-3, 1e-3)
    times.measured(16, 50e-3, 1e-3)
    assert times.estimate(16, 1e-3) == 1e-3
    for _ in range(WINDOW):
        times.measured(16, 2e-3, 1e-3)
    times.measured(16, 50e-3, 1e-3)
    assert times.estimate(16, 1e-3) == 2e-3


def test_predictions_of_other_sizes_learn_from_launches() -> None:
    times = BatchTimes()
    assert times.estimate(64, 1e-3) == 1e-3
    assert times.estimate(64, 1e-3, 2.0) == 2e-3
    times.measured(16, 3e-3, 1e-3)
    assert times.estimate(64, 1e-3, 2.0) == pytest.approx(3e-3)
    for _ in range(20):
        times.measured(16, 1e-3, 1e-3)
    assert times.estimate(64, 1e-3) == pytest.approx(1e-3, rel=0.01)


def test_compiling_is_expected_to_take_what_it_took() -> None:
    times = BatchTimes()
    assert times.compiling(0.01) == 0.01
    times.compiled(0.05, 0.01)
    assert times.compiling(0.02) == pytest.approx(0.1)


@given(st.lists(st.tuples(st.sampled_from(SIZES), st.floats(0, 1e3), st.floats(0, 1e3)), max_size=40), seconds)
def test_estimates_are_finite_whatever_was_measured(events: list[tuple[int, float, float]], predicted: float) -> None:
    times = BatchTimes()
    for size, took, said in events:
        times.measured(size, took, said)
        times.compiled(took, said)
        times.passed_over(size)
    for size in SIZES:
        assert 0 <= times.estimate(size, predicted) < math.inf
        assert 0 <= times.compiling(predicted) < math.inf


def test_what_was_missed_counts_until_it_is_paid() -> None:
    missed = Missed()
    missed.add(16, 0.02)
    missed.add(16, 0.01)
    assert missed.of(16) == pytest.approx(0.03)
    assert missed.left(16, 0.05) == pytest.approx(0.02)
    assert missed.left(16, 0.01) == 0.0
    assert missed.left(64, 0.05) == 0.05
    missed.paid(16)
    assert missed.left(16, 0.05) == 0.05
