"""Ctrl-C at the moments at which Python can raise it: afterwards everything works as before, for every thread.

Of calls with many such moments only some are tried here, outside of CI others each time;
`python -m benchmarks.interruptions` tries them all, and interrupts at random, too.
"""

from __future__ import annotations

import concurrent.futures
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from anygpu.base.interrupts import TryAcquire, completed, is_of_a_handler, uninterrupted
from anygpu.engines.memory import DeviceMemory, Fenced, Pool, Resource, Timeline
from anygpu.runtime.future import Future
from anygpu.runtime.runtime import Runtime
from anygpu.store.store import Store
from anygpu.workers.device_arrays.registry import DeviceRegistry
from benchmarks import interruption_scenarios, interruptions
from benchmarks.interruption_scenarios import Calls, Tensors
from tests.support.interrupting import AfterSeconds, Alarm, AtMoment, places_of
from tests.support.isolation import run_alone
from tests.workers.test_process import until

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

PATIENCE = 120.0
X = np.arange(6.0)

#: How many moments of each kind are tried.
MOMENTS = {
    "submit": 420,
    "map": 150,
    "run": 220,
    "result": 250,
    "asyncio": 60,
    "close": 150,
    "store": 300,
    "shared_store": 250,
    "offload": 100,
    "stream": 30,
    "offload_torch": 15,
    "offload_opencl": 40,
    "store_opencl": 40,
}


def interrupt_here(kind: str) -> None:
    interruption_scenarios.SCENARIOS["store_opencl"] = lambda: Tensors("opencl")
    # In CI the same moments every time, as for all random examples.
    seed = 7 if os.environ.get("CI") else int.from_bytes(os.urandom(2))
    told = interruptions.interrupt(kind, MOMENTS[kind], seed, ways="moments", patience=0.0)
    assert not told.broken, f"seed {seed}: {told.broken[0]}"
    assert told.interruptions >= MOMENTS[kind] // 2, "it was hardly interrupted at all"


@pytest.mark.sampled(gate=4)
@pytest.mark.parametrize("kind", MOMENTS)
def test_interruptions(kind: str) -> None:
    """In a process of its own: interrupts also hit Python's and NumPy's own code, whose state other tests share."""
    code = f"from tests.faults.test_interrupts import interrupt_here; interrupt_here({kind!r})"
    root = Path(__file__).parents[2]
    ended = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]


