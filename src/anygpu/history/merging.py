"""The rows that are kept, and how what two processes learnt becomes one row.

Merging is commutative and associative, so it does not matter who writes first: counts are added, recent samples are
those with the latest times of both, and of two values of one kind the later holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from anygpu.history.records import (
    LATEST,
    MOST_CALLS,
    Count,
    Habit,
    Hash,
    Moment,
    Name,
    Peak,
    Seconds,
    Timing,
    is_duration,
    is_moment,
)

#: Calls, or processes, whose median is what is usual: enough that a few odd ones do not count, and few enough that a
#: lasting change does, soon.
RECENT = 9
#: A time that is later than now by more than this comes from a clock that was wrong.
AHEAD = 86_400.0

#: The time of something, and what it took.
Measured = tuple[Moment, Seconds]
#: When it was measured, the rows of the arguments, and bytes.
MeasuredPeak = tuple[Moment, Count, Count]
#: A process is known by a random number, up to this.
MOST_PROCESS = (1 << 62) - 1
#: A process by its number, when it last called, how often in all, and what that took.
Spent = tuple[Annotated[int, Meta(ge=0, le=MOST_PROCESS)], Moment, Count, Seconds]


class TimingKey(msgspec.Struct, frozen=True, order=True):
    program: Hash
    device: Name
    stamp: Hash


class HabitKey(msgspec.Struct, frozen=True, order=True):
    function: Hash
    signature: Hash


class TimingRow(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What is kept of a program on a device; also what is to be added to that."""

    #: Of recent calls, the latest last.
    recent: Annotated[tuple[Measured, ...], Meta(max_length=RECENT)] = ()
    calls: Count = 0
    compile: Measured | None = None
    #: When results were last compared and agreed, or did not; 0 for never.
    agreed: Moment = 0.0
    disagreed: Moment = 0.0
    #: As `recent`, of calls while something else had the processors. Rows of earlier versions end before this.
    disturbed: Annotated[tuple[Measured, ...], Meta(max_length=RECENT)] = ()
    #: The peaks of an opaque task's memory: the latest for each number of rows, the latest last.
    peaks: Annotated[tuple[MeasuredPeak, ...], Meta(max_length=RECENT)] = ()

    @property
    def when(self) -> float:
        """When any of this was last measured; or else compared."""
        compiled = [self.compile] if self.compile else []
        measured = [each[0] for each in (*self.recent, *self.disturbed, *compiled, *self.peaks)]
        return max(measured, default=max(self.agreed, self.disagreed))

    @property
    def is_plausible(self) -> bool:
        pairs = [*self.recent, *self.disturbed, *([self.compile] if self.compile else [])]
        return all(is_moment(when) and is_duration(seconds) for when, seconds in pairs) and all(
            map(is_moment, (self.agreed, self.disagreed, *(when for when, _, _ in self.peaks)))
        )


