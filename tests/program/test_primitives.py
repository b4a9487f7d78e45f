from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anygpu.errors import InvalidProgram
from anygpu.program.dtypes import DTYPES, ITEMSIZE, DType
from anygpu.program.functions import (
    BINARY,
    COMPARISONS,
    UNARY,
    BinaryFunction,
    FourierFunction,
    LinearFunction,
    ReduceFunction,
    ScanFunction,
    ScatterFunction,
    UnaryFunction,
    binary_dtype,
    unary_dtype,
)
from anygpu.program.graph import Recorder
from anygpu.program.ops.custom import Custom, Parameter, Role
from anygpu.program.ops.linear import Attend
from anygpu.program.primitives import (
    MAX_ELEMENTS,
    PRIMITIVES,
    SPECIAL,
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
    Input,
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
from anygpu.program.wire import to_bytes


def f32(*shape: int) -> Spec:
    return Spec(shape, "float32")


def f64(*shape: int) -> Spec:
    return Spec(shape, "float64")


def c64(*shape: int) -> Spec:
    return Spec(shape, "complex64")


def i64(*shape: int) -> Spec:
    return Spec(shape, "int64")


def boolean(*shape: int) -> Spec:
    return Spec(shape, "bool")


def doubled() -> bytes:
    """The byte form of x + x, for three numbers."""
    recorder = Recorder()
    x = recorder.input(f32(3))
    return to_bytes(recorder.program([recorder.add(Binary("add"), x, x)]))


DOUBLED = doubled()


def custom(**changes: Any) -> Custom:
    """A kernel that takes x and makes y, of three numbers each."""
    parts: dict[str, Any] = {
        "language": "wgsl",
        "title": "twice",
        "source": "",
        "entry": "main",
        "parameters": (Parameter("x", "float32", "input"), Parameter("y", "float32", "output")),
        "scalars": (),
        "group": (64, 1, 1),
        "groups": (1, 1, 1),
        "shapes": ((3,),),
    }
    return Custom(**{**parts, **changes})


GOOD: list[tuple[Primitive, list[Spec], Spec]] = [
    (Input((2, 3), "int8"), [], Spec((2, 3), "int8")),
    (Input((0, MAX_ELEMENTS), "bool"), [], boolean(0, MAX_ELEMENTS)),
    (Constant((2,), "float16", b"\0" * 4), [], Spec((2,), "float16")),
    (Constant((), "bool", b"\1"), [], boolean()),
    (Iota(5, "int64"), [], i64(5)),
    (Iota(0, "complex64"), [], c64(0)),
    (Unary("exp"), [f32(2, 3)], f32(2, 3)),
    (Unary("isnan"), [f32(2)], boolean(2)),
    (Unary("abs"), [c64(2)], f32(2)),
    (Unary("popcount"), [i64(2)], Spec((2,), "uint8")),
    (Unary("exponent"), [f64(2)], Spec((2,), "int32")),
    (Binary("add"), [f32(2), f32(2)], f32(2)),
    (Binary("less"), [f32(2), f32(2)], boolean(2)),
    (Binary("complex"), [f64(2), f64(2)], Spec((2,), "complex128")),
    (Binary("ldexp"), [f32(2), Spec((2,), "int32")], f32(2)),
    (Select(), [boolean(2), i64(2), i64(2)], i64(2)),
    (Cast("int8"), [c64(2)], Spec((2,), "int8")),
    (Reduce("sum", (0, 2)), [f32(2, 3, 4)], f32(3)),
    (Reduce("sum", ()), [f32(2)], f32(2)),
    (Reduce("prod", (0,)), [f32(0)], f32()),
    (Reduce("any", (0,)), [boolean(0)], boolean()),
    (Reduce("max", (0,)), [boolean(2)], boolean()),
    (Reduce("argmin", (1,)), [f32(2, 3)], i64(2)),
    (Scan("max", 1), [f32(2, 3)], f32(2, 3)),
    (Reshape((3, 2)), [f32(6)], f32(3, 2)),
    (Reshape((0, 7)), [f32(3, 0)], f32(0, 7)),
    (Reshape(()), [f32(1, 1)], f32()),
    (Permute((2, 0, 1)), [f32(2, 3, 4)], f32(4, 2, 3)),
    (Permute(()), [f32()], f32()),
    (Broadcast((4, 2, 3)), [f32(2, 1)], f32(4, 2, 3)),
    (Broadcast((0,)), [f32(1)], f32(0)),
    (Slice((1, 0), (5, 3), (2, 1)), [f32(6, 3)], f32(2, 3)),
    (Slice((6,), (6,), (1,)), [f32(6)], f32(0)),
    (Slice((), (), ()), [f32()], f32()),
    (Update((1,), (2,)), [f32(6), f32(3)], f32(6)),
    (Update((6,), (1,)), [f32(6), f32(0)], f32(6)),
    (Flip((1,)), [f32(2, 3)], f32(2, 3)),
    (Pad((1, 0), (0, 2)), [f32(2, 3), f32()], f32(3, 5)),
    (Pad((), ()), [f32(), f32()], f32()),
    (Concatenate(1), [f32(2, 3), f32(2, 0), f32(2, 4)], f32(2, 7)),
    (Windows(0, 3, 2), [f32(8, 2)], f32(3, 2, 3)),
    (Contract((1,), (0,)), [f32(2, 3), f32(3, 4)], f32(2, 4)),
    (Contract((2,), (1,), (0,), (0,)), [f32(5, 2, 3), f32(5, 3, 4)], f32(5, 2, 4)),
    (Contract((), ()), [f32(2), f32(3)], f32(2, 3)),
    (Gather(1), [f32(2, 5, 3), i64(4, 6)], f32(2, 4, 6, 3)),
    (Gather(1, 1), [f32(2, 5, 3), i64(2, 6)], f32(2, 6, 3)),
    (Scatter("add", 1), [f32(2, 5), i64(4), f32(2, 4)], f32(2, 5)),
    (Scatter("set", 1, 1), [f32(2, 5), i64(2, 3), f32(2, 3)], f32(2, 5)),
    (Sort(0), [c64(3)], c64(3)),
    (Argsort(1), [f32(2, 3)], i64(2, 3)),
    (Search("left"), [f32(9), f32(2, 3)], i64(2, 3)),
    (Fourier("fft", 0, 8), [c64(8, 2)], c64(8, 2)),
    (Fourier("rfft", 1, 7), [f64(2, 7)], Spec((2, 4), "complex128")),
    (Fourier("rfft", 0, 4), [Spec((4,), "float16")], c64(3)),
    (Fourier("irfft", 0, 7), [c64(4)], f32(7)),
    (Fourier("irfft", 0, 6), [c64(4)], f32(6)),
    (Linear("cholesky"), [f32(5, 3, 3)], f32(5, 3, 3)),
    (Linear("inv"), [c64(3, 3)], c64(3, 3)),
    (Linear("solve"), [f32(3, 3), f32(3, 2)], f32(3, 2)),
    (Linear("det"), [f32(5, 3, 3)], f32(5)),
    (Linear("slogdet", 0), [c64(3, 3)], c64()),
    (Linear("slogdet", 1), [c64(3, 3)], f32()),
    (Linear("qr", 0), [f32(5, 3)], f32(5, 3)),
    (Linear("qr", 1), [f32(5, 3)], f32(3, 3)),
    (Linear("qr", 0, True), [f32(5, 3)], f32(5, 5)),
    (Linear("qr", 1, True), [f32(5, 3)], f32(5, 3)),
    (Linear("svd", 0), [c64(5, 3)], c64(5, 3)),
    (Linear("svd", 1), [c64(5, 3)], f32(3)),
    (Linear("svd", 2), [c64(2, 3)], c64(2, 3)),
    (Linear("svd", 2, True), [c64(2, 3)], c64(3, 3)),
    (Linear("svdvals"), [c64(5, 3)], f32(3)),
    (Linear("eigh", 0), [c64(3, 3)], f32(3)),
    (Linear("eigh", 1), [c64(3, 3)], c64(3, 3)),
    (Linear("eigvalsh"), [c64(3, 3)], f32(3)),
    (Linear("eig", 0), [f32(3, 3)], c64(3)),
    (Linear("eig", 1), [Spec((3, 3), "complex128")], Spec((3, 3), "complex128")),
    (Attend(1.0), [f32(2, 3), f32(4, 3), f32(4, 5)], f32(2, 5)),
    (Attend(-0.5, True), [f64(6, 2, 3), f64(6, 4, 3), f64(6, 4, 5), f64(6, 2, 4)], f64(6, 2, 5)),
    (Attend(1.0), [f32(0, 3), f32(0, 3), f32(0, 0)], f32(0, 0)),
    (custom(), [f32(3)], f32(3)),
    (custom(), [f32(7, 7)], f32(3)),
    (custom(reference=DOUBLED), [f32(3)], f32(3)),
    (custom(parameters=(Parameter("x", "float32", "update"),)), [f32(3)], f32(3)),
]

BAD: list[tuple[Primitive, list[Spec], str]] = [
    (Input((2,), "int8"), [f32(2)], "takes 0 inputs, not 1"),
    (Input((-1,), "int8"), [], "not a possible shape"),
    (Input((MAX_ELEMENTS, 2), "int8"), [], "not a possible shape"),
    (Input((1,) * 65, "int8"), [], "at most 64 axes"),
    (Constant((2,), "float32", b"\0" * 7), [], "has 8 bytes, and 7 are given"),
    (Constant((2,), "bool", b"\0\2"), [], "0 or 1"),
    (Constant((-1,), "bool", b""), [], "not a possible shape"),
    (Constant((), "bool", b"\0"), [f32()], "takes 0 inputs"),
    (Iota(-1, "int64"), [], "not a possible shape"),
    (Iota(3, "bool"), [], "bool cannot"),
    (Iota(3, "int8"), [f32()], "takes 0 inputs"),
    (Unary("exp"), [], "takes 1 inputs, not 0"),
    (Unary("exp"), [i64(2)], "not defined for int64; cast"),
    (Unary("floor"), [c64(2)], "not defined for complex64"),
    (Unary("invert"), [f32(2)], "not defined for float32"),
    (Unary("real"), [f32(2)], "not defined for float32"),
    (Binary("add"), [f32(2)], "takes 2 inputs"),
    (Binary("add"), [f32(2), f32(1)], "broadcast one of them"),
    (Binary("add"), [f32(2), f64(2)], "float32 and float64 differ"),
    (Binary("add"), [boolean(2), boolean(2)], "not defined for bool"),
    (Binary("divide"), [i64(2), i64(2)], "not defined for int64"),
    (Binary("ldexp"), [f32(2), i64(2)], "floating point and int32"),
    (Select(), [boolean(2), f32(2)], "takes 3 inputs"),
    (Select(), [i64(2), f32(2), f32(2)], "needs bool"),
    (Select(), [boolean(2), f32(2), f64(2)], "two equal types"),
    (Select(), [boolean(2), f32(2), f32(1)], "broadcast them"),
    (Cast("int8"), [], "takes 1 inputs"),
    (Reduce("sum", (0,)), [], "takes 1 inputs"),
    (Reduce("sum", (1,)), [f32(2)], "not different axes"),
    (Reduce("sum", (-1,)), [f32(2)], "not different axes"),
    (Reduce("sum", (0, 0)), [f32(2, 2)], "not different axes"),
    (Reduce("sum", (1, 0)), [f32(2, 2)], "must be in order"),
    (Reduce("argmax", (0, 1)), [f32(2, 2)], "takes one axis"),
    (Reduce("argmax", ()), [f32(2, 2)], "takes one axis"),
    (Reduce("max", (0,)), [f32(0)], "nothing to choose from"),
    (Reduce("sum", (0,)), [boolean(2)], "not defined for bool"),
    (Reduce("any", (0,)), [f32(2)], "not defined for float32"),
    (Scan("sum", 0), [], "takes 1 inputs"),
    (Scan("sum", 0), [f32()], "not different axes"),
    (Scan("sum", 0), [boolean(2)], "cast it first"),
    (Reshape((2,)), [], "takes 1 inputs"),
    (Reshape((4,)), [f32(6)], "as many elements"),
    (Reshape((-1,)), [f32(6)], "not a possible shape"),
    (Reshape((0,)), [f32()], "as many elements"),
    (Permute((0,)), [], "takes 1 inputs"),
    (Permute((0,)), [f32(2, 3)], "not an order of the axes"),
    (Permute((0, 0)), [f32(2, 3)], "not an order of the axes"),
    (Permute((0, -1)), [f32(2, 3)], "not an order of the axes"),
    (Broadcast((2,)), [], "takes 1 inputs"),
    (Broadcast((3,)), [f32(2)], "cannot be repeated"),
    (Broadcast((3,)), [f32(1, 3)], "cannot be repeated"),
    (Broadcast(()), [f32(1)], "cannot be repeated"),
    (Broadcast((MAX_ELEMENTS, 2)), [f32(1)], "not a possible shape"),
    (Slice((0,), (1,), (1,)), [], "takes 1 inputs"),
    (Slice((0,), (1,), (1,)), [f32(2, 2)], "for each of the 2 axes"),
    (Slice((0,), (3,), (1,)), [f32(2)], "outside"),
    (Slice((-1,), (1,), (1,)), [f32(2)], "outside"),
    (Slice((2,), (1,), (1,)), [f32(2)], "outside"),
    (Slice((0,), (1,), (0,)), [f32(2)], "outside"),
    (Slice((0,), (1,), (-1,)), [f32(2)], "outside"),
    (Slice((0,), (1,), (2**63,)), [f32(2)], "outside"),
    (Update((0,), (1,)), [f32(2)], "takes 2 inputs"),
    (Update((0,), (1,)), [f32(2), f64(1)], "does not fit"),
    (Update((0,), (1,)), [f32(2), f32(1, 1)], "does not fit"),
    (Update((0, 0), (1,)), [f32(2), f32(1)], "does not fit"),
    (Update((1,), (1,)), [f32(2), f32(2)], "do not fit into 2"),
    (Update((0,), (2,)), [f32(2), f32(2)], "do not fit into 2"),
    (Update((-1,), (1,)), [f32(2), f32(1)], "do not fit into 2"),
    (Update((0,), (0,)), [f32(2), f32(1)], "do not fit into 2"),
    (Update((3,), (1,)), [f32(2), f32(0)], "do not fit into 2"),
    (Update((0,), (2**63,)), [f32(2), f32(1)], "do not fit into 2"),
    (Flip((0,)), [], "takes 1 inputs"),
    (Flip((0, 0)), [f32(2)], "not different axes"),
    (Pad((0,), (0,)), [f32(2)], "takes 2 inputs"),
    (Pad((0,), (0,)), [f32(2), f32(1)], "the value must be one float32"),
    (Pad((0,), (0,)), [f32(2), f64()], "the value must be one float32"),
    (Pad((0,), (0, 0)), [f32(2), f32()], "two widths"),
    (Pad((0,), (-1,)), [f32(2), f32()], "two widths"),
    (Pad((MAX_ELEMENTS,), (0,)), [f32(2), f32()], "not a possible shape"),
    (Concatenate(0), [], "at least one input"),
    (Concatenate(1), [f32(2), f32(2)], "not different axes"),
    (Concatenate(0), [f32(2), f64(2)], "does not fit"),
    (Concatenate(0), [f32(2, 3), f32(2, 4)], "does not fit"),
    (Concatenate(1), [f32(2, 3), f32(2)], "does not fit"),
    (Concatenate(0), [f32(MAX_ELEMENTS), f32(1)], "not a possible shape"),
    (Windows(0, 2, 1), [], "takes 1 inputs"),
    (Windows(1, 2, 1), [f32(5)], "not different axes"),
    (Windows(0, 6, 1), [f32(5)], "no stretch"),
    (Windows(0, 0, 1), [f32(5)], "no stretch"),
    (Windows(0, 2, 0), [f32(5)], "no stretch"),
    (Windows(0, 1, 2**63), [f32(5)], "no stretch"),
    (Windows(0, 1, 1), [f32(*(1,) * 64)], "at most 64 axes"),
    (Windows(0, 1 << 40, 1), [f32(1 << 50)], "not a possible shape"),
    (Contract((0,), (0,)), [f32(2)], "takes 2 inputs"),
    (Contract((0,), (0,)), [f32(2), f64(2)], "differ; cast"),
    (Contract((0,), (0,)), [f32(2), f32(3)], "differ in length"),
    (Contract((0,), (1,)), [f32(2), f32(2)], "not different axes"),
    (Contract((2,), (0,)), [f32(2), f32(2)], "not different axes"),
    (Contract((0, 0), (0, 1)), [f32(2), f32(2, 2)], "not different axes"),
    (Contract((0,), (0,), (0,), (0,)), [f32(2), f32(2)], "not different axes"),
    (Contract((0,), ()), [f32(2), f32(2)], "come in pairs"),
    (Contract((), (), (0,), ()), [f32(2), f32(2)], "come in pairs"),
    (Contract((), (0,), (0,), ()), [f32(2), f32(2)], "come in pairs"),
    (Contract((), ()), [f32(1 << 40), f32(1 << 40)], "not a possible shape"),
    (Gather(0), [f32(2)], "takes 2 inputs"),
    (Gather(0), [f32(2), f32(2)], "positions are integers"),
    (Gather(0), [f32(2), boolean(2)], "positions are integers"),
    (Gather(1), [f32(2), i64(2)], "not different axes"),
    (Gather(0, 1), [f32(2), i64(2)], "do not go together"),
    (Gather(1, -1), [f32(2, 2), i64(2)], "do not go together"),
    (Gather(1, 1), [f32(2, 2), i64(3)], "do not go together"),
    (Gather(1, 1), [f32(2, 2), i64()], "do not go together"),
    (Gather(0), [f32(1 << 40, 1 << 18), i64(1 << 50)], "not a possible shape"),
    (Scatter("set", 0), [f32(2), i64(2)], "takes 3 inputs"),
    (Scatter("set", 0), [f32(2), f32(2), f32(2)], "positions are integers"),
    (Scatter("set", 0), [f32(2), i64(3), f32(2)], r"updates must be float32\[3\]"),
    (Scatter("set", 0), [f32(2), i64(3), f64(3)], r"updates must be float32\[3\]"),
    (Sort(0), [], "takes 1 inputs"),
    (Sort(0), [f32()], "not different axes"),
    (Argsort(0), [], "takes 1 inputs"),
    (Argsort(1), [f32(2)], "not different axes"),
    (Search("left"), [f32(2)], "takes 2 inputs"),
    (Search("left"), [f32(2, 2), f32(2)], "needs a vector"),
    (Search("left"), [f32(2), f64(2)], "values of its type"),
    (Fourier("fft", 0, 2), [], "takes 1 inputs"),
    (Fourier("fft", 1, 2), [c64(2)], "not different axes"),
    (Fourier("fft", 0, 3), [c64(2)], "does not fit"),
    (Fourier("fft", 0, 0), [c64(0)], "does not fit"),
    (Fourier("irfft", 0, -1), [c64(0)], "does not fit"),
    (Fourier("irfft", 0, 8), [c64(4)], "does not fit"),
    (Fourier("fft", 0, 2), [f32(2)], "not defined for float32"),
    (Fourier("rfft", 0, 2), [c64(2)], "not defined for complex64"),
    (Fourier("rfft", 0, 2), [i64(2)], "not defined for int64"),
    (Fourier("irfft", 0, 2), [f32(2)], "not defined for float32"),
    (Fourier("irfft", 0, MAX_ELEMENTS + 2), [c64(MAX_ELEMENTS // 2 + 2)], "not a possible shape"),
    (Linear("inv"), [], "takes 1 inputs"),
    (Linear("solve"), [f32(2, 2)], "takes 2 inputs"),
    (Linear("inv"), [f32(2)], "needs matrices"),
    (Linear("inv"), [i64(2, 2)], "needs matrices of float32"),
    (Linear("inv"), [Spec((2, 2), "float16")], "needs matrices of float32"),
    (Linear("inv"), [f32(2, 3)], "square"),
    (Linear("inv", 1), [f32(2, 2)], "no part 1"),
    (Linear("svd", 3), [f32(2, 2)], "no part 3"),
    (Linear("svd", -1), [f32(2, 2)], "no part -1"),
    (Linear("solve"), [f32(2, 2), f64(2, 2)], "does not fit"),
    (Linear("solve"), [f32(2, 2), f32(3, 2)], "does not fit"),
    (Linear("solve"), [f32(2, 2), f32(2)], "does not fit"),
    (Linear("svd", 0, True), [f32(1 << 40, 1)], "not a possible shape"),
    (Attend(1.0), [f32(2, 3), f32(4, 3)], "takes 3 or 4 inputs"),
    (Attend(math.nan), [f32(2, 3), f32(4, 3), f32(4, 5)], "not a scale"),
    (Attend(1.0), [f32(2, 3), f32(4, 3), f64(4, 5)], "floats of one type"),
    (Attend(1.0), [i64(2, 3), i64(4, 3), i64(4, 5)], "floats of one type"),
    (Attend(1.0), [f32(3), f32(4, 3), f32(4, 5)], "at least two axes"),
    (Attend(1.0), [f32(2, 3), f32(4, 2), f32(4, 5)], r"k must have the shape \(4, 3\)"),
    (Attend(1.0), [f32(2, 3), f32(4, 3), f32(4, 5), f32(4, 2)], r"bias must have the shape \(2, 4\)"),
    (Attend(1.0), [f32(1 << 40, 1), f32(1, 1), f32(1, 1 << 40)], "not a possible shape"),
    (custom(), [], "takes 1 arrays"),
    (custom(), [f64(3)], "x is float32, not float64"),
    (custom(shapes=()), [f32(3)], "0 shapes for 1 results"),
    (custom(result=1), [f32(3)], "1 shapes for 1 results"),
    (custom(groups=(-1, 1, 1)), [f32(3)], "no possible grid"),
    (custom(shapes=((1 << 60,),)), [f32(3)], "not a possible shape"),
    (custom(parameters=(Parameter("x", "float32", "update"),)), [f32(4)], "changes its shape"),
    (custom(reference=b"no program"), [f32(3)], "not a program"),
    (custom(reference=DOUBLED), [f32(4)], "its reference maps"),
]


@pytest.mark.parametrize(("op", "inputs", "result"), GOOD)
def test_the_result_of_a_primitive(op: Primitive, inputs: list[Spec], result: Spec) -> None:
    assert op.infer(*inputs) == result


@pytest.mark.parametrize(("op", "inputs", "message"), BAD)
def test_what_a_primitive_refuses(op: Primitive, inputs: list[Spec], message: str) -> None:
    with pytest.raises(InvalidProgram, match=message):
        op.infer(*inputs)


def leaves(kind: type[Primitive]) -> Iterator[type[Primitive]]:
    """The classes without subclasses: all others are families, or have kinds to which all their rules apply."""
    below = [each for each in kind.__subclasses__() if each not in SPECIAL]
    yield from (leaf for each in below for leaf in leaves(each)) if below else (kind,)


def test_every_primitive_is_tried_both_ways() -> None:
    every = set(PRIMITIVES)
    assert {type(op) for op, _, _ in GOOD} == every
    assert {type(op) for op, _, _ in BAD} == every
    assert every == set(leaves(Primitive))


#: NumPy has no bfloat16 of its own, and no functions that give just these.
NUMPYS = [dtype for dtype in DTYPES if dtype != "bfloat16"]
NOT_IN_NUMPY = ("erf", "mantissa", "exponent", "complex", "ldexp")
RENAMED = {
    "popcount": "bitwise_count",
    **{fn: f"arc{fn[1:]}" for fn in ("asin", "acos", "atan", "asinh", "acosh", "atanh", "atan2")},
}


@pytest.mark.parametrize("dtype", NUMPYS)
def test_the_types_of_functions_are_numpys(dtype: DType) -> None:
    ones = np.ones(2, dtype)
    for fn in UNARY:
        with contextlib.suppress(InvalidProgram):
            ours = unary_dtype(fn, dtype)
            if fn not in NOT_IN_NUMPY:
                with np.errstate(all="ignore"):
                    assert getattr(np, RENAMED.get(fn, fn))(ones).dtype.name == ours, fn
    for other in BINARY:
        with contextlib.suppress(InvalidProgram):
            ours = binary_dtype(other, dtype, dtype)
            if other not in NOT_IN_NUMPY:
                assert getattr(np, RENAMED.get(other, other))(ones, ones).dtype.name == ours, other
            assert (ours == "bool") == (other in COMPARISONS or dtype == "bool")


def test_names_are_what_a_person_says() -> None:
    assert Unary("exp").name == "exp"
    assert Concatenate(0).name == "concatenate"
    assert str(f32(2, 3)) == "float32[2, 3]"
    assert str(f32()) == "float32[]"


def test_a_spec_knows_its_size() -> None:
    assert (f32(2, 3).size, f32(2, 3).nbytes) == (6, 24)
    assert (f32().size, f32(0, 5).nbytes) == (1, 0)


def test_every_size_fits_into_64_bits() -> None:
    assert MAX_ELEMENTS * max(ITEMSIZE.values()) < 1 << 63


def test_primitives_are_values() -> None:
    assert Reduce("sum", (0,)) == Reduce("sum", (0,))
    assert len({Sort(0), Sort(0), Argsort(0), Sort(1)}) == 3
    with pytest.raises(AttributeError):
        Sort(0).axis = 1  # type: ignore[misc]


INTEGERS = (0, 1, 2, 3, 4, 5, 63, 64, -1, -2, 2**31, 2**57, 2**58, 2**62, 2**63, 2**64 - 1)
FUNCTIONS: dict[str, tuple[str, ...]] = {
    "Unary": get_args(UnaryFunction),
    "Binary": get_args(BinaryFunction),
    "Reduce": get_args(ReduceFunction),
    "Scan": get_args(ScanFunction),
    "Scatter": get_args(ScatterFunction),
    "Fourier": get_args(FourierFunction),
    "Linear": get_args(LinearFunction),
}


def arbitrary(primitive: type[Primitive], rng: random.Random) -> Primitive:
    """With attributes that have the right types and nothing else."""
    values: list[Any] = []
    for each in msgspec.structs.fields(primitive):
        name = each.name
        if name == "fn":
            values.append(rng.choice(FUNCTIONS[primitive.__name__]))
        elif name == "dtype":
            values.append(rng.choice(DTYPES))
        elif name == "side":
            values.append("left")
        elif name in ("full", "causal", "checked"):
            values.append(rng.random() < 0.5)
        elif name == "scale":
            values.append(rng.choice((0.5, math.inf, math.nan)))
        elif name in ("title", "source", "entry"):
            values.append("x")
        elif name == "language":
            values.append("wgsl")
        elif name == "parameters":
            roles: tuple[Role, ...] = ("input", "output", "update")
            values.append(
                tuple(Parameter("x", rng.choice(DTYPES), rng.choice(roles)) for _ in range(rng.choice((0, 1, 1, 2))))
            )
        elif name == "scalars":
            values.append(())
        elif name in ("group", "groups"):
            values.append(tuple(rng.choice(INTEGERS) for _ in range(3)))
        elif name == "shapes":
            values.append(tuple(possible_spec(rng).shape for _ in range(rng.choice((0, 1, 1, 2)))))
        elif name in ("data", "reference"):
            values.append(rng.randbytes(rng.randrange(20)))
        elif each.type is int:
            values.append(rng.choice(INTEGERS[: rng.choice((4, 16))]))
        else:
            choices = INTEGERS[: rng.choice((3, 5, 16))]
            values.append(tuple(rng.choice(choices) for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 64)))))
    return primitive(*values)


def possible_spec(rng: random.Random) -> Spec:
    while True:
        shape: Shape = tuple(
            rng.choice((0, 1, 2, 2, 3, 5, 2**20, 2**40)) for _ in range(rng.choice((0, 1, 2, 2, 3, 64)))
        )
        try:
            return Input(shape, rng.choice(DTYPES)).infer()
        except InvalidProgram:
            continue


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_whatever_the_attributes_are_there_is_a_possible_spec_or_a_refusal(seed: int) -> None:
    rng = random.Random(seed)
    for primitive in PRIMITIVES:
        op = arbitrary(primitive, rng)
        specs = [possible_spec(rng) for _ in range(2)]
        inputs = [rng.choice(specs) for _ in range(rng.choice((0, 1, 1, 2, 2, 3)))]
        try:
            result = op.infer(*inputs)
        except InvalidProgram:
            continue
        assert Input(*result).infer() == result
