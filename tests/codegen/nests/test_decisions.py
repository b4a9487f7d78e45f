"""Decisions of the schedule, one by one."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from anygpu.engines.codegen.index import Index
from anygpu.engines.codegen.nests.flat import subtrees
from anygpu.engines.codegen.nests.roots import axis_variable, merged, pieces
from anygpu.engines.codegen.nests.schedule import last_square
from anygpu.engines.codegen.nests.steps import LoopEstimate, grain_of, lanes_of


def test_axes_are_one_loop_where_all_positions_step_alike() -> None:
    i, j, k = (axis_variable(axis, 0, length) for axis, length in enumerate((4, 5, 3)))
    whole = i * 15 + j * 3 + k
    assert merged((4, 5, 3), [whole], {}).lengths == (60,)
    assert merged((4, 5, 3), [whole, k], {}).lengths == (20, 3)
    assert merged((4, 5, 3), [whole, i * 2], {}).lengths == (4, 15)
    assert merged((4, 5, 3), [whole], {1: {2}}).lengths == (4, 15)
    assert merged((4, 1, 3), [i * 3 + k], {}).runs == ((0, 1, 2),)


def test_positions_of_one_loop_are_those_of_its_axes() -> None:
    domain = merged((4, 5, 3), [Index(0)], {})
    assert [str(each) for each in domain.positions([axis_variable(0, 7, 8)])] == ["0", "2", "1"]


def test_loops_are_cut_into_pieces_unless_these_are_many() -> None:
    assert pieces(0, 10, [3, 0, 10, 3, 12]) == [(0, 3), (3, 10)]
    assert pieces(0, 100, range(100)) == [(0, 100)]


@pytest.mark.parametrize("length", [1, 128, 129, 1000, 12_345, 1_000_003])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_subtrees_added_in_pairs_are_numpys_sum(length: int, dtype: Any) -> None:
    x: Any = np.random.default_rng(0).standard_normal(length).astype(dtype)
    offsets = subtrees(length, 200)
    sums = [x[a:b].sum() for a, b in itertools.pairwise(offsets)]
    while len(sums) > 1:
        sums = [one + other for one, other in zip(sums[::2], sums[1::2], strict=True)]
    assert sums[0] == x.sum()


def test_parts_are_whole_vectors_and_no_more_than_are_useful() -> None:
    assert grain_of(1.0, 1000) == 1000
    grain = grain_of(1.0, 10_000_000, 32)
    assert grain % 32 == 0
    assert -(-10_000_000 // grain) <= 256


def test_little_work_is_done_four_vectors_at_a_time() -> None:
    assert lanes_of(LoopEstimate(operations=3, width=4), 64) == (16, 4)
    assert lanes_of(LoopEstimate(operations=30, functions=20, width=8, live=12), 64) == (8, 2)
    assert lanes_of(LoopEstimate(operations=300, width=8, live=5), 64) == (8, 4)


@pytest.mark.parametrize("limit", [2.0, 0.1, 3.7, 1e50])
def test_the_root_of_the_last_square_is_the_last_one_below(limit: float) -> None:
    square = last_square(limit, inclusive=True)
    assert math.sqrt(square) <= limit < math.sqrt(math.nextafter(square, math.inf))
    square = last_square(limit, inclusive=False)
    assert math.sqrt(square) < limit <= math.sqrt(math.nextafter(square, math.inf))
