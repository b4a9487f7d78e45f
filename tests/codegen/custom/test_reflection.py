"""What a kernel's text says of itself, and the places of what is not understood."""

from __future__ import annotations

import random
from typing import Any

import pytest

from anygpu.engines.codegen.custom.lowering import Length, Reflected, ScalarParameter, language_of, prepared_of, reflect
from anygpu.engines.codegen.target import Target
from anygpu.errors import InvalidKernel
from anygpu.program.ops.custom import Custom, Parameter, Scalar

WGSL = """\
override side: u32 = 8;
override scale = 0.5;
alias Pixel = vec4<f32>;
struct Numbers { width: u32, /* a comment */ gain: f32, }
@group(0) @binding(4) var<uniform> numbers: Numbers;
@group(0) @binding(2) var<storage, read> image: array<Pixel>;
@group(0) @binding(9) var<storage, read_write> counts: array<atomic<u32>, 16>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
@group(0) @binding(0) var<uniform> shift: i32;
var<workgroup> tile: array<array<vec3<f32>, side>, 2>;
const area = side * side;

fn other(x: f32) -> f32 { return x * scale; }

@compute @workgroup_size(side, area / side)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    tile[0][0] = image[id.x].xyz;
    out[id.x] = other(tile[0][0].x) * numbers.gain + f32(shift);
    atomicAdd(&counts[id.x % 16u], 1u);
}
"""

OPENCL = """\
#define SIDE 8
#define REAL float
typedef unsigned int word;
float other(float);
float other(float x) { return x * 2.0f; }
__attribute__((reqd_work_group_size(SIDE, SIDE / 2, 1)))
__kernel void main_one(__global const REAL* restrict x, const word width, __constant float2 *pairs,
                       global int *counts, volatile __global REAL out[], double gain)
{
    __local REAL tile[SIDE][SIDE + 1], more;
    const uint i = get_global_id(0);
    tile[0][i % SIDE] = other(x[i]);
    out[i] = tile[0][i % SIDE] * pairs[0].x + gain + width;
    atomic_inc(&counts[0]);
}
"""


def test_a_text_in_wgsl() -> None:
    found = reflect(WGSL, updates=["out"])
    assert found == Reflected(
        language="wgsl",
        entry="main",
        source=found.source,
        parameters=(
            Parameter("image", "float32", "input"),
            Parameter("out", "float32", "update"),
            Parameter("counts", "uint32", "output"),
        ),
        scalars=(
            ScalarParameter("shift", "int32"),
            ScalarParameter("width", "uint32"),
            ScalarParameter("gain", "float32"),
        ),
        order=("shift", "image", "out", "width", "gain", "counts"),
        group=(8, 8, 1),
        constants={"side": 8, "scale": 0.5},
        lengths={"image": Length(multiple=4), "counts": Length(exactly=16)},
        foldable=True,
        group_memory=2 * 8 * 16,
    )


def test_a_text_in_opencl_c() -> None:
    found = reflect(OPENCL, updates=["counts"])
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
        order=("x", "width", "pairs", "counts", "out", "gain"),
        group=(8, 4, 1),
        constants={"SIDE": 8},
        lengths={"pairs": Length(multiple=2)},
        foldable=True,
        group_memory=4 * 8 * 9 + 4,
    )


def test_constants_are_put_into_the_text_in_their_own_line() -> None:
    found = reflect(WGSL, constants={"side": 4, "scale": 2})
    assert found.group == (4, 4, 1)
    assert found.constants == {"side": 4, "scale": 2.0}
    assert found.source.splitlines()[1:2] == ["const    scale = f32(2.0);"]
    assert len(found.source.splitlines()) == len(WGSL.splitlines())
    assert reflect(found.source).group == (4, 4, 1)
    assert reflect(OPENCL, constants={"SIDE": 4}).group == (4, 2, 1)


def test_a_constant_without_a_value_needs_one() -> None:
    source = WGSL.replace("override side: u32 = 8;", "@id(3) override side: u32;")
    with pytest.raises(InvalidKernel, match="side has no value") as caught:
        reflect(source)
    assert (caught.value.line, caught.value.column) == (1, 17)
    assert reflect(source, constants={"side": 2}).group == (2, 2, 1)


@pytest.mark.parametrize(
    ("constants", "why"),
    [
        ({"nothing": 1}, "there is no override"),
        ({"side": -1}, "does not fit"),
        ({"side": 1.5}, "whole number"),
        ({"side": True}, "is a number"),
        ({"scale": float("inf")}, "no such constant"),
        ({"side": 0}, "not a number of elements|not a size of a group"),
    ],
)
def test_constants_that_are_refused(constants: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidKernel, match=why):
        reflect(WGSL, constants=constants)


