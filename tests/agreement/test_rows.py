"""Large programs that sum over their rows are judged by some of the rows, and no wrong element gets by."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from anygpu.agreement import analysis, comparison, elementwise
from anygpu.agreement.analysis import Rows, analyse, analyse_rows
from anygpu.agreement.comparison import Judgement, judge
from anygpu.agreement.elementwise import filled
from anygpu.array.trace.traced import Traced
from anygpu.array.trace.tracing import trace
from tests.support.random_programs import random_program
from tests.support.wrong_results import real_values

X = np.random.default_rng(0).normal(size=(9_000, 4))
BODIES = np.random.default_rng(1).normal(size=(120, 3))


def features(x: Any) -> Any:
    scores = (x - np.mean(x, axis=0)) / np.std(x, axis=0)
    return np.concatenate([np.clip(scores, -2, 2), np.tanh(scores)], axis=1)


def moved(x: Any) -> Any:
    """Two steps of bodies that attract each other, and their energy."""
    for _ in range(2):
        apart = x[None, :] - x[:, None]
        x = x + 0.01 * (apart / ((apart**2).sum(axis=-1) + 0.1)[..., None] ** 1.5).sum(axis=1)
    return x, (x * x).sum()


CASES = [(features, X), (moved, BODIES)]


def as_on_a_device(function: Any, x: Any) -> list[Any]:
    """What is right in every digit that can be: computed in more digits, and rounded."""
    return [each.astype(np.float64) for each in arrays(function(x.astype(np.longdouble)))]


def arrays(returned: Any) -> list[Any]:
    return [np.asarray(each) for each in (returned if isinstance(returned, tuple) else (returned,))]


def judged(function: Any, x: Any, results: list[Any]) -> Judgement:
    traced = trace(function, (x,), {})
    assert isinstance(traced, Traced)
    return judge(traced.program, [x], function(x), results, traced.rebuild)


@pytest.mark.parametrize(("function", "x"), CASES)
def test_what_is_right_agrees_without_an_analysis_of_all_elements(
    function: Any, x: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = as_on_a_device(function, x)
    assert any((one != other).any() for one, other in zip(arrays(function(x)), results, strict=True))
    monkeypatch.setattr(comparison, "analyse", None)
    assert judged(function, x, results).verdict == "agree"


@pytest.mark.parametrize(("function", "x"), CASES)
@pytest.mark.parametrize("factor", [1 + 1e-9, -1.0, np.nan])
def test_one_wrong_element_is_found_wherever_it_is(function: Any, x: Any, factor: float) -> None:
    results = as_on_a_device(function, x)
    for row in (0, 7, len(x) // 3 + 1, len(x) - 1):
        spoilt = [each.copy() for each in results]
        column = int(np.argmax(np.abs(spoilt[0][row])))
        spoilt[0][row, column] *= factor
        found = judged(function, x, spoilt)
        assert found.verdict == "differ"
        assert found.difference is not None
        assert found.difference.index == (row, column)
        assert found.difference.count == 1


@pytest.mark.parametrize(("function", "x"), CASES)
def test_a_small_error_of_many_elements_is_found(function: Any, x: Any) -> None:
    results = as_on_a_device(function, x)
    results[0][:, 1] *= 1 + 1e-9
    found = judged(function, x, results)
    assert found.difference is not None
    assert found.difference.count > len(x) // 2


def test_an_element_of_another_branch_is_found() -> None:
    (result,) = as_on_a_device(features, X)
    row, column = np.argwhere(np.abs(result[:, :4]) == 2)[11]
    result[row, column] *= 1.01
    found = judged(features, X, [result])
    assert found.difference is not None
    assert found.difference.index == (row, column)


def test_a_wrong_number_beside_right_arrays_is_found() -> None:
    results = as_on_a_device(moved, BODIES)
    results[1] = results[1] * (1 + 1e-9)
    found = judged(moved, BODIES, results)
    assert found.difference is not None
    assert found.difference.leaf == 1


@pytest.mark.parametrize("seed", range(40))
def test_bounds_by_rows_are_never_wider_than_those_of_an_analysis(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    program = random_program(random.Random(seed), dtypes=("float32", "int32", "bool"))
    inputs = [real_values(spec, np.random.default_rng(seed), spread=0.5) for spec in program.inputs]
    wide = analyse(program, inputs).bounds
    monkeypatch.setattr(analysis, "_SMALL", 1)
    monkeypatch.setattr(analysis, "_STRETCHES", 2)
    narrow = analyse_rows(program, inputs, Rows()).bounds
    for one, other, spec in zip(narrow, wide, program.results, strict=True):
        assert (filled(one, spec.shape) <= filled(other, spec.shape) * (1 + 1e-9)).all()


@pytest.mark.parametrize("seed", range(40))
def test_bounds_in_tiles_are_those_of_the_whole(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    program = random_program(random.Random(seed), dtypes=("float32", "float64", "int32", "bool"))
    inputs = [real_values(spec, np.random.default_rng(seed), spread=0.5) for spec in program.inputs]
    whole = analyse(program, inputs).bounds
    monkeypatch.setattr(elementwise, "_TILE", 3)
    for one, other, spec in zip(analyse(program, inputs).bounds, whole, program.results, strict=True):
        np.testing.assert_array_equal(filled(one, spec.shape), filled(other, spec.shape))


@pytest.mark.parametrize("shape", [(5,), (3, 1000), (1000, 3), (40, 1, 30), (7, 6, 5)])
def test_tiles_hold_every_element_once(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elementwise, "_TILE", 64)
    counted = np.zeros(shape, int)
    for place in elementwise.tiles(shape):
        assert counted[place].size <= 64
        counted[place] += 1
    assert (counted == 1).all()
