"""Exploring costs no more than a share of the calls."""

from __future__ import annotations

from anygpu.calls.background import SHARE, Pace
from anygpu.testing import ManualClock


def test_it_may_take_a_share_of_what_calls_have_taken() -> None:
    clock = ManualClock()
    pace = Pace(clock)
    assert pace.allowance(0.0) == 0.0
    assert pace.allowance(8.0) == 8.0 * SHARE
    assert pace.missing(2.0, 0.5) == 2.0 / SHARE - 0.5
    with pace:
        assert [pace.exploring] == [True]
        clock.advance(2.0)
    assert [pace.exploring] == [False]
    assert pace.spent == 2.0
    assert pace.allowance(12.0) == 12.0 * SHARE - 2.0
    assert pace.allowance(1.0) == 0.0
    assert pace.missing(1.0, 3.0) == 3.0 / SHARE - 3.0
    pace.earlier = 5.0
    assert pace.allowance(7.0) == 12.0 * SHARE - 2.0
    assert pace.missing(1.0, 3.0) == 3.0 / SHARE - 8.0
