"""What `submit` returns: results, the caller's own errors, cancellation, callbacks, and `await`."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from anygpu.errors import DeadlineExceeded
from anygpu.runtime.future import Future, FutureLock, InterruptibleEvent
from anygpu.runtime.runtime import Runtime
from anygpu.workers.device_arrays.registry import DeviceRegistry
from anygpu.workers.thread import ThreadWorker
from tests.runtime.holding import PATIENCE, WIDTH, Gate, Held, make_late

X = np.linspace(-3, 3, 1000).astype(np.float32)
#: Under a budget of 8 MiB this runs in pieces.
BUDGET = 8 << 20
LARGE = np.linspace(-3, 3, 10 * BUDGET // 4).astype(np.float32)


def twice(x: Any) -> Any:
    return x + x


class Mine(Exception):
    """A user's own error."""


# -- errors of the user's own


class Failing:
    def __init__(self) -> None:
        self.calls = 0
        self.error = Mine("the user's own")

    def __call__(self, x: Any) -> Any:
        self.calls += 1
        raise self.error


def test_a_users_own_error_comes_out_as_it_is_with_its_traceback_and_once(runtime: Runtime) -> None:
    failing = Failing()
    future = runtime.submit(failing, X)
    with pytest.raises(Mine) as raised:
        future.result(PATIENCE)
    assert raised.value is failing.error is future.exception()
    assert failing.calls == 1
    frames = traceback.extract_tb(failing.error.__traceback__)
    assert frames[-1].name == "__call__"
    assert frames[-1].filename == __file__
    assert future.receipt is None
    assert not future.cancelled()
    # The lane goes on.
    assert runtime.submit(twice, 4).result(PATIENCE) == 8


@pytest.mark.parametrize("device", ["opencl", "webgpu"])
def test_an_error_in_a_function_that_a_device_was_asked_for(runtime: Runtime, device: str) -> None:
    def wrong(x: Any) -> Any:
        raise Mine("while it is recorded")

    future = runtime.submit(wrong, X, on=device, fallback="raise")
    with pytest.raises(Mine, match="while it is recorded"):
        future.result(PATIENCE)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration, MemoryError])
def test_errors_that_end_threads_do_not_end_the_lane(runtime: Runtime, kind: type[BaseException]) -> None:
    def ending() -> None:
        raise kind

    for _ in range(WIDTH + 1):
        assert isinstance(runtime.submit(ending).exception(PATIENCE), kind)
    assert runtime.submit(twice, 2).result(PATIENCE) == 4


# -- cancellation


def test_a_task_that_waits_can_be_cancelled_and_never_runs(runtime: Runtime) -> None:
    ran: list[int] = []
    with Held(runtime):
        future = runtime.submit(ran.append, 1)
        heard: list[Future] = []
        future.add_done_callback(heard.append)
        assert not future.running()
        assert future.cancel()
        assert future.cancel()
        assert future.cancelled()
        assert future.done()
        assert heard == [future]
        assert concurrent.futures.wait([future], timeout=0).done == {future}
        with pytest.raises(concurrent.futures.CancelledError):
            future.result()
    runtime.drain(PATIENCE)
    assert ran == []


def test_a_task_that_runs_whole_cannot_be_cancelled(runtime: Runtime) -> None:
    gate = Gate()
    future = runtime.submit(gate, 7)
    gate.wait()
    assert future.running()
    assert not future.cancel()
    gate.open()
    assert future.result(PATIENCE) == 7
    assert not future.cancel()


class Pieces:
    """Tasks that a worker in this process computes in pieces, each of which waits at a gate."""

    def __init__(self, runtime: Runtime, gate: Gate) -> None:
        self._runtime, self.gate = runtime, gate

    def submit(self, **given: Any) -> Future:
        return self._runtime.submit(twice, LARGE, on="opencl", isolation="thread", fallback="raise", **given)

    def submit_in_time(self) -> Future:
        """One whose time ends while its first piece waits: when `make_late` is told to."""
        future = self.submit(deadline=PATIENCE)
        self.gate.wait()
        return future

    def make_late(self, future: Future) -> None:
        make_late(self._runtime, future)


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pieces]:
    monkeypatch.setenv("ANYGPU_MEMORY", str(BUDGET))
    known = DeviceRegistry()
    gate = Gate()
    real = ThreadWorker.run

    def run(worker: ThreadWorker, *arguments: Any, **given: Any) -> Any:
        gate(None)
        return real(worker, *arguments, **given)

    monkeypatch.setattr(ThreadWorker, "run", run)
    with Runtime(known=known) as runtime:
        yield Pieces(runtime, gate)
        gate.open()
    known.close()


