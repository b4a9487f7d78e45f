"""Kernels that users write, on real devices: results, grids, bounds, and what compilers say of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from anygpu.base.typing import HostArray
from anygpu.engines.compiling_session import DeviceArray
from anygpu.errors import InvalidKernel
from anygpu.program.graph import Program, Recorder
from anygpu.program.ops.custom import Custom
from anygpu.program.primitives import Binary, Reshape, Slice, Spec
from anygpu.program.wire import from_bytes, to_bytes
from tests.engines.compiled import NAMES, Running, running
from tests.engines.custom_programs import kernel_program, nodes_of

SAXPY = {
    "webgpu": """
struct Numbers { n: u32, a: f32 }
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(5) var<storage, read> y: array<f32>;
@group(0) @binding(7) var<storage, read_write> out: array<f32>;
@group(0) @binding(1) var<uniform> p: Numbers;

@compute @workgroup_size(64)
fn saxpy(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < p.n && id.x < arrayLength(&out)) {
        out[id.x] = p.a * x[id.x] + y[id.x];
    }
}
""",
    "opencl": """
__kernel void saxpy(__global const float* x, uint n, __global const float* y, float a, __global float* out) {
    size_t i = get_global_id(0);
    if (i < n) {
        out[i] = a * x[i] + y[i];
    }
}
""",
}

BLUR = {
    "webgpu": """
override radius: i32 = 1;
@group(0) @binding(0) var<storage, read> image: array<f32>;
@group(0) @binding(1) var<uniform> width: u32;
@group(0) @binding(2) var<uniform> height: u32;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

fn at(x: i32, y: i32) -> f32 {
    let column = clamp(x, 0, i32(width) - 1);
    let row = clamp(y, 0, i32(height) - 1);
    return image[row * i32(width) + column];
}

@compute @workgroup_size(8, 4)
fn blur(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x >= width || id.y >= height) { return; }
    var total = 0.0;
    for (var dy = -radius; dy <= radius; dy++) {
        for (var dx = -radius; dx <= radius; dx++) {
            total += at(i32(id.x) + dx, i32(id.y) + dy);
        }
    }
    let side = f32(2 * radius + 1);
    out[id.y * width + id.x] = total / (side * side);
}
""",
    "opencl": """
#define radius 1
#define SIDE (2 * radius + 1)
__kernel __attribute__((reqd_work_group_size(8, 4, 1)))
void blur(__global const float* image, const uint width, const uint height, __global float* out) {
    const int x = get_global_id(0), y = get_global_id(1);
    if (x >= width || y >= height) return;
    float total = 0.0f;
    for (int dy = -radius; dy <= radius; dy++)
        for (int dx = -radius; dx <= radius; dx++) {
            const int column = clamp(x + dx, 0, (int)width - 1), row = clamp(y + dy, 0, (int)height - 1);
            total += image[row * width + column];
        }
    out[y * width + x] = total / (SIDE * SIDE);
}
""",
}

HISTOGRAM = {
    "webgpu": """
@group(0) @binding(0) var<storage, read> data: array<u32>;
@group(0) @binding(1) var<storage, read_write> bins: array<atomic<u32>>;
@group(0) @binding(2) var<storage, read_write> total: atomic<u32>;

@compute @workgroup_size(64)
fn histogram(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < arrayLength(&data)) {
        atomicAdd(&bins[data[id.x] % arrayLength(&bins)], 1u);
        atomicAdd(&total, 1u);
    }
}
""",
    "opencl": """
#define BINS 16
__kernel void histogram(__global const uint* data, __global uint* bins, __global uint* total, uint n) {
    if (get_global_id(0) < n) {
        atomic_add(&bins[data[get_global_id(0)] % BINS], 1u);
        atomic_inc(&total[0]);
    }
}
""",
}

SUMS = {
    "webgpu": """
const SIZE = 64u;
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> sums: array<f32>;
var<workgroup> part: array<f32, SIZE>;

