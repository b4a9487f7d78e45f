"""Pauses beside an event loop: only where one is, and only when a stretch is over."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
import pytest

from anygpu.runtime import future
from anygpu.runtime.future import Future, GivingWay, _mailbox_of
from anygpu.runtime.runtime import Runtime


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """A clock that stands still, and what was slept."""
    state = {"now": 100.0, "slept": 0.0}

    def sleep(seconds: float) -> None:
        state["slept"] += seconds
        state["now"] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: state["now"])
    monkeypatch.setattr(time, "sleep", sleep)
    return state


def test_a_pause_comes_after_each_stretch(clock: dict[str, float]) -> None:
    way = GivingWay()
    for _ in range(5):
        way.pause()
    assert clock["slept"] == 0
    for turn in range(1, 4):
        clock["now"] += 1.5 * future.STRETCH
        way.pause()
        way.pause()
        assert clock["slept"] == pytest.approx(turn * future.PAUSE)


def test_nobody_pauses_where_there_is_no_loop(clock: dict[str, float]) -> None:
    way = GivingWay(wanted=False)
    clock["now"] += 1
    way.pause()
    assert clock["slept"] == 0


def test_who_has_a_result_gives_way_to_a_loop_that_does_not_come(clock: dict[str, float]) -> None:
    loop = asyncio.new_event_loop()
    try:
        mailbox, waiters = _mailbox_of(loop), [loop.create_future() for _ in range(3)]
        mailbox.put(waiters[0])
        mailbox.put(waiters[1])
        assert clock["slept"] == 0
        clock["now"] += 2 * future.STRETCH
        mailbox.put(waiters[2])
        assert clock["slept"] == pytest.approx(future.PAUSE)
        loop.run_until_complete(asyncio.gather(*waiters))
    finally:
        loop.close()


def test_a_future_knows_whether_it_is_of_a_loop() -> None:
    def add(x: Any) -> Any:
        return x + 1

    async def submitted() -> Future:
        future = runtime.submit(add, np.ones(2), on="numpy")
        await future
        return future

    with Runtime() as runtime:
        plain = runtime.submit(add, np.ones(2), on="numpy")
        plain.result(60)
        assert not plain.is_of_a_loop
        assert asyncio.run(submitted()).is_of_a_loop
