"""The history of calls: what programs took on devices, and how functions are usually called, in all processes.

New measurements are collected in memory, and `flush` writes them. Nothing here starts a thread, or raises for the state
of the disk; a flush waits at most `PATIENCE` for other processes.
"""

from __future__ import annotations

import os
import random
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from anygpu.base.forks import lock, rlock
from anygpu.base.interrupts import TryAcquire
from anygpu.base.units import readable_bytes, readable_seconds
from anygpu.errors import InvalidOption
from anygpu.placement.history.records import (
    MOST_CALLS,
    MOST_PROCESS,
    MOST_SECONDS,
    RECENT,
    Habit,
    HabitKey,
    HabitRow,
    Timing,
    TimingKey,
    TimingRow,
    habit_of,
    is_duration,
    is_hash,
    merged_timing,
    plain_name,
    timing_of,
)
from anygpu.placement.history.storage import HistoryFile, HistoryStorage, RowBatch, history_path

# -- the history in words for people. Pure functions of records and times


_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86_400.0


def age_text(when: float, now: float) -> str:
    """How long ago that was: "just now", "5 minutes ago", "3 days ago"."""
    age = now - when
    if age < _MINUTE:
        return "just now"
    for unit, word in ((_DAY, "day"), (_HOUR, "hour"), (_MINUTE, "minute")):
        if age >= unit:
            return f"{counted(int(age / unit), word)} ago"
    raise AssertionError("unreachable")


def counted(count: int, word: str) -> str:
    """ "1 call", "1,234 calls"."""
    return f"{count:,} {word}" + ("" if count == 1 else "es" if word.endswith("s") else "s")


def measured_text(timing: Timing, now: float) -> str:
    """The origin of a time: "measured 3 days ago, 41 calls"."""
    if timing.seconds is None:
        return f"never measured; compiled or compared {age_text(timing.when, now)}"
    where = ", on a busy machine" if timing.doubtful else ""
    return f"measured {age_text(timing.when, now)}, {counted(timing.calls, 'call')}{where}"


def agreement_text(timing: Timing, now: float) -> str:
    """Whether its results agreed with NumPy's, as a sentence."""
    if timing.peaks:
        if timing.disagreed is None:
            return "is an opaque task, which is not compared with NumPy"
        return f"had other results in one launch than in separate calls {age_text(timing.disagreed, now)}"
    if timing.device == "numpy":
        return "is what other devices are compared with"
    if timing.agreed:
        return "agreed with NumPy"
    if timing.disagreed is not None:
        return f"disagreed with NumPy {age_text(timing.disagreed, now)}"
    return "was not compared with NumPy"


def memory_text(timing: Timing, *, all_rows: bool = True) -> str:
    """The peak memory of an opaque task: "38.0 MiB for 1,000 rows, 76.0 MiB for 2,000 rows"; or for most rows only."""
    return ", ".join(
        readable_bytes(peak.bytes) + (f" for {counted(peak.rows, 'row')}" if peak.rows else "")
        for peak in (timing.peaks if all_rows else timing.peaks[-1:])
    )


def habit_text(habit: Habit, now: float) -> str:
    """The usual calls of a process: "a process makes 120 calls that take 3.1 s; 4 processes, the last 2 hours ago"."""
    return (
        f"a process makes {counted(habit.calls, 'call')} that take {readable_seconds(habit.seconds)}; "
        f"{counted(habit.processes, 'process')}, the last {age_text(habit.when, now)}"
    )


def latest_by_device(timings: Iterable[Timing]) -> tuple[Timing, ...]:
    """The latest timing of each device, the fastest first. Earlier ones are from another driver or version."""
    latest: dict[str, Timing] = {}
    for each in timings:
        known = latest.get(each.device)
        if known is None or (each.when, each.stamp) > (known.when, known.stamp):
            latest[each.device] = each
    return tuple(sorted(latest.values(), key=by_speed))


def by_speed(timing: Timing) -> tuple[float, str, str]:
    """The sort key of timings: the fastest first, and those without a time last."""
    return (float("inf") if timing.seconds is None else timing.seconds, timing.device, timing.stamp)