@compute @workgroup_size(SIZE)
fn sums_of(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(local_invocation_id) local: vec3<u32>,
    @builtin(workgroup_id) group: vec3<u32>,
) {
    part[local.x] = select(0.0, x[min(id.x, arrayLength(&x) - 1u)], id.x < arrayLength(&x));
    workgroupBarrier();
    for (var step = SIZE / 2u; step > 0u; step /= 2u) {
        if (local.x < step) { part[local.x] += part[local.x + step]; }
        workgroupBarrier();
    }
    if (local.x == 0u) { sums[group.x] = part[0]; }
}
""",
    "opencl": """
#define SIZE 64
__kernel __attribute__((reqd_work_group_size(SIZE, 1, 1)))
void sums_of(__global const float* x, uint n, __global float* sums) {
    __local float part[SIZE];
    const uint local_id = get_local_id(0);
    part[local_id] = get_global_id(0) < n ? x[get_global_id(0)] : 0.0f;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint step = SIZE / 2; step > 0; step /= 2) {
        if (local_id < step) part[local_id] += part[local_id + step];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (local_id == 0) sums[get_group_id(0)] = part[0];
}
""",
}

TWO = {
    "webgpu": """
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> halves: array<f32>;
@group(0) @binding(2) var<storage, read_write> signs: array<i32>;
@compute @workgroup_size(64)
fn two(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x >= arrayLength(&x)) { return; }
    halves[id.x] = x[id.x] / 2.0;
    signs[id.x] = i32(sign(x[id.x]));
}
""",
    "opencl": """
__kernel void two(__global const float* x, uint n, __global float* halves, __global int* signs) {
    uint i = get_global_id(0);
    if (i >= n) return;
    halves[i] = x[i] / 2.0f;
    signs[i] = (x[i] > 0) - (x[i] < 0);
}
""",
}

INCREMENT = {
    "webgpu": """
@group(0) @binding(0) var<storage, read_write> x: array<i32>;
@compute @workgroup_size(64)
fn increment(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < arrayLength(&x)) { x[id.x] += 1; }
}
""",
    "opencl": """
__kernel void increment(__global int* x, uint n) {
    if (get_global_id(0) < n) x[get_global_id(0)] += 1;
}
""",
}

SCATTER = {
    "webgpu": """
@group(0) @binding(0) var<storage, read> at: array<i32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@compute @workgroup_size(64)
fn scatter(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < arrayLength(&at)) { out[at[id.x]] = x[id.x]; }
}
""",
    "opencl": """
