"""What programs become: how many nests, which passes, which loops."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.engines.codegen.nests import steps
from anygpu.engines.codegen.nests.inspection import to_text
from anygpu.engines.codegen.nests.schedule import nests
from anygpu.engines.codegen.nests.steps import HostStep, Nest, NestProgram
from anygpu.engines.numpy.lowering import run
from anygpu.program.primitives import Spec
from tests.support.nest_interpreter import interpreted


def scheduled(function: Callable[..., Any], *arrays: Any) -> NestProgram:
    """The nests of a function, after they have computed what NumPy computes."""
    program = ag.record(function, *arrays)
    found = nests(program)
    for backwards in (False, True):
        got = interpreted(found, program, arrays, parts_backwards=backwards)
        for one, other in zip(run(program, arrays), got, strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-6, atol=1e-9)
    return found


def loops(found: NestProgram) -> list[str]:
    """The first words of every loop."""
    return [line.strip() for line in to_text(found).splitlines() if line.strip().startswith("for ")]


def values(*shape: int, dtype: Any = np.float64) -> Any:
    return np.random.default_rng(len(shape)).uniform(0.2, 1.5, shape).astype(dtype)


def test_a_chain_of_functions_is_one_loop_with_lanes() -> None:
    found = scheduled(lambda x, y: (np.exp(x) * y + 1, x - y), values(13, 7), values(13, 7))
    assert loops(found) == ["for i in begin … end lanes 8 × 4"]
    assert to_text(found).count("input_a[i]") == 1


def test_registers_decide_about_lanes() -> None:
    program = ag.record(lambda x: x * 2, values(1000, dtype=np.float32))
    assert [loops(nests(program, vector_bytes=size)) for size in (16, 32, 64)] == [
        [f"for i in begin … end lanes {lanes} × 4"] for lanes in (4, 8, 16)
    ]


def softmax(x: Any) -> Any:
    shares = np.exp(x - x.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)


def test_softmax_is_one_nest_whose_row_stays_in_scratch() -> None:
    found = scheduled(softmax, values(20, 300, dtype=np.float32))
    (nest,) = found.steps
    assert isinstance(nest, Nest)
    assert [each.size for each in nest.scratch] == [300]
    assert loops(found) == [
        "for row in begin … end",
        "for column in 0 … 300 lanes 16 × 4 maximum max_1",
        "for column in 0 … 300 lanes 16 × 4",
        "for column in 0 … 300 lanes 8 pairwise add sum_6",
        "for column in 0 … 300 lanes 16 × 4",
    ]
    assert to_text(found).count("exp(") == 1


def test_what_is_small_is_one_nest_of_one_row() -> None:
    found = scheduled(lambda x: (x - x.mean()) / x.std(), values(100))
    (nest,) = found.steps
    assert isinstance(nest, Nest)
    assert nest.count == 1


@pytest.mark.parametrize("length", [9, 40, 130, 1000, 100_003])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_contiguous_sums_are_numpys_bit_for_bit(length: int, dtype: Any) -> None:
    x = np.random.default_rng(length).standard_normal((3, length)).astype(dtype)
    program = ag.record(lambda x: (x.sum(), x.sum(axis=1), np.exp(x[0]).sum()), x)
    got = interpreted(nests(program), program, [x])
    for one, other in zip((x.sum(), x.sum(axis=1), np.exp(x[0]).sum()), got, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_large_sum_is_cut_into_subtrees() -> None:
    found = scheduled(lambda x: x.sum(), values(2_000_000))
    parts, top = found.steps
    assert isinstance(parts, Nest)
    assert isinstance(top, Nest)
    assert parts.parts == 16
    assert top.parts == 1


def test_a_reduction_over_rows_has_totals_of_each_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "PART", 500.0)
    found = scheduled(lambda x: (x.sum(axis=0), x.max(axis=0)), values(400, 40))
    first, combined = found.steps
    assert isinstance(first, Nest)
    assert first.parts > 1
    assert [each.size for each in first.scratch] == [40, 40]
    assert combined == found.steps[-1]


def test_short_rows_are_done_several_at_once() -> None:
    found = scheduled(lambda x: ((x - x.mean(axis=0)) ** 2).sum(axis=0), values(400, 10))
    assert "for column in 0 … 40 lanes 8 × 5" in loops(found)


def test_few_columns_that_are_not_in_order_are_written_out() -> None:
    found = scheduled(lambda x, y: ((x[:, None, :] - y[None]) ** 2).sum(axis=2).argmin(axis=1), values(50, 3), y3())
    assert loops(found) == ["for i in begin … end lanes 8 × 2"]


def y3() -> Any:
    return values(5, 3) * 2


def test_edges_are_pieces_of_a_loop() -> None:
    found = scheduled(lambda x: np.pad(x, 1)[:-2] + x, values(100))
    assert loops(found) == [
        "for i in begin … minimum(end, 1)",
        "for i in maximum(begin, 1) … end lanes 8 × 4",
    ]


def test_rows_at_an_edge_are_chosen_and_columns_are_pieces() -> None:
    found = scheduled(lambda x: x + np.roll(x, 1, 0) + np.roll(x, 1, 1), values(20, 50))
    assert loops(found) == ["for row in begin … end", "for column in 1 … 50 lanes 8 × 4"]
    assert "place = (row + -1 if (row >= 1) else row + 19)" in to_text(found)


def blurred(image: Any) -> Any:
    padded: Any = np.pad(image, 1, mode="edge")
    rows: Any = sum(weight * padded[k : k + image.shape[0], :] for k, weight in enumerate((0.2, 0.6, 0.2)))
    return sum(weight * rows[:, k : k + image.shape[1]] for k, weight in enumerate((0.2, 0.6, 0.2)))


def test_stencils_of_stencils_are_bands_in_one_nest() -> None:
    found = scheduled(lambda x: np.sqrt(blurred(np.exp(blurred(x)))), values(60, 40))
    (nest,) = found.steps
    assert isinstance(nest, Nest)
    assert nest.scratch
    assert any("begin + -" in loop for loop in loops(found))


def test_distances_turn_the_small_matrix_and_do_rows_together() -> None:
    found = scheduled(lambda x, y: ((x[:, None] - y[None]) ** 2).sum(-1), values(40, 5), values(50, 5))
    assert "input_b_turned" in to_text(found)
    assert "for row in begin … 4 * ((end) // 4) by 4" in loops(found)


def test_a_short_last_axis_is_written_out() -> None:
    found = scheduled(lambda x, s: x * s[:, None], values(100, 3), values(100))
    assert loops(found) == ["for i in begin … end lanes 8 × 4"]


def test_running_totals_are_passes_over_rows() -> None:
    found = scheduled(lambda x: np.exp(np.cumsum(x * 0.1, axis=1)).sum(axis=1), values(40, 30))
    assert len(found.steps) == 1


@pytest.mark.parametrize("shape", [(30, 40), (2, 30, 40), (20, 5, 30)])
def test_running_totals_of_columns_have_lanes(shape: tuple[int, ...]) -> None:
    found = scheduled(lambda x: np.cumsum(x * 2, axis=-2) + 1, values(*shape))
    assert any("lanes" in loop for loop in loops(found))
    assert not any(isinstance(step, HostStep) for step in found.steps)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_running_sum_keeps_the_sign_of_a_first_zero(axis: int) -> None:
    x = np.full((20, 20), -0.0)
    program = ag.record(lambda x: np.cumsum(x, axis=axis), x)
    (got,) = interpreted(nests(program), program, [x])
    assert np.signbit(got).all()


def test_what_numpy_does_better_is_a_host_step() -> None:
    found = scheduled(lambda x, y: np.tanh(np.sort(x @ y)), values(20, 30), values(30, 10))
    assert [type(step) for step in found.steps] == [HostStep, HostStep, Nest]


def test_arrays_of_too_many_elements_are_numpys() -> None:
    found = nests(ag.record(lambda x: np.sqrt(x + 1)[:5], Spec((1 << 31,), "float32")))
    assert {type(step) for step in found.steps} == {HostStep}


def test_the_magnitude_of_complex_numbers_is_tested_by_its_square() -> None:
    found = scheduled(lambda z: np.abs(z) <= 2, values(50) + 1j * values(50) * 2)
    assert "hypot" not in to_text(found)
    assert "4.000000000000001" in to_text(found)


def test_a_rest_of_halves_is_rounded_before_it_is_used() -> None:
    x, y = np.array([-0.001, -0.3, 5.25, -7.7], np.float16), np.array([3, 2.5, 2, 3], np.float16)
    program = ag.record(lambda x, y: np.remainder(x, y) - y, x, y)
    np.testing.assert_array_equal(interpreted(nests(program), program, (x, y))[0], np.remainder(x, y) - y)


def test_results_that_are_inputs_are_copied() -> None:
    x = values(5)
    program = ag.record(lambda x: (x, x.reshape(5, 1)), x)
    found = nests(program)
    assert all(found.slots[output.slot].role == "output" for output in found.outputs)


def test_values_that_are_dear_are_kept_for_a_second_pass() -> None:
    found = scheduled(lambda x: np.log(x) / np.log(x).max(axis=1, keepdims=True), values(30, 50))
    assert to_text(found).count("log(") == 1


def test_long_chains_and_many_stencils_are_scheduled() -> None:
    def chain(x: Any) -> Any:
        for _ in range(500):
            x = x * 1.01 + 0.1
        return x

    def stencils(x: Any) -> Any:
        for _ in range(30):
            x = 0.5 * x + 0.25 * (np.roll(x, 1) + np.roll(x, -1))
        return x

    assert len(scheduled(chain, values(30)).steps) == 1
    assert len(scheduled(stencils, values(30)).steps) < 30


def test_sums_of_sums_are_not_written_out_without_end() -> None:
    def products(x: Any, y: Any) -> Any:
        for _ in range(6):
            x = np.tanh(x @ y)
        return x

    found = scheduled(products, values(40, 12), values(12, 12) * 0.1)
    assert len(to_text(found).splitlines()) < 10_000


def test_wrong_indices_are_reported() -> None:
    x, places = values(10), np.array([1, 2, 12])
    program = ag.record(lambda x, i: x[i] * 2, x, places)
    found = nests(program)
    assert found.checks[0].length == 10
    with pytest.raises(IndexError):
        interpreted(found, program, [x, places])


def test_parts_do_not_depend_on_threads_and_are_long_enough() -> None:
    found = nests(ag.record(lambda x: np.exp(x), values(1_000_000)))
    (nest,) = found.steps
    assert isinstance(nest, Nest)
    assert 8 <= nest.parts <= 256
    assert nest.cost.functions == 18e6
    assert not re.search("thread", to_text(found))