def consequence(timing: Timing, timings: Sequence[Timing], habit: Habit) -> str:
    """The consequence of one device's timing for the next process, as a sentence for `anygpu history`.

    `timings` are those of all devices, among which NumPy's is compared with; `habit` says how many calls have to pay
    for compiling.
    """
    numpy = next((each.seconds for each in timings if each.device == "numpy" and each.seconds is not None), None)
    if timing.peaks:
        return "Calls with other rows are predicted from that."
    if timing.seconds is None:
        return "Its speed is not known, so it has to be measured."
    if timing.device == "numpy":
        faster = [each for each in timings if each.device != "numpy" and _is_faster(each, timing.seconds)]
        return "A device is faster." if faster else "No device is known to be faster."
    if numpy is None:
        return "NumPy's own time is not known, so there is nothing to compare with."
    if not _is_faster(timing, numpy):
        return f"It is slower than numpy, which takes {readable_seconds(numpy)}."
    gain = numpy - timing.seconds
    times = (
        f"It is {numpy / timing.seconds:.3g} times as fast as numpy" if timing.seconds else "It is faster than numpy"
    )
    if not timing.agreed:
        return f"{times}, and its results have to be compared with NumPy's before they are used."
    if timing.compile and timing.compile > gain * habit.calls:
        needed = int(timing.compile / gain) + 1
        usual = counted(habit.calls, "call")
        return f"{times}, but compiling pays only after {counted(needed, 'call')}, and a process makes {usual}."
    return f"{times}."


def _is_faster(timing: Timing, seconds: float) -> bool:
    """Whether a device was measured, and took less than so many seconds."""
    return timing.seconds is not None and timing.seconds < seconds


#: Seconds that a flush waits for other processes.
PATIENCE = 0.05
#: Rows that are collected before they are written, and functions whose calls are counted; the oldest are dropped.
MOST_COLLECTED = 1024

VARIABLE = "ANYGPU_HISTORY"
#: on: all is kept. anonymous: all but the names of functions. off: nothing is kept, and nothing is read.
Setting = Literal["on", "anonymous", "off"]


class CallHistory(Protocol):
    """The part of `History` that placement uses; tests replace it.

    Arguments are hashes of `records`: of a program, of a function, of a signature, and the stamp of a device.
    """

    def timings(self, program: str) -> tuple[Timing, ...]: ...

    def habit(self, function: str, signature: str) -> Habit | None: ...

    def ran(
        self, program: str, device: str, stamp: str, seconds: float, calls: int = 1, *, disturbed: bool = False
    ) -> None: ...

    def compiled(self, program: str, device: str, stamp: str, seconds: float) -> None: ...

    def peaked(self, program: str, device: str, stamp: str, rows: int, nbytes: int) -> None: ...

    def agreed(self, program: str, device: str, stamp: str) -> None: ...

    def disagreed(self, program: str, device: str, stamp: str) -> None: ...

    def called(
        self,
        function: str,
        signature: str,
        seconds: float,
        calls: int = 1,
        *,
        name: str | None = None,
        program: str | None = None,
    ) -> None: ...

    def flush(self, seconds: float = PATIENCE) -> bool: ...


def setting(environment: Mapping[str, str] | None = None) -> Setting:
    """The value of `ANYGPU_HISTORY`; raises `InvalidOption` for one that is none of `Setting`."""
    given = (os.environ if environment is None else environment).get(VARIABLE) or "on"
    known: tuple[Setting, ...] = get_args(Setting)
    for each in known:
        if given == each:
            return each
    listed = ", ".join(f'"{each}"' for each in known)
    raise InvalidOption(f"{VARIABLE} is one of {listed}; got {given!r}.")


def open_history(environment: Mapping[str, str] | None = None, *, clock: Callable[[], float] = time.time) -> History:
    """The user's history, as the environment says. Nothing is opened before it is used."""
    chosen = setting(environment)
    if chosen == "off":
        return History(None)
    return History(history_path(), names=chosen == "on", clock=clock)