__kernel void scatter(__global const int* at, __global const float* x, uint n, __global float* out) {
    if (get_global_id(0) < n) out[at[get_global_id(0)]] = x[get_global_id(0)];
}
""",
}

GATHER = {
    "webgpu": SCATTER["webgpu"].replace("out[at[id.x]] = x[id.x]", "out[id.x] = x[at[id.x]]"),
    "opencl": SCATTER["opencl"].replace(
        "out[at[get_global_id(0)]] = x[get_global_id(0)]", "out[get_global_id(0)] = x[at[get_global_id(0)]]"
    ),
}


@pytest.fixture(scope="module", params=NAMES)
def opened(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running(request.param) as found:
        yield found


def name_of(opened: Running) -> str:
    return "webgpu" if opened.engine.name == "webgpu" else "opencl"


def groups_for(count: int, size: int = 64) -> tuple[int, int, int]:
    return (-(-count // size), 1, 1)


def run(opened: Running, program: Program, *arrays: HostArray) -> list[HostArray]:
    assert opened.engine.supports(program, opened.device) == []
    return [opened.down(each) for each in opened.execute(program, [opened.up(each) for each in arrays])]


def floats(*shape: int, seed: int = 0) -> HostArray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


# -- what they compute


@pytest.mark.parametrize("count", [1, 7, 64, 1000])
def test_saxpy_with_numbers(opened: Running, count: int) -> None:
    x, y = floats(count), floats(count, seed=1)
    program = kernel_program(
        SAXPY[name_of(opened)], [x, y], [(count,)], groups_for(count), scalars={"a": 2.5, "n": count}
    )
    (result,) = run(opened, program, x, y)
    np.testing.assert_allclose(result, np.float32(2.5) * x + y, rtol=1e-5, atol=1e-6)


def test_one_text_is_compiled_once_whatever_the_grid_and_the_numbers(opened: Running) -> None:
    x, y = floats(500), floats(500, seed=1)
    source = SAXPY[name_of(opened)] + "\n// compiled here first\n"
    before = opened.counters.compilations
    for count, a in ((500, 1.0), (500, 2.0), (100, 3.0), (1, 4.0)):
        program = kernel_program(source, [x, y], [(count,)], groups_for(count), scalars={"a": a, "n": count})
        (result,) = run(opened, program, x, y)
        np.testing.assert_allclose(result, np.float32(a) * x[:count] + y[:count], rtol=1e-5, atol=1e-6)
    assert opened.counters.compilations - before == 1


@pytest.mark.parametrize("radius", [1, 3])
def test_a_blur_in_two_dimensions_with_a_constant(opened: Running, radius: int) -> None:
    image = floats(13, 21)
    program = kernel_program(
        BLUR[name_of(opened)],
        [image],
        [image.shape],
        (3, 4, 1),
        scalars={"width": 21, "height": 13},
        constants={"radius": radius},
    )
    (result,) = run(opened, program, image)
    padded = np.pad(image, radius, mode="edge")
    side = 2 * radius + 1
    windows = np.lib.stride_tricks.sliding_window_view(padded, (side, side))
    np.testing.assert_allclose(result, windows.mean(axis=(2, 3)), rtol=1e-5, atol=1e-6)


def test_atomics_and_a_single_value(opened: Running) -> None:
    data = np.random.default_rng(3).integers(0, 1 << 31, 5000).astype(np.uint32)
    name = name_of(opened)
    scalars = {"n": 5000} if name == "opencl" else {}
    program = kernel_program(HISTOGRAM[name], [data], [(16,), (1,)], groups_for(5000), scalars=scalars)
    bins, total = run(opened, program, data)
    np.testing.assert_array_equal(bins, np.bincount(data % 16, minlength=16))
    assert total[0] == 5000


def test_memory_of_a_group_and_barriers(opened: Running) -> None:
    x = floats(1000)
    scalars = {"n": 1000} if name_of(opened) == "opencl" else {}
    program = kernel_program(SUMS[name_of(opened)], [x], [(16,)], (16, 1, 1), scalars=scalars)
    (sums,) = run(opened, program, x)
    expected = np.pad(x, (0, 24)).reshape(16, 64).sum(axis=1)
    np.testing.assert_allclose(sums, expected, rtol=1e-5, atol=1e-5)


def test_two_results_are_one_launch(opened: Running) -> None:
    x = floats(100)
    scalars = {"n": 100} if name_of(opened) == "opencl" else {}
    program = kernel_program(TWO[name_of(opened)], [x], [(100,), (10, 10)], groups_for(100), scalars=scalars)
    arrays = [opened.up(x)]
    opened.execute(program, arrays)
    before = opened.counters.dispatches
    halves, signs = opened.execute(program, arrays)
    assert opened.counters.dispatches - before == 1
    np.testing.assert_array_equal(opened.down(halves), x / 2)
    np.testing.assert_array_equal(opened.down(signs), np.sign(x).astype(np.int32).reshape(10, 10))


def test_a_result_that_nobody_asked_for(opened: Running) -> None:
    x = floats(100)
    scalars = {"n": 100} if name_of(opened) == "opencl" else {}
    nodes = nodes_of(TWO[name_of(opened)], [(100,), (100,)], groups_for(100), scalars=scalars)
    recorder = Recorder()
    given = recorder.input(Spec((100,), "float32"))
    program = recorder.program([recorder.add(nodes[1], given)])
    (signs,) = run(opened, program, x)
    np.testing.assert_array_equal(signs, np.sign(x).astype(np.int32))


def test_results_begin_as_zeros_and_updates_as_their_argument(opened: Running) -> None:
    x = np.arange(100, dtype=np.int32)
    scalars = {"n": 50}
    name = name_of(opened)
    scalars = scalars if name == "opencl" else {}
    source = INCREMENT[name].replace("arrayLength(&x)", "50u")
    for _ in range(3):
        (zeros,) = run(opened, kernel_program(source, [], [(100,)], groups_for(100), scalars=scalars))
        np.testing.assert_array_equal(zeros, np.arange(100) < 50)
        program = kernel_program(source, [x], [(100,)], groups_for(100), scalars=scalars, updates=["x"])
        given = opened.up(x)
        (result,) = opened.execute(program, [given])
        np.testing.assert_array_equal(opened.down(result), x + (np.arange(100) < 50))
        np.testing.assert_array_equal(opened.down(given), x)


def test_between_other_operations(opened: Running) -> None:
    """What comes in is computed before, reshaped on the way, and what comes out goes on."""
    x, y = floats(20, 5), floats(100, seed=1)
    (node,) = nodes_of(SAXPY[name_of(opened)], [(4, 25)], groups_for(100), scalars={"a": 2.0, "n": 100})
    recorder = Recorder()
    left, right = recorder.input(Spec((20, 5), "float32")), recorder.input(Spec((100,), "float32"))
    twice = recorder.add(Binary("add"), left, left)
    made = recorder.add(node, recorder.add(Reshape((100,)), twice), right)
    program = recorder.program([recorder.add(Binary("multiply"), made, made), twice])
    result, doubled = run(opened, program, x, y)
    expected = (2 * (2 * x.reshape(100)) + y).reshape(4, 25)
    np.testing.assert_allclose(result, expected * expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(doubled, 2 * x)


def test_a_kernel_after_a_kernel_in_place(opened: Running) -> None:
    x = np.arange(100, dtype=np.int32)
    name = name_of(opened)
    scalars = {"n": 100} if name == "opencl" else {}
    (node,) = nodes_of(INCREMENT[name], [(100,)], groups_for(100), scalars=scalars, updates=["x"])
    recorder = Recorder()
    given = recorder.input(Spec((100,), "int32"))
    once = recorder.add(node, given)
    program = recorder.program([recorder.add(node, recorder.add(node, once)), once])
    thrice, first = run(opened, program, x)
    np.testing.assert_array_equal(thrice, x + 3)
    np.testing.assert_array_equal(first, x + 1)


@pytest.mark.parametrize("start", [0, 1, 3, 64])
def test_inputs_that_begin_inside_of_their_memory(opened: Running, start: int) -> None:
    base = floats(200)
    whole = opened.up(base)
    x = DeviceArray(opened.session, whole.held, Spec((100,), "float32"), whole.offset + 4 * start)
    y = floats(100, seed=1)
    source, scalars = SAXPY[name_of(opened)], {"a": 2.0, "n": 100}
    program = kernel_program(source, [y, y], [(100,)], groups_for(100), scalars=scalars)
    (result,) = opened.execute(program, [x, opened.up(y)])
    np.testing.assert_allclose(opened.down(result), 2 * base[start : start + 100] + y, rtol=1e-5, atol=1e-6)
    name = name_of(opened)
    counts = np.arange(200, dtype=np.int32)
    held = opened.up(counts)
    part = DeviceArray(opened.session, held.held, Spec((100,), "int32"), held.offset + 4 * start)
    update = kernel_program(
        INCREMENT[name],
        [counts[:100]],
        [(100,)],
        groups_for(100),
        scalars={"n": 100} if name == "opencl" else {},
        updates=["x"],
    )
    (result,) = opened.execute(update, [part])
    np.testing.assert_array_equal(opened.down(result), counts[start : start + 100] + 1)
    np.testing.assert_array_equal(opened.down(held), counts)


def test_a_slice_of_an_input_of_the_program(opened: Running) -> None:
    x, y = floats(203), floats(100, seed=1)
    (node,) = nodes_of(SAXPY[name_of(opened)], [(100,)], groups_for(100), scalars={"a": 2.0, "n": 100})
    recorder = Recorder()
    left, right = recorder.input(Spec((203,), "float32")), recorder.input(Spec((100,), "float32"))
    part = recorder.add(Slice((3,), (103,), (1,)), left)
    (result,) = run(opened, recorder.program([recorder.add(node, part, right)]), x, y)
    np.testing.assert_allclose(result, 2 * x[3:103] + y, rtol=1e-5, atol=1e-6)


def test_empty_arrays(opened: Running) -> None:
    name = name_of(opened)
    scalars = {"n": 0} if name == "opencl" else {}
    x = floats(0)
    halves, signs = run(opened, kernel_program(TWO[name], [x], [(0,), (0,)], (1, 1, 1), scalars=scalars), x)
    assert halves.shape == signs.shape == (0,)
    halves, signs = run(opened, kernel_program(TWO[name], [x], [(3,), (5,)], (1, 1, 1), scalars=scalars), x)
    assert not halves.any()
    assert not signs.any()


def test_a_grid_of_no_groups_runs_nothing(opened: Running) -> None:
    name = name_of(opened)
    scalars = {"n": 5} if name == "opencl" else {}
    halves, signs = run(
        opened, kernel_program(TWO[name], [floats(5)], [(5,), (5,)], (0, 1, 1), scalars=scalars), floats(5)
    )
    assert not halves.any()
    assert not signs.any()


PLACES = {
    "webgpu": """
