"""How grids are cut: nothing lost, nothing twice, nothing longer than it may be."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from anygpu.engines.driver import LONGEST_SECONDS, AssumedPace, GridCut, cuts


@given(st.integers(1, 10**9), st.floats(0, 20), st.none() | st.integers(10**6, 10**9))
def test_the_parts_are_the_whole(groups: int, seconds: float, most: int | None) -> None:
    parts = cuts(groups, seconds, most=most)
    assert parts[0].first_group == 0
    assert all(each.first_group + each.groups == after.first_group for each, after in pairwise(parts))
    assert parts[-1].first_group + parts[-1].groups == groups
    sizes = {part.groups for part in parts}
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) > 0
    assert most is None or max(sizes) <= most


@given(st.integers(1, 10**7), st.floats(0, 20))
def test_no_part_is_longer_than_it_may_be_unless_one_group_is(groups: int, seconds: float) -> None:
    longest = max(part.groups for part in cuts(groups, seconds)) * seconds / groups
    # Parts differ by one group at most, so the longest may be that much over.
    assert longest <= LONGEST_SECONDS + seconds / groups + 1e-9


def test_nothing_short_is_cut() -> None:
    assert cuts(100, 0.0) == cuts(100, LONGEST_SECONDS) == [GridCut(0, 100)]
    assert cuts(0, 5.0) == []


def test_a_single_group_cannot_be_cut() -> None:
    assert cuts(1, 100.0) == [GridCut(0, 1)]


def test_the_slower_of_arithmetic_and_memory_counts() -> None:
    pace = AssumedPace(flops_per_second=10.0, bytes_per_second=100.0)
    assert pace.seconds(flops=20.0, bytes_moved=100.0) == 2.0
    assert pace.seconds(flops=20.0, bytes_moved=1000.0) == 10.0
