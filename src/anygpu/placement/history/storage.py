"""The history on disk: one file, which is read without a lock and replaced as a whole.

A writer locks `history.lock`, merges its rows into the file as it is then, and replaces it. No state of the disk is an
error for the caller: a file that is damaged, or that another user may have written, counts as empty and is replaced by
the next write. Writes are not flushed to the disk, because that may take seconds: after a power cut the file may be
damaged, and the history begins anew.

Rows stay encoded until one is asked for: a process reads a few of some thousand.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from anygpu.base.cache_folder import (
    cache_folder,
    decoded,
    locked,
    make_folder,
    sealed,
    sweep,
    unsealed,
    why_not_own,
    write_file,
)
from anygpu.base.own_files import read_file
from anygpu.placement.history.records import (
    AHEAD,
    HabitKey,
    HabitRow,
    TimingKey,
    TimingRow,
    is_moment,
    merged_habit,
    merged_timing,
    plain_name,
)

HistoryRow = TypeVar("HistoryRow", TimingRow, HabitRow)
RowKey = TypeVar("RowKey", TimingKey, HabitKey)

#: Limits of each of the two tables, and of the file.
MOST_ROWS = 2048
MOST_BYTES = 4 << 20
#: Rows that were neither read nor added to for this long are removed.
FORGET_SECONDS = 90 * 86_400.0

#: The use of a row is recorded once a day.
_USE_RECORDED_SECONDS = 86_400.0
#: The file of another format has another name: versions of anygpu must not overwrite each other's history.
_NAME = "calls.1"
_PURPOSE = b"anygpu.history/1"
#: Files of versions that used SQLite.
_OLD_NAMES = "history.sqlite3*"
#: Errors that pass: the process or the machine has run out of something.
_LATER = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EINTR}

_log = logging.getLogger("anygpu.history")


def history_path() -> Path:
    """The file, in a folder of its own in the cache folder."""
    return cache_folder() / "history" / _NAME


@dataclasses.dataclass
class RowBatch:
    """Rows to be merged into the history, and keys of rows that were read."""

    timings: dict[TimingKey, TimingRow] = dataclasses.field(default_factory=dict)
    habits: dict[HabitKey, HabitRow] = dataclasses.field(default_factory=dict)
    #: Rows that were read, which delays their removal.
    used_programs: set[str] = dataclasses.field(default_factory=set)
    used_habits: set[HabitKey] = dataclasses.field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.timings or self.habits or self.used_programs or self.used_habits)


class HistoryStorage(Protocol):
    """Stores rows. No method raises for the state of the disk."""

    def timings(self, program: str) -> dict[TimingKey, TimingRow]: ...

    def habit(self, key: HabitKey) -> HabitRow | None: ...

    def add(self, batch: RowBatch, seconds: float) -> bool:
        """Merge the rows, waiting at most that long for other processes; `False` if it has to be tried again."""
        ...


class Contents(msgspec.Struct, frozen=True):
    """All rows."""

    timings: dict[TimingKey, TimingRow]
    habits: dict[HabitKey, HabitRow]


#: Encoded rows by the text of their keys, each with the time of its last use; the least recently used first.
_Table = dict[str, tuple[int, msgspec.Raw]]


class _Tables(msgspec.Struct, frozen=True, array_like=True):
    """The content of the file. Rows are decoded when they are asked for."""

    timings: _Table
    habits: _Table


class HistoryFile:
    """Rows in a file, which any number of threads and processes may use at once."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = time.time,
        most_rows: int = MOST_ROWS,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.path = path
        self._clock = clock
        self._most_rows = most_rows
        self._most_bytes = most_bytes
        #: Why this process does not read the file, or write to it.
        self.problem: str | None = None
        self._unusable = False
        self._swept = False
        #: The last content that was read, and what identifies the file that it was read from.
        self._cached: tuple[tuple[int, ...], _Tables] | None = None

    @property
    def nbytes(self) -> int:
        """The size of the file; 0 if there is none."""
        try:
            return self.path.lstat().st_size
        except (OSError, ValueError):
            return 0

    # -- reading

    def timings(self, program: str) -> dict[TimingKey, TimingRow]:
        """The rows of a program on all devices."""
        texts = {text: row for text, row in self._read().timings.items() if text.startswith(f"{program} ")}
        return _decoded_rows(texts, _timing_key, TimingRow)

    def habit(self, key: HabitKey) -> HabitRow | None:
        """The row of a function with one kind of arguments; `None` if there is none that is valid."""
        kept = self._read().habits.get(_text(key))
        return None if kept is None else _row(kept[1], HabitRow)

    def contents(self) -> Contents:
        """All valid rows, decoded."""
        tables = self._read()
        return Contents(
            _decoded_rows(tables.timings, _timing_key, TimingRow), _decoded_rows(tables.habits, _habit_key, HabitRow)
        )

    def _read(self) -> _Tables:
        """The content of the file, from memory while the file is the same by inode, times and size; empty if it is
        unusable.
        """
        with contextlib.suppress(OSError, ValueError):
            facts = self.path.lstat()
            identity = (facts.st_dev, facts.st_ino, facts.st_ctime_ns, facts.st_mtime_ns, facts.st_size)
            if self._is_usable():
                cached = self._cached
                if cached is None or cached[0] != identity:
                    cached = self._cached = identity, self._load() or _Tables({}, {})
                return cached[1]
        return _Tables({}, {})

    def _load(self) -> _Tables | None:
        """Read and decode the file; `None` if there is none that can be trusted: too large, not sealed by this version,
        damaged.
        """
        content = unsealed(read_file(self.path, self._most_bytes + 4096), _PURPOSE)
        return decoded(msgspec.msgpack.decode, content, _Tables)

    def _is_usable(self) -> bool:
        """Whether the folder is the user's own alone; if not, `problem` says why, and it is logged once."""
        if not self._unusable and (why := why_not_own(self.path.parent)) is not None:
            self._unusable = True
            self.problem = f"The history is not used: {why}."
            _log.warning("%s", self.problem)
        return not self._unusable

    # -- writing

    def add(self, batch: RowBatch, seconds: float) -> bool:
        """Merge the rows, waiting at most so many seconds for the lock; `False` if it has to be tried again.

        Where trying again is of no use, as in a folder that cannot be written to, the rows are dropped and it is
        `True`.
        """

        def merge(tables: _Tables) -> bool:
            now = self._now()
            changed = _merge_rows(tables.timings, batch.timings, TimingRow, merged_timing, now)
            changed |= _merge_rows(tables.habits, batch.habits, HabitRow, merged_habit, now)
            programs = [text for text in tables.timings if text.partition(" ")[0] in batch.used_programs]
            changed |= _record_use(tables.timings, programs, now)
            changed |= _record_use(tables.habits, map(_text, batch.used_habits), now)
            if changed:
                for table in (tables.timings, tables.habits):
                    _forget(table, now, self._most_rows)
            return changed

        return self._change(merge, seconds) or self.problem is not None

    def clear(self, habits: Collection[HabitKey], timings: Collection[TimingKey], seconds: float) -> bool:
        """Remove these rows; returns whether that was done."""

        def remove(tables: _Tables) -> bool:
            for habit in habits:
                tables.habits.pop(_text(habit), None)
            for timing in timings:
                tables.timings.pop(_text(timing), None)
            return True

        return self._change(remove, seconds)

    def clear_all(self, seconds: float) -> bool:
        """Remove all rows, also those of versions that used SQLite; returns whether that was done."""

        def remove(tables: _Tables) -> bool:
            tables.habits.clear()
            tables.timings.clear()
            return True

        self._remove_old_format()
        return self._change(remove, seconds)

    @property
    def has_old_format(self) -> bool:
        """Whether there are files of versions that used SQLite."""
        return any(self.path.parent.glob(_OLD_NAMES))

    def _remove_old_format(self) -> None:
        """Delete the files of versions that used SQLite, as far as that is possible."""
        for each in self.path.parent.glob(_OLD_NAMES):
            with contextlib.suppress(OSError):
                each.unlink()

    def _change(self, change: Callable[[_Tables], bool], seconds: float) -> bool:
        """Replace the file after `change`, which returns whether it changed anything; returns whether that was done.

        The lock is held meanwhile, so no other writer's rows are lost. A timeout, or a lack of descriptors, memory or
        space, is `False` and may pass; other errors of the disk end writing for this process (`_only_read`).
        """
        if self.problem is not None:
            return False
        folder = self.path.parent
        try:
            make_folder(folder)
            if not self._is_usable():
                return False
            if not os.access(folder, os.W_OK):
                return self._only_read("it cannot be written")
            with locked(self.path.with_name("history.lock"), seconds):
                tables = self._load()
                if tables is None and os.path.lexists(self.path):
                    _require_descriptors()
                    _log.warning("The history %s is damaged, or not yours alone. A new one is begun.", self.path)
                tables = tables or _Tables({}, {})
                return not change(tables) or self._write(tables)
        except TimeoutError:
            return False
        except (OSError, ValueError) as error:
            if getattr(error, "errno", None) in _LATER:
                return False
            return self._only_read(getattr(error, "strerror", None) or str(error))

    def _write(self, tables: _Tables) -> bool:
        """Write all rows, after removing the least recently used half as often as it takes to fit; whether that was
        done.

        The first write of a process also removes temporary files that killed processes have left.
        """
        content = msgspec.msgpack.encode(tables)
        while len(content) > self._most_bytes:
            for table in (tables.timings, tables.habits):
                _remove_oldest(table, len(table) - len(table) // 2)
            content = msgspec.msgpack.encode(tables)
        if not self._swept:
            self._swept = True
            sweep(self.path.parent, lambda name: False, now=time.time())
        return write_file(self.path, sealed(content, _PURPOSE))

    def _only_read(self, why: str) -> bool:
        """Write nothing from now on, for this reason; always `False`."""
        # As with the other files of the cache, a folder that cannot be written is not worth a warning.
        self.problem = f"Nothing is added to the history in {self.path.parent}: {why}."
        _log.info("%s", self.problem)
        return False

    def _now(self) -> float:
        """The time in seconds since 1970, or 0 for a clock that is out of range."""
        now = self._clock()
        return now if is_moment(now) else 0.0


def _require_descriptors() -> None:
    """Raise `OSError` if the process has too many files open to have read the history."""
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))