@group(0) @binding(0) var<storage, read_write> groups: array<u32>;
@group(0) @binding(1) var<storage, read_write> counts: array<u32>;
@compute @workgroup_size(2, 1, 1)
fn places(
    @builtin(global_invocation_id) id: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) all: vec3u, @builtin(local_invocation_index) inside: u32,
) {
    let flat = (id.z * all.y + id.y) * all.x * 2u + id.x;
    groups[flat] = (group.z * all.y + group.y) * all.x + group.x;
    counts[flat] += 1u + inside;
}
""",
    "opencl": """
__kernel __attribute__((reqd_work_group_size(2, 1, 1)))
void places(__global uint* groups, __global uint* counts) {
    const uint x = get_num_groups(0), y = get_num_groups(1);
    const uint flat = (get_global_id(2) * y + get_global_id(1)) * x * 2 + get_global_id(0);
    groups[flat] = (get_group_id(2) * y + get_group_id(1)) * x + get_group_id(0);
    counts[flat] += 1 + get_local_id(0);
}
""",
}


@pytest.mark.parametrize("groups", [(3, 4, 5), (65536, 1, 1), (70001, 2, 2), (1, 66000, 3)])
def test_grids_of_three_dimensions_and_of_more_groups_than_one_has(
    opened: Running, groups: tuple[int, int, int]
) -> None:
    count = 2 * groups[0] * groups[1] * groups[2]
    numbers, counts = run(opened, kernel_program(PLACES[name_of(opened)], [], [(count,), (count,)], groups))
    np.testing.assert_array_equal(numbers, np.arange(count) // 2)
    np.testing.assert_array_equal(counts, 1 + np.arange(count) % 2)


def test_vectors_and_fixed_lengths(opened: Running) -> None:
    source = {
        "webgpu": """
