"""The matmul template on real devices: every form, odd sizes, all ways operands can lie, and sums of any length."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anygpu.base.typing import HostArray
from anygpu.engines.codegen.target import ComputeType
from anygpu.engines.codegen.templates.matmul import Sizes, Tiling, grid, parts, text, tilings
from anygpu.engines.codegen.templates.matmul_tiling import shared_bytes, turns
from tests.codegen.product_kernels import NUMPY, TARGETS, Launch, Layout, matmul_source

DEVICES = sorted(TARGETS)


def candidates(device: str, sizes: Sizes, layout: Layout, type: ComputeType = "f32") -> list[Tiling]:
    target = TARGETS[device]
    return tilings(target, sizes, type)


def operands(sizes: Sizes, type: ComputeType) -> tuple[HostArray, HostArray]:
    """Whole numbers for integers, with products that wrap; for floats small enough to be summed exactly."""
    random = np.random.default_rng(sizes.m * 31 + sizes.n * 7 + sizes.k)
    low, high = (-9, 10) if type in ("f32", "f64") else (-(2**31), 2**31)
    shapes = (sizes.batch, sizes.m, sizes.k), (sizes.batch, sizes.k, sizes.n)
    a, b = (random.integers(low, high, shape).astype(NUMPY[type]) for shape in shapes)
    return a, b


def product(
    device: str, sizes: Sizes, tiling: Tiling, layout: Layout, type: ComputeType = "f32"
) -> tuple[HostArray, HostArray]:
    """What the kernel gives, and what is right."""
    a, b = operands(sizes, type)
    if layout.gelu:
        a = a / 64
    wanted = a @ b
    buffers = [
        np.ascontiguousarray(a.swapaxes(1, 2)) if layout.transposed_a else a,
        np.ascontiguousarray(b.swapaxes(1, 2)) if layout.transposed_b else b,
    ]
    if layout.gelu:
        bias = np.linspace(-2, 2, sizes.n, dtype=a.dtype)
        buffers.append(bias)
        wanted = (wanted + bias) / (1 + np.exp(-1.702 * (wanted + bias)))
    out = np.zeros((parts(tiling, sizes), *wanted.shape), a.dtype)
    dialect = TARGETS[device].dialect
    source = matmul_source(dialect, type, sizes, tiling, layout)
    launch = Launch(dialect, source, "matmul", [*buffers, out], *grid(sizes, tiling))
    launch.run()
    return launch.result().sum(axis=0, dtype=a.dtype), wanted


@pytest.mark.full
@pytest.mark.parametrize(
    ("device", "sizes"),
    [("wgsl", Sizes(2, 65, 67, 33)), ("opencl", Sizes(1, 132, 136, 68)), ("opencl-least", Sizes(2, 65, 67, 33))],
    ids=str,
)
def test_every_tiling(device: str, sizes: Sizes) -> None:
    layout = Layout(adds=True)
    # How many lanes stand side by side changes little but the time that this takes.
    different = {
        (each.form, each.rows, each.vectors, each.handed > 0): each for each in candidates(device, sizes, layout)
    }
    for tiling in different.values():
        found, wanted = product(device, sizes, tiling, layout)
        np.testing.assert_array_equal(found, wanted, err_msg=str(tiling))


@pytest.mark.sampled(gate=2)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (1, 1, 1),
        (2, 3, 1),
        (3, 2, 17),
        (1, 257, 3),
        (257, 1, 63),
        (17, 65, 64),
        (63, 64, 255),
        (255, 17, 2),
        (256, 3, 65),
    ],
)
def test_odd_sizes(device: str, m: int, n: int, k: int) -> None:
    sizes, layout = Sizes(1, m, n, k), Layout(adds=True)
    tiling = candidates(device, sizes, layout)[0]
    found, wanted = product(device, sizes, tiling, layout)
    np.testing.assert_array_equal(found, wanted, err_msg=str(tiling))


@pytest.mark.full
@pytest.mark.parametrize("type", ["f32", "f64", "i32"])
@pytest.mark.parametrize("n", [17, 40, 67])
def test_totals_are_stored_in_vectors_whatever_the_width_of_the_result(type: ComputeType, n: int) -> None:
    """A tile at the edge begins inside of a vector of the one before it; nothing is stored twice."""
    sizes, layout = Sizes(2, 37, n, 21), Layout(adds=True)
    flags = layout.flags("opencl", sizes)
    for tiling in candidates("opencl", sizes, layout, type)[:3]:
        found, wanted = product("opencl", sizes, tiling, layout, type)
        np.testing.assert_array_equal(found, wanted, err_msg=str(tiling))
        source = matmul_source("opencl", type, sizes, tiling, layout)
        assert flags.out_n
        assert source.count("store_out_vector(") >= 2
        # One accessor, and at most one call for what is left of a vector.
        assert source.count(" store_out(") <= 2


FORMS: dict[str, list[Tiling]] = {
    "wgsl": [
        Tiling(form="blocks", rows=4, vectors=2, vector=4, depth=4, lanes_m=2, lanes_n=4),
        Tiling(form="blocks", rows=32, vectors=1, vector=4, depth=4, lanes_n=8, handed=8),
        Tiling(form="tiles", rows=4, vectors=1, vector=4, lanes_m=4, lanes_n=4, stage_depth=16),
    ],
    "opencl": [
        Tiling(form="blocks", rows=4, vectors=2, vector=8, depth=8),
        Tiling(form="tiles", rows=4, vectors=1, vector=4, lanes_m=4, lanes_n=4, stage_depth=16),
    ],
}


@pytest.mark.parametrize(
    "layout",
    [
        Layout(transposed_a=True),
        Layout(transposed_b=True),
        Layout(transposed_a=True, transposed_b=True),
        Layout(gelu=True),
        Layout(vectors=False),
    ],
    ids=["at", "bt", "at-bt", "bias-gelu", "scalars"],
)
@pytest.mark.parametrize("device", ["wgsl", "opencl"])
@pytest.mark.parametrize("sizes", [Sizes(2, 52, 44, 36), Sizes(1, 33, 35, 37)], ids=str)
@pytest.mark.sampled(gate=12, full=2)
def test_every_layout(device: str, sizes: Sizes, layout: Layout) -> None:
    for tiling in FORMS[device]:
        found, wanted = product(device, sizes, tiling, layout)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5, err_msg=str(tiling))


@pytest.mark.sampled(gate=3)
@pytest.mark.parametrize("type", ["f64", "i32", "u32", "i64", "u64"])
@pytest.mark.parametrize("device", ["wgsl", "opencl", "opencl-least"])
def test_types(device: str, type: ComputeType) -> None:
    sizes, layout = Sizes(1, 65, 66, 35), Layout()
    chosen = {each.form: each for each in reversed(candidates(device, sizes, layout, type))}
    for tiling in chosen.values():
        found, wanted = product(device, sizes, tiling, layout, type)
        np.testing.assert_array_equal(found, wanted, err_msg=str(tiling))


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_to_sum_gives_zeros(device: str) -> None:
    sizes, layout = Sizes(2, 9, 10, 0), Layout(adds=True)
    (tiling,) = candidates(device, sizes, layout)
    found, wanted = product(device, sizes, tiling, layout)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.sampled(gate=2)
@pytest.mark.parametrize("device", DEVICES)
def test_long_sums(device: str) -> None:
    """Longer than lavapipe lets a loop run, and split over groups where there would be few."""
    sizes, layout = Sizes(1, 9, 7, 100_003), Layout(adds=True)
    found_tilings = candidates(device, sizes, layout)
    assert parts(found_tilings[0], sizes) > 1
    unsplit = min(found_tilings, key=lambda each: parts(each, sizes))
    for tiling in (found_tilings[0], unsplit):
        found, wanted = product(device, sizes, tiling, layout)
        np.testing.assert_array_equal(found, wanted, err_msg=str(tiling))


@pytest.mark.sampled(gate=6)
@pytest.mark.parametrize("device", ["wgsl", "opencl"])
@pytest.mark.parametrize("k", [7, 64, 129])
def test_split_sums(device: str, k: int) -> None:
    sizes, layout = Sizes(2, 35, 36, k), Layout(adds=True)
    for form in FORMS[device]:
        tiling = Tiling(**{**{name: getattr(form, name) for name in form.__struct_fields__}, "parts": 3})
        found, wanted = product(device, sizes, tiling, layout)
        np.testing.assert_array_equal(found, wanted, err_msg=str(tiling))


LENGTHS = st.integers(1, 70) | st.sampled_from([127, 128, 129, 255, 256, 1000, 1024, 4096, 100_000])


@given(
    device=st.sampled_from(DEVICES),
    sizes=st.builds(Sizes, st.integers(1, 3), LENGTHS, LENGTHS, LENGTHS),
    type=st.sampled_from(["f32", "f64"]),
)
def test_tilings_fit(device: str, sizes: Sizes, type: ComputeType) -> None:
    target = TARGETS[device]
    found = tilings(target, sizes, type)
    assert 1 <= len(found) <= 24
    assert len(set(found)) == len(found)
    for tiling in found:
        assert tiling.tile_m <= sizes.m
        assert tiling.tile_n <= sizes.n
        assert tiling.group_size <= target.group_limit
        assert shared_bytes(tiling, type) <= target.group_memory
        assert turns(tiling, sizes) <= target.loop_limit
        groups, group_size = grid(sizes, tiling)
        assert groups >= sizes.batch
        assert group_size == tiling.group_size


def test_exact_sizes_have_no_guards() -> None:
    sizes = Sizes(1, 128, 128, 128)
    tiling = FORMS["wgsl"][2]
    flags = Layout().flags("wgsl", sizes)
    source = text(
        "wgsl",
        "f32",
        sizes,
        tiling,
        flags,
        declarations="",
        functions="",
        name="matmul",
        parameters="",
        pass_="",
        group="let group = i32(group_id.x);",
    )
    assert "if (" not in source
    assert "$" not in source
    assert "min(" not in source
