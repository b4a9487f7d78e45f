"""The history on disk: one SQLite database, opened for each use and closed after it.

Nothing that is wrong with the file is an error for the caller. What is damaged, or not ours, is set aside, and a new
one is begun; what cannot be written is read; what is busy is left for later. `sqlite3` is imported when it is first
used.

- **A rollback journal, and no write-ahead log.** A use takes a fraction of a millisecond and is one process's at a
  time, so a log would gain nothing; and a log needs memory that all processes share, which files of a network do not
  have.
- **`synchronous=OFF`.** A process that is killed loses nothing, because the system has what it wrote. After a power cut
  the file may be damaged, and is set aside. Waiting for a disk may take seconds, and the history is not worth that.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from anygpu.base.cache_folder import cache_folder, decoded, make_folder
from anygpu.history.merging import AHEAD, HabitKey, HabitRow, TimingKey, TimingRow, merged_habit, merged_timing
from anygpu.history.place import (
    NOT_ALLOWED,
    Busy,
    CannotLock,
    bytes_of,
    can_open_more,
    forked_inside_sqlite,
    reason,
    remove_asides,
    set_aside,
    turn,
    why_not_a_database,
    why_not_ours,
)
from anygpu.history.records import is_moment, plain_name
from anygpu.history.storage import Batch

if TYPE_CHECKING:
    from sqlite3 import Connection

T = TypeVar("T")
Row = TypeVar("Row", TimingRow, HabitRow)
Key = TypeVar("Key", bound=TimingKey | HabitKey)

#: Rows of each table, and bytes of the file.
MOST_ROWS = 4096
MOST_BYTES = 8 << 20
#: What was neither asked for nor added to for so long is forgotten.
FORGET_SECONDS = 90 * 86_400.0

#: "agpu", in the header of the file. Another format gets another version, and the file another name: two versions of
#: anygpu must not set each other's history aside.
APPLICATION_ID = 0x61677075
VERSION = 1

#: A use of a row is noted once a day.
_NOTED_SECONDS = 86_400.0
#: No row has more bytes than this.
_LONGEST = 1 << 16
#: Of the time for adding, what is spent before the rest is left for later.
_SHARE = 0.5

_SCHEMA = {
    "timings": (
        "CREATE TABLE timings (program TEXT NOT NULL, device TEXT NOT NULL, stamp TEXT NOT NULL, row BLOB NOT NULL, "
        "used INTEGER NOT NULL, PRIMARY KEY (program, device, stamp)) WITHOUT ROWID"
    ),
    "habits": (
        "CREATE TABLE habits (function TEXT NOT NULL, signature TEXT NOT NULL, row BLOB NOT NULL, "
        "used INTEGER NOT NULL, PRIMARY KEY (function, signature)) WITHOUT ROWID"
    ),
}
_COLUMNS = {"timings": ("program", "device", "stamp"), "habits": ("function", "signature")}

#: Primary result codes of SQLite.
_NO_ROOM, _CANNOT_OPEN = 13, 14
_READ_ONLY, _LATER, _FULL = {3, 8, _CANNOT_OPEN, 23}, {5, 6, 7, 9, 15}, {10, _NO_ROOM}
#: "The file ends too soon" is reported as an error of the disk.
_SHORT_READ = 522

_log = logging.getLogger("anygpu.history")
_told = False


class Unusable(Exception):
    """The file is not a history as this version writes it; the text says what it is instead."""


def history_path() -> Path:
    """The file, in a folder of its own in the cache folder, so that nobody else can put files beside it."""
    return cache_folder() / "history" / "history.sqlite3"


class Contents(msgspec.Struct, frozen=True):
    """All that is kept."""

    timings: dict[TimingKey, TimingRow]
    habits: dict[HabitKey, HabitRow]


class Database:
    """Rows in a file. No method raises for whatever is on disk, or waits longer for others than it is told to.

    Any thread may use it, and any number of processes the same file.
    """

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
        #: Why nothing is kept by this process any more, or nothing is added.
        self.off: str | None = None
        self.read_only: str | None = None
        #: The file that was looked through, by what tells it apart.
        self._checked: tuple[int, int] | None = None
        self._busy_until = 0.0

    @property
    def aside(self) -> Path:
        return self.path.with_name(f"{self.path.name}.aside")

    @property
    def nbytes(self) -> int:
        """What it takes on disk."""
        return bytes_of(self.path)

    def _now(self) -> float:
        now = self._clock()
        return now if is_moment(now) else 0.0

    # -- what is asked

    def timings(self, program: str, seconds: float) -> dict[TimingKey, TimingRow]:
        def select(connection: Connection, deadline: float) -> dict[TimingKey, TimingRow]:
            return _selected(connection, "timings", TimingKey, TimingRow, "WHERE program = ?", (program,))

        return self._read(select, seconds, {})

    def habit(self, key: HabitKey, seconds: float) -> HabitRow | None:
        def select(connection: Connection, deadline: float) -> HabitRow | None:
            return _one(connection, "habits", HabitRow, (key.function, key.signature))

        return self._read(select, seconds, None)

    def contents(self, seconds: float) -> Contents:
        def select(connection: Connection, deadline: float) -> Contents:
            return Contents(
                _selected(connection, "timings", TimingKey, TimingRow),
                _selected(connection, "habits", HabitKey, HabitRow),
            )

        return self._read(select, seconds, Contents({}, {}))

    # -- what is changed

    def add(self, batch: Batch, seconds: float) -> Batch:
        """Add as much as there is time for, to what others have added meanwhile; the rest is returned."""
        if self.off is not None or self.read_only is not None:
            return Batch()

        def merge(connection: Connection, deadline: float) -> Batch:
            try:
                return self._add(connection, batch, deadline)
            except Exception as error:
                if getattr(error, "sqlite_errorcode", None) != _NO_ROOM or not self._make_room(connection):
                    raise
                return batch

        return self._write(merge, seconds, batch)

    def clear(self, habits: Collection[HabitKey], timings: Collection[TimingKey], seconds: float) -> bool:
        """Remove these rows; whether it could be done now."""

        def remove(connection: Connection, deadline: float) -> bool:
            with _transaction(connection):
                for habit in habits:
                    connection.execute(f"DELETE FROM habits WHERE {_where('habits')}", _parts(habit))
                for timing in timings:
                    connection.execute(f"DELETE FROM timings WHERE {_where('timings')}", _parts(timing))
            return True

        return self._write(remove, seconds, False)

    def clear_all(self, seconds: float) -> bool:
        """Remove all rows, and what was set aside; whether it could be done now. Nothing is left of names on disk."""

        def remove(connection: Connection, deadline: float) -> bool:
            with _transaction(connection):
                for table in _SCHEMA:
                    connection.execute(f"DELETE FROM {table}")
            connection.execute("VACUUM")
            remove_asides(self.aside)
            return True

        return self._write(remove, seconds, False)

    def _add(self, connection: Connection, batch: Batch, deadline: float) -> Batch:
        now = self._now()
        begin = time.monotonic()
        enough = begin + (deadline - begin) * _SHARE
        left = Batch()
        with _transaction(connection):
            grown = self._add_rows(connection, "timings", TimingRow, batch.timings, left.timings, merged_timing, enough)
            grown |= self._add_rows(connection, "habits", HabitRow, batch.habits, left.habits, merged_habit, enough)
            noted = (int(now), int(now - _NOTED_SECONDS))
            for program in batch.used_programs:
                connection.execute("UPDATE timings SET used = ? WHERE used < ? AND program = ?", (*noted, program))
            for key in batch.used_habits:
                statement = f"UPDATE habits SET used = ? WHERE used < ? AND {_where('habits')}"
                connection.execute(statement, (*noted, *_parts(key)))
            if grown:
                for table in _SCHEMA:
                    _forget(connection, table, now, self._most_rows)
        return left

    def _make_room(self, connection: Connection) -> bool:
        """Forget half, if it is the file that has reached its limit, and not the disk."""
        if _number(connection, "page_count") < self._most_pages(connection) - 1:
            return False
        with _transaction(connection):
            for table in _SCHEMA:
                count = int(connection.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0])
                _forget_oldest(connection, table, -(-count // 2))
        return True

    def _most_pages(self, connection: Connection) -> int:
        return self._most_bytes // max(512, _number(connection, "page_size"))

    def _add_rows(
        self,
        connection: Connection,
        table: str,
        kind: type[Row],
        rows: dict[Key, Row],
        left: dict[Key, Row],
        merge: Callable[[Row, Row, float], Row],
        enough: float,
    ) -> bool:
        """Whether a row is new. What there is no time for goes to `left`; one row is always added."""
        now = self._now()
        marks = ", ".join("?" * (len(_COLUMNS[table]) + 2))
        grown = False
        begun = False
        for key, row in rows.items():
            if begun and time.monotonic() > enough:
                left[key] = row
                continue
            parts: tuple[str, ...] = _parts(key)
            known = _one(connection, table, kind, parts)
            content = msgspec.msgpack.encode(merge(known if known is not None else kind(), row, now))
            connection.execute(f"REPLACE INTO {table} VALUES ({marks})", (*parts, content, int(now)))
            begun, grown = True, grown or known is None
        return grown

    # -- one use of the file

    def _read(self, work: Callable[[Connection, float], T], seconds: float, default: T) -> T:
        if self.off is not None:
            return default
        return self._use(work, seconds, default, writes=False)

    def _write(self, work: Callable[[Connection, float], T], seconds: float, default: T) -> T:
        if self.off is not None or self.read_only is not None:
            return default
        return self._use(work, seconds, default, writes=True)

    def _use(self, work: Callable[[Connection, float], T], seconds: float, default: T, *, writes: bool) -> T:
        """What the work returns, with the file for itself; the default if that is not possible now."""
        deadline = time.monotonic() + seconds
        if not self._is_possible(writes=writes):
            return default
        # Others have just been waited for in vain: not each call waits again.
        patience = deadline if writes or time.monotonic() >= self._busy_until else 0.0
        try:
            with turn(self.path.with_name("history.lock"), min(patience, deadline - seconds * _SHARE)) as why:
                if why is not None and writes:
                    self._only_read(why)
                    return default
                return self._use_alone(work, deadline, default, writes=writes, frozen=why is not None)
        except Busy:
            self._busy_until = time.monotonic() + 1.0
        except CannotLock as error:
            self._turn_off(f"The history is not used: {error}.")
        return default

    def _is_possible(self, *, writes: bool) -> bool:
        folder = self.path.parent
        if forked_inside_sqlite():
            self.off = "This process was forked off while another thread used the history."
            return False
        if writes:
            try:
                make_folder(folder.parent)
                make_folder(folder)
            except (OSError, ValueError) as error:
                self._only_read(f"the folder cannot be made: {reason(error)}")
                return False
        elif not os.path.lexists(self.path):
            return False
        why = why_not_ours(folder)
        if why is not None:
            self._turn_off(f"The history is not used: {why}.")
        return why is None

    def _use_alone(
        self,
        work: Callable[[Connection, float], T],
        deadline: float,
        default: T,
        *,
        writes: bool,
        frozen: bool,
    ) -> T:
        """`frozen` if nobody can write there, so that no lock is needed, nor possible."""
        try:
            why = why_not_a_database(self.path, self._most_bytes)
            if why is not None:
                raise Unusable(why)
            if writes and (why := _make_file(self.path)) is not None:
                self._only_read(why)
                return default
            with contextlib.closing(self._connect(deadline, frozen=frozen)) as connection:
                if self._is_ready(connection, writes=writes):
                    return work(connection, deadline)
        except Exception as error:  # noqa: BLE001 - whatever SQLite makes of a damaged file
            if frozen:
                self._turn_off(f"The history is not used: {self.path} cannot be read ({error}), nor written.")
            else:
                self._deal_with(error, writes=writes)
        return default

    def _connect(self, deadline: float, *, frozen: bool) -> Connection:
        import sqlite3

        if frozen and os.path.lexists(f"{self.path}-journal"):
            raise Unusable("was being written when its process ended, in a folder that cannot be written")
        mode = "mode=ro&immutable=1" if frozen else "mode=rw"
        connection = sqlite3.connect(
            f"{self.path.absolute().as_uri()}?{mode}",
            uri=True,
            timeout=0.005,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=16,
        )
        try:
            connection.text_factory = _text
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
            connection.set_progress_handler(lambda: time.monotonic() > deadline, 10_000)
            for setting in ("trusted_schema=OFF", "cell_size_check=ON", "mmap_size=0", "synchronous=OFF"):
                connection.execute(f"PRAGMA {setting}").fetchall()
            connection.execute("PRAGMA temp_store=MEMORY").fetchall()
            connection.execute("PRAGMA secure_delete=ON").fetchall()
        except BaseException:
            connection.close()
            raise
        return connection

    def _is_ready(self, connection: Connection, *, writes: bool) -> bool:
        """Whether there is a history in it, after one has been made if it is to be written. Raises `Unusable`."""
        identity = tuple(_number(connection, name) for name in ("application_id", "user_version"))
        schema = connection.execute("SELECT type, name, sql FROM sqlite_schema").fetchall()
        if identity == (0, 0) and not schema:
            if not writes:
                return False
            with _transaction(connection):
                for statement in _SCHEMA.values():
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version={VERSION}")
        elif identity[0] != APPLICATION_ID:
            raise Unusable("is a file of another program")
        elif identity[1] != VERSION:
            raise Unusable("was written by another version of anygpu")
        elif sorted(schema) != sorted(("table", name, statement) for name, statement in _SCHEMA.items()):
            raise Unusable("is damaged")
        if _text_of(connection, "journal_mode") not in ("delete", "off"):
            raise Unusable("is a file of another program")
        if writes:
            connection.execute(f"PRAGMA max_page_count={self._most_pages(connection)}").fetchall()
            self._check_once(connection)
        return True

    def _check_once(self, connection: Connection) -> None:
        """Look the whole file through, once in a process: that takes some milliseconds, of a background thread."""
        facts = self.path.stat()
        if self._checked != (facts.st_dev, facts.st_ino):
            if connection.execute("PRAGMA quick_check(1)").fetchall() != [("ok",)]:
                raise Unusable("is damaged")
            self._checked = (facts.st_dev, facts.st_ino)

    # -- what is wrong

    def _deal_with(self, error: Exception, *, writes: bool) -> None:
        code = getattr(error, "sqlite_errorcode", None)
        kind = code & 0xFF if isinstance(code, int) else None
        if isinstance(error, Unusable):
            self._set_aside(str(error))
        elif isinstance(error, ImportError):
            self._turn_off(f"The history is not used: this Python has no SQLite ({error}).")
        elif kind in _LATER or isinstance(error, MemoryError | OSError):
            _log.debug("the history is left for later: %s", error)
        elif kind in _FULL and code != _SHORT_READ:
            # It is as good as it was, and another file would not have more room.
            _tell(f"The history in {self.path} could not be {'written' if writes else 'read'} ({error}).")
        elif kind in _READ_ONLY and not os.access(self.path.parent, os.W_OK):
            self._only_read(str(error))
        elif kind == _CANNOT_OPEN and not can_open_more():
            _log.debug("the history is left for later: this process has too many files open")
        elif kind in _READ_ONLY:
            self._set_aside(f"cannot be {'written' if writes else 'read'}")
        else:
            self._set_aside(f"is damaged ({error})")

    def _set_aside(self, why: str) -> None:
        self._checked = None
        if set_aside(self.path, self.aside):
            _tell(f"The history {self.path} {why}; it was renamed to {self.aside.name}, and a new one is begun.")
        else:
            self._turn_off(f"The history is not used: {self.path} {why}, and cannot be renamed. Remove it.")

    def _only_read(self, why: str) -> None:
        # As with the other files of the cache, a folder that cannot be written is not worth a warning.
        self.read_only = f"Nothing is added to the history in {self.path.parent}: {why}."
        _log.info("%s", self.read_only)

    def _turn_off(self, why: str) -> None:
        self.off = why
        _tell(why)


# -- rows


def _selected(
    connection: Connection, table: str, key: type[Key], kind: type[Row], where: str = "", values: tuple[str, ...] = ()
) -> dict[Key, Row]:
    """Those that are what they should be."""
    columns = ", ".join(_COLUMNS[table])
    found: dict[Key, Row] = {}
    for *parts, content in connection.execute(f"SELECT {columns}, row FROM {table} {where}", values):
        row = _row(content, kind)
        with contextlib.suppress(msgspec.ValidationError):
            name = msgspec.convert(dict(zip(_COLUMNS[table], parts, strict=True)), key)
            if row is not None:
                found[name] = row
    return found


def _one(connection: Connection, table: str, kind: type[Row], parts: tuple[str, ...]) -> Row | None:
    found = connection.execute(f"SELECT row FROM {table} WHERE {_where(table)}", parts).fetchall()
    return _row(found[0][0], kind) if found else None


def _row(content: object, kind: type[Row]) -> Row | None:
    row = decoded(msgspec.msgpack.decode, content, kind) if isinstance(content, bytes) else None
    return row if row is not None and row.is_plausible else None


def _parts(key: TimingKey | HabitKey) -> tuple[str, ...]:
    return tuple(map(plain_name, msgspec.structs.astuple(key)))


def _where(table: str) -> str:
    return " AND ".join(f"{column} = ?" for column in _COLUMNS[table])


def _forget(connection: Connection, table: str, now: float, most: int) -> None:
    """Remove what is old, and of the rest the oldest while there are too many."""
    # From a clock that was wrong: as old as today.
    connection.execute(f"UPDATE {table} SET used = ? WHERE used > ?", (int(now), int(now + AHEAD)))
    connection.execute(f"DELETE FROM {table} WHERE used < ?", (int(now - FORGET_SECONDS),))
    count = int(connection.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0])
    if count > most:
        _forget_oldest(connection, table, count - most * 7 // 8)


def _forget_oldest(connection: Connection, table: str, count: int) -> None:
    columns = ", ".join(_COLUMNS[table])
    oldest = f"SELECT {columns} FROM {table} ORDER BY used LIMIT ?"
    connection.execute(f"DELETE FROM {table} WHERE ({columns}) IN ({oldest})", (count,))


# -- SQLite


@contextlib.contextmanager
def _transaction(connection: Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(Exception):
            connection.rollback()
        raise


def _number(connection: Connection, pragma: str) -> int:
    return int(connection.execute(f"PRAGMA {pragma}").fetchall()[0][0])


def _text_of(connection: Connection, pragma: str) -> str:
    return str(connection.execute(f"PRAGMA {pragma}").fetchall()[0][0])


def _text(content: Any) -> str:
    return bytes(content).decode("utf-8", "replace")


def _make_file(path: Path) -> str | None:
    """For this user alone, and empty, if there is none: SQLite would let others read it. Why it is not allowed."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600))
    except FileExistsError:
        return None
    except OSError as error:
        if error.errno not in NOT_ALLOWED:
            raise
        return reason(error)
    return None


def _tell(sentence: str) -> None:
    """Once in a process: the history is of little importance."""
    global _told
    _log.log(logging.DEBUG if _told else logging.WARNING, "%s", sentence)
    _told = True
