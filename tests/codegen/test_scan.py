"""Scans on lavapipe and PoCL against NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anygpu.base.typing import HostArray
from anygpu.engines.codegen.target import ComputeType, Dialect, Target
from anygpu.engines.codegen.templates.sort import scan_stages
from anygpu.engines.codegen.templates.stages import GroupSizes, fitting
from tests.codegen.running import TARGETS, load, run, store

DIALECTS: list[Dialect] = ["wgsl", "opencl"]
UFUNCS: dict[str, np.ufunc] = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
SHAPES = [(1, 1), (3, 2), (300, 3), (2, 63), (1, 64), (70, 65), (1, 255), (9, 256), (1, 257), (2, 1023), (1, 1024)]
SHAPES += [(1, 1025), (2, 5000), (1, 100_003)]
#: All of it where kernels are quick to compile, and a choice where each takes a second.
CASES = [("wgsl", *shape) for shape in SHAPES] + [("opencl", *shape) for shape in SHAPES[2::3] + SHAPES[-2:]]
#: So small that two levels of totals are needed for a few hundred elements.
TINY = GroupSizes(8, 2)
TYPES = ["int32", "uint32", "int64", "uint64", "float32", "float64", "complex64", "complex128"]
KINDS = [("wgsl", fn, dtype) for fn in UFUNCS for dtype in TYPES]
KINDS += [("opencl", "sum", "int32"), ("opencl", "prod", "complex64"), ("opencl", "prod", "int64")]
KINDS += [("opencl", "max", "float32"), ("opencl", "min", "complex128"), ("opencl", "min", "uint64")]


def scanned(dialect: Dialect, fn: str, x: HostArray, sizes: GroupSizes | None = None) -> HostArray:
    parts = [x.real, x.imag] if np.iscomplexobj(x) else [x]
    loads = [load(f"load_{k}", part) for k, part in enumerate(parts)]
    kinds = tuple(each.kind for each in loads)
    described = scan_stages(TARGETS[dialect], len(x), x.shape[1], fn, kinds, sizes=sizes)
    results = run(
        dialect, described, [*loads, *(store(f"store_{k}", kind, len(x), x.shape[1]) for k, kind in enumerate(kinds))]
    )
    return results[0] + 1j * results[1] if len(parts) == 2 else results[0]


@pytest.mark.sampled(gate=6)
@pytest.mark.parametrize(("dialect", "rows", "length"), CASES)
def test_sums_of_rows_of_any_length(dialect: Dialect, rows: int, length: int) -> None:
    x = np.random.default_rng(length).normal(size=(rows, length)).astype(np.float32)
    wanted = np.cumsum(x, axis=1, dtype=np.float64)
    largest = np.abs(x).sum(axis=1, keepdims=True)
    # Far nearer than one rounding for each element, which is what adding them one by one may cost.
    assert np.max(np.abs(scanned(dialect, "sum", x) - wanted) / largest) < 4 * np.finfo(np.float32).eps


@pytest.mark.sampled(gate=31)
@pytest.mark.parametrize(("dialect", "fn", "dtype"), KINDS)
def test_every_function_and_type(dialect: Dialect, fn: str, dtype: str) -> None:
    rng = np.random.default_rng(3)
    exact = np.dtype(dtype).kind in "iu"
    if exact:
        # Large enough to wrap.
        x = rng.integers(1, np.iinfo(dtype).max, (2, 101), dtype=dtype, endpoint=True)
    else:
        x = rng.normal(size=(2, 101)).astype(dtype) + (1j * rng.normal(size=(2, 101)) if dtype[0] == "c" else 0)
        x = (x / np.where(np.abs(x) > 0, np.abs(x), 1) if fn == "prod" else x).astype(dtype)
        if fn in ("max", "min"):
            x = np.round(x, 1)
            x[0, 70] = np.nan
    wanted = UFUNCS[fn].accumulate(x, axis=1, dtype=x.dtype)
    found = scanned(dialect, fn, x, TINY)
    if exact or fn in ("max", "min"):
        np.testing.assert_array_equal(found, wanted)
    else:
        np.testing.assert_allclose(found, wanted, rtol=1e-5 if np.finfo(dtype).bits == 32 else 1e-13, atol=1e-4)


@pytest.mark.sampled(gate=2)
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(("rows", "length"), [(3, 7), (1, 100_000)])
def test_segments_begin_where_their_flag_is_set(dialect: Dialect, rows: int, length: int) -> None:
    rng = np.random.default_rng(0)
    flags = rng.random((rows, length)) < 0.02
    x = rng.integers(-5, 6, (rows, length)).astype(np.int32)
    kinds: tuple[ComputeType, ...] = ("bool", "i32")
    described = scan_stages(TARGETS[dialect], rows, length, "sum", kinds, segmented=True)
    accessors = [load("load_0", flags), load("load_1", x), store("store_1", "i32", rows, length)]
    totals = np.cumsum(x, axis=1)
    starts = np.maximum.accumulate(np.where(flags, np.arange(length), 0), axis=1)
    wanted = totals - np.take_along_axis(totals - x, starts, axis=1)
    np.testing.assert_array_equal(run(dialect, described, accessors)[0], wanted)


def test_a_row_that_fits_takes_one_kernel_and_few_invocations() -> None:
    target = Target(dialect="wgsl")
    temporaries, stages = scan_stages(target, 1, 20, "sum", ("f32",))
    assert temporaries == []
    assert [(stage.groups, stage.group_size) for stage in stages] == [(1, 4)]


def test_totals_are_scanned_in_turn_when_there_are_many() -> None:
    target = Target(dialect="wgsl")
    _, stages = scan_stages(target, 1, 50_000_000, "sum", ("f32",))
    assert [stage.name for stage in stages] == [
        "scan_totals",
        "scan_of_totals_totals",
        "scan_of_totals_of_totals",
        "scan_of_totals",
        "scan",
    ]


@pytest.mark.parametrize("memory", [4096, 16384, 65536])
@pytest.mark.parametrize("each", [4, 8, 16, 24])
def test_what_a_group_shares_stays_below_the_limit(memory: int, each: int) -> None:
    target: Any = Target(dialect="wgsl", group_memory=memory)
    sizes = fitting(target, GroupSizes(256, 16), each, each)
    assert sizes.group_size * (sizes.items + 1) * each <= memory
    assert sizes.group_size & (sizes.group_size - 1) == 0
