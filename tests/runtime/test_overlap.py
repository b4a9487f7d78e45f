"""Large tasks whose transfers overlap: what happens to one of them is not the other's business."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

from anygpu.errors import DeadlineExceeded
from anygpu.runtime.runtime import Runtime
from anygpu.workers.device_arrays.registry import DeviceRegistry
from anygpu.workers.overlap import WORTH_OVERLAPPING
from anygpu.workers.process import ProcessWorker
from tests.runtime.holding import PATIENCE, make_late, until_running
from tests.workers.test_overlap import Waiting

X = np.arange(WORTH_OVERLAPPING // 4, dtype=np.float32).reshape(-1, 64)


def shifted(x: Any) -> Any:
    return np.sqrt(x * np.float32(3) + np.float32(1))


def submit(runtime: Runtime, x: Any = X, **options: Any) -> Any:
    return runtime.submit(shifted, x, on="opencl", fallback="raise", **options)


@pytest.fixture
def worker(known: DeviceRegistry, runtime: Runtime) -> ProcessWorker:
    """One that has run the function, and has a side."""
    for _ in range(2):
        submit(runtime).result(PATIENCE)
    worker = known.worker(known.find("opencl").device, isolation="process")
    assert isinstance(worker, ProcessWorker)
    worker._overlap._wanted = True
    submit(runtime).result(PATIENCE)
    return worker


def test_many_tasks_overlap_and_are_right(
    runtime: Runtime, worker: ProcessWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = [X + np.float32(number) for number in range(12)]
    with Waiting(worker, monkeypatch) as others:
        futures = [submit(runtime, x) for x in inputs]
        others.until_staged()
    for future, x in zip(futures, inputs, strict=True):
        np.testing.assert_allclose(future.result(PATIENCE), shifted(x), rtol=1e-5)
        phases = future.receipt.phases
        assert future.receipt.seconds == pytest.approx(phases.total)
        assert not future.receipt.failures
    assert runtime.drain(PATIENCE)


def test_a_task_that_waits_with_its_arguments_on_the_device_can_be_cancelled(
    runtime: Runtime, worker: ProcessWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Waiting(worker, monkeypatch) as others:
        waiting = submit(runtime)
        others.until_staged()
        assert waiting.cancel()
        assert waiting.cancelled()
    np.testing.assert_allclose(submit(runtime).result(PATIENCE), shifted(X), rtol=1e-5)
    assert runtime.drain(PATIENCE)


def test_a_task_that_waits_with_its_arguments_on_the_device_can_expire(
    runtime: Runtime, worker: ProcessWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    generation = worker.generation
    with Waiting(worker, monkeypatch) as others:
        waiting = submit(runtime, deadline=0.5)
        error = waiting.exception(PATIENCE)
        assert isinstance(error, DeadlineExceeded)
        assert not error.still_running
        assert others.staged.is_set() or worker.alive
    assert worker.alive, "nobody is killed for a task that has not begun"
    again = submit(runtime)
    np.testing.assert_allclose(again.result(PATIENCE), shifted(X), rtol=1e-5)
    assert worker.generation == generation


def test_the_deadline_of_the_running_task_is_no_failure_of_the_next(
    known: DeviceRegistry, runtime: Runtime, worker: ProcessWorker
) -> None:
    # It hangs: the first task is killed with it, while the arguments of the second are going over.
    os.kill(worker.process_id, signal.SIGSTOP)
    running = submit(runtime, deadline=PATIENCE)
    # Before others are there to share its launch.
    until_running(running)
    following = [submit(runtime, X + np.float32(number)) for number in range(3)]
    make_late(runtime, running)
    assert isinstance(running.exception(PATIENCE), DeadlineExceeded)
    for number, future in enumerate(following):
        np.testing.assert_allclose(future.result(PATIENCE), shifted(X + np.float32(number)), rtol=1e-5)
        assert not future.receipt.failures
    assert (known.generation(worker.device.id) or 0) == worker.generation + 1, "one worker was lost, and no other"


def test_a_lost_device_costs_neither_task(known: DeviceRegistry, runtime: Runtime, worker: ProcessWorker) -> None:
    os.kill(worker.process_id, signal.SIGSTOP)
    futures = [submit(runtime, X + np.float32(number)) for number in range(3)]
    os.kill(worker.process_id, signal.SIGKILL)
    for number, future in enumerate(futures):
        np.testing.assert_allclose(future.result(PATIENCE), shifted(X + np.float32(number)), rtol=1e-5)
    assert (known.generation(worker.device.id) or 0) == worker.generation + 1
    health = runtime.health()
    (lane,) = [each for each in health.lanes if each.device == worker.device.id]
    assert lane.failed == 0, "none failed in the end"
