"""Watches what is folded and sampled for what is not as it was, and says each thing once.

The first half has no state of a process: `LevelWatch` finds a change in a series of times, `leak` finds memory that
only grows, and `time_until` says when it runs out. `ProcessWatch` feeds them, in a fixed memory and without a clock.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from anygpu.base.units import readable_bytes, readable_seconds
from anygpu.hardware.usage import Usage
from anygpu.observe.snapshot import Anomaly, DeviceMemoryUse
from anygpu.observe.statistics import CallBatch, CallTimes

# -- detects changes in series: a function that became slower, memory that only grows, and when it runs out
#
# One slow call is no anomaly; a change of the level is. Evidence for it is summed up call by call, as in Page's CUSUM:
# the logarithm of how much likelier a call is if everything takes longer by half than if nothing has changed. One call
# counts for a quarter of what is needed at most, however long it took, because times have long tails.


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
    """When a limit will be reached, from samples of (seconds, bytes), the newest last.

    What grows by steps of changing size is a random walk with a drift. Neither the drift nor the size of the steps is
    known exactly, so each of many ways draws both, as likely as they are after what was seen, and then walks. The ways
    are the same for the same samples. `None` if there are too few samples, or nothing grows.
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
        """How many times as long calls take now."""
        return self.after / self.before

    def __str__(self) -> str:
        return f"has taken {self.factor:.1f} times as long for the last {self.calls_ago} calls"


class LevelWatch:
    """Watches the times of one function on one device, call by call, by Page's CUSUM on their logarithms.

    The usual level is the median of calls without evidence of a change; after a change it is learnt anew.
    """

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
        """The change to the level of the latest calls; what comes is compared with that."""
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
        """Keeps a time for the usual level, in place of the oldest if there are enough."""
        times = self._usual_times
        if len(times) < _REMEMBERED:
            times.append(time)
        else:
            times[self._next] = time
            self._next = (self._next + 1) % _REMEMBERED

    def _learn(self) -> None:
        """Takes the usual level and spread from the remembered times, by medians."""
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


#: Functions on devices that are watched; a program with more of them is watched in part.
MOST_WATCHED = 400
#: Calls between two looks above which groups of calls of a function are watched by their medians: what
#: watching takes of each call stays below a tenth of a microsecond.
MOST_VALUES = 16

#: A function that takes less time is not watched: what it would say is mostly about the machine.
_LEAST_WATCHED = 2e-4
#: A change is told when most calls of so many seconds after it were slower by so much. Another program that comes and
#: goes is none.
_LASTING, _STILL_SLOWER, _AS_BEFORE = 30.0, 1.3, 1.15
#: Values that are remembered of these seconds.
_MOST_AFTER = 100

#: Calls that a prediction is judged by, and how far off the typical one is when it is worth a sentence.
_JUDGED, _TOO_SLOW, _FINE = 50, 2.0, 1.4
#: Calls that are shorter are not worth a prediction.
_LEAST_SECONDS = 1e-3

#: Samples of memory that are remembered, and the seconds between those that are kept for longer.
_SAMPLES, _COARSE_SECONDS = 240, 60.0
#: Programs that begin fill their caches: this many seconds are not looked at.
_SETTLING = 60.0
#: A forecast is said when memory may be full within this time.
_SOON = 3600.0


class MemorySample(NamedTuple):
    """Memory of the process and readings of its devices at a moment."""

    #: Bytes of the process itself, on the host.
    memory_bytes: int
    #: Memory that it holds on devices.
    memory: Mapping[str, DeviceMemoryUse]
    usage: Mapping[str, Usage]
    #: Bytes that there are: of each device, and of the machine as "host".
    limits: Mapping[str, int]


class _Slowdown(NamedTuple):
    """A function that may have become slower on one device."""

    #: Seconds that were usual before.
    before: float
    #: When it was found, or looked at for the last time.
    since: float
    #: Seconds of the calls since then.
    after: deque[float]


