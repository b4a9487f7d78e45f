"""Nests whose positions are computed: binary searches, and updates that are put where an index says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.engines.codegen.nests import scatter
from anygpu.engines.codegen.nests.inspection import to_text
from anygpu.engines.codegen.nests.schedule import nests
from anygpu.engines.codegen.nests.steps import HostStep, Nest
from anygpu.engines.cpu.engine import executable
from anygpu.engines.numpy.lowering import run
from anygpu.program.functions import ScatterFunction
from anygpu.program.graph import Program, Recorder
from anygpu.program.primitives import Gather, Scatter, Search, Spec
from tests.codegen.nests.test_nests import scheduled
from tests.support.nest_interpreter import interpreted

rng = np.random.default_rng(0)

SPECIAL = [np.nan, -np.inf, np.inf, 0.0, -0.0, 1.0, 1.0]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 7, 8, 9, 100])
@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "uint8", "complex128"])
def test_a_search_is_written_out(side: Any, length: int, dtype: Any) -> None:
    line = np.sort(rng.integers(0, 9, length).astype(dtype))
    wanted = rng.integers(0, 10, 37).astype(dtype)
    if np.dtype(dtype).kind in "fc":
        line = np.sort(np.concatenate([line, np.array(SPECIAL, dtype)]))
        wanted = np.concatenate([wanted, np.array(SPECIAL, dtype)])
    program = program_of(Search(side), line, wanted)
    assert all(isinstance(step, Nest) for step in nests(program).steps)
    (got,) = executable(program)([line, wanted])
    assert np.array_equal(got, np.searchsorted(line, wanted, side))


def program_of(op: Any, *arrays: Any) -> Program:
    recorder = Recorder()
    given = [recorder.input(Spec(each.shape, each.dtype.name)) for each in arrays]
    return recorder.program([recorder.add(op, *given)])


def test_a_search_is_one_loop_with_what_uses_it() -> None:
    line, table = np.sort(rng.random(50)), rng.random(50)
    found = scheduled(lambda x, line, table: table[np.searchsorted(line, x * 2) - 1] * x, rng.random(60), line, table)
    assert len(found.steps) == 1
    assert [check.error for check in found.checks] == ["order", "index"]  # what else a search reads is inside


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "complex128"])
@pytest.mark.parametrize("position", [0, 1, 49, 98])
def test_a_line_that_is_not_sorted_is_refused(dtype: Any, position: int) -> None:
    line = np.arange(100).astype(dtype)
    line[position], line[position + 1] = line[position + 1], line[position]
    wanted = rng.integers(0, 100, 37).astype(dtype)
    run_it = executable(program_of(Search("left"), line, wanted))
    with pytest.raises(ag.errors.Unsupported, match="sorted"):
        run_it([line, wanted])
    assert np.array_equal(run_it([np.sort(line), wanted])[0], np.searchsorted(np.sort(line), wanted))


def test_nan_inside_of_a_line_is_not_sorted() -> None:
    line, wanted = np.array([1.0, np.nan, 2.0]), np.ones(5)
    with pytest.raises(ag.errors.Unsupported, match="sorted"):
        executable(program_of(Search("left"), line, wanted))([line, wanted])


def test_what_was_sorted_before_is_not_looked_at() -> None:
    found = scheduled(lambda x, y: np.searchsorted(np.sort(y), x), rng.random(60), rng.random(20))
    assert not found.checks


def test_a_long_line_for_few_values_is_searched_by_numpy() -> None:
    line, wanted = np.sort(rng.random(1 << 16)), rng.random(9)
    assert [type(step) for step in nests(program_of(Search("left"), line, wanted)).steps] == [HostStep]


def test_a_line_that_is_computed_is_computed_once() -> None:
    found = scheduled(lambda x, y: np.searchsorted(np.exp(y), x), rng.random(60) * 3, np.sort(rng.random(20)))
    assert to_text(found).count("exp(") == 1


@pytest.mark.parametrize("fn", ["set", "add"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "uint32"])
@pytest.mark.parametrize(
    ("op", "shape", "indices"),
    [
        (Scatter("add", 0), (9,), (40,)),
        (Scatter("add", 0), (9,), (5, 8)),
        (Scatter("add", 0), (9, 3), (12,)),
        (Scatter("add", 1), (4, 9, 3), (6, 2)),
        (Scatter("add", 1), (20, 9), (15,)),
        (Scatter("add", 1, 1), (20, 9), (20, 11)),
    ],
)
def test_updates_come_in_their_order(
    fn: ScatterFunction, dtype: Any, op: Scatter, shape: tuple[int, ...], indices: tuple[int, ...]
) -> None:
    op = Scatter(fn, op.axis, op.batch)
    x = rng.integers(0, 100, shape).astype(dtype)
    at = rng.integers(0, 9, indices)
    updates = rng.random((*shape[: op.axis], *indices[op.batch :], *shape[op.axis + 1 :])) * 100
    program = program_of(op, x, at, updates.astype(dtype))
    assert all(isinstance(step, Nest) for step in nests(program).steps)

    (expected,) = run(program, [x, at, updates.astype(dtype)])
    (got,) = executable(program)([x, at, updates.astype(dtype)])
    assert np.array_equal(got, expected)


@pytest.mark.parametrize("dtype", ["int64", "float64"])
def test_whole_numbers_are_counted_in_parts(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Floats are not: their sum depends on the order."""
    monkeypatch.setattr(scatter, "least_part", lambda weight: 40)
    given = [np.arange(9).astype(dtype), rng.integers(0, 9, 1000), rng.integers(0, 5, 1000).astype(dtype)]
    program = program_of(Scatter("add", 0), *given)
    found = nests(program)
    names = {buffer.name for step in found.steps if isinstance(step, Nest) for buffer in step.buffers}
    assert any(name.startswith("parts_") for name in names) == (dtype == "int64")
    for backwards in (False, True):
        assert np.array_equal(interpreted(found, program, given, parts_backwards=backwards)[0], run(program, given)[0])


