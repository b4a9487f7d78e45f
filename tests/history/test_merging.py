"""What two processes learnt becomes one row, whoever writes first; and what rows say."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anygpu.placement.history.records import (
    AHEAD,
    LATEST,
    MOST_CALLS,
    MOST_PROCESS,
    MOST_SECONDS,
    RECENT,
    HabitKey,
    HabitRow,
    TimingKey,
    TimingRow,
    habit_of,
    merged_habit,
    merged_timing,
    plain_name,
    timing_of,
)

NOW = 1_800_000_000.0
HASHES = st.text("0123456789abcdef", min_size=32, max_size=32)
MOMENTS = st.floats(0, NOW) | st.integers(0, 20).map(float)
DURATIONS = st.floats(0, MOST_SECONDS)
COUNTS = st.integers(0, MOST_CALLS)
MEASURED = st.tuples(MOMENTS, DURATIONS)


@st.composite
def timing_rows(draw: st.DrawFn) -> TimingRow:
    """As merging leaves them: in order, and with nothing from before a disagreement."""
    row = TimingRow(
        tuple(draw(st.lists(MEASURED, max_size=RECENT))),
        draw(COUNTS),
        draw(st.none() | MEASURED),
        draw(MOMENTS),
        draw(MOMENTS | st.just(0.0)),
        tuple(draw(st.lists(MEASURED, max_size=RECENT))),
        tuple(draw(st.lists(st.tuples(MOMENTS, st.integers(0, 12), COUNTS), max_size=RECENT))),
    )
    return merged_timing(row, TimingRow())


@st.composite
def habit_rows(draw: st.DrawFn) -> HabitRow:
    """Each of other processes: of a process that two rows tell of, the later word counts."""
    processes = st.tuples(st.integers(0, MOST_PROCESS), MOMENTS, COUNTS, DURATIONS)
    row = HabitRow(
        (draw(MOMENTS), draw(st.none() | st.text(max_size=50))),
        draw(st.none() | st.tuples(MOMENTS, HASHES)),
        draw(COUNTS),
        tuple(draw(st.lists(processes, max_size=RECENT, unique_by=lambda each: each[0]))),
    )
    return merged_habit(row, HabitRow())


@given(timing_rows(), timing_rows(), timing_rows())
def test_it_does_not_matter_in_which_order_timings_are_merged(a: TimingRow, b: TimingRow, c: TimingRow) -> None:
    assert merged_timing(a, b) == merged_timing(b, a)
    assert merged_timing(merged_timing(a, b), c) == merged_timing(a, merged_timing(b, c))
    assert merged_timing(a, TimingRow()) == a


@given(timing_rows())
def test_a_calm_time_counts_before_all_disturbed_ones(row: TimingRow) -> None:
    timing = timing_of(TimingKey("0" * 32, "gpu", "1" * 32), row)
    assert timing.doubtful == (bool(row.disturbed) and not row.recent)
    known = {seconds for _, seconds in row.recent or row.disturbed}
    assert timing.seconds in known if known else timing.seconds is None


def test_a_row_of_an_earlier_version_is_read() -> None:
    old = msgspec.msgpack.encode([[[1.0, 2.0]], 3, None, 4.0, 0.0])
    row = msgspec.msgpack.decode(old, type=TimingRow)
    assert row == TimingRow(((1.0, 2.0),), 3, None, 4.0, 0.0)
    assert not timing_of(TimingKey("0" * 32, "gpu", "1" * 32), row).doubtful


def test_the_latest_peak_of_each_number_of_rows_is_kept() -> None:
    one, other = TimingRow(peaks=((1.0, 8, 100), (2.0, 16, 200))), TimingRow(peaks=((3.0, 8, 90),))
    row = merged_timing(one, other)
    assert row.peaks == ((2.0, 16, 200), (3.0, 8, 90))
    assert row.when == 3.0
    found = timing_of(TimingKey("0" * 32, "torch:cpu", "1" * 32), row)
    assert [(peak.rows, peak.bytes) for peak in found.peaks] == [(8, 90), (16, 200)]


@given(habit_rows(), habit_rows(), habit_rows())
def test_it_does_not_matter_in_which_order_habits_are_merged(a: HabitRow, b: HabitRow, c: HabitRow) -> None:
    assert merged_habit(a, b) == merged_habit(b, a)
    assert merged_habit(merged_habit(a, b), c) == merged_habit(a, merged_habit(b, c))
    assert merged_habit(a, HabitRow()) == a


@given(timing_rows() | habit_rows())
def test_rows_round_trip(row: TimingRow | HabitRow) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(row), type=type(row)) == row
    assert row.is_plausible


@given(timing_rows(), timing_rows(), HASHES)
def test_a_timing_says_what_can_be_reckoned_with(one: TimingRow, other: TimingRow, name: str) -> None:
    row = merged_timing(one, other)
    found = timing_of(TimingKey(name, "webgpu:0", name), row)
    assert msgspec.convert(msgspec.to_builtins(found), type(found)) == found
    assert (found.seconds is None) == (not row.recent and not row.disturbed)
    assert len(row.recent) <= RECENT
    assert found.calls == min(one.calls + other.calls, MOST_CALLS)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 1e300])
def test_numbers_that_are_no_times_are_not_plausible(value: float) -> None:
    rows: list[Any] = [
        TimingRow(((1.0, value),)),
        TimingRow(((value, 1.0),)),
        TimingRow(compile=(1.0, value)),
        TimingRow(agreed=value),
        TimingRow(disagreed=value),
        TimingRow(peaks=((value, 1, 1),)),
        HabitRow(name=(value, None)),
        HabitRow(program=(value, "0" * 32)),
        HabitRow(recent=((1, value, 1, 1.0),)),
        HabitRow(recent=((1, 1.0, 1, value),)),
    ]
    assert not any(row.is_plausible for row in rows)


def test_the_median_of_recent_calls_is_what_is_typical() -> None:
    key = TimingKey("0" * 32, "webgpu:0", "1" * 32)
    row = TimingRow()
    assert timing_of(key, row).seconds is None
    for number, seconds in enumerate((1.0, 0.5)):
        row = merged_timing(row, TimingRow(((float(number), seconds),), 1))
    assert timing_of(key, row).seconds == 0.5, "the first of two pays for what is done once"
    for number in range(2, 20):
        row = merged_timing(row, TimingRow(((float(number), 0.1 if number != 17 else 9.0),), 1))
    found = timing_of(key, row)
    assert (found.seconds, found.calls, found.when) == (0.1, 20, 19.0)
    for number in range(20, 25):
        row = merged_timing(row, TimingRow(((float(number), 3.0),), 1))
    assert timing_of(key, row).seconds == 3.0, "what is slow now is known soon"


def test_a_disagreement_makes_void_what_was_before_it_wherever_it_was_told() -> None:
    key = TimingKey("0" * 32, "webgpu:0", "1" * 32)
    before = TimingRow(((10.0, 0.1),), 3, (9.0, 1.0), agreed=10.0)
    wrong = TimingRow(disagreed=11.0)
    for row in (merged_timing(before, wrong), merged_timing(wrong, before)):
        found = timing_of(key, row)
        assert (found.seconds, found.agreed, found.disagreed) == (None, False, 11.0)
        assert (found.calls, found.compile) == (3, 1.0), "these are still true"
        again = timing_of(key, merged_timing(row, TimingRow(((12.0, 0.2),), 1, agreed=12.0)))
        assert (again.seconds, again.agreed, again.disagreed) == (0.2, True, 11.0)


def test_times_of_a_wrong_clock_do_not_stay_the_latest_for_ever() -> None:
    late = NOW + 2 * AHEAD
    row = TimingRow(((late, 5.0),), 1, (late, 5.0), late, late)
    assert merged_timing(row, TimingRow(((NOW, 1.0),), 1), NOW) == TimingRow(((NOW, 1.0),), 2)
    habit = HabitRow((late, "later"), (late, "0" * 32), 1, ((1, late, 1, 1.0),))
    now = HabitRow((NOW, "now"), (NOW, "1" * 32), 1, ((2, NOW, 1, 1.0),))
    assert merged_habit(habit, now, NOW) == msgspec.structs.replace(now, processes=2)
    assert merged_timing(row, TimingRow(), LATEST) == merged_timing(row, TimingRow())


def test_a_habit_is_that_of_other_processes() -> None:
    key = HabitKey("0" * 32, "1" * 32)
    rows = [HabitRow((float(n), f"name {n}"), None, 1, ((n, float(n), 10 * n, n / 2),)) for n in range(1, 6)]
    row = HabitRow()
    for each in rows:
        row = merged_habit(row, each)
    found = habit_of(key, row)
    assert found is not None
    assert (found.calls, found.seconds, found.processes, found.when) == (30, 1.5, 5, 5.0)
    assert found.name == "name 5"
    mine = habit_of(key, row, without=5)
    assert mine is not None
    assert (mine.calls, mine.processes, mine.when) == (20, 4, 4.0)
    assert habit_of(key, rows[0], without=1) is None
    # The same process again tells all its calls.
    more = merged_habit(row, HabitRow((6.0, None), (6.0, "a" * 32), 0, ((5, 6.0, 1000, 100.0),)))
    found = habit_of(key, more)
    assert found is not None
    assert (found.processes, found.program, found.name) == (5, "a" * 32, None)
    assert len(more.recent) == 5


@given(st.text(max_size=300))
def test_names_can_be_kept_and_shown(name: str) -> None:
    plain = plain_name(name)
    assert len(plain) <= 200
    assert plain.isprintable()
    assert plain_name(plain) == plain
    assert plain_name("\ud800x\ny") == "?x?y"
