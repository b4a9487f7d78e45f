"""Large calls that share a worker: one's arrays cross while another one runs, and each gets what is its own."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from anygpu.errors import DeviceLost
from anygpu.program.graph import Program
from anygpu.workers.device_arrays.registry import DeviceRegistry
from anygpu.workers.overlap import WORTH_OVERLAPPING
from anygpu.workers.process import ProcessWorker
from anygpu.workers.worker import Ran, open_worker
from tests.base.test_interrupts import is_free
from tests.workers.programs import doubled

PATIENCE = 120.0
SIZE = WORTH_OVERLAPPING // 4
PROGRAM = doubled(SIZE)
X = np.arange(SIZE, dtype=np.float32)


@pytest.fixture(scope="module")
def known() -> Iterator[DeviceRegistry]:
    known = DeviceRegistry()
    yield known
    known.close()


@pytest.fixture
def worker(known: DeviceRegistry) -> ProcessWorker:
    """One that has run the program, and has a side."""
    found = known.worker(known.find("opencl").device, isolation="process")
    assert isinstance(found, ProcessWorker)
    return ready(found)


def ready(worker: ProcessWorker) -> ProcessWorker:
    worker.run(PROGRAM, [X])
    worker._overlap._wanted = True
    np.testing.assert_array_equal(worker.run(PROGRAM, [X]).results[0], X + X)
    return worker


class Waiting:
    """Calls of a worker that is busy until the block ends."""

    def __init__(self, worker: ProcessWorker, monkeypatch: pytest.MonkeyPatch) -> None:
        self._worker = worker
        self._pool = ThreadPoolExecutor(4)
        self.staged = threading.Event()
        run = ProcessWorker._run

        def telling(worker: ProcessWorker, call: Any, staged: Any = None) -> Ran:
            if staged is not None:
                self.staged.set()
            return run(worker, call, staged)

        monkeypatch.setattr(ProcessWorker, "_run", telling)
        self._busy = worker._connection.use()
        self._inside = worker._overlap.enter(PROGRAM.specs[0].nbytes, first=False)

    def __enter__(self) -> Waiting:
        self._busy.__enter__()
        self._inside.__enter__()
        return self

    def run(self, x: Any = X, program: Program = PROGRAM, **options: Any) -> Future[Ran]:
        return self._pool.submit(self._worker.run, program, [x], **options)

    def until_staged(self) -> None:
        assert self.staged.wait(PATIENCE), "its arguments are on the device while another call runs"

    def __exit__(self, *_: object) -> None:
        self._inside.__exit__(None, None, None)
        self._busy.__exit__(None, None, None)
        self._pool.shutdown(wait=False)


def bytes_in_use(worker: ProcessWorker) -> int:
    # Tells the child of arrays without a reference, too.
    worker.reclaim()
    found = worker.memory().in_use
    assert found is not None
    return found


def test_arguments_cross_while_another_call_runs(worker: ProcessWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    before = bytes_in_use(worker)
    with Waiting(worker, monkeypatch) as others:
        call = others.run()
        others.until_staged()
        assert not call.done()
    ran = call.result(PATIENCE)
    np.testing.assert_array_equal(ran.results[0], X + X)
    assert ran.overlapped
    assert (ran.bytes_to_device, ran.bytes_to_host, ran.bytes_skipped) == (X.nbytes, X.nbytes, 0)
    assert ran.phases.write > 0
    assert ran.phases.read > 0
    assert ran.peak_bytes is None
    assert ran.unknown["peak_bytes"]
    del call, ran
    assert bytes_in_use(worker) == before, "neither arguments nor results stay on the device"


def test_a_result_is_the_callers_own(worker: ProcessWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = X.copy()
    with Waiting(worker, monkeypatch) as others:
        call = others.run(mine)
        others.until_staged()
    (result,) = call.result(PATIENCE).results
    mine[:] = -1
    np.testing.assert_array_equal(worker.run(PROGRAM, [mine]).results[0], np.full(SIZE, -2, np.float32))
    np.testing.assert_array_equal(result, X + X)
    result[:] = 3


def test_a_call_that_is_withdrawn_leaves_nothing(worker: ProcessWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    class Withdrawn(BaseException):
        pass

    def starting() -> None:
        raise Withdrawn

    before = bytes_in_use(worker)
    with Waiting(worker, monkeypatch) as others:
        call = others.run(starting=starting)
        others.until_staged()
    with pytest.raises(Withdrawn):
        call.result(PATIENCE)
    assert bytes_in_use(worker) == before
    np.testing.assert_array_equal(worker.run(PROGRAM, [X]).results[0], X + X)


def test_small_calls_and_calls_that_are_kept_go_the_ordinary_way(
    worker: ProcessWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = doubled(100)
    with Waiting(worker, monkeypatch) as others:
        calls = [others.run(X[:100], small), others.run(keep=True)]
    assert not any(call.result(PATIENCE).overlapped for call in calls)
    assert not others.staged.is_set()


def test_many_threads_get_their_own_results(worker: ProcessWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    with Waiting(worker, monkeypatch) as others:
        calls = [others.run(np.full(SIZE, value, np.float32)) for value in range(12)]
        others.until_staged()
    results = [call.result(PATIENCE) for call in calls]
    for value, ran in enumerate(results):
        np.testing.assert_array_equal(ran.results[0], np.full(SIZE, 2 * value, np.float32))
    assert any(ran.overlapped for ran in results)


def test_a_device_that_is_lost_while_arguments_cross(known: DeviceRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = ready(fresh(known))
    with Waiting(worker, monkeypatch) as others:
        # Stopped, so that the upload is surely under way when the process ends.
        os.kill(worker.process_id, signal.SIGSTOP)
        call = others.run()
        assert wait_for(lambda: not is_free(worker._overlap._seat))
        os.kill(worker.process_id, signal.SIGKILL)
    with pytest.raises(DeviceLost) as caught:
        call.result(PATIENCE)
    assert not caught.value.started, "it is another call's loss"
    assert wait_for(lambda: not worker.alive)
    assert worker.shared_bytes == 0


def test_without_room_for_two_they_go_one_after_the_other(
    known: DeviceRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    # For two such arrays, and for no more than half of a third.
    worker = ready(fresh(known, budget=5 * X.nbytes // 2))
    held = [worker.upload(X) for _ in range(2)]
    with Waiting(worker, monkeypatch) as others:
        call = others.run()
        assert wait_for(lambda: worker._overlap._too_many is not None)
        assert not others.staged.is_set()
        held.clear()
    ran = call.result(PATIENCE)
    np.testing.assert_array_equal(ran.results[0], X + X)
    assert not ran.overlapped
    worker.close()


def test_an_engine_that_cannot_is_left_alone(known: DeviceRegistry) -> None:
    worker = known.worker(known.find("webgpu").device, isolation="process")
    assert isinstance(worker, ProcessWorker)
    assert not worker.overlaps
    with ThreadPoolExecutor(2) as pool:
        for ran in pool.map(lambda _: worker.run(PROGRAM, [X]), range(4)):
            np.testing.assert_array_equal(ran.results[0], X + X)
            assert not ran.overlapped


def fresh(known: DeviceRegistry, budget: int | None = None) -> ProcessWorker:
    """A worker that the registry does not know."""
    name = known.find("opencl").device
    (device,) = [each for each in known.devices() if each.id == name]
    if budget is not None:
        return ProcessWorker.start(known._entry_to_open(device), device, budget=budget)
    worker = open_worker(known._entry_to_open(device), device, isolation="process")
    assert isinstance(worker, ProcessWorker)
    return worker


def wait_for(condition: Callable[[], bool]) -> bool:
    """Whether it comes true, as it does in a moment."""
    tick = threading.Event()
    for _ in range(6000):
        if condition():
            return True
        tick.wait(0.01)
    return False
