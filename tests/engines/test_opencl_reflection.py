"""What drivers say of users' kernels in OpenCL C, and what compilers say of those that are wrong."""

from __future__ import annotations

import pytest

from anygpu.engines.codegen.custom.reflected import Length, Reflected, ScalarParameter
from anygpu.engines.opencl.builder import complaint_of_clang
from anygpu.errors import InvalidKernel
from anygpu.program.ops.custom import Parameter
from tests.engines.custom_programs import reflected

OPENCL = """\
#define SIDE 8
#define REAL float
float other(float);
float other(float x) { return x * 2.0f; }
__attribute__((reqd_work_group_size(SIDE, SIDE / 2, 1)))
__kernel void main_one(__global const REAL* restrict x, const unsigned int width, __constant float2 *pairs,
                       global int *counts, volatile __global REAL out[], double gain)
{
    __local REAL tile[SIDE][SIDE + 1], more;
    const uint i = get_global_id(0);
    tile[0][i % SIDE] = other(x[i]);
    more = gain;
    barrier(CLK_LOCAL_MEM_FENCE);
    out[i] = tile[1][i % SIDE] * pairs[0].x + more + width;
    atomic_inc(&counts[0]);
}
"""


def test_a_text_in_opencl_c() -> None:
    found = reflected(OPENCL, updates=["counts"])
    assert found == Reflected(
        language="opencl",
        entry="main_one",
        source=OPENCL,
        parameters=(
            Parameter("x", "float32", "input"),
            Parameter("pairs", "float32", "input"),
            Parameter("counts", "int32", "update"),
            Parameter("out", "float32", "output"),
        ),
        scalars=(ScalarParameter("width", "uint32"), ScalarParameter("gain", "float64")),
        group=(8, 4, 1),
        lengths={"pairs": Length(multiple=2)},
        group_memory=found.group_memory,
    )
    # By the compiler's count: it may leave out what it needs not, and add what it aligns.
    assert 4 * 8 * 9 <= found.group_memory < 2 * 4 * 8 * 9
    assert reflected(OPENCL, constants={"SIDE": 4}).group == (4, 2, 1)


def test_names_of_built_in_functions_are_names_of_parameters() -> None:
    found = reflected("__kernel void f(__global float* step, int length, float mix) { step[length] = mix; }")
    assert [each.name for each in found.parameters] == ["step"]
    assert [each.name for each in found.scalars] == ["length", "mix"]


def test_a_group_may_be_left_open() -> None:
    assert reflected("__kernel void f(__global float* x) { x[0] = 1; }").group is None


def test_one_of_several_kernels() -> None:
    source = "__kernel void one(__global float* a) {}\n__kernel void two(__global int* b, uint n) {}\n"
    assert [each.name for each in reflected(source, entry="two").parameters] == ["b"]
    with pytest.raises(InvalidKernel, match=r"several __kernel functions \(one, two\)"):
        reflected(source)
    with pytest.raises(InvalidKernel, match="available: one, two"):
        reflected(source, entry="three")


@pytest.mark.parametrize(
    ("parameter", "why"),
    [
        ("__local float* t", "Declare it inside of the kernel"),
        ("__global float3* t", "vload3"),
        ("__global float8* t", "vload8"),
        ("__global struct s* t", "arrays of numbers"),
        ("__global void* t", "arrays of numbers"),
        ("__global word* t", "arrays of numbers"),
        ("read_only image2d_t t", "Numbers are int"),
        ("uchar t", "Numbers are int"),
        ("float4 t", "Numbers are int"),
        ("struct s t", "Numbers are int"),
    ],
)
def test_what_no_call_can_give(parameter: str, why: str) -> None:
    head = "struct s { int x; }; typedef int word;\n"
    source = f"{head}__kernel void f(__global float* out, {parameter}) {{ out[0] = 1; }}\n"
    with pytest.raises(InvalidKernel, match=why) as caught:
        reflected(source, title="mine")
    assert "t is" in str(caught.value)


@pytest.mark.parametrize("parameter", ["float* t", "__global float** t", "bool t", "int (*t)(int)", "nothing t"])
def test_what_the_compiler_refuses_has_its_place(parameter: str) -> None:
    with pytest.raises(InvalidKernel) as caught:
        reflected(f"\n__kernel void f(__global float* out, {parameter}) {{ out[0] = 1; }}\n", title="mine")
    assert (caught.value.kernel, caught.value.line) == ("mine", 2)


def test_what_writes_nothing_and_names_twice() -> None:
    with pytest.raises(InvalidKernel, match="writes to no buffer"):
        reflected("__kernel void f(__global const float* x) {}")
    with pytest.raises(InvalidKernel, match="has no buffer of that name"):
        reflected("__kernel void f(__global float* x) {}", updates=["y"])
    with pytest.raises(InvalidKernel, match="only reads it"):
        reflected("__kernel void f(__global float* x, __global const float* y) {}", updates=["y"])


def told(words: str) -> tuple[int | None, int | None, str]:
    error = complaint_of_clang("", words)
    return error.line, error.column, str(error).partition(": ")[2]


def test_words_told() -> None:
    through_pocl = (
        "clBuildProgram failed: BUILD_PROGRAM_FAILURE\n\nBuild on <pyopencl.Device 'x'>:\n\n"
        "error: /root/.cache/tempfile_f.cl:2:11: expected expression\n"
        "error: /root/.cache/tempfile_f.cl:3:9: unknown type (at /root/.cache/tempfile_f.cl:2:3)\nDevice failed"
    )
    assert told(through_pocl) == (2, 11, "2:11: expected expression\n3:9: unknown type (at the kernel:2:3)")
    assert told("<kernel>:4:5: error: no such function") == (4, 5, "no such function")
    assert told("a failure") == (None, None, "a failure")
