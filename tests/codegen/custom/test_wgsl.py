"""WGSL made ready for a driver: what is put into it, what is refused, and that lines stay where they were."""

from __future__ import annotations

import pytest

from anygpu.engines.codegen.custom.reflected import Unreadable
from anygpu.engines.codegen.custom.wgsl import Number, prepared_wgsl

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


def test_a_text_made_ready() -> None:
    found = prepared_wgsl(WGSL, "main", folded=False)
    lines = found.source.splitlines()
    assert lines[1].startswith("@group(0) @binding(0) var<storage, read> x")
    assert lines[3] == "@group(0) @binding(1)"
    assert lines[6] == "fn twice(x: f32) -> f32 { return 2.0 * x; }"
    assert lines[9].strip() == (
        "@builtin(num_workgroups) all: vec3<u32>) { let p = P(anygpu_numbers.number_0, anygpu_numbers.number_1); "
        "let k = anygpu_numbers.number_2; {"
    )
    # A name of the kernel's own goes before that of the uniform variable.
    assert lines[10].strip() == "for (var i = id.x; i < p.n; i += 4u) { let k = x[u32(x[i])]; out[i] = twice(k); }"
    assert lines[11].strip() == "if (id.x < anygpu_numbers.number_3) { out[id.x] += p.a * k; }"
    assert lines[12] == "} }"
    assert found.numbers == (
        Number("scalar", "n", "u32", 0),
        Number("scalar", "a", "f32", 4),
        Number("scalar", "k", "f32", 8),
        Number("length", "x", "u32", 12),
        Number("length", "out", "u32", 16),
    )
    assert found.nbytes == 20
    assert "@group(0) @binding(2) var<uniform> anygpu_numbers: anygpu_Numbers;" in lines


def test_wide_numbers_are_aligned() -> None:
    source = WGSL.replace("n: u32, a: f32", "n: u32, a: f32, w: f64, h: f16, v: i64")
    places = {each.name: each.place for each in prepared_wgsl(source, "main", folded=False).numbers}
    assert places == {"n": 0, "a": 4, "w": 8, "h": 16, "v": 24, "k": 32, "x": 36, "out": 40}


def test_a_folded_grid() -> None:
    plain, folded = (prepared_wgsl(WGSL, "main", folded=each) for each in (False, True))
    assert folded.source.splitlines()[10:12] == plain.source.splitlines()[10:12]
    assert [each.kind for each in folded.numbers[-4:]] == ["groups", "groups", "groups", "row"]
    assert "fn anygpu_body( id: vec3<u32>," in folded.source.replace("  ", " ")
    assert "@compute @workgroup_size(4, 2, 1) fn main(@builtin(workgroup_id) group: vec3<u32>" in folded.source
    assert "anygpu_body(here * vec3<u32>(4u, 2u, 1u) + local, groups); }" in folded.source


def test_other_kernels_of_a_text_are_taken_out() -> None:
    source = WGSL + (
        "@group(0) @binding(0) var<storage, read> z: array<f32>;\n"
        "@compute @workgroup_size(1)\nfn b() { let y = z[arrayLength(&z)] + x[0] + k; }\n"
    )
    found = prepared_wgsl(source, "main", folded=False)
    assert "fn b" not in found.source
    assert "@group(0) @binding(0) var<storage, read> z" in found.source
    assert len(found.source.splitlines()[: source.count("\n")]) == source.count("\n")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("let n = arrayLength(&(x));", "the buffer's own name"),
        ("let q = &x; let n = arrayLength(q);", "the buffer's own name"),
        ("let anygpu_x = 1;", "are reserved"),
        ("/* never ends", "never closed"),
    ],
)
def test_texts_that_are_refused(line: str, why: str) -> None:
    source = WGSL.replace("    for (var", f"    {line}\n    for (var")
    with pytest.raises(Unreadable, match=why) as caught:
        prepared_wgsl(source, "main", folded=False)
    assert caught.value.at is not None
    assert caught.value.for_kernel("", source).line == 11


def test_a_comment_declares_nothing() -> None:
    text = "/* var<uniform> a: f32; /* nested */ fn g() { */ // @compute fn h() {}\n"
    assert prepared_wgsl(text + WGSL, "main", folded=False).numbers == prepared_wgsl(WGSL, "main", folded=False).numbers


def test_a_place_in_a_struct_cannot_be_folded() -> None:
    source = WGSL.replace("fn main(@builtin(global_invocation_id) id: vec3<u32>,", "fn main(in: In,")
    source += "struct In { @builtin(global_invocation_id) id: vec3<u32> }\n"
    with pytest.raises(Unreadable, match="Take them as parameters"):
        prepared_wgsl(source, "main", folded=True)
