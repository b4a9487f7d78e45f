"""Saves are whole or did not happen."""

from __future__ import annotations

import itertools
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anygpu.errors import InvalidOption
from anygpu.store.tensor_files import open_file, open_folder, save, verify
from anygpu.store.tensor_files.writing import Unfinished, clear_unfinished, new_file
from tests.support.interrupting import AtMoment, places_of
from tests.support.isolation import descriptors_in


def files(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.safetensors"


def test_a_map_of_the_file_can_be_saved_in_its_place(path: Path) -> None:
    save(path, {"x": np.arange(100_000.0), "y": np.arange(7)})
    with open_file(path) as opened:
        views = {name: opened.values(name) for name in opened}
        save(path, {"y": views["y"], "x": views["x"][::-1], "z": views["x"]})
    with open_file(path) as opened:
        assert opened.names == ("y", "x", "z")
        np.testing.assert_array_equal(opened.values("x"), np.arange(100_000.0)[::-1])
        np.testing.assert_array_equal(opened.values("z"), np.arange(100_000.0))
        np.testing.assert_array_equal(views["x"], np.arange(100_000.0))


class FailsWhenFetched:
    """An array of another library whose device is gone when its turn comes."""

    shape = (3,)
    dtype = np.dtype(np.float32)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise RuntimeError("the device is gone")


class IsAnother(FailsWhenFetched):
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.zeros(4, np.float32)


@pytest.mark.parametrize("shard_bytes", [None, 50])
@pytest.mark.parametrize(("wrong", "kind"), [(FailsWhenFetched(), RuntimeError), (IsAnother(), InvalidOption)])
def test_an_error_leaves_the_old_and_nothing_else(
    tmp_path: Path, shard_bytes: int | None, wrong: Any, kind: type[Exception]
) -> None:
    path = tmp_path / "x.safetensors" if shard_bytes is None else tmp_path
    save(path, {"a": np.zeros(9), "b": np.ones(9)}, shard_bytes=shard_bytes)
    before = files(tmp_path)
    with pytest.raises(kind):
        save(path, {"a": np.ones(9), "b": wrong}, shard_bytes=shard_bytes)
    assert files(tmp_path) == before
    assert verify(path).checked == 2
    with open_file(path) if shard_bytes is None else open_folder(path) as opened:
        assert opened.values("a").sum() == 0


@pytest.mark.skipif(sys.platform == "win32", reason="no limits of that kind")
@pytest.mark.parametrize("shard_bytes", [None, 100_000])
def test_a_full_disk_leaves_the_old_and_names_the_file(tmp_path: Path, shard_bytes: int | None) -> None:
    """A limit on the size of files stands for the full disk: the system refuses to write in the same way."""
    path = tmp_path / "x.safetensors" if shard_bytes is None else tmp_path
    save(path, {"x": np.zeros(9)}, shard_bytes=shard_bytes)
    before = files(tmp_path)
    script = f"""
import resource, signal
import numpy as np
from anygpu.store.tensor_files import save
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (70_000, 70_000))
try:
    save({str(path)!r}, {{"x": np.ones(100), "y": np.ones(10_000)}}, shard_bytes={shard_bytes})
except OSError as error:
    assert error.filename == {str(path)!r}, error
else:
    raise SystemExit("nothing was refused")
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    assert files(tmp_path) == before
    assert verify(path).nbytes == 72


def test_a_disk_that_really_is_full_or_cannot_be_written(tmp_path: Path) -> None:
    """Needs the right to mount."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if done.returncode:
        pytest.skip(f"this user cannot mount: {done.stderr.decode()}")
    try:
        save(place / "x.safetensors", {"x": np.zeros(10_000)})
        with pytest.raises(OSError, match="No space") as caught:
            save(place / "x.safetensors", {"x": np.ones(30_000)})
        assert caught.value.filename == str(place / "x.safetensors")
        assert files(place) == {"x.safetensors"}
        assert verify(place / "x.safetensors").nbytes == 80_000
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        with pytest.raises(OSError, match="Read-only"):
            save(place / "x.safetensors", {"x": np.ones(3)})
        assert verify(place / "x.safetensors").nbytes == 80_000
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_permissions_of_the_replaced_file_are_kept(path: Path) -> None:
    umask = os.umask(0o022)
    try:
        save(path, {"x": np.zeros(3)})
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        for mode in (0o600, 0o640, 0o666):
            path.chmod(mode)
            save(path, {"x": np.zeros(3)})
            assert stat.S_IMODE(path.stat().st_mode) == mode
    finally:
        os.umask(umask)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    save(tmp_path / "real" / "x.safetensors", {"x": np.zeros(3)})
    link = tmp_path / "link.safetensors"
    link.symlink_to("real/x.safetensors")
    save(link, {"x": np.ones(3)})
    assert link.is_symlink()
    assert files(tmp_path / "real") == {"x.safetensors"}
    with open_file(tmp_path / "real" / "x.safetensors") as opened:
        assert opened.values("x").sum() == 3


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        save(tmp_path / "no" / "x.safetensors", {})
    assert str(tmp_path / "no") in str(caught.value)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="everything is allowed to this user")
def test_a_folder_that_cannot_be_written(path: Path) -> None:
    save(path, {"x": np.zeros(3)})
    path.parent.chmod(0o500)
    try:
        with pytest.raises(PermissionError):
            save(path, {"x": np.ones(3)})
    finally:
        path.parent.chmod(0o700)
    assert verify(path).checked == 1


