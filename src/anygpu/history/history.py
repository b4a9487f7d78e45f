"""The history of calls, as the rest of anygpu uses it: ask what is known, and tell what happened.

What is told is collected in memory, and `flush` writes it. Nothing here starts a thread, raises for what is on disk, or
waits longer than `PATIENCE` for it: whoever cannot be served now is served as if nothing were known.
"""

from __future__ import annotations

import os
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from anygpu.base.interrupts import TryAcquire
from anygpu.errors import InvalidOption
from anygpu.history.database import Database, history_path
from anygpu.history.merging import (
    MOST_PROCESS,
    RECENT,
    HabitKey,
    HabitRow,
    TimingKey,
    TimingRow,
    habit_of,
    merged_timing,
    timing_of,
)
from anygpu.history.records import MOST_CALLS, MOST_SECONDS, Habit, Timing, is_duration, is_hash, plain_name
from anygpu.history.storage import Batch, Storage
from anygpu.history.wording import by_speed

#: Nobody waits longer than this for the database.
PATIENCE = 0.05
#: What is collected before it is written, and functions whose calls are counted: the oldest go when there are more.
MOST_COLLECTED = 1024

VARIABLE = "ANYGPU_HISTORY"
#: on: all is kept. anonymous: all but the names of functions. off: nothing is kept, and nothing is read.
Setting = Literal["on", "anonymous", "off"]


class CallHistory(Protocol):
    """What placement needs of a history; `History` is the one that there is."""

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
    """What `ANYGPU_HISTORY` says."""
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
    """What calls took, in this process and in others. Any thread may use it.

    Hashes are those of `anygpu.history.keys`, and keys of programs. `path` is the database, or any other storage;
    `None` keeps nothing.
    """

    def __init__(
        self, path: Path | Storage | None, *, names: bool = True, clock: Callable[[], float] = time.time
    ) -> None:
        self._storage: Storage | None = Database(path, clock=clock) if isinstance(path, Path) else path
        self._names = names
        self._clock = clock
        self._begin_anew()
        _all.add(self)

    def _begin_anew(self) -> None:
        """Also in a child that was forked off: what was collected is the parent's, which will write it."""
        self._lock = threading.Lock()
        self._flushing = threading.RLock()
        #: One of these is a process to habits: a child that was forked off is another.
        self._process = random.SystemRandom().randint(0, MOST_PROCESS)
        self._timings: dict[TimingKey, _Collected] = {}
        self._habits: dict[HabitKey, _Calls] = {}
        #: Habits that have changed since they were written.
        self._changed: set[HabitKey] = set()
        self._used_programs: set[str] = set()
        self._used_habits: set[HabitKey] = set()

    # -- what is known

    def timings(self, program: str) -> tuple[Timing, ...]:
        """What the program took on each device, the fastest first; with each stamp that there was."""
        if self._storage is None or not is_hash(program):
            return ()
        rows = self._storage.timings(program, PATIENCE)
        now = self._clock()
        with self._lock:
            if rows:
                _add_bounded(self._used_programs, program)
            fresh = {key: each.row() for key, each in self._timings.items() if key.program == program}
        for key, row in fresh.items():
            rows[key] = merged_timing(rows.get(key, TimingRow()), row, now)
        return tuple(sorted((timing_of(key, row) for key, row in rows.items()), key=by_speed))

    def habit(self, function: str, signature: str) -> Habit | None:
        """How other processes have called the function with such arguments; `None` if none is known."""
        if self._storage is None or not (is_hash(function) and is_hash(signature)):
            return None
        key = HabitKey(function, signature)
        row = self._storage.habit(key, PATIENCE)
        found = None if row is None else habit_of(key, row, without=self._process)
        if found is not None:
            with self._lock:
                _add_bounded(self._used_habits, key)
        return found

    # -- what happened

    def ran(
        self, program: str, device: str, stamp: str, seconds: float, calls: int = 1, *, disturbed: bool = False
    ) -> None:
        """So many calls ran there, each of which took about so long; `disturbed` if others had the processors."""
        if self._storage is None or not is_duration(seconds) or calls < 1:
            return
        now = self._clock()
        with self._lock:
            each = self._collected(program, device, stamp)
            (each.disturbed if disturbed else each.recent).append((now, float(seconds)))
            each.calls = min(each.calls + calls, MOST_CALLS)

    def compiled(self, program: str, device: str, stamp: str, seconds: float) -> None:
        """Compiling it there took so long."""
        if self._storage is None or not is_duration(seconds):
            return
        with self._lock:
            self._collected(program, device, stamp).compile = self._clock(), float(seconds)

    def peaked(self, program: str, device: str, stamp: str, rows: int, nbytes: int) -> None:
        """A call of an opaque task with so many rows took so much memory there."""
        if self._storage is None or rows < 0 or nbytes < 0:
            return
        with self._lock:
            peaks = self._collected(program, device, stamp).peaks
            peaks.pop(rows, None)
            peaks[rows] = self._clock(), min(nbytes, MOST_CALLS)
            if len(peaks) > RECENT:
                del peaks[next(iter(peaks))]

    def agreed(self, program: str, device: str, stamp: str) -> None:
        """Its results there were compared with NumPy's, and agreed."""
        if self._storage is None:
            return
        with self._lock:
            self._collected(program, device, stamp).agreed = self._clock()

    def disagreed(self, program: str, device: str, stamp: str) -> None:
        """Its results there were wrong: that they agreed before, and what it took then, is forgotten."""
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
        """The function was called so many times more, which took so long together, wherever that was."""
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
        """Write what was collected, together with what other processes have written; whether all of it is written.

        It takes `seconds` at most, and what there is no time for stays for the next flush.
        """
        if self._storage is None:
            return True
        with TryAcquire(self._flushing) as acquired:
            return acquired and self._write(self._storage, seconds)

    # -- inside

    def _write(self, storage: Storage, seconds: float) -> bool:
        """Whether all of what was collected is written."""
        left: Batch | None = None
        batch = self._take()
        try:
            left = storage.add(batch, seconds) if batch else batch
            return not left
        finally:
            # Also when it was interrupted: then it is not known what was written, and twice is worse than not at all.
            self._put_back(batch, left if left is not None else Batch())

    def _collected(self, program: str, device: str, stamp: str) -> _Collected:
        """The caller must hold the lock."""
        key = TimingKey(program, device, stamp)  # which is looked at when it is written: this is done at each call
        found = self._timings.get(key)
        if found is None:
            _make_place(self._timings)
            found = self._timings[key] = _Collected()
        return found

    def _take(self) -> Batch:
        with self._lock:
            batch = Batch(
                {key: each.row() for key, each in self._timings.items() if is_hash(key.program) and is_hash(key.stamp)},
                {key: self._habits[key].row(self._process) for key in self._changed if key in self._habits},
                self._used_programs,
                self._used_habits,
            )
            self._timings = {}
            self._changed, self._used_programs, self._used_habits = set(), set(), set()
        return batch

    def _put_back(self, batch: Batch, left: Batch) -> None:
        with self._lock:
            for key, row in left.timings.items():
                mine = self._timings.get(key)
                self._timings[key] = _Collected(merged_timing(row, mine.row()) if mine is not None else row)
            for key in list(self._timings)[:-MOST_COLLECTED]:
                del self._timings[key]
            for habit in batch.habits:
                if habit in left.habits:
                    self._changed.add(habit)
                elif habit in self._habits:
                    self._habits[habit].is_counted = True


