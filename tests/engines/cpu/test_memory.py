"""Memory of large results: the arrays own it, it is used again, and it does not stay for ever."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from anygpu.base.typing import HostArray
from anygpu.engines.cpu.pool import LARGE_BYTES
from anygpu.engines.cpu.runtime import native_runtime
from anygpu.program.primitives import Spec
from tests.engines.cpu import hand_written

pytestmark = pytest.mark.skipif(native_runtime().memory is None, reason="recycled memory is for Linux")

SIZE = LARGE_BYTES // 4


def new_array(spec: Spec) -> HostArray:
    return native_runtime().run(np.empty, spec.shape, spec.dtype)


def test_a_result_owns_its_memory_which_is_used_again() -> None:
    memory = native_runtime().memory
    assert memory is not None
    executable = hand_written.added((SIZE,))
    memory.trim()
    x = np.arange(float(SIZE))
    (first,) = executable([x, x])
    assert first.flags.owndata
    assert first.base is None
    assert first.ctypes.data % 64 == 0
    address = first.ctypes.data
    del first
    assert memory.idle_bytes >= SIZE * 8
    (second,) = executable([x, np.ones(SIZE)])
    assert second.ctypes.data == address
    assert np.array_equal(second, x + 1)
    (third,) = executable([x[::-1], x])
    assert np.array_equal(second, x + 1), "what is in use is not used again"
    assert np.array_equal(third, np.full(SIZE, SIZE - 1.0))


def test_results_can_be_resized_and_outlive_the_program() -> None:
    executable = hand_written.added((SIZE,))
    (result,) = executable([np.ones(SIZE), np.ones(SIZE)])
    del executable
    result.resize(2 * SIZE, refcheck=False)
    assert (result[:SIZE] == 2).all()
    assert not result[SIZE:].any()
    result.resize(10, refcheck=False)
    assert (result == 2).all()


def test_short_arrays_of_the_handler() -> None:
    made = native_runtime().run(lambda: [np.arange(size, dtype=np.uint8) for size in (0, 1, 63, 1000, 100_000)])
    for array in made:
        expected = array.copy()
        array.resize(array.size + 500_000, refcheck=False)
        array.resize(3_000_000, refcheck=False)
        array.resize(expected.size, refcheck=False)
        assert np.array_equal(array, expected)


def test_small_results_come_from_numpy() -> None:
    memory = native_runtime().memory
    assert memory is not None
    memory.trim()
    hand_written.added((100,))([np.ones(100), np.ones(100)])
    assert memory.idle_bytes == 0


def test_what_waits_is_bounded() -> None:
    runtime = native_runtime()
    memory = runtime.memory
    assert memory is not None
    most = memory._state.most_bytes
    try:
        memory._state.most_bytes = 40 << 20
        for turn in range(200):
            arrays = [new_array(Spec(((1 << 20) + 70_000 * k * (turn % 7),), "uint8")) for k in range(20)]
            for array in arrays:
                array[:: 1 << 16] = turn
            del arrays, array
            assert 0 <= memory.idle_bytes <= 40 << 20
            assert 0 <= memory._state.blocks <= 16
        huge = new_array(Spec((60 << 20,), "uint8"))
        del huge
        assert memory.idle_bytes <= 40 << 20
    finally:
        memory._state.most_bytes = most
        memory.trim()
    assert memory.idle_bytes == 0
    assert memory._state.blocks == 0


def test_threads_take_and_give() -> None:
    wrong = []

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        held = []
        for turn in range(300):
            array = new_array(Spec((int(rng.integers(1 << 17, 1 << 18)),), "int64"))
            array[:: 1 << 12] = number * 1000 + turn
            held.append((array, number * 1000 + turn))
            if len(held) > 5:
                old, value = held.pop(0)
                if not (old[:: 1 << 12] == value).all():
                    wrong.append(value)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_nobody_needs_goes_back_to_the_system() -> None:
    """By itself: the keeper looks every two seconds. Waits for the event, however long it takes."""
    runtime = native_runtime()
    memory = runtime.memory
    assert memory is not None
    array = new_array(Spec((4 << 20,), "uint8"))
    del array
    assert memory.idle_bytes > 0
    waiting = threading.Event()
    while memory.idle_bytes:
        waiting.wait(0.05)
