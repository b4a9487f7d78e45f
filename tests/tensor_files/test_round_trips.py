"""Any arrays that are saved come back as they were, here and in the package safetensors."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from safetensors import safe_open

import anygpu as ag
from anygpu.store.tensor_files import content_hash, open_file, open_folder, save, verify
from anygpu.store.tensor_files.header import KINDS

DTYPES = [dtype for dtype in KINDS.values() if dtype != "bfloat16"]


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    """Of any type, shape and order in memory."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES))).newbyteorder(draw(st.sampled_from("<>")))
    shape = draw(npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
    values = draw(npst.arrays(dtype, shape))
    match draw(st.sampled_from(["as it is", "fortran", "transposed", "every other", "backwards", "repeated"])):
        case "fortran":
            return np.asfortranarray(values)
        case "transposed":
            return values.T
        case "every other" if values.ndim:
            return values[..., ::2]
        case "backwards" if values.ndim:
            return values[::-1]
        case "repeated":
            return np.broadcast_to(values, (2, *shape))
    return values


dicts = st.dictionaries(st.text(max_size=12).filter(lambda name: name != "__metadata__"), arrays(), max_size=6)
texts = st.dictionaries(
    st.text(max_size=8).filter(lambda key: not key.startswith("anygpu.")), st.text(max_size=20), max_size=3
)


def require_equal(found: Any, expected: Any) -> None:
    """In dtype, shape and every bit."""
    expected = np.asarray(expected)
    assert found.dtype == expected.dtype.newbyteorder("=")
    assert found.shape == expected.shape
    assert found.tobytes() == np.ascontiguousarray(expected, expected.dtype.newbyteorder("<")).tobytes()


@settings(deadline=None, max_examples=150)
@given(dicts, texts, st.booleans(), st.none() | st.integers(1, 300))
def test_any_arrays(tensors: dict[str, Any], metadata: dict[str, str], hashes: bool, shard_bytes: int | None) -> None:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / ("x.safetensors" if shard_bytes is None else "model")
        saved = save(path, tensors, metadata=metadata, hashes=hashes, shard_bytes=shard_bytes)
        with open_file(path) if shard_bytes is None else open_folder(path) as opened:
            assert opened.names == tuple(tensors)
            if saved.files:
                assert opened.metadata == metadata
            for name, expected in tensors.items():
                require_equal(opened.values(name), expected)
                assert opened.spec(name) == (np.shape(expected), expected.dtype.name)
                assert opened.hash(name) == (content_hash(np.asarray(expected)) if hashes else None)
        assert saved.nbytes == sum(np.asarray(each).nbytes for each in tensors.values())
        assert verify(path).checked == (len(tensors) if hashes else 0)
        theirs: dict[str, Any] = {}
        for file in saved.files:
            theirs |= safetensors.numpy.load_file(file)
            with safe_open(file, "np") as other:
                assert metadata.items() <= (other.metadata() or {}).items()
        assert set(theirs) == set(tensors)
        for name, expected in tensors.items():
            require_equal(theirs[name], expected)


@settings(deadline=None, max_examples=50)
@given(
    st.dictionaries(st.text(max_size=12), npst.arrays(st.sampled_from(DTYPES[:-1]), npst.array_shapes()), max_size=6)
)
def test_what_the_package_writes(tensors: dict[str, Any]) -> None:
    tensors.pop("__metadata__", None)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "x.safetensors"
        safetensors.numpy.save_file(tensors, path, {"format": "np"} if tensors else None)
        with open_file(path) as opened:
            assert set(opened.names) == set(tensors)
            for name, expected in tensors.items():
                require_equal(opened.values(name), expected)
                assert opened.hash(name) is None
        report = verify(path)
        assert report.checked == 0
        assert set(report.unchecked) == set(tensors)


@pytest.mark.sampled(gate=2)
@pytest.mark.parametrize("shape", [(1500, 1500), (1, 2_100_001)])
@pytest.mark.parametrize("order", ["fortran", "big-endian", "strided"])
def test_arrays_of_many_pieces(tmp_path: Path, shape: tuple[int, ...], order: str) -> None:
    values = np.random.default_rng(0).random(shape, np.float32)
    given = {"fortran": np.asfortranarray(values), "big-endian": values.astype(">f4"), "strided": values[..., ::-1]}[
        order
    ]
    save(tmp_path / "x.safetensors", {"x": given, "y": values})
    with open_file(tmp_path / "x.safetensors") as opened:
        np.testing.assert_array_equal(opened.values("x"), given)
        np.testing.assert_array_equal(opened.values("y"), values)
    verify(tmp_path / "x.safetensors")


def test_the_hash_is_the_documented_one(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    expected = "blake2b-128:" + hashlib.blake2b(b"F32[2,3]\n" + values.tobytes(), digest_size=16).hexdigest()
    assert save(tmp_path / "x.safetensors", {"x": values}).hashes == {"x": expected}
    assert content_hash(np.asfortranarray(values)) == content_hash(values.astype(">f4")) == expected
    others = [values.reshape(3, 2), values.astype(np.float64), values + 1, values.view(np.int32), values.ravel()]
    assert len({expected, *(content_hash(np.asarray(each)) for each in others)}) == 6


def test_the_records_are_strings_that_others_read(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save(
        path, {"a/b:c": np.ones(3), "d": np.ones(2, bool)}, metadata={"made": "here"}, owners={"a/b:c": "text encoder"}
    )
    with safe_open(path, "np") as other:
        found: Mapping[str, str] = other.metadata()
    hashes = {key: found[key] for key in found if key.startswith("anygpu.hash:")}
    assert hashes == {"anygpu.hash:a/b:c": content_hash(np.ones(3)), "anygpu.hash:d": content_hash(np.ones(2, bool))}
    assert {key: value for key, value in found.items() if key not in hashes} == {
        "made": "here",
        "anygpu.dtype:a/b:c": "float64",
        "anygpu.dtype:d": "bool",
        "anygpu.owner:a/b:c": "text encoder",
    }
    with open_file(path) as opened:
        assert opened.metadata == {"made": "here"}
        assert (opened.owner("a/b:c"), opened.owner("d")) == ("text encoder", None)


def test_tensors_begin_where_a_processor_likes_them(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    tensors = {
        "odd": np.ones(3, np.int8),
        "long": np.ones(5, np.int64),
        "lines": np.ones((8, 16), np.float32),
        "more": np.ones(32, np.float16),
    }
    save(path, tensors, metadata={"padding": "x" * 17})
    with open_file(path) as opened:
        starts = {name: opened.stretch(name).offset for name in opened.names}
        assert all(opened.values(name).flags.aligned for name in opened.names)
        assert all(opened.values(name).ctypes.data % 64 == 0 for name in ("lines", "more"))
    assert starts["lines"] % 64 == starts["more"] % 64 == starts["long"] % 8 == 0
    assert min(starts.values()) % 64 == 0


def test_bfloat16_of_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    path = tmp_path / "x.safetensors"
    values = torch.randn(5, 7).to(torch.bfloat16)
    save_file({"x": values, "y": values.float()}, path)
    with open_file(path) as opened:
        assert opened.spec("x") == ((5, 7), "bfloat16")
        opened.values("y")
        assert opened.copied_bytes == 0
        widened = opened.values("x")
        assert opened.copied_bytes == 5 * 7 * 4
        np.testing.assert_array_equal(widened, values.float().numpy())
        bits = opened.bits("x")
        np.testing.assert_array_equal(bits.view(np.int16), values.view(torch.int16).numpy())
        assert opened.copied_bytes == 5 * 7 * 4
        assert not bits.flags.writeable


def test_bfloat16_of_ml_dtypes(tmp_path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.arange(12).astype(ml_dtypes.bfloat16).reshape(3, 4)
    save(tmp_path / "x.safetensors", {"x": values.T})
    with open_file(tmp_path / "x.safetensors") as opened:
        assert opened.spec("x").dtype == "bfloat16"
        np.testing.assert_array_equal(opened.values("x"), values.T.astype(np.float32))
    assert verify(tmp_path / "x.safetensors").checked == 1


def test_arrays_of_anygpu_and_of_others(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "x.safetensors"
    x = np.arange(6.0, dtype=np.float32)
    save(path, {"lazy": ag.asarray(x) * 2, "torch": torch.from_numpy(x), "scalar": np.float32(3)})
    with open_file(path) as opened:
        np.testing.assert_array_equal(opened.values("lazy"), x * 2)
        np.testing.assert_array_equal(opened.values("torch"), x)
        assert opened.values("scalar") == 3


def test_a_stream_reads_what_is_saved(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    x = np.arange(20.0).reshape(10, 2)
    save(path, {"odd": np.ones(3, np.int8), "x": x})
    assert np.array_equal(ag.stream(lambda y: y * 2, (path, "x")).value, x * 2)
    ag.stream(lambda y: y + 1, x, f"{tmp_path / 'y.safetensors'}:y")
    with open_file(tmp_path / "y.safetensors") as opened:
        np.testing.assert_array_equal(opened.values("y"), x + 1)
        assert opened.values("y").ctypes.data % 64 == 0
