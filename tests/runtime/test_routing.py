"""Where a free lane takes a task that waits for another one, by what is known of their kind."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from anygpu.placement.plan.candidate_history import DeviceChoice, WaitingTimes
from anygpu.placement.plan.choosing import LOOKED_AT, DeviceChooser
from anygpu.runtime.lanes import LaneLoad
from anygpu.runtime.routing import Routing

LANES = [f"device-{number}" for number in range(LOOKED_AT + 1)]
BUSY, FREE = LANES[0], LANES[-1]


class Busy(WaitingTimes):
    """Only the lane that the task waits for is busy, for so long."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def get(self, name: str, default: float = 0.0, /) -> float:
        return self._seconds if name == BUSY else 0.0

    def soonest(self, most: int) -> Iterable[str]:
        return [FREE]


class IdleLane(LaneLoad):
    def notify(self) -> None:
        pass

    def start(self) -> None:
        pass


class Site:
    """Stands in for a call site whose tasks have run on every device."""

    def __init__(self, chooser: DeviceChooser) -> None:
        self.chooser = chooser

    def has_run_at(self, name: str) -> bool:
        return True


def job_of(measured: float, *, disturbed: bool) -> Any:
    """A task of 1 s that waits for the busy lane; such tasks took so long on the free one."""
    chooser = DeviceChooser(None, checked=False)
    chooser.consider(dict.fromkeys(LANES, 1.0))
    for name in LANES:
        for _ in range(2):
            chooser.measured(name, measured if name == FREE else 1.0, busy=name == FREE and disturbed)
    choice = DeviceChoice(BUSY, "known", "it was best.")
    call = SimpleNamespace(site=Site(chooser))
    return SimpleNamespace(call=call, choice=choice, lane=BUSY, seconds=1.0, forced=None)


@pytest.mark.parametrize(
    ("measured", "disturbed", "goes"),
    [(1.0, False, True), (9.0, False, False), (9.0, True, True)],
    ids=["as fast", "slower", "only disturbed"],
)
def test_a_time_that_was_disturbed_keeps_no_free_lane_from_a_task(measured: float, disturbed: bool, goes: bool) -> None:
    routing = Routing(SimpleNamespace(), batching=False, max_latency=0.25)  # type: ignore[arg-type]
    found = routing.route_here(job_of(measured, disturbed=disturbed), IdleLane(FREE, 1), Busy(3.0))
    assert (found is not None) == goes