class History:
    """Timings and habits of this process and of others. Any thread may use it.

    Hashes are those of `anygpu.placement.history.records`, and keys of programs. `path` is the file, or any other
    storage; with `None` nothing is read or stored.
    """

    def __init__(
        self, path: Path | HistoryStorage | None, *, names: bool = True, clock: Callable[[], float] = time.time
    ) -> None:
        self._storage: HistoryStorage | None = HistoryFile(path, clock=clock) if isinstance(path, Path) else path
        self._names = names
        self._clock = clock
        self._lock = lock()
        self._flushing = rlock()
        self._begin_anew()
        _all.add(self)

    def _begin_anew(self) -> None:
        """Forget what was collected. A forked child does this too: its parent writes those rows."""
        #: Identifies this process in habits; a forked child gets another number.
        self._process = random.SystemRandom().randint(0, MOST_PROCESS)
        self._timings: dict[TimingKey, _Collected] = {}
        self._habits: dict[HabitKey, _Calls] = {}
        #: Habits that changed since they were last written.
        self._changed: set[HabitKey] = set()
        self._used_programs: set[str] = set()
        self._used_habits: set[HabitKey] = set()

    # -- reading

    def timings(self, program: str) -> tuple[Timing, ...]:
        """The timings of a program on all devices and with all stamps, the fastest first.

        They are those of the file, merged with what this process has not written yet. Reading them delays their removal
        from the file.
        """
        if self._storage is None or not is_hash(program):
            return ()
        rows = self._storage.timings(program)
        now = self._clock()
        with self._lock:
            if rows:
                _add_bounded(self._used_programs, program)
            fresh = {key: each.row() for key, each in self._timings.items() if key.program == program}
        for key, row in fresh.items():
            rows[key] = merged_timing(rows.get(key, TimingRow()), row, now)
        return tuple(sorted((timing_of(key, row) for key, row in rows.items()), key=by_speed))

    def habit(self, function: str, signature: str) -> Habit | None:
        """How other processes call the function with such arguments; `None` if none did."""
        if self._storage is None or not (is_hash(function) and is_hash(signature)):
            return None
        key = HabitKey(function, signature)
        row = self._storage.habit(key)
        found = None if row is None else habit_of(key, row, without=self._process)
        if found is not None:
            with self._lock:
                _add_bounded(self._used_habits, key)
        return found

    # -- recording

    def ran(
        self, program: str, device: str, stamp: str, seconds: float, calls: int = 1, *, disturbed: bool = False
    ) -> None:
        """Record calls that took about `seconds` each; `disturbed` if other processes used the processors meanwhile.

        Values that are no plausible duration are dropped without a word, here and in the other methods.
        """
        if self._storage is None or not is_duration(seconds) or calls < 1:
            return
        now = self._clock()
        with self._lock:
            each = self._collected(program, device, stamp)
            (each.disturbed if disturbed else each.recent).append((now, float(seconds)))
            each.calls = min(each.calls + calls, MOST_CALLS)

    def compiled(self, program: str, device: str, stamp: str, seconds: float) -> None:
        """Record the time of a compilation."""
        if self._storage is None or not is_duration(seconds):
            return
        with self._lock:
            self._collected(program, device, stamp).compile = self._clock(), float(seconds)

    def peaked(self, program: str, device: str, stamp: str, rows: int, nbytes: int) -> None:
        """Record the peak memory of a call of an opaque task with that many rows."""
        if self._storage is None or rows < 0 or nbytes < 0:
            return
        with self._lock:
            peaks = self._collected(program, device, stamp).peaks
            peaks.pop(rows, None)
            peaks[rows] = self._clock(), min(nbytes, MOST_CALLS)
            if len(peaks) > RECENT:
                del peaks[next(iter(peaks))]

    def agreed(self, program: str, device: str, stamp: str) -> None:
        """Record that results agreed with NumPy's."""
        if self._storage is None:
            return
        with self._lock:
            self._collected(program, device, stamp).agreed = self._clock()

    def disagreed(self, program: str, device: str, stamp: str) -> None:
        """Record that results differed from NumPy's, which invalidates earlier agreement and timings."""
        if self._storage is None:
            return
        with self._lock:
            each = self._collected(program, device, stamp)
            each.disagreed, each.agreed = self._clock(), 0.0
            each.recent.clear()
            each.disturbed.clear()

    def called(
        self,
        function: str,
        signature: str,
        seconds: float,
        calls: int = 1,
        *,
        name: str | None = None,
        program: str | None = None,
    ) -> None:
        """Record more calls of a function on any device, which took `seconds` in total.

        `name` is kept only if the user allows names; `program` is the key of the program that it was traced to.
        """
        if (
            self._storage is None
            or not is_duration(seconds)
            or calls < 1
            or not (is_hash(function) and is_hash(signature))
        ):
            return
        key = HabitKey(function, signature)
        with self._lock:
            each = self._habits.get(key)
            if each is None:
                _make_place(self._habits)
                each = self._habits[key] = _Calls()
            each.calls = min(each.calls + calls, MOST_CALLS)
            each.seconds = min(each.seconds + seconds, MOST_SECONDS)
            each.when = self._clock()
            each.name = plain_name(name) if name is not None and self._names else None
            each.program = program if program is not None and is_hash(program) else each.program
            self._changed.add(key)

    def flush(self, seconds: float = PATIENCE) -> bool:
        """Merge what was collected into the file; returns whether that was done.

        If other processes have it locked for longer than `seconds`, everything stays for the next flush.
        """
        if self._storage is None:
            return True
        with TryAcquire(self._flushing) as acquired:
            return acquired and self._write(self._storage, seconds)

    # -- internals

    def _write(self, storage: HistoryStorage, seconds: float) -> bool:
        """Write a batch of rows; whether that was done. What was not written stays for the next time."""
        batch = self._take()
        # Also after an interrupt: then it is not known what was written, and twice is worse than not at all.
        done = True
        try:
            done = not batch or storage.add(batch, seconds)
            return done
        finally:
            self._finish(batch, done)

    def _collected(self, program: str, device: str, stamp: str) -> _Collected:
        """The measurements of a program on a device that were not written yet. The caller must hold the lock."""
        key = TimingKey(program, device, stamp)  # checked when it is written, because this is done in each call
        found = self._timings.get(key)
        if found is None:
            _make_place(self._timings)
            found = self._timings[key] = _Collected()
        return found

    def _take(self) -> RowBatch:
        """Take what was collected out of memory, as one batch of rows to be written."""
        with self._lock:
            batch = RowBatch(
                {key: each.row() for key, each in self._timings.items() if is_hash(key.program) and is_hash(key.stamp)},
                {key: self._habits[key].row(self._process) for key in self._changed if key in self._habits},
                self._used_programs,
                self._used_habits,
            )
            self._timings = {}
            self._changed, self._used_programs, self._used_habits = set(), set(), set()
        return batch

    def _finish(self, batch: RowBatch, done: bool) -> None:
        """Note that the rows were written, or put them back."""
        with self._lock:
            for habit in batch.habits:
                if not done:
                    self._changed.add(habit)
                elif habit in self._habits:
                    self._habits[habit].is_counted = True
            for key, row in ({} if done else batch.timings).items():
                mine = self._timings.get(key)
                self._timings[key] = _Collected(merged_timing(row, mine.row()) if mine is not None else row)
            for key in list(self._timings)[:-MOST_COLLECTED]:
                del self._timings[key]


