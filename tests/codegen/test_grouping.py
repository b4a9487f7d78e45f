"""Which values come out of one kernel, and which are stored at all."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from anygpu.engines.codegen.kernel import Kernel, Schedule
from anygpu.engines.codegen.target import Target
from anygpu.program.dtypes import DType
from anygpu.program.primitives import Spec
from tests.codegen.planning import (
    CARD,
    LEAST,
    PROCESSOR,
    TARGETS,
    dense,
    gelu,
    layer_norm,
    names,
    plan,
    roles,
    sigmoid_chain,
    softmax,
    spec,
    with_limits,
)

every_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)


def normalised(x: Any) -> Any:
    return (x - x.mean(axis=-1, keepdims=True)) / x.std(axis=-1, keepdims=True)


ONE_KERNEL: dict[str, tuple[Callable[..., Any], tuple[Spec, ...]]] = {
    "a chain": (sigmoid_chain, (spec(100_003),)),
    "a chain of several inputs": (lambda x, y, z: np.where(x > y, x * z, y - z), (spec(65),) * 3),
    "several results of a chain": (lambda x: (x + 1, (x + 1) * 2), (spec(257),)),
    "softmax": (softmax, (spec(100, 1000),)),
    "softmax of short rows": (softmax, (spec(1023, 7),)),
    "softmax of columns": (lambda x: softmax(x.T).T, (spec(300, 65),)),
    "layer norm": (layer_norm, (spec(100, 1000), spec(1000), spec(1000))),
    "normalised": (normalised, (spec(100, 1025),)),
    "a product with bias and gelu": (dense, (spec(64, 128), spec(128, 96), spec(96))),
    "a product of what is computed": (lambda x, w: (x * 2 + 1) @ w, (spec(64, 128), spec(128, 96))),
    "a product of a transposed one": (lambda x, w: x.T @ w, (spec(128, 64), spec(128, 96))),
    "a batch of products": (lambda x, w: x @ w, (spec(5, 64, 65), spec(5, 65, 63))),
    "a short sum": (lambda x: x.sum(), (spec(100),)),
    "a sum of products": (lambda x, y: (x * y).sum(axis=1), (spec(300, 400), spec(300, 400))),
    "a sum and what is made of it": (lambda x: np.sqrt((x * x).sum(axis=1)) + 1, (spec(300, 400),)),
    "broadcasting": (lambda x, y: x[:, None] * y[None, :], (spec(63), spec(65))),
    "moving about": (lambda x: np.flip(np.pad(x.T[1:, ::2], 1), 0), (spec(40, 50),)),
    "windows": (lambda x: np.lib.stride_tricks.sliding_window_view(x, 3).sum(axis=-1), (spec(1000),)),
    "a gather with what is computed": (lambda x, i: np.exp(x)[i] * 2, (spec(70), spec(9, dtype="int32"))),
}


@every_target
@pytest.mark.parametrize("name", ONE_KERNEL)
def test_one_kernel(name: str, target: Target) -> None:
    function, inputs = ONE_KERNEL[name]
    planned = plan(function, *inputs, target=target)
    assert len(planned.kernels) == 1, names(planned)
    assert "temporary" not in roles(planned)


@every_target
def test_the_mean_of_everything_has_two_stages(target: Target) -> None:
    planned = plan(lambda x: x.mean(), spec(2000, 3000), target=target)
    assert len(planned.kernels) == 2
    assert roles(planned) == ["input", "output", "temporary"]
    first, second = planned.kernels
    assert first.groups * first.group_size > second.groups * second.group_size
    # What is done with the total is in the second.
    assert "/" in second.source


@pytest.mark.parametrize("dtype", ["uint8", "bool", "float16", "int16"])
def test_results_that_share_words_are_written_by_maps(dtype: DType) -> None:
    chain = plan(lambda x: np.flip(x, 0), spec(1001, dtype=dtype))
    assert len(chain.kernels) == 1
    planned = plan(lambda x: np.sort(x, axis=0), spec(101, dtype=dtype))
    last = planned.kernels[-1]
    assert planned.outputs[0].slot in {each.slot for each in last.bindings if each.access != "read"}
    # The sorted numbers are in words of their own until they are packed.
    assert any(slot.role == "temporary" and slot.nbytes == 404 for slot in planned.slots)


def read_by(planned: Schedule, slot: int) -> list[Kernel]:
    return [k for k in planned.kernels if any(b.slot == slot and b.access == "read" for b in k.bindings)]


@every_target
def test_what_is_dear_is_computed_once_for_two_kernels(target: Target) -> None:
    planned = plan(lambda x: (np.cumsum(np.sin(x), axis=0), np.sort(np.sin(x), axis=1)), spec(64, 128), target=target)
    (temporary,) = [
        number for number, slot in enumerate(planned.slots) if slot.role == "temporary" and read_by(planned, number)
    ]
    assert planned.slots[temporary].nbytes == 4 * 64 * 128
    assert len(read_by(planned, temporary)) >= 2
    assert sum("sin" in kernel.name for kernel in planned.kernels) == 1


@every_target
def test_what_is_cheap_is_computed_again(target: Target) -> None:
    planned = plan(lambda x: (np.cumsum(x + 1, axis=0), np.sort(x + 1, axis=1)), spec(64, 128), target=target)
    assert len(read_by(planned, 0)) == 2
    assert not any(kernel.name.startswith("add") for kernel in planned.kernels)


def test_a_dear_value_asked_for_at_many_positions_is_stored() -> None:
    planned = plan(lambda x: np.lib.stride_tricks.sliding_window_view(np.tanh(np.exp(x)), 100).max(axis=-1), spec(5000))
    assert len(planned.kernels) == 2


REPEATED: dict[str, tuple[Callable[..., Any], tuple[Spec, ...]]] = {
    "the gradient of a regression": (
        lambda x, w, y: x.T @ (1 / (1 + np.exp(-(x @ w))) - y),
        (spec(5000, 32), spec(32), spec(5000)),
    ),
    "the same of two classes": (
        lambda x, w, y: x.T @ (1 / (1 + np.exp(-(x @ w))) - y),
        (spec(5000, 32), spec(32, 2), spec(5000, 2)),
    ),
    "a chain of products": (lambda x, w, v: (x @ w) @ v, (spec(5000, 16), spec(16, 4), spec(4, 24))),
    "a product of short means": (lambda x, v: x.mean(axis=2) @ v, (spec(500, 64, 3), spec(64, 20))),
    "attention": (lambda q, k, v: softmax(q @ k.T) @ v, (spec(300, 16), spec(200, 16), spec(200, 16))),
    "attention to few": (lambda q, k, v: softmax(q @ k.T) @ v, (spec(300, 8), spec(4, 8), spec(4, 16))),
}


@every_target
@pytest.mark.parametrize("name", REPEATED)
def test_what_takes_a_loop_is_stored_before_a_product_asks_for_it_again(name: str, target: Target) -> None:
    function, inputs = REPEATED[name]
    planned = plan(function, *inputs, target=target)
    last = [kernel for kernel in planned.kernels if planned.outputs[0].slot in {b.slot for b in kernel.bindings}][-1]
    # One loop over k, and no sum on the way to what is multiplied.
    assert not any(
        "for (" in function for function in re.split(r"\n(?=fn |static )", last.source) if " load_" in function[:60]
    )
    assert len(planned.kernels) >= 2
    assert "temporary" in roles(planned)
    if name.startswith("the "):
        # The residuals, once; then the sums over them.
        assert names(planned)[0].startswith("subtract")


@every_target
def test_what_a_product_with_a_vector_repeats_is_not_computed_again(target: Target) -> None:
    planned = plan(lambda x, y: x @ np.exp(y), spec(30, 500), spec(500), target=target)
    assert names(planned)[0].startswith("exp")
    # One row asks only once.
    assert not any(
        name.startswith("exp") for name in names(plan(lambda x, y: x @ np.exp(y), spec(500), spec(500), target=target))
    )


def test_columns_of_a_matrix_are_summed_beside_each_other() -> None:
    """Also where they were called rows, and where the matrix is on the right."""
    for function in (lambda x, y: x.T @ y, lambda x, y: y @ x):
        first = plan(function, spec(4096, 64), spec(4096), target=PROCESSOR).kernels[0]
        assert "float4" in first.source
        assert "* 64" in first.source


def test_a_result_that_others_use_is_stored_once_and_read() -> None:
    planned = plan(lambda x: (np.exp(x), np.exp(x).sum(axis=0)), spec(100, 3000))
    assert len([slot for slot in planned.slots if slot.role == "output"]) == 2


def test_a_sum_along_rows_and_one_along_columns_are_two_kernels() -> None:
    assert len(plan(lambda x: (x.sum(axis=0), x.sum(axis=1)), spec(300, 300), target=CARD).kernels) >= 2


def test_what_waits_for_another_kernel_does_not_join_the_one_before_it() -> None:
    # The division needs the sorted values, which need the softmax: it cannot be in the kernel of the softmax.
    planned = plan(lambda x: softmax(x) / (np.sort(softmax(x), axis=1) + 1), spec(65, 257))
    order = names(planned)
    assert order[0].startswith(("divide", "sum"))
    assert len(order) >= 3


@pytest.mark.parametrize("bindings", [8, 10, 32])
def test_values_that_stay_inside_of_a_kernel_need_no_binding(bindings: int) -> None:
    planned = plan(layer_norm, spec(100, 1000), spec(1000), spec(1000), target=with_limits(LEAST, bindings=bindings))
    assert len(planned.kernels) == 1
    assert len(planned.kernels[0].bindings) == 4


@every_target
def test_the_end_of_a_product_may_have_more_inputs(target: Target) -> None:
    planned = plan(
        lambda x, w, b, r: gelu(x @ w + b) + r, spec(65, 128), spec(128, 96), spec(96), spec(65, 96), target=target
    )
    assert len(planned.kernels) == 1


def test_a_product_with_an_end_that_mixes_its_elements_is_two_kernels() -> None:
    assert len(plan(lambda x, w: (x @ w).T + 1, spec(65, 128), spec(128, 96)).kernels) == 2
    assert len(plan(lambda x, w: softmax(x @ w), spec(65, 128), spec(128, 96)).kernels) == 2


def test_the_index_of_single_elements_that_many_ask_for_is_stored() -> None:
    def columns(table: Any, wanted: Any) -> Any:
        return np.take(table, wanted, axis=1)

    planned = plan(columns, spec(4096, 1000), spec(500, dtype="int32"), target=PROCESSOR)
    assert len(planned.kernels) == 2
