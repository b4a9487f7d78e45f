"""Watches what is folded and sampled for what is not as it was, and says each thing once.

It holds the state that the pure functions of `anomalies` and `forecasts` need, in a fixed memory, and no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from anygpu.base.units import readable_bytes, readable_seconds
from anygpu.hardware.usage.usage import Usage
from anygpu.observe.anomalies import LEAST_SAMPLES, Forecast, Leak, LevelWatch, leak, time_until
from anygpu.observe.snapshot import Anomaly, DeviceMemory
from anygpu.observe.statistics import Batch, Times

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


class Sample(NamedTuple):
    """Memory of the process and readings of its devices at a moment."""

    #: Bytes of the process itself, on the host.
    memory_bytes: int
    #: Memory that it holds on devices.
    memory: Mapping[str, DeviceMemory]
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


class Watch:
    """Watches one process. For one thread at a time."""

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

    def add_calls(self, seen: Iterable[Batch], now: float) -> list[Anomaly]:
        """Calls that have ended; `now` is in seconds since 1970."""
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

    def _level(self, key: tuple[str, str], run: Times, now: float) -> None:
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
            Anomaly(
                kind="slower than predicted",
                subject=key[0],
                device=key[1],
                sentence=f"{key[0]} takes {usual:.1f} times as long on {key[1]} as predicted. Placement learns from "
                "what it measures; `anygpu calibrate` measures the device again.",
                time=now,
            ),
            holds=usual > _TOO_SLOW,
            over=usual < _FINE,
        )

    def add_sample(self, sample: Sample, now: float) -> list[Anomaly]:
        """Add a sample, at a time in seconds since 1970; returns new anomalies."""
        found = self._lasting(now)
        found += self._grows("host", None, sample.memory_bytes, sample.limits.get("host"), now)
        for device, held in sample.memory.items():
            found += self._grows(device, device, held.bytes, sample.limits.get(device), now)
        for device, each in sample.usage.items():
            reasons = each.throttled or ()
            found += self._once(
                Anomaly(
                    kind="throttled",
                    subject=device,
                    device=device,
                    sentence=f"{device} runs slower than it could: {', '.join(reasons)}.",
                    time=now,
                ),
                holds=bool(reasons),
                over=not reasons,
            )
        return found

    def _grows(self, name: str, device: str | None, held: int, limit: int | None, now: float) -> list[Anomaly]:
        samples = self._memory.get(name)
        if samples is None:
            samples = self._memory[name] = _Samples()
        samples.add(now, self._calls, held)
        where = "this process" if device is None else f"this process on {device}"
        found: list[Anomaly] = []
        leaking = samples.leak()
        if leaking is not None:
            each = f"{readable_bytes(int(leaking.bytes_per_step))} a call"
            found += self._once(
                Anomaly(
                    kind="leak",
                    subject=name,
                    device=device,
                    sentence=f"The memory of {where} only grows: {readable_bytes(leaking.grown)} so far, {each}.",
                    time=now,
                ),
                holds=True,
                over=False,
            )
        else:
            self._said.discard(("leak", name, device))
        soon = samples.time_until(limit) if limit is not None and leaking is not None else None
        if soon is not None:
            found += self._once(
                Anomaly(
                    kind="memory runs out",
                    subject=name,
                    device=device,
                    sentence=f"At this rate the memory of {where} is full {_when(soon)}.",
                    time=now,
                ),
                holds=soon.seconds < _SOON,
                over=soon.earliest > _SOON,
            )
        return found

    def _once(self, anomaly: Anomaly, *, holds: bool, over: bool) -> list[Anomaly]:
        key = (anomaly.kind, anomaly.subject, anomaly.device)
        if over:
            self._said.discard(key)
        if not holds or key in self._said:
            return []
        self._said.add(key)
        return [anomaly]


class _Samples:
    """Samples of one memory: lately in detail, and coarsely for some hours, so that a slow leak is seen as well."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._fine: deque[tuple[float, int, int]] = deque(maxlen=_SAMPLES)
        self._coarse: deque[tuple[float, int, int]] = deque(maxlen=_SAMPLES)

    def add(self, now: float, calls: int, held: int) -> None:
        if self._first is None:
            self._first = now
        if now - self._first < _SETTLING:
            return
        self._fine.append((now, calls, held))
        if not self._coarse or now - self._coarse[-1][0] >= _COARSE_SECONDS:
            self._coarse.append((now, calls, held))

    def leak(self) -> Leak | None:
        for kept in (self._fine, self._coarse):
            found = leak([(float(calls), held) for _, calls, held in kept])
            if found is not None:
                return found
        return None

    def time_until(self, limit: int) -> Forecast | None:
        kept = self._coarse if len(self._coarse) >= 2 * LEAST_SAMPLES else self._fine
        return time_until(limit, [(time, float(held)) for time, _, held in kept])


def _changed(kind: str, key: tuple[str, str], before: float, after: float, now: float) -> Anomaly:
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
    middle = readable_seconds(soon.seconds)
    if soon.latest == float("inf"):
        return f"in about {middle}, {readable_seconds(soon.earliest)} at the earliest"
    bounds = f"{readable_seconds(soon.earliest)} and {readable_seconds(soon.latest)}"
    return f"in about {middle} (nine times in ten between {bounds})"
