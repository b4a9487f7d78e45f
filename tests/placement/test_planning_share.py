"""Short functions that stay on NumPy pay little for planning: most of their calls go by without it."""

from __future__ import annotations

import pytest

from anygpu.calls.options import options
from anygpu.placement.call_site import MOST_SHORT, MOST_SKIPPED, PLANNING_SHARE, CallSite

SHORT, LONG = 2e-5, 1e-2


def settled(seconds: float, planning: float = 3e-4) -> CallSite:
    """A function whose calls take so long on NumPy, and would take far longer on the one device."""
    site = CallSite("function", options(), "numpy", has_anygpu_arrays=False)
    site.chooser.consider({"numpy": seconds, "webgpu:0": 1000 * seconds}, {"numpy": 0.0, "webgpu:0": 1.0})
    for _ in range(100):
        site.chooser.measured("numpy", seconds)
        site.host.planned(planning)
    return site


def granted(site: CallSite) -> int:
    assert site.next_trial() is None
    return site.host.skip_planning


@pytest.mark.parametrize("planning", [1e-4, 3e-4, 5e-4])
@pytest.mark.parametrize("seconds", [SHORT, 5e-5, 1e-4, 1e-3])
def test_planning_takes_a_small_share_of_the_calls(seconds: float, planning: float) -> None:
    calls = granted(settled(seconds, planning))
    assert planning / (calls * seconds) <= 1.1 * PLANNING_SHARE


def test_long_calls_are_planned_as_often_as_there_may_be_something_to_find_out() -> None:
    site = settled(LONG)
    site.host.rest(1)
    assert site.host.skip_planning == 1
    assert granted(site) == MOST_SKIPPED


def test_planning_that_took_very_long_once_is_not_believed() -> None:
    site = settled(SHORT)
    before = site.host.calls_for_planning
    site.host.planned(15.0)  # it has waited for a first look at the machine
    assert site.host.calls_for_planning < 2 * before
    assert granted(settled(1e-6)) == MOST_SHORT


def test_calls_that_become_long_are_planned_again() -> None:
    site = settled(SHORT)
    calls = granted(site)
    done = 0
    while site.host.skip_planning:
        site.host.ran(0.05)
        done += 1
    assert done < 5 < calls
    assert site.host.totals[0] == 100 + done


def test_long_calls_that_take_what_they_always_take_go_by() -> None:
    site = settled(0.05)
    site.host.skip_planning_for(MOST_SHORT, "a device was wrong")
    for _ in range(100):
        site.host.ran(0.05)
    assert site.host.skip_planning == MOST_SHORT - 100