class HabitRow(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What is kept of calls of a function with one kind of arguments; also what is to be added to that."""

    #: With the time of the call that said so.
    name: tuple[Moment, Name | None] = (0.0, None)
    program: tuple[Moment, Hash] | None = None
    processes: Count = 0
    #: Of recent processes, the latest last.
    recent: Annotated[tuple[Spent, ...], Meta(max_length=RECENT)] = ()

    @property
    def when(self) -> float:
        return max((when for _, when, _, _ in self.recent), default=self.name[0])

    @property
    def is_plausible(self) -> bool:
        moments = [self.name[0], *([self.program[0]] if self.program else [])]
        return all(map(is_moment, moments)) and all(
            is_moment(when) and is_duration(seconds) for _, when, _, seconds in self.recent
        )


def merged_timing(one: TimingRow, other: TimingRow, now: float = LATEST) -> TimingRow:
    """Both together. A disagreement makes what was measured and agreed before it void, whoever has it."""
    disagreed = max(_past(one.disagreed, now), _past(other.disagreed, now))
    recent, disturbed = (
        sorted(each for each in both if disagreed < each[0] <= now + AHEAD)
        for both in ((*one.recent, *other.recent), (*one.disturbed, *other.disturbed))
    )
    compiled = [each for each in (one.compile, other.compile) if each is not None and each[0] <= now + AHEAD]
    agreed = max(_past(one.agreed, now), _past(other.agreed, now))
    return TimingRow(
        recent=tuple(recent[-RECENT:]),
        calls=min(one.calls + other.calls, MOST_CALLS),
        compile=max(compiled, default=None),
        agreed=agreed if agreed > disagreed else 0.0,
        disagreed=disagreed,
        disturbed=tuple(disturbed[-RECENT:]),
        peaks=_merged_peaks((*one.peaks, *other.peaks), now),
    )


def _merged_peaks(both: Sequence[MeasuredPeak], now: float) -> tuple[MeasuredPeak, ...]:
    latest: dict[int, MeasuredPeak] = {}
    for each in both:
        if each[0] <= now + AHEAD:
            latest[each[1]] = max(each, latest.get(each[1], each))
    return tuple(sorted(latest.values())[-RECENT:])


def merged_habit(one: HabitRow, other: HabitRow, now: float = LATEST) -> HabitRow:
    """Both together. Of one process the latest word counts: it tells all its calls."""
    by_process: dict[int, Spent] = {}
    for each in (*one.recent, *other.recent):
        if each[1] <= now + AHEAD:
            known = by_process.get(each[0])
            by_process[each[0]] = each if known is None else max(known, each)
    recent = sorted(by_process.values(), key=lambda each: (each[1], each))
    names = [each for each in (one.name, other.name) if each[0] <= now + AHEAD]
    programs = [each for each in (one.program, other.program) if each is not None and each[0] <= now + AHEAD]
    return HabitRow(
        # Of two at one moment, that without a name: somebody did not want it kept.
        name=max(names, key=lambda each: (each[0], each[1] is None, each[1] or ""), default=(0.0, None)),
        program=max(programs, default=None),
        processes=min(one.processes + other.processes, MOST_CALLS),
        recent=tuple(recent[-RECENT:]),
    )


def timing_of(key: TimingKey, row: TimingRow) -> Timing:
    return Timing(
        program=key.program,
        device=key.device,
        stamp=key.stamp,
        seconds=_typical([seconds for _, seconds in row.recent or row.disturbed])
        if row.recent or row.disturbed
        else None,
        doubtful=bool(row.disturbed) and not row.recent,
        calls=row.calls,
        compile=row.compile[1] if row.compile is not None else None,
        agreed=row.agreed > 0.0,
        disagreed=row.disagreed or None,
        when=row.when,
        peaks=tuple(Peak(rows, peak) for rows, peak in sorted((rows, peak) for _, rows, peak in row.peaks)),
    )


def habit_of(key: HabitKey, row: HabitRow, *, without: int | None = None) -> Habit | None:
    """The habit; `None` if no process is known. `without` is a process that is not over, so it says nothing yet."""
    others = [each for each in row.recent if each[0] != without]
    if not others:
        return None
    return Habit(
        function=key.function,
        name=row.name[1],
        signature=key.signature,
        program=row.program[1] if row.program is not None else None,
        processes=max(row.processes - (len(others) < len(row.recent)), len(others)),
        calls=int(_median([calls for _, _, calls, _ in others])),
        seconds=_median([seconds for _, _, _, seconds in others]),
        when=max(when for _, when, _, _ in others),
    )


def _past(moment: float, now: float) -> float:
    return moment if moment <= now + AHEAD else 0.0


def _typical(seconds: Sequence[float]) -> float:
    # Of two calls one may have been the first, which pays for whatever is done once.
    return min(seconds) if len(seconds) <= 2 else _median(seconds)


def _median(values: Sequence[float]) -> float:
    """The lower one of two: no sum that might overflow, and always a value that there was."""
    return sorted(values)[(len(values) - 1) // 2]