class ProcessWatch:
    """Watches one process. For one thread at a time.

    Each anomaly is returned once, and again only after it was over. Times are in seconds since 1970, as arguments.
    """

    def __init__(self) -> None:
        self._levels: dict[tuple[str, str], LevelWatch] = {}
        #: Changes that have not lasted long enough, and those that were told.
        self._doubtful: dict[tuple[str, str], _Slowdown] = {}
        self._slower: dict[tuple[str, str], _Slowdown] = {}
        self._ratios: dict[tuple[str, str], deque[float]] = {}
        #: Anomalies that were reported and still hold.
        self._said: set[tuple[str, str, str | None]] = set()
        self._memory: dict[str, _Samples] = {}
        self._calls = 0

    def add_calls(self, seen: Iterable[CallBatch], now: float) -> list[Anomaly]:
        """Takes in calls that have ended, and returns new anomalies.

        They are about functions that are slower than they were, or than predicted. Calls that raised are not watched.
        """
        found = self._lasting(now)
        for batch in seen:
            self._calls += len(batch.seconds)
            if batch.failures:
                continue
            key = (batch.function, batch.device)
            self._level(key, batch.run, now)
            ratios = [
                float(run) / receipt.predicted_seconds
                for run, receipt in zip(batch.run, batch.receipts, strict=False)
                if receipt.predicted_seconds and receipt.predicted_seconds >= _LEAST_SECONDS
            ]
            if ratios:
                found += self._predictions(key, ratios, now)
        return found

    def _level(self, key: tuple[str, str], run: CallTimes, now: float) -> None:
        """Watches the times of one function; a slowdown that is found is doubtful until it has lasted.

        Of many calls at once the medians of groups are watched.
        """
        watch = self._levels.get(key)
        if watch is None:
            if len(self._levels) >= MOST_WATCHED or np.median(run) < _LEAST_WATCHED:
                return
            watch = self._levels[key] = LevelWatch()
        if len(run) > MOST_VALUES:
            each = len(run) // MOST_VALUES
            run = np.median(run[: each * MOST_VALUES].reshape(MOST_VALUES, each), axis=1)
        values = run.tolist()
        for slowdown in (self._doubtful.get(key), self._slower.get(key)):
            if slowdown is not None:
                slowdown.after.extend(values)
        for value in values:
            change = watch.add(value)
            # That a function is as fast as ever is news only to those who know that it was not.
            if change is not None and change.kind == "slower" and key not in self._slower:
                self._doubtful.setdefault(key, _Slowdown(change.before, now, deque([value], _MOST_AFTER)))

    def _lasting(self, now: float) -> list[Anomaly]:
        """The slowdowns that have lasted for `_LASTING` seconds, and those that are over."""
        found: list[Anomaly] = []
        for key, slowdown in list(self._doubtful.items()):
            if now - slowdown.since >= _LASTING:
                del self._doubtful[key]
                level = float(np.median(slowdown.after))
                if level >= _STILL_SLOWER * slowdown.before and level >= _LEAST_WATCHED:
                    self._slower[key] = slowdown._replace(since=now, after=deque(maxlen=_MOST_AFTER))
                    found.append(_changed("slower", key, slowdown.before, level, now))
        for key, slowdown in list(self._slower.items()):
            if now - slowdown.since >= _LASTING and slowdown.after:
                level = float(np.median(slowdown.after))
                if level <= _AS_BEFORE * slowdown.before:
                    del self._slower[key]
                    found.append(_changed("faster", key, slowdown.before, level, now))
                else:
                    self._slower[key] = slowdown._replace(since=now, after=deque(maxlen=_MOST_AFTER))
        return found

    def _predictions(self, key: tuple[str, str], values: list[float], now: float) -> list[Anomaly]:
        """An anomaly if three of four of the last calls took twice as long as predicted."""
        ratios = self._ratios.get(key)
        if ratios is None:
            if len(self._ratios) >= MOST_WATCHED:
                return []
            ratios = self._ratios[key] = deque(maxlen=_JUDGED)
        ratios.extend(values)
        if len(ratios) < _JUDGED:
            return []
        # Not the median: three of four calls have to be as slow as that, so that a busy minute is no finding.
        usual = float(np.quantile(ratios, 0.25))
        return self._once(
            "slower than predicted",
            key,
            f"{key[0]} takes {usual:.1f} times as long on {key[1]} as predicted. Placement learns from what it "
            "measures; `anygpu devices --calibrate` measures the device again.",
            now,
            holds=usual > _TOO_SLOW,
            over=usual < _FINE,
        )

    def add_sample(self, sample: MemorySample, now: float) -> list[Anomaly]:
        """Add a sample, at a time in seconds since 1970; returns new anomalies."""
        found = self._lasting(now)
        found += self._grows("host", None, sample.memory_bytes, sample.limits.get("host"), now)
        for device, held in sample.memory.items():
            found += self._grows(device, device, held.bytes, sample.limits.get(device), now)
        for device, each in sample.usage.items():
            reasons = each.throttled or ()
            slower = f"{device} runs slower than it could: {', '.join(reasons)}."
            found += self._once("throttled", (device, device), slower, now, holds=bool(reasons), over=not reasons)
        return found

    def _grows(self, name: str, device: str | None, held: int, limit: int | None, now: float) -> list[Anomaly]:
        """Adds a sample of one memory; anomalies if it only grows, and if it will be full within the hour."""
        samples = self._memory.get(name)
        if samples is None:
            samples = self._memory[name] = _Samples()
        samples.add(now, self._calls, held)
        where = "this process" if device is None else f"this process on {device}"
        found: list[Anomaly] = []
        leaking = samples.leak()
        if leaking is not None:
            each = f"{readable_bytes(int(leaking.bytes_per_step))} a call"
            grows = f"The memory of {where} only grows: {readable_bytes(leaking.grown)} so far, {each}."
            found += self._once("leak", (name, device), grows, now, holds=True, over=False)
        else:
            self._said.discard(("leak", name, device))
        soon = samples.time_until(limit) if limit is not None and leaking is not None else None
        if soon is not None:
            full = f"At this rate the memory of {where} is full {_when(soon)}."
            holds, over = soon.seconds < _SOON, soon.earliest > _SOON
            found += self._once("memory runs out", (name, device), full, now, holds=holds, over=over)
        return found

    def _once(
        self, kind: str, about: tuple[str, str | None], sentence: str, now: float, *, holds: bool, over: bool
    ) -> list[Anomaly]:
        """An anomaly of a subject and a device, if it holds and was not told since it was last over."""
        key = (kind, *about)
        if over:
            self._said.discard(key)
        if not holds or key in self._said:
            return []
        self._said.add(key)
        subject, device = about
        return [Anomaly(kind=kind, subject=subject, device=device, sentence=sentence, time=now)]


