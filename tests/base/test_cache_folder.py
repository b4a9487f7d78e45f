"""Where the cache is, that files in it are whole, and that whatever else lies there is as good as nothing."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from anygpu.base.cache_folder import cache_folder, decoded, sealed, unsealed, write_file
from anygpu.base.own_files import read_file
from anygpu.engines.disk_cache import DiskCache
from anygpu.placement.calibrate import calibration_folder, recalled, remember
from anygpu.placement.plan.calibration import assumed
from anygpu.testing import fake_device
from anygpu.workers import discovery

posix = pytest.mark.skipif(sys.platform == "win32", reason="owners, modes, links and pipes are POSIX's")


def test_where_the_cache_is() -> None:
    assert cache_folder({"ANYGPU_CACHE_DIR": "/somewhere"}) == Path("/somewhere")
    assert cache_folder({"XDG_CACHE_HOME": "/caches"}) == Path("/caches/anygpu")
    assert cache_folder({}).name == "anygpu"


def test_a_user_without_a_home_has_a_cache_in_which_nothing_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    folder = cache_folder({})
    assert read_file(folder / "probes.json") is None
    assert not write_file(folder / "probes.json", b"")
    assert cache_folder({"XDG_CACHE_HOME": "/caches"}) == Path("/caches/anygpu")


def test_a_file_is_replaced_and_is_the_users_own(tmp_path: Path) -> None:
    path = tmp_path / "new" / "newer" / "file"
    assert write_file(path, b"old")
    assert write_file(path, b"new")
    assert read_file(path) == b"new"
    assert [each.name for each in path.parent.iterdir()] == ["file"]
    if sys.platform != "win32":
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert path.parent.parent.stat().st_mode & 0o777 == 0o700


@posix
def test_a_disk_that_is_full_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    script = """
import resource, sys
from pathlib import Path
from anygpu.base.cache_folder import write_file
path = Path(sys.argv[1])
write_file(path, b"old")
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
print(write_file(path, bytes(1000)))
"""
    path = tmp_path / "file"
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["False"], done.stderr
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_written_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    assert not write_file(tmp_path / "file" / "below", b"content")
    assert not write_file(tmp_path / "folder", b"content")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "folder"]


@posix
def test_only_what_nobody_else_can_have_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_file(path, b"content")
    for mode in (0o620, 0o602, 0o666):
        path.chmod(mode)
        assert read_file(path) is None
    path.chmod(0o644)
    assert read_file(path) == b"content"
    for mode in (0o770, 0o707, 0o777):
        tmp_path.chmod(mode)
        assert read_file(path) is None
    tmp_path.chmod(0o1777)
    assert read_file(path) == b"content", "in a folder like /tmp a file is its owner's"
    tmp_path.chmod(0o700)
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
        assert read_file(path) is None
        os.chown(path, 0, 0)
        os.chown(tmp_path, 65534, 65534)
        assert read_file(path) is None


@posix
def test_the_folder_of_our_own_is_closed_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANYGPU_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = cache_folder()
    assert folder.is_relative_to(tmp_path)
    folder.mkdir(parents=True)
    folder.chmod(0o775)
    folder.parent.chmod(0o775)
    write_file(folder / "file", b"content")
    assert folder.stat().st_mode & 0o777 == 0o755
    assert folder.parent.stat().st_mode & 0o777 == 0o775, "that one is not ours"
    assert read_file(folder / "file") == b"content"


def test_a_file_has_so_many_bytes_at_most(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_file(path, bytes(100))
    assert read_file(path, 100) == bytes(100)
    assert read_file(path, 99) is None


def test_a_seal_is_for_one_content_and_one_purpose() -> None:
    whole = sealed(b"content", b"one")
    assert unsealed(whole, b"one") == b"content"
    assert unsealed(whole, b"other") is None
    assert unsealed(None, b"one") is None
    assert all(unsealed(whole[:length], b"one") is None for length in range(len(whole)))
    assert unsealed(whole.replace(b"content", b"CONTENT"), b"one") is None


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[" * 200_000, b'{"a":' * 200_000, b"\xff", b'"\\ud800"', b"1e999", b"9" * 5000]
)
def test_what_is_no_record_is_none(content: bytes) -> None:
    assert decoded(msgspec.json.decode, content, dict[str, int]) is None
    assert decoded(msgspec.msgpack.decode, b"\x91" * 200_000, dict[str, int]) is None


# -- whatever lies in the place of each kind of file

CALIBRATION_DEVICE = fake_device("webgpu:0", state="verified")


def _write_probes(folder: Path) -> None:
    discovery.write_cached(folder / "probes.json", {"webgpu": [CALIBRATION_DEVICE]}, {"webgpu": "print"}, now=1.0)


def _read_probes(folder: Path) -> bool:
    return bool(discovery.read_cached(folder / "probes.json", {"webgpu": "print"}, now=2.0))


def _write_calibration(folder: Path) -> None:
    remember(assumed(CALIBRATION_DEVICE), CALIBRATION_DEVICE)


def _read_calibration(folder: Path) -> bool:
    return recalled(CALIBRATION_DEVICE) is not None


def _write_kept(folder: Path) -> None:
    DiskCache(folder / "kernels", "stamp").put_record("tuning", "key", [1, 2, 3])


def _read_kept(folder: Path) -> bool:
    return DiskCache(folder / "kernels", "stamp").record("tuning", "key", list[int]) is not None


KINDS = {
    "probes": (_write_probes, _read_probes),
    "calibration": (_write_calibration, _read_calibration),
    "kept": (_write_kept, _read_kept),
}


def _random_bytes(path: Path) -> None:
    path.write_bytes(random.Random(path.name).randbytes(1000))


def _truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def _one_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def _deep(path: Path) -> None:
    path.write_bytes(b'{"webgpu":{"zz":' + b"[" * 200_000)


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def _link(path: Path) -> None:
    other = path.parent.parent / "elsewhere"
    path.replace(other)
    path.symlink_to(other)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _device_node(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def _others_may_write(path: Path) -> None:
    path.chmod(0o666)


def _of_another_user(path: Path) -> None:
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
    else:
        path.chmod(0o622)


def _unreadable(path: Path) -> None:
    path.write_bytes(b"")
    path.chmod(0)


SPOILERS = [
    _random_bytes,
    _truncated,
    _one_bit,
    _deep,
    _huge,
    _link,
    _pipe,
    _folder,
    _device_node,
    _others_may_write,
    _of_another_user,
    _unreadable,
]


@posix
@pytest.mark.parametrize("spoil", SPOILERS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("kind", list(KINDS))
def test_whatever_lies_in_the_place_of_a_file_is_as_good_as_none(
    kind: str, spoil: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache"
    monkeypatch.setenv("ANYGPU_CACHE_DIR", str(folder))
    write, read = KINDS[kind]
    write(folder)
    assert read(folder)
    (path,) = [each for each in folder.rglob("*") if each.is_file()]
    spoil(path)
    assert not read(folder)
    write(folder)
    assert read(folder) == (spoil is not _folder), "it is replaced, unless a folder is in its place"


@posix
def test_calls_work_whatever_the_cache_holds(tmp_path: Path) -> None:
    script = """
