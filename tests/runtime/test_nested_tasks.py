"""Tasks that wait for tasks: nothing deadlocks, however deep, and no thread stays."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.errors import DeadlineExceeded
from anygpu.runtime.runtime import Runtime
from anygpu.workers.device_arrays.registry import DeviceRegistry
from tests.runtime.holding import PATIENCE, WIDTH, Gate

X = np.arange(4.0)


def spare_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.endswith("-spare")]


def without_spares() -> None:
    for thread in threading.enumerate():
        if thread.name.endswith("-spare"):
            thread.join(PATIENCE)
    assert not spare_threads()


def test_as_many_as_there_are_threads(runtime: Runtime) -> None:
    def outer(x: Any) -> Any:
        return runtime.submit(np.sum, x).result()

    futures = [runtime.submit(outer, X) for _ in range(8 * WIDTH)]
    assert [each.result(PATIENCE) for each in futures] == [6.0] * 8 * WIDTH
    without_spares()


@pytest.mark.parametrize("tenants", [("a",), ("a", "b", "c")], ids=len)
def test_deep(runtime: Runtime, tenants: tuple[str, ...]) -> None:
    most = 0

    def down(depth: int) -> int:
        nonlocal most
        most = max(most, len(spare_threads()))
        if not depth:
            return 0
        return 1 + int(runtime.submit(down, depth - 1, tenant=tenants[depth % len(tenants)]).result())

    futures = [runtime.submit(down, 100, tenant=tenants[0]) for _ in range(WIDTH + 1)]
    assert [each.result(PATIENCE) for each in futures] == [100] * (WIDTH + 1)
    assert most <= 100 * (WIDTH + 1)
    without_spares()


def test_a_tree_needs_as_many_threads_as_it_is_deep(runtime: Runtime) -> None:
    most = 0

    def fibonacci(n: int) -> int:
        nonlocal most
        most = max(most, len(spare_threads()))
        if n < 2:
            return n
        parts = [runtime.submit(fibonacci, n - 1), runtime.submit(fibonacci, n - 2)]
        return sum(int(each.result()) for each in parts)

    assert runtime.submit(fibonacci, 10).result(PATIENCE) == 55
    assert most <= 10 * WIDTH
    without_spares()


def test_many_that_wait_do_not_take_a_thread_each(runtime: Runtime) -> None:
    most = 0

    def outer(x: Any) -> Any:
        nonlocal most
        inner = runtime.submit(np.sum, x)
        most = max(most, len(spare_threads()))
        return inner.result()

    assert all(each.value == 6.0 for each in runtime.map(outer, [X] * 300))
    assert most <= 2 * WIDTH
    without_spares()


def test_map_and_run_and_offloaded_functions_inside_tasks(runtime: Runtime) -> None:
    doubled = ag.offload(lambda x: x * 2)

    def inner(x: Any) -> Any:
        return float(doubled(x).sum()) + float(runtime.run(np.sum, x).value)

    def outer(x: Any) -> float:
        return float(sum(each.unwrap() for each in runtime.map(inner, [x] * 5)))

    assert [each.unwrap() for each in runtime.map(outer, [X] * 3 * WIDTH)] == [90.0] * 3 * WIDTH
    without_spares()


def test_map_inside_tasks_with_a_full_queue(known: DeviceRegistry) -> None:
    gate = Gate()
    with Runtime(known=known, queue=WIDTH + 1) as runtime:

        def outer(x: Any) -> float:
            gate(x)
            return sum(float(each.unwrap()) for each in runtime.map(np.sum, [x] * 5))

        futures = [runtime.submit(outer, X) for _ in range(WIDTH)]
        gate.wait()
        with contextlib.suppress(ag.errors.QueueFull):
            while True:
                futures.append(runtime.submit(outer, X))
        gate.open()
        assert [each.result(PATIENCE) for each in futures] == [30.0] * len(futures)
    without_spares()


def test_between_runtimes(known: DeviceRegistry) -> None:
    with Runtime(known=known) as first, Runtime(known=known) as second:

        def down(depth: int) -> int:
            runtime = second if depth % 2 else first
            return 1 + int(runtime.submit(down, depth - 1).result()) if depth else 0

        futures = [runtime.submit(down, 20) for runtime in (first, second) for _ in range(WIDTH + 1)]
        assert [each.result(PATIENCE) for each in futures] == [20] * len(futures)
    without_spares()


def test_on_lanes_of_devices(runtime: Runtime) -> None:
    """Opaque tasks run on the one thread of their library's lane, and wait for each other and for other lanes."""

    def down(x: Any, depth: int) -> Any:
        if not depth:
            return x
        below = runtime.submit(down, np.asarray(x), depth - 1, engine="torch" if depth % 3 else "jax")
        return x + float(below.result()[0])

    futures = [runtime.submit(down, X, 9, engine=engine) for engine in ("torch", "jax") for _ in range(2)]
    for each in futures:
        np.testing.assert_array_equal(each.result(PATIENCE), X)
    without_spares()


