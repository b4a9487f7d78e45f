from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anygpu.program.dtypes import DType
from anygpu.program.graph import Program, Recorder, constant_text, to_text
from anygpu.program.primitives import (
    Argsort,
    Binary,
    Broadcast,
    Cast,
    Concatenate,
    Constant,
    Contract,
    Flip,
    Fourier,
    Gather,
    Iota,
    Linear,
    Pad,
    Permute,
    Primitive,
    Reduce,
    Reshape,
    Scan,
    Scatter,
    Search,
    Select,
    Shape,
    Slice,
    Sort,
    Spec,
    Unary,
    Update,
    Windows,
)
from tests.program.sampling import random_program


def score() -> Program:
    recorder = Recorder()
    x = recorder.input(Spec((1000, 5), "float32"))
    w = recorder.input(Spec((5, 3), "float32"))
    product = recorder.add(Contract((1,), (0,)), x, w, line=("/home/me/score.py", 12))
    tenth = recorder.add(Constant((), "float32", struct.pack("<f", 0.1)))
    scaled = recorder.add(Binary("multiply"), product, recorder.add(Broadcast((1000, 3)), tenth))
    return recorder.program([recorder.add(Reduce("sum", (0,)), scaled), product])


def test_a_whole_program() -> None:
    assert to_text(score(), "score") == "\n".join(
        [
            "score(a: float32[1000, 5], b: float32[5, 3]):",
            "  t2 = contract a, b over 1×0    : float32[1000, 3]  # score.py:12",
            "  t3 = constant 0.1              : float32[]",
            "  t4 = broadcast t3 to [1000, 3] : float32[1000, 3]",
            "  t5 = multiply t2, t4           : float32[1000, 3]",
            "  t6 = sum t5 over axis 0        : float32[3]",
            "  return t6, t2",
        ]
    )


def test_str_is_the_text() -> None:
    assert str(score()) == to_text(score())


def test_an_input_that_is_returned() -> None:
    recorder = Recorder()
    assert str(recorder.program([recorder.input(Spec((), "int8"))])) == "program(a: int8[]):\n  return a"


def test_many_inputs_have_a_line_each_and_numbers_for_names() -> None:
    recorder = Recorder()
    inputs = [recorder.input(Spec((2, 2), "complex128")) for _ in range(30)]
    text = to_text(recorder.program([recorder.add(Concatenate(0), *inputs)]))
    assert "\n  x29: complex128[2, 2]\n):" in text
    assert "concatenate x0, x1, x2" in text


def step(op: Primitive, *specs: Spec) -> str:
    recorder = Recorder()
    inputs = [recorder.input(spec) for spec in specs]
    line = to_text(recorder.program([recorder.add(op, *inputs)])).splitlines()[-2]
    return line.partition(" = ")[2].partition(" : ")[0].rstrip()


def f32(*shape: int) -> Spec:
    return Spec(shape, "float32")


INDICES = Spec((2,), "int64")


