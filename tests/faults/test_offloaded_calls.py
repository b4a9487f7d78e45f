"""Offloaded calls when devices fail under them: the caller gets its result or a typed error, and is told."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil
import pytest

import anygpu as ag
from anygpu.calls.offload import Offloaded
from anygpu.calls.options import Fallback, options
from anygpu.engines import Isolation
from anygpu.engines.catalogue import EngineEntry
from anygpu.errors import DeviceHung, OutOfMemory
from anygpu.hardware.device import Device, Unavailable
from anygpu.placement.planner import Planner
from anygpu.program.graph import Program
from anygpu.receipts import receipt
from anygpu.workers.device_arrays.registry import DeviceRegistry, registry
from anygpu.workers.process import ProcessWorker
from anygpu.workers.worker import Argument, Ran, Worker
from tests.placement.moved import moved

pytestmark = pytest.mark.software_devices("calls move by themselves to a device that is lost")


def score(x: Any) -> Any:
    return np.tanh(x) * 2 + 1


X = np.linspace(-1, 1, 100_000).astype(np.float32)


@pytest.fixture(autouse=True)
def nothing_said() -> None:
    receipt.forget_what_was_said()


class Failing:
    """A worker whose next runs fail as told; everything else is that of a real one."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.failures: list[Exception | str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def run(self, program: Program, arguments: Sequence[Argument], **more: Any) -> Ran:
        # What is tried in the background is left alone.
        if self.failures and threading.current_thread() is threading.main_thread():
            failure = self.failures.pop(0)
            if isinstance(failure, Exception):
                raise failure
            assert isinstance(self._worker, ProcessWorker)
            os.kill(self._worker.process_id, signal.SIGKILL)
        return self._worker.run(program, arguments, **more)


class WithFailures(DeviceRegistry):
    """PoCL in a child that fails when told to, and NumPy."""

    def __init__(self) -> None:
        super().__init__()
        self.failing: Failing | None = None
        self.next: list[Exception | str] = []
        #: So many more workers are killed by what they run.
        self.deadly = 0

    def devices(self, *, low_priority: bool = False) -> list[Device]:
        return [device for device in registry.devices() if device.id in ("numpy", "opencl:0")]

    def unavailable(self) -> list[Unavailable]:
        return []

    def explorer(self, device_id: str) -> Worker:
        return self.worker(device_id)

    def worker(self, device_id: str, *, isolation: Isolation | None = None) -> Worker:
        worker = super().worker(device_id, isolation=isolation)
        if device_id != "opencl:0":
            return worker
        if self.failing is None or self.failing._worker is not worker:
            self.failing = Failing(worker)
        self.failing.failures, self.next = self.failing.failures + self.next, []
        if self.deadly and not self.failing.failures and threading.current_thread() is threading.main_thread():
            self.deadly -= 1
            self.failing.failures = ["kill"]
        return self.failing


@pytest.fixture
def known() -> Iterator[WithFailures]:
    known = WithFailures()
    yield known
    known.close()


def calls_of(known: WithFailures, fallback: Fallback) -> Offloaded[..., Any]:
    planner = Planner(known=known)
    return Offloaded(score, options(on="opencl", fallback=fallback), lambda: planner)


@pytest.mark.parametrize("fallback", ["warn", "raise"])
def test_a_child_that_is_killed_during_a_call_is_replaced_and_the_call_runs_again(
    known: WithFailures, fallback: Fallback
) -> None:
    function = calls_of(known, fallback)
    function(X)
    known.next = ["kill"]
    result = function.run(X)
    np.testing.assert_allclose(result.value, score(X), rtol=1e-5, atol=1e-6)
    assert [attempt.error for attempt in result.receipt.attempts] == ["DeviceLost", None]
    assert result.receipt.device == "opencl:0"
    assert "first tried opencl:0: DeviceLost" in str(result.receipt)
    assert known.worker("opencl:0").generation == 2


def test_a_call_that_kills_three_workers_is_named_poison_and_others_go_on(known: WithFailures) -> None:
    function = calls_of(known, "raise")
    function(X)
    known.deadly = 3
    with pytest.raises(ag.errors.PoisonTask, match="each of 3 workers that died") as caught:
        function(X)
    assert caught.value.deaths == 3
    np.testing.assert_allclose(function(X), score(X), rtol=1e-5, atol=1e-6)
    assert known.worker("opencl:0").generation == 4


def test_a_device_that_hangs_is_told_and_the_work_is_not_begun_elsewhere(known: WithFailures) -> None:
    function = calls_of(known, "allow")
    known.next = [DeviceHung("opencl:0", 1.0)]
    with pytest.raises(DeviceHung):
        function.run(X)


