"""Streams: any source to any sink, cut only where the program proves it, and nothing left behind when a stage fails."""

from __future__ import annotations

import importlib
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.errors import InvalidOption, InvalidTensorFile, MissingExtra, OverBudget
from anygpu.runtime.streams.streaming import stream

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(5_003, 24)).astype(np.float32)
W = DRAW.normal(size=(24, 3)).astype(np.float32)
#: Small enough for several chunks of X.
MEMORY = "600KB"


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return (e / e.sum(axis=1, keepdims=True)) @ W


EXPECTED = softmax(X)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("anygpu-stream")]


def check(value: Any, expected: Any = EXPECTED) -> None:
    np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)


def files(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


def safetensors(path: Path, **arrays: Any) -> Path:
    header: dict[str, Any] = {"__metadata__": {"made": "here"}}
    data = b""
    for name, array in arrays.items():
        kind = {"float32": "F32", "int64": "I64"}[array.dtype.name]
        offsets = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": offsets}
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


# -- sources


def every_source(folder: Path) -> dict[str, Any]:
    np.save(folder / "x.npy", X)
    np.save(folder / "f.npy", np.asfortranarray(X))
    np.save(folder / "b.npy", X.astype(">f4"))
    np.save(folder / "more.npy", np.concatenate([X[:7], X]))
    safetensors(folder / "x.safetensors", y=np.arange(5), x=X)
    return {
        "a path": folder / "x.npy",
        "a text": str(folder / "x.npy"),
        "as Fortran lays it out": folder / "f.npy",
        "of another byte order": folder / "b.npy",
        "a memory map": np.load(folder / "x.npy", mmap_mode="r"),
        "a memory map as Fortran lays it out": np.load(folder / "f.npy", mmap_mode="r"),
        "a part of a memory map": np.load(folder / "more.npy", mmap_mode="r")[7:],
        "a tensor": f"{folder / 'x.safetensors'}:x",
        "a tensor as a pair": (folder / "x.safetensors", "x"),
        "an array": X,
        "an array of another byte order": X.astype(">f4"),
        "an array that is not in one stretch": np.concatenate([X, X], axis=1)[:, : X.shape[1]],
    }


def test_every_source_gives_the_same(tmp_path: Path) -> None:
    for name, source in every_source(tmp_path).items():
        streamed = stream(softmax, source, memory=MEMORY)
        assert streamed.chunks > 1, name
        check(streamed.value)


def test_several_sources_are_read_together_along_any_axis(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "f.npy", np.asfortranarray(X))
    for axis in (0, 1, -1):
        streamed = stream(
            lambda a, b, c, other=0 if axis else 1: np.cumsum(a, axis=other) + b * 2 - c,
            (X, tmp_path / "x.npy", tmp_path / "f.npy"),
            axis=axis,
            memory=MEMORY,
        )
        assert streamed.chunks > 1
        # Sums of five thousand float32 round differently on other devices.
        np.testing.assert_allclose(streamed.value, np.cumsum(X, axis=0 if axis else 1) + X, rtol=1e-4, atol=1e-3)


def test_rows_that_are_far_apart_are_read_one_by_one(tmp_path: Path) -> None:
    x = DRAW.normal(size=(3, 200_000)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    streamed = stream(lambda x: x - x.mean(axis=0), tmp_path / "x.npy", tmp_path / "y.npy", axis=1, memory="1MB")
    assert streamed.chunks > 1
    check(np.load(streamed.value), x - x.mean(axis=0))


def test_a_changed_private_map_is_read_as_it_is_in_memory(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    private = np.load(tmp_path / "x.npy", mmap_mode="c")
    private[0] = 1
    check(stream(softmax, private, memory=MEMORY).value, softmax(np.array(private)))


def test_a_map_of_a_file_that_was_replaced_is_read_as_it_was(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    np.save(tmp_path / "other.npy", X + 1)
    (tmp_path / "other.npy").replace(tmp_path / "x.npy")
    check(stream(softmax, mapped, memory=MEMORY).value)


def test_a_file_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    whole = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(whole[:-1])
    with pytest.raises(InvalidOption, match="not complete"):
        stream(softmax, tmp_path / "x.npy")
    (tmp_path / "x.npy").write_bytes(b"something else")
    with pytest.raises(InvalidOption, match=r"not an \.npy file"):
        stream(softmax, tmp_path / "x.npy")
    with pytest.raises(FileNotFoundError):
        stream(softmax, tmp_path / "y.npy")
    np.save(tmp_path / "o.npy", np.array([{}, []], object), allow_pickle=True)
    with pytest.raises(InvalidOption, match="unpickled"):
        stream(softmax, tmp_path / "o.npy")


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b"{", "no JSON"),
        (b"[]", "not a table"),
        (b'{"x": 1}', "nothing that makes sense"),
        (b'{"x": %(x)s, "x": %(x)s}' % {b"x": json.dumps(ENTRY).encode()}, "twice"),
        (json.dumps({"x": {**ENTRY, "shape": [3]}}).encode(), "does not have 8 bytes"),
        (json.dumps({"x": {**ENTRY, "shape": [-2]}}).encode(), "nothing that makes sense"),
        (json.dumps({"x": {**ENTRY, "data_offsets": [8, 0]}}).encode(), "ends before"),
        (json.dumps({"x": {**ENTRY, "data_offsets": [4, 12]}}).encode(), "hole"),
        (json.dumps({"x": ENTRY, "y": ENTRY}).encode(), "overlaps"),
        (json.dumps({"x": ENTRY, "y": {**ENTRY, "data_offsets": [8, 16]}}).encode(), "header declares"),
    ],
)
def test_a_wrong_safetensors_file_is_refused(tmp_path: Path, header: bytes, words: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(InvalidTensorFile, match=words):
        stream(softmax, (path, "x"))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"y": ENTRY}, "no tensor 'x'; it has y"),
        ({"x": {**ENTRY, "dtype": "BF16", "shape": [4]}}, "NumPy lacks"),
    ],
)
def test_a_tensor_that_cannot_be_streamed_is_refused(tmp_path: Path, table: dict[str, Any], words: str) -> None:
    path = tmp_path / "x.safetensors"
    header = json.dumps(table).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(InvalidOption, match=words):
        stream(softmax, (path, "x"))


