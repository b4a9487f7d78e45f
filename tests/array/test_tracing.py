"""A function becomes a program by being called once, with arrays that have no values."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import operator
from collections.abc import Callable
from time import thread_time
from timeit import repeat
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.array.core.array import as_array
from anygpu.array.trace.traced import NotTraceable, Traced
from anygpu.array.trace.tracing import record, trace
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


def test_a_number_that_another_function_has_used_is_on_none_of_its_lines() -> None:
    """Traces share the constants of numbers."""
    others: dict[str, Any] = {}
    exec("def other(x):\n    return x * 0.7251\n", others)
    ag.record(others["other"], X)

    def own(x: Any) -> Any:
        return x * 0.7251

    lines = {line for line in ag.record(own, X).lines if line is not None}
    assert lines == {(__file__, own.__code__.co_firstlineno + 1)}


def test_asking_for_a_value_is_refused_with_the_line_and_the_way_out() -> None:
    def branches(x: Any) -> Any:
        return x if x.sum() > 0 else -x

    with pytest.raises(ag.errors.ValueNeeded, match=r"test_tracing\.py:\d+.*where\(\)"):
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


# What `offload` makes of a call


def run(traced: Traced, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    given = traced.inputs(function, arguments, keywords)
    assert given is not None, traced.changed(function, arguments, keywords)
    return traced.rebuild(lowering.run(traced.program, given), given)


def traced(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Traced:
    made = trace(function, arguments, keywords)
    assert isinstance(made, Traced), made
    return made


@dataclasses.dataclass(frozen=True)
class State:
    position: Any
    speed: Any
    time: float
    name: str = "start"


def step(state: State, forces: dict[str, Any], *, dt: float) -> tuple[State, Any]:
    speed = state.speed + dt * sum(forces.values())
    return State(state.position + dt * speed, speed, state.time + dt), (speed**2).sum() / 2


def test_nested_arguments_and_results_come_back_as_they_were() -> None:
    state = State(np.zeros(4), np.ones(4), 0.0)
    forces = {"down": np.full(4, -9.81), "up": np.arange(4.0)}
    program = traced(step, state, forces, dt=0.5)
    assert not program.by_value
    assert len(program.program.inputs) == 4 + 2  # dt, and time + dt
    for dt in (0.5, 0.25):
        state, energy = run(program, step, state, forces, dt=dt)
        expected, expected_energy = step(State(state.position, state.speed, 0.0), forces, dt=0.0)
        assert np.allclose(state.position, expected.position)
        assert type(energy) is type(expected_energy) is np.float64
        assert np.allclose(energy, expected_energy)
    assert (state.time, state.name) == (0.75, "start")
    assert type(state.time) is float


def test_results_that_are_no_arrays_are_kept() -> None:
    def function(x: Any, n: int) -> Any:
        return [x.sum(), None, {"n": n, "name": "text", "kind": x.dtype, "where": np.arange(n)}, (x.shape, 2.5)]

    program = traced(function, X, 3)
    got, again, expected = run(program, function, X, 3), run(program, function, X, 3), function(X, 3)
    assert repr(got) == repr(expected)
    got[2]["where"][:] = 7
    assert repr(again) == repr(expected) == repr(run(program, function, X, 3))


def test_arguments_may_be_returned_as_they_are_in_part_and_twice() -> None:
    def function(x: Any, y: Any) -> Any:
        z = y * 2
        return x, x[1:], x.T, z, z, y * 2

    got = run(traced(function, X, W), function, X, W)
    for one, other in zip(got, function(X, W), strict=True):
        assert np.array_equal(one, other)
    assert got[3] is got[4]
    assert not np.shares_memory(got[3], got[5])


def test_arguments_that_are_not_used_are_not_moved() -> None:
    def function(x: Any, y: Any, z: Any) -> Any:
        return z + 1

    program = traced(function, X, W, X.copy())
    given = program.inputs(function, (X, W, X + 1), {})
    assert given is not None
    assert given[0][0, 0] == X[0, 0] + 1
    assert len(program.program.inputs) == 1


def test_constants_that_the_function_makes_work_at_every_size() -> None:
    def function(x: Any) -> Any:
        grid = np.linspace(0, 1, 5000)
        return x.sum() + grid, grid * 2 + x[0, 0], x @ np.eye(5) + np.array([1, 2, 3, 4, 5]), grid + x.mean()

    program = traced(function, X)
    assert len(program.program.inputs) == 3  # x, and two different large ones
    for one, other in zip(run(program, function, X), function(X), strict=True):
        assert np.allclose(one, other)
    first = run(program, function, X)
    assert np.array_equal(first[0], run(program, function, X)[0])


def test_our_arrays_are_arguments_too() -> None:
    program = traced(score, as_array(X), as_array(W))
    assert program.program.key == traced(score, X, W).program.key
    given = program.inputs(score, (as_array(X), as_array(W)), {})
    assert given is not None
    assert np.array_equal(given[0], X)


COUNTER = itertools.count()
REFUSED: list[tuple[Callable[..., Any], str]] = [
    (lambda x, w: x if x.sum() > 0 else -x, "it branches on an array value"),
    (lambda x, w: x[x > 0], "it branches on an array value"),
    (lambda x, w: x * next(COUNTER), "cannot follow"),
    (lambda x, w: (x, next(COUNTER)), "cannot follow"),
    (lambda x, w: np.zeros(5000) + next(COUNTER) + x.sum(), "cannot follow"),
    (lambda x, w: np.add(x, 1, out=x), "writes to its argument number 1"),
    (lambda x, w: [w.fill(3), x][1], "writes to its argument number 2"),
    (lambda x, w: w.sort(), "writes to its argument number 2"),
    (lambda x, w: 3, "returns no array"),
    (lambda x, w: [x * 2, object()], "returns a object"),
    (lambda x, w: np.may_share_memory(x, w), "np.may_share_memory does not work"),
    (lambda x, w: x.ctypes, "ctypes"),
    (lambda x, w: memoryview(x), "memoryview"),
    (lambda x, w: operator.index(x), "integer"),
    (lambda x, w: x @ x, "do not fit"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_is_no_program_says_why(number: int) -> None:
    function, reason = REFUSED[number]
    given = X.copy(), W.copy()
    made = trace(function, given, {})
    assert isinstance(made, NotTraceable)
    assert reason in made.reason
    assert np.array_equal(given[0], X)
    assert np.array_equal(given[1], W)
    if "value" in reason:
        assert made.line is not None
        assert made.line.startswith(__file__)


def test_arguments_that_are_no_arrays_of_ours_are_named() -> None:
    for strange in (np.ma.masked_array(X), np.array(["text"]), np.array([object()]), X.astype(np.longdouble)):
        made = trace(lambda x, y: x * y, (X, strange), {})
        assert isinstance(made, NotTraceable)
        assert "argument number 2" in made.reason


def test_the_functions_own_errors_are_told_and_not_raised() -> None:
    class Own(Exception):
        pass

    def raises(x: Any, t: float) -> Any:
        raise Own(f"{x.shape}")

    def fails(x: Any, t: float) -> Any:
        return {"there": x}["missing"]

    first, second = trace(raises, (X, 2.0), {}), trace(fails, (X, 2.0), {})
    assert isinstance(first, NotTraceable)
    assert isinstance(first.error, Own)
    assert str(first.error) == "(7, 5)"
    assert isinstance(second, NotTraceable)
    assert isinstance(second.error, KeyError)


def test_precision_narrows_numbers_too() -> None:
    def function(x: Any, t: float) -> Any:
        return x * t

    made = trace(function, (X, 2.0), {}, precision="float32")
    assert isinstance(made, Traced)
    assert {spec.dtype for spec in made.program.specs} == {"float32"}
    given = made.inputs(function, (X, 0.1), {})
    assert given is not None
    assert given[1].dtype == np.float32
    with pytest.raises(ag.InvalidOption):
        trace(score, (X, W), {}, precision="float8")  # type: ignore[arg-type]


def test_a_call_that_is_nested_otherwise_needs_another_program() -> None:
    def function(pair: Any) -> Any:
        return pair[0] + pair[1]

    program = traced(function, [X, X.copy()])
    assert program.inputs(function, ([X, X.copy(), X],), {}) is None
    assert program.inputs(function, ((X, X.copy()),), {}) is None
    assert program.inputs(function, ([X, X],), {}) is None
    assert program.changed(function, ([X, X.copy(), X],), {}) == "its argument number 1"


def test_a_deep_loop_over_a_number_is_recorded_with_its_value() -> None:
    def function(x: Any, t: float) -> Any:
        for _ in range(300):
            x, t = x * t, t * 0.99
        return x

    program = traced(function, X, 1.0)
    assert float in program.by_value
    assert np.allclose(run(program, function, X, 1.0), function(X, 1.0))


def test_the_way_to_the_program_and_back_is_short() -> None:
    program = traced(score, X, W)
    results = lowering.run(program.program, [X, W])
    work = np.zeros(64)

    def seconds(work: Callable[[], object]) -> float:
        return min(repeat(work, timer=thread_time, number=2000, repeat=5))

    theirs = seconds(lambda: work + 1)
    assert seconds(lambda: program.inputs(score, (X, W), {})) < 10 * theirs
    assert seconds(lambda: program.rebuild(results)) < 5 * theirs


def test_recording_is_given_up_when_it_takes_too_long() -> None:
    def endless(x: Any) -> Any:
        while True:
            with contextlib.suppress(Exception):  # a function that catches everything cannot hold it up
                x = x + 1

    given_up = trace(endless, (np.ones(3),), {}, seconds=0.01)
    assert isinstance(given_up, NotTraceable)
    assert given_up.for_now
    assert "longer than 10 ms" in given_up.reason
    assert isinstance(trace(lambda x: x + 1, (np.ones(3),), {}, seconds=10.0), Traced)


def test_arrays_in_lists_and_dicts_are_inputs_too() -> None:
    program = record(lambda weights, x: x @ weights["layers"][0] + weights["bias"], _weights(), np.zeros((4, 3)))
    assert [spec.shape for spec in program.inputs] == [(3, 2), (2,), (4, 3)]


def _weights() -> dict[str, Any]:
    return {"layers": [np.zeros((3, 2))], "bias": np.zeros(2), "name": "dense"}
