"""What a kernel's text says of itself, and the places of what is not understood."""

from __future__ import annotations

import random
from typing import Any

import pytest

from anygpu.engines.codegen.custom.reflected import (
    Length,
    Reflected,
    ScalarParameter,
    Unreadable,
    language_of,
    with_defines,
)
from anygpu.engines.codegen.custom.wgsl import prepared_wgsl
from anygpu.errors import InvalidKernel
from anygpu.program.ops.custom import Parameter
from tests.engines.custom_programs import reflected

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


def test_a_text_in_wgsl() -> None:
    found = reflected(WGSL, updates=["out"])
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
        group=(8, 8, 1),
        lengths={"image": Length(multiple=4), "counts": Length(exactly=16)},
        group_memory=2 * 8 * 16,
    )


def test_constants_are_put_into_the_text_in_their_own_line() -> None:
    found = reflected(WGSL, constants={"side": 4, "scale": 2})
    assert found.group == (4, 4, 1)
    assert found.source.splitlines()[1:2] == ["const    scale = 2.0;"]
    assert len(found.source.splitlines()) == len(WGSL.splitlines())
    assert reflected(found.source).group == (4, 4, 1)


def test_a_constant_without_a_value_needs_one() -> None:
    source = WGSL.replace("override side: u32 = 8;", "@id(3) override side: u32;")
    with pytest.raises(InvalidKernel, match="side has no value") as caught:
        reflected(source)
    assert (caught.value.line, caught.value.column) == (1, 17)
    assert reflected(source, constants={"side": 2}).group == (2, 2, 1)


@pytest.mark.parametrize(
    ("constants", "why"),
    [
        ({"nothing": 1}, "there is no override"),
        ({"side": -1}, "not a constant"),
        ({"side": 1.5}, "not a constant"),
        ({"side": True}, "not a constant"),
        ({"side": 0}, "none of them 0|not a constant"),
    ],
)
def test_constants_that_are_refused(constants: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidKernel, match=why):
        reflected(WGSL, constants=constants)


def test_the_language_is_recognised_by_its_words() -> None:
    assert language_of(WGSL) == "wgsl"
    assert language_of("__kernel void f(__global int* a) {}") == "opencl"
    assert language_of("kernel void f(global int* a) {}") == "opencl"
    assert language_of("// __kernel", language="wgsl") == "wgsl"
    with pytest.raises(InvalidKernel, match="neither WGSL"):
        language_of("// @compute __kernel\nint main() {}")


def test_one_of_several_kernels_takes_what_it_uses() -> None:
    source = """\
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read_write> b: array<f32>;
@group(0) @binding(0) var<storage, read> c: array<i32>;
fn helped(i: u32) { b[i] = a[i]; }
@compute @workgroup_size(1) fn one() { helped(0u); }
@compute @workgroup_size(2) fn two() { let a = c[0]; b[0] = f32(a); }
"""
    assert [each.name for each in reflected(source, entry="one").parameters] == ["a", "b"]
    assert [each.name for each in reflected(source, entry="two").parameters] == ["c", "b"]
    with pytest.raises(InvalidKernel, match=r"several @compute functions \(one, two\)"):
        reflected(source)
    with pytest.raises(InvalidKernel, match="available: one, two"):
        reflected(source, entry="three")


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
        ("@group(0) @binding(n) var<storage, read> x: array<f32>;", 2, 11, "n is not a constant"),
        ("fn anygpu_at(i: u32) {}", 2, 4, "are reserved"),
        ("fn f( {", 2, 5, "is never closed"),
        ("struct S { a f32 }\n@group(0) @binding(1) var<uniform> x: S;", 2, 12, "write name: type"),
        ("@group(0) @binding(1) var<storage, read> x: array<f32, 0>;", 2, 56, "not a number of elements"),
    ],
)
def test_what_wgsl_cannot_be_has_its_place(declarations: str, line: int, column: int, why: str) -> None:
    with pytest.raises(InvalidKernel, match=why) as caught:
        reflected(wgsl(declarations), title="mine")
    assert (caught.value.kernel, caught.value.line, caught.value.column) == ("mine", line, column)


@pytest.mark.parametrize(
    "group", ["", "@workgroup_size()", "@workgroup_size(0)", "@workgroup_size(n)", "@workgroup_size(1.5)"]
)
def test_groups_that_are_none(group: str) -> None:
    with pytest.raises(InvalidKernel) as caught:
        reflected(wgsl("", group=group))
    assert caught.value.line in (3, 4)


