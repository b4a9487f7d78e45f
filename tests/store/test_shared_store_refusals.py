"""What a shared store refuses: folders and files that are not its user's alone, and a foreign directory."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anygpu.errors import StoreError
from anygpu.store import segments, shared_store
from anygpu.store.shared_store import SharedTensors, open_shared
from tests.store.shared_stores import KEY, another, files

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no shared stores on Windows")


# -- whose it is -----------------------------------------------------------------------------------------------------


def test_only_the_user_can_use_what_is_made(shared: SharedTensors) -> None:
    shared.publish(KEY, np.ones(3), owner="text")
    assert shared.path.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in shared.path.iterdir()} == {0o600}


def test_a_place_that_is_not_there_is_told_of(place: Path) -> None:
    with pytest.raises(StoreError, match="cannot be made"):
        open_shared("models", within=place / "none")


def test_a_folder_that_others_may_use_is_refused(place: Path) -> None:
    folder = shared_store._path("models", place)
    folder.mkdir()
    folder.chmod(0o750)
    with pytest.raises(StoreError, match=r"0750.*Remove it"):
        open_shared("models", within=place)
    folder.rmdir()


def test_a_folder_of_somebody_else_is_refused(place: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a folder of somebody else")
    folder = shared_store._path("models", place)
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)
    with pytest.raises(StoreError, match="12345"):
        open_shared("models", within=place)
    folder.rmdir()


@pytest.mark.parametrize("kind", ["link", "file"])
def test_what_is_no_folder_is_refused(place: Path, tmp_path: Path, kind: str) -> None:
    folder = shared_store._path("models", place)
    if kind == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.touch(mode=0o600)
    with pytest.raises(StoreError, match="another name"):
        open_shared("models", within=place)
    folder.unlink()


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "mode", "owner"])
@pytest.mark.parametrize("which", ["directory", "segment-"])
def test_a_file_that_is_not_ours_is_refused(shared: SharedTensors, tmp_path: Path, which: str, kind: str) -> None:
    shared.publish(KEY, np.ones(3), owner="text")
    path = files(shared, which)[0]
    content = path.read_bytes()
    if kind not in ("mode", "owner"):
        path.unlink()
    if kind == "link":
        (tmp_path / "elsewhere").write_bytes(content)
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "pipe":
        os.mkfifo(path, 0o600)
    elif kind == "folder":
        path.mkdir(mode=0o700)
    elif kind == "mode":
        path.chmod(0o640)
    elif os.geteuid() == 0:
        os.chown(path, 12345, 12345)
    else:
        pytest.skip("only root can make a file of somebody else")
    try:
        with another(shared) as other, pytest.raises(StoreError, match="not used"):
            other.find(KEY)
    finally:
        if kind == "folder":
            path.rmdir()


# -- what may be in the directory ------------------------------------------------------------------------------------


def entry(**changes: Any) -> list[Any]:
    fields: dict[str, Any] = {
        "key": ["text", "weights"],
        "owner": "text",
        "hash": "",
        "dtype": "float64",
        "shape": [3],
        "segment": "segment-" + "0" * 32,
        "offset": 0,
        "version": 1,
    }
    return list((fields | changes).values())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xc1",
        b"\x93\x01\x01",
        msgspec.msgpack.encode([2, 1, []]),
        msgspec.msgpack.encode([1, -1, []]),
        msgspec.msgpack.encode([1, 1, [entry()[:-1]]]),
        msgspec.msgpack.encode([1, 1, [[*entry(), 1]]]),
        msgspec.msgpack.encode([1, 1, [entry(), entry()]]),
        msgspec.msgpack.encode([1, 1, [entry(segment="../../../etc/passwd")]]),
        msgspec.msgpack.encode([1, 1, [entry(segment="segment-" + "0" * 32 + "\n")]]),
        msgspec.msgpack.encode([1, 1, [entry(key=[])]]),
        msgspec.msgpack.encode([1, 1, [entry(key="weights")]]),
        msgspec.msgpack.encode([1, 1, [entry(dtype="object")]]),
        msgspec.msgpack.encode([1, 1, [entry(dtype="O")]]),
        msgspec.msgpack.encode([1, 1, [entry(shape=[-1])]]),
        msgspec.msgpack.encode([1, 1, [entry(shape=[1 << 40, 1 << 40])]]),
        msgspec.msgpack.encode([1, 1, [entry(shape=[0, 1 << 40, 1 << 40])]]),
        msgspec.msgpack.encode([1, 1, [entry(shape=[1] * 65)]]),
        msgspec.msgpack.encode([1, 1, [entry(offset=-64)]]),
        msgspec.msgpack.encode([1, 1, [entry(offset=8)]]),
        msgspec.msgpack.encode([1, 1, [entry(version=2)]]),
        b"\x93\x01\x01\xdd\xff\xff\xff\xff",
        b"\x91" * 100_000,
    ],
)
def test_a_directory_that_we_cannot_have_written_is_refused(shared: SharedTensors, content: bytes) -> None:
    (shared.path / "directory").touch(mode=0o600)
    (shared.path / "directory").write_bytes(content)
    with pytest.raises(StoreError, match=r"broken.*End the programs"):
        shared.names()
    with pytest.raises(StoreError, match="broken"):
        shared.publish(KEY, np.ones(3), owner="text")


@pytest.mark.parametrize("changes", [{"shape": [1000]}, {"offset": 1 << 30}, {"shape": [1 << 50]}])
def test_a_tensor_beyond_its_segment_is_refused(shared: SharedTensors, changes: dict[str, Any]) -> None:
    shared.publish(KEY, np.ones(3), owner="text")
    name = files(shared, "segment-")[0].name
    (shared.path / "directory").write_bytes(msgspec.msgpack.encode([1, 1, [entry(segment=name, **changes)]]))
    with another(shared) as other, pytest.raises(StoreError, match="wrong about it"):
        other.find(KEY)


def test_a_segment_that_is_missing_or_empty_is_told_of(shared: SharedTensors) -> None:
    shared.publish(KEY, np.ones(3), owner="text")
    path = files(shared, "segment-")[0]
    path.write_bytes(b"")
    with another(shared) as other, pytest.raises(StoreError, match="empty"):
        other.find(KEY)
    path.unlink()
    with another(shared) as other, pytest.raises(StoreError, match="does not exist"):
        other.find(KEY)


@given(st.data())
def test_changed_bytes_are_read_or_refused(data: st.DataObject) -> None:
    written = segments.Directory(
        1, 7, tuple(segments.SegmentEntry(*entry(key=("text", str(number)), shape=(3,))) for number in range(3))
    )
    content = bytearray(segments.encode(written))
    for _ in range(data.draw(st.integers(1, 4))):
        where = data.draw(st.integers(0, len(content) - 1))
        change = data.draw(st.sampled_from(["set", "drop", "insert"]))
        if change == "set":
            content[where] = data.draw(st.integers(0, 255))
        elif change == "drop":
            del content[where:]
        else:
            content[where:where] = data.draw(st.binary(max_size=9))
        if not content:
            break
    try:
        read = segments.decode(bytes(content))
    except ValueError:
        return
    assert segments.decode(segments.encode(read)) == read