def test_a_task_in_pieces_is_cancelled_between_two_of_them(pieces: Pieces) -> None:
    future = pieces.submit()
    pieces.gate.wait()
    assert future.running()
    assert future.cancel()
    assert not future.done()
    pieces.gate.open()
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(PATIENCE)
    assert pieces.gate.calls == 1
    assert future.cancelled()
    # Its device goes on with the next.
    again = pieces.submit()
    np.testing.assert_array_equal(again.result(PATIENCE), twice(LARGE))
    assert again.receipt is not None
    assert "chunks" in str(again.receipt.how)


def test_a_task_in_pieces_stops_between_two_of_them_when_its_time_is_over(pieces: Pieces) -> None:
    future = pieces.submit_in_time()
    pieces.make_late(future)
    with pytest.raises(DeadlineExceeded) as late:
        future.result(PATIENCE)
    assert late.value.still_running
    assert not future.cancel()
    pieces.gate.open()
    again = pieces.submit()
    np.testing.assert_array_equal(again.result(PATIENCE), twice(LARGE))
    assert again.receipt is not None
    whole = int(str(again.receipt.how).split()[1])
    assert pieces.gate.calls == 1 + whole


def test_a_task_that_was_cancelled_and_is_late_before_its_piece_ends_is_cancelled(pieces: Pieces) -> None:
    future = pieces.submit_in_time()
    assert future.cancel()
    pieces.make_late(future)
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(PATIENCE)
    pieces.gate.open()


# -- callbacks and those who wait


def test_callbacks_come_once_whatever_they_raise(runtime: Runtime, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Any] = []

    def failing(future: Any) -> None:
        heard.append(future)
        raise Mine

    def ending(future: Any) -> None:
        heard.append(future)
        raise SystemExit

    with Held(runtime):
        futures = [runtime.submit(twice, number) for number in range(3 * WIDTH)]
        for future in futures:
            future.add_done_callback(failing)
            future.add_done_callback(ending)
    assert [future.result(PATIENCE) for future in futures] == [2 * number for number in range(3 * WIDTH)]
    runtime.drain(PATIENCE)
    assert all(heard.count(future) == 2 for future in futures)
    assert "Mine" in caplog.text


def test_a_callback_may_submit(runtime: Runtime) -> None:
    later: list[Future] = []
    done = threading.Event()

    def again(future: Any) -> None:
        later.append(runtime.submit(twice, future.result()))
        done.set()

    runtime.submit(twice, 1).add_done_callback(again)
    assert done.wait(PATIENCE)
    assert later[0].result(PATIENCE) == 4


def test_a_callback_that_ends_threads_costs_nobody_a_deadline(runtime: Runtime) -> None:
    def ending(future: Any) -> None:
        raise SystemExit

    with Held(runtime):
        first = runtime.submit(twice, 1, deadline=0.01)
        first.add_done_callback(ending)
        assert isinstance(first.exception(PATIENCE), DeadlineExceeded)
        assert isinstance(runtime.submit(twice, 1, deadline=0.01).exception(PATIENCE), DeadlineExceeded)


def test_pythons_own_ways_of_waiting(runtime: Runtime) -> None:
    gate = Gate()
    quick = [runtime.submit(twice, number) for number in range(20)]
    slow = runtime.submit(gate, "slow")
    ready, late = concurrent.futures.wait([*quick, slow], timeout=PATIENCE, return_when="FIRST_COMPLETED")
    assert ready
    assert slow in late
    gate.open()
    found = {each.result() for each in concurrent.futures.as_completed([*quick, slow], timeout=PATIENCE)}
    assert found == {*range(0, 40, 2), "slow"}
    held = Gate()
    future = runtime.submit(held)
    with pytest.raises(TimeoutError):
        future.result(timeout=0.001)
    held.open()


# -- await


def test_two_hundred_are_awaited_together(runtime: Runtime) -> None:
    async def main() -> list[Any]:
        return await asyncio.gather(*(runtime.submit(twice, X * number) for number in range(200)))

    for number, value in enumerate(asyncio.run(main())):
        np.testing.assert_array_equal(value, twice(X * number))


def test_awaiting_a_task_that_fails_raises_its_error(runtime: Runtime) -> None:
    failing = Failing()

    async def main() -> None:
        with pytest.raises(Mine) as raised:
            await runtime.submit(failing, X)
        assert raised.value is failing.error
        results = await asyncio.gather(
            runtime.submit(twice, 1), runtime.submit(failing, X), runtime.submit(twice, 2), return_exceptions=True
        )
        assert list(results) == [2, failing.error, 4]

    asyncio.run(main())


def test_whoever_stops_awaiting_cancels_what_waits_and_leaves_what_runs(runtime: Runtime) -> None:
    async def main() -> None:
        ran: list[int] = []
        with Held(runtime) as held:
            waiting = runtime.submit(ran.append, 1)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(waiting, 0.01)
            assert waiting.cancelled()

            async def wait(future: Future) -> Any:
                return await future

            task = asyncio.create_task(wait(held.futures[0]))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert held.futures[0].running()
        assert await held.futures[0] is None
        assert ran == []

    asyncio.run(main())


