"""Whatever is in the place of the history file: it is read or replaced, and never an error."""

from __future__ import annotations

import logging
import os
import random
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anygpu.base.cache_folder import TEMPORARY, sealed, unsealed, write_file
from anygpu.placement.history import storage as storage_module
from anygpu.placement.history.history import History
from anygpu.placement.history.records import RECENT, HabitKey, HabitRow, TimingKey, TimingRow
from anygpu.placement.history.storage import FORGET_SECONDS, Contents, HistoryFile, RowBatch
from anygpu.testing import ManualClock

posix = pytest.mark.skipif(sys.platform == "win32", reason="owners, modes, links and pipes are POSIX's")
NOW = 1_800_000_000.0
S = "f" * 32
SECONDS = 5.0


def key(number: int) -> TimingKey:
    return TimingKey(f"{number:032x}", "webgpu:0", S)


def habit(number: int) -> HabitKey:
    return HabitKey(f"{number:032x}", S)


def batch(*numbers: int, when: float = NOW) -> RowBatch:
    return RowBatch(
        {key(each): TimingRow(((when, 0.5),), 1) for each in numbers},
        {habit(each): HabitRow((when, f"name {each}"), None, 1, ((each, when, 1, 0.5),)) for each in numbers},
    )


@pytest.fixture(autouse=True)
def notices(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "anygpu.history")
    return caplog


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "history" / "calls.1"


def filled(path: Path, *numbers: int) -> HistoryFile:
    database = HistoryFile(path)
    assert database.add(batch(*(numbers or (1, 2, 3))), SECONDS)
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
    assert names(path) == {"calls.1", "history.lock"}, "nothing else is left after a use"


def test_reading_makes_nothing(path: Path) -> None:
    database = HistoryFile(path)
    assert database.timings(key(1).program) == {}
    assert database.habit(habit(1)) is None
    assert database.contents() == Contents({}, {})
    assert not path.parent.exists()


def test_rows_are_bounded_and_the_oldest_go_first(path: Path) -> None:
    clock = ManualClock(NOW)
    database = HistoryFile(path, clock=clock, most_rows=40)
    for number in range(200):
        assert database.add(batch(number, when=clock()), SECONDS)
        clock.advance(10)
        # This one is asked for, so it is not the oldest.
        clock.advance(2 * 86_400.0 if number == 50 else 0)
        if number > 0:
            assert database.add(RowBatch(used_programs={key(0).program}, used_habits={habit(0)}), SECONDS)
        contents = database.contents()
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
    database = HistoryFile(path, clock=clock)
    database.add(batch(1, 2), SECONDS)
    clock.advance(FORGET_SECONDS - 10)
    database.add(RowBatch(used_programs={key(1).program}, used_habits={habit(1)}), SECONDS)
    clock.advance(20)
    database.add(batch(3), SECONDS)
    contents = database.contents()
    assert set(contents.timings) == {key(1), key(3)}
    assert set(contents.habits) == {habit(1), habit(3)}


def test_a_clock_that_was_wrong_is_forgiven(path: Path) -> None:
    database = HistoryFile(path, clock=ManualClock(NOW * 2))
    database.add(batch(1, when=NOW * 2), SECONDS)
    database = HistoryFile(path, clock=ManualClock(NOW), most_rows=8)
    for number in range(2, 20):
        assert database.add(batch(number), SECONDS)
    assert 1 <= len(database.contents().timings) <= 8
    for clock in (ManualClock(float("nan")), ManualClock(float("inf")), ManualClock(-5.0)):
        HistoryFile(path, clock=clock).add(batch(1), SECONDS)
    assert database.problem is None