class _Collected:
    """Measurements of a program on a device that were not written yet."""

    __slots__ = ("agreed", "calls", "compile", "disagreed", "disturbed", "peaks", "recent")

    def __init__(self, row: TimingRow | None = None) -> None:
        row = row if row is not None else TimingRow()
        self.recent: deque[tuple[float, float]] = deque(row.recent, RECENT)
        self.disturbed: deque[tuple[float, float]] = deque(row.disturbed, RECENT)
        self.calls = row.calls
        self.compile = row.compile
        self.agreed = row.agreed
        self.disagreed = row.disagreed
        #: Time and bytes by rows.
        self.peaks = {rows: (when, peak) for when, rows, peak in row.peaks}

    def row(self) -> TimingRow:
        """These measurements as a row that can be merged into the stored one."""
        return TimingRow(
            tuple(self.recent),
            self.calls,
            self.compile,
            self.agreed,
            self.disagreed,
            tuple(self.disturbed),
            tuple((when, rows, peak) for rows, (when, peak) in self.peaks.items()),
        )


class _Calls:
    """All calls of a function by this process."""

    __slots__ = ("calls", "is_counted", "name", "program", "seconds", "when")

    def __init__(self) -> None:
        self.calls = 0
        self.seconds = 0.0
        self.when = 0.0
        self.name: str | None = None
        self.program: str | None = None
        #: Whether this process is counted in the file already.
        self.is_counted = False

    def row(self, process: int) -> HabitRow:
        """These calls as a row; it replaces what the process with this number has written before."""
        return HabitRow(
            name=(self.when, self.name),
            program=None if self.program is None else (self.when, self.program),
            processes=0 if self.is_counted else 1,
            recent=((process, self.when, self.calls, self.seconds),),
        )


_all: weakref.WeakSet[History] = weakref.WeakSet()


def _make_place(collected: dict[Any, Any]) -> None:
    """Remove the oldest entry of a table that is full."""
    if len(collected) >= MOST_COLLECTED:
        del collected[next(iter(collected))]


def _add_bounded(names: set[Any], name: Any) -> None:
    """Add a name to a set, unless the set is full."""
    if len(names) < MOST_COLLECTED:
        names.add(name)


def _in_child() -> None:
    """After a fork, in the child: forget what was collected in the parent."""
    for each in list(_all):
        each._begin_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