@pytest.mark.parametrize("device", ["webgpu", "opencl"])
def test_waiting_for_a_device(runtime: Runtime, device: str) -> None:
    def outer(x: Any) -> Any:
        return runtime.submit(np.tanh, x, on=device, fallback="raise").result()

    x = X.astype(np.float32)
    for each in [runtime.submit(outer, x, on="numpy") for _ in range(3 * WIDTH)]:
        np.testing.assert_allclose(each.result(PATIENCE), np.tanh(x), rtol=1e-5)
    without_spares()


def _with_wait(futures: list[Any]) -> None:
    concurrent.futures.wait(futures)


def _with_as_completed(futures: list[Any]) -> None:
    assert len(list(concurrent.futures.as_completed(futures))) == len(futures)


def _with_await(futures: list[Any]) -> None:
    async def wait() -> None:
        await asyncio.gather(*futures)

    asyncio.run(wait())


@pytest.mark.parametrize("wait", [_with_wait, _with_as_completed, _with_await])
def test_other_ways_to_wait(runtime: Runtime, wait: Callable[[list[Any]], None]) -> None:
    most = 0

    def outer(x: Any) -> float:
        nonlocal most
        futures = [runtime.submit(np.sum, x) for _ in range(20)]
        wait(futures)
        most = max(most, len(spare_threads()))
        return sum(float(each.result()) for each in futures)

    futures = [runtime.submit(outer, X) for _ in range(3 * WIDTH)]
    assert [each.result(PATIENCE) for each in futures] == [120.0] * 3 * WIDTH
    assert most <= 3 * WIDTH
    without_spares()


def test_what_was_submitted_in_a_loop_inside_a_task(runtime: Runtime) -> None:
    def outer(x: Any) -> float:
        async def main() -> float:
            return float(await runtime.submit(np.sum, x))

        return asyncio.run(main())

    futures = [runtime.submit(outer, X) for _ in range(3 * WIDTH)]
    assert [each.result(PATIENCE) for each in futures] == [6.0] * 3 * WIDTH
    without_spares()


def test_errors_cancelled_and_late_ones(runtime: Runtime) -> None:
    def fails(x: Any) -> Any:
        raise KeyError("inner")

    def outer(x: Any) -> Any:
        cancelled = runtime.submit(np.sum, x, tenant="other")
        cancelled.cancel()
        with pytest.raises(KeyError):
            runtime.submit(fails, x).result()
        return cancelled.cancelled() or float(cancelled.result())

    futures = [runtime.submit(outer, X) for _ in range(3 * WIDTH)]
    assert all(each.result(PATIENCE) for each in futures)

    gate = Gate()

    def late(x: Any) -> Any:
        return runtime.submit(gate, x, deadline=0.05).result()

    futures = [runtime.submit(late, X) for _ in range(2 * WIDTH)]
    for each in futures:
        with pytest.raises(DeadlineExceeded):
            each.result(PATIENCE)
    gate.open()
    assert runtime.submit(np.sum, X).result(PATIENCE) == 6.0
    runtime.drain(PATIENCE)
    without_spares()


def test_what_a_blocked_thread_had_taken_besides_runs_elsewhere(runtime: Runtime) -> None:
    """Short functions are taken several at a time; one that blocks must not keep the others, which it may need."""
    held: list[Any] = []
    armed = False

    def short(position: int) -> int:
        if armed and position == 0:
            return sum(int(each.result()) for each in held[1:])
        return position

    for _ in range(50):  # until it is known to be short
        runtime.submit(short, 1).result(PATIENCE)
    gates = [Gate() for _ in range(WIDTH)]
    running = [runtime.submit(gate) for gate in gates]
    for gate in gates:
        gate.wait()
    armed = True
    held += [runtime.submit(short, position) for position in range(12)]
    for gate in gates:
        gate.open()
    assert held[0].result(PATIENCE) == sum(range(12))
    assert all(each.result(PATIENCE) is None for each in running)
    without_spares()
