"""Sessions of the engines that compile: nothing new in the steady state, views at any offset, broken rules."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from anygpu.base.typing import HostArray
from anygpu.engines.compiling_session import DeviceArray
from anygpu.errors import DeviceLost, InvalidOption
from anygpu.program.graph import Recorder
from anygpu.program.primitives import Gather, Spec
from tests.engines.compiled import NAMES, Running, running


@pytest.fixture(scope="module", params=NAMES)
def opened(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running(request.param) as found:
        yield found


def softmax(x: Any) -> Any:
    raised = np.exp(x - x.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


def numbers(*shape: int, seed: int = 0) -> HostArray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def many_kernels(x: Any) -> Any:
    """Twenty-five times a running sum and an order, which never share a kernel."""
    for turn in range(25):
        x = np.sort(np.cumsum(x, axis=turn % 2) / 8, axis=1 - turn % 2)
    return x


# -- the steady state


def test_a_second_run_allocates_and_compiles_nothing(opened: Running) -> None:
    x, y = opened.up(numbers(65, 257)), opened.up(numbers(257, 63, seed=1))

    def program(x: Any, y: Any) -> Any:
        return softmax(x @ y).sum(), np.sort(np.cumsum(x, axis=0), axis=1)

    for _ in range(3):
        opened.run(program, x, y)
    opened.session.synchronize()
    before, live = opened.counters, opened.session.driver.live()  # type: ignore[attr-defined]
    for _ in range(20):
        results = opened.run(program, x, y)
        del results
    opened.session.synchronize()
    after = opened.counters
    assert after.allocations == before.allocations
    assert after.compilations == before.compilations
    assert after.submits - before.submits >= 20
    assert opened.session.driver.live() == live  # type: ignore[attr-defined]


def test_fifty_kernels_are_one_submission(opened: Running) -> None:
    values = numbers(37, 41)
    x = opened.up(values)
    (result,) = opened.run(many_kernels, x)
    wanted = many_kernels(values.astype(np.float64))
    first = opened.down(result).copy()
    np.testing.assert_allclose(first, wanted, rtol=1e-3, atol=1e-3)
    del result
    before = opened.counters
    results = opened.run(many_kernels, x)
    after = opened.counters
    assert after.dispatches - before.dispatches >= 50
    assert after.submits - before.submits == 1
    assert after.allocations == before.allocations
    assert after.compilations == before.compilations
    np.testing.assert_array_equal(opened.down(results[0]), first)


def test_the_same_program_is_compiled_once_whoever_recorded_it(opened: Running) -> None:
    x = opened.up(numbers(65))
    opened.run(lambda a: a * 3 + 1, x)
    before = opened.counters
    opened.run(lambda other: other * 3 + 1, x)
    assert opened.counters.compilations == before.compilations


def test_results_stay_what_they_were_when_the_program_runs_again(opened: Running) -> None:
    first, second = numbers(9, 300), numbers(9, 300, seed=1)
    (one,) = opened.run(softmax, opened.up(first))
    before = opened.down(one).copy()
    for _ in range(5):
        opened.run(softmax, opened.up(second))
    np.testing.assert_array_equal(opened.down(one), before)


# -- inputs and outputs


def test_the_same_array_twice(opened: Running) -> None:
    values = numbers(257)
    x = opened.up(values)
    (result,) = opened.run(lambda a, b: a * 2 - b, x, x)
    np.testing.assert_array_equal(opened.down(result), values * 2 - values)
    half = opened.up(np.arange(301, dtype=np.float16))
    (odd,) = opened.run(lambda a: a[1:], half)
    (even,) = opened.run(lambda a: a[:-1], half)
    (difference,) = opened.run(lambda a, b: a - b, odd, even)
    np.testing.assert_array_equal(opened.down(difference), np.ones(300, np.float16))


def test_an_input_that_is_also_an_output(opened: Running) -> None:
    values = numbers(65, 3)
    x = opened.up(values)
    again, changed = opened.run(lambda a: (a, a + 1), x)
    np.testing.assert_array_equal(opened.down(again), values)
    np.testing.assert_array_equal(opened.down(changed), values + 1)
    assert again.held is x.held
    del x
    gc.collect()
    (more,) = opened.run(lambda a: a * 2, again)
    np.testing.assert_array_equal(opened.down(more), values * 2)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "float16", "float32", "int64", "complex64"])
@pytest.mark.parametrize("start", [1, 3, 33])
@pytest.mark.sampled(gate=15, full=3)
def test_views_that_begin_anywhere(opened: Running, dtype: str, start: int) -> None:
    values = (np.arange(400) % 101 > 50) if dtype == "bool" else (np.arange(400) % 101).astype(dtype)
    whole = opened.up(values)
    (part,) = opened.run(lambda a: a[start:], whole)
    assert part.held is whole.held
    np.testing.assert_array_equal(opened.down(part), values[start:])
    (flipped,) = opened.run(lambda a: np.flip(a, 0), part)
    np.testing.assert_array_equal(opened.down(flipped), values[start:][::-1])
    (both,) = opened.run(lambda a, b: np.where(a == a, a, b), part, part)
    np.testing.assert_array_equal(opened.down(both), values[start:])
    if dtype not in ("bool", "complex64"):
        (ordered,) = opened.run(lambda a: np.sort(a), part)
        np.testing.assert_array_equal(opened.down(ordered), np.sort(values[start:]))


def test_a_view_of_a_view_in_products_and_reductions(opened: Running) -> None:
    values = numbers(70, 33)
    (rows,) = opened.run(lambda a: a[3:], opened.up(values))
    (fewer,) = opened.run(lambda a: a[1:-1], rows)
    part = values[4:-1]
    np.testing.assert_array_equal(opened.down(fewer), part)
    (product, total, running_sum) = opened.run(lambda a: (a @ a.T, a.sum(), np.cumsum(a, axis=0)), fewer)
    np.testing.assert_allclose(opened.down(product), part @ part.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(opened.down(total), part.sum(), rtol=1e-4)
    np.testing.assert_allclose(opened.down(running_sum), np.cumsum(part, axis=0), rtol=1e-4, atol=1e-4)


def test_views_with_another_offset_share_what_was_compiled(opened: Running) -> None:
    whole = opened.up(np.arange(500, dtype=np.uint8))
    parts = [opened.run(lambda a, s=start: a[s : s + 400], whole)[0] for start in (1, 2, 3)]
    opened.run(lambda a: a + a, parts[0])
    before = opened.counters
    for start, part in enumerate(parts, 1):
        (result,) = opened.run(lambda a: a + a, part)
        wanted = np.arange(500, dtype=np.uint8)[start : start + 400]
        np.testing.assert_array_equal(opened.down(result), wanted + wanted)
    assert opened.counters.compilations == before.compilations


# -- rules that only values can break


def gathered(opened: Running, positions: list[int]) -> tuple[DeviceArray, DeviceArray]:
    """A gather, and something computed from it."""
    recorder = Recorder()
    x, index = recorder.input(Spec((5,), "float32")), recorder.input(Spec((len(positions),), "int32"))
    program = recorder.program([recorder.add(Gather(0), x, index)])
    arrays = [opened.up(np.arange(5, dtype=np.float32)), opened.up(np.array(positions, np.int32))]
    (picked,) = opened.execute(program, arrays)
    (later,) = opened.run(lambda a: a + 1, picked)
    return picked, later


def test_a_broken_rule_is_raised_wherever_a_value_is_wanted_and_every_time(opened: Running) -> None:
    picked, later = gathered(opened, [0, 7, 1])
    for array in (later, picked, later, picked):
        with pytest.raises(IndexError, match="index 7 is out of bounds for an axis with size 5"):
            opened.down(array)
    (further,) = opened.run(lambda a, b: a * b, later, opened.up(np.ones(3, np.float32)))
    with pytest.raises(IndexError, match="index 7"):
        opened.down(further)


def test_a_negative_index_is_named(opened: Running) -> None:
    with pytest.raises(IndexError, match="index -3 is out of bounds"):
        opened.down(gathered(opened, [-3])[0])


def test_other_arrays_and_later_runs_are_not_touched_by_it(opened: Running) -> None:
    picked, _ = gathered(opened, [9])
    right, later = gathered(opened, [4, 0])
    np.testing.assert_array_equal(opened.down(right), [4, 0])
    np.testing.assert_array_equal(opened.down(later), [5, 1])
    with pytest.raises(IndexError):
        opened.down(picked)


def test_what_was_found_right_is_not_looked_at_again(opened: Running) -> None:
    picked, _ = gathered(opened, [4, 0])
    opened.down(picked)
    before = opened.counters.bytes_to_host
    opened.down(picked)
    assert opened.counters.bytes_to_host - before <= picked.spec.nbytes


# -- threads, and the end


def test_two_threads_use_one_engine(opened: Running) -> None:
    failures: list[BaseException] = []

    def use(seed: int) -> None:
        try:
            for turn in range(15):
                values = numbers(30 + seed, 40 + turn % 3, seed=seed)
                (result,) = opened.values(softmax, values)
                wanted = softmax(values.astype(np.float64))
                np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-6)
        except BaseException as error:  # noqa: BLE001 - shown in the thread that waits
            failures.append(error)

    threads = [threading.Thread(target=use, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("name", NAMES)
def test_two_threads_open_a_device_once(name: str) -> None:
    with running(name) as opened:
        found: list[object] = []
        start = threading.Barrier(2)

        def ask() -> None:
            start.wait()
            found.append(opened.session)

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found[0] is found[1]


@pytest.mark.parametrize("name", NAMES)
def test_arrays_may_outlive_their_engine(name: str) -> None:
    with running(name) as opened:
        array = opened.up(numbers(65))
        (result,) = opened.run(lambda a: a + 1, array)
    for late in (array, result):
        with pytest.raises((DeviceLost, InvalidOption)):
            opened.engine.download(late)
    del array, result, late
    gc.collect()


@pytest.mark.parametrize("name", NAMES)
def test_an_engine_can_be_used_again_after_it_was_closed(name: str) -> None:
    with running(name) as opened:
        opened.values(lambda a: a + 1, numbers(65))
        opened.engine.close()
        opened.engine.discover()
        values = numbers(65)
        (result,) = opened.values(lambda a: a + 1, values)
        np.testing.assert_array_equal(result, values + 1)