def test_a_device_that_stays_full_is_given_up_and_that_is_told(known: WithFailures) -> None:
    function = calls_of(known, "warn")
    known.next = [OutOfMemory("opencl:0", 1 << 20)] * 9
    with pytest.warns(
        ag.errors.DeviceFallback, match="runs on numpy instead of opencl:0: opencl:0 cannot allocate"
    ) as told:
        result = function.run(X)
    assert told[0].filename == __file__
    np.testing.assert_allclose(result.value, score(X), rtol=1e-6)
    assert result.receipt.device == "numpy"
    assert [attempt.error for attempt in result.receipt.attempts] == ["OutOfMemory"] * 3 + [None]


def test_a_lack_of_memory_is_answered_with_pieces_in_the_end(known: WithFailures) -> None:
    function = calls_of(known, "raise")
    known.next = [OutOfMemory("opencl:0", 1 << 20)] * 2
    result = function.run(X)
    np.testing.assert_allclose(result.value, score(X), rtol=1e-5, atol=1e-6)
    assert result.receipt.device == "opencl:0"
    assert result.receipt.how is not None
    assert "chunks" in result.receipt.how


class Slow(WithFailures):
    """As if opening a device again took as long as the test wants."""

    def __init__(self) -> None:
        super().__init__()
        self.may_open = threading.Event()
        self.opened_by: list[str] = []
        self.opens = threading.Event()
        self.opened: list[Worker] = []

    def _opened(self, *given: Any, **named: Any) -> Worker:
        self.opened.append(super()._opened(*given, **named))
        return self.opened[-1]

    def _entry_to_open(self, device: Device) -> EngineEntry:
        if self._generations[device.id, "process"] > 1:
            self.opened_by.append(threading.current_thread().name)
            self.opens.set()
            assert self.may_open.wait(60)
        return super()._entry_to_open(device)


@pytest.fixture
def slow() -> Iterator[Slow]:
    known = Slow()
    yield known
    known.may_open.set()
    known.close()


def test_a_call_that_may_run_elsewhere_does_not_wait_for_the_device_to_be_opened_again(slow: Slow) -> None:
    planner = Planner(known=slow)
    function, site = moved(planner, score, X)
    for _ in range(20):
        site.chooser.measured("numpy", 1e-3)
    slow.next = ["kill"]
    # It returns although nobody lets the device be opened.
    with pytest.warns(ag.errors.DeviceFallback, match="runs on numpy instead of opencl:0: opencl:0 was lost"):
        result = function.run(X)
    np.testing.assert_array_equal(result.value, score(X))
    assert [(each.device, each.error) for each in result.receipt.attempts] == [
        ("opencl:0", "DeviceLost"),
        ("numpy", None),
    ]
    assert planner.waiting()["opencl:0"] > 0, "it counts as busy"
    del vars(site.chooser)["choose"]
    assert function.run(X).receipt.device == "numpy", "and so does the next one"
    assert slow.opens.wait(60)
    slow.may_open.set()
    assert slow.worker("opencl:0").generation == 2
    assert slow.opened_by == ["anygpu-replace-opencl:0"]


def test_who_needs_the_device_waits_for_the_one_that_is_being_opened(slow: Slow) -> None:
    first = slow.worker("opencl:0")
    first.kill()
    while first.alive:
        os.sched_yield()
    held: list[float] = []

    @contextmanager
    def meanwhile(seconds: float) -> Iterator[None]:
        held.append(seconds)
        yield
        held.clear()

    for _ in range(3):
        slow.replace("opencl:0", meanwhile=meanwhile)
    assert len(held) == 1, "one is enough"
    found: list[Worker] = []
    waiting = [threading.Thread(target=lambda: found.append(slow.worker("opencl:0"))) for _ in range(2)]
    for thread in waiting:
        thread.start()
    assert found == []
    slow.may_open.set()
    for thread in waiting:
        thread.join(60)
    assert [worker.generation for worker in found] == [2, 2]
    slow.replace("opencl:0", meanwhile=meanwhile)
    assert slow.worker("opencl:0").generation == 2, "it is alive"


def test_closing_waits_for_a_device_that_is_being_opened(slow: Slow) -> None:
    first = slow.worker("opencl:0")
    first.kill()
    while first.alive:
        os.sched_yield()
    slow.replace("opencl:0")
    threading.Timer(0.05, slow.may_open.set).start()
    slow.close()
    assert [worker.generation for worker in slow.opened] == [1, 2]
    for worker in slow.opened:
        assert isinstance(worker, ProcessWorker)
        assert not psutil.pid_exists(worker.process_id)
    assert slow.spares.processes() == {}
