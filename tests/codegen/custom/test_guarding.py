"""Texts made safe: what is put into them, what is refused, and that lines stay where they were."""

from __future__ import annotations

import pytest

from anygpu.engines.codegen.custom.opencl_guarding import prepared_opencl
from anygpu.engines.codegen.custom.reflected import Word, number_words, of_clang, of_naga
from anygpu.engines.codegen.custom.tokens import Unreadable
from anygpu.engines.codegen.custom.wgsl_kernels import prepared_wgsl
from anygpu.program.ops.custom import Scalar

WGSL = """\
struct P { n: u32, a: f32 }
@group(0) @binding(3) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<uniform> p: P;
@group(0) @binding(7)
var<storage, read_write> out: array<f32>;
@group(0) @binding(8) var<uniform> k: f32;
fn twice(x: f32) -> f32 { return 2.0 * x; }
@compute @workgroup_size(4, 2)
fn main(@builtin(global_invocation_id) id: vec3<u32>,
        @builtin(num_workgroups) all: vec3<u32>) {
    for (var i = id.x; i < p.n; i += 4u) { let k = x[u32(x[i])]; out[i] = twice(k); }
    if (id.x < arrayLength(&x)) { out[id.x] += p.a * k; }
}
"""


def test_wgsl_with_checks() -> None:
    found = prepared_wgsl(WGSL, "main", checked=True, folded=False)
    lines = found.source.splitlines()
    assert lines[1].startswith("@group(0) @binding(0) var<storage, read> x")
    assert lines[3] == "@group(0) @binding(1)"
    assert not lines[2].strip()
    inner = "x[anygpu_at_0(u32(u32(x[anygpu_at_0(u32(i))])))]"
    assert lines[10].strip() == (
        f"for (var i = id.x; i < anygpu_numbers.p.n; i += 4u) {{ let k = {inner}; "
        "out[anygpu_at_1(u32(i))] = twice(k); }"
    )
    assert lines[11].strip() == (
        "if (id.x < anygpu_numbers.length_0) { out[anygpu_at_1(u32(id.x))] += anygpu_numbers.p.a * anygpu_numbers.k; }"
    )
    assert found.words == (Word("x", None), Word("out", None))
    scalars = {"n": Scalar("n", "uint32", 7), "a": Scalar("a", "float32", 1.0), "k": Scalar("k", "float32", 2.0)}
    words = number_words(found, {"x": 10, "out": 20}, scalars, 5, (1, 1, 1), 0)
    assert words == (7, 0x3F800000, 0, 0, 0x40000000, 0, 0, 0, 10, 20, 5)


def test_wgsl_without_checks_and_with_a_folded_grid() -> None:
    plain = prepared_wgsl(WGSL, "main", checked=False, folded=False)
    assert "anygpu_at" not in plain.source
    assert plain.words == ()
    assert [each.name for each in plain.numbers] == ["n", "a", "k", "x"]
    folded = prepared_wgsl(WGSL, "main", checked=True, folded=True)
    assert len(folded.source.splitlines()[:12]) == 12
    assert (
        folded.source.splitlines()[10:12]
        == prepared_wgsl(WGSL, "main", checked=True, folded=False).source.splitlines()[10:12]
    )
    assert "let all = vec3<u32>(anygpu_numbers.groups_x" in folded.source


def test_other_kernels_of_a_text_are_taken_out() -> None:
    source = WGSL + (
        "@group(0) @binding(0) var<storage, read> z: array<f32>;\n"
        "@compute @workgroup_size(1)\nfn b() { let y = z[0] + x[0]; }\n"
    )
    found = prepared_wgsl(source, "main", checked=True, folded=False)
    assert "fn b" not in found.source
    assert "@group(0) @binding(0) var<storage, read> z" in found.source


@pytest.mark.parametrize(
    "line",
    [
        "let q = &x; out[0] = (*q)[3];",
        "let n = arrayLength(&(x));",
        "helper(&x);",
        "let t = x;",
        "out[0] = (x)[3];",
    ],
)
def test_wgsl_that_cannot_be_checked(line: str) -> None:
    source = WGSL.replace("    for (var", f"    {line}\n    for (var").replace("arrayLength(&x)", "3u")
    source += "fn helper(q: ptr<storage, array<f32>>) {}\n"
    with pytest.raises(Unreadable) as caught:
        prepared_wgsl(source, "main", checked=True, folded=False)
    assert caught.value.at is not None
    assert caught.value.at.line == 11


