"""Predictions: never negative, adding up, growing with the work, and right about what engines fuse."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anygpu.engines.codegen.schedule import schedule
from anygpu.engines.codegen.target import Target
from anygpu.placement.plan.calibration import Calibration
from anygpu.placement.plan.predicting import predict, structure_of
from anygpu.program.graph import Program, program_cost
from anygpu.program.primitives import Constant, Input, Linear, Primitive, Reshape
from tests.plan.sampling import ALL, GPU, NUMPY, OPENCL, calibrations, recorded
from tests.support.program_strategies import programs
from tests.support.random_programs import WEIGHTS

WITH_LINEAR: dict[type[Primitive], float] = {**WEIGHTS, Linear: 3.0}


def chain(count: int) -> Callable[[Any], Any]:
    def run(x: Any) -> Any:
        for number in range(count):
            x = x * x if number % 2 else x + 1
        return x

    return run


def softmax(x: Any) -> Any:
    exponentials = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return exponentials / np.sum(exponentials, axis=-1, keepdims=True)


def normalised(x: Any) -> Any:
    centred = x - np.mean(x, axis=-1, keepdims=True)
    return centred / np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + 1e-5)


@settings(deadline=None, max_examples=100)
@given(programs(primitives=WITH_LINEAR), calibrations(), st.booleans(), st.booleans(), st.floats(0.0, 2.0))
def test_phases_add_up_and_are_never_negative(
    program: Program, calibration: Calibration, keep: bool, compiled: bool, resident: float
) -> None:
    resident_bytes = int(sum(spec.nbytes for spec in program.inputs) * resident)
    found = predict(program, calibration, resident_bytes=resident_bytes, keep=keep, compiled=compiled)
    phases = msgspec.structs.asdict(found.phases)
    assert all(seconds >= 0 for seconds in phases.values())
    assert found.seconds == found.phases.total == pytest.approx(sum(phases.values()))
    assert found.phases.run >= calibration.launch
    assert found.peak_bytes >= sum(spec.nbytes for spec in program.inputs)
    if keep:
        assert found.phases.read == 0
    if resident >= 1:
        assert found.phases.write == 0
    if compiled:
        assert found.phases.compile == 0


@settings(deadline=None, max_examples=60)
@given(
    calibrations(),
    st.sampled_from([chain(1), chain(8), softmax, normalised, np.cumsum, np.sort, np.tanh, lambda x: x @ x.T]),
    st.integers(1, 10),
    st.integers(1, 10),
)
def test_more_elements_never_take_less_time(
    calibration: Calibration, function: Callable[[Any], Any], one: int, other: int
) -> None:
    less, more = (
        predict(recorded(function, ((64 << rows, 16), "float32")), calibration) for rows in sorted((one, other))
    )
    # What a function takes inside of a kernel is a difference of two measurements, and may shrink a little.
    assert less.phases.run <= more.phases.run * (1 + 1e-9) or calibration.fuses
    assert less.phases.write <= more.phases.write
    assert less.phases.read <= more.phases.read
    assert less.peak_bytes <= more.peak_bytes


@pytest.mark.parametrize("calibration", ALL, ids=lambda each: each.device)
def test_with_assumed_speeds_time_grows_with_the_work(calibration: Calibration) -> None:
    for function in (chain(1), chain(8), softmax, normalised, np.sort, np.tanh):
        times = [predict(recorded(function, ((64 << rows, 16), "float32")), calibration).seconds for rows in range(12)]
        assert times == sorted(times)


@settings(deadline=None, max_examples=100)
@given(programs(primitives=WITH_LINEAR), st.booleans())
def test_kernels_cover_the_program(program: Program, fuses: bool) -> None:
    """Every value that is needed is made by exactly one kernel, after what it reads."""
    structure = structure_of(program, fuses=fuses)
    seen: set[int] = set(range(program.input_count))
    for kernel in structure.kernels:
        assert seen.isdisjoint(kernel.nodes)
        for value in kernel.reads:
            assert value in seen or not program.nodes[value].inputs, "it reads what nobody has made yet"
        seen.update(kernel.nodes)
        assert set(kernel.stored) <= set(kernel.nodes) | set(program.outputs)
        seen.update(kernel.stored)
    if fuses:
        assert all(output in seen or _needs_no_kernel(program, output) for output in program.outputs)
    single = structure_of(program, fuses=False)
    assert len(structure.kernels) <= len(single.kernels) + len(program.outputs)


def _needs_no_kernel(program: Program, output: int) -> bool:
    """Whether it has no elements, or is there already, as a constant or as a reshape of an input."""
    while isinstance(program.nodes[output].op, Reshape):
        output = program.nodes[output].inputs[0]
    return not program.specs[output].size or isinstance(program.nodes[output].op, Constant | Input)


@settings(deadline=None, max_examples=100)
@given(programs(primitives=WITH_LINEAR))
def test_without_fusion_memory_is_at_least_what_the_costs_say(program: Program) -> None:
    # Single numbers are written into kernels and need no memory.
    numbers = sum(16 for node in program.nodes if isinstance(node.op, Constant))
    assert structure_of(program, fuses=False).peak_bytes >= program_cost(program).peak_bytes - numbers


#: The numbers of kernels that the engines which compile make of these.
COUNTS: list[tuple[int, Callable[..., Any], tuple[tuple[tuple[int, ...], str], ...]]] = [
    (1, chain(16), (((1000,), "float32"),)),
    (1, softmax, (((1000, 64), "float32"),)),
    (1, normalised, (((1000, 64), "float32"),)),
    (1, lambda x, w: np.tanh(x @ w + 1), (((64, 64), "float32"), ((64, 64), "float32"))),
    (2, lambda x, w: np.tanh(x @ w) @ w, (((64, 64), "float32"), ((64, 64), "float32"))),
    (1, lambda x: (x[:-2] + x[1:-1] + x[2:]) / 3, (((1000,), "float32"),)),
    (2, lambda x: np.sort(np.cumsum(x)), (((1000,), "float32"),)),
    (1, lambda x: np.sqrt(np.sum((x[:, None] - x[None]) ** 2, axis=-1)), (((100, 8), "float32"),)),
    (1, lambda x: x.T, (((100, 8), "float32"),)),
    (2, lambda x: np.abs(np.fft.rfft(x)), (((100, 64), "float32"),)),
    (5, lambda x: (x - x.mean(axis=0)) / x.std(axis=0), (((15_000, 40), "float64"),)),
    (2, lambda x: (x > 0.5).any(axis=1)[:, None, :] | (x > 0.5).any(axis=2)[:, :, None], (((2000, 9, 9), "float32"),)),
]


def stencil(field: Any) -> Any:
    """A few steps, each of which needs the neighbours that the one before has made."""
    for _ in range(10):
        padded = np.pad(field, 1, mode="edge")
        around = padded[2:, 1:-1] + padded[:-2, 1:-1] + padded[1:-1, 2:] + padded[1:-1, :-2]
        field = field + 0.15 * (around - 4 * field)
    return field


def test_what_neighbours_need_is_stored() -> None:
    """Ten steps are no single kernel: each has to be complete before the next one begins."""
    program = recorded(stencil, ((400, 400), "float32"))
    kernels = len(structure_of(program, fuses=True).kernels)
    actual = len(schedule(program, Target(dialect="wgsl")).steps)
    assert actual / 2 <= kernels <= actual


@pytest.mark.parametrize(("count", "function", "specs"), COUNTS)
def test_how_many_kernels_a_fusing_engine_makes(
    count: int, function: Callable[..., Any], specs: tuple[tuple[tuple[int, ...], str], ...]
) -> None:
    program = recorded(function, *specs)
    assert len(structure_of(program, fuses=True).kernels) == count
    target = Target(dialect="opencl", features=("f64", "i64"), bindings=64)
    assert len(schedule(program, target).steps) == count


def test_fusing_saves_the_traffic_of_a_chain() -> None:
    one, many = (recorded(chain(count), ((10**7,), "float32")) for count in (1, 16))
    alone = predict(many, NUMPY).phases.run / predict(one, NUMPY).phases.run
    fused = predict(many, OPENCL).phases.run / predict(one, OPENCL).phases.run
    assert alone > 10
    assert fused < 3


def test_a_view_as_a_result_takes_a_kernel_only_where_it_is_written() -> None:
    program = recorded(lambda x: x.T, ((1000, 1000), "float32"))
    assert structure_of(program, fuses=False).kernels == ()
    assert predict(program, GPU).phases.run > GPU.launch


def test_wide_types_take_longer() -> None:
    for calibration in ALL:
        narrow, wide = (
            predict(recorded(np.tanh, ((10**9,), dtype)), calibration).phases.run for dtype in ("float32", "float64")
        )
        assert wide > narrow * 1.5


def test_a_measured_function_counts_more_than_an_estimate() -> None:
    program = recorded(lambda x: np.tanh(np.tanh(np.tanh(x))), ((10**6,), "float32"))
    slow = msgspec.structs.replace(OPENCL, function=1e-6)
    assert predict(program, slow).phases.run > 2.9


def test_predicting_again_is_quick() -> None:
    """What a program consists of is found out once; that is nearly all of the work."""
    first: list[float] = []
    again: list[float] = []
    for count in (100, 101, 102):
        program = recorded(chain(count), ((1000,), "float32"))
        for seconds in (first, *[again] * 10):
            begin = time.thread_time()
            predict(program, NUMPY)
            seconds.append(time.thread_time() - begin)
    assert min(again) < min(first) / 4
