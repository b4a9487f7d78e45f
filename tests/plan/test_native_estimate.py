"""Predictions of native code: by its nests, its threads, and the steps that NumPy computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from anygpu.array.trace.tracing import record
from anygpu.engines.cpu.engine import CpuEngine
from anygpu.placement.plan.calibration import Calibration, NativeSpeed, assumed
from anygpu.placement.plan.native_estimate import MOST_NODES, native_steps
from anygpu.placement.plan.predicting import predict
from anygpu.program.graph import Program
from anygpu.program.primitives import Spec

SPEED = NativeSpeed(threads=4.0, vector_bytes=32, instruction=5e-10, bytes_per_second=2e10)
CPU = msgspec.structs.replace(assumed(CpuEngine.processor()), native=SPEED)


def recorded(function: Callable[..., Any], *arrays: Any) -> Program:
    return record(function, *[Spec(each.shape, each.dtype.name) for each in arrays])


def wave(x: Any) -> Any:
    return np.sin(x) * np.exp(-x) + 1


def seconds(function: Callable[..., Any], *arrays: Any, calibration: Calibration = CPU) -> float:
    return predict(recorded(function, *arrays), calibration).seconds


def with_threads(threads: float) -> Calibration:
    return msgspec.structs.replace(CPU, native=msgspec.structs.replace(SPEED, threads=threads))


@pytest.mark.parametrize("function", [wave, np.sum, np.sort, lambda x: np.cumsum(x) + 1])
def test_more_elements_never_take_less(function: Callable[[Any], Any]) -> None:
    times = [seconds(function, np.ones(size, np.float32)) for size in (10, 1_000, 100_000, 10_000_000)]
    assert times == sorted(times)
    assert CPU.launch < times[0] < times[-1] / 10


def test_a_small_call_takes_what_calls_take() -> None:
    assert seconds(wave, np.ones(4, np.float32)) < 1.5 * CPU.launch


def test_each_instruction_counts() -> None:
    one = native_steps(recorded(lambda x: x + 1, np.ones(4096, np.float32)), 32).nests
    many = native_steps(recorded(wave, np.ones(4096, np.float32)), 32).nests
    assert len(one) == len(many) == 1
    assert many[0].bytes == one[0].bytes == 2 * 4 * 4096
    assert many[0].instructions > 10 * one[0].instructions


def test_wide_registers_need_fewer_instructions() -> None:
    program = recorded(wave, np.ones(4096, np.float32))
    narrow, wide = (native_steps(program, size).nests[0].instructions for size in (16, 64))
    assert narrow == pytest.approx(4 * wide)


def test_64_bits_take_more_instructions() -> None:
    short, long = (native_steps(recorded(wave, np.ones(4096, kind)), 32).nests[0] for kind in ("float32", "float64"))
    assert long.instructions > 2 * short.instructions


def test_threads_share_what_is_long() -> None:
    long, short = np.ones(1 << 20, np.float32), np.ones(64, np.float32)
    assert seconds(wave, long, calibration=with_threads(4.0)) < 0.4 * seconds(wave, long, calibration=with_threads(1.0))
    assert seconds(wave, short, calibration=with_threads(4.0)) == seconds(wave, short, calibration=with_threads(1.0))


def test_memory_bounds_what_computes_little() -> None:
    nbytes = 2 * 4 * (1 << 24)
    found = seconds(lambda x: x + 1, np.ones(1 << 24, np.float32), calibration=with_threads(64.0))
    assert found == pytest.approx(nbytes / SPEED.bytes_per_second, rel=0.05)


def test_steps_of_numpy_are_counted() -> None:
    def sorted_wave(x: Any) -> Any:
        return np.sort(wave(x))

    x = np.ones(1 << 16, np.float32)
    steps = native_steps(recorded(sorted_wave, x), 32)
    assert [step.op.name for step in steps.host] == ["sort"]
    assert len(steps.nests) == 1
    assert seconds(sorted_wave, x) > seconds(wave, x) + CPU.rates["sort"].seconds(x.size * 16)


def test_each_step_of_numpy_costs_python_too() -> None:
    x = np.ones((64, 64), np.float32)
    one, two, three = (
        seconds(function, x) for function in (lambda x: x @ x, lambda x: x @ x @ x, lambda x: x @ x @ x @ x)
    )
    assert three - two == pytest.approx(two - one)
    assert two - one > CPU.launch


def test_nothing_moves() -> None:
    found = predict(recorded(wave, np.ones(1 << 20, np.float32)), CPU, compiled=False)
    assert found.phases.write == found.phases.read == 0.0
    assert found.phases.compile > 0


def test_memory_is_that_of_the_nests() -> None:
    def scaled(x: Any) -> Any:
        return wave(x) / np.sort(wave(x))

    x = np.ones(1 << 16, np.float32)
    assert predict(recorded(wave, x), CPU).peak_bytes == 2 * x.nbytes
    assert predict(recorded(scaled, x), CPU).peak_bytes >= 3 * x.nbytes


def test_a_long_program_is_not_scheduled() -> None:
    def long(x: Any) -> Any:
        for _ in range(MOST_NODES):
            x = x + 1.5
        return x

    steps = native_steps(recorded(long, np.ones(4, np.float32)), 32)
    assert len(steps.nests) == MOST_NODES


def test_transforms_of_prime_lengths_take_longer() -> None:
    even, prime = (seconds(np.fft.fft, np.ones((64, size), np.complex64)) for size in (4096, 4093))
    assert prime > 2 * even