# -- rows


def _text(key: TimingKey | HabitKey) -> str:
    """The key of a row as the text that is stored, with the device last, as its name may have spaces."""
    if isinstance(key, HabitKey):
        return f"{key.function} {key.signature}"
    return f"{key.program} {key.stamp} {plain_name(key.device)}"


def _timing_key(text: str) -> TimingKey:
    """The key that `_text` has made this of; raises `ValueError` for a text that it has not."""
    program, stamp, device = text.split(" ", 2)
    return msgspec.convert({"program": program, "device": device, "stamp": stamp}, TimingKey)


def _habit_key(text: str) -> HabitKey:
    """The key that `_text` has made this of; raises `ValueError` for a text that it has not."""
    function, signature = text.split(" ")
    return msgspec.convert({"function": function, "signature": signature}, HabitKey)


def _decoded_rows(table: _Table, key: Callable[[str], RowKey], kind: type[HistoryRow]) -> dict[RowKey, HistoryRow]:
    """The rows that are valid."""
    found: dict[RowKey, HistoryRow] = {}
    for text, (_, raw) in table.items():
        row = _row(raw, kind)
        with contextlib.suppress(ValueError):  # msgspec's errors are among these
            if row is not None:
                found[key(text)] = row
    return found


def _row(raw: msgspec.Raw, kind: type[HistoryRow]) -> HistoryRow | None:
    """A decoded row; `None` if it is damaged or implausible."""
    row = decoded(msgspec.msgpack.decode, bytes(raw), kind)
    return row if row is not None and row.is_plausible else None


