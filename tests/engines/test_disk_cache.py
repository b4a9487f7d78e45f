"""DiskCache files: there again when all is well, and as good as absent whenever anything is not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anygpu.engines import disk_cache as kept_module
from anygpu.engines.disk_cache import DiskCache, stamp_of
from anygpu.errors import InvalidOption
from anygpu.testing import ManualClock, fake_device

SIZES = (0, 1, 2, 63, 64, 65, 255, 256, 257, 1023, 1024, 1025, 100_001)


class Tuned(msgspec.Struct, frozen=True):
    tile: tuple[int, int]
    seconds: float


def only_file(directory: Path) -> Path:
    (path,) = directory.iterdir()
    return path


@pytest.mark.parametrize("size", SIZES)
def test_what_was_put_is_there_for_another_process(tmp_path: Path, size: int) -> None:
    data = bytes(number % 251 for number in range(size))
    DiskCache(tmp_path, "stamp").put("opencl-binary", "kernel", data)
    assert DiskCache(tmp_path, "stamp").get("opencl-binary", "kernel") == data


def test_nothing_is_found_under_another_name(tmp_path: Path) -> None:
    kept = DiskCache(tmp_path, "stamp")
    kept.put("binary", "kernel", b"code")
    assert kept.get("binary", "kernel2") is None
    assert kept.get("binary", b"kernel") is None, "text and bytes are two keys"
    assert kept.get("binary-kernel", "") is None
    assert kept.get("tuning", "kernel") is None
    assert DiskCache(tmp_path, "newer driver").get("binary", "kernel") is None
    assert kept.get("binary", "kernel") == b"code"


def test_the_last_one_put_counts(tmp_path: Path) -> None:
    kept = DiskCache(tmp_path, "stamp")
    kept.put("binary", "kernel", b"old")
    kept.put("binary", "kernel", b"new")
    assert kept.get("binary", "kernel") == b"new"
    only_file(tmp_path)


def test_records(tmp_path: Path) -> None:
    kept = DiskCache(tmp_path, "stamp")
    tuned = Tuned((8, 16), 0.5)
    kept.put_record("tuning", "matmul", tuned)
    assert kept.record("tuning", "matmul", Tuned) == tuned
    assert kept.record("tuning", "softmax", Tuned) is None
    assert kept.record("tuning", "matmul", dict[str, int]) is None, "of another type"
    kept.put("tuning", "matmul", b"\xc1 is not a message")
    assert kept.record("tuning", "matmul", Tuned) is None
    kept.put_record("tuning", "trusted", {"exp": True})
    assert kept.record("tuning", "trusted", dict[str, bool]) == {"exp": True}


def test_every_single_byte_is_checked(tmp_path: Path) -> None:
    kept = DiskCache(tmp_path, "stamp")
    kept.put("binary", "kernel", b"the code of a kernel")
    path = only_file(tmp_path)
    whole = path.read_bytes()
    for position in range(len(whole)):
        for flip in (0x01, 0x80, 0xFF):
            changed = bytearray(whole)
            changed[position] ^= flip
            path.write_bytes(changed)
            assert kept.get("binary", "kernel") is None, f"byte {position} was changed"
    path.write_bytes(whole)
    assert kept.get("binary", "kernel") == b"the code of a kernel"


def test_every_truncation_is_seen(tmp_path: Path) -> None:
    kept = DiskCache(tmp_path, "stamp")
    kept.put("binary", "kernel", b"the code of a kernel")
    path = only_file(tmp_path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert kept.get("binary", "kernel") is None, f"{length} bytes are left"
    path.write_bytes(whole + b"\0")
    assert kept.get("binary", "kernel") is None
    kept.put("binary", "kernel", b"code")
    assert kept.get("binary", "kernel") == b"code", "a broken file is replaced"


@given(st.binary(max_size=300))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
def test_a_foreign_file_is_ignored(tmp_path: Path, content: bytes) -> None:
    kept = DiskCache(tmp_path, "stamp")
    kept.put("binary", "kernel", b"code")
    only_file(tmp_path).write_bytes(content)
    assert kept.get("binary", "kernel") is None
    assert kept.record("binary", "kernel", Tuned) is None


def test_a_file_of_a_future_format_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = DiskCache(tmp_path, "stamp")
    kept.put("binary", "kernel", b"now")
    now = only_file(tmp_path)
    with monkeypatch.context() as future:
        future.setattr(kept_module, "_FORMAT", 99)
        kept.put("binary", "kernel", b"future")
        (later,) = set(tmp_path.iterdir()) - {now}
    later.replace(now)
    assert kept.get("binary", "kernel") is None


def test_a_file_under_the_name_of_another_is_ignored(tmp_path: Path) -> None:
    kept = DiskCache(tmp_path, "stamp")
    kept.put("binary", "one", b"one")
    one = only_file(tmp_path)
    kept.put("binary", "two", b"two")
    (two,) = set(tmp_path.iterdir()) - {one}
    two.replace(one)
    assert kept.get("binary", "one") is None


posix = pytest.mark.skipif(sys.platform == "win32", reason="owners and modes are POSIX's")


@posix
def test_a_file_that_others_could_have_written_is_ignored(tmp_path: Path) -> None:
    kept = DiskCache(tmp_path, "stamp")
    kept.put("binary", "kernel", b"code")
    path = only_file(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    for mode in (0o620, 0o602, 0o666):
        path.chmod(mode)
        assert kept.get("binary", "kernel") is None
    path.chmod(0o644)
    assert kept.get("binary", "kernel") == b"code"


@posix
def test_another_users_file_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = DiskCache(tmp_path, "stamp")
    kept.put("binary", "kernel", b"code")
    path = only_file(tmp_path)
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert kept.get("binary", "kernel") is None


@posix
def test_what_is_no_file_is_ignored_and_not_waited_for(tmp_path: Path) -> None:
    kept = DiskCache(tmp_path, "stamp")
    kept.put("binary", "kernel", b"code")
    path = only_file(tmp_path)
    path.unlink()
    os.mkfifo(path, 0o600)
    assert kept.get("binary", "kernel") is None
    path.unlink()
    path.mkdir()
    assert kept.get("binary", "kernel") is None
    kept.put("binary", "kernel", b"code")
    assert kept.get("binary", "kernel") is None
    assert list(tmp_path.iterdir()) == [path], "nothing half-written is left"
    path.rmdir()
    path.symlink_to(tmp_path / "nowhere")
    assert kept.get("binary", "kernel") is None


def test_a_folder_that_cannot_be_written_costs_only_the_cache(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    for directory in (file / "below", Path("/proc/anygpu"), Path(os.devnull) / "anygpu"):
        kept = DiskCache(directory, "stamp")
        kept.put("binary", "kernel", b"code")
        kept.put_record("tuning", "kernel", Tuned((1, 1), 1.0))
        assert kept.get("binary", "kernel") is None
        assert kept.record("tuning", "kernel", Tuned) is None


@posix
def test_a_read_only_folder_can_still_be_read(tmp_path: Path) -> None:
    """In a child that is not root, to whom nothing is read-only."""
    script = """
