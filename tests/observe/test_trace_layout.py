"""Slices nest and rows do not overlap, wherever calls are said to have been."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from anygpu.observe.trace_file import TraceSlice, TrackRows, phase_slices

PARTS = [("plan", 10), ("write", 5), ("run", 50), ("read", 5), ("other", 30)]


def lengths(slices: list[TraceSlice]) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in slices:
        found[each.name] = found.get(each.name, 0) + each.end - each.begin
    return found


def test_phases_follow_each_other() -> None:
    slices = phase_slices(PARTS, 1000, 1100, None)
    assert [each.name for each in slices] == ["plan", "write", "run", "read", "other"]
    assert slices[0].begin == 1000
    assert slices[-1].end == 1100
    assert all(before.end == after.begin for before, after in pairwise(slices))


def test_what_was_called_inside_is_inside_of_run() -> None:
    slices = phase_slices(PARTS, 1000, 1100, (1004, 1050))
    run = next(each for each in slices if each.name == "run")
    assert run.begin <= 1004
    assert run.end >= 1050
    assert lengths(slices) == dict(PARTS)


def test_nothing_is_drawn_that_cannot_be() -> None:
    assert phase_slices(PARTS, 1000, 1100, (1001, 1090)) == []
    assert phase_slices([("plan", 100)], 1000, 1100, (1001, 1010)) == []


@given(
    st.lists(st.integers(0, 1000), min_size=8, max_size=8),
    st.integers(0, 1000),
    st.integers(0, 1000),
)
def test_phases_never_overlap_nor_lose_time(sizes: list[int], first: int, length: int) -> None:
    names = ("trace", "plan", "compile", "queue", "write", "run", "read", "other")
    parts = [(name, size) for name, size in zip(names, sizes, strict=True) if size]
    end = sum(sizes)
    slices = phase_slices(parts, 0, end, (first, first + length) if first + length <= end else None)
    assert all(before.end <= after.begin for before, after in pairwise(slices))
    assert not slices or lengths(slices) == dict(parts)


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 10**8), st.integers(1, 3)), max_size=60))
def test_rows_nest_whatever_comes(calls: list[tuple[int, int, int]]) -> None:
    rows, drawn = TrackRows(8), dict[int, list[tuple[int, int]]]()
    for begin, length, thread in sorted(calls, key=lambda call: call[0] + call[1]):
        fit = rows.fit(begin, begin + length, thread)
        if fit is not None:
            drawn.setdefault(fit.row, []).append((fit.begin, begin + length))
            # At most a hundredth is lost or added.
            assert abs(fit.begin - begin) <= max(50_001, length // 100 + 1)
    for spans in drawn.values():
        enclosing: list[tuple[int, int]] = []
        for begin, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while enclosing and enclosing[-1][1] <= begin:
                enclosing.pop()
            assert not enclosing or end <= enclosing[-1][1]
            enclosing.append((begin, end))


def test_calls_at_once_get_rows_of_their_own_up_to_a_limit() -> None:
    rows = TrackRows(2)
    assert [fit and fit.row for fit in (rows.fit(0, 10**8, each) for each in range(3))] == [0, 1, None]


def test_a_row_forgets_what_is_long_past() -> None:
    rows = TrackRows(1)
    for number in range(10_000):
        assert rows.fit(number * 10, number * 10 + 5, 1) is not None
    assert rows.fit(5, 10**5 + 10, 1) is None