@settings(max_examples=15)
@given(seed=st.integers(0, 1000))
def test_bytes_are_bounded(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("history") / "history" / "calls.1"
    rng = random.Random(seed)
    most = rng.choice((6, 10, 30)) * 4096
    database = HistoryFile(path, most_bytes=most)
    for number in range(60):
        row = TimingRow(tuple((NOW, rng.random()) for _ in range(RECENT)), 1)
        name = TimingKey(f"{number:032x}", "d" * rng.choice((5, 200)), S)
        database.add(RowBatch({name: row}), SECONDS)
        assert database.nbytes <= most
    assert database.problem is None
    assert database.contents().timings
    assert names(path) == {"calls.1", "history.lock"}


def test_an_invalid_row_counts_as_none(path: Path) -> None:
    database = filled(path, 1, 2)
    content = unsealed(path.read_bytes(), storage_module._PURPOSE)
    assert content is not None
    timings, habits = msgspec.msgpack.decode(content)
    one, other = (f"{key(each).program} {S} webgpu:0" for each in (1, 2))
    timings[one][1] = "no row"
    timings["no hash"] = timings["no hash but three"] = timings[other]
    habits[f"{habit(1).function} {S}"][1] = 5
    habits["\xff y"] = habits[f"{habit(2).function} {S}"]
    write_file(path, sealed(msgspec.msgpack.encode((timings, habits)), storage_module._PURPOSE))
    contents = database.contents()
    assert set(contents.timings) == {key(2)}
    assert set(contents.habits) == {habit(2)}
    assert database.add(batch(1), SECONDS)
    assert set(database.contents().timings) == {key(1), key(2)}


def test_clearing_leaves_nothing_of_names(path: Path) -> None:
    database = filled(path, 1, 2)
    for suffix in ("", "-journal", ".aside"):
        path.with_name(f"history.sqlite3{suffix}").write_bytes(b"of an earlier version")
    assert database.clear({habit(1)}, {key(1)}, SECONDS)
    assert b"name 1" not in path.read_bytes()
    assert set(database.contents().timings) == {key(2)}
    had_old_format = database.has_old_format
    assert database.clear_all(SECONDS)
    assert b"name" not in path.read_bytes()
    assert database.contents() == Contents({}, {})
    assert (had_old_format, database.has_old_format) == (True, False)
    assert names(path) == {"calls.1", "history.lock"}


def test_temporary_files_of_dead_processes_are_removed(path: Path) -> None:
    filled(path)
    for name, age in (("old", 7200), ("new", 0)):
        leftover = path.with_name(TEMPORARY + name)
        leftover.write_bytes(b"half a file")
        os.utime(leftover, (time.time() - age,) * 2)
    filled(path, 4)
    assert names(path) == {"calls.1", "history.lock", TEMPORARY + "new"}


# -- whatever lies in its place


def _random_bytes(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(10_000))


def _truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def _one_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _other_purpose(path: Path) -> None:
    path.write_bytes(sealed(path.read_bytes()[65:], b"another"))


def _other_record(path: Path) -> None:
    path.write_bytes(sealed(msgspec.msgpack.encode([{}, {"a": 1}]), storage_module._PURPOSE))


def _deep(path: Path) -> None:
    path.write_bytes(sealed(b"\x91" * 200_000, storage_module._PURPOSE))


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
    _one_bit,
    _empty,
    _other_purpose,
    _other_record,
    _deep,
    _huge,
    _link,
    _dangling,
    _device_node,
    _pipe,
    _others_may_write,
    _of_another_user,
]


