"""What each dialect makes of the same statements: texts only, no device."""

from __future__ import annotations

import pytest

from anygpu.engines.codegen.dialects.opencl import OpenCLPrinter
from anygpu.engines.codegen.dialects.printer import Printer
from anygpu.engines.codegen.dialects.wgsl import WGSLPrinter
from anygpu.engines.codegen.index import variable
from anygpu.engines.codegen.kernel_builder import printer
from anygpu.engines.codegen.kernel_ir import (
    Apply,
    Assign,
    Buffer,
    Choose,
    Expr,
    Fold,
    If,
    Let,
    Literal,
    Load,
    Loop,
    Name,
    Position,
    Report,
    Store,
)
from anygpu.engines.codegen.target import ComputeType, Target

WGSL = Target(dialect="wgsl", features=("f64", "i64", "subgroups"), subgroup_size=8)
OPENCL = Target(dialect="opencl", features=("f64", "i64"))
X, Y = Name("x", "f32"), Name("y", "f32")


def both() -> tuple[Printer, Printer]:
    return WGSLPrinter(WGSL), OpenCLPrinter(OPENCL)


def test_a_target_has_its_printer() -> None:
    assert isinstance(printer(WGSL), WGSLPrinter)
    assert isinstance(printer(OPENCL), OpenCLPrinter)


@pytest.mark.parametrize(
    ("value", "type", "wgsl", "opencl"),
    [
        (1.0, "f32", "1.0f", "1.0f"),
        (0.1, "f64", "0.1lf", "0.1"),
        (-(1 << 31), "i32", "i32(-2147483648)", "(-2147483647 - 1)"),
        (7, "u32", "7u", "7u"),
        (7, "i64", "7li", "7L"),
        (True, "bool", "true", "true"),
        (float("inf"), "f32", "infinity_f32()", "infinity_f32()"),
        (float("nan"), "f64", "nan_f64()", "nan_f64()"),
    ],
)
def test_literals(value: float, type: ComputeType, wgsl: str, opencl: str) -> None:
    first, second = both()
    assert first.literal(Literal(value, type)) == wgsl
    assert second.literal(Literal(value, type)) == opencl