@pytest.mark.parametrize(
    "text",
    [
        "// hidden \r fn g() {}",
        "// hidden \u2028 fn g() {}",
        "fn g() { anygpu_status[0] = 0u; }",
        "fn max(a: u32, b: u32) -> u32 { return 0u; }",
        "struct f32 { a: u32 }",
        "@group(0) @binding(9) var<storage, read> w: array<f32, u32(-1) / 2u>;",
        "@group(0) @binding(9) var<storage, read> w: array<f32, 1u << 31u>;",
        "const N = 1 - 5; @group(0) @binding(9) var<storage, read> w: array<f32, N + 9>;",
    ],
)
def test_wgsl_that_compilers_may_read_in_another_way(text: str) -> None:
    with pytest.raises(Unreadable):
        prepared_wgsl(f"{WGSL}{text}\n", "main", checked=True, folded=False)


def test_a_place_in_a_struct_cannot_be_folded() -> None:
    source = WGSL.replace("fn main(@builtin(global_invocation_id) id: vec3<u32>,", "fn main(in: In,")
    source += "struct In { @builtin(global_invocation_id) id: vec3<u32> }\n"
    with pytest.raises(Unreadable, match="Take them as parameters"):
        prepared_wgsl(source, "main", checked=True, folded=True)


OPENCL = """\
#define AT(i) x[(i) + 1]
__constant int table[3] = {1, 2, 3};
float twice(float v);
float twice(float v) { float own[2]; own[0] = v; return own[0] * table[1]; }
float nothing(void) { return 1.0f; }
#pragma unroll
__kernel void f(__global const float* x,
                double d, __global float* out, uint n) {
    __local float t[4][8];
    uint i = get_global_id(0); n = n * i;
    t[i & 3][2] = AT(i);
    { float x = 3; out[i] = x * twice(x) - nothing(); }
    if (out[(uint)t[1][1]] > 0) out[(i, 0)] = d;
}
__kernel void g(__global float* y) { *y = 1; }
"""


def test_opencl_with_checks() -> None:
    found = prepared_opencl(OPENCL, "f", checked=True)
    head, _, text = found.source.partition("#line 1\n")
    assert head.startswith("long anygpu_at(")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    status = "anygpu_status, anygpu_first_word"
    assert lines[2] == "float twice ( __global uint* anygpu_status, uint anygpu_first_word, float v ) ;"
    assert lines[4].startswith("float nothing ( __global uint* anygpu_status, uint anygpu_first_word ) {")
    assert lines[5] == "#pragma unroll"
    assert lines[6].startswith(
        "__kernel void f ( __global const float * x, __global float * out, __global uint* anygpu_status, "
        "uint anygpu_length_x, uint anygpu_d_0, uint anygpu_d_1, uint anygpu_length_out, uint anygpu_n_0, "
        "uint anygpu_first_word"
    )
    assert lines[7].startswith(") { double d = as_double(")
    assert f"x [ anygpu_at((long)( ( i ) + 1 ), anygpu_length_x, {status} + 4u) ]" in lines[10]
    assert lines[11] == (
        f"{{ float x = 3 ; out [ anygpu_at((long)( i ), anygpu_length_out, {status} + 5u) ] = "
        f"x * twice ( {status}, x ) - nothing ( {status} ) ; }}"
    )
    assert not "".join(lines[14:])
    assert set(found.words) == {
        Word("own", 2),
        Word("table", 3),
        Word("t", 4),
        Word("t", 8),
        Word("x", None),
        Word("out", None),
    }
    assert found.private == 8


def test_opencl_without_checks_is_only_reordered() -> None:
    found = prepared_opencl(OPENCL, "f", checked=False)
    assert "anygpu_at" not in found.source
    assert "#line" not in found.source
    assert found.source.splitlines()[10].split() == list("t[i&3][2]=x[(i)+1];")


