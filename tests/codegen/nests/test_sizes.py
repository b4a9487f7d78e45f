"""How much code programs become: values that are repeated are stored, and there is an end to everything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.engines.codegen.dialects.llvm import loops
from anygpu.engines.codegen.dialects.llvm.loops import module_text
from anygpu.engines.codegen.dialects.llvm.values import NativeTarget
from anygpu.engines.codegen.nests import steps
from anygpu.engines.codegen.nests.plan import planned
from anygpu.engines.codegen.nests.schedule import nests
from anygpu.engines.codegen.nests.steps import NestTooLarge, Written
from anygpu.engines.numpy.lowering import run
from anygpu.program.graph import Program
from tests.support.nest_interpreter import interpreted

draw = np.random.default_rng(0)


def singles(boards: Any, digits: Any, rounds: int) -> Any:
    """Squares of a sudoku that have one candidate left."""
    for _ in range(rounds):
        there = boards[..., None] == digits
        in_row = there.any(axis=2)[:, :, None, :]
        in_column = there.any(axis=1)[:, None, :, :]
        blocks = there.reshape(-1, 3, 3, 3, 3, 9).any(axis=(2, 4))
        in_block = np.repeat(np.repeat(blocks, 3, axis=1), 3, axis=2)
        possible = ~(in_row | in_column | in_block)
        single = (boards == 0) & (possible.sum(axis=-1) == 1)
        boards = np.where(single, np.argmax(possible, axis=-1) + 1, boards)
    return boards


def gathered(x: Any, places: Any, rounds: int) -> Any:
    for _ in range(rounds):
        x = x[places] * 0.5 + x
    return x


def short_sums(x: Any, rounds: int) -> Any:
    for _ in range(rounds):
        x = x - 0.01 * (x * x).sum(axis=1, keepdims=True) + 0.01 * x.sum(axis=2, keepdims=True)
    return x


def products(x: Any, rounds: int) -> Any:
    y = x
    for _ in range(rounds):
        y = np.tanh(y @ x) + np.swapaxes(y, 1, 2)
    return y


def in_place(x: Any, rounds: int) -> Any:
    x = x.copy()
    for _ in range(rounds):
        x[1:-1] = 0.25 * x[:-2] + 0.5 * x[1:-1] + 0.25 * x[2:]
        x[:, 1:-1] = 0.25 * x[:, :-2] + 0.5 * x[:, 1:-1] + 0.25 * x[:, 2:]
    return x


LOOPS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "short reductions": (singles, (draw.integers(0, 10, (4, 9, 9)), np.arange(1, 10))),
    "gathers": (gathered, (draw.random(40), draw.permutation(40))),
    "short sums": (short_sums, (draw.random((4, 9, 9)),)),
    "short products": (products, (draw.random((20, 3, 3)),)),
    "updates": (in_place, (draw.random((20, 24)),)),
}


def recorded(name: str, rounds: int) -> tuple[Program, tuple[Any, ...]]:
    function, arrays = LOOPS[name]
    return ag.record(lambda *given: function(*given, rounds), *arrays), arrays


def values_of(program: Program) -> int:
    """Values that are looked at while the program is planned."""
    written = Written(len(program.nodes))
    planned(program, program.outputs, written)
    return written.values


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("rounds", [5, 20, 80])
def test_a_program_is_planned_in_proportion_to_its_length(name: str, rounds: int) -> None:
    program, _ = recorded(name, rounds)
    assert values_of(program) < 200 * len(program.nodes)


@pytest.mark.parametrize("name", LOOPS)
def test_what_is_stored_between_rounds_is_what_numpy_computes(name: str) -> None:
    program, arrays = recorded(name, 8)
    (got,) = interpreted(nests(program), program, arrays)
    np.testing.assert_allclose(got, run(program, arrays)[0], rtol=1e-9)


def test_what_many_places_need_is_stored_once_for_each_round() -> None:
    program, _ = recorded("short reductions", 3)
    found = planned(program, program.outputs, Written(len(program.nodes)))
    names = [program.nodes[node].op.name for node in sorted(found.stored) if program.nodes[node].inputs]
    assert names == ["any", "any", "any", "select"] * 3


def test_the_whole_of_an_updated_array_is_stored() -> None:
    program, _ = recorded("updates", 6)
    found = planned(program, program.outputs, Written(len(program.nodes)))
    names = {program.nodes[node].op.name for node in found.stored if program.nodes[node].inputs}
    assert names == {"update"}


def test_a_program_of_too_many_values_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    program, _ = recorded("short sums", 3)
    monkeypatch.setattr(steps, "FEWEST_VALUES", 100)
    monkeypatch.setattr(steps, "VALUES_OF_NODE", 2)
    with pytest.raises(NestTooLarge, match="more than 100 values"):
        nests(program)


def test_a_module_of_too_many_lines_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    program, _ = recorded("short sums", 3)
    monkeypatch.setattr(loops, "MOST_LINES", 50)
    target = NativeTarget("x86_64-unknown-linux-gnu", "", frozenset(), 32)
    with pytest.raises(NestTooLarge, match="more than 50 instructions"):
        module_text(nests(program), target)
