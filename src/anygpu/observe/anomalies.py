"""Detects changes in series: a function that became slower, memory that only grows, and when it runs out.

One slow call is no anomaly; a change of the level is. Evidence for it is summed up call by call, as in Page's CUSUM:
the logarithm of how much likelier a call is if everything takes longer by half than if nothing has changed. One call
counts for a quarter of what is needed at most, however long it took, because times have long tails.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

#: Fewer samples say nothing of the rate.
LEAST_SAMPLES = 10
#: Ways that memory may go on, which the forecast is made of; the same ones each time.
_WAYS, _SEED = 2000, 18


class Forecast(NamedTuple):
    """Seconds until a limit is reached: as likely sooner as later, and the bounds that hold nine times in ten.

    `latest` is infinite if it may never be reached.
    """

    seconds: float
    earliest: float
    latest: float


def time_until(limit: float, samples: Sequence[tuple[float, float]]) -> Forecast | None:
    """From samples of (seconds, bytes), the newest last; `None` if there are too few, or nothing grows.

    What grows by steps of changing size is a random walk with a drift. Neither the drift nor the size of the steps is
    known exactly, so each of many ways draws both, as likely as they are after what was seen, and then walks.
    """
    if len(samples) < LEAST_SAMPLES:
        return None
    times = np.asarray([time for time, _ in samples], float)
    values = np.asarray([value for _, value in samples], float)
    gaps, steps = np.diff(times), np.diff(values)
    if (gaps <= 0).any():
        return None
    count = len(steps)
    drift = (values[-1] - values[0]) / (times[-1] - times[0])
    # Per second, from steps of different lengths.
    spread = math.sqrt(float((((steps - drift * gaps) ** 2) / gaps).sum()) / (count - 1))
    room = limit - values[-1]
    if room <= 0:
        return Forecast(0.0, 0.0, 0.0)
    if drift <= 0 or drift * math.sqrt(times[-1] - times[0]) < spread:
        return None  # it may as well not grow at all
    generator = np.random.default_rng(_SEED)
    spreads = spread * np.sqrt((count - 1) / generator.chisquare(count - 1, _WAYS))
    drifts = drift + spreads / math.sqrt(times[-1] - times[0]) * generator.standard_normal(_WAYS)
    found = np.full(_WAYS, np.inf)
    grows = drifts > 0
    if spread > 0:
        # The first time that such a walk reaches the limit is distributed as an inverse Gaussian.
        found[grows] = generator.wald(room / drifts[grows], (room / spreads[grows]) ** 2)
    else:
        found[grows] = room / drifts[grows]
    earliest, middle, latest = np.quantile(found, (0.05, 0.5, 0.95), method="inverted_cdf")
    return Forecast(float(middle), float(earliest), float(latest))


#: A level that is this many times as high is to be found; half of it, on a logarithmic scale, is where evidence begins.
SLOWDOWN = 1.5
_SHIFT = math.log(SLOWDOWN)
#: Evidence that is enough: the change is e^16, nine million times, likelier than none.
_ENOUGH = 16.0
#: Evidence that one call can add at most.
_MOST_OF_ONE = _ENOUGH / 4

#: Calls from which the usual level is known, and those that are remembered of it.
_FIRST, _REMEMBERED = 30, 300
#: Calls whose level is the new one, after a change.
_AFTER = 8
#: Times are never more regular than this, or a change of the clock's rate would be one of the function.
_LEAST_SPREAD = 0.08
#: From the median of absolute deviations to a standard deviation, if they were normal.
_NORMAL = 1.4826


class Change(NamedTuple):
    """The level of a series has changed."""

    kind: Literal["slower", "faster"]
    #: Seconds that were usual before, and are now.
    before: float
    after: float
    #: How many calls ago it happened, about.
    calls_ago: int

    @property
    def factor(self) -> float:
        return self.after / self.before

    def __str__(self) -> str:
        return f"has taken {self.factor:.1f} times as long for the last {self.calls_ago} calls"


class LevelWatch:
    """Watches the times of one function on one device, call by call."""

    __slots__ = ("_begun", "_evidence", "_next", "_recent", "_since", "_spread", "_usual", "_usual_times")

    def __init__(self) -> None:
        #: Logarithms of the times that the usual level is known from, and where the next one is written.
        self._usual_times = array("d")
        self._next = 0
        self._usual: float | None = None
        self._spread = _LEAST_SPREAD
        #: For a higher and for a lower level.
        self._evidence = [0.0, 0.0]
        #: Calls since the evidence was nothing.
        self._since = [0, 0]
        self._recent: deque[float] = deque(maxlen=_AFTER)
        self._begun = 0

    def add(self, seconds: float) -> Change | None:
        """The call took so long; a change if that makes one certain."""
        time = math.log(max(seconds, 1e-9))
        self._begun += 1
        self._recent.append(time)
        if self._usual is None:
            self._remember(time)
            if len(self._usual_times) >= _FIRST:
                self._learn()
            return None
        weight = _SHIFT / self._spread**2
        for side, sign in enumerate((1.0, -1.0)):
            part = (sign * (time - self._usual) - _SHIFT / 2) * weight
            grown = self._evidence[side] + max(-_MOST_OF_ONE, min(_MOST_OF_ONE, part))
            self._evidence[side] = max(0.0, grown)
            self._since[side] = self._since[side] + 1 if grown > 0 else 0
        if max(self._evidence) < _ENOUGH:
            # What may be part of a change is not learnt from.
            if max(self._evidence) < _MOST_OF_ONE:
                self._remember(time)
                if self._begun % _FIRST == 0:
                    self._learn()
            return None
        return self._changed("slower" if self._evidence[0] >= _ENOUGH else "faster")

    def _changed(self, kind: Literal["slower", "faster"]) -> Change:
        assert self._usual is not None
        side = 0 if kind == "slower" else 1
        ago = self._since[side]
        level = float(np.median([*self._recent][-max(1, min(ago, _AFTER)) :]))
        found = Change(kind, math.exp(self._usual), math.exp(level), ago)
        # What comes is compared with the new level.
        self._usual_times, self._next = array("d"), 0
        self._usual, self._evidence, self._since = None, [0.0, 0.0], [0, 0]
        return found

    def _remember(self, time: float) -> None:
        times = self._usual_times
        if len(times) < _REMEMBERED:
            times.append(time)
        else:
            times[self._next] = time
            self._next = (self._next + 1) % _REMEMBERED

    def _learn(self) -> None:
        times = np.asarray(self._usual_times)
        self._usual = float(np.median(times))
        spread = _NORMAL * float(np.median(np.abs(times - self._usual)))
        self._spread = max(spread, _LEAST_SPREAD)


#: Parts that a series of memory is looked at in, and the rise that is no accident.
_PARTS, _LEAST_LEAK = 6, 6 << 20


class Leak(NamedTuple):
    """Memory that only grows."""

    #: Unit of the series: calls, or seconds.
    bytes_per_step: float
    grown: int


def leak(samples: Sequence[tuple[float, int]]) -> Leak | None:
    """Whether memory, as (step, bytes), only grows: the lowest of each part is above that of the part before.

    Caches grow too, but ever more slowly: the second half must have grown as much as half of what the first has.
    """
    if len(samples) < 4 * _PARTS:
        return None
    steps = np.asarray([step for step, _ in samples], float)
    memory = np.asarray([count for _, count in samples], float)
    lowest = np.asarray([part.min() for part in np.array_split(memory, _PARTS)])
    rises = np.diff(lowest)
    grown = float(lowest[-1] - lowest[0])
    if grown < _LEAST_LEAK or (rises <= 0).any():
        return None
    half = _PARTS // 2
    if rises[half:].sum() < 0.5 * rises[: len(rises) - half].sum():
        return None
    # The middle of each part's steps, as the lowest may be anywhere in it.
    middles = np.asarray([part.mean() for part in np.array_split(steps, _PARTS)])
    slope = float(np.polyfit(middles, lowest, 1)[0])
    return Leak(slope, int(grown)) if slope > 0 else None
