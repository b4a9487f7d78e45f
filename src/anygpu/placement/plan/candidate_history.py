"""The history of one candidate for a function's calls: its times, when to sample it, and whether to open its device.

`RecentTimes` estimates a time from the last calls and notices when it changes. `CandidateHistory` adds failures, trials
and checks. The functions at the end answer single questions: how often to compare results, and whether opening a device
pays for the calls that are expected.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

#: Calls until a candidate that lost is tried again. One that has won before is owed a look more often.
FIRST_INTERVAL, SOON = 16, 5


#: trial: a call that measures a candidate. sample: a call on the baseline that checks a device. pinned: a device was
#: wrong. untried: the first of several devices that were asked for, when none of them was measured.
ChoiceKind = Literal["baseline", "known", "trial", "sample", "pinned", "untried", "only"]


#: Consecutive noisy samples that become the new baseline.
MAX_NOISY_SAMPLES = 5


class RecentTimes:
    """The last times of something, all of them calm or all of them disturbed.

    A disturbed time counts as long as there is no other, or if it was faster all the same; a calm one bounds all
    disturbed ones before it. After many disturbed times in a row those are what is usual now.
    """

    __slots__ = ("_passed_over", "disturbed", "recent")

    #: How many are kept; and up to how many the best counts, because all may have been disturbed.
    WINDOW, FEW = 5, 2

    def __init__(self) -> None:
        #: Seconds, the newest last.
        self.recent: list[float] = []
        self.disturbed = False
        self._passed_over = 0

    @property
    def estimate(self) -> float | None:
        """What the next is expected to take; `None` before the first."""
        count = len(self.recent)
        if count <= self.FEW:
            return min(self.recent) if count else None
        return median(self.recent)

    @property
    def least(self) -> float | None:
        """What it would take without disturbances, as far as is known: these only ever add."""
        return min(self.recent) if self.disturbed and self.recent else self.estimate

    def add(self, seconds: float, *, disturbed: bool = False, passing: bool = False) -> None:
        """It took so long. A disturbance that is `passing` ends by itself, so it is never what is usual."""
        if disturbed and self.recent and not self.disturbed:
            if seconds >= (self.estimate or 0.0):
                self._passed_over += not passing
                if self._passed_over < MAX_NOISY_SAMPLES:
                    return
                self.recent.clear()
            else:
                disturbed = False
        elif self.disturbed and not disturbed:
            # Disturbances only ever add: without them those had taken no longer than this one.
            self.recent[:] = [min(each, seconds) for each in self.recent]
        self._passed_over = 0
        self.disturbed = disturbed
        self.recent.append(seconds)
        if len(self.recent) > self.WINDOW:
            del self.recent[0]


def median(values: Sequence[float]) -> float:
    """The median. `statistics.median` takes five times as long, and every call needs one."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


#: How many real calls a candidate has before its time counts as known.
TRIAL_CALLS = RecentTimes.FEW


class CandidateHistory(RecentTimes):
    """The recent calls of one candidate, and when it is tried again.

    They are disturbed if they were taken beside a trial in the background, or while something else had the processors.
    """

    __slots__ = (
        "agreed",
        "calls",
        "due",
        "failures",
        "interval",
        "rough",
        "samples",
        "suspended",
        "trying",
        "unchecked",
        "why_failed",
        "won",
    )

    def __init__(self) -> None:
        """A candidate without calls or failures.

        Its first sample comes after `FIRST_INTERVAL` calls.
        """
        super().__init__()
        #: Calls and trials that the history has not been told of.
        self.calls = 0
        #: Of its last background run.
        self.rough: float | None = None
        self.trying = False
        self.won = False
        #: The call from which on it may be tried again.
        self.due = 0
        self.interval = FIRST_INTERVAL
        self.failures = 0
        self.suspended = False
        self.why_failed = ""
        #: Whether its results have been compared with NumPy's and agreed.
        self.agreed = False
        #: Calls since then, and how often they were compared again.
        self.unchecked = 0
        self.samples = 0

    @property
    def known(self) -> bool:
        return len(self.recent) >= TRIAL_CALLS

    @property
    def is_tried(self) -> bool:
        """Whether it has been run, or could not be."""
        return bool(self.recent) or self.rough is not None or self.suspended