def test_what_the_dead_left_is_removed_and_what_the_living_write_is_not(path: Path) -> None:
    living = Unfinished(path.parent, like=None)
    living.begin()
    dead = Unfinished(path.parent, like=None)
    dead.begin().close()  # the system gives its lock back, as when the process ends
    (path.parent / ".anygpu-saving-something-else").write_bytes(b"")
    save(path, {"x": np.zeros(3)})
    assert files(path.parent) == {path.name, living.path.name, ".anygpu-saving-something-else"}
    assert clear_unfinished(path.parent) == {living.token}
    living.abandon()
    assert clear_unfinished(path.parent) == set()


@pytest.mark.parametrize("shard_bytes", [None, 8000])
def test_many_saves_at_once_end_with_one_of_them(tmp_path: Path, shard_bytes: int | None) -> None:
    """And whoever reads meanwhile sees one of them, too."""
    place = tmp_path / "model"
    place.mkdir()
    path = place if shard_bytes else place / "x.safetensors"
    errors: list[BaseException] = []
    over = threading.Event()

    def write(number: int) -> None:
        try:
            for _ in range(15):
                save(path, {name: np.full(1000, number) for name in "abc"}, shard_bytes=shard_bytes)
        except BaseException as error:  # noqa: BLE001 - shown below
            errors.append(error)

    def read() -> None:
        try:
            while not over.is_set():
                look()
        except BaseException as error:  # noqa: BLE001 - shown below
            errors.append(error)

    def look() -> None:
        with open_folder(path) if shard_bytes else open_file(path) as opened:
            assert len({int(each) for name in "abc" for each in np.unique(opened.values(name))}) == 1

    save(path, {name: np.full(1000, 9) for name in "abc"}, shard_bytes=shard_bytes)
    writers = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    reader = threading.Thread(target=read)
    for each in (*writers, reader):
        each.start()
    for each in writers:
        each.join()
    over.set()
    reader.join()
    assert errors == []
    look()
    assert len(files(place)) == (4 if shard_bytes else 1)


@pytest.mark.parametrize(
    ("tensors", "options", "words"),
    [
        ([np.zeros(3)], {}, "by name, as a dict"),
        ({1: np.zeros(3)}, {}, "names of tensors are strings"),
        ({"__metadata__": np.zeros(3)}, {}, "name the tensor otherwise"),
        ({"\ud800": np.zeros(3)}, {}, "UTF-8"),
        ({"x": [1, 2]}, {}, "'x' is not an array, but list"),
        ({"x": np.array([{}, None])}, {}, "'x' holds Python objects.*pickle"),
        ({"x": np.zeros(3, complex)}, {}, "'x' has the dtype complex128"),
        ({"x": np.array(["a"])}, {}, "'x' has the dtype <U1"),
        ({"x": np.zeros(3, "M8[s]")}, {}, "'x' has the dtype datetime64"),
        ({"x": np.zeros(3, [("a", "f4")])}, {}, "'x' has the dtype"),
        ({"x": np.ma.masked_array(np.zeros(3), True)}, {}, "mask would be lost"),
        ({"x": np.zeros(3)}, {"metadata": {"a": 1}}, "strings by strings"),
        ({"x": np.zeros(3)}, {"metadata": {"anygpu.hash:x": "1"}}, "anygpu's own"),
        ({"x": np.zeros(3)}, {"owners": {"y": "me"}}, "owners has 'y'"),
        ({"x": np.zeros(3)}, {"owners": {"x": 3}}, "owner of 'x' is a string"),
        ({"x": np.zeros(3)}, {"shard_bytes": 0}, "at least 1"),
        ({"x": np.zeros(3)}, {"shard_bytes": "1GB"}, "number of bytes"),
    ],
)
def test_wrong_arguments(path: Path, tensors: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        save(path, tensors, **options)
    assert files(path.parent) == set()


def test_wrong_places(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidOption, match="is a folder"):
        save(tmp_path, {})
    with pytest.raises(InvalidOption, match="is a file"):
        save(tmp_path / "file", {}, shard_bytes=1)
    for name in ("x.bin", "x.pt", "x.npy"):
        with pytest.raises(InvalidOption, match="something else"):
            save(tmp_path / name, {})
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(InvalidOption, match="not an ordinary file"):
            save(tmp_path / "pipe", {})


def test_a_header_that_no_reader_would_take_is_not_written(path: Path) -> None:
    with pytest.raises(InvalidOption, match="room for 100,000,000"):
        save(path, {"x": np.zeros(3)}, metadata={"long": "x" * 100_000_000})
    assert files(path.parent) == set()


def test_nothing_at_all(tmp_path: Path) -> None:
    save(tmp_path / "x.safetensors", {})
    with open_file(tmp_path / "x.safetensors") as opened:
        assert opened.names == ()
    save(tmp_path / "model", {}, shard_bytes=10)
    with open_folder(tmp_path / "model") as folder:
        assert folder.names == ()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_an_interrupt_loses_no_descriptor_of_a_new_file(tmp_path: Path) -> None:
    """Between `os.open` and the file that is made of its number, nothing else knows that number."""
    numbers = itertools.count()

    def call() -> None:
        new_file(tmp_path / str(next(numbers)), None).close()

    places = places_of(call)
    assert places
    for place in places:
        AtMoment(place).run(call)
    assert descriptors_in(tmp_path) == []