import os, sys, tempfile
from pathlib import Path
from anygpu.engines.disk_cache import DiskCache
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
with tempfile.TemporaryDirectory() as folder:
    folder = Path(folder)
    DiskCache(folder, "stamp").put("binary", "kernel", b"code")
    folder.chmod(0o500)
    kept = DiskCache(folder, "stamp", max_bytes=4096)
    kept.put("binary", "kernel", b"newer")
    kept.put("binary", "other", b"other")
    print(kept.get("binary", "kernel"), kept.get("binary", "other"), len(os.listdir(folder)))
    folder.chmod(0o700)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd="/")
    assert done.stdout.split() == ["b'code'", "None", "1"], done.stderr


def test_the_folder_stays_below_its_cap_and_what_was_not_asked_for_goes_first(tmp_path: Path) -> None:
    clock = ManualClock(1e9)
    kept = DiskCache(tmp_path, "stamp", max_bytes=10 * 4096, clock=clock)
    for number in range(8):
        clock.advance(1)
        kept.put("binary", str(number), bytes(4000))
    clock.advance(1)
    assert kept.get("binary", "0") is not None
    for number in range(8, 16):
        clock.advance(1)
        kept.put("binary", str(number), bytes(4000))
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 10 * 4096
    present = {number for number in range(16) if kept.get("binary", str(number)) is not None}
    assert {0, 15} <= present
    assert not present & {1, 2, 3}
    assert len(present) >= 8


