"""Sorting on lavapipe and PoCL against NumPy's stable sort."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from anygpu.base.typing import HostArray
from anygpu.engines.codegen.target import Dialect, Target
from anygpu.engines.codegen.templates.sort import sort_stages
from anygpu.engines.codegen.templates.stages import GroupSizes
from tests.codegen.running import COMPUTE, TARGETS, load, run, store

DIALECTS: list[Dialect] = ["wgsl", "opencl"]
SHAPES = [(1, 1), (3, 2), (300, 3), (2, 63), (1, 64), (70, 65), (1, 255), (9, 256), (1, 257), (2, 1023), (1, 1024)]
SHAPES += [(1, 1025), (2, 5000), (1, 100_003)]
#: All of it where kernels are quick to compile, and a choice where each takes a second.
CASES = [("wgsl", *shape) for shape in SHAPES] + [("opencl", *shape) for shape in SHAPES[2::3] + SHAPES[-2:]]
#: So small that several merges are needed for a few hundred elements.
TINY = GroupSizes(8, 3)
KINDS = [("wgsl", dtype) for dtype in (*COMPUTE, "complex64", "complex128")]
KINDS += [("opencl", dtype) for dtype in ("bool", "int64", "float32", "complex64")]


def sorted_rows(
    dialect: Dialect, x: HostArray, *, positions: bool = False, sizes: GroupSizes | None = None
) -> HostArray:
    parts = [x.real, x.imag] if np.iscomplexobj(x) else [x]
    loads = [load(f"load_{k}", part) for k, part in enumerate(parts)]
    kinds = tuple(each.kind for each in loads)
    stores = [store(f"store_{k}", kind, len(x), x.shape[1]) for k, kind in enumerate(("i32",) if positions else kinds)]
    described = sort_stages(TARGETS[dialect], len(x), x.shape[1], kinds, positions=positions, sizes=sizes)
    results = run(dialect, described, [*loads, *stores])
    if len(results) == 1:
        return results[0]
    whole = np.empty(x.shape, x.dtype)
    whole.real, whole.imag = results
    return whole


@pytest.mark.sampled(gate=17)
@pytest.mark.parametrize(("dialect", "rows", "length"), CASES)
def test_rows_of_any_length(dialect: Dialect, rows: int, length: int) -> None:
    x = np.random.default_rng(length).normal(size=(rows, length)).astype(np.float32)
    np.testing.assert_array_equal(sorted_rows(dialect, x), np.sort(x, axis=1))


def sample(dtype: str, rng: np.random.Generator) -> HostArray:
    """Few different values, and among the floats both zeros, infinities and NaN in every place."""
    shape = (2, 45)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if dtype[0] in "iu":
        limits = np.iinfo(dtype)
        return rng.choice(np.array([limits.min, 0, 1, 5, limits.max - 1, limits.max], dtype), shape)
    some = np.array([-np.inf, -1, -0.0, 0.0, 1e-42, 1, np.inf, np.nan])
    if dtype[0] == "f":
        return rng.choice(some, shape).astype(dtype)
    x = np.empty(shape, dtype)
    x.real, x.imag = rng.choice(some, shape), rng.choice(some, shape)
    return x


@pytest.mark.sampled(gate=13)
@pytest.mark.parametrize(("dialect", "dtype"), KINDS)
def test_every_type_keeps_the_order_of_equals(dialect: Dialect, dtype: str) -> None:
    x = sample(dtype, np.random.default_rng(1))
    positions = np.argsort(x, axis=1, kind="stable")
    np.testing.assert_array_equal(sorted_rows(dialect, x, positions=True, sizes=TINY), positions)
    if dialect == "opencl" and dtype not in ("float32", "complex64"):
        return  # The same texts; kernels take long to compile here.
    found = sorted_rows(dialect, x, sizes=TINY)
    wanted = np.take_along_axis(x, positions, axis=1)
    np.testing.assert_array_equal(found, wanted)
    if np.dtype(dtype).kind == "f":
        np.testing.assert_array_equal(np.signbit(found[found == 0]), np.signbit(wanted[wanted == 0]))


@pytest.mark.full
@pytest.mark.parametrize("dialect", DIALECTS)
def test_positions_of_a_long_row(dialect: Dialect) -> None:
    x = np.random.default_rng(2).integers(0, 1000, (1, 100_001)).astype(np.int32)
    np.testing.assert_array_equal(sorted_rows(dialect, x, positions=True), np.argsort(x, axis=1, kind="stable"))


@settings(max_examples=15, deadline=None)
@given(x=arrays.arrays(np.float32, (3, 41), elements=st.floats(width=32)))
def test_any_floats(x: HostArray) -> None:
    # One shape, so that there is one kernel to compile; the device that is quick to start is enough.
    found = sorted_rows("wgsl", x, positions=True, sizes=TINY)
    np.testing.assert_array_equal(found, np.argsort(x, axis=1, kind="stable"))


def test_merges_are_few() -> None:
    target = Target(dialect="wgsl")
    _, stages = sort_stages(target, 1, 1 << 20, ("f32",))
    assert len(stages) == 10
