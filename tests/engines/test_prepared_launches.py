"""Launches that repeat: prepared for their blocks, right for every other block, and forgotten with any of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from anygpu.array.trace.tracing import record
from anygpu.engines.compiling_session import CompiledProgram, DeviceArray
from anygpu.engines.driver import Clear, Dispatch, Extent, Move
from anygpu.engines.launches import MOST_OF_A_PROGRAM, PreparedLaunches, ProgramLaunches
from anygpu.engines.memory.resource import reclaim
from anygpu.errors import DeviceLost
from tests.engines.compiled import NAMES, Running, running


def extents(*blocks: str) -> tuple[Extent, ...]:
    return tuple(Extent(block, 0, 4) for block in blocks)


def test_what_is_kept_is_forgotten_with_the_first_of_its_blocks() -> None:
    prepared, launches = PreparedLaunches(), ProgramLaunches()
    one, two, three = extents("one", "two", "three")
    prepared.keep(launches, (1,), "commands", [Dispatch(None, (one, two)), Move(two, three), Clear(one)])
    prepared.keep(launches, (2,), "others", [Clear(three)])
    assert launches.get((1,)) == "commands"
    assert len(prepared) == 3
    prepared.forget("two")
    assert launches.get((1,)) is None
    assert launches.get((2,)) == "others"
    assert len(prepared) == 1
    prepared.clear()
    assert len(launches) == len(prepared) == 0


def test_a_run_that_was_only_noted_holds_nothing() -> None:
    prepared, launches = PreparedLaunches(), ProgramLaunches()
    prepared.note(launches, (1,))
    assert (1,) in launches
    assert launches.get((1,)) is None
    assert len(launches) == len(prepared) == 0


def test_the_oldest_go_first() -> None:
    prepared, launches = PreparedLaunches(), ProgramLaunches()
    for number in range(3 * MOST_OF_A_PROGRAM):
        prepared.keep(launches, (number,), number, [Clear(Extent(f"block {number}", 0, 4))])
    assert len(launches) == len(prepared) == MOST_OF_A_PROGRAM
    assert launches.get((3 * MOST_OF_A_PROGRAM - 1,)) is not None


# -- on devices


@pytest.fixture(params=NAMES)
def opened(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running(request.param) as found:
        yield found


def work(x: Any, y: Any) -> Any:
    """Several kernels with memory between them, and a rule that values can break."""
    return np.take(np.cumsum(x @ x, axis=0), y, axis=0).sum(axis=0) + x[0]


def compiled(opened: Running, *arrays: DeviceArray) -> CompiledProgram:
    found: CompiledProgram = opened.engine.compile(record(work, *(each.spec for each in arrays)), opened.device)
    return found


def arguments(seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.integers(-8, 8, (24, 24)).astype(np.float32), rng.integers(0, 24, 9).astype(np.int32)


def test_a_repeated_call_is_prepared_and_computes_the_same(opened: Running) -> None:
    x, y = (opened.up(each) for each in arguments(0))
    program = compiled(opened, x, y)
    for _ in range(8):
        (result,) = opened.engine.execute(program, [x, y])
        np.testing.assert_array_equal(opened.down(result), work(*arguments(0)))
        del result
    assert len(program.launches) == 1
    before = opened.counters
    opened.engine.execute(program, [x, y])
    after = opened.counters
    assert after.dispatches - before.dispatches == len(program.schedule.kernels)
    assert (after.submits - before.submits, after.allocations - before.allocations) == (1, 0)


def test_other_arguments_and_results_that_are_kept_get_their_own(opened: Running) -> None:
    """By turns, with results that stay: each call has other blocks, and none may meet what another was prepared for."""
    pairs = [tuple(opened.up(each) for each in arguments(seed)) for seed in range(3)]
    program = compiled(opened, *pairs[0])
    kept = []
    for turn in range(24):
        (result,) = opened.engine.execute(program, pairs[turn % 3])
        if turn % 5 == 0:
            kept.append((turn % 3, result))
        np.testing.assert_array_equal(opened.down(result), work(*arguments(turn % 3)))
    for seed, result in kept:
        np.testing.assert_array_equal(opened.down(result), work(*arguments(seed)))


def test_an_index_out_of_bounds_is_seen_in_every_call(opened: Running) -> None:
    x, y = arguments(0)
    array, right, wrong = opened.up(x), opened.up(y), opened.up(y + 20)
    program = compiled(opened, array, right)
    for _ in range(5):
        (result,) = opened.engine.execute(program, [array, wrong])
        with pytest.raises(IndexError, match="out of bounds"):
            opened.down(result)
        (result,) = opened.engine.execute(program, [array, right])
        np.testing.assert_array_equal(opened.down(result), work(x, y))


def test_memory_that_is_given_back_takes_what_was_prepared_along(opened: Running) -> None:
    x, y = (opened.up(each) for each in arguments(0))
    program = compiled(opened, x, y)
    for _ in range(8):
        opened.down(opened.engine.execute(program, [x, y])[0])
    session = opened.session
    assert len(session._prepared)
    del x, y
    reclaim(session.memory)
    assert len(session._prepared) == len(program.launches) == 0
    driver: Any = session.driver
    assert driver.live().blocks == len(program.constants)
    x, y = (opened.up(each) for each in arguments(1))
    (result,) = opened.engine.execute(program, [x, y])
    np.testing.assert_array_equal(opened.down(result), work(*arguments(1)))


def test_a_closed_device_says_so(opened: Running) -> None:
    x, y = (opened.up(each) for each in arguments(0))
    program = compiled(opened, x, y)
    for _ in range(8):
        opened.down(opened.engine.execute(program, [x, y])[0])
    opened.session.driver.close()
    with pytest.raises(DeviceLost):
        opened.engine.execute(program, [x, y])


def test_numbers_whose_places_were_forgotten_are_written_again() -> None:
    """WebGPU's table of numbers is filled anew when it is full: a launch must not look where others are now."""
    with running("webgpu") as opened:
        values = np.arange(64, dtype=np.float32)
        array = opened.up(values)
        (part,) = opened.run(lambda x: x[3:], array)

        def added(x: Any) -> Any:
            return x + 1

        program = opened.engine.compile(record(added, part.spec), opened.device)
        for _ in range(4):
            (result,) = opened.engine.execute(program, [part])
            np.testing.assert_array_equal(opened.down(result), values[3:] + 1)
            del result
        driver: Any = opened.session.driver
        driver._open.numbers.clear()
        driver._open.numbers.place((7, 7, 7, 7))
        for _ in range(3):
            (result,) = opened.engine.execute(program, [part])
            np.testing.assert_array_equal(opened.down(result), values[3:] + 1)
            del result
