"""Large results are judged by a few pieces and by what stands out, and no wrong element gets by."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anygpu.agreement import comparison
from anygpu.agreement.analysis import Pieces
from anygpu.agreement.comparison import judge
from anygpu.array.trace.traced import Traced
from anygpu.array.trace.tracing import trace

X = np.random.default_rng(0).normal(size=2_000_000).astype(np.float32)


def chain(x: Any) -> Any:
    return np.sqrt(np.abs(np.sin(x) * 2 + np.cos(x) * 3)) + np.tanh(x) * np.exp(-x * x)


def counted(x: Any) -> Any:
    return np.exp(x) * np.arange(1, 2_000_001, dtype=np.float32)


def traced_of(function: Any) -> Traced:
    traced = trace(function, (X,), {})
    assert isinstance(traced, Traced)
    return traced


def inputs_of(traced: Traced, function: Any) -> list[Any]:
    given = traced.inputs(function, (X,), {})
    assert given is not None
    return [np.asarray(each) for each in given]


def nearly(function: Any) -> Any:
    """What a device might give: computed in float64, and rounded."""
    result: Any = function(X.astype(np.float64)).astype(np.float32)
    return result


@pytest.mark.parametrize("function", [chain, counted])
def test_what_is_right_agrees_without_an_analysis_of_it_all(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    traced = traced_of(function)
    monkeypatch.setattr(comparison, "analyse", None)
    found = judge(traced.program, inputs_of(traced, function), function(X), [nearly(function)], traced.rebuild)
    assert found.verdict == "agree"
    assert 0 < found.usual[0] <= 64 * np.finfo(np.float32).eps


@pytest.mark.sampled(gate=8)
@pytest.mark.parametrize("function", [chain, counted])
@pytest.mark.parametrize("factor", [1.001, -1.0, 0.0, np.nan])
def test_one_wrong_element_anywhere_is_found(function: Any, factor: float) -> None:
    traced = traced_of(function)
    expected = function(X)
    for index in (0, 70_001, 1_000_003, 1_999_999):
        got = nearly(function)
        assert abs(got[index]) > 0.01
        got[index] *= np.float32(factor)
        found = judge(traced.program, inputs_of(traced, function), expected, [got], traced.rebuild)
        assert found.verdict == "differ"
        assert found.difference is not None
        assert found.difference.index == (index,)


@pytest.mark.full
def test_many_wrong_elements_are_found() -> None:
    traced = traced_of(chain)
    got = nearly(chain)
    got[100_000:110_000] *= np.float32(1.0001)
    found = judge(traced.program, [X], chain(X), [got], traced.rebuild)
    assert found.verdict == "differ"


@pytest.mark.parametrize("function", [chain, counted])
@pytest.mark.parametrize("positions", [range(2_000, 2_003), np.array([3, 5, 1_999_999])])
def test_any_positions_can_be_analysed(function: Any, positions: Any) -> None:
    traced = traced_of(function)
    pieces = Pieces.of(traced.program, inputs_of(traced, function))
    assert pieces is not None
    found = pieces.analyse(positions)
    assert found is not None
    np.testing.assert_array_equal(found.values[0], function(X)[list(positions)])


def test_a_small_program_is_analysed_as_a_whole() -> None:
    small = trace(chain, (X[:10],), {})
    assert isinstance(small, Traced)
    assert Pieces.of(small.program, [X[:10]]) is None