@posix
@pytest.mark.parametrize("spoil", SPOILERS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("first", ["read", "write"])
def test_whatever_is_in_its_place_is_replaced(
    first: str, spoil: Callable[[Path], None], path: Path, notices: pytest.LogCaptureFixture
) -> None:
    filled(path, *range(200))
    spoil(path)
    database = HistoryFile(path)
    if first == "read":
        assert database.contents() == Contents({}, {})
        assert notices.records == []
    for _ in range(3):
        assert database.add(batch(1000), SECONDS)
    assert set(database.contents().timings) == {key(1000)}
    assert database.problem is None
    assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    (record,) = notices.records
    assert record.name == "anygpu.history"
    assert record.getMessage() == f"The history {path} is damaged, or not yours alone. A new one is begun."


def test_a_folder_in_its_place_is_left(path: Path) -> None:
    (path / "of the user's").mkdir(parents=True)
    database = HistoryFile(path)
    assert database.contents() == Contents({}, {})
    assert not database.add(batch(1), SECONDS)
    assert (path / "of the user's").exists()


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
    database = HistoryFile(path)
    database.add(batch(9), SECONDS)
    assert database.contents() == Contents({}, {})
    assert database.add(batch(9), SECONDS)
    found = elsewhere / path.name if elsewhere.exists() else path
    assert found.read_bytes() == content
    # A file in the place of a folder means, to the rest of the cache as well, that nothing can be kept.
    assert len(notices.records) == (0 if what == "file" else 1)


def test_below_a_file_nothing_can_be_kept_and_nobody_hears_of_it(
    tmp_path: Path, notices: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    kept = History(tmp_path / "file" / "history" / "calls.1")
    kept.ran("0" * 32, "numpy", S, 1.0)
    assert kept.flush(), "it is dropped"
    assert kept.timings("0" * 32) == ()
    assert notices.records == []


# -- in a child: as another user, and with limits

CHILD = """
import logging, os, resource, sys
from pathlib import Path
from tests.history.test_storage import NOW, SECONDS, HistoryFile, batch, key
logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stdout)
path = Path(sys.argv[1])
database = HistoryFile(path)
{code}
print("problem", database.problem)
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
def test_a_read_only_file_is_replaced(path: Path) -> None:
    filled(path)
    path.chmod(0o400)
    shown = in_child(
        path, AS_NOBODY + "print(len(database.contents().timings))\n"
        "database.add(batch(9), SECONDS)\nprint(len(database.contents().timings))"
    )  # fmt: skip
    assert shown.splitlines() == ["3", "4", "problem None"]


@posix
@pytest.mark.parametrize("with_lock", [True, False])
def test_a_read_only_folder_is_read(path: Path, with_lock: bool) -> None:
    filled(path)
    if not with_lock:
        path.with_name("history.lock").unlink()
    path.parent.chmod(0o500)
    shown = in_child(
        path,
        AS_NOBODY + "print(database.add(batch(9), SECONDS))\nprint(len(database.contents().timings))",
    )
    path.parent.chmod(0o700)
    lines = shown.splitlines()
    assert lines[:2] == ["True", "3"], shown
    assert lines[2].startswith("problem Nothing is added to the history in "), shown


@posix
def test_a_full_disk_leaves_what_was_there(path: Path) -> None:
    filled(path, *range(100))
    code = """
before = path.read_bytes()
resource.setrlimit(resource.RLIMIT_FSIZE, (len(before), len(before)))
for number in range(5):
    assert not database.add(batch(*range(1000 * number, 1000 * number + 500)), SECONDS)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""
    code = code.replace("(len(before), len(before))", "(len(before), resource.RLIM_INFINITY)")
    code += """
assert len(database.contents().timings) == 100
assert database.add(batch(1000), SECONDS)
assert len(database.contents().timings) == 101
"""
    assert in_child(path, code).splitlines() == ["problem None"]
    assert names(path) == {"calls.1", "history.lock"}


@posix
def test_a_disk_that_is_full_from_the_start(path: Path) -> None:
    code = """
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
for _ in range(3):
    assert not database.add(batch(1), SECONDS)
assert not database.contents().timings
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert database.add(batch(1), SECONDS)
assert database.contents().timings
"""
    assert in_child(path, code).splitlines() == ["problem None"]


@posix
def test_a_process_with_too_many_files_open_blames_no_file(path: Path) -> None:
    filled(path)
    code = """
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
        database.contents()
    files.pop().close()
assert database.add(batch(99), SECONDS)
found = database.contents().timings
assert len(found) >= 4, (found, os.listdir(path.parent))
"""
    assert in_child(path, code).splitlines() == ["problem None"]
    assert names(path) == {"calls.1", "history.lock"}


@posix
@pytest.mark.parametrize("what", ["link", "folder"])
def test_without_a_lock_file_the_history_is_only_read(what: str, path: Path) -> None:
    filled(path)
    lock = path.with_name("history.lock")
    lock.unlink()
    if what == "link":
        lock.symlink_to(path.parent / "elsewhere")
    else:
        lock.mkdir()
    database = HistoryFile(path)
    assert database.add(batch(4), SECONDS), "it is dropped"
    assert len(database.contents().timings) == 3
    assert database.problem is not None
    assert "Nothing is added to the history" in database.problem
    assert not (path.parent / "elsewhere").exists()
