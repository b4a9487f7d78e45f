"""`map`: an outcome for every item, progress, interruption; and batches in which one call is odd."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.errors import InvalidOption, NotANumber, QuotaExceeded, RuntimeClosed
from anygpu.runtime.runtime import Runtime
from anygpu.runtime.task_queue import Tenant
from anygpu.workers.device_arrays.registry import DeviceRegistry
from tests.runtime.holding import PATIENCE, Gate, Held


def twice(x: Any) -> Any:
    return x + x


def add(x: Any, y: Any) -> Any:
    return x + y


# -- items


def test_outcomes_come_in_order_with_value_and_receipt(runtime: Runtime) -> None:
    outcomes = runtime.map(twice, range(100))
    assert [each.value for each in outcomes] == list(range(0, 200, 2))
    assert all(each.ok and each.error is None for each in outcomes)
    for each in outcomes:
        assert each.receipt is not None
        assert each.receipt.device == "numpy"


def test_several_iterables_end_with_the_shortest(runtime: Runtime) -> None:
    assert [each.unwrap() for each in runtime.map(add, itertools.count(10), [1, 2, 3])] == [11, 13, 15]
    assert runtime.map(add, [], [1]) == []
    assert runtime.map(twice) == []


def test_a_generator_is_not_read_further_than_the_queue_allows(known: DeviceRegistry) -> None:
    read = 0

    def items() -> Iterator[int]:
        nonlocal read
        while read < 100:
            read += 1
            yield read

    with Runtime(queue=10, known=known) as runtime:
        ahead: list[int] = []
        outcomes = runtime.map(twice, items(), progress=lambda done, total: ahead.append(read - done))
        assert [each.value for each in outcomes] == list(range(2, 202, 2))
        assert max(ahead) <= 10


def test_far_more_items_than_the_queue_holds(known: DeviceRegistry) -> None:
    with Runtime(queue=2, known=known) as runtime:
        assert [each.value for each in runtime.map(twice, range(300))] == list(range(0, 600, 2))


def test_it_waits_while_others_fill_the_queue(known: DeviceRegistry) -> None:
    with Runtime(queue=3, known=known) as runtime:
        with Held(runtime) as held:
            others = [runtime.submit(twice, number) for number in range(3)]
            with concurrent.futures.ThreadPoolExecutor(1) as other:
                mapped = other.submit(runtime.map, twice, range(4))
                held.open()
                assert [each.value for each in mapped.result(PATIENCE)] == [0, 2, 4, 6]
        assert [each.result(PATIENCE) for each in others] == [0, 2, 4]


def test_an_item_that_is_more_than_its_tenant_may_have_fails_alone(known: DeviceRegistry) -> None:
    with Runtime(known=known, tenants=[Tenant(name="small", bytes=400)]) as runtime:
        items = [np.ones(50, np.float32), np.ones(200, np.float32), np.ones(60, np.float32)]
        first, second, third = runtime.map(twice, items, tenant="small")
        assert first.ok
        assert isinstance(second.error, QuotaExceeded)
        np.testing.assert_array_equal(third.unwrap(), twice(items[2]))


def test_a_bad_item_fails_alone(runtime: Runtime) -> None:
    outcomes = runtime.map(lambda x: 1 // x, [1, 0, 2, "a", 1])
    assert [each.ok for each in outcomes] == [True, False, True, False, True]
    assert isinstance(outcomes[1].error, ZeroDivisionError)
    with pytest.raises(TypeError):
        outcomes[3].unwrap()


def test_an_error_of_the_items_themselves_cancels_the_others(runtime: Runtime) -> None:
    def items() -> Iterator[int]:
        yield from range(5)
        raise RuntimeError("no more of them")

    ran: list[int] = []
    with Held(runtime), pytest.raises(RuntimeError, match="no more of them"):
        runtime.map(ran.append, items())
    runtime.drain(PATIENCE)
    assert ran == []


def test_an_option_that_makes_no_sense(runtime: Runtime) -> None:
    outcomes = runtime.map(twice, [1, 2], nan="maybe")  # type: ignore[arg-type]
    assert all(isinstance(each.error, InvalidOption) for each in outcomes)


def test_a_closed_runtime_takes_no_item(known: DeviceRegistry) -> None:
    runtime = Runtime(known=known)
    runtime.close()
    assert all(isinstance(each.error, RuntimeClosed) for each in runtime.map(twice, [1, 2]))


def test_whoever_is_interrupted_while_waiting_leaves_nothing_behind(runtime: Runtime) -> None:
    # As Ctrl-C does, at a moment that the test knows.
    seen: list[int] = []

    def progress(done: int, total: int | None) -> None:
        seen.append(done)
        if done == 3:
            raise KeyboardInterrupt

    gate = Gate()
    ran: list[int] = []

    def item(number: int) -> int:
        ran.append(number)
        if number == 3:
            gate()
        return number

    with pytest.raises(KeyboardInterrupt):
        runtime.map(item, range(200), progress=progress)
    gate.open()
    assert seen == [1, 2, 3]
    runtime.drain(PATIENCE)
    assert len(ran) < 200


def test_an_interrupt_that_a_task_raised_is_its_outcome(runtime: Runtime) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    (outcome,) = runtime.map(lambda _: interrupted(), [1])
    assert isinstance(outcome.error, KeyboardInterrupt)


# -- progress


def test_progress_is_told_of_every_item_and_of_how_many_there_are(runtime: Runtime) -> None:
    told: list[tuple[int, int | None]] = []
    runtime.map(twice, [1, 2, 3], progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]
    told.clear()
    runtime.map(twice, iter(range(2)), progress=lambda done, total: told.append((done, total)))
    assert [done for done, _ in told] == [1, 2]


def test_a_bar_that_nobody_can_see_is_harmless(runtime: Runtime, capsys: pytest.CaptureFixture[str]) -> None:
    assert [each.value for each in runtime.map(twice, range(20), progress=True)] == list(range(0, 40, 2))
    written = capsys.readouterr()
    assert "20/20" in written.err
    assert "\x1b" not in written.err
    assert written.out == ""


# -- asynchronous


def test_the_loop_goes_on_while_items_are_computed(runtime: Runtime) -> None:
    gate = Gate()

    async def main() -> list[Any]:
        task = asyncio.create_task(runtime.amap(gate, [1, 2]))
        await asyncio.to_thread(gate.wait)
        gate.open()
        return [each.value for each in await task]

    assert asyncio.run(main()) == [1, 2]


def test_whoever_stops_awaiting_it_cancels_the_rest(runtime: Runtime) -> None:
    gate = Gate()
    ran: list[int] = []

    def item(number: int) -> None:
        ran.append(number)
        gate()

    async def main() -> None:
        task = asyncio.create_task(runtime.amap(item, range(100)))
        await asyncio.to_thread(gate.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.open()

    asyncio.run(main())
    runtime.drain(PATIENCE)
    assert len(ran) < 100


# -- batches


def chain(x: Any, w: Any) -> Any:
    return np.tanh(x @ w) * 2 + x


W = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
ROWS = [np.random.default_rng(number).normal(size=64).astype(np.float32) for number in range(100)]


def told_to_batch(runtime: Runtime, device: str, x: Any) -> None:
    """Calls one by one are believed to take long, so that launches for many pay whatever the machine."""
    future = runtime.submit(chain, x, W, on=device, fallback="raise")
    future.result(PATIENCE)
    (state,) = runtime._calls(chain, {"on": device, "fallback": "raise"})._table.sites.values()
    state.chooser.measured(f"{device}:0", 10.0)
    state.chooser.measured(f"{device}:0", 10.0)


@pytest.mark.parametrize("device", ["opencl", "webgpu"])
def test_calls_that_wait_together_become_launches_and_odd_ones_fail_alone(known: DeviceRegistry, device: str) -> None:
    with Runtime(known=known, max_latency=1000.0) as runtime:
        told_to_batch(runtime, device, ROWS[0])
        rows: list[Any] = list(ROWS)
        rows[40] = np.ones(63, np.float32)
        rows[70] = np.full(64, np.nan, np.float32)
        outcomes = runtime.map(chain, rows, [W] * 100, on=device, fallback="raise", nan="raise")
        batched = 0
        for number, (row, outcome) in enumerate(zip(rows, outcomes, strict=True)):
            if number == 40:
                assert outcome.error is not None
                assert not isinstance(outcome.error, NotANumber)
            elif number == 70:
                assert isinstance(outcome.error, NotANumber)
                assert outcome.error.position == (0,)
            else:
                np.testing.assert_allclose(outcome.unwrap(), chain(row, W), rtol=1e-4, atol=1e-5)
                receipt = outcome.receipt
                assert receipt is not None
                assert receipt.device == f"{device}:0"
                assert receipt.phases.queue > 0
                batched += receipt.how is not None and receipt.how.startswith("in one launch of ")
        assert batched > 50


def test_results_of_a_launch_do_not_share_memory(known: DeviceRegistry) -> None:
    with Runtime(known=known, max_latency=1000.0) as runtime:
        told_to_batch(runtime, "opencl", ROWS[0])
        values = [each.unwrap() for each in runtime.map(chain, ROWS, [W] * 100, on="opencl", fallback="raise")]
        # One that ran alone, on a busy machine, may be a view of memory that is its own.
        assert not any(np.may_share_memory(one, other) for one, other in combinations(values, 2))
        values[0][:] = 7
        np.testing.assert_allclose(values[1], chain(ROWS[1], W), rtol=1e-4, atol=1e-5)


# -- nan="raise"


@pytest.mark.parametrize(
    "value", [np.array([1.0, np.nan]), np.float64("nan"), float("nan"), {"a": (1, [np.array([[0.0], [np.nan]])])}]
)
def test_a_nan_anywhere_in_a_result_is_an_error_if_that_was_asked_for(runtime: Runtime, value: Any) -> None:
    def given(_: Any) -> Any:
        return value

    error = runtime.submit(given, 1, nan="raise").exception(PATIENCE)
    assert isinstance(error, NotANumber)
    assert isinstance(error, ArithmeticError)
    assert "given" in str(error)
    assert runtime.submit(given, 1).exception(PATIENCE) is None


def test_a_nan_in_an_array_of_our_own(runtime: Runtime) -> None:
    error = runtime.submit(lambda x: x / x, ag.asarray([1.0, 0.0]), nan="raise").exception(PATIENCE)
    assert isinstance(error, NotANumber)
    assert error.position == (1,)


@pytest.mark.parametrize("value", ["text", None, 3, np.array(["a"]), np.array([1, 2]), float("inf")])
def test_what_cannot_be_a_nan_is_left_alone(runtime: Runtime, value: Any) -> None:
    assert runtime.submit(lambda x: x, value, nan="raise").exception(PATIENCE) is None
