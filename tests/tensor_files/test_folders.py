"""Folders of several files: which are taken together, which names are refused, and what a save does to the old ones."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from anygpu.errors import InvalidOption, InvalidTensorFile
from anygpu.store.tensor_files import open_file, open_folder, save, verify
from anygpu.store.tensor_files.folders import INDEX, stays_inside
from tests.support.isolation import descriptors_in

TENSORS = {f"layer.{each}": np.full(each + 1, each, np.float32) for each in range(10)}


def files(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


def foreign(folder: Path, count: int = 2) -> Path:
    """As other libraries write them."""
    folder.mkdir(exist_ok=True)
    where: dict[str, str] = {}
    for number in range(count):
        name = f"model-{number + 1:05}-of-{count:05}.safetensors"
        part = {each: TENSORS[each] for each in list(TENSORS)[number::count]}
        safetensors.numpy.save_file(part, folder / name, {"format": "pt"})
        where |= dict.fromkeys(part, name)
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 220}, "weight_map": where}))
    return folder


def with_index(folder: Path, index: Any) -> Path:
    folder.mkdir(exist_ok=True)
    text = index if isinstance(index, bytes) else json.dumps(index).encode()
    (folder / INDEX).write_bytes(text)
    return folder


def test_a_folder_of_others(tmp_path: Path) -> None:
    with open_folder(foreign(tmp_path / "m")) as opened:
        assert set(opened.names) == set(TENSORS)
        for name, expected in TENSORS.items():
            np.testing.assert_array_equal(opened.values(name), expected)
            assert opened.spec(name) == (expected.shape, "float32")
        assert opened.metadata == {"format": "pt"}
        assert len(opened.files) == 2
        assert (len(opened), "layer.0" in opened, "x" in opened) == (10, True, False)
        with pytest.raises(InvalidOption, match=r"no tensor 'layer'; it has layer\.0"):
            opened.values("layer")


def test_others_read_ours(tmp_path: Path) -> None:
    saved = save(tmp_path / "m", TENSORS, shard_bytes=100, metadata={"format": "np"})
    index = json.loads((tmp_path / "m" / INDEX).read_text())
    assert index["metadata"]["total_size"] == sum(each.nbytes for each in TENSORS.values())
    assert list(index["weight_map"]) == list(TENSORS)
    assert len(saved.files) > 2
    for name, file in index["weight_map"].items():
        found = safetensors.numpy.load_file(tmp_path / "m" / file)
        np.testing.assert_array_equal(found[name], TENSORS[name])
        assert len(found) == 1 or sum(each.nbytes for each in found.values()) <= 100


def test_files_are_read_when_they_are_needed(tmp_path: Path) -> None:
    folder = foreign(tmp_path / "m")
    broken = folder / "model-00002-of-00002.safetensors"
    broken.write_bytes(b"nothing")
    with open_folder(folder) as opened:
        np.testing.assert_array_equal(opened.values("layer.0"), TENSORS["layer.0"])
        for _ in range(2):
            with pytest.raises(InvalidTensorFile, match=r"00002-of-00002.* 7 bytes"):
                opened.values("layer.1")


def test_all_files_where_there_is_no_index(tmp_path: Path) -> None:
    save(tmp_path / "a.safetensors", {"x": np.zeros(3)})
    save(tmp_path / "b.safetensors", {"y": np.ones(3)})
    (tmp_path / ".hidden.safetensors").write_bytes(b"")
    (tmp_path / "readme.md").write_text("")
    (tmp_path / "old.bin").write_bytes(b"")
    with open_folder(tmp_path) as opened:
        assert opened.names == ("x", "y")
        assert opened.file("y").path == tmp_path / "b.safetensors"
    save(tmp_path / "c.safetensors", {"x": np.zeros(3)})
    with pytest.raises(InvalidTensorFile, match=r"'x' is in a\.safetensors and c\.safetensors"):
        open_folder(tmp_path)


def test_folders_without_tensors(tmp_path: Path) -> None:
    with pytest.raises(InvalidTensorFile, match="no complete safetensors file"):
        open_folder(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(InvalidTensorFile, match=r"pytorch_model.bin: a pickle runs.*save_file"):
        open_folder(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_folder(tmp_path / "no")
    with pytest.raises(InvalidOption, match="open_file"):
        open_folder(tmp_path / "pytorch_model.bin")


@pytest.mark.parametrize(
    "name",
    [
        *("../x.safetensors", "/x.safetensors", "a/../../x.safetensors", "a\\x.safetensors", "C:x.safetensors"),
        *("x\0.safetensors", "./x.safetensors", "a//x.safetensors", "é" * 600 + ".safetensors"),
        *("", ".", "x", "x.json"),
    ],
)
def test_names_that_leave_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    save(tmp_path / "x.safetensors", {"x": np.zeros(3)})
    assert not stays_inside(name)
    with pytest.raises(InvalidTensorFile, match="not a safetensors file of this folder"):
        open_folder(with_index(tmp_path / "m", {"weight_map": {"x": name}}))


def test_pickles_in_an_index_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidTensorFile, match="pickle"):
        open_folder(with_index(tmp_path / "m", {"weight_map": {"x": "pytorch_model-00001-of-00002.bin"}}))


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (b"", "not an index"),
        (b"[]", "not an index"),
        (b"{}", "weight_map"),
        (b'{"weight_map": {"x": 1}}', "not an index"),
        (b'{"weight_map": {"x": "a.safetensors", "x": "a.safetensors"}}', "twice"),
        (b'{"weight_map": ' + b"[" * 100_000, "not an index"),
        (b'{"metadata": ' + b"[" * 500 + b"]" * 500 + b', "weight_map": {}}\xff', "not an index"),
        (b'{"weight_map": {"x": "a.safetensors"}}', "there is no such file"),
    ],
)
def test_a_wrong_index_is_refused(tmp_path: Path, index: bytes, words: str) -> None:
    with pytest.raises(InvalidTensorFile, match=words):
        open_folder(with_index(tmp_path / "m", index))


def test_an_index_that_lies(tmp_path: Path) -> None:
    folder = foreign(tmp_path / "m")
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["layer.0"] = "model-00002-of-00002.safetensors"
    with open_folder(with_index(folder, index)) as opened:
        with pytest.raises(InvalidTensorFile, match=r"says that it has the tensor 'layer\.0'"):
            opened.values("layer.0")
        opened.values("layer.2")


def test_names_of_files_below_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    (folder / "parts").mkdir(parents=True)
    save(folder / "parts" / "a.safetensors", {"x": np.ones(3)})
    with open_folder(with_index(folder, {"weight_map": {"x": "parts/a.safetensors"}, "other": {}})) as opened:
        assert opened.values("x").sum() == 3


def test_links_that_leave_the_folder_are_refused(tmp_path: Path) -> None:
    """A cache of downloaded models is made of them, so that can be allowed."""
    folder = foreign(tmp_path / "m")
    (tmp_path / "blobs").mkdir()
    part = folder / "model-00001-of-00002.safetensors"
    part.replace(tmp_path / "blobs" / "abc")
    part.symlink_to("../blobs/abc")
    with pytest.raises(InvalidTensorFile, match="outside_links=True"):
        open_folder(folder)
    with open_folder(folder, outside_links=True) as opened:
        assert opened.values("layer.0").shape == (1,)
    assert verify(folder, outside_links=True).checked == 0
    (folder / INDEX).unlink()
    with pytest.raises(InvalidTensorFile, match="outside_links=True"):
        open_folder(folder)


def test_links_inside_the_folder_and_to_the_folder(tmp_path: Path) -> None:
    folder = foreign(tmp_path / "m")
    part = folder / "model-00001-of-00002.safetensors"
    part.replace(folder / "real")
    part.symlink_to("real")
    (tmp_path / "link").symlink_to("m")
    with open_folder(tmp_path / "link") as opened:
        assert opened.values("layer.0").shape == (1,)


def test_a_new_save_replaces_the_old_files(tmp_path: Path) -> None:
    folder = foreign(tmp_path / "m")
    (folder / "config.json").write_text("{}")
    (folder / "adapter.safetensors").write_bytes(b"")
    for number in range(2):
        saved = save(folder, {"new": np.full(3, number), "other": np.ones(3)}, shard_bytes=24)
        assert files(folder) == {INDEX, "config.json", "adapter.safetensors", *(each.name for each in saved.files)}
        with open_folder(folder) as opened:
            assert opened.names == ("new", "other")
            assert opened.values("new")[0] == number


def test_one_file_becomes_several(tmp_path: Path) -> None:
    """Other libraries would read the old file first, so it goes."""
    save(tmp_path / "model.safetensors", TENSORS)
    with open_folder(tmp_path) as opened:
        save(tmp_path, {name: opened.values(name) for name in opened}, shard_bytes=100)
    assert "model.safetensors" not in files(tmp_path)
    assert verify(tmp_path).checked == 10
    with pytest.raises(InvalidOption, match="has an model"):
        save(tmp_path / "model.safetensors", TENSORS)


def test_who_has_it_open_sees_it_as_it_was(tmp_path: Path) -> None:
    save(tmp_path, TENSORS, shard_bytes=100)
    with open_folder(tmp_path) as opened:
        save(tmp_path, {"other": np.ones(3)}, shard_bytes=100)
        for name, expected in TENSORS.items():
            np.testing.assert_array_equal(opened.values(name), expected)


def test_parts_without_an_index_are_no_model(tmp_path: Path) -> None:
    """They are what a save leaves that was killed before the end."""
    save(tmp_path, TENSORS, shard_bytes=100)
    (tmp_path / INDEX).unlink()
    with pytest.raises(InvalidTensorFile, match="no complete safetensors"):
        open_folder(tmp_path)
    save(tmp_path / "model.safetensors", {"x": np.ones(3)})
    with open_folder(tmp_path) as opened:
        assert opened.names == ("x",)
    saved = save(tmp_path, {"x": np.ones(3)}, shard_bytes=100)
    assert files(tmp_path) == {INDEX, saved.files[0].name}


def test_files_outside_are_never_removed(tmp_path: Path) -> None:
    """Whatever an index says that was there before."""
    victim = tmp_path / "victim.safetensors"
    save(victim, {"x": np.ones(3)})
    folder = with_index(
        tmp_path / "m",
        {
            "weight_map": {},
            "metadata": {"anygpu.replaced": ["../victim.safetensors", str(victim), "a/x.safetensors", 3]},
        },
    )
    (folder / "a").symlink_to("..")
    save(tmp_path / "x.safetensors", {"x": np.ones(3)})
    save(folder, TENSORS, shard_bytes=100)
    assert {"victim.safetensors", "x.safetensors"} <= files(tmp_path)
    assert verify(victim).checked == 1


def test_a_closed_folder(tmp_path: Path) -> None:
    save(tmp_path, TENSORS, shard_bytes=100)
    opened = open_folder(tmp_path)
    view = opened.values("layer.3")
    opened.close()
    opened.close()
    assert view.tolist() == [3, 3, 3, 3]
    with pytest.raises(InvalidOption, match="was closed"):
        opened.values("layer.3")


@pytest.mark.skipif(sys.platform != "linux", reason="nothing counts the open files")
def test_no_file_stays_open(tmp_path: Path) -> None:
    save(tmp_path, TENSORS, shard_bytes=100)
    with open_folder(tmp_path) as opened:
        opened.values("layer.0")
    del opened
    with pytest.raises(InvalidTensorFile):
        open_folder(with_index(tmp_path, {"weight_map": {"x": "y.safetensors"}}))
    with pytest.raises(InvalidTensorFile):
        open_file(tmp_path / INDEX)
    assert descriptors_in(tmp_path) == []
