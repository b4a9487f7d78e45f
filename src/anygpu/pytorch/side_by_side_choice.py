"""Whether modules run side by side or one after the other: a pure choice by what calls took.

Both ways take turns, a few calls each, then the faster one holds for many. One after the other wins unless side by side
is clearly faster, in the middle and at best: what disturbs a measurement makes it longer, and seldom both. A choice for
side by side is soon looked at again, because a wrong one costs. A choice against it holds the longer the slower side by
side was, so that looking again takes a fiftieth of the time at most.
"""

from __future__ import annotations

import math
from statistics import median
from typing import Literal

import msgspec

from anygpu.base.units import readable_seconds

Way = Literal["one after the other", "side by side"]
SERIAL: Way = "one after the other"
TOGETHER: Way = "side by side"

#: Calls of each way that count before one is chosen.
TRIALS = 6
#: Calls of one way in a row, of which the first does not count: it finds torch's threads as the other way left them.
_ROW = 3
#: Side by side has to save so much: less is within what measurements differ by.
_LEAST_GAIN = 0.07
#: After two calls each, a way that takes so much longer is not tried again.
_HOPELESS = 1.5
#: Of the time that calls take one after the other, for looking again.
_TRYING = 0.02
#: Calls that a choice for side by side holds: the first time, and at most.
_FIRST_HOLD, _LAST_HOLD = 20, 640


class Timings(msgspec.Struct, frozen=True):
    """What calls of the same modules with the same shapes took, in seconds, without those that do not count."""

    serial: tuple[float, ...] = ()
    together: tuple[float, ...] = ()
    calls: int = 0

    def seen(self, seconds: float) -> Timings:
        """With one more call, of the way that was next."""
        if self.calls % _ROW == 0:
            return msgspec.structs.replace(self, calls=self.calls + 1)
        if self.next_way() == SERIAL:
            return msgspec.structs.replace(self, serial=(*self.serial, seconds), calls=self.calls + 1)
        return msgspec.structs.replace(self, together=(*self.together, seconds), calls=self.calls + 1)

    @property
    def decided(self) -> bool:
        fewer = min(len(self.serial), len(self.together))
        return fewer >= TRIALS or (fewer >= 2 and min(self.together) > _HOPELESS * max(self.serial))

    def next_way(self) -> Way:
        """Of the next call: the two take turns, one after the other first."""
        return TOGETHER if self.calls // _ROW % 2 else SERIAL


class Choice(msgspec.Struct, frozen=True):
    way: Way
    reason: str
    #: Calls until both ways are measured again.
    holds: int


def choose(timings: Timings, before: Choice | None = None) -> Choice:
    """The way of the calls to come, when `timings` are decided. `before` is the choice of the trials before these."""
    serial, together = median(timings.serial), median(timings.together)
    enough = 1 - _LEAST_GAIN
    gains = together <= enough * serial and min(timings.together) <= enough * min(timings.serial)
    way = TOGETHER if gains else SERIAL
    calls = min(len(timings.serial), len(timings.together))
    times = {SERIAL: serial, TOGETHER: together}
    other = SERIAL if way == TOGETHER else TOGETHER
    at_best = ""
    if way == SERIAL and together < serial:  # the best ones decided
        times, at_best = {SERIAL: min(timings.serial), TOGETHER: min(timings.together)}, "at best "
    spent = {each: readable_seconds(seconds) for each, seconds in times.items()}
    reason = f"{way}: {at_best}{spent[way]} against {spent[other]} {other}, {calls} calls each"
    if way == SERIAL:
        ratio = max(1.0, together / serial if serial > 0 else 1.0)
        return Choice(way, reason, math.ceil((TRIALS // (_ROW - 1) * _ROW) * ratio / _TRYING))
    again = before is not None and before.way == TOGETHER
    holds = min(_LAST_HOLD, 2 * before.holds) if again and before is not None else _FIRST_HOLD
    return Choice(way, reason, holds)


def shares(groups: int, cores: int) -> tuple[int, ...]:
    """The threads that each of the workers gets; there are no more workers than groups or cores."""
    workers = max(1, min(groups, cores))
    each, left = divmod(max(cores, workers), workers)
    return tuple(each + (number < left) for number in range(workers)) if groups <= cores else (1,) * workers