def test_a_safetensors_header_that_is_longer_than_its_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    for size in (b"", b"12", (1 << 60).to_bytes(8, "little"), (9).to_bytes(8, "little") + b"{}"):
        path.write_bytes(size)
        with pytest.raises(InvalidTensorFile):
            stream(softmax, (path, "x"))
    with pytest.raises(InvalidOption, match="name one"):
        stream(softmax, path)


@pytest.mark.parametrize("source", [3, {"a": 1}.get])
def test_something_that_is_no_source_is_refused(source: Any) -> None:
    with pytest.raises(InvalidOption, match="a stream reads"):
        stream(softmax, source)


def test_arrays_of_other_kinds() -> None:
    check(stream(softmax, ag.asarray(X), memory=MEMORY).value)
    with pytest.raises(InvalidOption, match="MaskedArray"):
        stream(softmax, np.ma.masked_array(X, X > 0))


# -- sinks


def test_every_sink_gets_the_same(tmp_path: Path) -> None:
    written = np.empty_like(EXPECTED)
    mapped = np.lib.format.open_memmap(tmp_path / "map.npy", "w+", np.float32, EXPECTED.shape)
    told: list[tuple[Any, int, int]] = []
    assert stream(softmax, X, written, memory=MEMORY).value is written
    check(written)
    assert stream(softmax, X, mapped, memory=MEMORY).value is mapped
    check(mapped)
    check(np.load(tmp_path / "map.npy"))
    assert stream(softmax, X, lambda *each: told.append(each), memory=MEMORY).value is None
    check(np.concatenate([chunk for chunk, _, _ in told]))
    assert [start for _, start, _ in told] == [0, *(stop for _, _, stop in told[:-1])]
    assert stream(softmax, X, tmp_path / "y.npy", memory=MEMORY).value == tmp_path / "y.npy"
    check(np.load(tmp_path / "y.npy"))
    stream(softmax, X, f"{tmp_path / 'y.safetensors'}:probabilities", memory=MEMORY)
    check(stream(lambda y: y + 0, (tmp_path / "y.safetensors", "probabilities")).value)
    assert files(tmp_path) == {"map.npy", "y.npy", "y.safetensors"}