class _Samples:
    """Samples of one memory: lately in detail, and coarsely for some hours, so that a slow leak is seen as well."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._fine: deque[tuple[float, int, int]] = deque(maxlen=_SAMPLES)
        self._coarse: deque[tuple[float, int, int]] = deque(maxlen=_SAMPLES)

    def add(self, now: float, calls: int, held: int) -> None:
        """Keeps a sample, but for the first minute of a process, in which caches fill."""
        if self._first is None:
            self._first = now
        if now - self._first < _SETTLING:
            return
        self._fine.append((now, calls, held))
        if not self._coarse or now - self._coarse[-1][0] >= _COARSE_SECONDS:
            self._coarse.append((now, calls, held))

    def leak(self) -> Leak | None:
        """A leak by the detailed samples, or by the coarse ones; steps are calls."""
        for kept in (self._fine, self._coarse):
            found = leak([(float(calls), held) for _, calls, held in kept])
            if found is not None:
                return found
        return None

    def time_until(self, limit: int) -> Forecast | None:
        """When the limit will be reached, by the coarse samples if there are enough."""
        kept = self._coarse if len(self._coarse) >= 2 * LEAST_SAMPLES else self._fine
        return time_until(limit, [(time, float(held)) for time, _, held in kept])


def _changed(kind: str, key: tuple[str, str], before: float, after: float, now: float) -> Anomaly:
    """The anomaly for a function that became slower, or as fast as before."""
    function, device = key
    if kind == "faster":
        sentence = f"{function} on {device} is as fast as before: {readable_seconds(after)}."
    else:
        sentence = f"{function} on {device} takes {after / before:.1f} times as long as it did: "
        sentence += f"{readable_seconds(after)} instead of {readable_seconds(before)}."
        if device != "numpy":
            sentence += " Placement compares it with the other devices again."
    return Anomaly(kind=kind, subject=function, device=device, sentence=sentence, time=now)


def _when(soon: Forecast) -> str:
    """A forecast in words, with its bounds."""
    middle = readable_seconds(soon.seconds)
    if soon.latest == float("inf"):
        return f"in about {middle}, {readable_seconds(soon.earliest)} at the earliest"
    bounds = f"{readable_seconds(soon.earliest)} and {readable_seconds(soon.latest)}"
    return f"in about {middle} (nine times in ten between {bounds})"
