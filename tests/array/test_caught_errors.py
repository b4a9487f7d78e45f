"""A function that catches what recording raised in NumPy's place is not traced: the words would not be NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.array.trace.traced import NotTraceable, Traced
from anygpu.array.trace.tracing import trace

X = np.arange(12, dtype=np.float32)

#: What NumPy raises an error for, by a name.
FAILING: dict[str, Callable[[Any], Any]] = {
    "a reshape": lambda x: x.reshape(5, 5),
    "a function": lambda x: np.reshape(x, (5, 5)),
    "an axis": lambda x: np.sum(x, axis=3),
    "a method's axis": lambda x: x.sum(axis=3),
    "operands": lambda x: x + np.ones(5, np.float32),
    "operands of a ufunc": lambda x: np.hypot(x, np.ones(5, np.float32)),
    "a comparison": lambda x: x < np.ones(5, np.float32),
    "an operand from the left": lambda x: np.ones(5, np.float32) + x,
    "a position": lambda x: x[99],
    "too many positions": lambda x: x[0, 0],
    "a number": lambda x: float(x),
    "a matrix product": lambda x: x @ np.ones(5, np.float32),
    "a type": lambda x: ~x,
    "a split": lambda x: np.split(x, 5),
    "a stack": lambda x: np.stack([x, x[:3]]),
    "no axes": lambda x: len(x.sum()),
    "an iteration": lambda x: list(x.sum()),
}


def text_of(fail: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        try:
            fail(x)
        except (ValueError, TypeError, IndexError) as error:
            return x * 2, f"{type(error).__name__}: {error}"
        return x * 2, ""

    return function


@pytest.mark.parametrize("what", FAILING)
def test_the_words_of_a_caught_error_are_numpys(what: str) -> None:
    function = text_of(FAILING[what])
    expected = function(X)
    assert expected[1]
    traced = trace(function, (X,), {})
    if isinstance(traced, NotTraceable):
        assert "whose words only NumPy knows" in traced.reason
        return
    given = traced.inputs(function, (X,), {})
    assert given is not None
    assert traced.rebuild([X * 2], given)[1] == expected[1]


def test_what_is_written_into_an_array_of_another_shape() -> None:
    def function(x: Any) -> Any:
        y = x * 2
        try:
            y[:4] = x[:3]
        except ValueError as error:
            return y, str(error)
        return y, ""

    assert isinstance(trace(function, (X,), {}), NotTraceable)


def test_an_operation_in_place_that_does_not_fit() -> None:
    def function(x: Any) -> Any:
        y = x.astype(np.int32)
        try:
            y += 0.5
        except TypeError as error:
            return y, str(error)
        return y, ""

    assert isinstance(trace(function, (X,), {}), NotTraceable)


def test_an_error_of_the_users_own_that_is_caught_is_traced() -> None:
    def function(x: Any) -> Any:
        try:
            raise KeyError("mine")
        except KeyError as error:
            return x * 2, str(error)

    assert isinstance(trace(function, (X,), {}), Traced)


def test_asking_for_attributes_is_traced() -> None:
    def function(x: Any) -> Any:
        return x * (2 if hasattr(x, "loc") else 3), np.iterable(x), np.iterable(x.sum()), getattr(x, "columns", None)

    traced = trace(function, (X,), {})
    assert isinstance(traced, Traced)


def test_an_error_made_of_a_caught_one_has_numpys_words() -> None:
    def function(x: Any) -> Any:
        try:
            return x.reshape(5, 5)
        except ValueError as error:
            raise RuntimeError(f"no square: {error}") from error

    with pytest.raises(RuntimeError) as theirs:
        function(X)
    with pytest.raises(RuntimeError) as ours:
        ag.run(function, X, on="torch", fallback="allow")
    assert str(ours.value) == str(theirs.value)