def test_results_may_be_nested_and_partly_the_same_for_all() -> None:
    def function(x: Any) -> Any:
        return {"first": x[:, :2], "pair": (x.sum(axis=1), W * 2, x.T)}

    value = stream(function, X, memory=MEMORY).value
    expected = function(X)
    check(value["first"], expected["first"])
    for one, other in zip(value["pair"], expected["pair"], strict=True):
        check(one, other)


def test_several_results_go_to_several_sinks(tmp_path: Path) -> None:
    room = np.empty((X.shape[1], len(X)), np.float32)
    streamed = stream(lambda x: (x.T, x.sum(axis=1)), X, (room, tmp_path / "y.npy"), memory=MEMORY)
    check(streamed.value[0], X.T)
    check(np.load(streamed.value[1]), X.sum(axis=1))
    with pytest.raises(InvalidOption, match="returns 2 arrays, but 1 sinks were given"):
        stream(lambda x: (x, x), X, room)


@pytest.mark.parametrize(
    ("sink", "words"),
    [
        (np.empty((3, 3), np.float32), "the results are float32"),
        (np.empty(EXPECTED.shape), "is float64"),
        ("y.txt", "a stream writes to"),
        (3, "go into a .npy file"),
    ],
)
def test_a_sink_that_does_not_fit_is_refused(sink: Any, words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        stream(softmax, X, sink)


def test_a_file_is_not_read_and_written_at_once(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    with pytest.raises(InvalidOption, match="read and written"):
        stream(softmax, tmp_path / "x.npy", tmp_path / "x.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), X)


# -- what may be cut


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum(axis=0),
        lambda x: np.cumsum(x, axis=0),
        lambda x: np.sort(x, axis=0),
        lambda x: x[1:] - x[:-1],
        lambda x: x - x.mean(),
        lambda x: np.roll(x, 1, axis=0),
        lambda x: x[::-1],
        lambda x: x.reshape(-1),
    ],
)
def test_what_depends_on_other_chunks_is_refused(function: Any) -> None:
    with pytest.raises(InvalidOption, match="cannot be cut along axis 0"):
        stream(function, X, memory=MEMORY)


def test_what_cannot_be_recorded_is_refused() -> None:
    with pytest.raises(InvalidOption, match=r"cannot be traced: it branches on an array value.*per_chunk=True"):
        stream(lambda x: x * float(x[0, 0]), X)
    with pytest.raises(InvalidOption, match="cannot be traced"):
        stream(lambda x: np.char.upper(x), np.array(["a", "b"]))


def test_where_a_row_is_and_how_many_there_are_is_known_in_every_chunk() -> None:
    def function(x: Any) -> Any:
        return np.arange(x.shape[0], dtype=np.float32)[:, None] + x / x.shape[0] + len(x)

    streamed = stream(function, X, memory=MEMORY)
    assert streamed.chunks > 1
    check(streamed.value, function(X))


def test_a_row_that_a_constant_marks_stays_marked() -> None:
    def function(x: Any) -> Any:
        mark = np.zeros((x.shape[0], 1), np.float32)
        mark[4_000] = 100
        return x + mark

    streamed = stream(function, X, memory=MEMORY)
    assert streamed.chunks > 1
    check(streamed.value, function(X))


def test_an_array_from_outside_as_long_as_the_source_is_cut_along() -> None:
    beside = DRAW.normal(size=(len(X), 1)).astype(np.float32)
    streamed = stream(lambda x: x * beside, X, memory=MEMORY)
    assert streamed.chunks > 1
    check(streamed.value, X * beside)


@pytest.mark.parametrize("length", [0, 1, 2])
def test_short_sources(length: int, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X[:length])
    for source in (X[:length], tmp_path / "x.npy"):
        for sink in (None, tmp_path / "y.npy"):
            value = stream(softmax, source, sink).value
            check(value if sink is None else np.load(value), softmax(X[:length]) if length else EXPECTED[:0])


def test_lengths_and_axes_must_agree() -> None:
    with pytest.raises(InvalidOption, match=r"lengths \[5003, 24\]"):
        stream(lambda a, b: a, (X, W))
    with pytest.raises(InvalidOption, match="there is no axis 2"):
        stream(softmax, X, axis=2)
    with pytest.raises(InvalidOption, match="count the axis from 0"):
        stream(lambda a, b: a, (X, X[:, 0]), axis=-1)


def test_precision_is_narrowed_wherever_it_runs(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X.astype(np.float64))
    streamed = stream(softmax, tmp_path / "x.npy", memory="2MB", given={"precision": "float32"})
    assert streamed.value.dtype == np.float32
    assert streamed.chunks > 1
    check(streamed.value)


def test_the_function_of_an_offloaded_one_is_streamed() -> None:
    check(stream(ag.offload(softmax), X, memory=MEMORY).value)


# -- each chunk, or each item, alone


def test_a_promise_lets_any_function_be_called_with_each_chunk(tmp_path: Path) -> None:
    seen: list[int] = []

    def function(x: Any) -> Any:
        seen.append(len(x))
        return x * float(x.size > 0), len(x) * np.ones(1)

    streamed = stream(function, X, per_chunk=True, memory=MEMORY)
    assert sum(seen) == len(X)
    np.testing.assert_array_equal(streamed.value[0], X)
    np.testing.assert_array_equal(streamed.value[1], seen)
    assert streamed.chunks == len(seen) > 1
    for sink in (tmp_path / "y.npy", np.empty_like(X)):
        stream(lambda x: np.sort(x.copy()), X, sink, per_chunk=True, memory=MEMORY)
        np.testing.assert_array_equal(np.sort(X), np.load(sink) if isinstance(sink, Path) else sink)


def test_items_of_any_shape(tmp_path: Path) -> None:
    def items() -> Iterator[Any]:
        for length in range(1, 40):
            yield X[:length]

    streamed = stream(lambda x: x.sum(axis=1), items())
    assert [len(each) for each in streamed.value] == list(range(1, 40))
    assert streamed.chunks == 39
    stream(lambda x: x.sum(axis=1), items(), tmp_path / "y.npy")
    check(np.load(tmp_path / "y.npy"), np.concatenate([X[:length].sum(axis=1) for length in range(1, 40)]))
    told: list[Any] = []
    stream(lambda x: x.shape, [X, W], lambda *each: told.append(each))
    assert told == [(X.shape, 0, 1), (W.shape, 1, 2)]
    assert stream(softmax, iter(())).value == []


def test_items_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="the results are float32"):
        stream(lambda x: x, [X, W], tmp_path / "y.npy")
    assert files(tmp_path) == set()
    with pytest.raises(InvalidOption, match="room for 3"):
        stream(lambda x: x, [X], np.empty((3, X.shape[1]), np.float32))
    with pytest.raises(InvalidOption, match="only 24"):
        stream(lambda x: x, [W], np.empty((30, 3), np.float32))
    with pytest.raises(InvalidOption, match="per_chunk=True"):
        stream(softmax, X, given={"engine": "torch"})


