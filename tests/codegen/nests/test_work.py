"""The instructions and bytes of nests, counted in their loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from anygpu.array.trace.tracing import record
from anygpu.engines.codegen.nests.inspection import NestWork, work_of
from anygpu.engines.codegen.nests.schedule import nests
from anygpu.engines.codegen.nests.steps import Nest
from anygpu.program.graph import Program
from anygpu.program.primitives import Spec


def recorded(function: Callable[..., Any], *arrays: Any) -> Program:
    return record(function, *[Spec(each.shape, each.dtype.name) for each in arrays])


def works(function: Callable[..., Any], *arrays: Any) -> list[NestWork]:
    steps = nests(recorded(function, *arrays), vector_bytes=64).steps
    return [work_of(step, 64) for step in steps if isinstance(step, Nest)]


def total(function: Callable[..., Any], *arrays: Any) -> float:
    return sum(work.instructions for work in works(function, *arrays))


def test_an_addition_is_a_load_an_instruction_and_a_store() -> None:
    (work,) = works(lambda x: x + 1, np.ones(16_384, np.float32))
    assert work == NestWork(instructions=2.0 * 16_384 / 16, bytes=2.0 * 4 * 16_384)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum(),
        lambda x: x.sum(axis=0),
        lambda x: x.sum(axis=1),
        lambda x: x.max(axis=1),
        lambda x: np.exp(x - x.max(axis=1, keepdims=True)),
        lambda x: x[1:] - x[:-1],
        lambda x: x.mean(axis=0) + x.std(axis=0),
        lambda x: np.cumsum(x, axis=1),
    ],
)
@pytest.mark.parametrize("columns", [5, 64, 1000])
def test_instructions_grow_with_rows(function: Callable[[Any], Any], columns: int) -> None:
    few, many = (total(function, np.ones((rows, columns), np.float32)) for rows in (400, 4000))
    assert 5 < many / few < 20


def test_elements_apart_cost_more() -> None:
    x = np.ones((512, 512), np.float32)
    assert total(lambda x: x[:, ::3] + 1, x) > total(lambda x: x[:, :171] + 1, x)


def test_rows_that_are_left_over_are_counted_once() -> None:
    """Short rows are done several at a time, and then one by one."""
    one, other = (total(lambda x: x.T + 1, np.ones((3000, rows), np.float32)) for rows in (32, 33))
    assert other / one < 1.5
