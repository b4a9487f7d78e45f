"""What follows from the shapes of arguments."""

from __future__ import annotations

import math

import numpy as np
import pytest

from anygpu.errors import InvalidOption
from anygpu.placement.kernels.arguments import (
    automatic_grid,
    call_like,
    group_for,
    groups_for,
    invocations,
    numbers_for,
    result_shapes,
)
from anygpu.placement.kernels.first_use import samples
from anygpu.program.ops.custom import Parameter
from anygpu.program.primitives import Spec

A, B = Parameter("a", "float32", "input"), Parameter("b", "float32", "input")
X, Y, Z = Parameter("x", "float32", "update"), Parameter("y", "float32", "output"), Parameter("z", "int32", "output")


def test_results_are_like_the_first_array_unless_something_is_said() -> None:
    given = {"a": (3, 4), "b": (5,)}
    assert result_shapes("k", (A, B, Y), given, {}, None) == ((3, 4),)
    assert result_shapes("k", (A, B, Y, Z), given, {}, None) == ((3, 4), (3, 4))
    assert result_shapes("k", (A, B, Y), given, {}, "b") == ((5,),)
    assert result_shapes("k", (A, B, Y, Z), given, {}, ("b", "a")) == ((5,), (3, 4))
    assert result_shapes("k", (A, B, Y), given, {}, lambda a, b: (a[0], b[0])) == ((3, 5),)
    assert result_shapes("k", (A, B, Y), given, {}, lambda a, b: [(a[0], b[0])]) == ((3, 5),)
    assert result_shapes("k", (A, B, Y), given, {}, lambda a, b: 7) == ((7,),)
    assert result_shapes("k", (A, B, Y), given, {}, lambda a, b: ()) == ((),)
    assert result_shapes("k", (A, B, Y, Z), given, {"n": 2}, lambda a, b, n: ((n,), a)) == ((2,), (3, 4))


def test_an_update_keeps_its_shape() -> None:
    assert result_shapes("k", (A, X, Y), {"a": (2,), "x": (9, 9)}, {}, None) == ((9, 9), (2,))
    assert result_shapes("k", (X,), {"x": (9, 9)}, {}, None) == ((9, 9),)


@pytest.mark.parametrize("results", ["c", ("a", "b"), lambda a: "three", lambda a: ((1,), (2,)), lambda a: (-1,)])
def test_results_that_make_no_sense_are_refused(results: object) -> None:
    with pytest.raises(InvalidOption, match="results="):
        result_shapes("k", (A, Y), {"a": (3,)}, {}, results)  # type: ignore[arg-type]


def test_a_kernel_without_arrays_must_say_what_it_makes() -> None:
    with pytest.raises(InvalidOption, match="results=lambda"):
        result_shapes("k", (Y,), {}, {}, None)
    assert result_shapes("k", (Y,), {}, {"n": 4}, lambda n: (n, n)) == ((4, 4),)


def test_a_line_of_groups_counts_elements_and_others_follow_the_last_axes() -> None:
    assert automatic_grid((2, 3, 4), (64, 1, 1)) == (24, 1, 1)
    assert automatic_grid((2, 3, 4), (8, 8, 1)) == (4, 3, 2)
    assert automatic_grid((5, 2, 3, 4), (4, 4, 4)) == (4, 3, 10)
    assert automatic_grid((7,), (8, 8, 1)) == (7, 1, 1)
    assert automatic_grid((), (64, 1, 1)) == (1, 1, 1)
    assert automatic_grid((0, 3), (64, 1, 1)) == (0, 1, 1)


def test_groups_hold_all_invocations() -> None:
    assert groups_for((65, 1, 1), (64, 1, 1)) == (2, 1, 1)
    assert groups_for((640, 480, 0), (8, 8, 1)) == (80, 60, 0)


def test_a_text_that_leaves_the_group_open_gets_exactly_the_grid() -> None:
    assert group_for((32, 2, 1), (7, 1, 1)) == (32, 2, 1)
    for grid in ((1000, 1, 1), (1009, 1, 1), (0, 1, 1), (640, 480, 1), (7, 9, 11), (4096, 1, 6)):
        group = group_for(None, grid)
        assert math.prod(group) <= 64
        assert tuple(n * size for n, size in zip(groups_for(grid, group), group, strict=True)) == grid


def test_a_grid_is_numbers_or_a_function_that_is_called_as_the_kernel() -> None:
    given, group = {"a": (3, 4)}, (8, 8, 1)
    assert invocations("k", None, given, {}, (3, 4), group) == (4, 3, 1)
    assert invocations("k", 10, given, {}, (3, 4), group) == (10, 1, 1)
    assert invocations("k", (10, 20), given, {}, (3, 4), group) == (10, 20, 1)
    assert invocations("k", lambda a, step: (a[0] // step, 1), given, {"step": 3, "n": 1}, (), group) == (1, 1, 1)
    for wrong in ((), (1, 2, 3, 4), (-1,), "many", (1.5,)):
        with pytest.raises(InvalidOption, match="grid="):
            invocations("k", wrong, given, {}, (), group)  # type: ignore[arg-type]


def test_a_function_gets_the_numbers_that_it_names() -> None:
    numbers = {"alpha": 2.0, "n": 4}
    assert numbers_for(lambda x, alpha: x, numbers) == {"alpha": 2.0}
    assert numbers_for(lambda x, **rest: x, numbers) == numbers
    assert numbers_for(lambda x, n, /: x, numbers) == {}
    assert numbers_for(np.tanh, numbers) == {}
    assert call_like(lambda x, n: x * n, ["a"], numbers) == "aaaa"


def test_samples_are_the_same_each_time_and_keep_to_their_range() -> None:
    specs = [Spec((4, 5), "float32"), Spec((9,), "int32"), Spec((3,), "bool"), Spec((2,), "uint8"), Spec((), "float16")]
    first, again = samples(specs), samples(specs)
    for one, other, spec in zip(first, again, specs, strict=True):
        assert one.shape == spec.shape
        assert one.dtype.name == spec.dtype
        np.testing.assert_array_equal(one, other)
    assert np.abs(first[0]).max() <= 1
    assert 0 <= first[1].min() <= first[1].max() < 2
    ranged = samples(specs[:2], [(10.0, 11.0), (-7, -5)])
    assert 10 <= ranged[0].min() <= ranged[0].max() <= 11
    assert -7 <= ranged[1].min() <= ranged[1].max() <= -5
    assert np.isfinite(samples(specs[:1], [(-np.inf, np.nan)])[0]).all()