# -- memory, progress, reports


def test_the_budget_decides_how_long_chunks_are() -> None:
    small, large = stream(softmax, X, memory=MEMORY), stream(softmax, X, memory="100MB")
    assert small.chunks > large.chunks
    assert small.peak_bytes <= 600_000
    with pytest.raises(OverBudget, match="the host"):
        stream(softmax, X, memory="1KB")
    with pytest.raises(OverBudget):
        stream(softmax, X[:1], memory="1KB")
    for wrong in ("much", 0, -1, 1.5):
        with pytest.raises(InvalidOption, match="memory is"):
            stream(softmax, X, memory=wrong)  # type: ignore[arg-type]


def test_progress_is_told_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[tuple[int, int | None]] = []
    stream(softmax, X, memory=MEMORY, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (len(X), len(X))
    assert told == sorted(told)
    stream(softmax, X, memory=MEMORY, progress=True)
    assert "5003/5003" in capsys.readouterr().err


def test_a_stream_says_what_it_did() -> None:
    with ag.collect_receipts() as collected:
        streamed = stream(softmax, X, memory=MEMORY, given={"on": "numpy"})
    assert collected == [streamed.receipt]
    assert streamed.receipt.device == "numpy"
    assert (
        streamed.receipt.how
        == f"in {streamed.chunks} chunks of at most {_longest(streamed)} along axis 0 of the result"
    )
    assert streamed.slowest in ("reading", "computing", "writing")
    assert streamed.overlap >= 1
    assert streamed.seconds.total >= streamed.seconds.compute
    assert "was the slowest stage" in str(streamed)


def _longest(streamed: Any) -> int:
    words: list[str] = streamed.receipt.how.split()
    return int(words[words.index("most") + 1])


# -- when a stage fails


class Failing(Exception):
    pass


def test_an_error_of_any_stage_comes_out_unchanged_and_leaves_nothing(tmp_path: Path) -> None:
    error = Failing("no")

    def items() -> Iterator[Any]:
        yield X
        raise error

    def fails(*_: Any) -> Any:
        raise error

    calls: list[Callable[[], Any]] = [
        lambda: stream(lambda x: x, items(), tmp_path / "y.npy"),
        lambda: stream(fails, X, tmp_path / "y.npy", per_chunk=True, memory=MEMORY),
        lambda: stream(fails, X, tmp_path / "y.npy", memory=MEMORY),
        lambda: stream(lambda x: (x, x), X, (fails, tmp_path / "y.npy"), memory=MEMORY),
        lambda: stream(softmax, X, tmp_path / "y.npy", memory=MEMORY, progress=fails),
    ]
    for call in calls:
        with pytest.raises(Failing) as raised:
            call()
        assert raised.value is error
        assert files(tmp_path) == set()


def test_a_generator_is_closed_when_something_else_fails() -> None:
    closed: list[bool] = []

    def items() -> Iterator[Any]:
        try:
            while True:
                yield X
        finally:
            closed.append(True)

    def fails(*_: Any) -> None:
        raise Failing

    with pytest.raises(Failing):
        stream(lambda x: x, items(), fails)
    assert closed == [True]


def test_an_old_result_stays_when_its_replacement_fails(tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", W)

    def fails(*_: Any) -> None:
        raise Failing

    with pytest.raises(Failing):
        stream(softmax, X, tmp_path / "y.npy", progress=fails)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), W)
    stream(softmax, X, tmp_path / "y.npy")
    check(np.load(tmp_path / "y.npy"))


# -- zarr


def test_without_zarr_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zarr", None)
    (tmp_path / "x.zarr").mkdir()
    with pytest.raises(MissingExtra, match=r"pip install zarr"):
        stream(softmax, tmp_path / "x.zarr")
    with pytest.raises(MissingExtra):
        stream(softmax, X, tmp_path / "y.zarr")


def test_zarr_arrays_are_sources_and_sinks(tmp_path: Path) -> None:
    zarr = importlib.import_module("zarr")
    array = zarr.create_array(store=str(tmp_path / "x.zarr"), shape=X.shape, chunks=(100, 24), dtype=X.dtype)
    array[:] = X
    for source in (array, tmp_path / "x.zarr", str(tmp_path / "x.zarr")):
        streamed = stream(softmax, source, tmp_path / "y.zarr", memory=MEMORY)
        assert streamed.chunks > 1
        assert _longest(streamed) % 100 == 0
        check(zarr.open_array(str(tmp_path / "y.zarr"), mode="r")[:])
    assert files(tmp_path) == {"x.zarr", "y.zarr"}
    with pytest.raises(InvalidOption, match="the results are"):
        stream(softmax, X, array)
    with pytest.raises(InvalidOption, match="not a zarr array"):
        stream(softmax, tmp_path)