@group(0) @binding(0) var<storage, read> x: array<vec4f>;
@group(0) @binding(1) var<storage, read> weights: array<f32, 4>;
@group(0) @binding(2) var<storage, read_write> out: array<vec2<f32>>;
@compute @workgroup_size(4)
fn pairs(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x >= arrayLength(&x)) { return; }
    let v = x[id.x];
    out[id.x] = vec2f(v.x * weights[0] + v.y * weights[1], v[2] * weights[2] + v.w * weights[3]);
}
""",
        "opencl": """
__kernel void pairs(__global const float4* x, __constant float* weights, __global float2* out, uint n) {
    uint i = get_global_id(0);
    if (i >= n) return;
    float4 v = x[i];
    out[i] = (float2)(v.x * weights[0] + v.y * weights[1], v.s2 * weights[2] + v.w * weights[3]);
}
""",
    }[name_of(opened)]
    x, weights = floats(9, 4), floats(4, seed=1)
    scalars = {"n": 9} if name_of(opened) == "opencl" else {}
    program = kernel_program(source, [x, weights], [(9, 2)], (3, 1, 1), scalars=scalars, group=(4, 1, 1))
    (result,) = run(opened, program, x, weights)
    np.testing.assert_allclose(result, (x * weights).reshape(9, 2, 2).sum(axis=2), rtol=1e-5, atol=1e-6)
    if name_of(opened) == "webgpu":  # what OpenCL C declares is compared with lengths where a call is made
        with pytest.raises(InvalidKernel, match="not a whole number"):
            opened.engine.compile(kernel_program(source, [floats(9), weights], [(9, 2)], (3, 1, 1)), opened.device)


@pytest.mark.parametrize("dtype", ["int64", "uint64", "float64"])
def test_wide_types_and_their_numbers(opened: Running, dtype: str) -> None:
    wgsl, c = {"int64": ("i64", "long"), "uint64": ("u64", "ulong"), "float64": ("f64", "double")}[dtype]
    source = {
        "webgpu": f"""
