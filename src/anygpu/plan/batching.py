"""The number of waiting calls of one program to run as one launch, from predictions, measurements and lost time.

Programs are made for a few sizes only, so that little is compiled; a launch that is not full is padded. Compiling is
weighed against what it gains for the calls that wait now, and what it would have gained for those that went the slower
way before. So a program is compiled at once for many calls, soon for few that keep coming, and never for a few alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from anygpu.base.disturbance import RecentTimes

#: The sizes for which programs are made.
SIZES = (4, 16, 64, 256, 1024)
#: A launch is padded to its size when at least so much of it is filled; to one that is compiled already also when it
#: is filled less, if that is the fastest.
FILLED, LEAST_FILLED = 0.6, 0.125
#: A batch must be better than one by one by this much: less is noise.
MARGIN = 0.9

#: Recent launches whose median is what the next is expected to take.
WINDOW = RecentTimes.WINDOW
#: The weight of the newest error of a prediction.
_NEW = 0.3
#: No correction is larger: beyond that something else is wrong than the model.
_MOST = math.log(50.0)
#: How often a size that turned out slower is passed over before it may show again what it takes; doubled each time.
FIRST_INTERVAL, LONGEST_INTERVAL = 256, 1 << 16
#: Compiling beside other work takes at most about so many times as long, as far as that is remembered.
_CONTENTION = 2.0


class BatchPlan(NamedTuple):
    """One launch for several calls."""

    #: The number of calls that the program is made for.
    size: int
    #: The calls that it is for; the rest is padding.
    taken: int
    #: The predicted seconds, without compiling.
    seconds: float


class Weighed(NamedTuple):
    """The size to run now, and the size that would be better if it were compiled."""

    #: `None` when calls should run one by one.
    plan: BatchPlan | None
    #: The size that would be fastest, if that is another one.
    wanted: int | None
    #: Seconds that each call takes longer for want of it.
    missed: float


def weigh(
    waiting: int,
    *,
    single: float,
    together: Callable[[int], float],
    compiling: Callable[[int], float],
    bytes_of: Callable[[int], int],
    room: int | None,
    latency: float,
) -> Weighed:
    """The launch to make now, when so many calls wait, if it is predicted to be better than one by one.

    A size is taken when calls fill it, or most of it; one that is compiled already also for fewer, as its padding is in
    what it takes. `together` is what a launch of a size takes, `compiling` what making its program still costs (0 when
    it is there), `bytes_of` the memory that it needs. A launch that needs more than `room`, or would take longer than
    `latency`, is not made. Compiling counts as a cost and not as latency: it comes once, and calls that never wait for
    it wait for each other ever after.
    """
    one_by_one = single * waiting
    best = fastest = None
    best_total, fastest_total = one_by_one * MARGIN, one_by_one * MARGIN
    for size in SIZES:
        taken = min(waiting, size)
        if taken < 2 or taken < LEAST_FILLED * size or (room is not None and bytes_of(size) > room):
            break  # what is larger is filled less, and needs more
        once = compiling(size)
        if taken < FILLED * size and once > 0:
            continue
        seconds = together(size)
        if not seconds <= latency:
            continue
        # As if all that wait would go in such launches, of which this is the first.
        running = seconds * waiting / taken
        plan = BatchPlan(size, taken, seconds)
        if running <= fastest_total:
            fastest, fastest_total = plan, running
        if running + once <= best_total:
            best, best_total = plan, running + once
    if fastest is None or fastest == best:
        return Weighed(best, None, 0.0)
    now = one_by_one if best is None else best.seconds * waiting / best.taken
    return Weighed(best, fastest.size, (now - fastest_total) / waiting)


class Missed:
    """The time that calls have lost because a program for many was not compiled, by its size."""

    __slots__ = ("by_size",)

    def __init__(self) -> None:
        self.by_size: dict[int, float] = {}

    def add(self, size: int, seconds: float) -> None:
        self.by_size[size] = self.by_size.get(size, 0.0) + seconds

    def of(self, size: int) -> float:
        return self.by_size.get(size, 0.0)

    def left(self, size: int, cost: float) -> float:
        """The part of the cost of compiling that calls have not lost yet."""
        return max(0.0, cost - self.of(size))

    def paid(self, size: int) -> None:
        self.by_size.pop(size, None)


class _Error:
    """What something took by what was predicted, as a logarithm. A calm one is not changed by disturbed ones."""

    __slots__ = ("disturbed", "logarithm")

    def __init__(self) -> None:
        self.logarithm: float | None = None
        self.disturbed = False

    def learn(self, seconds: float, predicted: float, *, disturbed: bool) -> None:
        if not (seconds > 0 and predicted > 0) or (disturbed and self.logarithm is not None and not self.disturbed):
            return
        error = max(-_MOST, min(_MOST, math.log(seconds) - math.log(predicted)))
        old = self.logarithm if disturbed == self.disturbed else None
        self.logarithm = error if old is None else old + _NEW * (error - old)
        self.disturbed = disturbed


class BatchTimes:
    """The seconds of launches, by size; and the likely error of predictions for sizes without a launch."""

    __slots__ = ("_compiling", "_correction", "_given_up", "_recent")

    def __init__(self) -> None:
        self._recent: dict[int, RecentTimes] = {}
        self._correction = _Error()
        self._compiling = _Error()
        #: By size: times that it was passed over, and after how many it may show again what it takes.
        self._given_up: dict[int, tuple[int, int]] = {}

    def measured(self, size: int, seconds: float, predicted: float, *, disturbed: bool = False) -> None:
        """A launch took so long, beside compiling. `predicted` is what was said without any launch."""
        self._recent.setdefault(size, RecentTimes()).add(seconds, disturbed=disturbed)
        self._correction.learn(seconds, predicted, disturbed=disturbed)

    def estimate(self, size: int, predicted: float, factor: float = 1.0) -> float:
        """The seconds of a launch: those of the last ones, or the prediction, corrected by its earlier errors.

        Before the first launch that is `factor`, which may be known from calls alone. Of launches that were disturbed
        the best one counts.
        """
        recent = self._recent.get(size)
        known = recent.least if recent is not None else None
        if known is not None:
            return known
        if size in self._given_up:
            return predicted  # it is owed another look, and what made it slow once is no reason against that
        error = self._correction.logarithm
        return predicted * (factor if error is None else math.exp(error))

    def known(self, size: int) -> bool:
        return size in self._recent

    @property
    def is_doubtful(self) -> bool:
        """Whether launches of some size were only seen while something else had the processors."""
        return any(each.disturbed for each in self._recent.values())

    def passed_over(self, size: int, *, calm: bool = False) -> None:
        """It could have been used, and was not because of what it took. Nothing is for ever: in the end it is tried.

        If it was disturbed when it took so long, it is tried as soon as the machine is `calm`.
        """
        recent = self._recent.get(size)
        if recent is None:
            return
        times, interval = self._given_up.get(size, (0, FIRST_INTERVAL))
        if recent.disturbed and calm:
            del self._recent[size]
            self._given_up[size] = (0, interval)
        elif times + 1 >= interval:
            del self._recent[size]
            self._given_up[size] = (0, min(2 * interval, LONGEST_INTERVAL))
        else:
            self._given_up[size] = (times + 1, interval)

    def compiled(self, seconds: float, predicted: float, *, disturbed: bool = False) -> None:
        most = predicted * _CONTENTION if disturbed else math.inf
        self._compiling.learn(min(seconds, most), predicted, disturbed=disturbed)

    def compiling(self, predicted: float) -> float:
        """The likely seconds of compiling another size."""
        error = self._compiling.logarithm
        return predicted * (math.exp(error) if error is not None else 1.0)
