"""Loads and stores of every kind, beside protected pages: right, and never outside of a buffer."""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np
import pytest

from anygpu.base.typing import HostArray
from anygpu.engines.codegen.dialects.llvm.loops import module_text
from anygpu.engines.codegen.index import Clamped, Index, Quotient, Remainder, constant
from anygpu.engines.codegen.index import IndexVariable as Counter
from anygpu.engines.codegen.kernel import Slot
from anygpu.engines.codegen.kernel_ir import Apply, Buffer, Let, Literal, Load, Loop, Name, Report, Statement, Store
from anygpu.engines.codegen.nests.steps import Nest, NestProgram
from anygpu.engines.codegen.target import COMPUTE
from anygpu.program.dtypes import DType
from tests.codegen.dialects.llvm.guarded import guarded
from tests.codegen.dialects.llvm.running import BEGIN, END, Code, counter, native, program
from tests.codegen.evaluating import evaluate_index

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="protected pages are made by mprotect")


class Copy(NamedTuple):
    """`out[target] = x[source]` for i from 0 to `rounds`, in parts of `grain`."""

    source: Index
    target: Index
    rounds: int
    grain: int = 0


def check(copies: list[Copy], lanes: int) -> None:
    """All in one module, with every buffer right before a protected page, and then right after one."""
    nests: list[Nest] = []
    arrays: list[HostArray] = []
    for number, (source, target, count, grain) in enumerate(copies):
        sizes = source.high + 1, target.high + 1
        one, other = 2 * number, 2 * number + 1
        buffers = (Buffer("x", one, "float32", sizes[0]), Buffer("out", other, "float32", sizes[1], "write"))
        loop = Loop("i", BEGIN, END, 1, (Store("out", target, Load("x", source, "f32")),), vector=lanes)
        nests.append(Nest(name=f"nest{number}", buffers=buffers, body=(loop,), count=count, grain=grain or count))
        arrays += [np.arange(sizes[0], dtype=np.float32), np.zeros(sizes[1], np.float32)]
    slots = tuple(Slot(each.nbytes, "input") for each in arrays)
    code = Code(NestProgram(slots=slots, steps=tuple(nests), outputs=()))
    for at_end in (True, False):
        given = [guarded(each, at_end=at_end) for each in arrays]
        code.run(given)
        for each, values, out in zip(copies, given[::2], given[1::2], strict=True):
            expected = np.zeros_like(out)
            for i in range(each.rounds):
                expected[evaluate_index(each.target, {"i": i})] = values[evaluate_index(each.source, {"i": i})]
            assert (out == expected).all(), each


@pytest.mark.parametrize("lanes", [2, 4, 8])
def test_evenly_spaced_elements(lanes: int) -> None:
    copies = []
    for step in (1, 2, 3, 4, 5, 6, 8, 9, -1, -2, -3, -4):
        for count in (1, 7, 8, 45):
            i = counter("i", count)
            start = 0 if step > 0 else abs(step) * (count - 1)
            for first in (0, 1):
                moved = i * step + start + first
                copies += [Copy(moved, i, count), Copy(i, moved, count)]
    check(copies, lanes)


