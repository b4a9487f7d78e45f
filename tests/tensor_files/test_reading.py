"""Opening one file: what is refused, what is a view, and what outlives what."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anygpu.errors import InvalidOption, InvalidTensorFile
from anygpu.store.tensor_files import open_file, save, verify
from anygpu.store.tensor_files.header import LONGEST_HEADER, strings_in

ENTRY: dict[str, Any] = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def written(path: Path, header: bytes | dict[str, Any], data: bytes = bytes(8)) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.safetensors"


EMPTY = {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b"", "not a table"),
        (b" {}", "not a table"),
        (b"{", "no JSON"),
        (b"{}}", "no JSON"),
        (b'{"\xff": 1}', "no JSON"),
        (b'{"x": ' + b"[" * 100_000 + b"}", "no JSON"),
        (b'{"\\ud800": %b}' % json.dumps(EMPTY).encode(), "no JSON"),
        (b'{"x":%(x)b,"x":%(x)b}' % {b"x": json.dumps(ENTRY).encode()}, "twice"),
        (b'{"x":%(x)b,"\\u0078":%(x)b}' % {b"x": json.dumps(ENTRY).encode()}, "twice"),
        (b'{"a\\"b":%(x)b,"a\\"b":%(x)b}' % {b"x": json.dumps(ENTRY).encode()}, "twice"),
        (b'{"a\\\\":%(x)b,"a\\\\":%(x)b}' % {b"x": json.dumps(ENTRY).encode()}, "twice"),
        (b'{"x":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}', "twice"),
        (b'{"__metadata__":{"a":"b","a":"b"},"x":%b}' % json.dumps(ENTRY).encode(), "twice"),
        (b'{"__metadata__":{},"__metadata__":{},"x":%b}' % json.dumps(ENTRY).encode(), "twice"),
        ({"__metadata__": {"a": 1}, "x": ENTRY}, "metadata"),
        ({"__metadata__": [], "x": ENTRY}, "metadata"),
        ({"x": 1}, "makes sense"),
        ({"x": {**ENTRY, "more": 1}}, "makes sense"),
        ({"x": {"dtype": "F32", "shape": [2]}}, "makes sense"),
        ({"x": {**ENTRY, "shape": [2.0]}}, "makes sense"),
        ({"x": {**ENTRY, "shape": [True, 2]}}, "makes sense"),
        ({"x": {**ENTRY, "shape": [-2]}}, "makes sense"),
        ({"x": {**ENTRY, "shape": [2**64]}}, "makes sense"),
        ({"x": {**ENTRY, "data_offsets": [0, 8, 8]}}, "makes sense"),
        ({"x": {**ENTRY, "data_offsets": [0, 2**64]}}, "makes sense"),
        ({"x": {**ENTRY, "dtype": "F31"}}, "unknown dtype: 'F31'"),
        ({"x": {**ENTRY, "dtype": "float32"}}, "unknown dtype"),
        ({"x": {**ENTRY, "shape": [3]}}, "does not have 8 bytes"),
        ({"x": {**ENTRY, "shape": [2**62, 2**2, 2]}}, "does not have 8 bytes"),
        ({"x": {**ENTRY, "dtype": "F4", "shape": [15]}}, "does not have 8 bytes"),
        ({"x": {**ENTRY, "data_offsets": [8, 0]}}, "ends before"),
        ({"x": {**ENTRY, "shape": [2, *[1] * 64]}}, "65 axes"),
        ({"x": ENTRY, "y": {**EMPTY, "shape": [0, 2**40, 2**40]}}, "too long for an array"),
        ({"x": {**ENTRY, "data_offsets": [4, 12]}}, "hole"),
        ({"x": ENTRY, "y": ENTRY}, "overlaps"),
        ({"x": ENTRY, "y": {**EMPTY, "data_offsets": [4, 4]}}, "overlaps"),
        ({"x": {**ENTRY, "shape": [1], "data_offsets": [0, 4]}}, "header declares"),
        ({"x": ENTRY, "y": {**ENTRY, "data_offsets": [8, 16]}}, "header declares"),
    ],
)
def test_a_wrong_header_is_refused(path: Path, header: bytes | dict[str, Any], words: str) -> None:
    written(path, header)
    with pytest.raises(InvalidTensorFile, match=words) as caught:
        open_file(path)
    assert caught.value.path == str(path)
    assert len(str(caught.value)) < 1000


def test_a_file_that_is_cut_or_longer_is_refused_at_every_length(path: Path) -> None:
    save(path, {"x": np.arange(3), "y": np.ones(5, np.int8)})
    whole = path.read_bytes()
    for length in [*range(200), *range(len(whole) - 60, len(whole)), len(whole) + 1]:
        path.write_bytes((whole + b"\0")[:length])
        with pytest.raises(InvalidTensorFile):
            open_file(path)


def test_a_header_longer_than_allowed_is_refused_unread(path: Path) -> None:
    with path.open("wb") as file:
        file.write((LONGEST_HEADER + 1).to_bytes(8, "little"))
        file.truncate(LONGEST_HEADER + 100)  # sparse
    with pytest.raises(InvalidTensorFile, match="100,000,001"):
        open_file(path)


def test_long_names_do_not_make_long_messages(path: Path) -> None:
    written(path, {"n" * 100_000: 1})
    with pytest.raises(InvalidTensorFile) as caught:
        open_file(path)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "text", ['""', r'"\""', r'"\\"', r'["\\\"", "a"]', r'{"\\\\": "\"\""}', '{"a": ["b", {"c": 1}]}']
)
def test_strings_are_counted(text: str) -> None:
    def count(value: Any) -> int:
        match value:
            case str():
                return 1
            case list():
                return sum(map(count, value))
            case dict():
                return len(value) + sum(map(count, value.values()))
        return 0

    assert strings_in(text.encode()) == count(json.loads(text))


def test_values_are_views_that_cannot_be_written(path: Path) -> None:
    save(path, {"x": np.arange(1000.0), "empty": np.empty((0, 3)), "one": np.float64(3)})
    with open_file(path) as opened:
        first, second = opened.values("x"), opened.values("x")
        assert np.shares_memory(first, second)
        for name in opened:
            assert not opened.values(name).flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            first[0] = 1
        assert opened.copied_bytes == 0
        assert (len(opened), "x" in opened, "y" in opened) == (3, True, False)


def test_views_outlive_the_closed_file_and_a_save_over_it(path: Path) -> None:
    save(path, {"x": np.arange(1000.0)})
    opened = open_file(path)
    view = opened.values("x")
    opened.close()
    opened.close()
    save(path, {"x": np.zeros(5)})
    gc.collect()
    np.testing.assert_array_equal(view, np.arange(1000.0))
    with pytest.raises(InvalidOption, match="was closed"):
        opened.values("x")
    with open_file(path) as again:
        assert again.values("x").shape == (5,)


def test_nothing_keeps_the_map_when_all_views_are_gone(path: Path) -> None:
    save(path, {"x": np.arange(1000.0)})
    opened = open_file(path)
    view = opened.values("x")
    pages = weakref.ref(view.base)
    opened.close()
    assert pages() is not None
    del view
    assert pages() is None


def test_a_tensor_that_is_not_there(path: Path) -> None:
    save(path, {"weight": np.ones(3)})
    with open_file(path) as opened, pytest.raises(InvalidOption, match="no tensor 'weights'; it has weight"):
        opened.values("weights")


def test_types_that_nobody_computes_with_are_refused_by_name(path: Path) -> None:
    table = {
        "a": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]},
        "b": {"dtype": "F4", "shape": [8], "data_offsets": [4, 8]},
    }
    written(path, table, bytes(range(8)))
    with open_file(path) as opened:
        for name, kind in (("a", "F8_E4M3"), ("b", "F4")):
            for ask in (opened.spec, opened.values):
                with pytest.raises(InvalidOption, match=f"{name!r} .* {kind}"):
                    ask(name)
        assert opened.bits("a").tolist() == [0, 1, 2, 3]
        with pytest.raises(InvalidOption, match="F4"):
            opened.bits("b")


def test_bools_are_0_or_1(path: Path) -> None:
    table = {"x": {"dtype": "BOOL", "shape": [8], "data_offsets": [0, 8]}}
    with open_file(written(path, table, bytes([0, 1] * 4))) as opened:
        assert opened.values("x").tolist() == [False, True] * 4
    with (
        open_file(written(path, table, bytes([0, 1, 2, 0] * 2))) as opened,
        pytest.raises(InvalidTensorFile, match="BOOL"),
    ):
        opened.values("x")


def test_numbers_that_lie_anywhere(path: Path) -> None:
    header = json.dumps({"x": ENTRY}).encode()
    header += b" " * (-len(header) % 4 + 1)
    with open_file(written(path, header, np.array([1, 2], "<f4").tobytes())) as opened:
        assert opened.values("x").tolist() == [1, 2]
        assert not opened.values("x").flags.aligned
        np.testing.assert_array_equal(opened.values("x") * 2, [2, 4])


@pytest.mark.parametrize("name", ["model.bin", "model.PT", "x.pth", "x.pkl", "x.ckpt", "x.npy", "x.npz"])
def test_pickles_are_refused_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(InvalidTensorFile, match=r"pickle.*save"):
        open_file(tmp_path / name)


def test_a_pickle_under_another_name_is_refused_and_not_run(path: Path, tmp_path: Path) -> None:
    import pickle

    class Hostile:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "ran",)

    path.write_bytes(pickle.dumps(Hostile()))
    with pytest.raises(InvalidTensorFile, match="pickle"):
        open_file(path)
    assert not (tmp_path / "ran").exists()


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_file(tmp_path / "x.safetensors")
    with pytest.raises(InvalidOption, match="open_folder"):
        open_file(tmp_path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(InvalidTensorFile, match="not an ordinary file"):
            open_file(tmp_path / "pipe")


def test_what_has_changed_is_found(path: Path) -> None:
    save(path, {"a": np.zeros(100), "b": np.zeros(3, np.int8)})
    report = verify(path)
    assert (report.checked, report.nbytes, report.unchecked) == (2, 803, ())
    whole = path.read_bytes()
    for at, name in ((-1, "b"), (-500, "a")):
        changed = bytearray(whole)
        changed[at] ^= 1
        path.write_bytes(changed)
        with pytest.raises(InvalidTensorFile, match=f"'{name}' is not what was saved"):
            verify(path)
    # The type is a part of what is hashed, and so is the shape.
    path.write_bytes(whole.replace(b'"F64","shape":[100]', b'"I64","shape":[100]'))
    with pytest.raises(InvalidTensorFile, match="'a'"):
        verify(path)


def test_hashes_of_later_versions_are_not_judged(path: Path) -> None:
    header = {"__metadata__": {"anygpu.hash:x": "sha3-512:0"}, "x": ENTRY}
    assert verify(written(path, header)).unchecked == ("x",)


def test_opening_reads_nothing_but_the_header(path: Path) -> None:
    """A file of 2 GB, most of it a hole, is open in a process that could not hold it."""
    entry = {"dtype": "F32", "shape": [2**29], "data_offsets": [0, 2**31]}
    written(path, {"x": entry}, b"")
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + 2**31)
    script = f"""
import psutil
from anygpu.store.tensor_files import open_file
before = psutil.Process().memory_info().rss
with open_file({str(path)!r}) as opened:
    values = opened.values("x")
    assert values[-1] == 0 and values.nbytes == 2**31
grown = psutil.Process().memory_info().rss - before
assert grown < 8 << 20, grown
"""
    subprocess.run([sys.executable, "-c", script], check=True)