struct Numbers {{ k: {wgsl}, small: u32, other: {wgsl} }}
@group(0) @binding(0) var<storage, read> x: array<{wgsl}>;
@group(0) @binding(1) var<storage, read_write> out: array<{wgsl}>;
@group(0) @binding(2) var<uniform> p: Numbers;
@compute @workgroup_size(4)
fn wide(@builtin(global_invocation_id) id: vec3<u32>) {{
    if (id.x < p.small) {{ out[id.x] = x[id.x] * p.k + p.other; }}
}}
""",
        "opencl": f"""
__kernel void wide(__global const {c}* x, {c} k, uint small, {c} other, __global {c}* out) {{
    if (get_global_id(0) < small) out[get_global_id(0)] = x[get_global_id(0)] * k + other;
}}
""",
    }[name_of(opened)]
    x = np.arange(1, 8).astype(dtype)
    k, other = (3_000_000_007, 12_345_678_901_234) if dtype != "float64" else (1.1, -2.7)
    scalars = {"k": k, "small": 7, "other": other}
    program = kernel_program(source, [x], [(7,)], (2, 1, 1), scalars=scalars, group=(4, 1, 1))
    (result,) = run(opened, program, x)
    np.testing.assert_allclose(result, x * np.array(k, dtype) + np.array(other, dtype), rtol=1e-15)


def test_a_number_of_sixteen_bits_in_wgsl(opened: Running) -> None:
    if name_of(opened) != "webgpu":
        pytest.skip("PoCL on this processor has no half")
    source = """enable f16;
@group(0) @binding(0) var<storage, read> x: array<f16>;
@group(0) @binding(1) var<storage, read_write> out: array<f16>;
@group(0) @binding(2) var<uniform> k: f16;
@compute @workgroup_size(4)
fn half(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < arrayLength(&x)) { out[id.x] = x[id.x] * k; }
}
"""
    x = np.arange(7).astype(np.float16)
    program = kernel_program(source, [x], [(7,)], (2, 1, 1), scalars={"k": 1.5})
    (result,) = run(opened, program, x)
    np.testing.assert_array_equal(result, x * np.float16(1.5))


# -- bounds


INDICES = [100, 101, 127, 128, 1 << 20, (1 << 31) - 1, -1, -2, -100, -(1 << 30)]


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("kind", ["read", "write"])
def test_an_index_outside_reaches_nothing_else_in_wgsl(opened: Running, kind: str, index: int) -> None:
    """The language sees to that itself."""
    if name_of(opened) != "webgpu":
        pytest.skip("OpenCL C promises nothing, so this may end the process")
    before, x = floats(100, seed=8), floats(100)
    sentinels = [opened.up(before), opened.up(x), opened.up(before)]
    at = np.arange(100, dtype=np.int32)
    at[37] = index
    program = kernel_program((GATHER if kind == "read" else SCATTER)["webgpu"], [at, x], [(100,)], groups_for(100))
    (result,) = opened.execute(program, [opened.up(at), sentinels[1]])
    found = opened.down(result)
    if kind == "read":
        assert found[37] in {*x.tolist(), 0.0}
    else:
        # It may have been written to any one element of the array itself, or to none.
        assert np.count_nonzero(np.delete(found, 37) != np.delete(x, 37)) <= 1
        assert found[37] in {x[37], 0.0}
    for sentinel, expected in zip(sentinels, (before, x, before), strict=True):
        np.testing.assert_array_equal(opened.down(sentinel), expected)


def test_every_invocation_far_outside_in_wgsl(opened: Running) -> None:
    if name_of(opened) != "webgpu":
        pytest.skip("OpenCL C promises nothing, so this may end the process")
    sentinels = [opened.up(floats(64, seed=seed)) for seed in range(8)]
    rng = np.random.default_rng(0)
    for scale in (1 << 8, 1 << 16, 1 << 30):
        at = rng.integers(-scale, scale, 4096).astype(np.int32)
        x = floats(4096)
        program = kernel_program(SCATTER["webgpu"], [at, x], [(64,)], groups_for(4096))
        run(opened, program, at, x)
    for seed, sentinel in enumerate(sentinels):
        np.testing.assert_array_equal(opened.down(sentinel), floats(64, seed=seed))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 98])
def test_nothing_behind_an_array_is_seen_in_wgsl(opened: Running, count: int) -> None:
    """Bindings end where arrays do, so that not even what fills their memory up is seen."""
    if name_of(opened) != "webgpu":
        pytest.skip("OpenCL C promises nothing, so this may end the process")
    whole = opened.up(np.where(np.arange(200) < count, 1, 7).astype(np.int32))
    x = DeviceArray(opened.session, whole.held, Spec((count,), "int32"), whole.offset)
    source = """
