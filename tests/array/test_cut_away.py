"""What is cut away is computed where NumPy may warn of it: as few elements as do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from anygpu.array.core.expression import _around, _without
from anygpu.array.trace.traced import Traced
from anygpu.array.trace.tracing import trace
from anygpu.engines.codegen.kernel import HIDDEN, RESULT
from anygpu.engines.cpu.engine import executable
from anygpu.program.primitives import Slice, Spec


def sizes(function: Callable[..., Any], *arrays: Any) -> list[int]:
    """The elements of each result: first the function's."""
    traced = trace(function, arrays, {})
    assert isinstance(traced, Traced)
    return [each.size for each in traced.program.results]


def heat(u: Any) -> Any:
    u = u * 2
    return u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * u[1:-1, 1:-1]


@pytest.mark.parametrize(
    ("function", "shape", "rest"),
    [
        (lambda x: (x * 2)[2:] - (x * 2)[:-2], (1000,), [2, 2]),
        (lambda x: (y := x * 2)[2:] - y[:-2], (1000,), []),
        (lambda x: (y := x * 2)[2:-1] - y[1:-2], (1000,), [1, 1]),
        (lambda x: abs((x * 2)[5:7]), (1000,), [1000]),
        (lambda x: abs((x * 2)[::2]), (1000,), [1000]),
        (heat, (200, 300), [300, 300]),
        (lambda x: abs((x * 2)[1:-1, 1:-1, 1:-1]), (60, 60, 60), [3600, 3600, 58 * 60, 58 * 60, 58 * 58, 58 * 58]),
        (lambda x: x[1:] * 2, (1000,), []),
        (lambda x: -abs(x)[1:], (1000,), []),
    ],
)
def test_only_the_rest_is_computed_beside_the_result(
    function: Callable[..., Any], shape: tuple[int, ...], rest: list[int]
) -> None:
    assert sorted(sizes(function, np.ones(shape))[1:]) == sorted(rest)


@pytest.mark.parametrize("place", [(0, 0), (0, 299), (199, 0), (199, 299)])
def test_an_overflow_in_a_corner_is_noted(place: tuple[int, int]) -> None:
    u = np.ones((200, 300))
    traced = trace(heat, (u,), {})
    assert isinstance(traced, Traced)
    compiled = executable(traced.program)
    assert compiled.checked([u])[1] == 0
    u[place] = 1e308
    assert compiled.checked([u])[1] == RESULT | HIDDEN


@pytest.mark.parametrize("seed", range(60))
def test_parts_and_the_boxes_around_them_have_every_element(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(int(each) for each in rng.integers(1, 12, rng.integers(1, 4)))
    covered, around, parts = np.zeros(shape, bool), np.zeros(shape, bool), []
    for _ in range(rng.integers(0, 6)):
        ends = [sorted(int(each) for each in rng.integers(0, length + 1, 2)) for length in shape]
        steps = tuple(int(each) for each in rng.choice([1, 1, 1, 2], len(shape)))
        parts.append(Slice(tuple(a for a, _ in ends), tuple(b for _, b in ends), steps))
        covered[tuple(slice(a, b, step) for (a, b), step in zip(ends, steps, strict=True))] = True
    boxes = _around(parts, Spec(shape, "float64"))
    for box in boxes:
        around[tuple(slice(a, b) for a, b in box)] = True
    assert (covered | around).all()
    assert len(boxes) <= 6


def test_a_box_without_a_part_is_in_boxes_that_do_not_overlap() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        box, part = ([tuple(sorted(map(int, rng.integers(0, 7, 2)))) for _ in range(3)] for _ in range(2))
        expected = np.zeros((7, 7, 7), int)
        expected[tuple(slice(a, b) for a, b in box)] = 1
        expected[tuple(slice(a, b) for a, b in part)] = 0
        found = np.zeros((7, 7, 7), int)
        for each in _without(tuple(box), tuple(part)):  # type: ignore[arg-type]
            found[tuple(slice(a, b) for a, b in each)] += 1
        assert (found == expected).all()
