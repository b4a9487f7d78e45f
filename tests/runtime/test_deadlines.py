"""Deadlines, honestly: out of the queue, between pieces (see test_futures), by killing a worker, or not at all."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest

from anygpu.errors import DeadlineExceeded, InvalidOption
from anygpu.runtime.intake import Deadlines
from anygpu.runtime.runtime import Runtime
from anygpu.testing.fakes import ManualClock
from anygpu.workers.device_arrays.registry import DeviceRegistry
from anygpu.workers.process import ProcessWorker
from anygpu.workers.thread import ThreadWorker
from tests.runtime.holding import PATIENCE, WIDTH, Gate, Held, make_late


def twice(x: Any) -> Any:
    return x + x


def test_a_task_that_waits_leaves_the_queue_when_its_time_is_over(known: DeviceRegistry) -> None:
    with Runtime(known=known) as runtime:
        ran: list[int] = []
        with Held(runtime) as held:
            patient = runtime.submit(twice, 1, deadline=PATIENCE)
            late = runtime.submit(ran.append, 1, deadline=0.02)
            with pytest.raises(DeadlineExceeded, match=r"within 0\.02 s\. It is no longer running") as error:
                late.result(PATIENCE)
            assert not error.value.still_running
            assert error.value.seconds == pytest.approx(0.02)
            assert isinstance(error.value, TimeoutError)
            assert runtime.waiting == 1
            assert not any(future.done() for future in held.futures)
        assert patient.result(PATIENCE) == 2
        runtime.drain(PATIENCE)
        assert ran == []


def test_numpy_cannot_be_stopped_so_the_lane_stays_busy_until_it_returns(known: DeviceRegistry) -> None:
    with Runtime(known=known) as runtime:
        with Held(runtime, deadline=PATIENCE) as held:
            for future in held.futures:
                make_late(runtime, future)
                error = future.exception(PATIENCE)
                assert isinstance(error, DeadlineExceeded)
                assert error.still_running
                assert "still busy" in str(error)
            following = runtime.submit(twice, 2)
            (lane,) = [lane for lane in runtime.health().lanes if lane.device == "numpy"]
            assert lane.condition in ("busy", "late")
            assert len(lane.running) == WIDTH
            assert not following.done()
            assert runtime.health().open_tasks == WIDTH + 1
        assert following.result(PATIENCE) == 4
        runtime.drain(PATIENCE)
        # Its result comes to nobody, and its error stays.
        assert all(isinstance(future.exception(), DeadlineExceeded) for future in held.futures)
        assert all(future.receipt is None for future in held.futures)


@pytest.mark.parametrize("device", ["opencl"])
def test_a_worker_of_its_own_is_killed_and_the_device_comes_back(
    known: DeviceRegistry, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.ones((8, 8), np.float32)
    with Runtime(known=known) as runtime:
        runtime.submit(twice, x, on=device, fallback="raise").result(PATIENCE)
        worker = known.worker(f"{device}:0")
        assert isinstance(worker, ProcessWorker)
        begun = threading.Event()
        run = worker.run

        def tell(*arguments: Any, **given: Any) -> Any:
            begun.set()
            return run(*arguments, **given)

        monkeypatch.setattr(worker, "run", tell)
        # It would never answer: an error tells that nobody waits until all of it has run.
        os.kill(worker.process_id, signal.SIGSTOP)
        late = runtime.submit(twice, x, on=device, fallback="raise", deadline=PATIENCE)
        assert begun.wait(PATIENCE)
        make_late(runtime, late)
        error = late.exception(PATIENCE)
        assert isinstance(error, DeadlineExceeded)
        assert not error.still_running
        again = runtime.submit(twice, x, on=device, fallback="raise")
        np.testing.assert_array_equal(again.result(PATIENCE), twice(x))
        assert known.generation(f"{device}:0") == worker.generation + 1


def test_a_worker_in_this_process_cannot_be_killed_and_says_so(
    known: DeviceRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    real = ThreadWorker.run

    def run(worker: ThreadWorker, *arguments: Any, **given: Any) -> Any:
        gate()
        return real(worker, *arguments, **given)

    x = np.ones(100, np.float32)
    with Runtime(known=known) as runtime:
        # Its other worker, in a child, is not killed either.
        runtime.submit(twice, x, on="opencl", fallback="raise").result(PATIENCE)
        before = known.generation("opencl:0")
        runtime.submit(twice, x, on="opencl", isolation="thread", fallback="raise").result(PATIENCE)
        monkeypatch.setattr(ThreadWorker, "run", run)
        late = runtime.submit(twice, x, on="opencl", isolation="thread", fallback="raise", deadline=PATIENCE)
        gate.wait()
        make_late(runtime, late)
        error = late.exception(PATIENCE)
        gate.open()
        assert isinstance(error, DeadlineExceeded)
        assert error.still_running
        runtime.submit(twice, x, on="opencl", fallback="raise").result(PATIENCE)
        assert known.generation("opencl:0") == before


def test_the_runtimes_own_deadline_holds_for_those_without(known: DeviceRegistry) -> None:
    with Runtime(known=known, deadline=0.02) as runtime, Held(runtime, deadline=PATIENCE):
        assert isinstance(runtime.submit(twice, 1).exception(PATIENCE), DeadlineExceeded)


@pytest.mark.parametrize("seconds", [0, -1, math.nan])
def test_deadlines_that_make_no_sense(known: DeviceRegistry, seconds: float) -> None:
    with Runtime(known=known) as runtime, pytest.raises(InvalidOption, match="deadline"):
        runtime.submit(twice, 1, deadline=seconds)
    with pytest.raises(InvalidOption, match="deadline"):
        Runtime(deadline=seconds)


def test_a_deadline_that_never_comes_costs_nobody_else_theirs(known: DeviceRegistry) -> None:
    with Runtime(known=known, deadline=None) as runtime, Held(runtime):
        for seconds in (math.inf, 1e300, 1e9):
            runtime.submit(twice, 1, deadline=seconds)
        assert isinstance(runtime.submit(twice, 1, deadline=0.01).exception(PATIENCE), DeadlineExceeded)


# -- the thread that knows


def test_whose_time_comes_first_is_told_first_and_who_is_forgotten_is_not() -> None:
    told: list[str] = []
    all_told = threading.Event()

    def expire(item: str) -> None:
        told.append(item)
        if item == "last":
            all_told.set()

    clock = ManualClock()
    deadlines = Deadlines(expire, clock, "test-deadlines")
    deadlines.add(1, "last", 0.03)
    deadlines.add(2, "first", 0.01)
    deadlines.add(3, "forgotten", 0.02)
    deadlines.forget(3)
    # The thread looks at the clock again when the first of them is due by the machine's own.
    clock.advance(1)
    assert all_told.wait(PATIENCE)
    assert told == ["first", "last"]
    deadlines.close()
    deadlines.close()
    assert not any(thread.name == "test-deadlines" for thread in threading.enumerate())
    deadlines.add(4, "after the end", 0)


def test_an_error_of_one_does_not_cost_the_others_theirs(caplog: pytest.LogCaptureFixture) -> None:
    told = threading.Event()

    def expire(item: str) -> None:
        if item == "bad":
            raise SystemExit
        told.set()

    deadlines = Deadlines(expire, time.monotonic, "test-deadlines")
    now = time.monotonic()
    deadlines.add(1, "bad", now)
    deadlines.add(2, "good", now)
    assert told.wait(PATIENCE)
    deadlines.close()
    assert "deadline has passed" in caplog.text


def test_entries_of_those_that_are_done_do_not_pile_up() -> None:
    deadlines: Deadlines[int] = Deadlines(lambda item: None, time.monotonic, "test-deadlines")
    far = time.monotonic() + 1e6
    for number in range(20_000):
        deadlines.add(number, number, far)
        deadlines.forget(number)
    assert deadlines.items.entries < 3_000
    deadlines.close()
