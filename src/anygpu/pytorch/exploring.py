"""Which way to run a step is measured next, and which is the fastest: pure, from what steps took.

Along the sizes of micro-batches, time is no valley: caches and kernels for certain shapes make bumps, and a search that
stops at the first size that is not faster ends before the best. So the whole ladder of sizes is looked at, and left
only where ways are so slow that nothing behind them can win. Whatever disturbs a measurement makes it longer, so the
least counts. A ladder is walked twice rather than each way measured twice in a row, because a disturbance lasts.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence

from anygpu.pytorch.fitting import Way

#: What steps of each way took, in seconds a row; infinite for a way that did not fit.
Times = Mapping[Way, Sequence[float]]

#: Steps of each way on a ladder, and of those that may still be the fastest.
GLANCES, RUNS = 2, 3
#: Steps that one search takes at most.
MOST_TRIALS = 40
#: After two ways in a row that take so many times the least, a ladder is left.
SLOW = 1.5
#: Recomputing grows along a ladder of layers checkpointed, and what larger micro-batches save shrinks.
SLOW_CHECKPOINTED = 1.1
#: What takes so many times the least is not measured again.
_HOPELESS = 2.5
#: A way within this of the least may be the fastest.
_CONTENDS = 1.2
#: Another size has to gain this much.
_WORTH = 0.97


def took(way: Way, times: Times) -> float:
    return min(times.get(way, ()), default=math.inf)


def least(times: Times) -> float:
    return min((min(each) for each in times.values() if each), default=math.inf)


def next_on(ladder: Sequence[Way], times: Times, slow: float = SLOW) -> Way | None:
    """The way on it to be measured next; `None` once all of them are that may be the fastest."""
    best = least(times)
    elsewhere = least({way: taken for way, taken in times.items() if way not in ladder})
    for glances in range(1, GLANCES + 1):
        slow_ones, so_far = 0, elsewhere
        for way in ladder:
            taken = times.get(way, ())
            if not taken:
                return way
            if len(taken) < glances and min(taken) <= _HOPELESS * best:
                return way
            # Of those before it: what is faster and comes later shows that the ladder leads somewhere.
            so_far = min(so_far, min(taken))
            slow_ones = slow_ones + 1 if min(taken) > slow * so_far else 0
            if slow_ones == 2:
                break
    return None


def next_of(contenders: Sequence[Way], times: Times) -> Way | None:
    """The one to be measured next among those that may be the fastest; `None` once each was often enough."""
    best = min((took(way, times) for way in contenders), default=math.inf)
    near = [way for way in contenders if took(way, times) <= _CONTENDS * best < math.inf]
    if len(near) < 2:
        return None
    fewest = min(near, key=lambda way: len(times[way]))
    return fewest if len(times[fewest]) < RUNS else None


def fastest(ways: Sequence[Way], times: Times) -> Way:
    """The fastest of them; an earlier one where it is as good as that."""
    best = min(took(way, times) for way in ways)
    return next((way for way in ways if took(way, times) * _WORTH <= best), ways[0])


def cost_of_each(measured: Sequence[tuple[int, float]]) -> float:
    """What one more micro-batch costs at most, from numbers of them and the times; of a single one, all of it."""
    known = sorted({count: seconds for count, seconds in measured if seconds < math.inf}.items())
    if len(known) == 1:
        return known[0][1] / known[0][0]
    pairs = itertools.pairwise(known)
    return max((max(0.0, (more - less) / (many - few)) for (few, less), (many, more) in pairs), default=0.0)


class Drift:
    """Whether steps of a way that was settled on take another time by now.

    After a search that took so many steps, the next begins no earlier than ten times as many later, then twice that,
    and so on: searching must not take more than it can gain.
    """

    #: Steps whose middle value counts, and how far it has to be from what it was.
    _WINDOW, _SLOWER, _FASTER = 16, 1.3, 0.7
    #: An earlier run's time is another machine's, in part.
    _OTHER_RUN = 1.6

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=self._WINDOW)
        self._first: float | None = None
        self._earlier: float | None = None
        self._steps = 0
        self._holds = 0
        self._times_held = 0

    def settled(self, trials: int, earlier: float | None = None) -> None:
        """A search has ended, or an earlier run's with that time for a row."""
        self._recent.clear()
        self._first, self._earlier, self._steps = None, earlier, 0
        self._holds = 10 * max(trials, self._WINDOW) * 2**self._times_held
        self._times_held = min(self._times_held + 1, 6)

    def seen(self, seconds: float) -> bool:
        """A step took that for each row: whether it is time to search again."""
        self._steps += 1
        self._recent.append(seconds)
        if len(self._recent) < self._WINDOW:
            return False
        if self._first is None:
            self._first = statistics.median(self._recent)
            if self._earlier is not None:
                self._first = min(self._first, self._OTHER_RUN * self._earlier)
        if self._steps < self._holds:
            return False
        now = statistics.median(self._recent)
        return not self._FASTER * self._first <= now <= self._SLOWER * self._first