@pytest.mark.parametrize(
    ("op", "specs", "text"),
    [
        (Unary("tanh"), [f32(2)], "tanh a"),
        (Binary("add"), [f32(2), f32(2)], "add a, b"),
        (Select(), [Spec((2,), "bool"), f32(2), f32(2)], "select a, b, c"),
        (Cast("int8"), [f32(2)], "cast a to int8"),
        (Iota(7, "int32"), [], "iota to 7"),
        (Reduce("max", (0, 2)), [f32(2, 3, 4)], "max a over axes 0, 2"),
        (Reduce("sum", ()), [f32(2)], "sum a over no axis"),
        (Scan("sum", 1), [f32(2, 3)], "running sum a along axis 1"),
        (Reshape((3, 2)), [f32(6)], "reshape a to [3, 2]"),
        (Permute((1, 0)), [f32(3, 2)], "permute a axes [1, 0]"),
        (Slice((2, 0, 1), (10, 4, 4), (2, 1, 1)), [f32(12, 4, 5)], "slice a [2:10:2, :, 1:4]"),
        (Update((1, 0), (3, 1)), [f32(9, 2), f32(2, 2)], "update a, b at [1:5:3, :]"),
        (Update((9,), (1,)), [f32(9), f32(0)], "update a, b at [9:]"),
        (Flip((0, 1)), [f32(2, 3)], "flip a along axes 0, 1"),
        (Pad((1, 0), (2, 0)), [f32(2, 3), f32()], "pad a, b by 1+2, 0+0"),
        (Concatenate(1), [f32(2, 3), f32(2, 4)], "concatenate a, b along axis 1"),
        (Windows(0, 3, 1), [f32(9)], "windows a of 3 along axis 0"),
        (Windows(0, 3, 2), [f32(9)], "windows a of 3 along axis 0 every 2"),
        (Contract((), ()), [f32(2), f32(3)], "contract a, b over no axes"),
        (Contract((2,), (1,), (0,), (0,)), [f32(5, 2, 3), f32(5, 3, 4)], "contract a, b over 2×1, batch 0×0"),
        (Gather(0), [f32(5), INDICES], "gather a, b along axis 0"),
        (Gather(1, 1), [f32(2, 5), INDICES], "gather a, b along axis 1, batch axes 1"),
        (Scatter("add", 0), [f32(5), INDICES, f32(2)], "scatter add a, b, c along axis 0"),
        (Sort(0), [f32(5)], "sort a along axis 0"),
        (Argsort(0), [f32(5)], "argsort a along axis 0"),
        (Search("right"), [f32(5), f32(2)], "search a, b side right"),
        (Fourier("rfft", 0, 8), [f32(8)], "rfft a of length 8 along axis 0"),
        (Linear("svd", 2, True), [f32(3, 4)], "svd.Vh a full"),
        (Linear("slogdet", 1), [f32(3, 3)], "slogdet.logabsdet a"),
        (Linear("solve"), [f32(3, 3), f32(3, 1)], "solve a, b"),
    ],
)
def test_attributes_are_spelled_out(op: Primitive, specs: list[Spec], text: str) -> None:
    assert step(op, *specs) == text


@pytest.mark.parametrize(
    ("dtype", "shape", "data", "text"),
    [
        ("bool", (2,), b"\x01\x00", "[True, False]"),
        ("int8", (), b"\xff", "-1"),
        ("uint64", (), b"\xff" * 8, "18446744073709551615"),
        ("int64", (2, 2), struct.pack("<4q", 1, 2, 3, 4), "[[1, 2], [3, 4]]"),
        ("float16", (), struct.pack("<e", 0.1), "0.1"),
        ("float16", (), struct.pack("<e", 65504), "65500.0"),
        ("bfloat16", (2,), b"\xcd\x3d\x80\x3f", "[0.1, 1.0]"),
        ("bfloat16", (), b"\x7f\x7f", "3.39e+38"),
        ("float32", (), struct.pack("<f", 0.1), "0.1"),
        ("float32", (), struct.pack("<f", 16777217), "16777216.0"),
        ("float32", (), struct.pack("<f", 3.4028234663852886e38), "3.4028235e+38"),
        ("float64", (), struct.pack("<d", 0.1), "0.1"),
        ("float64", (3,), struct.pack("<3d", float("nan"), float("inf"), -0.0), "[nan, inf, -0.0]"),
        ("complex64", (2,), struct.pack("<4f", 0.1, 2, 3, -4), "[0.1+2.0j, 3.0-4.0j]"),
        ("float32", (2, 0), b"", "[]"),
        ("uint8", (3, 100), bytes(300), "[0, 0, 0, 0, 0, 0, 0, 0, … 300 in all]"),
    ],
)
def test_constants_are_shown_by_value(dtype: DType, shape: Shape, data: bytes, text: str) -> None:
    op = Constant(shape, dtype, data)
    op.infer()
    assert constant_text(op) == text


def test_nothing_from_outside_breaks_a_line() -> None:
    recorder = Recorder()
    x = recorder.input(f32(2))
    program = recorder.program([recorder.add(Unary("exp"), x, line=("C:\\dir\\e\nvil\x1b[0m.py", 3))])
    text = to_text(program, "na\nme")
    assert len(text.splitlines()) == 3
    assert text.startswith("na?me(")
    assert "# e?vil?[0m.py:3" in text


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_every_program_has_one_line_for_each_node(seed: int) -> None:
    program = random_program(random.Random(seed))
    lines = to_text(program).splitlines()
    assert sum(" = " in line for line in lines) == len(program) - program.input_count
    assert lines[-1].startswith("  return ")