def _merge_rows(
    table: _Table,
    rows: dict[Any, HistoryRow],
    kind: type[HistoryRow],
    merge: Callable[[HistoryRow, HistoryRow, float], HistoryRow],
    now: float,
) -> bool:
    """Merge rows into a table; whether anything has changed."""
    for key, row in rows.items():
        text = _text(key)
        kept = table.pop(text, None)
        known = _row(kept[1], kind) if kept is not None else None
        merged = merge(known if known is not None else kind(), row, now)
        table[text] = int(now), msgspec.Raw(msgspec.msgpack.encode(merged))
    return bool(rows)


def _record_use(table: _Table, texts: Iterable[str], now: float) -> bool:
    """Set the time of the last use of rows, at most once a day each; whether anything has changed."""
    changed = False
    for text in texts:
        if text in table and table[text][0] < now - _USE_RECORDED_SECONDS:
            table[text] = int(now), table.pop(text)[1]
            changed = True
    return changed


def _forget(table: _Table, now: float, most: int) -> None:
    """Remove old rows, and the least recently used while there are too many."""
    for text, (used, row) in list(table.items()):
        if used > now + AHEAD:  # from a clock that was wrong
            table[text] = int(now), row
        elif used < now - FORGET_SECONDS:
            del table[text]
    if len(table) > most:
        _remove_oldest(table, len(table) - most * 7 // 8)


def _remove_oldest(table: _Table, count: int) -> None:
    """Remove the least recently used rows."""
    for text in list(table)[:count]:
        del table[text]
