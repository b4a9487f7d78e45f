"""In-place changes behave as NumPy's do, or raise an error that says what to write: never a different answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from anygpu.array.core.array import Array, as_array

BASE = np.arange(24.0).reshape(4, 6)

VIEWS: dict[str, Callable[[Any], Any]] = {
    "slice": lambda x: x[1:3],
    "strided": lambda x: x[::2, ::-3],
    "row": lambda x: x[2],
    "transpose": lambda x: x.T,
    "reshape": lambda x: x.reshape(6, 4),
    "ravel": lambda x: x.ravel(),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "new axis": lambda x: x[:, None],
    "squeeze": lambda x: x[:1].squeeze(),
    "view of a view": lambda x: x[1:][::2].T[1:4],
    "flip": lambda x: np.flip(x, 1),
    "moveaxis": lambda x: np.moveaxis(x, 0, 1),
    "expand_dims": lambda x: np.expand_dims(x, 0),
    "reshape of a contiguous slice": lambda x: x[1:3].reshape(-1),
}


@pytest.mark.parametrize("name", VIEWS)
def test_writing_through_a_view_changes_its_base(name: str) -> None:
    ours, theirs = as_array(BASE), BASE.copy()
    view, expected = VIEWS[name](ours), VIEWS[name](theirs)
    view += 100
    expected += 100
    assert np.array_equal(np.asarray(ours), theirs)
    assert np.array_equal(np.asarray(view), expected)


@pytest.mark.parametrize("name", VIEWS)
def test_writing_to_the_base_is_seen_in_the_view(name: str) -> None:
    ours, theirs = as_array(BASE), BASE.copy()
    view, expected = VIEWS[name](ours), VIEWS[name](theirs)
    np.asarray(view)  # computed before the change, so that nothing but the change can refresh it
    ours *= 2
    theirs *= 2
    assert np.array_equal(np.asarray(view), expected)


def test_views_of_one_base_see_each_other() -> None:
    ours, theirs = as_array(BASE), BASE.copy()
    for x in (ours, theirs):
        top, left = x[:2], x[:, :2]
        top[...] = -1
        left[...] = 5
        assert float(top[0, 0]) == 5
    assert np.array_equal(np.asarray(ours), theirs)


def test_a_copy_is_its_own() -> None:
    x = as_array(BASE)
    for y in (x.copy(), x + 0, x[[0, 1, 2, 3]], np.copy(x), x.flatten(), +x, x.astype(np.float64)):
        y += 1
    assert np.array_equal(np.asarray(x), BASE)


def test_two_names_are_one_array() -> None:
    x = as_array(BASE)
    y = x
    y += 1
    assert np.array_equal(np.asarray(x), BASE + 1)


def test_a_value_taken_before_a_write_keeps_its_value() -> None:
    x = as_array(BASE)
    doubled = x * 2
    x += 1
    assert np.array_equal(np.asarray(doubled), BASE * 2)


def test_a_broadcast_cannot_be_written_to() -> None:
    wide = np.broadcast_to(as_array(np.arange(3.0)), (2, 3))
    with pytest.raises(ValueError, match="cannot be written to"):
        wide += 1


def test_a_reshape_that_numpy_might_have_copied_is_refused_when_written_to() -> None:
    x = as_array(BASE)
    transposed = x.T + 0  # NumPy keeps the transposed order in memory, so the reshape below is a copy there
    flat = transposed.reshape(-1)
    with pytest.raises(ValueError, match=r"copy\(\)"):
        flat += 1
    with pytest.raises(ValueError, match=r"x = x \+ 1"):
        transposed += 1
    del flat
    transposed += 1
    assert np.array_equal(np.asarray(transposed), BASE.T + 1)


def test_a_result_that_does_not_fit_is_refused_as_numpy_refuses_it() -> None:
    x = as_array(np.arange(3))
    with pytest.raises(TypeError, match="x = x"):
        x += 0.5
    with pytest.raises(ValueError, match="does not fit"):
        x += np.zeros((2, 3), int)


def test_numpy_arrays_and_arrays_share_nothing() -> None:
    values = BASE.copy()
    x = as_array(values)
    values[:] = 0
    assert np.array_equal(np.asarray(x), BASE)
    shown = np.asarray(x)
    with pytest.raises(ValueError, match="read-only"):
        shown[0, 0] = 1
    own = x.numpy()
    own[:] = 7
    assert np.array_equal(np.asarray(x), BASE)


def test_a_reshape_that_numpy_surely_copies_is_a_copy() -> None:
    ours, theirs = as_array(BASE), BASE.copy()
    for x in (ours, theirs):
        flat = x.T.reshape(-1)
        flat += 1
        x += 10
        assert float(flat[0]) == 1
    assert np.array_equal(np.asarray(ours), theirs)


def test_a_part_of_a_doubtful_reshape_is_doubtful_too() -> None:
    x = as_array(BASE).T + 0
    part = x.reshape(-1)[1:]
    with pytest.raises(ValueError, match="cannot be changed in place"):
        x += 1
    assert part.shape == (23,)


class Twins(RuleBasedStateMachine):
    """The same steps on NumPy's arrays and on ours; all views that live must agree after each."""

    def __init__(self) -> None:
        super().__init__()
        values = np.arange(16.0).reshape(4, 4)
        self.pairs: list[tuple[Array, Any]] = [(as_array(values), values.copy())]

    @rule(which=st.integers(0, 50), how=st.sampled_from(["half", "back", "turn", "row", "column"]))
    def look(self, which: int, how: str) -> None:
        ours, theirs = self.pairs[which % len(self.pairs)]
        if theirs.ndim != 2 or len(self.pairs) > 6:
            return
        ways: dict[str, Callable[[Any], Any]] = {
            "half": lambda x: x[: max(1, x.shape[0] // 2)],
            "back": lambda x: x[::-1],
            "turn": lambda x: x.T,
            "row": lambda x: x[0][None, :],
            "column": lambda x: x[:, -1:],
        }
        self.pairs.append((ways[how](ours), ways[how](theirs)))

    @rule(which=st.integers(0, 50), number=st.integers(-3, 3))
    def add(self, which: int, number: int) -> None:
        ours, theirs = self.pairs[which % len(self.pairs)]
        ours += number
        theirs += number

    @rule(which=st.integers(0, 50), number=st.integers(-3, 3))
    def set_corner(self, which: int, number: int) -> None:
        for x in self.pairs[which % len(self.pairs)]:
            x[0, -1] = number

    @rule(one=st.integers(0, 50), other=st.integers(0, 50))
    def assign(self, one: int, other: int) -> None:
        target, source = self.pairs[one % len(self.pairs)], self.pairs[other % len(self.pairs)]
        if target[1].shape == source[1].shape:
            for x, y in zip(target, source, strict=True):
                x[...] = y * 2 - 1

    @rule(which=st.integers(0, 50))
    def compute(self, which: int) -> None:
        self.pairs[which % len(self.pairs)][0].compute()

    @invariant()
    def agree(self) -> None:
        for ours, theirs in self.pairs:
            assert np.array_equal(np.asarray(ours), theirs)


TestTwins = Twins.TestCase
TestTwins.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