@group(0) @binding(0) var<storage, read> x: array<i32>;
@group(0) @binding(1) var<storage, read_write> lengths: array<u32>;
@group(0) @binding(2) var<storage, read_write> behind: array<i32>;
@compute @workgroup_size(64)
fn look(@builtin(global_invocation_id) id: vec3<u32>) {
    lengths[0] = arrayLength(&x);
    if (id.x < arrayLength(&behind)) { behind[id.x] = x[arrayLength(&x) + id.x]; }
}
"""
    program = kernel_program(source, [np.ones(count, np.int32)], [(1,), (16,)], (1, 1, 1))
    lengths, behind = opened.execute(program, [x])
    assert opened.down(lengths)[0] == count
    assert set(opened.down(behind).tolist()) <= {0, 1}


def test_kernels_may_use_pointers_in_opencl(opened: Running) -> None:
    if name_of(opened) != "opencl":
        pytest.skip("of OpenCL C")
    source = """
float first_of(__global const float* p) { return *p; }
__kernel void f(__global const float* x, uint n, __global float* out) {
    out[get_global_id(0)] = first_of(x + n - 1 - get_global_id(0));
}
"""
    x = floats(8)
    program = kernel_program(source, [x], [(8,)], (1, 1, 1), group=(8, 1, 1), scalars={"n": 8})
    (result,) = run(opened, program, x)
    np.testing.assert_array_equal(result, x[::-1])


# -- what is refused


def compiled(opened: Running, source: str, **options: Any) -> None:
    x = floats(4)
    opened.engine.compile(kernel_program(source, [x], [(4,)], (1, 1, 1), **options), opened.device)


WRONG = {
    "webgpu": [
        ("    let v = ;", 5, 13),
        ("    let v: i32 = x[0];", 5, 9),
        ("    nothing(1);", 5, 5),
        ("    x[0] = 1.0;", 5, 5),
        ("    out[0] = 1u;", 5, None),
    ],
    "opencl": [
        ("    int v = ;", 5, 13),
        ("    struct {int a;} s; out[0] = s;", 5, 31),
        ("    out[0] = nothing(1);", 5, None),
        ("    x[0] = 1.0f;", 5, 10),
        ("    out[1.5f] = 1;", 5, 8),
    ],
}


def with_line(name: str, line: str) -> str:
    if name == "webgpu":
        return f"""@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@compute @workgroup_size(1)
fn f() {{
{line}
    out[0] = x[0];
}}
"""
    return f"""
