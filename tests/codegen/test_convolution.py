"""The convolution template on real devices: odd sizes, strides, dilations, padding, all windows and tilings."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anygpu.base.typing import HostArray
from anygpu.engines.codegen.target import SYNTAX, ComputeType, Dialect
from anygpu.engines.codegen.templates.convolution import (
    ConvolutionSizes,
    ConvolutionTiling,
    ConvolutionVectors,
    grid,
    text,
    tilings,
)
from tests.codegen.product_kernels import NUMPY, TARGETS, Launch

DEVICES = sorted(TARGETS)


def flags(dialect: Dialect, sizes: ConvolutionSizes, width: int, padding: int = 0) -> ConvolutionVectors:
    """What the accessors below can do: OpenCL reads vectors anywhere, WGSL whole ones where rows are made of them."""
    if width == 1:
        return ConvolutionVectors()
    if dialect == "opencl":
        return ConvolutionVectors(x="anywhere" if not padding else "none", out=True)
    read = next(each for each in (4, 2, 1) if input_width(sizes, padding) % each == 0 and each <= width)
    aligned: Literal["none", "aligned"] = "aligned" if read > 1 else "none"
    return ConvolutionVectors(x=aligned, out=sizes.width % width == 0, width=read, phase=-padding % read)


def input_width(sizes: ConvolutionSizes, padding: int = 0) -> int:
    return (sizes.width - 1) * sizes.stride[1] + (sizes.window[1] - 1) * sizes.dilation[1] + 1 - 2 * padding


def input_height(sizes: ConvolutionSizes, padding: int = 0) -> int:
    return (sizes.height - 1) * sizes.stride[0] + (sizes.window[0] - 1) * sizes.dilation[0] + 1 - 2 * padding


def source_text(
    dialect: Dialect, type: ComputeType, sizes: ConvolutionSizes, tiling: ConvolutionTiling, padding: int = 0
) -> str:
    wgsl, words, width = dialect == "wgsl", SYNTAX[dialect].types[type], tiling.vector
    has = flags(dialect, sizes, width, padding)
    high, wide = input_height(sizes, padding), input_width(sizes, padding)
    vector = f"vec{width}<{words}>" if wgsl else f"{words}{width}"
    read = has.width if has.x == "aligned" else 1
    x_vector = f"vec{read}<{words}>" if wgsl else vector
    takes = f"__global {words}* x_values, __global {words}* w_values, __global {words}* out_values"
    inside = f"y >= {padding} && y < {high + padding} && x >= {padding} && x < {wide + padding}"
    x_place = f"((n * {sizes.channels} + c) * {high} + y - {padding}) * {wide} + x - {padding}"
    w_place = f"((o * {sizes.channels} + c) * {sizes.window[0]} + i) * {sizes.window[1]} + j"
    out_place = f"((n * {sizes.out_channels} + o) * {sizes.height} + h) * {sizes.width} + w"
    functions = []

    def function(name: str, positions: str, kind: str, body: str, value: str = "") -> None:
        arguments = positions.split(", ")
        if wgsl:
            taken = ", ".join([f"{each}: i32" for each in arguments] + ([f"total: {value}"] if value else []))
            head = f"fn {name}({taken})" + (f" -> {kind}" if kind else "")
        else:
            taken = ", ".join([f"int {each}" for each in arguments] + ([f"{value} total"] if value else []))
            head = f"{kind or 'void'} {name}({takes}, {taken})"
        functions.append(f"{head} {{\n    {body}\n}}")

    def element(buffer: str, place: str, wide: int) -> str:
        return f"{buffer}[({place}) / {wide}][({place}) % {wide}]" if wgsl and wide > 1 else f"{buffer}[{place}]"

    guard = f"if (!({inside})) {{\n        return {words + '(0)' if wgsl else '0'};\n    }}\n    " if padding else ""
    function("load_x", "n, c, y, x", words, f"{guard}return {element('x_values', x_place, read)};")
    function("load_w", "o, c, i, j", words, f"return w_values[{w_place}];")
    place = element("out_values", out_place, width if has.out else 1)
    # Added to zeros, which shows if a total is stored twice.
    function("store_out", "n, o, h, w", "", f"{place} = {place} + total;", words)
    if has.x != "none":
        guard = f"if (!({inside})) {{\n        return {x_vector}();\n    }}\n    " if padding else ""
        value = f"x_values[({x_place}) / {read}]" if wgsl else f"vload{width}(0, x_values + {x_place})"
        function("load_x_vector", "n, c, y, x", x_vector, f"{guard}return {value};")
    if has.out:
        whole = f"out_values[({out_place}) / {width}]"
        before = whole if wgsl else f"vload{width}(0, out_values + {out_place})"
        put = (
            f"{whole} = {before} + total;" if wgsl else f"vstore{width}({before} + total, 0, out_values + {out_place});"
        )
        function("store_out_vector", "n, o, h, w", "", put, vector)
    kinds = [x_vector if read > 1 else words, words, vector if has.out else words]
    names = ["x_values", "w_values", "out_values"]
    declared = [
        f"@group(0) @binding({i}) var<storage, {'read_write' if i == 2 else 'read'}> {name}: array<{kind}>;"
        for i, (name, kind) in enumerate(zip(names, kinds, strict=True))
    ]
    return text(
        dialect,
        type,
        sizes,
        tiling,
        has,
        declarations="\n".join(declared) if wgsl else "",
        functions="\n".join(functions),
        name="convolution",
        parameters="" if wgsl else takes,
        pass_="" if wgsl else "x_values, w_values, out_values, ",
        group="let group = i32(group_id.x);" if wgsl else "const int group = get_group_id(0);",
    )


def convolved(x: HostArray, weights: HostArray, sizes: ConvolutionSizes, padding: int = 0) -> HostArray:
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    out = np.zeros((sizes.batch, sizes.out_channels, sizes.height, sizes.width), x.dtype)
    for i in range(sizes.window[0]):
        for j in range(sizes.window[1]):
            top, left = i * sizes.dilation[0], j * sizes.dilation[1]
            rows = slice(top, top + (sizes.height - 1) * sizes.stride[0] + 1, sizes.stride[0])
            columns = slice(left, left + (sizes.width - 1) * sizes.stride[1] + 1, sizes.stride[1])
            out += np.einsum("nchw,oc->nohw", x[:, :, rows, columns], weights[:, :, i, j])
    return out


def check(
    device: str, sizes: ConvolutionSizes, tiling: ConvolutionTiling, type: ComputeType = "f32", padding: int = 0
) -> None:
    random = np.random.default_rng(5)
    high, wide = input_height(sizes, padding), input_width(sizes, padding)
    x = random.integers(-9, 10, (sizes.batch, sizes.channels, high, wide)).astype(NUMPY[type])
    weights = random.integers(-9, 10, (sizes.out_channels, sizes.channels, *sizes.window)).astype(NUMPY[type])
    wanted = convolved(x, weights, sizes, padding)
    dialect = TARGETS[device].dialect
    source = source_text(dialect, type, sizes, tiling, padding)
    launch = Launch(dialect, source, "convolution", [x, weights, np.zeros_like(wanted)], *grid(sizes, tiling))
    launch.run()
    np.testing.assert_array_equal(launch.result(), wanted, err_msg=str(tiling))


def candidates(device: str, sizes: ConvolutionSizes, type: ComputeType = "f32") -> list[ConvolutionTiling]:
    return tilings(TARGETS[device], sizes, type, ConvolutionVectors())


@pytest.mark.full
@pytest.mark.parametrize("device", ["wgsl", "opencl"])
def test_every_tiling(device: str) -> None:
    sizes = ConvolutionSizes(batch=2, channels=3, out_channels=9, height=17, width=70, window=(3, 3))
    for tiling in candidates(device, sizes):
        check(device, sizes, tiling)


@pytest.mark.sampled(gate=4)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("channels", "out_channels", "height", "width", "window"),
    [
        (1, 1, 1, 1, (1, 1)),
        (1, 1, 63, 65, (3, 3)),
        (2, 3, 2, 3, (2, 5)),
        (5, 2, 9, 64, (3, 1)),
        (2, 2, 5, 33, (7, 7)),
        (1, 2, 3, 17, (31, 31)),
    ],
)
def test_odd_sizes(
    device: str, channels: int, out_channels: int, height: int, width: int, window: tuple[int, int]
) -> None:
    sizes = ConvolutionSizes(
        batch=1, channels=channels, out_channels=out_channels, height=height, width=width, window=window
    )
    check(device, sizes, candidates(device, sizes)[0])


@pytest.mark.sampled(gate=5)
@pytest.mark.parametrize("device", ["wgsl", "opencl"])
@pytest.mark.parametrize(
    ("stride", "dilation"), [((2, 2), (1, 1)), ((1, 3), (2, 1)), ((1, 1), (2, 3)), ((2, 1), (2, 2))]
)
def test_strides_and_dilations(device: str, stride: tuple[int, int], dilation: tuple[int, int]) -> None:
    sizes = ConvolutionSizes(
        batch=1, channels=2, out_channels=4, height=9, width=20, window=(3, 3), stride=stride, dilation=dilation
    )
    found = candidates(device, sizes)
    for tiling in (found[0], found[-1]):
        check(device, sizes, tiling)


@pytest.mark.full
@pytest.mark.parametrize("device", ["wgsl", "opencl"])
def test_padded_rows_in_whole_vectors(device: str) -> None:
    sizes = ConvolutionSizes(batch=1, channels=2, out_channels=8, height=10, width=24, window=(3, 3))
    for tiling in (candidates(device, sizes)[0], ConvolutionTiling(channels=2, rows=2, vectors=2, vector=4)):
        check(device, sizes, tiling, padding=1)


@pytest.mark.sampled(gate=5)
@pytest.mark.parametrize("type", ["f64", "i32", "u32", "i64", "u64"])
@pytest.mark.parametrize("device", ["wgsl", "opencl"])
def test_types(device: str, type: ComputeType) -> None:
    sizes = ConvolutionSizes(batch=1, channels=2, out_channels=3, height=5, width=18, window=(3, 3))
    check(device, sizes, candidates(device, sizes, type)[0], type)


LENGTHS = st.integers(1, 300)


@given(
    device=st.sampled_from(DEVICES),
    sizes=st.builds(
        ConvolutionSizes,
        batch=st.integers(1, 3),
        channels=LENGTHS,
        out_channels=LENGTHS,
        height=LENGTHS,
        width=LENGTHS,
        window=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    ),
)
def test_tilings_fit(device: str, sizes: ConvolutionSizes) -> None:
    target, found = TARGETS[device], candidates(device, sizes)
    assert 1 <= len(found) <= 24
    for tiling in found:
        assert tiling.channels <= sizes.out_channels
        assert tiling.tile_h <= sizes.height
        assert tiling.tile_w <= sizes.width
        assert tiling.group_size <= target.group_limit
        assert grid(sizes, tiling)[0] >= sizes.batch
