"""Products of matrices as the schedule sees them: what is fused, what is cut, and what is no product for a template."""

from __future__ import annotations

import re

import numpy as np
import pytest

from anygpu.engines.codegen.target import Target
from anygpu.program.dtypes import DType
from tests.codegen.planning import CARD, TARGETS, names, plan, spec

every_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
SIZES = (1, 2, 63, 64, 65)


@pytest.mark.sampled(gate=2)
@every_target
@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize("n", SIZES)
def test_odd_sizes_are_few_kernels(target: Target, m: int, n: int) -> None:
    for k in SIZES:
        planned = plan(lambda x, y: x @ y, spec(m, k), spec(k, n), target=target)
        assert 1 <= len(planned.kernels) <= 2, (m, k, n)


@every_target
def test_nothing_to_sum_is_zero(target: Target) -> None:
    planned = plan(lambda x, y: x @ y, spec(5, 0), spec(0, 7), target=target)
    assert len(planned.kernels) == 1
    assert len(planned.kernels[0].bindings) == 1


@pytest.mark.parametrize("shape", [((5, 1 << 18), (1 << 18, 7)), ((64, 1 << 16), (1 << 16, 64))])
def test_a_long_inner_axis_is_cut_into_parts_and_added_up(shape: tuple[tuple[int, int], tuple[int, int]]) -> None:
    planned = plan(lambda x, y: x @ y, spec(*shape[0]), spec(*shape[1]), target=CARD)
    assert len(planned.kernels) == 2
    assert planned.kernels[1].name.endswith("_sum")
    parts, result = planned.kernels[0].bindings[-1].slot, planned.outputs[0].slot
    assert planned.slots[parts].nbytes % planned.slots[result].nbytes == 0
    assert planned.slots[parts].nbytes > planned.slots[result].nbytes


def test_what_comes_after_parts_is_done_once() -> None:
    planned = plan(lambda x, y, b: np.tanh(x @ y + b), spec(5, 1 << 18), spec(1 << 18, 7), spec(7), target=CARD)
    assert len(planned.kernels) == 2
    assert "tanh(" not in planned.kernels[0].source
    assert "tanh(" in planned.kernels[1].source or "tanh_f32(" in planned.kernels[1].source
    assert 2 in {each.slot for each in planned.kernels[1].bindings}, "the bias is added to the sum of the parts"


@every_target
def test_a_matrix_and_a_vector_are_sums_of_rows(target: Target) -> None:
    planned = plan(lambda x, y: x @ y, spec(300, 400), spec(400), target=target)
    assert len(planned.kernels) == 1


@pytest.mark.parametrize("dtype", ["int8", "uint16", "float16", "bool"])
def test_products_of_narrow_numbers_are_packed_after_them(dtype: DType) -> None:
    target = TARGETS["least"]
    planned = plan(lambda x, y: np.matmul(x, y), spec(65, 63, dtype=dtype), spec(63, 65, dtype=dtype), target=target)
    assert len(planned.kernels) == 2, names(planned)
    assert planned.slots[planned.outputs[0].slot].nbytes == 65 * 65 * (2 if dtype in ("uint16", "float16") else 1)


def test_large_products_can_be_cut_along_their_groups() -> None:
    (kernel,) = plan(lambda x, y: x @ y, spec(2048, 2048), spec(2048, 2048), target=CARD).kernels
    assert "first_group" in kernel.numbers
    assert kernel.flops == 2.0 * 2048**3
    (kernel,) = plan(lambda x, y: x @ y, spec(64, 64), spec(64, 64), target=CARD).kernels
    assert "first_group" not in kernel.numbers


def test_work_is_counted() -> None:
    (kernel,) = plan(lambda x, y: x @ y, spec(65, 63), spec(63, 127), target=CARD).kernels
    assert kernel.flops == 2.0 * 65 * 63 * 127
    assert kernel.bytes_moved == 4.0 * (65 * 63 + 63 * 127 + 65 * 127)


@every_target
@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_accessors_that_are_called_are_there(target: Target, n: int) -> None:
    """Blocks of few columns have vectors that are narrower than those in which WGSL reads a buffer."""
    for kernel in plan(lambda x: x @ x.T, spec(n, 384), target=target).kernels:
        for name in set(re.findall(r"\b((?:load|store)_\w+)\(", kernel.source)):
            assert re.search(rf"\b(?!return)\w+ {name}\(", kernel.source), (name, kernel.source)