// A comment before.
__kernel void f(__global const float* x, __global float* out)
{{
{line}
    out[0] = x[0];
}}
"""


@pytest.mark.parametrize("number", range(5))
def test_complaints_of_compilers_point_into_the_users_text(opened: Running, number: int) -> None:
    line, row, column = WRONG[name_of(opened)][number]
    with pytest.raises(InvalidKernel) as caught:
        compiled(opened, with_line(name_of(opened), line), group=(1, 1, 1))
    assert caught.value.kernel == "mine"
    assert caught.value.line == row
    assert column is None or caught.value.column == column
    assert "anygpu_" not in str(caught.value)


def test_too_large_groups_and_too_much_memory_name_the_limit(opened: Running) -> None:
    name = name_of(opened)
    target = opened.session.target
    if name == "webgpu":
        large = with_line(name, "").replace("@workgroup_size(1)", "@workgroup_size(256, 64)")
        memory = with_line(name, "    t[0] = 1.0;") + f"var<workgroup> t: array<f32, {target.group_memory}>;\n"
    else:
        large = with_line(name, "").replace("__kernel", "__kernel __attribute__((reqd_work_group_size(256, 64, 1)))")
        use = "t[x[0] > 0] = 1; barrier(CLK_LOCAL_MEM_FENCE); out[1] = t[x[1] > 0];"
        memory = with_line(name, f"    __local float t[{target.group_memory}]; {use}")
    for source, limit in ((large, target.group_limit), (memory, target.group_memory)):
        with pytest.raises(InvalidKernel, match=f"{limit:,}"):
            compiled(opened, source, group=(1, 1, 1))
        program = kernel_program(source, [floats(4)], [(4,)], (1, 1, 1), group=(1, 1, 1))
        (lack,) = opened.engine.supports(program, opened.device)
        assert f"{limit:,}" in lack.reason


def test_a_record_that_disagrees_with_its_text_is_refused(opened: Running) -> None:
    name = name_of(opened)
    (node,) = nodes_of(SAXPY[name], [(4,)], (1, 1, 1), scalars={"a": 1.0, "n": 4})
    others = [
        msgspec.structs.replace(node, parameters=(node.parameters[1], node.parameters[0], node.parameters[2])),
        msgspec.structs.replace(node, scalars=node.scalars[::-1]),
        msgspec.structs.replace(node, entry="other"),
    ]
    if name == "webgpu":
        others.append(msgspec.structs.replace(node, group=(32, 1, 1)))
    for other in others:
        recorder = Recorder()
        given = [recorder.input(Spec((4,), "float32")) for _ in range(2)]
        program = recorder.program([recorder.add(other, *given)])
        with pytest.raises(InvalidKernel):
            opened.engine.compile(program, opened.device)


# -- kernels in another language


def reference() -> Program:
    recorder = Recorder()
    x, y = recorder.input(Spec((8,), "float32")), recorder.input(Spec((8,), "float32"))
    return recorder.program([recorder.add(Binary("add"), recorder.add(Binary("add"), x, x), y)])


def test_a_kernel_in_another_language_is_its_reference(opened: Running) -> None:
    other = "opencl" if name_of(opened) == "webgpu" else "webgpu"
    x, y = floats(8), floats(8, seed=1)
    program = kernel_program(
        SAXPY[other], [x, y], [(8,)], (1, 1, 1), scalars={"a": 2.0, "n": 8}, reference=to_bytes(reference())
    )
    (result,) = run(opened, from_bytes(to_bytes(program)), x, y)
    np.testing.assert_allclose(result, 2 * x + y, rtol=1e-5, atol=1e-6)


def test_without_a_reference_the_reason_is_told(opened: Running) -> None:
    other = "opencl" if name_of(opened) == "webgpu" else "webgpu"
    program = kernel_program(SAXPY[other], [floats(8)] * 2, [(8,)], (1, 1, 1), scalars={"a": 2.0, "n": 8})
    (lack,) = opened.engine.supports(program, opened.device)
    assert isinstance(program.nodes[lack.node].op, Custom)
    assert "has no reference" in lack.reason


def test_a_second_run_makes_nothing_new(opened: Running) -> None:
    name = name_of(opened)
    x = opened.up(floats(1000))
    scalars = {"n": 1000} if name == "opencl" else {}
    program = kernel_program(TWO[name], [floats(1000)], [(1000,), (1000,)], groups_for(1000), scalars=scalars)
    for _ in range(3):
        opened.execute(program, [x])
    opened.session.synchronize()
    before = opened.counters
    for _ in range(10):
        opened.execute(program, [x])
    opened.session.synchronize()
    after = opened.counters
    assert (after.allocations, after.compilations) == (before.allocations, before.compilations)
