"""Checked OpenCL C kernels on a device: what they may do works, and memory that they do not fill is 0."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import anygpu as ag

FILLED = """
__kernel __attribute__((reqd_work_group_size(16, 1, 1))) void fill(__global const int *x, __global int *y) {
    __local int shared[1024];
    int own[64];
    for (int j = 0; j < 64; j++) { own[j] = x[0] + j; shared[get_local_id(0) * 64 + j] = x[0]; }
    barrier(CLK_LOCAL_MEM_FENCE);
    y[get_global_id(0)] = own[x[1]] + shared[1023 - get_local_id(0)];
}
"""
UNFILLED = """
struct Pair { int first; float4 second; };
__kernel __attribute__((reqd_work_group_size(16, 1, 1))) void show(__global const int *x, __global int *y) {
    int own[64], one;
    struct Pair pair, pairs[3];
    float4 vectors[5];
    if (x[2] == 7) return;
    __local int shared[1024], alone;
    __local uchar bytes[3];
    int sum = own[x[1]] | one | shared[get_local_id(0) * 64 + x[1]] | alone | bytes[x[1] & 1];
    y[get_global_id(0)] = sum | pair.first | pairs[x[1] & 1].first | (int)vectors[x[1] & 3].y;
}
"""


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ANYGPU_CACHE_DIR", str(tmp_path))


def test_memory_that_a_kernel_does_not_fill_is_zero() -> None:
    fill, show = (ag.Kernel(text, results=lambda x: (64,)) for text in (FILLED, UNFILLED))
    x = np.array([0x2A2A2A2A, 5, 0, 0], np.int32)
    for _ in range(5):
        assert (np.asarray(ag.run(fill, x, on="opencl").value) != 0).all()
        assert not np.asarray(ag.run(show, x, on="opencl").value).any()


MANY = """
#define WIDTH 4
enum { TABLE = WIDTH * 2, MORE };
typedef struct { float low, high; } Range;
__constant float weights[TABLE] = {1, 2, 3, 4, 5, 6, 7, 8};
float weighted(float value, int at);
float weighted(float value, int at) { return fma(value, weights[at % TABLE], native_recip(1.0f) - 1); }
Range range_of(float4 v) {
    Range found = {min(min(v.x, v.y), min(v.z, v.w)), 0};
    found.high = fmax(v.s0, v.s3);
    return found;
}
__kernel void many(__global const float *a, __global float *y, __global int *counts) {
    size_t i = get_global_id(0);
    float4 v = vload4(i, a);
    float rows[2][WIDTH], sum = 0, parts[] = {0, 0, 0};
    #pragma unroll
    for (int j = 0; j < WIDTH; j++) rows[j & 1][j] = weighted(a[WIDTH * i + j], j);
    for (int j = 0; j < WIDTH; ++j) { sum += rows[j & 1][j]; }
    parts[1] = range_of(v).low * 0;
    vstore4((float4)(sum + parts[1]) + convert_float4(as_int4((int4)(0))), i, y);
    atomic_add(&counts[0], 1);
    atomic_max(&counts[1], (int)i);
}
"""


def test_what_is_allowed_works() -> None:
    def meant(a: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        sums = (a.reshape(-1, 4) * np.array([1, 2, 3, 4], np.float32)).sum(axis=1)
        added = np.zeros(2, np.int32)
        added[0] = len(sums)
        return np.repeat(sums, 4), np.maximum(counts + added, [0, len(sums) - 1]).astype(np.int32)

    kernel = ag.Kernel(MANY, meant, updates=["counts"], grid=lambda a, counts: (a[0] // 4,), tolerance=1e-5)
    a, counts = np.arange(64, dtype=np.float32), np.array([5, 2], np.int32)
    assert kernel.check(a, counts).compared
    found, counted = ag.run(kernel, a, counts, on="opencl").value
    np.testing.assert_allclose(found, meant(a, counts)[0])
    np.testing.assert_array_equal(counted, [21, 15])


def test_a_vector_of_another_type_does_not_widen_a_store() -> None:
    """Of vstore4 there is one for doubles, too, which a compiler would take with a pointer to floats."""
    text = """
__kernel void wide(__global const float *a, __global float *y) { vstore4((double4)(1), get_global_id(0), y); }
"""
    with pytest.raises(ag.errors.InvalidKernel):
        ag.run(ag.Kernel(text, grid=lambda a: (a[0] // 4,)), np.zeros(64, np.float32), on="opencl", fallback="raise")
