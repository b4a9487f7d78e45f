"""Scatters on lavapipe and PoCL against NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anygpu.base.typing import HostArray
from anygpu.engines.codegen.target import Dialect
from anygpu.engines.codegen.templates import scatter
from anygpu.engines.codegen.templates.scatter import ScatterLayout
from tests.codegen.running import COMPUTE, TARGETS, Accessor, load, run, status, store

DIALECTS: list[Dialect] = ["wgsl", "opencl"]
UFUNCS: dict[str, np.ufunc] = {"add": np.add, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum}


def parts(name: str, x: HostArray, end: str) -> list[Accessor]:
    """Behind accessors, x is rows × length."""
    rows = x.reshape(x.shape[0] * x.shape[1], -1)
    both = [rows.real, rows.imag] if np.iscomplexobj(x) else [rows]
    return [load(f"{name}_{k}", part, end) for k, part in enumerate(both)]


def scattered(
    dialect: Dialect,
    fn: str,
    x: HostArray,
    indices: HostArray,
    updates: HostArray,
    *,
    distinct: bool = False,
    ordered: bool = False,
) -> tuple[HostArray, int]:
    batch, before, axis, after = x.shape
    layout = ScatterLayout(batch=batch, before=before, axis=axis, after=after, positions=indices.shape[1])
    loads = parts("load", x, "x")
    kinds = tuple(each.kind for each in loads)
    index_type = COMPUTE[indices.dtype.name]
    described = scatter.stages(
        TARGETS[dialect], fn, layout, kinds, index_type, distinct=distinct, scattered_stores=not ordered
    )
    accessors = [*loads, *parts("load_update", updates, "updates"), load("load_index", indices, "indices")]
    accessors += [store(f"store_{k}", kind, batch * before, axis * after) for k, kind in enumerate(kinds)]
    *results, said = run(dialect, described, [*accessors, status(index_type)])
    whole = results[0] + 1j * results[1] if len(results) == 2 else results[0]
    return whole.reshape(x.shape).astype(x.dtype), int(said[0, 0])


def wanted(fn: str, x: HostArray, indices: HostArray, updates: HostArray) -> HostArray:
    result = x.copy()
    for batch in range(x.shape[0]):
        place: Any = (slice(None), indices[batch])
        if fn == "set":
            result[batch][place] = updates[batch]
        else:
            UFUNCS[fn].at(result[batch], place, updates[batch])
    return result


def sample(dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> HostArray:
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if dtype[0] in "iu":
        return rng.integers(0, np.iinfo(dtype).max, shape, dtype=dtype, endpoint=True)
    values = rng.normal(size=shape).astype(dtype)
    return values + (1j * rng.normal(size=shape)).astype(dtype) if dtype[0] == "c" else values


def agree(found: HostArray, right: HostArray) -> None:
    if right.dtype.kind in "biu":
        np.testing.assert_array_equal(found, right)
    else:
        np.testing.assert_allclose(found, right, rtol=1e-5 if np.finfo(right.dtype).bits == 32 else 1e-13, atol=1e-5)


OUTSIDE = [("int64", 1 << 40), ("int32", -1), ("uint32", 7)]
CASES = [("wgsl", fn, dtype) for fn in UFUNCS for dtype in ("int32", "int64", "float32", "float64", "complex64")]
CASES += [("wgsl", "set", dtype) for dtype in ("bool", "uint64", "complex128")] + [("wgsl", "maximum", "bool")]
CASES += [("opencl", "add", "float32"), ("opencl", "multiply", "int32"), ("opencl", "maximum", "complex64")]
CASES += [("opencl", "minimum", "uint32"), ("opencl", "set", "bool")]


@pytest.mark.sampled(gate=21)
@pytest.mark.parametrize(("dialect", "fn", "dtype"), CASES)
def test_several_updates_of_one_element(dialect: Dialect, fn: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    x = sample(dtype, (2, 3, 9, 2), rng)
    indices = rng.integers(0, 9, (2, 17)).astype(np.int32)
    updates = sample(dtype, (2, 3, 17, 2), rng)
    if fn == "multiply" and dtype[0] in "fc":
        updates = (updates / np.abs(updates)).astype(dtype)
    found, said = scattered(dialect, fn, x, indices, updates)
    agree(found, wanted(fn, x, indices, updates))
    assert said == 0


@pytest.mark.sampled(gate=7)
@pytest.mark.parametrize(("dialect", "fn", "dtype"), CASES)
def test_many_updates_of_few_elements(dialect: Dialect, fn: str, dtype: str) -> None:
    rng = np.random.default_rng(1)
    x, updates = sample(dtype, (2, 1, 3, 3), rng), sample(dtype, (2, 1, 101, 3), rng)
    if fn == "multiply" and dtype[0] in "fc":
        updates = (updates / np.abs(updates)).astype(dtype)
    indices = rng.integers(0, 3, (2, 101)).astype(np.int32)
    found, _ = scattered(dialect, fn, x, indices, updates)
    agree(found, wanted(fn, x, indices, updates))


@pytest.mark.sampled(gate=4)
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("fn", ["set", "add"])
@pytest.mark.parametrize("ordered", [False, True])
def test_distinct_indices(dialect: Dialect, fn: str, ordered: bool) -> None:
    rng = np.random.default_rng(0)
    x, updates = sample("float32", (2, 1, 300, 3), rng), sample("float32", (2, 1, 257, 3), rng)
    indices = np.stack([rng.permutation(300)[:257], rng.permutation(300)[:257]])
    found, _ = scattered(dialect, fn, x, indices, updates, distinct=True, ordered=ordered)
    agree(found, wanted(fn, x, indices, updates))


@pytest.mark.sampled(gate=4)
@pytest.mark.parametrize(
    ("dialect", "fn", "dtype", "index_type", "bad"),
    [
        *(("wgsl", fn, "float32", index_type, bad) for fn in ("set", "add") for index_type, bad in OUTSIDE),
        *(("wgsl", "add", "int32", index_type, bad) for index_type, bad in OUTSIDE),
        ("opencl", "set", "float32", "int64", 1 << 40),
        ("opencl", "add", "int32", "int32", -1),
        ("opencl", "add", "float32", "uint32", 7),
    ],
)
def test_an_index_outside_is_reported_and_left_out(
    dialect: Dialect, fn: str, dtype: str, index_type: str, bad: int
) -> None:
    rng = np.random.default_rng(0)
    x, updates = np.zeros((1, 2, 7, 1), dtype), sample(dtype, (1, 2, 9, 1), rng)
    indices = rng.integers(0, 7, (1, 9)).astype(index_type)
    indices[0, 4] = bad
    found, said = scattered(dialect, fn, x, indices, updates)
    kept = np.arange(9) != 4
    agree(found, wanted(fn, x, indices[:, kept], updates[:, :, kept]))
    assert said == bad


@pytest.mark.sampled(gate=6)
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(("axis", "positions"), [(1, 100_001), (1000, 100_000), (20_000, 100_000)])
def test_many_updates(dialect: Dialect, axis: int, positions: int) -> None:
    rng = np.random.default_rng(0)
    x, updates = np.zeros((1, 1, axis, 1), np.float32), rng.random((1, 1, positions, 1)).astype(np.float32)
    indices = rng.integers(0, axis, (1, positions)).astype(np.int32)
    found, _ = scattered(dialect, "add", x, indices, updates)
    exact = np.bincount(indices[0], updates.astype(np.float64).ravel(), axis)
    np.testing.assert_allclose(found.ravel(), exact, rtol=1e-6)