def test_what_is_larger_than_the_cap_is_not_kept(tmp_path: Path) -> None:
    kept = DiskCache(tmp_path, "stamp", max_bytes=8192)
    kept.put("binary", "small", bytes(1))
    kept.put("binary", "large", bytes(9000))
    assert kept.get("binary", "small") == bytes(1)
    assert kept.get("binary", "large") is None


def test_only_our_own_files_are_removed(tmp_path: Path) -> None:
    clock = ManualClock(1e9)
    theirs = tmp_path / "thesis.tex"
    theirs.write_bytes(bytes(100_000))
    abandoned, fresh = tmp_path / ".anygpu-new-1", tmp_path / ".anygpu-new-2"
    for path, age in ((theirs, 1e6), (abandoned, 4000), (fresh, 10)):
        path.touch()
        os.utime(path, (clock() - age, clock() - age))
    kept = DiskCache(tmp_path, "stamp", max_bytes=8192, clock=clock)
    for number in range(5):
        kept.put("binary", str(number), bytes(10))
    assert theirs.exists()
    assert fresh.exists(), "it may still be written"
    assert not abandoned.exists()


_WRITER = """
import sys
from pathlib import Path
from anygpu.engines.disk_cache import DiskCache
kept = DiskCache(Path(sys.argv[1]), "stamp", max_bytes=40 * 4096)
mark = sys.argv[2].encode()
print("ready", flush=True)
sys.stdin.readline()
for turn in range(150):
    kept.put("binary", str(turn % 7), mark * (1000 + turn * 50))
    kept.put("other", mark + str(turn).encode(), mark * 1000)
"""


def _writer(directory: Path, mark: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(directory), mark],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_processes_write_at_once_and_a_third_reads(tmp_path: Path) -> None:
    kept = DiskCache(tmp_path, "stamp")
    seen = set()
    with _writer(tmp_path, "a") as one, _writer(tmp_path, "b") as two:
        writers = (one, two)
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write("go\n")
            writer.stdin.flush()
        while any(writer.poll() is None for writer in writers):
            for key in range(7):
                data = kept.get("binary", str(key))
                if data is not None:
                    assert len(set(data)) == 1, "two writers mixed"
                    assert (len(data) - 1000) % 50 == 0, "a part of a file"
                    seen.add(data[:1])
        for writer in writers:
            _, errors = writer.communicate()
            assert writer.returncode == 0, errors
            assert errors == ""
    assert seen == {b"a", b"b"}
    assert all(not path.name.startswith(".") for path in tmp_path.iterdir())
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 45 * 4096, "about the cap, with two who count"


@pytest.mark.parametrize("kind", ["", "Upper", "a/b", "..", "a_b", "-a", "a-", "a--b"])
def test_a_kind_is_a_part_of_a_file_name(tmp_path: Path, kind: str) -> None:
    with pytest.raises(InvalidOption, match="kind"):
        DiskCache(tmp_path, "stamp").put(kind, "key", b"")


def test_the_stamp_changes_with_everything_that_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    device = fake_device("opencl:0", driver="1.0")
    before = stamp_of(device, ["numpy"])
    assert stamp_of(device, ["numpy"]) == before
    twin = fake_device("opencl:1", driver="1.0", load=0.5, memory_free=1)
    assert stamp_of(twin, ["numpy"]) == before, "another card of the same model"
    for change in ({"driver": "1.1"}, {"name": "Other"}, {"api": "OpenCL 1.2"}, {"features": ("f64",)}):
        assert stamp_of(msgspec.structs.replace(device, **change), ["numpy"]) != before, change
    assert stamp_of(device, ["numpy", "msgspec"]) != before
    with monkeypatch.context() as patch:
        patch.setattr(kept_module, "__version__", "9.9")
        assert stamp_of(device, ["numpy"]) != before
    monkeypatch.setattr(kept_module, "version_of", lambda name: "9.9")
    assert stamp_of(device, ["numpy"]) != before
