"""A chooser with more candidates than it looks at for every call."""

from __future__ import annotations

from collections.abc import Iterable

from anygpu.placement.plan.candidate_history import WaitingTimes
from anygpu.placement.plan.choosing import LOOKED_AT, DeviceChooser


class Busy(WaitingTimes):
    """How long devices are busy, and how often that was asked."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds = seconds
        self.asked = 0

    def get(self, name: str, default: float = 0.0, /) -> float:
        self.asked += 1
        return self.seconds.get(name, 0.0)

    def soonest(self, most: int) -> Iterable[str]:
        return sorted(self.seconds, key=lambda name: self.seconds[name])[:most]


def chooser_of(count: int) -> DeviceChooser:
    chooser = DeviceChooser(None, checked=False)
    chooser.consider({f"device-{number}": 1.0 for number in range(count)})
    for number in range(count):
        for _ in range(2):
            chooser.measured(f"device-{number}", 1.0 + 0.2 * number / count)
    return chooser


def test_a_free_one_of_many_is_found_though_it_is_not_among_the_fastest() -> None:
    chooser = chooser_of(1000)
    busy = Busy({f"device-{number}": 50.0 for number in range(1000)})
    busy.seconds["device-777"] = 0.0
    assert chooser.choose(busy).candidate == "device-777"


def test_a_choice_asks_a_few_of_many() -> None:
    asked = []
    for count in (100, 3000):
        busy = Busy({f"device-{number}": 1.0 + number for number in range(count)})
        chooser_of(count).choose(busy)
        asked.append(busy.asked)
    assert asked[1] <= asked[0] <= 4 * LOOKED_AT


def test_one_that_is_busy_is_not_measured_again() -> None:
    chooser = chooser_of(3)
    while (again := chooser.choose()).kind != "trial":
        chooser.measured("device-0", 1.2)
        assert chooser.calls < 1000
    assert chooser.choose({again.candidate: 5.0}).candidate != again.candidate