class _Collected:
    """What a program did on a device and was not written yet."""

    __slots__ = ("agreed", "calls", "compile", "disagreed", "disturbed", "peaks", "recent")

    def __init__(self, row: TimingRow | None = None) -> None:
        row = row if row is not None else TimingRow()
        self.recent: deque[tuple[float, float]] = deque(row.recent, RECENT)
        self.disturbed: deque[tuple[float, float]] = deque(row.disturbed, RECENT)
        self.calls = row.calls
        self.compile = row.compile
        self.agreed = row.agreed
        self.disagreed = row.disagreed
        #: By rows, when it was measured and bytes.
        self.peaks = {rows: (when, peak) for when, rows, peak in row.peaks}

    def row(self) -> TimingRow:
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
        #: Whether this process is among those that are kept.
        self.is_counted = False

    def row(self, process: int) -> HabitRow:
        return HabitRow(
            name=(self.when, self.name),
            program=None if self.program is None else (self.when, self.program),
            processes=0 if self.is_counted else 1,
            recent=((process, self.when, self.calls, self.seconds),),
        )


_all: weakref.WeakSet[History] = weakref.WeakSet()


def _make_place(collected: dict[Any, Any]) -> None:
    if len(collected) >= MOST_COLLECTED:
        del collected[next(iter(collected))]


def _add_bounded(names: set[Any], name: Any) -> None:
    if len(names) < MOST_COLLECTED:
        names.add(name)


def _in_child() -> None:
    for each in list(_all):
        each._begin_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