import numpy as np, anygpu as ag
print([each.id for each in ag.devices()])
print(ag.run(lambda x: x + 1, np.zeros(3, np.float32), on="opencl").value)
"""
    environment = {**os.environ, "ANYGPU_CACHE_DIR": str(tmp_path), "ANYGPU_ENGINES": "opencl"}

    def run() -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    expected = run()
    kinds = {each.name.rpartition("-")[0] for each in (tmp_path / "kernels").iterdir()}
    assert kinds <= {"functions", "overwriting", "tuning", "kernel-compiled", "kernel-checked"}, (
        "nothing that a driver would run"
    )
    (tmp_path / "probes.json").write_bytes((tmp_path / "probes.json").read_bytes().replace(b"opencl:0", b"opencl:9"))
    for path in (tmp_path / "kernels").iterdir():
        path.unlink()
        os.mkfifo(path, 0o600)
    assert run() == expected
    for path in [each for each in tmp_path.rglob("*") if not each.is_dir()]:
        path.unlink()
        path.mkdir()
    assert run() == expected


@pytest.mark.parametrize("field", ["launch", "kernel", "open", "wide"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_a_calibration_that_cannot_be_reckoned_with_is_ignored(
    field: str, value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANYGPU_CACHE_DIR", str(tmp_path))
    good = assumed(CALIBRATION_DEVICE)
    assert good.is_plausible
    remember(msgspec.structs.replace(good, **{field: value}), CALIBRATION_DEVICE)
    assert list(calibration_folder().iterdir())
    assert recalled(CALIBRATION_DEVICE) is None
    no_points = {name: msgspec.structs.replace(curve, points=()) for name, curve in good.rates.items()}
    remember(msgspec.structs.replace(good, rates=no_points), CALIBRATION_DEVICE)
    assert recalled(CALIBRATION_DEVICE) is None
