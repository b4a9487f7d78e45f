"""Whatever lies in the place of the database: it is set aside or read, said once, and never an error."""

from __future__ import annotations

import logging
import os
import random
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anygpu.history import database as database_module
from anygpu.history.database import FORGET_SECONDS, Contents, Database
from anygpu.history.history import History
from anygpu.history.merging import RECENT, HabitKey, HabitRow, TimingKey, TimingRow
from anygpu.history.storage import Batch
from anygpu.testing import ManualClock

posix = pytest.mark.skipif(sys.platform == "win32", reason="owners, modes, links and pipes are POSIX's")
NOW = 1_800_000_000.0
S = "f" * 32
SECONDS = 5.0


def key(number: int) -> TimingKey:
    return TimingKey(f"{number:032x}", "webgpu:0", S)


def habit(number: int) -> HabitKey:
    return HabitKey(f"{number:032x}", S)


def batch(*numbers: int, when: float = NOW) -> Batch:
    return Batch(
        {key(each): TimingRow(((when, 0.5),), 1) for each in numbers},
        {habit(each): HabitRow((when, f"name {each}"), None, 1, ((each, when, 1, 0.5),)) for each in numbers},
    )


@pytest.fixture(autouse=True)
def notices(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(database_module, "_told", False)
    caplog.set_level(logging.WARNING, "anygpu.history")
    return caplog


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "history" / "history.sqlite3"


def filled(path: Path, *numbers: int) -> Database:
    database = Database(path)
    assert not database.add(batch(*(numbers or (1, 2, 3))), SECONDS)
    return database


def names(path: Path) -> set[str]:
    return {each.name for each in path.parent.iterdir()}


# -- what is kept


@posix
def test_it_is_the_users_own(path: Path) -> None:
    old = os.umask(0)
    try:
        filled(path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.with_name("history.lock").stat().st_mode) == 0o600
    assert names(path) == {"history.sqlite3", "history.lock"}, "nothing else is left after a use"


def test_reading_makes_nothing(path: Path) -> None:
    database = Database(path)
    assert database.timings(key(1).program, SECONDS) == {}
    assert database.habit(habit(1), SECONDS) is None
    assert database.contents(SECONDS) == Contents({}, {})
    assert not path.parent.exists()


def test_rows_are_bounded_and_the_oldest_go_first(path: Path) -> None:
    clock = ManualClock(NOW)
    database = Database(path, clock=clock, most_rows=40)
    for number in range(200):
        assert not database.add(batch(number, when=clock()), SECONDS)
        clock.advance(10)
        # This one is asked for, so it is not the oldest.
        clock.advance(2 * 86_400.0 if number == 50 else 0)
        if number > 0:
            assert not database.add(Batch(used_programs={key(0).program}, used_habits={habit(0)}), SECONDS)
        contents = database.contents(SECONDS)
        assert len(contents.timings) <= 40
        assert len(contents.habits) <= 40
        assert key(number) in contents.timings
    kept = {int(each.program, 16) for each in contents.timings}
    assert kept == {int(each.function, 16) for each in contents.habits}
    assert max(kept) == 199
    assert len(kept) >= 35
    assert kept - {0} == set(range(200 - len(kept - {0}), 200))


def test_what_was_not_used_for_ninety_days_is_forgotten(path: Path) -> None:
    clock = ManualClock(NOW)
    database = Database(path, clock=clock)
    database.add(batch(1, 2), SECONDS)
    clock.advance(FORGET_SECONDS - 10)
    database.add(Batch(used_programs={key(1).program}, used_habits={habit(1)}), SECONDS)
    clock.advance(20)
    database.add(batch(3), SECONDS)
    contents = database.contents(SECONDS)
    assert set(contents.timings) == {key(1), key(3)}
    assert set(contents.habits) == {habit(1), habit(3)}


def test_a_clock_that_was_wrong_is_forgiven(path: Path) -> None:
    database = Database(path, clock=ManualClock(NOW * 2))
    database.add(batch(1, when=NOW * 2), SECONDS)
    database = Database(path, clock=ManualClock(NOW), most_rows=8)
    for number in range(2, 20):
        assert not database.add(batch(number), SECONDS)
    assert 1 <= len(database.contents(SECONDS).timings) <= 8
    for clock in (ManualClock(float("nan")), ManualClock(float("inf")), ManualClock(-5.0)):
        Database(path, clock=clock).add(batch(1), SECONDS)
    assert database.off is None


@settings(max_examples=15)
@given(seed=st.integers(0, 1000))
def test_bytes_are_bounded(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("history") / "history" / "history.sqlite3"
    rng = random.Random(seed)
    most = rng.choice((6, 10, 30)) * 4096
    database = Database(path, most_bytes=most)
    for number in range(60):
        row = TimingRow(tuple((NOW, rng.random()) for _ in range(RECENT)), 1)
        name = TimingKey(f"{number:032x}", "d" * rng.choice((5, 200)), S)
        database.add(Batch({name: row}), SECONDS)
        assert database.nbytes <= most
    assert database.off is None
    assert database.contents(SECONDS).timings
    assert not path.with_name("history.sqlite3.aside").exists()


def test_a_row_that_is_no_row_is_as_good_as_none(path: Path) -> None:
    database = filled(path, 1, 2)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE timings SET row = ? WHERE program = ?", (b"\xc1", key(1).program))
        connection.execute("UPDATE habits SET row = 'text' WHERE function = ?", (habit(1).function,))
        connection.execute("INSERT INTO timings VALUES ('no hash', 'x', 'y', x'95', 1)")
        connection.execute("INSERT INTO habits VALUES (CAST(x'ff' AS TEXT), 'y', x'95', 1)")
    connection.close()
    contents = database.contents(SECONDS)
    assert set(contents.timings) == {key(2)}
    assert set(contents.habits) == {habit(2)}
    assert not database.add(batch(1), SECONDS)
    assert set(database.contents(SECONDS).timings) == {key(1), key(2)}


def test_clearing_leaves_nothing_of_names(path: Path) -> None:
    database = filled(path, 1, 2)
    path.with_name("history.sqlite3.aside").write_bytes(b"old")
    assert database.clear({habit(1)}, {key(1)}, SECONDS)
    assert b"name 1" not in path.read_bytes()
    assert set(database.contents(SECONDS).timings) == {key(2)}
    assert database.clear_all(SECONDS)
    assert b"name" not in path.read_bytes()
    assert database.contents(SECONDS) == Contents({}, {})
    assert names(path) == {"history.sqlite3", "history.lock"}


# -- whatever lies in its place


def _random_bytes(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(10_000))


def _truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def _one_page(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096:8192] = random.Random(2).randbytes(4096)
    path.write_bytes(content)


def _foreign(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE timings (program, device, stamp, row, used)")
        connection.execute("PRAGMA application_id=7")
    connection.close()
    path.chmod(0o600)


def _changed(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    connection.close()


def _other_version(path: Path) -> None:
    _changed(path, "PRAGMA user_version=2")


def _other_program(path: Path) -> None:
    _changed(path, "PRAGMA application_id=2")


def _trigger(path: Path) -> None:
    _changed(path, "CREATE TRIGGER t AFTER INSERT ON timings BEGIN DELETE FROM habits; END")


def _no_table(path: Path) -> None:
    _changed(path, "DROP TABLE habits")


def _write_ahead(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.close()


def _huge(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(1 << 40)


def _link(path: Path) -> None:
    other = path.parent / "elsewhere"
    path.replace(other)
    path.symlink_to(other)


def _dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent / "nowhere")


def _device_node(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _full_folder(path: Path) -> None:
    _folder(path)
    (path / "something").write_text("of the user's")


def _others_may_write(path: Path) -> None:
    path.chmod(0o666)


def _of_another_user(path: Path) -> None:
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
    else:
        path.chmod(0o622)


SPOILERS = [
    _random_bytes,
    _truncated,
    _one_page,
    _foreign,
    _other_version,
    _other_program,
    _trigger,
    _no_table,
    _write_ahead,
    _huge,
    _link,
    _dangling,
    _device_node,
    _pipe,
    _folder,
    _full_folder,
    _others_may_write,
    _of_another_user,
]


@posix
@pytest.mark.parametrize("spoil", SPOILERS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("first", ["read", "write"])
def test_whatever_lies_in_its_place_is_set_aside_once(
    first: str, spoil: Callable[[Path], None], path: Path, notices: pytest.LogCaptureFixture
) -> None:
    filled(path, *range(200))
    old_aside = path.with_name("history.sqlite3.aside")
    old_aside.write_bytes(b"from before")
    spoil(path)
    database = Database(path)
    if first == "read":
        assert len(database.contents(SECONDS).timings) < 200
    for _ in range(3):
        database.add(batch(1000), SECONDS)
    assert set(database.contents(SECONDS).timings) == {key(1000)}
    assert database.off is None
    assert (
        old_aside.is_dir()
        or old_aside.is_symlink()
        or not stat.S_ISREG(old_aside.lstat().st_mode)
        or (old_aside.stat().st_size > 4096)
    )
    assert not path.with_name("history.sqlite3-wal").exists()
    (record,) = notices.records
    assert record.name == "anygpu.history"
    message = record.getMessage()
    assert message.startswith(f"The history {path} ")
    assert message.endswith("; it was renamed to history.sqlite3.aside, and a new one is begun.")


@posix
def test_what_cannot_be_renamed_is_left_and_the_history_is_off(path: Path, notices: pytest.LogCaptureFixture) -> None:
    filled(path)
    _random_bytes(path)
    aside = path.with_name("history.sqlite3.aside")
    aside.mkdir()
    (aside / "something").write_text("of the user's")
    database = Database(path)
    assert database.contents(SECONDS) == Contents({}, {})
    assert not database.add(batch(1), SECONDS), "nothing is kept for later"
    assert database.timings(key(1).program, SECONDS) == {}
    assert not database.clear_all(SECONDS)
    (record,) = notices.records
    assert "cannot be renamed. Remove it." in record.getMessage()
    assert (aside / "something").exists()


@posix
@pytest.mark.parametrize("what", ["link", "file", "mode", "parent", "owner"])
def test_a_folder_that_is_not_ours_is_not_used(
    what: str, path: Path, tmp_path: Path, notices: pytest.LogCaptureFixture
) -> None:
    filled(path)
    content = path.read_bytes()
    elsewhere = tmp_path / "elsewhere"
    if what == "link":
        path.parent.rename(elsewhere)
        path.parent.symlink_to(elsewhere)
    elif what == "file":
        path.parent.rename(elsewhere)
        path.parent.write_bytes(b"")
    elif what == "mode":
        path.parent.chmod(0o770)
    elif what == "parent":
        path.parent.parent.chmod(0o777)
    elif os.geteuid() == 0:
        os.chown(path.parent, 65534, 65534)
    else:
        path.parent.chmod(0o702)
    database = Database(path)
    database.add(batch(9), SECONDS)
    assert database.contents(SECONDS) == Contents({}, {})
    assert not database.add(batch(9), SECONDS)
    found = elsewhere / path.name if elsewhere.exists() else path
    assert found.read_bytes() == content
    # A file in the place of a folder means, to the rest of the cache as well, that nothing can be kept.
    assert len(notices.records) == (0 if what == "file" else 1)


def test_below_a_file_nothing_can_be_kept_and_nobody_hears_of_it(
    tmp_path: Path, notices: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    kept = History(tmp_path / "file" / "history" / "history.sqlite3")
    kept.ran("0" * 32, "numpy", S, 1.0)
    assert not kept.flush()
    assert kept.flush(), "it is dropped"
    assert kept.timings("0" * 32) == ()
    assert notices.records == []


# -- in a child: as another user, and with limits

CHILD = """
import logging, os, resource, sys
from pathlib import Path
from tests.history.test_database import NOW, SECONDS, Database, batch, key
logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stdout)
path = Path(sys.argv[1])
database = Database(path)
{code}
print("off", database.off, "read-only", database.read_only)
"""


def in_child(path: Path, code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", CHILD.format(code=code), str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


AS_NOBODY = """
if os.geteuid() == 0:
    for each in (path.parent.parent, path.parent, *path.parent.iterdir()):
        os.chown(each, 65534, 65534)
    for each in path.parents[2:]:
        if not each.stat().st_mode & 0o001:
            each.chmod(0o711)
    os.setuid(65534)
"""


@posix
def test_a_read_only_file_is_set_aside(path: Path) -> None:
    filled(path)
    path.chmod(0o400)
    shown = in_child(
        path, AS_NOBODY + "print(len(database.contents(SECONDS).timings))\n"
        "database.add(batch(9), SECONDS); database.add(batch(9), SECONDS)\n"
        "print(len(database.contents(SECONDS).timings))"
    )  # fmt: skip
    lines = shown.splitlines()
    assert lines[0] == "3", shown
    assert lines[1].startswith("WARNING The history"), shown
    assert lines[2:] == ["1", "off None read-only None"], shown


@posix
@pytest.mark.parametrize("with_lock", [True, False])
def test_a_read_only_folder_is_read(path: Path, with_lock: bool) -> None:
    filled(path)
    if not with_lock:
        path.with_name("history.lock").unlink()
    path.parent.chmod(0o500)
    shown = in_child(
        path,
        AS_NOBODY + "print(database.add(batch(9), SECONDS) == batch(9), bool(database.add(batch(9), SECONDS)))\n"
        "print(len(database.contents(SECONDS).timings))",
    )
    path.parent.chmod(0o700)
    lines = shown.splitlines()
    assert lines[:2] == ["True False", "3"], shown
    assert lines[2].startswith("off None read-only Nothing is added to the history in "), shown


@posix
def test_a_full_disk_leaves_what_was_there(path: Path) -> None:
    filled(path, *range(100))
    code = """
before = path.read_bytes()
resource.setrlimit(resource.RLIMIT_FSIZE, (len(before), len(before)))
for number in range(5):
    left = database.add(batch(*range(1000 * number, 1000 * number + 500)), SECONDS)
    assert len(left.timings) == 500, len(left.timings)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""
    code = code.replace("(len(before), len(before))", "(len(before), resource.RLIM_INFINITY)")
    code += """
assert len(database.contents(SECONDS).timings) == 100
assert not database.add(batch(1000), SECONDS)
assert len(database.contents(SECONDS).timings) == 101
"""
    lines = in_child(path, code).splitlines()
    assert len(lines) == 2, lines
    assert lines[0].startswith(f"WARNING The history in {path} could not be written (")
    assert lines[1] == "off None read-only None"
    assert names(path) == {"history.sqlite3", "history.lock"}


@posix
def test_a_disk_that_is_full_from_the_start(path: Path) -> None:
    code = """
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
for _ in range(3):
    assert database.add(batch(1), SECONDS).timings
assert not database.contents(SECONDS).timings
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert not database.add(batch(1), SECONDS)
assert database.contents(SECONDS).timings
"""
    lines = in_child(path, code).splitlines()
    assert len(lines) == 2, lines
    assert "could not be written" in lines[0]


@posix
def test_a_process_with_too_many_files_open_blames_no_file(path: Path) -> None:
    filled(path)
    code = """
import sqlite3
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
files = []
try:
    while True:
        files.append(open(os.devnull))
except OSError:
    pass
for free in range(6):
    for _ in range(3):
        database.add(batch(4 + free), SECONDS)
        database.contents(SECONDS)
    files.pop().close()
left = database.add(batch(99), SECONDS)
assert not left, left
found = database.contents(SECONDS).timings
assert len(found) >= 4, (found, os.listdir(path.parent))
"""
    assert in_child(path, code).splitlines() == ["off None read-only None"]
    assert names(path) == {"history.sqlite3", "history.lock"}


@posix
@pytest.mark.parametrize("what", ["link", "folder"])
def test_a_lock_that_is_no_file_switches_the_history_off(
    what: str, path: Path, notices: pytest.LogCaptureFixture
) -> None:
    filled(path)
    lock = path.with_name("history.lock")
    lock.unlink()
    if what == "link":
        lock.symlink_to(path.parent / "elsewhere")
    else:
        lock.mkdir()
    database = Database(path)
    assert database.contents(SECONDS) == Contents({}, {})
    assert not database.add(batch(1), SECONDS)
    (record,) = notices.records
    assert f"{lock} cannot be locked" in record.getMessage()
    assert path.exists()
    assert not (path.parent / "elsewhere").exists()


def test_a_python_without_sqlite_has_no_history(path: Path) -> None:
    filled(path)
    lines = in_child(
        path,
        "sys.modules['sqlite3'] = None\n"
        "assert not database.contents(SECONDS).timings\nassert not database.add(batch(1), SECONDS)",
    ).splitlines()
    assert lines[0].startswith("WARNING The history is not used: this Python has no SQLite"), lines
    assert len(lines) == 2


@pytest.mark.parametrize("error", [MemoryError(), OverflowError("x"), UnicodeDecodeError("utf-8", b"", 0, 1, "x")])
def test_errors_of_any_kind_are_not_the_callers(
    error: Exception, path: Path, monkeypatch: pytest.MonkeyPatch, notices: pytest.LogCaptureFixture
) -> None:
    database = filled(path)

    def fail(*given: Any) -> Any:
        raise error

    monkeypatch.setattr(database_module, "_selected", fail)
    assert database.contents(SECONDS) == Contents({}, {})
    assert database.off is None
    assert path.exists() == isinstance(error, MemoryError), "what is damaged is set aside, and what is not stays"
    assert len(notices.records) == (0 if isinstance(error, MemoryError) else 1)