def test_the_language_is_recognised_by_its_words() -> None:
    assert language_of(WGSL) == "wgsl"
    assert language_of(OPENCL) == "opencl"
    assert language_of("kernel void f(global int* a) {}") == "opencl"
    assert language_of("// @compute __kernel\nint main() {}") is None
    with pytest.raises(InvalidKernel, match="neither WGSL"):
        reflect("int main() {}", title="nothing")


def test_one_of_several_kernels_takes_what_it_uses() -> None:
    source = """\
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read_write> b: array<f32>;
@group(0) @binding(0) var<storage, read> c: array<i32>;
fn helped(i: u32) { b[i] = a[i]; }
@compute @workgroup_size(1) fn one() { helped(0u); }
@compute @workgroup_size(2) fn two() { let a = c[0]; b[0] = f32(a); }
"""
    assert [each.name for each in reflect(source, entry="one").parameters] == ["a", "b"]
    assert [each.name for each in reflect(source, entry="two").parameters] == ["c", "b"]
    with pytest.raises(InvalidKernel, match=r"several @compute functions \(one, two\)") as caught:
        reflect(source)
    assert (caught.value.line, caught.value.column) == (6, 32)
    with pytest.raises(InvalidKernel, match="available: one, two"):
        reflect(source, entry="three")


def wgsl(declarations: str, body: str = "out[0] = 1.0;", group: str = "@workgroup_size(1)") -> str:
    return f"""\
@group(0) @binding(0) var<storage, read_write> out: array<f32>;
{declarations}
@compute {group}
fn main() {{ {body} }}
"""


@pytest.mark.parametrize(
    ("declarations", "line", "column", "why"),
    [
        ("@group(1) @binding(1) var<storage, read> x: array<f32>;", 2, 1, r"put all of them into @group\(0\)"),
        ("@group(0) @binding(0) var<storage, read> x: array<f32>;", 2, 11, "both at binding 0"),
        ("@group(0) @binding(1) var x: texture_2d<f32>;", 2, 27, "texture or a sampler"),
        ("@group(0) @binding(1) var<storage, read> x: array<vec3<f32>>;", 2, 51, "16 bytes apart"),
        ("struct S { a: f32 }\n@group(0) @binding(1) var<storage> x: array<S>;", 3, 45, "holds a struct"),
        ("@group(0) @binding(1) var<storage> x: array<array<f32, 2>>;", 2, 45, "an array of arrays"),
        ("@group(0) @binding(1) var<uniform> x: vec4<f32>;", 2, 39, "one by one"),
        ("struct S { a: mat2x2<f32> }\n@group(0) @binding(1) var<uniform> x: S;", 2, 15, "one by one"),
        ("@group(0) var<storage, read> x: array<f32>;", 2, 30, "has no @group"),
        ("@group(0) @binding(1) var<storage, write> x: array<f32>;", 2, 43, "no access"),
        ("@group(0) @binding(n) var<storage, read> x: array<f32>;", 2, 20, "n is not a constant"),
        ("fn anygpu_at(i: u32) {}", 2, 4, "are reserved"),
        ("hello", 2, 1, "does not start a declaration"),
        ("fn f( {", 2, 7, "is never closed"),
        ("struct S { a f32 }", 2, 14, "':' is missing"),
        ("@group(0) @binding(1) var<storage, read> x: array<f32, 0>;", 2, 56, "not a number of elements"),
    ],
)
def test_what_wgsl_cannot_be_has_its_place(declarations: str, line: int, column: int, why: str) -> None:
    with pytest.raises(InvalidKernel, match=why) as caught:
        reflect(wgsl(declarations), title="mine")
    assert (caught.value.kernel, caught.value.line, caught.value.column) == ("mine", line, column)


@pytest.mark.parametrize(
    "group", ["", "@workgroup_size()", "@workgroup_size(0)", "@workgroup_size(n)", "@workgroup_size(1.5)"]
)
def test_groups_that_are_none(group: str) -> None:
    with pytest.raises(InvalidKernel) as caught:
        reflect(wgsl("", group=group))
    assert caught.value.line in (3, 4)


def opencl(parameters: str, before: str = "", body: str = "out[0] = 1;") -> str:
    return f"{before}\n__kernel void f(__global float* out, {parameters})\n{{ {body} }}\n"


