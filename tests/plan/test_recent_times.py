"""The times of one candidate: calm ones bound disturbed ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anygpu.placement.plan.candidate_history import MAX_NOISY_SAMPLES, RecentTimes

SECONDS = st.floats(1e-6, 1e3)


@given(st.lists(st.tuples(SECONDS, st.booleans(), st.booleans()), max_size=60), SECONDS)
def test_a_calm_time_bounds_all_disturbed_ones(events: list[tuple[float, bool, bool]], last: float) -> None:
    times = RecentTimes()
    for seconds, disturbed, passing in events:
        times.add(seconds, disturbed=disturbed, passing=passing)
        assert 1 <= len(times.recent) <= RecentTimes.WINDOW
        assert min(times.recent) <= (times.least or 0.0) <= (times.estimate or 0.0) <= max(times.recent)
    were = times.disturbed
    times.add(last)
    assert not times.disturbed
    assert not were or max(times.recent) == last


@given(st.lists(SECONDS, min_size=1, max_size=20), st.lists(SECONDS, max_size=100))
def test_trials_of_our_own_never_make_a_calm_estimate_longer(calm: list[float], beside: list[float]) -> None:
    times = RecentTimes()
    for seconds in calm:
        times.add(seconds)
    before = times.estimate or 0.0
    for seconds in beside:
        times.add(max(seconds, before), disturbed=True, passing=True)
    assert times.estimate == before


def test_a_load_that_stays_is_what_is_usual_in_the_end_and_undone_at_once() -> None:
    times = RecentTimes()
    for _ in range(5):
        times.add(1.0)
    for _ in range(MAX_NOISY_SAMPLES - 1):
        times.add(3.0, disturbed=True)
        assert times.estimate == 1.0
    times.add(3.0, disturbed=True)
    assert times.estimate == 3.0
    assert times.disturbed
    times.add(1.1)
    assert times.estimate == 1.1


def test_a_disturbed_time_that_was_faster_all_the_same_counts() -> None:
    times = RecentTimes()
    times.add(1.0)
    times.add(0.5, disturbed=True)
    assert times.estimate == 0.5
    assert not times.disturbed