@pytest.mark.parametrize("lanes", [2, 4, 8, 16])
def test_quotients_and_remainders(lanes: int) -> None:
    copies = []
    for count, by in ((64, 4), (64, 8), (60, 3), (64, 5), (48, 16), (50, 25), (96, 32), (7, 2), (33, 1000)):
        i = counter("i", count)
        quotient, remainder = Index(0, [(Quotient(i, by), 1)]), Index(0, [(Remainder(i, by), 1)])
        flipped = Index(0, [(Quotient(constant(count - 1) - i, by), 1)])
        turned = remainder * (count // by + 1) + quotient
        copies += [Copy(turned, i, count), Copy(i, turned, count), Copy(flipped, i, count)]
        copies += [Copy(quotient, i, count, max(1, count // 3)), Copy(remainder, i, count, max(1, count // 16 * 8))]
    check(copies, lanes)


def test_moved_into_the_range() -> None:
    i = counter("i", 40)
    copies = [Copy(Index(0, [(Clamped(i - 3, 0, 20), 1)]), i, 40)]
    copies.append(Copy(Index(0, [(Clamped(constant(39) - i, 2, 7), 2)]) + 1, i, 40))
    check(copies, 8)


@pytest.mark.parametrize("lanes", [1, 8])
def test_gathers_and_reports(lanes: int) -> None:
    count, length = 50, 9
    i = counter("i", count)
    wanted = Load("at", i, "i64")
    narrow = Apply("cast_i32", (wanted,), "i32")
    negative = Apply("less", (wanted, Literal(0, "i64")), "bool")
    beyond = Apply("greater_equal", (wanted, Literal(length, "i64")), "bool")
    outside = Apply("bitwise_or", (negative, beyond), "bool")
    bounded = Apply("maximum", (narrow, Literal(0, "i32")), "i32")
    bounded = Apply("minimum", (bounded, Literal(length - 1, "i32")), "i32")
    body: tuple[Statement, ...] = (
        Report(1, outside, narrow),
        Let("place", bounded),
        Store("out", i, Load("x", Index(0, [(Counter("place", 0, length - 1), 1)]), "f64")),
    )
    buffers = [
        Buffer("x", 0, "float64", length),
        Buffer("at", 1, "int64", count),
        Buffer("out", 2, "float64", count, "write"),
    ]
    code = Code(program(buffers, [Loop("i", BEGIN, END, 1, body, vector=lanes)], count=count, status=3))
    rng = np.random.default_rng(0)
    x, at = guarded(rng.normal(size=length)), rng.integers(0, length, count)
    for wrong, word in ((None, 0), (-1, 1 << 31), (12, 13), (-7, (1 << 32) - 6)):
        out, status = np.zeros(count), np.zeros(4, np.uint32)
        given = at.copy()
        if wrong is not None:
            given[33] = wrong
        code.run([x, guarded(given), out, status])
        assert (out == x[np.clip(given, 0, length - 1)]).all()
        assert status.tolist() == [0, word, 0, 0]


@pytest.mark.parametrize("parts", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("count", [8, 21])
def test_neighbouring_parts_are_stored_together(count: int, parts: int) -> None:
    """Complex numbers and colours: as many loads and stores as there are vectors of memory."""
    i = counter("i", count)
    buffers = [Buffer("x", 0, "float32", parts * count), Buffer("out", 1, "float32", parts * count, "write")]
    body: list[Statement] = []
    for part in range(parts):
        value = Apply("multiply", (Load("x", i * parts + (parts - 1 - part), "f32"), Literal(part + 1.0, "f32")), "f32")
        body += [Let(f"v{part}", value), Store("out", i * parts + part, Name(f"v{part}", "f32"))]
    nests = program(buffers, [Loop("i", BEGIN, END, 1, tuple(body), vector=8)], count=count)
    code = Code(nests)
    x = np.arange(parts * count, dtype=np.float32)
    out = guarded(np.zeros(parts * count, np.float32))
    code.run([guarded(x), out])
    factors = np.arange(1, parts + 1, dtype=np.float32)
    assert (out.reshape(count, parts) == x.reshape(count, parts)[:, ::-1] * factors).all()
    text = module_text(nests, native())
    assert text.count("load <8 x float>") == parts
    assert text.count(f"store <{8 * parts} x float>") == 1


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(
    "dtype",
    [
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    ],
)
def test_every_type_of_elements(dtype: DType, plain: bool) -> None:
    count = 45
    i = counter("i", count)
    buffers = [Buffer("x", 0, dtype, count), Buffer("out", 1, dtype, count, "write")]
    body = (Store("out", i, Load("x", i, COMPUTE[dtype])),)
    bits = np.random.default_rng(0).integers(0, 256, 8 * count, dtype=np.uint8)
    x = (bits[:count] % 2).astype(bool) if dtype == "bool" else bits.view(dtype)[:count].copy()
    for lanes in (1, 8):
        code = Code(program(buffers, [Loop("i", BEGIN, END, 1, body, vector=lanes)], count=count), plain=plain)
        out = guarded(np.zeros(count, dtype))
        code.run([guarded(x), out])
        assert ((out == x) | ((x != x) & (out != out))).all()


@pytest.mark.parametrize("plain", [False, True])
def test_bfloat16_is_the_upper_half_of_float32(plain: bool) -> None:
    count = 33
    i = counter("i", count)
    buffers = [Buffer("x", 0, "bfloat16", count), Buffer("out", 1, "float32", count, "write")]
    body = (Store("out", i, Apply("multiply", (Load("x", i, "f32"), Literal(2.0, "f32")), "f32")),)
    code = Code(program(buffers, [Loop("i", BEGIN, END, 1, body, vector=8)], count=count), plain=plain)
    x = np.linspace(-3, 3, count, dtype=np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    out = np.zeros(count, np.float32)
    code.run([(x >> np.uint32(16)).astype(np.uint16), out])
    assert (out == 2 * x.view(np.float32)).all()


def test_what_nobody_writes_is_read_once() -> None:
    i = counter("i", 64)
    buffers = [Buffer("x", 0, "float32", 64), Buffer("out", 1, "float32", 64, "write")]
    x = Load("x", i, "f32")
    body = (Store("out", i, Apply("add", (x, x), "f32")), Store("out", i, Apply("multiply", (x, x), "f32")))
    text = module_text(program(buffers, [Loop("i", BEGIN, END, 1, body, vector=8)], count=64), native())
    assert text.count("load <8 x float>") == 1
    assert text.count("!invariant.load") == 3
    reading = (Store("out", i, Apply("add", (Load("out", i, "f32"), x), "f32")),)
    text = module_text(program(buffers, [Loop("i", BEGIN, END, 1, reading, vector=8)], count=64), native())
    assert text.count("!invariant.load") == 3
    assert text.count("load <8 x float>") == 2