#: Ways to memory that a checked kernel must not have. `a` is a buffer, `t` an array of 4 × 4, `c` one of char.
HOSTILE = [
    "*a = 1;",
    "*(a + 5) = 1;",
    "(*a) = 1;",
    "float* p = a; p[5] = 1;",
    "float *p = &t[0][0]; p[100] = 1;",
    "__global float* p = a + 100; *p = 1;",
    "5[a] = 1;",
    "(a + 1)[5] = 1;",
    "(a)[5] = 1;",
    "t[0][0][0] = 1;",
    "t[0] = t[1];",
    "helper(a);",
    "helper(t[0]);",
    "vstore4((float4)(1), 0, a + 5);",
    "vstore4((float4)(1), 0, &a[5]);",
    "vstore4((float4)(1), 0, 0);",
    "vstore4((float4)(1), 0, t);",
    "float4 v = vload4(0, (__global float*)0);",
    "atomic_add(a, 1);",
    "atomic_add(0, 1);",
    "atomic_add(NULL, 1);",
    "atomic_inc((volatile __global int*)a);",
    "atomic_inc(&c[0]);",
    "atomic_inc(&c[0] + 100);",
    "atomic_inc(1 ? &b[0] : &b[1]);",
    "int x = (int)&b[0];",
    "struct S { int q[4]; } s; s.q[9] = 1;",
    "struct S { int x; } s; struct S * p; p->x = 1;",
    "struct S { int x; }; struct S * p; atomic_inc(p);",
    "typedef int word; word * p; atomic_inc(p);",
    "union { float f; __global float* p; } u; u.p[5] = 1;",
    "float4 v = 0; v[9] = 1;",
    "__typeof__(a) p = a;",
    "__auto_type p = a;",
    "__builtin_memset(a, 0, 100);",
    "async_work_group_copy(t[0], a, 4, 0);",
    "prefetch(a, 100);",
    'printf("%s", 5);',
    'char q = "abc"[100];',
    "float f = sincos(1.0f, (float*)0);",
    "float f; sincos((float4)(1), &f);",
    "int e; frexp(1.0, &e);",
    'asm("nop");',
    "for (int a = 0; a < 2; a++) {} a[0] = 1;",
    "int q[] = {1}, *p = q; p[3] = 1;",
    "(int[2]){1, 2}[5] = 1;",
    "goto *a;",
    "if (1) *a = 1;",
    "float f = (float)*a;",
    "float f = -*a;",
    "float f = sizeof(int) **a;",
    "k(a);",
    "int n __attribute__((cleanup(helper)));",
    "a<:5:> = 1;",
    # Lengths that only C's types work out.
    "int q[(uchar)60000]; q[500] = 1;",
    "int q[(-1 < 0u) ? 300 : 1]; q[200] = 1;",
    "int q[(1 << 31 >> 31) + 2]; q[1] = 1;",
    "int q[~0u / 4294967295u + 1]; q[1] = 1;",
    "int q[2147483647 + 1 > 0 ? 300 : 1]; q[200] = 1;",
    "int q[1 >> 32 ? 1 : 300]; q[200] = 1;",
    "int q[sizeof(long)]; q[7] = 1;",
    "int q['a']; q[7] = 1;",
    "int q[(int)3.5f]; q[3] = 1;",
    "int q[-1 + 5]; q[3] = 1;",
    "int q[3.0]; q[3] = 1;",
    "int q[N]; { enum { N = 1 }; int r[N]; r[3] = 1; }",
    "int N = 1; int q[N]; q[3] = 1;",
    "struct P { int x, y; }; struct P q[] = {1, 2, 3, 4}; q[3].x = 1;",
    "float4 q[] = {1, 2, 3, 4}; q[3] = 1;",
    "int q[][2] = {1, 2, 3, 4}; q[3][0] = 1;",
    "int q[] = {[9] = 1}; q[9] = 1;",
    # Names of the compiler, of a driver or of ours, and functions that take pointers, or what passes for one.
    "_cl_vstore4((float4)(1), 1 << 20, 0);",
    "fract(1.0f, 0);",
    "float f = lgamma_r(1.0f, 0);",
    "vstorea_half4((float4)(1), 5, 0);",
    "sub_group_block_write(0, 1u);",
    "__sync_fetch_and_add(0, 1);",
    "__c11_atomic_store(0, 1, 5);",
    "atomic_store_explicit(0, 1, 5);",
    "atomic_fetch_add(&b[0], 1);",
    "atomic_add(&a[0], 1);",
    "atom_add(&b[0], 1L);",
    "vstore4((float4)(1), 0, only);",
    "atomic_inc(&kept[0]);",
    "(helper)(1.0f);",
    "float g = helper + 1;",
    "_Alignas(268435456) int q;",
    "int q __attribute__((aligned(268435456)));",
    "extern __constant int q[500]; b[0] = q[400];",
    "float f = ((float __attribute__((unused)) *)a)[5];",
    "float f = *(float __attribute__((unused)) *)5;",
    "__extension__ int q[4]; q[1] = 1;",
    "int \u00e9 = 1;",
    "OURS = 1 << 30;",
    "float typedef *P;",
    "int x = (c[500] = 7), c[1000];",
    "{ float x = a[500], a[1000]; a[3] = x; }",
    "__local float a[1000]; a[500] = 1;",
]


