"""Positions: whatever the algebra makes of them, they mean the same under every assignment of their variables."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anygpu.engines.codegen.index import (
    ZERO,
    Index,
    IndexVariable,
    Quotient,
    Remainder,
    clamped,
    constant,
    flat,
    reshaped,
    strides,
    unflat,
    variable,
)
from tests.codegen.evaluating import evaluate_index

LENGTHS = (1, 2, 3, 4, 5, 6, 8, 12)
NUMBERS = (1, 2, 3, 4, 6, 8, 12, 24)
NAMES = "ijkl"


def assignments(lengths: Sequence[int]) -> list[dict[str, int]]:
    """All of them, or a spread where they are many."""
    every = [dict(zip(NAMES, each, strict=False)) for each in itertools.product(*map(range, lengths))]
    return every[:: max(1, len(every) // 60)] + every[-1:]


def check(form: Index, expected: Callable[[Mapping[str, int]], int], lengths: Sequence[int]) -> None:
    for known in assignments(lengths):
        value = expected(known)
        assert evaluate_index(form, known) == value, (form, known)
        assert form.low <= value <= form.high, (form, known)


class Step(NamedTuple):
    """One thing that is done to a position, with a number or two."""

    kind: str
    number: int
    other: int = 0

    def of_form(self, form: Index, variables: Sequence[Index]) -> Index:
        match self.kind:
            case "add":
                return form + variables[self.other] * self.number
            case "divide":
                return form // self.number
            case "remain":
                return form % self.number
            case "flip":
                return constant(self.number) - form
            case "clamp":
                return clamped(form - self.other, self.number)
        return form * self.number + variables[self.other]

    def of_value(self, value: int, known: Mapping[str, int]) -> int:
        match self.kind:
            case "add":
                return value + self.number * known[NAMES[self.other]]
            case "divide":
                return value // self.number
            case "remain":
                return value % self.number
            case "flip":
                return self.number - value
            case "clamp":
                return min(max(value - self.other, 0), self.number - 1)
        return value * self.number + known[NAMES[self.other]]


class Built(NamedTuple):
    """A form, and how it came to be."""

    form: Index
    start: int
    steps: tuple[Step, ...]
    lengths: tuple[int, ...]

    def meaning(self, known: Mapping[str, int]) -> int:
        value = self.start
        for step in self.steps:
            value = step.of_value(value, known)
        return value


@st.composite
def built_forms(draw: st.DrawFn) -> Built:
    """Positions as views make them: sums, flips, quotients, remainders and clamps, on top of each other."""
    lengths = tuple(draw(st.lists(st.sampled_from(LENGTHS), min_size=1, max_size=3)))
    variables = [variable(NAMES[k], length) for k, length in enumerate(lengths)]
    start = draw(st.sampled_from((0, 0, 1, 5)))
    steps = [Step("add", draw(st.sampled_from(NUMBERS)), k) for k in range(len(lengths))]
    form = constant(start)
    for step in steps:
        form = step.of_form(form, variables)
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(("divide", "divide", "remain", "remain", "flip", "clamp", "mix")))
        number = draw(st.sampled_from(NUMBERS))
        match kind:
            case "flip":
                # The last position first: no value becomes negative.
                step = Step(kind, form.high)
            case "clamp":
                # What was padded in front is before the beginning, and moved into the array.
                step = Step(kind, number, draw(st.sampled_from((0, 1, 5))))
            case "mix":
                step = Step(kind, number, draw(st.integers(0, len(lengths) - 1)))
            case _:
                step = Step(kind, number)
        form = step.of_form(form, variables)
        steps.append(step)
    return Built(form, start, tuple(steps), lengths)


@settings(max_examples=300, deadline=None)
@given(built_forms())
def test_forms_mean_what_they_were_built_to_mean(built: Built) -> None:
    """Evaluating refuses to divide what is negative, where devices and Python differ."""
    check(built.form, built.meaning, built.lengths)


@settings(max_examples=100, deadline=None)
@given(built_forms(), built_forms(), st.sampled_from((-3, -1, 0, 1, 2)))
def test_sums_and_differences(x: Built, y: Built, number: int) -> None:
    lengths = [min(pair) for pair in itertools.zip_longest(x.lengths, y.lengths, fillvalue=99)]
    check(x.form + y.form * number - 7, lambda known: x.meaning(known) + number * y.meaning(known) - 7, lengths)
    assert x.form + y.form == y.form + x.form
    assert hash(x.form + y.form) == hash(y.form + x.form)
    assert x.form - x.form == ZERO


@settings(max_examples=100, deadline=None)
@given(built_forms(), st.sampled_from(NUMBERS))
def test_quotient_and_remainder_are_the_position_again(built: Built, by: int) -> None:
    check((built.form // by) * by + built.form % by, built.meaning, built.lengths)


@settings(max_examples=100, deadline=None)
@given(built_forms())
def test_steps_are_the_distances_between_neighbours(built: Built) -> None:
    for name, length in zip(NAMES, built.lengths, strict=False):
        step = built.form.steps_with(name)
        if not built.form.depends_on(name):
            assert step == 0
        if step is None:
            continue
        for known in assignments(built.lengths):
            if known[name] + 1 < length:
                further = {**known, name: known[name] + 1}
                assert built.meaning(further) - built.meaning(known) == step


def shapes(total: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Factorings of a size, with axes of length 1 among them."""

    def extended(rest: int) -> st.SearchStrategy[tuple[int, ...]]:
        if rest == 1:
            return st.lists(st.just(1), max_size=1).map(tuple)
        divisors = [each for each in range(1, rest + 1) if rest % each == 0]
        return st.sampled_from(divisors).flatmap(lambda first: extended(rest // first).map(lambda more: (first, *more)))

    return extended(total)


@st.composite
def chains(draw: st.DrawFn) -> tuple[int, list[tuple[str, tuple[int, ...]]]]:
    total = draw(st.sampled_from((1, 2, 6, 12, 24, 30, 36, 64, 120)))
    steps = [("reshape", draw(shapes(total))) for _ in range(draw(st.integers(1, 4)))]
    return total, [
        step
        for each in steps
        for step in (
            each,
            ("permute", tuple(draw(st.permutations(range(len(each[1])))))),
            ("flip", tuple(axis for axis in range(len(each[1])) if draw(st.booleans()))),
        )
    ]


@settings(max_examples=150, deadline=None)
@given(chains())
def test_views_read_what_numpy_reads(chain: tuple[int, list[tuple[str, tuple[int, ...]]]]) -> None:
    """An element of an array reshaped, transposed and flipped, found by position in the original."""
    total, steps = chain
    values: npt.NDArray[Any] = np.arange(total)
    shapes_before: list[tuple[int, ...]] = []
    for kind, argument in steps:
        shapes_before.append(values.shape)
        match kind:
            case "reshape":
                values = values.reshape(argument)
            case "permute":
                values = values.transpose(argument)
            case _:
                values = np.flip(values, argument)
    length = math.prod(values.shape)
    positions = unflat(variable("i", length), values.shape)
    after = values.shape
    for (kind, argument), before in zip(reversed(steps), reversed(shapes_before), strict=True):
        match kind:
            case "reshape":
                positions = reshaped(positions, after, before)
            case "permute":
                found = dict(zip(argument, positions, strict=True))
                positions = tuple(found[axis] for axis in range(len(before)))
            case _:
                positions = tuple(
                    constant(n - 1) - position if axis in argument else position
                    for axis, (position, n) in enumerate(zip(positions, before, strict=True))
                )
        after = before
    place = flat(positions, after)
    assert [evaluate_index(place, {"i": k}) for k in range(length)] == values.ravel().tolist()


# -- what must disappear, for views to cost nothing


def test_flattening_and_splitting_again_is_the_same_position() -> None:
    i, j = variable("i", 4), variable("j", 6)
    assert reshaped((i, j), (4, 6), (24,)) == (i * 6 + j,)
    assert reshaped((i * 6 + j,), (24,), (4, 6)) == (i, j)
    assert reshaped(reshaped((i, j), (4, 6), (2, 12)), (2, 12), (4, 6)) == (i, j)
    k = variable("k", 24)
    assert flat(unflat(k, (4, 6)), (4, 6)) == k
    assert flat(unflat(k, (2, 3, 4)), (2, 3, 4)) == k


def test_axes_that_stay_are_not_divided() -> None:
    i, j, k = variable("i", 5), variable("j", 7), variable("k", 12)
    assert reshaped((i, j, k), (5, 7, 12), (5, 7, 3, 4))[:2] == (i, j)
    split = reshaped((i, j, variable("a", 3), variable("b", 4)), (5, 7, 3, 4), (5, 7, 12))
    assert split == (i, j, variable("a", 3) * 4 + variable("b", 4))


def test_quotients_of_quotients_are_one() -> None:
    i = variable("i", 1000)
    assert (i // 10) // 5 == i // 50
    assert (i % 60) // 10 == (i // 10) % 6
    assert (i % 60) % 10 == i % 10
    assert (i * 8 + 3) // 4 == i * 2
    assert (i * 8 + 3) % 4 == constant(3)
    assert (i * 2 + variable("j", 2)) // 2 == i


def test_positions_inside_of_an_axis_are_not_clamped() -> None:
    i = variable("i", 10)
    assert clamped(i, 10) is i
    assert clamped(i, 9) != i
    assert (clamped(i - 3, 7).low, clamped(i - 3, 7).high) == (0, 6)


def test_kinds_of_atoms_are_not_confused() -> None:
    i = variable("i", 100)
    assert i // 7 != i % 7
    assert len({Quotient(i, 7), Remainder(i, 7)}) == 2
    assert len({i // 7, i % 7, clamped(i, 7)}) == 3


def test_axes_of_length_one_have_no_variable() -> None:
    assert variable("i", 1) == ZERO
    assert variable("i", 2).terms == ((IndexVariable("i", 0, 1), 1),)
    assert constant(5).is_constant
    assert not variable("i", 2).is_constant


def test_steps_and_factors() -> None:
    i, j = variable("i", 10), variable("j", 10)
    form = i * 3 + j // 2 + 1
    assert form.steps_with("i") == 3
    assert form.steps_with("j") is None
    assert form.steps_with("k") == 0
    assert form.factor(IndexVariable("i", 0, 9)) == 3
    assert form.factor(IndexVariable("j", 0, 9)) == 0
    assert form.depends_on("j")
    assert not form.depends_on("k")


@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3), (2, 1, 3), (4, 0, 2), (2, 3, 4, 5)])
def test_strides_are_numpys(shape: tuple[int, ...]) -> None:
    if 0 in shape:
        assert len(strides(shape)) == len(shape)
    else:
        assert strides(shape) == tuple(step // 8 for step in np.empty(shape, np.int64).strides)


def test_positions_are_shown_readably() -> None:
    i, j = variable("i", 10), variable("j", 10)
    assert repr(i * 3 + j // 4 + 1) == "3*i + 1*(1*j + 0)//4 + 1"
    assert repr(i % 4) == "1*(1*i + 0)%4 + 0"
    assert repr(clamped(i, 3)) == "1*clamp(1*i + 0, 0, 2) + 0"
