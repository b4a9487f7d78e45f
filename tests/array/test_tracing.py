"""A function becomes a program by being called once, with arrays that have no values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.array.array import as_array
from anygpu.engines.numpy import lowering
from anygpu.program.primitives import Spec


def score(x: Any, w: Any) -> Any:
    return np.tanh(x @ w).mean(axis=0)


X, W = np.random.default_rng(0).normal(size=(7, 5)), np.random.default_rng(1).normal(size=(5, 3))


def test_a_plain_function_becomes_a_program_that_computes_the_same() -> None:
    program = ag.record(score, X, W)
    assert program.inputs == (Spec((7, 5), "float64"), Spec((5, 3), "float64"))
    (result,) = lowering.run(program, [X, W])
    assert np.allclose(result, score(X, W))


def test_the_same_function_gives_the_same_key_and_another_one_another() -> None:
    assert ag.record(score, X, W).key == ag.record(score, as_array(X), Spec((5, 3), "float64")).key
    assert ag.record(score, X, W).key != ag.record(score, X[:3], W).key
    assert ag.record(score, X, W).key != ag.record(lambda x, w: np.tanh(x @ w).max(axis=0), X, W).key


def test_inputs_that_are_not_used_are_still_inputs_and_outputs_come_in_order() -> None:
    program = ag.record(lambda x, y, z: {"first": z * 2, "rest": (z * 2, [x])}, X, W, X)
    assert len(program.inputs) == 3
    doubled, again, same = lowering.run(program, [X, W, X + 1])
    assert np.array_equal(doubled, (X + 1) * 2)
    assert np.array_equal(again, doubled)
    assert np.array_equal(same, X)


def test_other_arguments_are_passed_on() -> None:
    program = ag.record(lambda x, n, *, scale: x[:n] * scale, X, 3, scale=2.0)
    assert program.results == (Spec((3, 5), "float64"),)


def test_lines_are_the_users() -> None:
    program = ag.record(score, X, W)
    lines = {line for line in program.lines if line is not None}
    assert lines == {(__file__, score.__code__.co_firstlineno + 1)}


def test_asking_for_a_value_is_refused_with_the_line_and_the_way_out() -> None:
    def branches(x: Any) -> Any:
        return x if x.sum() > 0 else -x

    with pytest.raises(ag.ValueNeeded, match=r"test_tracing\.py:\d+.*where\(\)"):
        ag.record(branches, X)


def test_arrays_from_outside_are_refused_by_name() -> None:
    outside = as_array(W)
    with pytest.raises(ag.InvalidOption, match="Pass it as an argument"):
        ag.record(lambda x: x @ outside, X)


def test_a_function_without_a_result_is_refused() -> None:
    with pytest.raises(ag.InvalidOption, match="returns no array"):
        ag.record(lambda x: None, X)


def test_single_precision_only_on_request() -> None:
    def work(x: Any) -> Any:
        return np.sort(x * 2.5, axis=0), x.argmax(axis=0), np.cumsum(x.astype(np.int64), axis=0) + 2**40

    wide = ag.record(work, X)
    assert {spec.dtype for spec in wide.results} == {"float64", "int64"}
    narrow = ag.record(work, X, precision="float32")
    assert narrow.inputs == (Spec((7, 5), "float32"),)
    assert {spec.dtype for spec in narrow.specs} <= {"float32", "int32", "int64", "bool"}
    assert [spec.dtype for spec in narrow.results] == ["float32", "int32", "int32"]
    got = lowering.run(narrow, [X.astype(np.float32)])
    assert np.allclose(got[0], np.sort(X * 2.5, axis=0), rtol=1e-6)
    assert np.array_equal(got[1], X.argmax(axis=0))
    with pytest.raises(ag.InvalidOption):
        ag.record(work, X, precision="float8")  # type: ignore[arg-type]
