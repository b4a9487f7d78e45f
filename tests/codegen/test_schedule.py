"""Whole schedules without a device: buffers, views, limits of targets, and programs that are deep, wide or many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anygpu.array.trace.tracing import record
from anygpu.engines.codegen.kernel import Schedule
from anygpu.engines.codegen.schedule import schedule
from anygpu.engines.codegen.target import Target
from anygpu.engines.driver import why_not
from anygpu.program.dtypes import DType
from anygpu.program.graph import Program, Recorder
from anygpu.program.primitives import Binary, Cast, Flip, Permute, Primitive, Reshape, Spec, Unary
from anygpu.testing.cases import ConformanceProgram
from tests.codegen.loops import most_rounds
from tests.codegen.planning import (
    CARD,
    LEAST,
    PROCESSOR,
    TARGETS,
    check_schedule,
    layer_norm,
    plan,
    roles,
    softmax,
    spec,
    with_limits,
)
from tests.support.program_strategies import programs

every_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)


# -- views cost nothing


@every_target
def test_views_of_an_input_are_no_kernel_and_share_its_memory(target: Target) -> None:
    planned = plan(lambda x: (x.reshape(50, 20), x[3:5], x.reshape(-1)[7:], x), spec(10, 100), target=target)
    assert not planned.steps
    assert [(each.slot, each.offset) for each in planned.outputs] == [(0, 0), (0, 1200), (0, 28), (0, 0)]


@pytest.mark.parametrize(
    ("dtype", "nbytes"), [("uint8", 1), ("bool", 1), ("float16", 2), ("float64", 8), ("complex64", 8)]
)
def test_offsets_are_in_bytes_of_the_type(dtype: DType, nbytes: int) -> None:
    planned = plan(lambda x: x[1:4][1:], spec(5, 3, dtype=dtype), target=CARD)
    assert [(each.slot, each.offset) for each in planned.outputs] == [(0, 6 * nbytes)]
    assert planned.outputs[0].spec == Spec((2, 3), dtype)


@pytest.mark.parametrize(
    "view", [lambda x: x[:, 3:5], lambda x: x[::2], lambda x: x.T, lambda x: np.flip(x, 0), lambda x: x[:2, 1:]]
)
def test_elements_that_do_not_lie_in_a_row_are_copied_by_one_kernel(view: Any) -> None:
    planned = plan(view, spec(10, 100))
    assert len(planned.kernels) == 1
    assert planned.slots[planned.outputs[0].slot].role == "output"


def test_every_second_row_of_one_is_still_a_view() -> None:
    assert not plan(lambda x: x[7:8:2, 10:20], spec(10, 100)).steps


def test_a_reshaped_result_is_the_result() -> None:
    planned = plan(lambda x: ((x + 1).reshape(4, 3), (x + 1).reshape(-1), x + 1), spec(3, 4))
    assert len(planned.kernels) == 1
    assert len({each.slot for each in planned.outputs}) == 1


def test_a_part_of_a_result_is_not_kept_with_the_whole_of_it() -> None:
    # Else a small slice would hold on to a large block that nobody asked for.
    planned = plan(lambda x: np.cumsum(x)[-1:], spec(1000))
    assert planned.slots[planned.outputs[0].slot].nbytes == 4


def test_nothing_takes_no_kernel() -> None:
    planned = plan(lambda x: (x + 1, np.sort(x, axis=0), x.T), spec(0, 3))
    assert not planned.kernels
    planned = plan(lambda x: x.sum(axis=0), spec(0, 3))
    assert len(planned.kernels) == 1


def test_constants_are_slots_only_when_they_are_no_single_number() -> None:
    sheet = ConformanceProgram("constants", np.ones(5, np.float32))
    sheet.expect_of(Binary("add"), sheet.given[0], sheet.constant(np.array([1, 2, 4, 8, 16], np.float32)))
    assert roles(schedule(sheet.program, LEAST)) == ["constant", "input", "output"]
    assert roles(plan(lambda x: x * 2 + 1, spec(5))) == ["input", "output"]


# -- what values can break


def test_only_indices_that_may_be_outside_are_checked() -> None:
    index = spec(9, dtype="int32")
    planned = plan(lambda x, i: x[i], spec(5), index)
    assert [(check.error, check.length) for check in planned.checks] == [("index", 5)]
    assert planned.status is not None
    assert planned.slots[planned.status].nbytes == 4
    safe = plan(lambda x, i: x[i], spec(5), index, in_range=lambda node: True)
    assert not safe.checks
    assert safe.status is None


def test_two_rules_have_two_words() -> None:
    index = spec(9, dtype="int32")
    planned = plan(lambda x, i, n: (x[i], n**n), spec(5), index, index)
    assert [check.error for check in planned.checks] == ["index", "negative_power"]
    assert planned.status is not None
    assert planned.slots[planned.status].nbytes == 8


def test_a_constant_exponent_is_not_checked() -> None:
    assert not plan(lambda n: n**3, spec(9, dtype="int32")).checks


# -- limits


@pytest.mark.parametrize(
    ("dtype", "missing"),
    [
        ("float64", "64-bit floating"),
        ("int64", "64-bit integers"),
        ("uint64", "64-bit integers"),
        ("complex128", "64-bit"),
    ],
)
def test_types_that_a_target_lacks_are_named(dtype: DType, missing: str) -> None:
    recorder = Recorder()
    x = recorder.input(Spec((3,), dtype))
    program = recorder.program(
        [recorder.add(Unary("negative"), x) if dtype != "uint64" else recorder.add(Flip((0,)), x)]
    )
    lacks = why_not(program, LEAST, "webgpu:0")
    assert [lack.node for lack in lacks] == [1]
    assert missing in lacks[0].reason
    assert "webgpu:0" in lacks[0].reason
    assert not why_not(program, CARD, "webgpu:0")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "uint16", "bool", "complex64"])
def test_narrow_types_need_no_feature(dtype: DType) -> None:
    recorder = Recorder()
    program = recorder.program([recorder.add(Cast("float32"), recorder.input(Spec((3,), dtype)))])
    assert not why_not(program, LEAST, "webgpu:0")
    assert "enable f16" not in schedule(program, LEAST).kernels[0].source


def test_more_elements_than_a_kernel_can_count_are_lacking() -> None:
    most = (1 << 31) - 1
    for size, count in ((most, 0), (most + 1, 1)):
        program = record(lambda x: x + x, spec(size, dtype="int8"))
        assert len(why_not(program, PROCESSOR, "opencl:0")) == count
    virtual = record(lambda x, y: (x[:, None] * y[None, :]).sum(axis=1), spec(1 << 16), spec(1 << 16))
    assert why_not(virtual, LEAST, "webgpu:0")


def test_f16_is_used_where_it_is() -> None:
    planned = plan(lambda x: x + x, spec(7, dtype="float16"), target=CARD)
    assert "enable f16;" in planned.kernels[0].source
    assert planned.kernels[0].bindings[0].slot == 0


@pytest.mark.sampled(gate=2)
@every_target
def test_programs_with_more_inputs_than_a_kernel_takes(target: Target) -> None:
    def total(*arrays: Any) -> Any:
        result = arrays[0]
        for each in arrays[1:]:
            result = np.where(each > 0, result + each, result * 2)
        return result

    functions = (total, lambda *all: np.concatenate(all), lambda *all: np.stack(all), lambda *all: sum(all[1:], all[0]))
    types: tuple[DType, ...] = ("float32", "uint8", "float16")
    for function in functions:
        for dtype in types:
            inputs = [spec(33, dtype=dtype)] * 35
            check_schedule(record(function, *inputs), plan(function, *inputs, target=target), target)


@every_target
def test_a_target_of_few_bindings_gets_more_kernels(target: Target) -> None:
    few = with_limits(target, bindings=6)
    inputs = [spec(64, 64)] * 9
    functions: tuple[Callable[..., Any], ...] = (
        lambda *all: np.sort(sum(all[1:], all[0]), axis=1),
        lambda *all: sum(all[1:-1], all[0]) @ all[-1],
        lambda *all: all[0] @ all[1] + sum(all[3:], all[2]),
        lambda *all: sum(all[1:], all[0]).sum(axis=1),
        lambda *all: tuple(each.sum(axis=1) for each in all),
        lambda *all: tuple((each + all[0]).sum(axis=1) for each in all),
    )
    for function in functions:
        check_schedule(record(function, *inputs), plan(function, *inputs, target=few), few)


def test_groups_past_the_limit_are_folded() -> None:
    (kernel,) = plan(lambda x: np.flip(x, 0), spec(65536 * 256, 5)).kernels
    assert kernel.groups > 65535
    assert "i32(group_id.y) * 65535" in kernel.source
    assert f"if (group >= {kernel.groups}) {{ return; }}" in kernel.source
    for size, target in ((65535, LEAST), (65536 * 256 * 5, PROCESSOR)):
        (kernel,) = plan(lambda x: np.flip(x, 0), spec(size), target=target).kernels
        assert "group_id.y" not in kernel.source
        assert "* 65535" not in kernel.source


# -- windows

SMALL_WINDOWS = with_limits(CARD, binding_bytes=1024, bindings=20)


@pytest.mark.parametrize("dtype", ["float32", "uint8", "bool", "float16", "int16", "complex64", "float64"])
@pytest.mark.parametrize("size", [255, 256, 257, 1000, 1025])
def test_buffers_past_the_binding_limit_are_shown_in_windows(dtype: DType, size: int) -> None:
    inputs = [spec(size, dtype=dtype)]
    program = record(lambda x: np.flip(x, 0), *inputs)
    planned = schedule(program, SMALL_WINDOWS)
    check_schedule(program, planned, SMALL_WINDOWS)
    (kernel,) = planned.kernels
    nbytes = inputs[0].nbytes
    for slot in (0, planned.outputs[0].slot):
        shown = [each.window for each in kernel.bindings if each.slot == slot]
        if nbytes <= 1024:
            assert shown == [None]
        else:
            assert [window[0] for window in shown if window] == list(range(0, nbytes, 1024))
            assert sum(window[1] for window in shown if window) == nbytes


def test_a_window_is_a_power_of_two_whatever_the_limit() -> None:
    planned = plan(lambda x: x + 1, spec(1000), target=with_limits(CARD, binding_bytes=1500))
    windows = [each.window for each in planned.kernels[0].bindings if each.slot == 0]
    assert windows == [(0, 1024), (1024, 1024), (2048, 1024), (3072, 928)]


# -- loops


BIG: dict[str, tuple[Any, tuple[Spec, ...]]] = {
    "sum": (lambda x: x.sum(), (spec(1 << 27),)),
    "columns": (lambda x: x.sum(axis=0), (spec(1 << 23, 3),)),
    "rows": (lambda x: x.sum(axis=1), (spec(3, 1 << 23),)),
    "outer and inner": (lambda x: x.sum(axis=(0, 2)), (spec(1 << 10, 7, 1 << 13),)),
    "largest": (lambda x: np.argmax(x, axis=0).astype(np.int32), (spec(1 << 22, 5),)),
    "running": (lambda x: np.cumsum(x, axis=0), (spec(1 << 22, 5),)),
    "running along": (lambda x: np.cumsum(x), (spec(1 << 24),)),
    "product": (lambda x, y: x @ y, (spec(5, 1 << 20), spec(1 << 20, 7))),
    "square product": (lambda x, y: x @ y, (spec(4096, 4096), spec(4096, 4096))),
    "matrix and vector": (lambda x, y: x @ y, (spec(3, 1 << 22), spec(1 << 22))),
    "vector and matrix": (lambda x, y: x @ y, (spec(1 << 22), spec(1 << 22, 3))),
    "inner product": (lambda x, y: x @ y, (spec(1 << 24), spec(1 << 24))),
    "softmax": (softmax, (spec(3, 1 << 20),)),
    "softmax of columns": (lambda x: softmax(x.T), (spec(1 << 17, 9),)),
    "variance": (lambda x: x.var(), (spec(1 << 24),)),
    "any": (lambda x: (x > 0).any(axis=0), (spec(1 << 21, 4),)),
    "bytes": (lambda x: x.prod(axis=1, dtype=np.int8), (spec(9, 1 << 21, dtype="int8"),)),
    "complex": (lambda x: x.sum(axis=0), (spec(1 << 20, 4, dtype="complex64"),)),
    "layer norm": (layer_norm, (spec(5, 1 << 20), spec(1 << 20), spec(1 << 20))),
    "found": (lambda x, y: np.searchsorted(x, y).astype(np.int32), (spec(1 << 24), spec(1 << 20))),
}


@pytest.mark.parametrize("name", BIG)
def test_no_invocation_goes_round_too_often(name: str) -> None:
    function, inputs = BIG[name]
    program = record(function, *inputs)
    planned = schedule(program, CARD)
    check_schedule(program, planned, CARD)
    for kernel in planned.kernels:
        assert most_rounds(kernel.source) < CARD.loop_limit, kernel.name


def test_the_count_of_rounds_counts() -> None:
    nested = """