def test_what_writes_nothing_and_names_twice() -> None:
    reads = "@group(0) @binding(1) var<storage, read> x: array<f32>;\n"
    numbers = "struct P { x: f32 }\n@group(0) @binding(2) var<uniform> p: P;"
    with pytest.raises(InvalidKernel, match="writes to no buffer"):
        reflected(f"{reads}@compute @workgroup_size(1) fn f() {{ }}")
    with pytest.raises(InvalidKernel, match="called x"):
        reflected(wgsl(reads + numbers))
    with pytest.raises(InvalidKernel, match="has no buffer of that name"):
        reflected(wgsl(""), updates=["y"])
    with pytest.raises(InvalidKernel, match="only reads it"):
        reflected(wgsl(reads), updates=["x"])


def test_texts_that_are_too_long_or_have_zeros() -> None:
    with pytest.raises(InvalidKernel, match="characters"):
        language_of(WGSL + " " * (1 << 20))
    with pytest.raises(InvalidKernel, match="zero character"):
        language_of(WGSL + "\0", language="wgsl")
    with pytest.raises(InvalidKernel):
        reflected("@compute " + "(" * 100_000)


def test_mutated_texts_are_read_or_refused() -> None:
    """Nothing but `InvalidKernel` ever comes out, with a place inside of the text where there is one."""
    rng = random.Random(7)
    pieces = [*'()[]{}<>;,&*@"\n\\', "/*", "//", "0x", "..", "->", "struct ", "var<", "array<", "fn "]
    pieces += ["alias ", "const ", "override ", "1<<70", "é", "((", "@binding(", "@workgroup_size(", "for ("]
    outcomes = {"read": 0, "refused": 0}
    for _ in range(800):
        source = WGSL
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
        found = reflected(source)
        for folded in (False, True):
            prepared_wgsl(found.source, found.entry, folded=folded)
    except InvalidKernel as problem:
        return problem
    except Unreadable as problem:
        return problem.for_kernel("", source)
    return None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("64u", 64),
        ("N * 2u - 1", 31),
        ("(1 << 4) + 0x10u / 3", 21),
        ("u32(N) % 5i", 1),
        ("min(4, N) + max(1u, 2u)", 6),
        ("LATER / 2", 16),
    ],
)
def test_constant_expressions(text: str, expected: int) -> None:
    source = (
        f"const N: u32 = 16;\nconst LATER = N * 2;\nconst REAL = 2.5;\n{wgsl('', group=f'@workgroup_size({text})')}"
    )
    assert reflected(source).group == (expected, 1, 1)


@pytest.mark.parametrize(
    "text", ["1 +", "x", "1 / 0", "1 << 64", "1 2", "2.0", "1 << 31", "f(1)", "1 - 2", "REAL", "true", "2 ** 3", "'a'"]
)
def test_what_is_no_constant(text: str) -> None:
    with pytest.raises(InvalidKernel, match="not a constant"):
        reflected(f"const REAL: f32 = 4;\n{wgsl('', group=f'@workgroup_size({text})')}")


@pytest.mark.parametrize(
    ("declared", "nbytes"),
    [
        ("var<workgroup> t: array<f32, 64>;", 256),
        ("var<workgroup> a: f16; var<workgroup> t: array<vec3<f32>, 2>;", 48),
        ("struct S { a: vec2f, b: array<u32, 3>, c: bool } var<workgroup> t: array<S, 2>;", 48),
        ("var<workgroup> t: mat3x2<f32>; var<workgroup> u: mat2x3f; var<workgroup> v: atomic<u32>;", 24 + 8 + 32 + 4),
        ("var<workgroup> t: f32; var<workgroup> unused: array<f32, 1000>;", 4),
    ],
)
def test_the_memory_of_a_group(declared: str, nbytes: int) -> None:
    assert reflected(wgsl(declared, "a = 1h; t = t; u = u; _ = &v;")).group_memory == nbytes


def test_other_values_for_defines() -> None:
    source = "#define N 16 // as it was\n#define S 0.5f\n#define F(x) x\n#define U 2u\n#define D 0.5 /* one\nmore */\n"
    for given, line in (
        ({"N": 32}, "#define N 32 // as it was"),
        ({"N": -1}, "#define N (-1) // as it was"),
        ({"N": True}, "#define N 1 // as it was"),
        ({"N": 0.5}, "#define N 0.5f // as it was"),
        ({"S": 2}, "#define S 2.0f "),
        ({"U": 4}, "#define U 4u "),
        ({"D": 0.1}, "#define D 0.1 /* one"),
    ):
        found = with_defines(source, given)
        assert line in found.splitlines()
        assert found.count("\n") == source.count("\n")
    assert with_defines("#define N 1 + \\\n 2\nint x;", {"N": 5}) == "#define N 5 \\\n\nint x;"
    for wrong in ({"M": 1}, {"F": 1}, {"S": float("nan")}, {"N": 1 << 70}):
        with pytest.raises(Unreadable):
            with_defines(source, wrong)
