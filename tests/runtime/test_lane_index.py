"""Lanes by when they are free, beside a plain search through all of them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from anygpu.runtime.lanes import LOOK_AGAIN, LOOKING, LaneIndex, LaneLoad


class FakeJob:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class FakeLane(LaneLoad):
    def __init__(self, name: str) -> None:
        super().__init__(name, 1)
        self.events: list[str] = []

    def notify(self) -> None:
        self.events.append("notify")

    def start(self) -> None:
        self.events.append("start")
        self.started += 1


def running(seconds: float, began: float) -> dict[int, Any]:
    return {1: ([FakeJob(seconds)], began)}


@pytest.mark.parametrize("seed", range(20))
def test_the_first_to_be_free_are_those_that_a_search_finds(seed: int) -> None:
    draw = random.Random(seed)
    index = LaneIndex(FakeLane)
    now = 0.0
    for _ in range(200):
        now += draw.random() * 0.01
        lane = index[f"device-{draw.randrange(30)}"]
        if draw.random() < 0.7:
            lane.running = running(draw.random(), now)
            lane.backlog = draw.choice([0.0, draw.random()])
        else:
            lane.running, lane.backlog = {}, 0.0
        index.changed(lane)
        waiting = index.waiting(now)
        soonest = list(waiting.soonest(5))
        seconds = {each.name: waiting.get(each.name) for each in index}
        free = [name for name, left in seconds.items() if left == 0]
        if free:
            assert set(soonest) <= set(free)
        else:
            # None of those that were not named is free much sooner: what runs longer than expected moves back later.
            named = {name for name in seconds if name in soonest}
            overdue = {each.name for each in index if now - each.running[1][1] > each.running[1][0][0].seconds}
            rest = min((seconds[name] for name in seconds if name not in named), default=1e9)
            assert all(seconds[name] <= rest + 1e-9 for name in named - overdue)


def test_devices_without_a_lane_are_free() -> None:
    index = LaneIndex(FakeLane)
    index.expect(["a", "b"])
    assert list(index.waiting(0.0).soonest(5)) == ["a", "b"]
    assert index.waiting(0.0).get("a") == 0.0
    assert len(index) == 0


def test_free_devices_are_named_in_turn() -> None:
    index = LaneIndex(FakeLane)
    index.expect(["a", "b", "c"])
    assert index.free(2) == ["a", "b"]
    assert index.free(2) == ["c", "a"]


def test_what_else_uses_a_device_counts() -> None:
    index = LaneIndex(FakeLane)
    index["a"].backlog = 2.0
    waiting = index.waiting(0.0, {"b": 3.0})
    assert waiting.get("a") == 2.0
    assert waiting.get("b") == 3.0
    assert index.waiting(0.0, without="a").get("a") == 0.0


def test_many_lanes_look_again_as_often_as_a_few() -> None:
    lane = FakeLane("a")
    assert lane.patience(LOOKING, look_again=True) == LOOK_AGAIN
    assert lane.patience(100 * LOOKING, look_again=True) == 100 * LOOK_AGAIN
    assert lane.patience(1, look_again=False) is None


def test_a_lane_that_polls_is_roused_only_where_that_takes_long() -> None:
    lane = FakeLane("a")
    lane.rouse()
    lane.idle = 1
    lane.rouse()
    assert lane.events == ["start"]
    lane.rouse(also_polling=True)
    assert lane.events == ["start", "notify"]