@pytest.mark.parametrize("wrong", [-1, 9, 1 << 40])
@pytest.mark.parametrize("op", [Gather(0), Scatter("add", 0)])
def test_a_position_outside_is_an_error(op: Any, wrong: int) -> None:
    x, at = np.zeros(9), np.array([3, wrong, 5])
    given = [x, at] if isinstance(op, Gather) else [x, at, np.ones(3)]
    with pytest.raises(IndexError):
        executable(program_of(op, *given))(given)
    assert not x.any()


def test_what_is_not_as_wide_as_it_is_computed_stays_numpys() -> None:
    program = program_of(Scatter("add", 0), np.zeros(9, np.uint8), np.zeros(3, int), np.ones(3, np.uint8))
    assert [type(step) for step in nests(program).steps] == [HostStep]


def test_histograms_are_numpys() -> None:
    x = rng.standard_normal(5000)
    edges = np.array([-2.0, -0.5, 0.0, 0.1, 3.0])
    for function in (
        lambda x: np.histogram(x, 37)[0],
        lambda x: np.histogram(x, 37, (-1, 2.5))[0],
        lambda x: np.histogram(x, edges)[0],
        lambda x: np.histogram(x.astype(np.float32), 11)[0],
        lambda x: np.histogram((x * 10).astype(np.int16), 11)[0],
        lambda x: np.histogram(x, 20, weights=x)[0],
        lambda x: np.histogram2d(x, x[::-1], 12)[0],
    ):
        got = np.asarray(function(ag.asarray(x)))
        assert np.allclose(got, function(x), rtol=1e-12)


def test_the_edges_decide_where_bins_are_computed_a_little_off() -> None:
    for count in (3, 7, 10, 49, 100):
        edges = np.linspace(0.1, 0.7, count + 1)
        x = np.concatenate([edges, np.nextafter(edges, 0), np.nextafter(edges, 1)])
        got = np.asarray(np.histogram(ag.asarray(x), count, (0.1, 0.7))[0])
        assert np.array_equal(got, np.histogram(x, count, (0.1, 0.7))[0])
