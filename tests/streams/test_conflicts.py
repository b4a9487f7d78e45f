"""Streams whose sources and sinks overlap are right or refused, and a stream that goes on verifies what is there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import anygpu as ag
from anygpu.errors import InvalidOption

MEMORY = "8MB"


def double(x: Any) -> Any:
    return x * 2.0


def _shifted(a: Any) -> tuple[Any, Any]:
    return a[:2000], a[500:2500]


def _transposed(a: Any) -> tuple[Any, Any]:
    return a[:100, :100], a[:100, :100].T


def _reversed(a: Any) -> tuple[Any, Any]:
    return a, a[::-1]


@pytest.mark.parametrize("parts", [_shifted, _transposed, _reversed])
@pytest.mark.parametrize("per_chunk", [False, True])
def test_overlapping_arrays_are_refused(parts: Callable[[Any], tuple[Any, Any]], per_chunk: bool) -> None:
    a = np.arange(3000.0 * 100).reshape(3000, 100)
    before = a.copy()
    with pytest.raises(InvalidOption, match="read and written"):
        ag.stream(double, *parts(a), memory=MEMORY, per_chunk=per_chunk)
    np.testing.assert_array_equal(a, before)


def test_in_place_and_side_by_side() -> None:
    a = np.arange(30_000.0 * 10).reshape(30_000, 10)
    wanted = a * 2
    ag.stream(double, a, a, memory=MEMORY)
    np.testing.assert_array_equal(a, wanted)
    even, odd = a[::2], a[1::2]
    ag.stream(double, even, odd, memory=MEMORY)
    np.testing.assert_array_equal(odd, even * 2)


def test_in_place_along_another_axis_is_refused() -> None:
    a = np.arange(100.0 * 100).reshape(100, 100)
    before = a.copy()
    with pytest.raises(InvalidOption, match="read and written"):
        ag.stream(lambda x: x.T * 2.0, a, a, memory=MEMORY)
    np.testing.assert_array_equal(a, before)


def test_two_results_into_one_array_are_refused() -> None:
    a, out = np.ones((1000, 10)), np.empty((1000, 10))
    with pytest.raises(InvalidOption, match="sink of its own"):
        ag.stream(lambda x: (x + 1, x + 2), a, (out, out), memory=MEMORY)


def test_maps_of_one_file(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    values = np.arange(30_000.0 * 10).reshape(30_000, 10)
    np.save(path, values)
    other = np.load(path, mmap_mode="r+")
    mapped = np.load(path, mmap_mode="r")
    for read in (mapped[:-1000], mapped[:-1000:2]):
        with pytest.raises(InvalidOption, match="read and written"):
            ag.stream(double, read, other[1000 : 1000 + len(read)], memory=MEMORY)
    with pytest.raises(InvalidOption, match="read and written"):
        ag.stream(double, path, path, memory=MEMORY)
    (tmp_path / "link.npy").symlink_to(path)
    with pytest.raises(InvalidOption, match="read and written"):
        ag.stream(double, tmp_path / "link.npy", path, memory=MEMORY)
    np.testing.assert_array_equal(np.load(path), values)
    ag.stream(double, path, other, memory=MEMORY)
    np.testing.assert_array_equal(np.load(path), values * 2)


def test_one_zarr_array(tmp_path: Path) -> None:
    array = zarr.create_array(store=str(tmp_path / "x.zarr"), shape=(100, 10), chunks=(10, 10), dtype="f8")
    array[:] = np.ones((100, 10))
    for source, sink in (
        (array, array),
        (str(tmp_path / "x.zarr"), array),
        (array, str(tmp_path / "x.zarr")),
    ):
        with pytest.raises(InvalidOption, match="read and written"):
            ag.stream(double, source, sink, memory=MEMORY)
    np.testing.assert_array_equal(np.asarray(array[:]), np.ones((100, 10)))


# -- going on


class Killed(Exception):
    pass


def _stop(done: int, total: int | None) -> None:
    if done > 1000:
        raise Killed


def _begun(folder: Path) -> tuple[Path, Path]:
    source, sink = folder / "x.npy", folder / "y.npy"
    np.save(source, np.arange(200_000.0 * 5).reshape(200_000, 5))
    with pytest.raises(Killed):
        ag.stream(double, source, sink, memory="2MB", resume=True, progress=_stop)
    return source, sink


def _truncate(partial: Path, record: Path) -> None:
    os.truncate(partial, 200)


def _lengthen(partial: Path, record: Path) -> None:
    os.truncate(partial, partial.stat().st_size + 8)


def _zeros(partial: Path, record: Path) -> None:
    with partial.open("r+b") as file:
        file.seek(300)
        file.write(bytes(64))


def _other_header(partial: Path, record: Path) -> None:
    with partial.open("r+b") as file:
        file.seek(20)
        file.write(b"!")


def _beyond(partial: Path, record: Path) -> None:
    text = record.read_text()
    done = text.partition('"done":')[2].partition(",")[0]
    record.write_text(text.replace(f'"done":{done}', '"done":199999'))


def _further(partial: Path, record: Path) -> None:
    text = record.read_text()
    done = text.partition('"done":')[2].partition(",")[0]
    record.write_text(text.replace(f'"done":{done}', '"done":300000').replace(f",{done},", ",300000,"))


@pytest.mark.parametrize("spoil", [_truncate, _lengthen, _zeros, _other_header, _beyond, _further, None])
def test_what_is_there_is_verified(tmp_path: Path, spoil: Callable[[Path, Path], None] | None) -> None:
    source, sink = _begun(tmp_path)
    partial, record = tmp_path / "y.npy.partial", tmp_path / "y.npy.partial.json"
    if spoil is not None:
        spoil(partial, record)
    first: list[int] = []
    ag.stream(double, source, sink, memory="2MB", resume=True, progress=lambda done, _: first.append(done))
    np.testing.assert_array_equal(np.load(sink), np.load(source) * 2)
    assert not partial.exists()
    assert not record.exists()


def test_a_source_that_changed_since(tmp_path: Path) -> None:
    source, sink = _begun(tmp_path)
    times = source.stat()
    with source.open("r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(np.float64(-1).tobytes())
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(InvalidOption, match="written to since"):
        ag.stream(double, source, sink, memory="2MB", resume=True)


def test_a_source_that_changes_while_it_is_read(tmp_path: Path) -> None:
    source, sink = tmp_path / "x.npy", tmp_path / "y.npy"
    np.save(source, np.ones((200_000, 5)))

    def change(done: int, _: int | None) -> None:
        os.utime(source, ns=(1, done))

    with pytest.raises(InvalidOption, match="while it was read"):
        ag.stream(double, source, sink, memory="2MB", progress=change)
    assert not sink.exists()


@pytest.mark.parametrize(
    "source",
    [
        np.ma.array(np.ones((4, 2)), mask=True),
        np.ones((4, 2)).view(np.matrix),
        np.ones((4, 2), [("a", "f8")]).view(np.recarray),
    ],
    ids=["masked", "matrix", "records"],
)
def test_arrays_that_are_more_than_numbers(source: Any) -> None:
    with pytest.raises(InvalidOption, match="more than its numbers"):
        ag.stream(double, source, memory=MEMORY)
