"""Arrays on devices whose child is killed: they come back with the same bits, or are named as lost with the reason."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.calls.offload import Offloaded
from anygpu.calls.options import options
from anygpu.placement.planner import Planner
from anygpu.program.graph import Program
from anygpu.workers.device_arrays import lineage
from anygpu.workers.device_arrays.lineage import Evicted, TrackedBuffer
from anygpu.workers.device_arrays.recoverable import RecoverableDevice
from anygpu.workers.device_arrays.registry import DeviceRegistry
from anygpu.workers.process import ProcessWorker
from anygpu.workers.worker import MEMORY, Argument, Ran

X = np.random.default_rng(6).normal(size=(300, 70)).astype(np.float32)


@pytest.fixture(scope="module")
def known() -> Iterator[DeviceRegistry]:
    known = DeviceRegistry()
    yield known
    known.close()


@pytest.fixture(params=["opencl", "webgpu"])
def place(request: pytest.FixtureRequest, known: DeviceRegistry) -> RecoverableDevice:
    found = known.find(request.param)
    assert isinstance(found, RecoverableDevice)
    gc.collect()
    assert found._live_buffers() == [], "an earlier test has left arrays"
    return found


@pytest.fixture
def opencl(known: DeviceRegistry) -> RecoverableDevice:
    found = known.find("opencl")
    assert isinstance(found, RecoverableDevice)
    gc.collect()
    assert found._live_buffers() == [], "an earlier test has left arrays"
    return found


def worker_of(place: RecoverableDevice) -> ProcessWorker:
    worker = place.worker
    assert isinstance(worker, ProcessWorker)
    return worker


def kill(place: RecoverableDevice) -> None:
    os.kill(worker_of(place).process_id, signal.SIGKILL)


def bits(array: ag.Array) -> bytes:
    return np.asarray(array).tobytes()


def buffer_of(array: ag.Array) -> TrackedBuffer:
    buffer = array._value.buffer
    assert isinstance(buffer, TrackedBuffer)
    return buffer


class Deadly:
    """A worker whose child is killed when its next runs begin, just before it is told; all else is the real one's."""

    def __init__(self, worker: ProcessWorker, deaths: list[int]) -> None:
        self._worker = worker
        self._deaths = deaths

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def run(self, program: Program, arguments: Sequence[Argument], **more: Any) -> Ran:
        if self._deaths:
            self._deaths.pop()
            os.kill(self._worker.process_id, signal.SIGKILL)
        return self._worker.run(program, arguments, **more)


def through(place: RecoverableDevice, wrapped: Callable[[ProcessWorker], Deadly], patch: pytest.MonkeyPatch) -> None:
    """From now on, let the place use its workers through others, until the end of the test."""
    find = place._find_worker
    patch.setattr(place, "_worker", wrapped(worker_of(place)))
    patch.setattr(place, "_find_worker", lambda: wrapped(find()))  # type: ignore[arg-type]


