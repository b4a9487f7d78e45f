"""A kernel in OpenCL C with much of the language in it: macros, tables, structs, vectors, atomic functions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import anygpu as ag


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ANYGPU_CACHE_DIR", str(tmp_path))


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


def test_whatever_the_compiler_takes_works() -> None:
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
