"""The runtime as a whole: results and receipts on every device, many callers, health, and how it ends."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import gc
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.errors import InvalidOption, OutOfMemory, RuntimeClosed
from anygpu.placement.call_site import CallSite
from anygpu.receipts.receipt import Receipt
from anygpu.runtime.future import Future
from anygpu.runtime.runtime import Runtime
from anygpu.workers.device_arrays.registry import DeviceRegistry
from anygpu.workers.worker import Worker
from tests.runtime.holding import PATIENCE, WIDTH, Gate, Held, make_late
from tests.support.isolation import run_alone

X = np.linspace(-3, 3, 4096).astype(np.float32)


def smooth(x: Any) -> Any:
    return np.tanh(x) * 2 + x


def check(receipt: Receipt | None, device: str, waited: float) -> None:
    """Its phases add up to what the caller has waited, and waiting is one of them."""
    assert receipt is not None
    assert receipt.device.partition(":")[0] == device
    assert receipt.phases.queue > 0
    assert 0 < receipt.seconds <= waited
    assert receipt.attempts[-1].succeeded
    assert Receipt.from_json(receipt.to_json()) == receipt


# -- results and receipts


@pytest.mark.sampled(gate=2)
@pytest.mark.parametrize("device", ["numpy", "opencl", "webgpu"])
def test_results_and_receipts(runtime: Runtime, device: str) -> None:
    for _ in range(3):
        begin = time.monotonic()
        future = runtime.submit(smooth, X, on=device, fallback="raise")
        value = future.result(PATIENCE)
        waited = time.monotonic() - begin
        np.testing.assert_allclose(value, smooth(X), rtol=1e-5, atol=1e-6)
        check(future.receipt, device, waited)


def test_waiting_counts_as_waiting(runtime: Runtime) -> None:
    with Held(runtime):
        begin = time.monotonic()
        future = runtime.submit(smooth, X)
        runtime.submit(Gate()).cancel()
        held = time.monotonic() - begin
    future.result(PATIENCE)
    receipt = future.receipt
    assert receipt is not None
    assert receipt.phases.queue >= held


def test_values_that_decide_what_a_function_does(runtime: Runtime) -> None:
    def branch(x: Any, k: float) -> Any:
        return x * 2 if k > 0.5 else x * 3

    ks = [0.2, 0.8, 0.3, 0.9, 0.2, 0.8]
    for device in ("opencl", "webgpu", "numpy"):
        for k in ks:
            value = runtime.submit(branch, X, k, on=device, fallback="raise").result(PATIENCE)
            np.testing.assert_array_equal(value, branch(X, k))
    # All at once, when nothing is known of it.
    with Runtime(known=runtime._planner.places) as fresh:
        outcomes = fresh.map(branch, [X] * 6, ks, on="opencl", fallback="raise")
        for outcome, k in zip(outcomes, ks, strict=True):
            np.testing.assert_array_equal(outcome.unwrap(), branch(X, k))


@pytest.mark.parametrize("device", ["opencl", "webgpu", "numpy"])
def test_what_surrounds_a_function_may_change_between_calls(runtime: Runtime, device: str) -> None:
    factor = 2.0

    def scaled(x: Any) -> Any:
        return x * factor

    for factor in (2.0, 5.0, 7.0):
        value = runtime.submit(scaled, X, on=device, fallback="raise").result(PATIENCE)
        np.testing.assert_array_equal(value, X * np.float32(factor))


def test_functions_that_cannot_be_recorded_run_as_they_are(runtime: Runtime) -> None:
    def unrecordable(x: Any) -> Any:
        return sorted(float(each) for each in x)[0]

    assert runtime.submit(unrecordable, X).result(PATIENCE) == -3
    with pytest.raises(ag.AnyGPUError, match="cannot be traced"):
        runtime.submit(unrecordable, X, on="opencl", fallback="raise").result(PATIENCE)
    future = runtime.submit(unrecordable, X, on="opencl", fallback="allow")
    assert future.result(PATIENCE) == -3
    assert future.receipt is not None
    assert future.receipt.device == "numpy"


def test_arrays_of_our_own_as_arguments() -> None:
    with Runtime() as runtime:
        x = ag.asarray(X)
        value = runtime.submit(smooth, x).result(PATIENCE)
        assert isinstance(value, ag.Array)
        np.testing.assert_allclose(np.asarray(value), smooth(X), rtol=1e-5, atol=1e-6)


def test_keywords_go_into_partial(runtime: Runtime) -> None:
    def scaled(x: Any, *, by: float) -> Any:
        return x * by

    np.testing.assert_array_equal(runtime.submit(functools.partial(scaled, by=3.0), X).result(PATIENCE), X * 3)
    with pytest.raises(InvalidOption, match="no option 'by'"):
        runtime.submit(scaled, X, by=3.0)  # type: ignore[call-arg]
    # Each call makes one, and nothing is kept of them.
    kept = []
    for _ in range(20):
        by = np.ones(4096, np.float32)
        kept.append(weakref.ref(by))
        nested = functools.partial(functools.partial(scaled, by=2.0), by=by)
        runtime.submit(nested, X).result(PATIENCE)
        del by, nested
    runtime.drain(PATIENCE)
    assert runtime.health().open_tasks == 0
    assert [each() for each in kept if each() is not None] == []


def test_decorated_functions_keep_their_options(runtime: Runtime) -> None:
    decorated = ag.offload(on="opencl", fallback="raise")(smooth)
    future = runtime.submit(decorated, X)
    np.testing.assert_allclose(future.result(PATIENCE), smooth(X), rtol=1e-5, atol=1e-6)
    assert future.receipt is not None
    assert future.receipt.device == "opencl:0"


def test_run_waits_and_has_both(runtime: Runtime) -> None:
    value, receipt = runtime.run(smooth, X)
    np.testing.assert_array_equal(value, smooth(X))
    assert receipt.device == "numpy"


def test_receipts_are_collected_where_a_task_was_submitted(runtime: Runtime) -> None:
    with ag.collect_receipts() as collected:
        futures = [runtime.submit(smooth, X) for _ in range(5)]
        concurrent.futures.wait(futures, PATIENCE)
    assert len(collected) == 5
    assert all(future.receipt in collected for future in futures)


# -- opaque tasks


def test_an_opaque_task_takes_and_returns_arrays_of_its_library(runtime: Runtime) -> None:
    import torch

    def native(x: Any) -> Any:
        assert isinstance(x, torch.Tensor)
        return torch.sin(x)

    for _ in range(2):
        begin = time.monotonic()
        future = runtime.submit(native, X, engine="torch")
        np.testing.assert_allclose(future.result(PATIENCE), np.sin(X), rtol=1e-5, atol=1e-6)
        check(future.receipt, "torch", time.monotonic() - begin)

    def wrong(x: Any) -> Any:
        raise ZeroDivisionError("the user's own")

    with pytest.raises(ZeroDivisionError, match="the user's own"):
        runtime.submit(wrong, X, engine="torch").result(PATIENCE)


@pytest.mark.parametrize("idempotent", [False, True])
def test_an_opaque_task_is_repeated_only_if_that_was_allowed(runtime: Runtime, idempotent: bool) -> None:
    import torch

    calls = 0

    def forgetful(x: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            # What torch raises when a card is full; there is no card here that could be.
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return x + x

    future = runtime.submit(forgetful, X, engine="torch", idempotent=idempotent)
    if idempotent:
        np.testing.assert_array_equal(future.result(PATIENCE), X + X)
        assert future.receipt is not None
        assert [attempt.error for attempt in future.receipt.attempts] == ["OutOfMemory", None]
        assert calls == 2
    else:
        assert isinstance(future.exception(PATIENCE), OutOfMemory)
        assert calls == 1


# -- many callers


def test_many_threads_on_several_devices_get_every_result_once(known: DeviceRegistry) -> None:
    devices = ("numpy", "opencl", "webgpu", "numpy")
    heard: dict[Future, int] = {}
    wrong: list[Any] = []
    barrier = threading.Barrier(8)

    def count(future: Any) -> None:
        heard[future] = heard.get(future, 0) + 1

    runtime = Runtime(queue=2000, known=known)

    def caller(number: int) -> None:
        rng = np.random.default_rng(number)
        barrier.wait(PATIENCE)
        expected: list[tuple[Future, Any]] = []
        for turn in range(200):
            x = rng.normal(size=64).astype(np.float32)
            future = runtime.submit(smooth, x, on=devices[turn % 4], fallback="raise")
            future.add_done_callback(count)
            expected.append((future, smooth(x)))
        for future, value in expected:
            if not np.allclose(future.result(PATIENCE), value, rtol=1e-4, atol=1e-5):
                wrong.append(future)

    with runtime:
        with concurrent.futures.ThreadPoolExecutor(8) as callers:
            for done in [callers.submit(caller, number) for number in range(8)]:
                done.result(PATIENCE)
        runtime.drain(PATIENCE)
        health = runtime.health()
    assert wrong == []
    assert len(heard) == 1600
    assert set(heard.values()) == {1}
    assert sum(lane.done for lane in health.lanes if lane.device != "planning") == 1600
    assert sum(lane.failed for lane in health.lanes) == 0


def test_two_tasks_that_come_at_once_run_side_by_side(runtime: Runtime) -> None:
    if WIDTH == 1:
        pytest.skip("NumPy has one thread here")
    for _ in range(20):
        # Each waits for the other.
        barrier = threading.Barrier(2)
        pair = [runtime.submit(lambda barrier=barrier: barrier.wait(PATIENCE)) for _ in range(2)]
        assert sorted(each.result(PATIENCE) for each in pair) == [0, 1]


class Believed:
    """A function of which the runtime believes to know what it takes on two devices."""

    def __init__(self, runtime: Runtime, function: Callable[..., Any], x: Any, seconds: dict[str, float]) -> None:
        call = runtime._calls(function, {}).call((x,), {})
        call.record()
        call.consider()
        state = call.site
        assert isinstance(state, CallSite)
        state.candidates.end_calibrating()
        # As if it had been compared with NumPy.
        state.chooser.checked = False
        assert state.programs.current is not None
        state.trust.see(state.programs.current, [x], function(x))
        for name, track in state.chooser.tracks.items():
            if name in seconds:
                for _ in range(5):
                    state.chooser.measured(name, seconds[name])
            else:
                state.chooser.failed(name, "it is not a part of this test")
                track.due = 10**9


@pytest.mark.software_devices("tasks that name no device go to several")
def test_a_backlog_of_one_device_is_shared_with_another_that_is_done_sooner(known: DeviceRegistry) -> None:
    gate = Gate()
    known.worker("opencl:0")
    kind = type(known.worker("opencl:0"))
    real = kind.run

    def run(worker: Worker, *arguments: Any, **given: Any) -> Any:
        gate()
        return real(worker, *arguments, **given)

    with Runtime(known=known, batching=False) as runtime, pytest.MonkeyPatch.context() as patch:
        Believed(runtime, smooth, X, {"numpy": 1e-2, "opencl:0": 1e-3})
        patch.setattr(kind, "run", run)
        first = runtime.submit(smooth, X)
        gate.wait()
        # The device does not answer. Whatever waits for it is done by NumPy.
        futures = [runtime.submit(smooth, X) for _ in range(60)]
        try:
            for future in futures:
                np.testing.assert_allclose(future.result(PATIENCE), smooth(X), rtol=1e-5, atol=1e-6)
            devices = {future.receipt.device for future in futures if future.receipt is not None}
            assert devices == {"numpy"}
            assert not first.done()
        finally:
            gate.open()
        first.result(PATIENCE)
        assert first.receipt is not None
        assert first.receipt.device == "opencl:0"


# -- health


def test_health_of_one_that_is_idle_busy_and_closed(known: DeviceRegistry) -> None:
    runtime = Runtime(queue=7, known=known)
    health = runtime.health()
    assert health.ok
    assert (health.waiting, health.limit, health.open_tasks, health.oldest_seconds) == (0, 7, 0, None)
    assert str(health).startswith("ok: 0 of at most 7 tasks wait, 0 are open")
    with Held(runtime):
        runtime.submit(smooth, X, tenant="alice")
        health = runtime.health()
        assert (health.waiting, health.open_tasks) == (1, WIDTH + 1)
        assert health.oldest_seconds is not None
        (lane,) = health.lanes
        assert (lane.device, lane.condition, len(lane.running)) == ("numpy", "busy", WIDTH)
        assert lane.backlog_seconds > 0
        assert "numpy: busy" in str(health)
        (tenant,) = [each for each in health.tenants if each.tenant == "alice"]
        assert (tenant.waiting, tenant.bytes) == (1, X.nbytes)
        assert "tenant alice: 1 wait" in str(health)
    assert runtime.drain(PATIENCE)
    health = runtime.health()
    assert not health.ok
    assert health.closed == "being drained"
    (lane,) = health.lanes
    assert (lane.done, lane.failed) == (WIDTH + 1, 0)
    runtime.close()
    assert str(runtime.health()).startswith("closed: 0 of")
    assert "closed" in repr(runtime)


def test_a_device_that_takes_far_too_long_is_late(known: DeviceRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anygpu.runtime.health._LATE_SECONDS", 0.0)
    with Runtime(known=known) as runtime, Held(runtime):
        # What nothing is known of is predicted to take a millisecond.
        begin = time.monotonic()
        while time.monotonic() - begin < 0.02:
            runtime.health()
        health = runtime.health()
        assert not health.ok
        assert health.lanes[0].condition == "late"
        assert str(health).startswith("late: ")


# -- ends


def test_draining_waits_as_long_as_it_was_told_and_takes_no_more(known: DeviceRegistry) -> None:
    runtime = Runtime(known=known)
    with Held(runtime) as held:
        waiting = runtime.submit(smooth, X)
        assert not runtime.drain(timeout=0.01)
        with pytest.raises(RuntimeClosed, match="being drained"):
            runtime.submit(smooth, X)
    assert runtime.drain(PATIENCE)
    assert waiting.done()
    assert all(future.result() is None for future in held.futures)
    runtime.close()
    runtime.close()
    with pytest.raises(RuntimeClosed, match="closed"):
        runtime.submit(smooth, X)


def test_closing_cancels_what_waits_and_waits_for_what_runs(known: DeviceRegistry) -> None:
    runtime = Runtime(known=known)
    held = Held(runtime)
    waiting = [runtime.submit(smooth, X) for _ in range(5)]
    with concurrent.futures.ThreadPoolExecutor(1) as other:
        closing = other.submit(runtime.close)
        concurrent.futures.wait(waiting, PATIENCE)
        assert all(future.cancelled() for future in waiting)
        assert not closing.done()
        held.open()
        closing.result(PATIENCE)
    assert all(future.done() and not future.cancelled() for future in held.futures)


def test_closing_gives_up_in_time_and_what_runs_is_still_delivered_or_late(known: DeviceRegistry) -> None:
    runtime = Runtime(known=known)
    held = Held(runtime, deadline=PATIENCE)
    gate = Gate()
    late = None
    if WIDTH > 1:
        held.open_one()
        late = runtime.submit(gate, deadline=PATIENCE)
        gate.wait()
    runtime.close(timeout=0.01)
    assert not held.futures[-1].done()
    if late is not None:
        # Its deadline is kept although the runtime is closed.
        make_late(runtime, late)
        assert isinstance(late.exception(PATIENCE), ag.DeadlineExceeded)
    gate.open()
    held.open()
    assert all(future.result(PATIENCE) is None for future in held.futures)


def test_leaving_the_block_waits_for_everything_unless_it_failed(known: DeviceRegistry) -> None:
    with Runtime(known=known) as runtime:
        futures = [runtime.submit(smooth, X) for _ in range(20)]
    assert all(future.done() and future.exception() is None for future in futures)
    runtime = Runtime(known=known)
    held = Held(runtime)
    waiting = runtime.submit(smooth, X)
    waiting.add_done_callback(lambda _: held.open())
    with pytest.raises(ZeroDivisionError), runtime:
        raise ZeroDivisionError
    assert waiting.cancelled()
    assert all(future.done() for future in held.futures)


def test_the_asynchronous_block(known: DeviceRegistry) -> None:
    async def main() -> list[Any]:
        async with Runtime(known=known) as runtime:
            futures = [runtime.submit(smooth, X) for _ in range(20)]
        assert all(future.done() for future in futures)
        with pytest.raises(RuntimeClosed):
            runtime.submit(smooth, X)
        return await asyncio.gather(*futures)

    for value in asyncio.run(main()):
        np.testing.assert_array_equal(value, smooth(X))


def test_submitting_while_it_is_closed_leaves_nobody_waiting(known: DeviceRegistry) -> None:
    for _ in range(10):
        runtime = Runtime(known=known)
        barrier = threading.Barrier(4)
        futures: list[Future] = []

        def caller(runtime: Runtime = runtime, barrier: Any = barrier, futures: Any = futures) -> None:
            barrier.wait(PATIENCE)
            try:
                while True:
                    futures.append(runtime.submit(smooth, X))
            except (RuntimeClosed, ag.errors.QueueFull):
                pass

        threads = [threading.Thread(target=caller) for _ in range(3)]
        for thread in threads:
            thread.start()
        barrier.wait(PATIENCE)
        runtime.close()
        for thread in threads:
            thread.join(PATIENCE)
        assert not concurrent.futures.wait(futures, PATIENCE).not_done


@pytest.mark.parametrize(
    "given", [{"queue": 0}, {"deadline": 0}, {"max_latency": 0}, {"max_latency": float("nan")}, {"ageing": 0}]
)
def test_runtimes_that_make_no_sense(given: Any) -> None:
    with pytest.raises(InvalidOption):
        Runtime(**given)


# -- what is left


def leftovers(before: set[threading.Thread], followed: list[weakref.ref[Any]], *, closed: bool = True) -> list[str]:
    """Threads that were not there before, and objects that should be gone."""
    gc.collect()
    new = [thread for thread in threading.enumerate() if thread not in before]
    for thread in new:
        if closed and thread.name == "anygpu-background":  # it ends after what it has begun
            thread.join(PATIENCE)
    # Those that wait for somebody to use a child are the places', which are not closed here.
    threads = [thread.name for thread in new if thread.is_alive() and thread.name != "anygpu-adoption"]
    return threads + [type(each()).__name__ for each in followed if each() is not None]


def used(runtime: Runtime) -> list[weakref.ref[Any]]:
    followed: list[weakref.ref[Any]] = [weakref.ref(runtime)]
    for device in ("numpy", "opencl"):
        x = X.copy()
        futures = [runtime.submit(smooth, x, on=device, fallback="raise") for _ in range(20)]
        followed += [weakref.ref(each) for each in futures]
        followed.append(weakref.ref(x))
        concurrent.futures.wait(futures, PATIENCE)
    return followed


def use_and_close() -> None:
    known = DeviceRegistry()
    known.worker("opencl:0")
    before = set(threading.enumerate())
    runtime = Runtime(known=known)
    followed = used(runtime)
    runtime.close()
    del runtime
    assert leftovers(before, followed) == []
    # The check finds a runtime that is not closed yet.
    runtime = Runtime(known=known)
    followed = used(runtime)
    left = leftovers(before, followed, closed=False)
    assert "Runtime" in left
    assert "anygpu-numpy-0" in left
    runtime.close()
    del runtime
    assert leftovers(before, followed) == []
    known.close()


def test_nothing_is_left_after_closing() -> None:
    run_alone(use_and_close)


# -- the default one, in programs of their own


def program(source: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)], capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def test_a_program_may_end_without_closing_anything() -> None:
    done = program(
        """
        import threading, time
        import numpy as np
        import anygpu as ag

        def smooth(x):
            return np.tanh(x) * 2 + x

        x = np.ones(1000, np.float32)
        assert ag.submit(smooth, x).result(120) is not None
        assert len(ag.map(smooth, [x] * 50)) == 50
        future = []
        # From a thread that nobody waits for.
        thread = threading.Thread(target=lambda: future.append(ag.submit(smooth, x)), daemon=True)
        thread.start()
        thread.join()
        future[0].result(120)
        ag.submit(smooth, x, on="opencl", fallback="allow")
        mine = ag.Runtime()
        mine.submit(smooth, x).result(120)
        ready = threading.Event()
        running = ag.submit(lambda: (ready.set(), time.sleep(0.2)))
        ready.wait()
        waiting = [ag.submit(smooth, x) for _ in range(100)]
        print("the end")
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "the end\n", "")


def test_a_process_that_was_forked_has_a_default_of_its_own() -> None:
    done = program(
        """
        import os, sys, threading, time
        import numpy as np
        import anygpu as ag

        def twice(x):
            return x + x

        x = np.ones(1000, np.float32)
        mine = ag.Runtime()
        release = threading.Event()
        entered = threading.Event()
        def hold():
            entered.set()
            release.wait(120)
        held = ag.submit(hold)
        mine.submit(twice, x).result(120)
        entered.wait(120)
        child = os.fork()
        if not child:
            assert ag.submit(twice, x).result(120)[0] == 2
            try:
                mine.submit(twice, x)
            except ag.errors.RuntimeClosed as error:
                print(error)
            mine.close()
            print("the child is done")
            sys.exit(0)  # and not os._exit: what the parent wants at its end must not hold up the child
        assert os.waitpid(child, 0)[1] == 0
        release.set()
        held.result(120)
        print("the parent is done")
        """
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "forked" in done.stdout
    assert done.stdout.endswith("the child is done\nthe parent is done\n")