class WaitingTimes(ABC):
    """How long candidates are busy, where there are too many to list: it is asked, and knows who is free soonest."""

    @abstractmethod
    def get(self, name: str, default: float = 0.0, /) -> float:
        """Seconds; 0 for one that is free."""

    def __getitem__(self, name: str) -> float:
        return self.get(name)

    @abstractmethod
    def soonest(self, most: int) -> Iterable[str]:
        """At most so many that are free now, or so many that will be first if none is."""


class DeviceChoice(NamedTuple):
    """The candidate of the next call, and why."""

    candidate: str
    kind: ChoiceKind
    #: One sentence: why.
    sentence: str
    #: For a sample: the device that it checks.
    checks: str | None = None


# -- the sampling rate of a trusted device
#
# Whose results are compared with NumPy: a pure function of call times.


#: The cost of samples, as a share of the time of calls on the device: more while a device is new here. It is new
#: in every process, and whenever it was opened again, so a new driver or version is looked at more often as well.
FRESH_SHARE, SHARE = 0.01, 0.005
#: Samples that are taken at the larger share.
FRESH_SAMPLES = 10


def calls_between_samples(home: float, device: float, copying: float, *, samples: int = 0) -> int:
    """After so many calls on a device, at most, the next one is a sample; a device that turned wrong is found by it.

    A sample runs on NumPy, which takes `home` instead of `device` seconds; its inputs and results are copied, and the
    device computes the same once more in the background. `samples` is how many there were before.
    """
    if device <= 0:
        return 1
    share = FRESH_SHARE if samples < FRESH_SAMPLES else SHARE
    return math.ceil((max(home, device) + copying) / (share * device))


# -- whether to open a device for calls that may or may not come
#
# Renting or buying skis, with a forecast.
#
# NumPy is rented: every call costs its time. A device is bought: opening it and compiling cost once, and calls are
# cheaper from then on. A history forecasts how many calls will come and what they take on the device. It may be wrong
# in every number, so two rules bound what that can cost:
#
# - A device is opened on the word of a history only where its own forecast pays for that; without one, once calls
# have taken as long as opening would (`anygpu.calls.background`). - The first call there is the judge: if it takes
# more than twice what was remembered, and more than NumPy does, the next call is back on NumPy, and the history has
# no further say in this process.
#
# So whatever a history says, all calls together cost at most what they cost on NumPy, plus one opening and one call
# for each device that it praises. When it is right they cost at most the cheaper of both choices, plus the calls that
# run on NumPy while the device opens in the background.


#: A call that takes so many times what was remembered shows that the memory is wrong.
WRONG = 2.0
#: Less of a gain than this is noise.
LEAST_GAIN = 0.95


class Remembered(NamedTuple):
    """What a history says of a program on one device."""

    #: Of one call.
    seconds: float
    #: Of compiling it.
    compile: float
    #: That a process usually makes; 0 if that is not known.
    calls: int
    #: For people: "measured 3 days ago, 41 calls".
    source: str
    #: Whether it was measured only while something else had the processors.
    doubtful: bool = False


def remaining_calls(usual: int, made: int) -> int:
    """How many calls are still to be expected, when a process usually makes so many, and this one has made some.

    Beyond the usual number, or without one, as many again as there were.
    """
    return usual - made if usual > made else made


def is_worth_opening(remembered: Remembered, baseline: float, opening: float, made: int) -> bool:
    """Whether the calls that are expected pay for opening the device and compiling, going by the history."""
    if remembered.seconds > baseline * LEAST_GAIN:
        return False
    gain = (baseline - remembered.seconds) * remaining_calls(remembered.calls, made)
    return gain > opening + remembered.compile


def is_wrong(remembered: float, seconds: float, baseline: float) -> bool:
    """Whether the first call shows that the memory cannot be relied on."""
    return seconds > remembered * WRONG and seconds > baseline
