"""Both dialects from one table, and WGSL from templates that are OpenCL C."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from anygpu.engines.codegen import templates
from anygpu.engines.codegen.target import SYNTAX
from anygpu.engines.codegen.templates.stages import in_wgsl, template

NAMES = sorted(path.stem for path in Path(templates.__path__[0]).glob("*.cl"))


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_c_is_left_in_a_template_in_wgsl(name: str) -> None:
    text = re.sub(r"//.*", "", template("wgsl", name))
    assert re.findall(r"\b(?:const|int|void|barrier|get_\w+|__\w+)\b|\?|\(int\)|#\w+", text) == []
    assert "#ifdef" not in template("opencl", name)


@pytest.mark.parametrize(
    ("in_c", "expected"),
    [
        ("    const int row = group / 4;", "    let row = group / 4;"),
        ("    const Value value = values[slot];", "    let value = values[slot];"),
        ("    for (int k = 0; k < $items; k++) {", "    for (var k = 0; k < $items; k++) {"),
        ("    Value running = values[first];", "    var running = values[first];"),
        ("    Value left, right;", "    var left: Value;\n    var right: Value;"),
        ("    Value mine[$items];", "    var mine: array<Value, $items>;"),
        ("    const int n = (a == 1 ? b : c) - 1;", "    let n = select(c, b, a == 1) - 1;"),
        ("    const int i = a < b ? c + 1 : d - 1;", "    let i = select(d - 1, c + 1, a < b);"),
        ("    const int place = (int)index * 3;", "    let place = i32(index) * 3;"),
        ("$complex twice($complex a, int b) {", "fn twice(a: $complex, b: i32) -> $complex {"),
        ("    barrier(CLK_LOCAL_MEM_FENCE);", "    workgroupBarrier();"),
    ],
)
def test_lines_of_templates(in_c: str, expected: str) -> None:
    assert in_wgsl(in_c) == expected


def test_shared_arrays_are_outside_of_the_kernel_in_wgsl() -> None:
    text = in_wgsl(
        "__kernel __attribute__((reqd_work_group_size($group_size, 1, 1)))\n"
        "void $name($parameters) {\n    // In vectors.\n    __local $vector tile[8];\n    $group\n"
    )
    shared, head, body = text.partition("\n\n@compute @workgroup_size($group_size)\nfn $name(")
    assert shared == "// In vectors.\nvar<workgroup> tile: array<$vector, 8>;"
    assert head
    assert body.endswith("lane_index: u32) {\n    $group\n")


def test_the_spelling_of_both_dialects() -> None:
    wgsl, opencl = SYNTAX["wgsl"], SYNTAX["opencl"]
    assert (wgsl.vector("f32", 4), opencl.vector("f32", 4), opencl.vector("u64", 1)) == ("vec4<f32>", "float4", "ulong")
    assert (wgsl.number(-(2**31), "i32"), opencl.number(-(2**31), "i32")) == ("i32(-2147483648)", "(-2147483647 - 1)")
    assert (wgsl.number(0.1, "f32"), opencl.number(0.1, "f64")) == ("0.1f", "0.1")
    assert (wgsl.cast("u32", "a + b"), opencl.cast("uint", "a + b")) == ("u32(a + b)", "(uint)(a + b)")
    assert (wgsl.wrapping("+", "i32", "a", "b"), opencl.wrapping("+", "i32", "a", "b")) == (
        None,
        "as_int(as_uint(a) + as_uint(b))",
    )
    assert wgsl.struct_type("Pair", {"x": "f32"}) == "struct Pair {\n    x: f32,\n}"
    assert opencl.struct_type("Pair", {"x": "float"}) == "typedef struct {\n    float x;\n} Pair;"
    assert wgsl.function("f", {"x": "i32"}, "i32", ["return x;"]) == "fn f(x: i32) -> i32 {\n    return x;\n}"
    inline = opencl.function("f", {"x": "int"}, None, ["g(x);"], inline=True)
    assert inline == "static inline void f(const int x) {\n    g(x);\n}"