def test_a_broken_promise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that keeps a lock when it is interrupted."""

    class Careless(Calls):
        def __init__(self) -> None:
            self._lock = threading.Lock()
            self.works = (self._call,)

        def _call(self) -> None:
            self._lock.acquire()
            str(1)
            self._lock.release()

        def check(self) -> None:
            interruption_scenarios.expect(self._lock.acquire(timeout=0.01), "the lock is taken")
            self._lock.release()

    monkeypatch.setitem(interruption_scenarios.SCENARIOS, "careless", Careless)
    told = interruptions.interrupt("careless", 20, 0, ways="moments")
    assert any("the lock is taken" in why for why in told.broken)


# -- the ways to interrupt


def test_every_moment_is_found() -> None:
    def call() -> None:
        for _ in range(3):
            len("a")

    places = places_of(call)
    assert len(places) >= 1 + 1 + 3 + 2, "its beginning, `range`, three calls, and two jumps"
    assert all(AtMoment(place).run(call) for place in places)


def test_nothing_is_raised_behind_a_lock_that_c_takes() -> None:
    lock = threading.Lock()

    def call() -> int:
        with lock:
            return len("a")

    for place in places_of(call):
        AtMoment(place).run(call)
        assert not lock.locked()


# -- locks that are not waited for


def test_a_lock_is_waited_for_as_long_as_was_said() -> None:
    lock, held, release = threading.RLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            release.wait(PATIENCE)

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    assert held.wait(PATIENCE)
    for seconds in (0.0, 0.01):
        with TryAcquire(lock, seconds) as acquired:
            assert not acquired
    threading.Timer(0.05, release.set).start()
    with TryAcquire(lock, None) as acquired:
        assert acquired


def pool_of(memory: Resource) -> Resource:
    return Pool(memory, keep_bytes=1 << 20)


def fenced_of(memory: Resource) -> Resource:
    return Fenced(memory, Timeline(lambda: None), batch_blocks=2)


@pytest.mark.parametrize("made", [pool_of, fenced_of, lambda memory: memory], ids=["pool", "fence", "device"])
def test_memory_is_usable_after_an_interrupt_at_every_moment(made: Callable[[Resource], Resource]) -> None:
    """It was not: a lock stayed taken, and later calls waited for it without end."""
    memory = DeviceMemory(lambda nbytes: object(), lambda handle: None)
    resource = made(memory)

    def call() -> None:
        blocks = [resource.allocate(nbytes) for nbytes in (8, 8, 64)]
        for block in blocks:
            resource.release(block)

    call()
    moments = places_of(call)
    assert len(moments) > 20
    for place in moments:
        AtMoment(place).run(call)
        used = threading.Thread(target=call, daemon=True)
        used.start()
        used.join(PATIENCE)
        assert not used.is_alive(), "a lock is taken"


# -- what makes calls whole


@pytest.mark.parametrize("run", [uninterrupted, completed])
def test_what_has_begun_comes_to_its_end(run: object) -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        begun.set()
        # To the main thread: a lock that it waits for is not interrupted by another thread's signal. Again and again,
        # because Python notices one that comes right before the main thread begins to wait only after that.
        while not go_on.wait(0.05):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
        ended.set()

    def handler(*_: object) -> None:
        if not go_on.is_set():
            go_on.set()
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(call)  # type: ignore[operator]
        if run is completed:
            assert ended.is_set()
        assert ended.wait(PATIENCE)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_an_exception_of_a_handler_is_known() -> None:
    found: list[bool] = []

    def call() -> None:
        try:
            len("a")
        except Alarm as error:
            found.append(is_of_a_handler(error))

    for place in places_of(call):
        AtMoment(place, Alarm).run(call)
    assert found
    assert all(found)
    with pytest.raises(Alarm) as own:
        raise Alarm
    assert not is_of_a_handler(own.value)


def test_a_future_is_delivered_to_one_who_was_interrupted_while_looking() -> None:
    """Python's `wait` takes the lock of each future, and may be interrupted before it lets go of them."""
    future = Future(lambda _: False)

    def call() -> None:
        concurrent.futures.wait([future], timeout=0)

    for place in places_of(call):
        AtMoment(place).run(call)
    thread = threading.Thread(target=future.set_result, args=(1,), daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert future.result(PATIENCE) == 1
    assert concurrent.futures.wait([future], PATIENCE).done == {future}


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    known = DeviceRegistry()
    with Runtime(known=known) as runtime:
        yield runtime
    known.close()


def test_a_map_does_not_take_an_alarm_for_the_error_of_an_item(runtime: Runtime) -> None:
    seen = 0
    for seconds in (1e-4, 3e-4, 1e-3):
        way = AfterSeconds(seconds, Alarm)
        values: list[object] = []
        way.run(lambda values=values: values.extend(each.unwrap() for each in runtime.map(np.sum, [X] * 200)))  # type: ignore[misc]
        seen += way.raised
        # It may also come when the map is over.
        came_inside = any("/anygpu/" in frame for frame in way.where)
        assert not (came_inside and len(values) == 200)
    assert seen


def leave_no_thread() -> None:
    with Store() as store:
        for number in range(20):
            store.put(str(number), X + number)
    known = DeviceRegistry()
    with Runtime(known=known) as runtime:
        runtime.submit(np.sum, X).cancel()
    known.close()
    # What nobody waits for may be under way still.
    assert until(lambda: not any("Dummy" in each.name for each in threading.enumerate()))


def test_no_thread_stays() -> None:
    run_alone(leave_no_thread)