@pytest.mark.parametrize("line", HOSTILE)
def test_ways_to_other_memory_are_refused(line: str) -> None:
    source = f"""\
enum {{ N = 3 }}; float helper(float x) {{ return x; }}
#define OURS anygpu_length_a
__kernel void f(__global float* a, __global int* b, __global const float* only, __constant int* kept) {{
    float t[4][4]; char c[4];
    {line}
}} __kernel void k(__global float* q) {{ q[0] = 1; }}
"""
    with pytest.raises(Unreadable) as caught:
        prepared_opencl(source, "f", checked=True)
    assert caught.value.at is not None
    assert caught.value.at.line == 5
    assert any(
        each in caught.value.why
        for each in ("unchecked=True", "understood", "not a constant", "Write ", "anygpu_", "first word", "no length")
    )


@pytest.mark.parametrize(
    "outside",
    [
        "__constant int* p = 0;",
        "typedef __global float* P;",
        "typedef float P[4];",
        "struct S { int q[4]; };",
        "float g(float* p) { return p[5]; }",
        "float g(float p[4]) { return p[5]; }",
        "float g(__global float*);",
        "float* g(void);",
        'float g(float x) __attribute__((alias("f")));',
        "float g(float x) { return g(x); }\nfloat h(float x) { return g(x); }",
        '__constant char q[] = "abc";',
        "int munmap(ulong a, ulong b);",
        "int memset(int a) { return a; }",
        "int atomic_add(int a, int b) { return a; }",
        "float step(float a, float b) { return a; }",
        "int __mine(int a) { return a; }",
        "extern __constant int q[4];",
        "__constant int q[1 << 20] = {1};",
        "__constant int q[3] = {1, 2, 3}; __constant int r = q[5];",
        "__constant float4 q[] = {1, 2, 3, 4};",
        "struct S { int q : 3; __global int* p; };",
        "int typedef P[4];",
    ],
)
def test_ways_outside_of_functions_are_refused(outside: str) -> None:
    source = f"{outside}\n__kernel void f(__global float* a) {{ a[0] = {'g(1)' if 'return g' in outside else '1'}; }}\n"
    with pytest.raises(Unreadable) as caught:
        prepared_opencl(source, "f", checked=True)
    assert caught.value.at is not None
    assert caught.value.at.line <= 2


def test_lengths_are_written_as_they_were_worked_out() -> None:
    source = """\
#define WIDTH 4
enum { ROWS = WIDTH * 2, COLUMNS };
__constant int table[WIDTH << 1] = {1};
__kernel void f(__global int* a) {
    int q[ROWS][COLUMNS - 1], r[] = {1, 2, (3, 4),}, s[2 * WIDTH + 0x10u % 3];
    q[0][0] = r[0] + s[0] + table[0]; a[0] = q[0][0];
}
"""
    found = prepared_opencl(source, "f", checked=True)
    text = " ".join(found.source.split())
    assert "table [ 8 ]" in text
    assert "q [ 8 ] [ 8 ] = {0} , r [ 3 ] = {" in text
    assert "s [ 9 ]" in text
    assert found.private == 4 * (64 + 3 + 9)


@pytest.mark.parametrize(
    "text",
    [
        "#define HIDDEN \\\n#define anygpu_length_a 1000000\nHIDDEN\n",
        "#define HIDDEN /*\n*/ #define anygpu_length_a 1000000\nHIDDEN\n",
        "#define TWO(x, y) x ## y\n__constant int q = TWO(any, gpu_status);\n",
        "#define OTHER anygpu_first_word\n__constant int q = OTHER;\n",
    ],
)
def test_macros_hide_nothing(text: str) -> None:
    with pytest.raises(Unreadable):
        prepared_opencl(f"{text}__kernel void f(__global int* a) {{ a[5] = 1; }}\n", "f", checked=True)


@pytest.mark.parametrize("condition", ["-1 < 0u", "1 << 63 >> 63", "0x7fffffffffffffff + 1 > 0", "1.5 > 1"])
def test_conditions_that_depend_on_types_are_refused(condition: str) -> None:
    with pytest.raises(Unreadable):
        prepared_opencl(f"#if {condition}\n#endif\n__kernel void f(__global int* a) {{ }}\n", "f", checked=True)


def test_conditions_below_zero_are_understood() -> None:
    source = "#define N -1\n#if N < 0 && 5 > 3 - 1\n#define M 7\n#endif\n__kernel void f(__global int* a) { a[0] = M; }"
    assert "] = 7 ;" in prepared_opencl(source, "f", checked=True).source


