"""Loops in lanes, whatever is left over at their end, accumulators, and NumPy's own sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from anygpu.engines.codegen.dialects.llvm.loops import module_text
from anygpu.engines.codegen.index import ZERO, Index, variable
from anygpu.engines.codegen.index import IndexVariable as Counter
from anygpu.engines.codegen.kernel_ir import (
    Apply,
    Assign,
    Buffer,
    Expr,
    If,
    Let,
    Literal,
    Load,
    Loop,
    Name,
    Position,
    Statement,
    Store,
    Variable,
)
from anygpu.engines.codegen.nests.steps import NestProgram, Scratch
from anygpu.engines.codegen.target import ComputeType
from anygpu.program.dtypes import DType
from tests.codegen.dialects.llvm.guarded import guarded
from tests.codegen.dialects.llvm.running import BEGIN, END, Code, counter, native, program

_TYPES: dict[DType, ComputeType] = {"float32": "f32", "float64": "f64", "int32": "i32", "uint64": "u64"}


def _reduction(fn: str, start: Any, dtype: DType, rows: int, length: int, **options: Any) -> NestProgram:
    """A value for each row, of a loop with one accumulator."""
    type, over_rows = _TYPES[dtype], options.pop("over_rows", 1)
    row = variable("row", rows)
    element = Load("x", row * length + variable("k", length), type)
    total = Apply(fn, (Name("total", type), Name("value", type)), type)
    inner = Loop(
        "k",
        Literal(0, "i32"),
        length,
        1,
        (Let("value", element), Assign("total", total)),
        sums=(("total", fn),),
        **options,
    )
    body = (Variable("total", Literal(start, type)), inner, Store("out", row, Name("total", type)))
    buffers = [Buffer("x", 0, dtype, rows * length), Buffer("out", 1, dtype, rows, "write")]
    return program(buffers, [Loop("row", BEGIN, END, 1, body, vector=over_rows)], count=rows)


@pytest.mark.parametrize("grain", [0, 1, 8, 24, 40])
@pytest.mark.parametrize("count", [1, 5, 8, 40, 61])
def test_every_element_is_stored_once_and_nothing_else(count: int, grain: int) -> None:
    i = counter("i", count)
    buffers = [Buffer("x", 0, "float32", count), Buffer("out", 1, "float32", count, "write")]
    body = (Store("out", i, Apply("add", (Load("x", i, "f32"), Literal(1.0, "f32")), "f32")),)
    for vector, unroll in ((4, 1), (8, 1), (4, 4)):
        loop = Loop("i", BEGIN, END, 1, body, vector=vector, unroll=unroll)
        code = Code(program(buffers, [loop], count=count, grain=min(grain, count)))
        x, out = guarded(np.arange(count, dtype=np.float32)), guarded(np.zeros(count, np.float32))
        code.run([x, out])
        assert (out == x + 1).all()


@pytest.mark.parametrize("length", [1, 3, 8, 13, 31, 32, 45, 64])
def test_what_is_read_and_written_is_done_once(length: int) -> None:
    """Where rounds may not be repeated, narrower vectors do what is left over."""
    j, buffers = variable("j", length), [Buffer("out", 0, "float64", length, "read_write")]
    body = (Store("out", j, Apply("multiply", (Load("out", j, "f64"), Literal(2.0, "f64")), "f64")),)
    inner = Loop("j", Literal(0, "i32"), length, 1, body, vector=8, unroll=2)
    code = Code(program(buffers, [inner]))
    out = guarded(np.arange(length, dtype=np.float64))
    code.run([out])
    assert (out == 2 * np.arange(length)).all()


@pytest.mark.parametrize(("start", "stop"), [("begin", "end"), ("later", "end"), ("begin", "sooner")])
def test_bounds_that_are_computed(start: str, stop: str) -> None:
    bounds: dict[str, Expr] = {
        "begin": BEGIN,
        "end": END,
        "later": Apply("maximum", (BEGIN, Literal(5, "i32")), "i32"),
        "sooner": Apply("minimum", (Apply("add", (END, Literal(0, "i32")), "i32"), Literal(33, "i32")), "i32"),
    }
    i, count = counter("i", 50), 50
    buffers = [Buffer("out", 0, "int32", count, "write")]
    body = (Store("out", i, Position(i * 3 + 1)),)
    for grain in (1, 7, 16, 50):
        code = Code(
            program(buffers, [Loop("i", bounds[start], bounds[stop], 1, body, vector=8)], count=count, grain=grain)
        )
        out = guarded(np.zeros(count, np.int32))
        code.run([out])
        inside = (np.arange(count) >= (5 if start == "later" else 0)) & (
            np.arange(count) < (33 if stop == "sooner" else 50)
        )
        assert (out == np.where(inside, 3 * np.arange(count) + 1, 0)).all()


_REDUCTIONS: dict[str, tuple[Any, Callable[..., Any]]] = {
    "add": (0, np.sum),
    "multiply": (1, np.prod),
    "maximum": (-np.inf, np.max),
    "minimum": (np.inf, np.min),
}


@pytest.mark.parametrize("fn", _REDUCTIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("length", [1, 7, 8, 30, 64, 77])
def test_accumulators(length: int, dtype: DType, fn: str) -> None:
    start, reference = _REDUCTIONS[fn]
    if dtype == "int32" and not np.isfinite(start):
        start = -(1 << 31) if fn == "maximum" else (1 << 31) - 1
    x = np.random.default_rng(length).uniform(0.5, 1.5, (6, length)).astype(dtype)
    for options in ({"vector": 8}, {"vector": 4, "unroll": 4}, {"over_rows": 4}):
        out = guarded(np.zeros(6, dtype))
        Code(_reduction(fn, start, dtype, 6, length, **options)).run([guarded(x), out])
        np.testing.assert_allclose(out, reference(x, axis=1), rtol=1e-5 if dtype == "float32" else 1e-13)


@pytest.mark.parametrize("fn", ["maximum", "minimum"])
def test_extremes_keep_nan(fn: str) -> None:
    start, reference = _REDUCTIONS[fn]
    code = Code(_reduction(fn, start, "float32", 1, 45, vector=8, unroll=2))
    for place in range(45):
        x = np.random.default_rng(0).normal(size=45).astype(np.float32)
        x[place] = np.nan
        out = np.zeros(1, np.float32)
        code.run([x, out])
        assert np.isnan(out[0])
        x[place] = 0
        code.run([x, out])
        assert out[0] == reference(x)


_LENGTHS = (1, 5, 7, 8, 9, 16, 23, 64, 127, 128, 129, 136, 200, 257, 1000, 4099, 30000)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("length", _LENGTHS)
def test_sums_are_numpys_bit_for_bit(length: int, dtype: DType) -> None:
    x = (np.random.default_rng(length).standard_normal((11, length)) * 1e3).astype(dtype)
    choices: list[dict[str, Any]] = [{"vector": 8}]
    choices += [{"vector": 16, "unroll": 2}, {"over_rows": 8}] if length < 5000 else []
    for options in choices:
        out = np.zeros(11, dtype)
        Code(_reduction("add", 0.0, dtype, 11, length, pairwise=True, **options)).run([guarded(x), out])
        assert (out == x.sum(axis=1)).all(), options


def test_sums_of_a_length_that_is_known_later_are_numpys_as_well() -> None:
    count = 3000
    k = counter("k", count)
    add = Apply("add", (Name("total", "f64"), Load("x", k, "f64")), "f64")
    body = (
        Variable("total", Literal(0.0, "f64")),
        Loop("k", BEGIN, END, 1, (Assign("total", add),), sums=(("total", "add"),), vector=8, pairwise=True),
        Store("out", Index(0, [(Counter("part", 0, count), 1)]), Name("total", "f64")),
    )
    for grain in (3, 8, 100, 1111, 3000):
        parts = -(-count // grain)
        buffers = [Buffer("x", 0, "float64", count), Buffer("out", 1, "float64", parts, "write")]
        x, out = np.random.default_rng(1).normal(size=count), guarded(np.zeros(parts), at_end=False)
        Code(program(buffers, body, count=count, grain=grain)).run([guarded(x), out])
        assert (out == [x[first : first + grain].sum() for first in range(0, count, grain)]).all()


def test_two_sums_in_one_pass() -> None:
    length = 1001
    k = variable("k", length)
    body: tuple[Statement, ...] = (
        Variable("one", Literal(0.0, "f32")),
        Variable("other", Literal(0.0, "f32")),
        Loop(
            "k",
            Literal(0, "i32"),
            length,
            1,
            (
                Let("v", Load("x", k, "f32")),
                Assign("one", Apply("add", (Name("one", "f32"), Name("v", "f32")), "f32")),
                Let("square", Apply("multiply", (Name("v", "f32"), Name("v", "f32")), "f32")),
                Assign("other", Apply("add", (Name("other", "f32"), Name("square", "f32")), "f32")),
            ),
            sums=(("one", "add"), ("other", "add")),
            vector=16,
            pairwise=True,
        ),
        Store("out", ZERO, Name("one", "f32")),
        Store("out", ZERO + 1, Name("other", "f32")),
    )
    buffers = [Buffer("x", 0, "float32", length), Buffer("out", 1, "float32", 2, "write")]
    x, out = np.random.default_rng(1).normal(size=length).astype(np.float32), np.zeros(2, np.float32)
    Code(program(buffers, body)).run([x, out])
    assert out.tolist() == [x.sum(), (x * x).sum()]


@pytest.mark.parametrize("lanes", [1, 8])
def test_a_loop_inside_of_lanes_and_a_condition(lanes: int) -> None:
    """Column sums of the first rows, where they are positive in the first place."""
    rows, columns = 12, 21
    column, row = counter("column", columns), variable("row", rows)
    add = Apply("add", (Name("total", "f64"), Load("x", row * columns + column, "f64")), "f64")
    wanted = Apply("less", (Name("row", "i32"), Literal(7, "i32")), "bool")
    body = (
        Variable("total", Literal(0.0, "f64")),
        Loop("row", Literal(0, "i32"), rows, 1, (If(wanted, (Assign("total", add),)),)),
        Store("out", column, Name("total", "f64")),
    )
    buffers = [Buffer("x", 0, "float64", rows * columns), Buffer("out", 1, "float64", columns, "write")]
    x, out = np.random.default_rng(1).normal(size=(rows, columns)), guarded(np.zeros(columns))
    Code(program(buffers, [Loop("column", BEGIN, END, 1, body, vector=lanes)], count=columns)).run([guarded(x), out])
    np.testing.assert_allclose(out, x[:7].sum(axis=0), rtol=1e-14)


def test_scratch_arrays_are_memory_of_the_call() -> None:
    rows, columns = 9, 37
    row, column = counter("row", rows), variable("column", columns)
    first = Loop(
        "column",
        Literal(0, "i32"),
        columns,
        1,
        (
            Let("e", Apply("exp", (Load("x", row * columns + column, "f32"),), "f32")),
            Store("kept", column, Name("e", "f32")),
            Assign("total", Apply("add", (Name("total", "f32"), Name("e", "f32")), "f32")),
        ),
        sums=(("total", "add"),),
        vector=16,
    )
    divided = Apply("divide", (Load("kept", column, "f32"), Name("total", "f32")), "f32")
    second = Loop("column", Literal(0, "i32"), columns, 1, (Store("out", row * columns + column, divided),), vector=16)
    body = (Variable("total", Literal(0.0, "f32")), first, second)
    buffers = [Buffer("x", 0, "float32", rows * columns), Buffer("out", 1, "float32", rows * columns, "write")]
    nests = program(
        buffers, [Loop("row", BEGIN, END, 1, body)], count=rows, grain=2, scratch=[Scratch("kept", "float32", columns)]
    )
    x, out = (
        np.random.default_rng(1).normal(size=(rows, columns)).astype(np.float32),
        np.zeros((rows, columns), np.float32),
    )
    Code(nests).run([guarded(x), out])
    e = np.exp(x)
    np.testing.assert_allclose(out, e / e.sum(axis=1, keepdims=True), rtol=1e-5)
    assert "alloca [37 x float]" in module_text(nests, native())


def test_no_code_for_what_cannot_be_left_over() -> None:
    i = counter("i", 4096)
    buffers = [Buffer("x", 0, "float32", 4096), Buffer("out", 1, "float32", 4096, "write")]
    body = (Store("out", i, Load("x", i, "f32")),)
    exact = module_text(program(buffers, [Loop("i", BEGIN, END, 1, body, vector=16)], count=4096, grain=1024), native())
    assert exact.count("store ") == 1
    assert "smin" not in exact
    # The last vector ends where the loop ends.
    i = counter("i", 4095)
    odd = module_text(program(buffers, [Loop("i", BEGIN, END, 1, body, vector=16)], count=4095, grain=1024), native())
    assert odd.count("store ") == 1
    assert "smin" in odd


def test_a_small_nest_as_text() -> None:
    i = counter("i", 64)
    buffers = [Buffer("x", 0, "float32", 64), Buffer("out", 2, "float32", 64, "write")]
    body = (
        Let("v", Load("x", i, "f32")),
        Store("out", i, Apply("multiply", (Name("v", "f32"), Literal(0.5, "f32")), "f32")),
    )
    text = module_text(program(buffers, [Loop("i", BEGIN, END, 1, body, vector=16)], count=64, grain=32), native())
    start = text.index("define void @nest")
    assert text[start : text.index("\n}", start)].splitlines()[1:] == [
        "entry:",
        "  %x.at = getelementptr ptr, ptr %buffers, i64 0",
        "  %x.data = load ptr, ptr %x.at, align 8, !invariant.load !0",
        "  %out.at = getelementptr ptr, ptr %buffers, i64 2",
        "  %out.data = load ptr, ptr %out.at, align 8, !invariant.load !0",
        "  %v1 = icmp slt i64 %begin, %end",
        "  br i1 %v1, label %loop.2, label %after.3",
        "loop.2:",
        "  %v4 = phi i64 [ %begin, %entry ], [ %v9, %loop.2 ]",
        "  %v5 = getelementptr float, ptr %x.data, i64 %v4",
        "  %v6 = load <16 x float>, ptr %v5, align 4, !invariant.load !0",
        "  %v7 = fmul <16 x float> %v6, splat (float 0x3FE0000000000000)",
        "  %v8 = getelementptr float, ptr %out.data, i64 %v4",
        "  store <16 x float> %v7, ptr %v8, align 4",
        "  %v9 = add nsw i64 %v4, 16",
        "  %v10 = icmp slt i64 %v9, %end",
        "  br i1 %v10, label %loop.2, label %after.3, !llvm.loop !10",
        "after.3:",
        "  %v11 = phi i64 [ %begin, %entry ], [ %v9, %loop.2 ]",
        "  ret void",
    ]


def test_text_grows_as_the_program_does() -> None:
    def length(operations: int) -> int:
        value: Expr = Name("x0", "f64")
        body: list[Statement] = [Let("x0", Load("x", counter("i", 1000), "f64"))]
        for number in range(operations):
            fn = "exp" if number % 10 == 9 else "sqrt"
            body.append(Let(f"v{number}", Apply("add", (Apply(fn, (value,), "f64"), Name("x0", "f64")), "f64")))
            value = Name(f"v{number}", "f64")
        body.append(Store("out", counter("i", 1000), value))
        buffers = [Buffer("x", 0, "float64", 1000), Buffer("out", 1, "float64", 1000, "write")]
        loop = Loop("i", BEGIN, END, 1, tuple(body), vector=8, unroll=2)
        return len(module_text(program(buffers, [loop], count=1000), native()))

    start = length(0)
    assert length(400) - start < 2.2 * (length(200) - start)
    assert length(400) - start < 400 * 300


@pytest.mark.parametrize("fn", ["add", "maximum"])
def test_accumulators_that_inner_loops_update(fn: str) -> None:
    rows, columns = 21, 3
    row, column = variable("row", rows), variable("column", columns)
    new = Apply(fn, (Name("total", "i32"), Load("x", row * columns + column, "i32")), "i32")
    inner = Loop("column", Literal(0, "i32"), columns, 1, (Assign("total", new),))
    outer = Loop("row", Literal(0, "i32"), rows, 1, (inner,), sums=(("total", fn),), vector=8)
    body = (Variable("total", Literal(-5, "i32")), outer, Store("out", ZERO, Name("total", "i32")))
    buffers = [Buffer("x", 0, "int32", rows * columns), Buffer("out", 1, "int32", 1, "write")]
    x, out = np.random.default_rng(0).integers(-100, 100, rows * columns).astype(np.int32), np.zeros(1, np.int32)
    Code(program(buffers, body)).run([guarded(x), out])
    assert out[0] == (x.sum() - 5 if fn == "add" else x.max())