fn help(x: i32) -> i32 {
    for (var k = 0; k < 10; k += 1) {
    }
}
fn main() {
    for (var i = 0; i < 100; i += 10) {
        for (var j = lane; j < 64; j += 32) {
            y = help(j);
        }
    }
    let stop = min(group * 7 + 7, 100);
    for (var k = group * 7; k < stop; k++) {
    }
}
"""
    assert most_rounds(nested) == 10 + 10 * 2 + 10 * 2 * 10 + 7


# -- deep


def _deep(count: int, *ops: Primitive, shape: tuple[int, ...] = (4, 6)) -> Program:
    recorder = Recorder()
    first = value = recorder.input(Spec(shape, "float32"))
    for number in range(count):
        op = ops[number % len(ops)]
        value = recorder.add(op, value, first) if isinstance(op, Binary) else recorder.add(op, value)
    return recorder.program([value])


@pytest.mark.sampled(gate=9)
@every_target
@pytest.mark.parametrize("ops", [(Unary("sin"), Binary("add")), (Flip((0,)),), (Flip((0,)), Unary("negative"))])
def test_a_program_may_be_very_deep(target: Target, ops: tuple[Primitive, ...]) -> None:
    program = _deep(5000, *ops)
    planned = schedule(program, target)
    check_schedule(program, planned, target)
    # A kernel of thousands of functions would take a compiler minutes.
    assert 5000 / 200 < len(planned.kernels) < 5000 / 100
    assert max(kernel.source.count("\n") for kernel in planned.kernels) < 1000


@pytest.mark.sampled(gate=3)
@every_target
def test_moving_about_and_reshaping_in_turns_keeps_positions_short(target: Target) -> None:
    program = _deep(100, Reshape((6, 4)), Permute((1, 0)), Flip((0,)), Unary("negative"))
    planned = schedule(program, target)
    check_schedule(program, planned, target)
    assert max(len(kernel.source) for kernel in planned.kernels) < 30_000


# -- any program


def _fits(program: Program, target: Target) -> Schedule | None:
    if why_not(program, target, "device"):
        return None
    planned = schedule(program, target)
    check_schedule(program, planned, target)
    return planned


@settings(max_examples=40)
@given(programs(), st.sampled_from(sorted(TARGETS)))
def test_any_program_has_a_schedule(program: Program, name: str) -> None:
    target = TARGETS[name]
    planned = _fits(program, target)
    if planned is not None and target.dialect == "wgsl":
        for kernel in planned.kernels:
            if not kernel.name.endswith("_merge"):
                assert most_rounds(kernel.source) < target.loop_limit, kernel.name


@settings(max_examples=20)
@given(programs(), st.integers(6, 9), st.sampled_from(sorted(TARGETS)))
def test_any_program_fits_into_few_bindings(program: Program, bindings: int, name: str) -> None:
    _fits(program, with_limits(TARGETS[name], bindings=bindings))


@settings(max_examples=15)
@given(programs())
def test_schedules_do_not_depend_on_chance(program: Program) -> None:
    if not why_not(program, CARD, "device"):
        assert schedule(program, CARD) == schedule(program, CARD)


@every_target
def test_seven_dimensions_broadcast_in_one_kernel(target: Target) -> None:
    one, other = spec(2, 1, 3, 1, 2, 1, 5), spec(1, 4, 1, 2, 1, 3, 1)
    planned = plan(lambda x, y: x * y + y, one, other, target=target)
    assert len(planned.kernels) == 1
    assert planned.outputs[0].spec.shape == (2, 4, 3, 2, 2, 3, 5)