@pytest.mark.parametrize(
    ("expr", "wgsl", "opencl"),
    [
        (Apply("not_equal", (X, Y), "bool"), "!(x == y)", "x != y"),
        (Choose(Name("c", "bool"), X, Y), "select(y, x, c)", "c ? x : y"),
        (Apply("bitwise_xor", (Name("a", "bool"), Name("b", "bool")), "bool"), "a != b", "a != b"),
        (Apply("multiply", (Apply("add", (X, Y), "f32"), X), "f32"), "(x + y) * x", "(x + y) * x"),
        (Position(variable("i", 10) // 3 * 5 + 1), "(i / 3) * 5 + 1", "(i / 3) * 5 + 1"),
    ],
)
def test_expressions(expr: Expr, wgsl: str, opencl: str) -> None:
    first, second = both()
    assert first.expression(expr) == wgsl
    assert second.expression(expr) == opencl


class TestBuffers:
    def test_types_and_lengths(self) -> None:
        text = WGSLPrinter(WGSL)
        text.use(
            [
                Buffer("a", 0, "float32", 10),
                Buffer("b", 1, "bool", 10, access="read_write"),
                Buffer("c", 2, "float32", 10, has_offset=True),
                Buffer("d", 3, "int16", 0),
            ],
            cuttable=False,
        )
        lines = text.declarations(["offset_c"]).splitlines()
        assert lines[0].endswith("var<storage, read> a: array<f32, 10>;")
        assert lines[1].endswith("var<storage, read_write> b: array<u32, 3>;")
        assert lines[2].endswith("var<storage, read> c: array<f32>;")
        assert lines[3].endswith("var<storage, read> d: array<u32, 1>;")

    def test_windows_of_what_is_larger_than_a_binding(self) -> None:
        text = WGSLPrinter(Target(dialect="wgsl", binding_bytes=1024))
        text.use([Buffer("a", 0, "float32", 600)], cuttable=False)
        assert [binding.window for binding in text.bindings()] == [(0, 1024), (1024, 1024), (2048, 352)]
        assert text.load(text.buffers["a"], "i") == "load_a(i)"
        assert "switch i >> 8u" in text.declarations([])

    def test_narrow_elements(self) -> None:
        first, second = both()
        small = Buffer("a", 0, "uint8", 10)
        for text in (first, second):
            text.use([small], cuttable=False)
        assert first.load(small, "i") == "extractBits(a[i >> 2u], (u32(i) & 3u) << 3u, 8u)"
        assert second.load(small, "i") == "a[i]"


class TestLoops:
    buffers = (Buffer("a", 0, "float32", 64), Buffer("b", 1, "float32", 64, access="read_write"))

    def lines(self, text: Printer, loop: Loop) -> list[str]:
        text.use(self.buffers, cuttable=False)
        text.rehearse([loop])
        return text.lines([loop])

    def test_a_stretch(self) -> None:
        part = variable("part", 16)
        load = Let("x", Load("a", part, "f32"))
        body = (load, Store("b", part, Apply("add", (X, Literal(1.0, "f32")), "f32")))
        wgsl, opencl = both()
        four = Loop("part", Literal(0, "i32"), 4, 1, body, vector=4)
        assert self.lines(wgsl, four) == ["let x = a[0];", "let part_value_1 = (x + 1.0f);", "b[0] = part_value_1;"]
        assert self.lines(opencl, four)[0] == "const float4 x = vload4(0, a);"

    def test_several_vectors_of_a_stretch(self) -> None:
        row, part = variable("row", 2), variable("part", 8)
        body = (Let("x", Load("a", row * 8 + part, "f32")), Store("b", row * 8 + part, X))
        text = "\n".join(self.lines(OpenCLPrinter(OPENCL), Loop("part", Literal(0, "i32"), 8, 1, body, vector=8)))
        assert "vload4(row * 2 + each, a);" in text
        assert "vstore4(x, row * 2 + each, b);" in text

    def test_a_sum_over_lanes(self) -> None:
        column = variable("column", 64)
        body = (Let("x", Load("a", column, "f32")), Assign("total", Apply("add", (Name("total", "f32"), X), "f32")))
        loop = Loop("column", Position(variable("lane", 8)), 64, 8, body, sums=(("total", "add"),), vector=4)
        text = "\n".join(self.lines(WGSLPrinter(WGSL), loop))
        assert "for (var strip = lane; strip < 16; strip += 8) {" in text
        assert "let x = a[strip];" in text

    def test_a_loop_with_something_that_has_no_vectors_stays_as_it_is(self) -> None:
        part = variable("part", 4)
        inside = If(Apply("less", (X, Y), "bool"), (Store("b", part, X),))
        loop = Loop("part", Literal(0, "i32"), 4, 1, (Let("x", Load("a", part, "f32")), inside), vector=4)
        assert self.lines(WGSLPrinter(WGSL), loop)[0] == "for (var part = 0; part < 4; part += 1) {"

    def test_a_function_of_ours_for_each_component(self) -> None:
        part = variable("part", 4)
        body = (Let("x", Load("a", part, "f32")), Store("b", part, Apply("erf", (X,), "f32")))
        lines = self.lines(WGSLPrinter(WGSL), Loop("part", Literal(0, "i32"), 4, 1, body, vector=4))
        assert lines[1] == "let part_value_1 = vec4<f32>(erf_f32(x.x), erf_f32(x.y), erf_f32(x.z), erf_f32(x.w));"


class TestLanes:
    def fold(self, fn: str, type: ComputeType, lanes: int) -> Fold:
        mine, other = Name("mine", type), Name("other", type)
        return Fold((mine,), (other,), (Assign("mine", Apply(fn, (mine, other), type)),), lanes, 1)

    def test_one_subgroup(self) -> None:
        text = WGSLPrinter(WGSL)
        assert text.fold(self.fold("add", "f32", 8)) == ["mine = subgroupAdd(mine);"]
        assert text.fold(self.fold("bitwise_or", "bool", 8)) == ["mine = subgroupAny(mine);"]

    def test_extremes_of_floating_point_go_by_pairs(self) -> None:
        lines = WGSLPrinter(WGSL).fold(self.fold("maximum", "f32", 8))
        assert lines[0] == "for (var reach = 4u; reach > 0u; reach /= 2u) {"
        assert lines[1].strip() == "let other = subgroupShuffleXor(mine, reach);"

    def test_more_than_a_subgroup_shares_memory(self) -> None:
        lines = WGSLPrinter(WGSL).fold(self.fold("add", "f32", 16))
        assert lines[0] == "folded_mine[lane] = mine;"
        assert "workgroupBarrier();" in lines


def test_reports() -> None:
    first, second = both()
    report = Report(2, Apply("less", (Name("i", "i32"), Literal(0, "i32")), "bool"), Name("i", "i32"))
    assert first.statement(report)[1].strip() == "status[2] = select(u32(i) + 1u, 2147483648u, i == -1);"
    assert second.statement(report)[1].strip() == "status[2] = (i) == -1 ? 2147483648u : (uint)(i) + 1u;"


def test_more_groups_than_fit_into_a_dimension() -> None:
    text = WGSLPrinter(WGSL)
    assert text.group_line(65535, []) == "let group = i32(group_id.x);"
    assert "i32(group_id.y) * 65535" in text.group_line(65536, [])
    assert "if (group >= 65536) { return; }" in text.group_line(65536, [])