def test_a_vector_is_written_as_its_array_is() -> None:
    source = "__kernel void f(__global float* a) { vstore4((float4)(1, 2, 3, 4), 0, a); }"
    found = " ".join(prepared_opencl(source, "f", checked=True).source.split())
    assert "vstore4 ( (float4)( ( float4 ) ( 1 , 2 , 3 , 4 ) ) ," in found


def test_nothing_begins_with_what_was_in_its_memory() -> None:
    source = """\
float g(int i) { float q[2]; float s; q[i] = 1; return q[i] + s; }
__kernel void f(__global float* a) {
    int i, j = 2, k __attribute__((unused)), m[2]; struct S { int x; float4 v; } p, r = {1}; float4 v[2], w;
    if (a[0] > 1) return;
    volatile __local float t[4], u; __local uchar3 c;
    t[1] = u + c.x + i + j + m[0] + p.x + r.x + v[0].x + w.x; a[0] = t[1] + g(1);
}
"""
    text = " ".join(prepared_opencl(source, "f", checked=True).source.split())
    assert "float q [ 2 ] = {0} ; float s = 0 ;" in text
    assert "int i = 0 , j = 2 , k __attribute__ ( ( unused ) ) = 0 , m [ 2 ] = {0} ;" in text
    assert "{ int x ; float4 v ; } p = {0} , r = { 1 } ; float4 v [ 2 ] = {0} , w = 0 ;" in text
    begin = text.index("{ volatile __local float t [ 4 ] , u ; __local uchar3 c ; const size_t anygpu_lane")
    assert begin < text.index("barrier(CLK_LOCAL_MEM_FENCE);") < text.index("int i = 0")
    assert text.count("__local float t") == 1
    assert "((__local uint*)&t)[anygpu_word] = 0;" in text
    assert "((__local uint*)&u)[anygpu_word] = 0;" in text
    assert "((__local uint*)&c)[anygpu_word] = 0;" in text


def test_structs_count_as_large_as_they_are() -> None:
    source = """\
struct A { double16 x, y; }; typedef struct { struct A a, b; char c; } B; union U { B b; int i; };
__kernel void f(__global float* a) { B one; union U two[2]; struct { char c; float4 d; } three; a[0] = one.c; }
"""
    size = 2 * 256 + 128
    inside = 1 + 16  # members of a struct that a function has for itself are counted once more
    assert prepared_opencl(source, "f", checked=True).private in (3 * size + 32, 3 * size + 32 + inside)


def test_memory_of_functions_counts_for_each_call() -> None:
    source = """\
float g(int i) { float q[16]; q[i] = 1; return q[i]; }
float h(int i) { return g(i) + g(i + 1); }
__kernel void f(__global float* a) { double q[2]; q[0] = 1; a[0] = h(1) + h(2) + q[0]; }
"""
    assert prepared_opencl(source, "f", checked=True).private == 16 + 4 * 64


def test_a_long_chain_of_calls_is_read_in_no_time() -> None:
    lines = ["float f0(int i) { float q[2]; q[i] = 1; return q[i]; }"]
    lines += [f"float f{n}(int i) {{ return f{n - 1}(i) + f{n - 1}(i); }}" for n in range(1, 60)]
    source = "\n".join([*lines, "__kernel void k(__global float* a) { a[0] = f59(0); }"])
    assert prepared_opencl(source, "k", checked=True).private == 8 << 59


# -- what compilers say


def test_words_of_naga() -> None:
    words = (
        "Validation Error\n\nCaused by:\n  In wgpuDeviceCreateShaderModule\n\nShader '' parsing error: expected "
        'expression, found ";"\n  ┌─ wgsl:3:11\n  │\n3 │   let x = ;\n  │           ^ expected expression\n\n'
    )
    found = of_naga(words)
    assert (found.line, found.column) == (3, 11)
    assert found.words.startswith('expected expression, found ";"')
    assert "Validation Error" not in found.words
    assert of_naga("something else") == (None, None, "something else")


def test_words_of_clang() -> None:
    through_pocl = (
        "clBuildProgram failed: BUILD_PROGRAM_FAILURE\n\nBuild on <pyopencl.Device 'x'>:\n\n"
        "error: /root/.cache/tempfile_f.cl:2:11: expected expression\n"
        "error: /root/.cache/tempfile_f.cl:3:9: unknown type (at /root/.cache/tempfile_f.cl:2:3)\nDevice failed"
    )
    assert of_clang(through_pocl) == (2, 11, "2:11: expected expression\n3:9: unknown type (at the kernel:2:3)")
    assert of_clang("<kernel>:4:5: error: no such function") == (4, 5, "no such function")
    assert of_clang("a failure") == (None, None, "a failure")