def test_a_loop_that_is_held_up_by_whoever_waits_for_a_task(runtime: Runtime) -> None:
    """As in a notebook, where cells run in a loop."""

    async def main() -> Any:
        outcomes = runtime.map(twice, range(3))
        return runtime.submit(twice, 1).result(PATIENCE), [each.value for each in outcomes]

    assert asyncio.run(main()) == (2, [0, 2, 4])


def test_a_task_from_a_loop_that_is_closed_at_once_is_done(runtime: Runtime) -> None:
    async def main() -> Future:
        return runtime.submit(twice, 1)

    for _ in range(3):
        loop = asyncio.new_event_loop()
        future = loop.run_until_complete(main())
        loop.close()
        assert future.result(PATIENCE) == 2


def test_awaiting_what_is_cancelled_by_another(runtime: Runtime) -> None:
    async def main() -> None:
        with Held(runtime):
            future = runtime.submit(twice, 1)

            async def wait() -> Any:
                return await future

            task = asyncio.create_task(wait())
            await asyncio.sleep(0)
            future.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())


# -- what a future keeps


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def followed(size: int = 1000) -> tuple[Any, Callable[[], Any]]:
    array = np.ones(size, np.float32)
    return array, weakref.ref(array)


@pytest.mark.sampled(gate=2)
@pytest.mark.parametrize("device", ["numpy", "opencl", "webgpu"])
def test_arguments_are_free_when_the_future_is_done(
    known: DeviceRegistry, device: str, without_collector: None
) -> None:
    with Runtime(known=known) as runtime:
        futures, arrays = [], []
        for _ in range(20):
            x, reference = followed()
            futures.append(runtime.submit(twice, x, on=device, fallback="raise"))
            arrays.append(reference)
            del x
        concurrent.futures.wait(futures, PATIENCE)
        runtime.drain(PATIENCE)
        left = [number for number, each in enumerate(arrays) if each() is not None]
        assert left == []
        assert all(future.receipt is not None for future in futures)


def test_arguments_of_tasks_that_failed_late_or_cancelled_are_free(
    known: DeviceRegistry, without_collector: None
) -> None:
    def wrong(x: Any) -> Any:
        raise Mine

    with Runtime(known=known) as runtime:
        references = []
        with Held(runtime):
            x, reference = followed()
            references.append(reference)
            late = runtime.submit(twice, x, deadline=0.01)
            assert isinstance(late.exception(PATIENCE), DeadlineExceeded)
            x, reference = followed()
            references.append(reference)
            runtime.submit(twice, x).cancel()
            x, reference = followed()
            references.append(reference)
            failing = runtime.submit(wrong, x)
            del x
        assert isinstance(failing.exception(PATIENCE), Mine)
        runtime.drain(PATIENCE)
        # The error's traceback has the function's own frame, with its argument; nobody else has it.
        del failing, late
        assert [each() is None for each in references] == [True, True, True]


# -- `concurrent.futures.wait` and `as_completed`, which look at all futures before they wait


def test_a_thread_that_was_interrupted_while_it_looked_holds_up_no_other() -> None:
    lock = FutureLock()
    lock.acquire()  # and never released
    other = threading.Thread(target=lock.__enter__, daemon=True)
    other.start()
    other.join(PATIENCE)
    assert not other.is_alive()


def deliver_at(moment: int, first: Future, second: Future, wait: Callable[[], Any]) -> tuple[Any, int]:
    """The result of `wait`, and how many moments there are before it sleeps.

    `first` is done at one of these moments, and `second` when `wait` is about to sleep.
    """
    passed = 0

    def elsewhere(call: Callable[[], object]) -> None:
        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        thread.join(PATIENCE)

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal passed
        frame.f_trace_opcodes = True
        sleeps = frame.f_code is InterruptibleEvent.wait.__code__
        if (passed >= moment or sleeps) and not first.done() and not first._lock._is_owned():
            elsewhere(lambda: first.set_result(1))
        if sleeps and not second.done():
            elsewhere(lambda: second.set_exception(Mine()))
        passed += not second.done()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return wait(), passed
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("way", ["ALL_COMPLETED", "FIRST_EXCEPTION", "as_completed"])
def test_a_future_that_is_done_at_any_moment_of_a_wait_is_told_of_once(way: str) -> None:
    moment = moments = 0
    while moment <= moments:
        first, second = Future(lambda _: False), Future(lambda _: False)

        def wait(first: Future = first, second: Future = second) -> list[Any]:
            if way == "as_completed":
                return list(concurrent.futures.as_completed([first, second], timeout=PATIENCE))
            return list(concurrent.futures.wait([first, second], timeout=PATIENCE, return_when=way).done)

        found, moments = deliver_at(moment, first, second, wait)
        if way == "FIRST_EXCEPTION":
            assert second in found
        else:
            assert sorted(map(id, found)) == sorted([id(first), id(second)])
        moment += 1
    assert moments > 100