def allow(place: RecoverableDevice, nbytes: int, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(place._copies, "_budget", nbytes)


# -- what comes back


@pytest.mark.full
def test_everything_comes_back_with_the_same_bits(place: RecoverableDevice, known: DeviceRegistry) -> None:
    x = ag.asarray(X, device=place)
    y = (np.tanh(x) * 2).compute()
    chain = y
    for _ in range(5):
        chain = (chain * x + 1).compute()
    total, mean = x.sum(axis=0), x.mean(axis=1)
    both = (total.sum() + mean.sum()).compute()
    view, part = y.T, y[10:20, ::3]
    part.compute()
    arrays = [x, y, chain, total, mean, both, view, part]
    before = [bits(each) for each in arrays]
    generation = worker_of(place).generation
    kill(place)
    for array, wanted in zip(arrays, before, strict=True):
        assert bits(array) == wanted
    assert bits(chain + y) == bits(chain + y)
    assert worker_of(place).generation == generation + 1
    loss = known.losses()[-1]
    assert loss.device == place.device
    assert loss.generation == generation
    assert "SIGKILL" in loss.why
    assert loss.restorable_from_copy == 1
    assert loss.recomputable >= 4
    assert loss.lost == ()


def test_a_program_whose_worker_dies_under_it_is_run_again(
    place: RecoverableDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = ag.asarray(X, device=place)
    y = (x * 3).compute()
    wanted = bits(y + x)
    deaths = [1, 2]
    through(place, lambda worker: Deadly(worker, deaths), monkeypatch)
    assert bits(y + x) == wanted
    assert not deaths


def test_a_program_that_kills_three_workers_is_given_up(
    opencl: RecoverableDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = ag.asarray(X, device=opencl)
    deaths = list(range(10))
    through(opencl, lambda worker: Deadly(worker, deaths), monkeypatch)
    with pytest.raises(ag.errors.DeviceLost, match="SIGKILL"):
        (x + 1).compute()
    assert len(deaths) == 7


@pytest.mark.full
def test_results_of_one_program_are_computed_once(place: RecoverableDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    x = ag.asarray(X, device=place)
    first = np.exp(x)
    second = (first + 1).compute()
    before = bits(first), bits(second)
    recipes = [buffer_of(each).lineage.producer for each in (first, second)]
    assert recipes[0] is recipes[1] is not None
    ran: list[Program] = []

    class Counting(Deadly):
        def run(self, program: Program, arguments: Sequence[Argument], **more: Any) -> Ran:
            ran.append(program)
            return super().run(program, arguments, **more)

    kill(place)
    through(place, lambda worker: Counting(worker, []), monkeypatch)
    assert (bits(second), bits(first)) == (before[1], before[0])
    assert len(ran) == 1


def test_what_is_not_needed_is_not_left_on_the_device(opencl: RecoverableDevice) -> None:
    x = ag.asarray(X, device=opencl)
    y = x
    for _ in range(10):
        y = (y + 1).compute()
    wanted = bits(y)
    del x
    kill(opencl)
    assert bits(y) == wanted
    (listed,) = opencl._live_buffers()
    assert listed is buffer_of(y)
    gc.collect()
    worker = worker_of(opencl)
    assert len(worker._connection.dropped) <= 10
    assert worker._next_handle == 12


@pytest.mark.full
def test_many_threads_restore_an_array_once(opencl: RecoverableDevice) -> None:
    x = ag.asarray(X, device=opencl)
    y = (np.sin(x) + 2).compute()
    wanted = bits(y * 2)
    kill(opencl)
    results: list[bytes] = []
    barrier = threading.Barrier(6)

    def use() -> None:
        barrier.wait()
        results.append(bits(y * 2))

    threads = [threading.Thread(target=use) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [wanted] * 6
    # Two came back: x was uploaded and y computed; then six programs ran.
    assert worker_of(opencl)._next_handle == 1 + 2 + 6


def test_the_child_dies_again_and_again_in_the_middle_of_work(opencl: RecoverableDevice) -> None:
    x = ag.asarray(X, device=opencl)
    generation = worker_of(opencl).generation
    over = threading.Event()
    turns = 0

    def torment() -> None:
        for _ in range(4):
            worker = worker_of(opencl)
            # Some turns must succeed: an operation that loses its device three times is not tried again.
            before = turns
            while turns < before + 5 and not over.wait(0.001):
                pass
            if worker.alive:
                os.kill(worker.process_id, signal.SIGKILL)
            while worker.alive and not over.wait(0.001):
                pass

    thread = threading.Thread(target=torment)
    thread.start()
    y = x
    try:
        while thread.is_alive():
            y = (y * np.float32(0.5) + x).compute()
            turns += 1
    finally:
        over.set()
        thread.join()
    wanted = X
    for _ in range(turns):
        wanted = wanted * np.float32(0.5) + X
    np.testing.assert_allclose(np.asarray(y), wanted, rtol=1e-5, atol=1e-6)
    assert worker_of(opencl).generation == generation + 4


def test_arrays_that_a_call_left_on_the_device(
    known: DeviceRegistry, opencl: RecoverableDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known, "devices", lambda **_: [known.find("numpy").facts, opencl.facts])
    monkeypatch.setattr(known, "unavailable", list)
    planner = Planner(known=known)

    def step(a: Any, b: Any) -> Any:
        return np.tanh(a) + b

    call = Offloaded(step, options(on="opencl"), lambda: planner)
    x = ag.asarray(X, device=opencl)
    w = X[0].copy()
    y = call(call(x, w), w)
    assert isinstance(y, ag.Array)
    wanted = bits(y)
    w[:] = 0
    kill(opencl)
    assert bits(y) == wanted
    kill(opencl)
    np.testing.assert_array_equal(np.asarray(call(y, w)), np.asarray(call(y, w)))


# -- what does not


def test_an_array_whose_copy_was_dropped_is_named_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, place: RecoverableDevice, known: DeviceRegistry
) -> None:
    allow(place, 2 * X.nbytes, monkeypatch)
    generation = worker_of(place).generation
    line = sys._getframe().f_lineno + 1
    first = ag.asarray(X, device=place)
    made = (first + 1).compute()
    rest = [ag.asarray(X * number, device=place) for number in range(2)]
    kill(place)
    for number, array in enumerate(rest):
        assert bits(array) == (X * number).tobytes()
    for array in (first, made):
        with pytest.raises(ag.errors.DeviceLost) as caught:
            np.asarray(array)
        text = str(caught.value)
        assert f"float32[300, 70] of {__file__}:{line}" in text
        assert "evicted" in text
        assert lineage.MEMORY in text
        assert caught.value.device == place.device
        assert caught.value.generation == generation
    with pytest.raises(ag.errors.DeviceLost, match=r"cannot be restored.*it was computed from"):
        (made * 2).compute()
    assert bits(rest[1] * 2) == (X * 2).tobytes()
    loss = known.losses()[-1]
    assert loss.restorable_from_copy == 2
    assert [each.nbytes for each in loss.lost] == [X.nbytes] * 2
    assert all(lineage.MEMORY in each.reason for each in loss.lost)


def test_without_memory_for_copies_only_what_is_made_of_nothing_comes_back(
    monkeypatch: pytest.MonkeyPatch, opencl: RecoverableDevice
) -> None:
    allow(opencl, 0, monkeypatch)
    lost = ag.asarray(X, device=opencl)
    numbers = (ag.arange(100, device=opencl) * 2).compute()
    kill(opencl)
    assert np.array_equal(np.asarray(numbers), np.arange(100) * 2)
    with pytest.raises(ag.errors.DeviceLost, match="cannot be restored"):
        (lost + 1).compute()


def test_what_is_waited_for_is_not_dropped_meanwhile(
    monkeypatch: pytest.MonkeyPatch, opencl: RecoverableDevice
) -> None:
    allow(opencl, 2 * X.nbytes, monkeypatch)
    x = ag.asarray(X, device=opencl)
    y = (x + 1).compute()
    del x
    kill(opencl)
    others = [ag.asarray(X * number, device=opencl) for number in range(4)]
    assert bits(y) == (X + 1).tobytes()
    del others


def test_an_error_of_the_users_own_stays_one(opencl: RecoverableDevice) -> None:
    x = ag.asarray(X, device=opencl)
    bad = ag.take(x, ag.asarray(np.array([1000]), device=opencl), axis=0)
    with pytest.raises(IndexError):
        np.asarray(bad)
    kill(opencl)
    with pytest.raises(IndexError):
        np.asarray(bad)
    assert bits(x) == X.tobytes()


# -- making room


def test_arrays_make_room_and_come_back(place: RecoverableDevice, known: DeviceRegistry) -> None:
    x = ag.asarray(X, device=place)
    y = (x * 2).compute()
    z = (x * 3).compute()
    generation = worker_of(place).generation
    assert known.evict(place.device, 1) == Evicted(1, X.nbytes)
    assert [buffer_of(each).handle is None for each in (x, y, z)] == [False, True, False], "x was used after y was made"
    assert known.evict(place.device) == Evicted(2, 2 * X.nbytes)
    assert known.evict(place.device) == Evicted()
    assert bits(y) == (X * 2).tobytes()
    assert buffer_of(y).handle is None, "values that are on the host need no device"
    assert bits(z + y) == (X * 3 + X * 2).tobytes()
    assert buffer_of(x).handle is None
    assert worker_of(place).generation == generation
    known.evict(place.device)
    kill(place)
    assert bits(z + y) == (X * 3 + X * 2).tobytes()
    assert known.losses()[-1].lost == ()


def test_an_array_in_use_does_not_leave(opencl: RecoverableDevice, known: DeviceRegistry) -> None:
    x = ag.asarray(X, device=opencl)
    handle = buffer_of(x).ensure_resident()
    assert known.evict(opencl.device) == Evicted()
    del handle
    assert known.evict(opencl.device) == Evicted(1, X.nbytes)


def test_an_array_that_could_not_come_back_does_not_leave(opencl: RecoverableDevice, known: DeviceRegistry) -> None:
    wrong = ag.take(ag.asarray(X, device=opencl), ag.asarray(np.array([1000]), device=opencl), axis=0).compute()
    origin = buffer_of(wrong).lineage
    origin.cut()
    origin.why = "it is a test"
    assert known.evict(opencl.device) == Evicted()
    assert buffer_of(wrong).handle is not None


def test_what_has_left_stays_beyond_the_budget_for_copies(
    monkeypatch: pytest.MonkeyPatch, opencl: RecoverableDevice, known: DeviceRegistry
) -> None:
    allow(opencl, X.nbytes, monkeypatch)
    arrays = [ag.asarray(X + number, device=opencl) for number in range(4)]
    assert known.evict(opencl.device) == Evicted(4, 4 * X.nbytes)
    more = [ag.asarray(X, device=opencl) for _ in range(4)]
    for number, array in enumerate(arrays):
        assert bits(array + 1) == (X + number + 1).tobytes()
    del more


@pytest.mark.full
def test_more_arrays_than_the_budget_of_the_device_has_room_for(
    monkeypatch: pytest.MonkeyPatch, known: DeviceRegistry
) -> None:
    monkeypatch.setenv(MEMORY, "8MB")
    place = known.find("opencl")
    assert isinstance(place, RecoverableDevice)
    # The next one reads the variable when it opens.
    worker_of(place).close()
    large = np.ones(250_000, np.float32)
    arrays = [(ag.asarray(large, device=place) + number).compute() for number in range(20)]
    assert sum(each.nbytes for each in arrays) > 8_000_000
    for number, array in enumerate(arrays):
        assert np.array_equal(np.asarray(array * 2), (large + number) * 2)
    with pytest.raises(ag.AllocationError):
        ag.asarray(np.ones(4_000_000, np.float32), device=place)
    kill(place)
    assert np.array_equal(np.asarray(arrays[3] + arrays[4]), large * 2 + 7)
    monkeypatch.undo()
    worker_of(place).close()


def test_what_a_worker_keeps_for_later_is_given_back(place: RecoverableDevice, known: DeviceRegistry) -> None:
    x = ag.asarray(np.zeros(1_000_000, np.float32), device=place)
    (x + 1).compute()
    assert known.reclaim(place.device) >= x.nbytes
    assert known.reclaim(place.device) == 0
    del x
    assert known.reclaim(place.device) >= 4_000_000, "what was dropped is told, and given back"
    assert known.reclaim("opencl:17") == 0


# -- nothing is left over


def work(place: RecoverableDevice, known: DeviceRegistry) -> list[weakref.ref[Any]]:
    """Arrays that are made, lost, restored and evicted; what they were."""
    x = ag.asarray(np.ones(300_000, np.float32), device=place)
    y = (x + 1).compute()
    for _ in range(lineage.DEPTH + 3):
        y = (y * 1).compute()
    seen: list[weakref.ref[Any]] = [
        weakref.ref(each) for array in (x, y) for each in (buffer_of(array), buffer_of(array).lineage)
    ]
    seen.append(weakref.ref(worker_of(place)))
    kill(place)
    np.asarray(y + x)
    known.evict(place.device)
    np.asarray(y + x)
    handle = buffer_of(y).handle
    assert handle is not None
    seen.append(weakref.ref(handle))
    return seen


def left_over(place: RecoverableDevice, known: DeviceRegistry, seen: list[weakref.ref[Any]]) -> list[str]:
    """What should not be there any more."""
    gc.collect()
    left = [f"{each()!r} is alive" for each in seen if each() is not None]
    known.reclaim(place.device)
    worker = worker_of(place)
    if place._copies.bytes:
        left.append(f"{place._copies.bytes} bytes of copies")
    if worker.shared_bytes:
        left.append(f"{worker.shared_bytes} bytes of shared memory")
    if worker._connection.dropped or worker._connection.abandoned:
        left.append("the child was not told what is not needed any more")
    if place._live_buffers():
        left.append(f"{place._live_buffers()} are listed")
    return left


def test_nothing_is_left_over(place: RecoverableDevice, known: DeviceRegistry) -> None:
    seen = work(place, known)
    assert left_over(place, known, seen) == []


@pytest.mark.parametrize("leak", ["copy", "array", "handle", "memory"])
def test_that_check_would_find_a_leak(leak: str, opencl: RecoverableDevice, known: DeviceRegistry) -> None:
    seen: list[weakref.ref[Any]] = []
    assert left_over(opencl, known, seen) == []
    x = ag.asarray(np.ones(300_000, np.float32), device=opencl)
    buffer = buffer_of(x)
    held: dict[str, Any] = {
        "copy": buffer.lineage,
        "array": x,
        "handle": buffer.handle,
        "memory": opencl.worker.run(x.__add__(1).program, [np.ones(300_000, np.float32)]).results,
    }
    kept = held.pop(leak)
    del held, x
    if leak != "memory":
        seen.append(weakref.ref(kept))
    del buffer
    assert left_over(opencl, known, seen)


def test_a_forked_process_has_its_arrays_on_a_child_of_its_own() -> None:
    script = """
import os
import numpy as np
import anygpu as ag
from anygpu.workers.device_arrays.registry import registry
x = ag.asarray(np.arange(1000, dtype=np.float32), device="opencl")
y = (x + 1).compute()
child = os.fork()
right = np.array_equal(np.asarray(y * 2), (np.arange(1000) + 1) * 2)
if child == 0:
    registry.close()
    os._exit(0 if right else 1)
_, status = os.waitpid(child, 0)
print(right, os.waitstatus_to_exitcode(status), registry.find("opencl").worker.generation)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["True", "0", "1"], done.stderr