@pytest.mark.parametrize(
    ("parameters", "column", "why"),
    [
        ("__local float* t", 38, "Declare it inside of the kernel"),
        ("float* t", 38, "Write __global before it"),
        ("__global float** t", 55, "pointer to pointers"),
        ("__global float3* t", 38, "vload3"),
        ("__global float8* t", 38, "vload8"),
        ("__global struct s* t", 38, "arrays of numbers"),
        ("__global void* t", 38, "arrays of numbers"),
        ("image2d_t t", 38, "Numbers are int"),
        ("uchar t", 38, "Numbers are int"),
        ("bool t", 38, "Numbers are int"),
        ("float4 t", 38, "Numbers are int"),
        ("float", 38, "has no name"),
        ("int (*t)(int)", 38, "not understood"),
        ("", 36, "nothing before this comma|not understood|has no name"),
    ],
)
def test_what_opencl_c_cannot_be_has_its_place(parameters: str, column: int, why: str) -> None:
    source = opencl(parameters) if parameters else opencl("").replace(", )", ",, int n)")
    with pytest.raises(InvalidKernel, match=why) as caught:
        reflect(source, title="mine")
    assert caught.value.line == 2
    assert not parameters or caught.value.column == column


def test_what_writes_nothing_and_names_twice() -> None:
    with pytest.raises(InvalidKernel, match="writes to no buffer"):
        reflect("__kernel void f(__global const float* x) {}")
    with pytest.raises(InvalidKernel, match="called x"):
        reflect("__kernel void f(__global float* x, uint x) {}")
    with pytest.raises(InvalidKernel, match="has no buffer of that name"):
        reflect("__kernel void f(__global float* x) {}", updates=["y"])
    with pytest.raises(InvalidKernel, match="only reads it"):
        reflect("__kernel void f(__global float* x, __global const float* y) {}", updates=["y"])


def test_texts_that_are_too_long_or_have_zeros() -> None:
    with pytest.raises(InvalidKernel, match="characters"):
        reflect(WGSL + " " * (1 << 20))
    with pytest.raises(InvalidKernel, match="zero character"):
        reflect(WGSL + "\0")
    with pytest.raises(InvalidKernel):
        reflect("@compute " + "(" * 100_000, language="wgsl")


def test_mutated_texts_are_read_or_refused() -> None:
    """Nothing but `InvalidKernel` ever comes out, with a place inside of the text where there is one."""
    rng = random.Random(7)
    pieces = [
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "<",
        ">",
        ";",
        ",",
        "&",
        "*",
        "/*",
        "//",
        "\\",
        "\n",
        "#if ",
        "#define ",
        "@",
        '"',
    ]
    pieces += [
        "0x",
        "..",
        "->",
        "struct ",
        "var<",
        "array<",
        "fn ",
        "typedef ",
        "__local ",
        "1<<70",
        "é",
        "##",
        "enum {",
        "for (",
    ]
    outcomes = {"read": 0, "refused": 0}
    for _ in range(800):
        source = rng.choice((WGSL, OPENCL))
        for _ in range(rng.choice((1, 1, 2, 4))):
            at = rng.randrange(len(source))
            cut = rng.choice((0, 0, 1, 5, 40))
            put = rng.choice((rng.choice(pieces), "", source[at : at + rng.randrange(30)]))
            source = source[:at] + put + source[at + cut :]
        problem = problem_of(source)
        outcomes["read" if problem is None else "refused"] += 1
        assert problem is None or problem.line is None or 1 <= problem.line <= source.count("\n") + 1
    assert min(outcomes.values()) > 50


def problem_of(source: str) -> InvalidKernel | None:
    try:
        found = reflect(source)
        prepared_of(node_of(found), Target(dialect=found.language))
    except InvalidKernel as problem:
        return problem
    return None


def node_of(found: Reflected) -> Custom:
    return Custom(
        language=found.language,
        title="mine",
        source=found.source,
        entry=found.entry,
        parameters=found.parameters,
        scalars=tuple(Scalar(each.name, each.dtype, 0) for each in found.scalars),
        group=found.group or (1, 1, 1),
        groups=(1, 1, 1),
        shapes=tuple((1,) for each in found.parameters if each.role != "input"),
    )


@pytest.mark.parametrize(
    ("lines", "nbytes"),
    [
        ("__local float t[64];", 256),
        ("volatile __local float t[64], u;", 260),
        ("const __local float4 t[2][4]; __local struct { char c; double d; } s[3];", 128 + 48),
        ("__local float t[64]; __local float *p = t; __local float q[(uchar)300];", 256),
    ],
)
def test_the_memory_of_a_group_is_counted_however_it_is_declared(lines: str, nbytes: int) -> None:
    source = f"__kernel void f(__global float* a) {{ {lines} a[0] = 1; }}"
    assert reflect(source, title="f", language="opencl").group_memory == nbytes
