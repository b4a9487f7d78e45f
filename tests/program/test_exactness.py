"""What a last bit decides, on programs of a line or two: which run, which take NumPy's loops, and which are NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from anygpu.array.trace.tracing import record
from anygpu.program.exactness import Order, Rounding, judged, why_not, with_loops
from anygpu.program.graph import Program
from anygpu.program.primitives import Spec
from anygpu.program.wire import from_bytes, to_bytes

X = Spec((40, 30), "float64")
SINGLE = Spec((40, 30), "float32")
Z = Spec((40, 30), "complex128")
HALF = Spec((40, 30), "float16")
I = Spec((40, 30), "int32")  # noqa: E741

Function = Callable[..., Any]


def program_of(function: Function, *specs: Spec) -> Program:
    return record(function, *specs)


def loops(program: Program, rounding: Rounding = "complex", *, throughout: bool = False) -> list[str]:
    found = judged(program, rounding, throughout=throughout).loops
    return sorted(program.nodes[position].op.name for position in found)


#: Functions whose last bits decide nothing, or are NumPy's.
FREE: list[tuple[Function, Spec]] = [
    (lambda x: np.exp(x) @ x.T, X),
    (lambda x: x * 2 + 1 > 3, X),
    (lambda x: np.sqrt(x) / 3 < 0.1, X),
    (lambda x: (x.astype(np.float32) * 255).astype(np.uint8), X),
    (lambda x: np.floor(x / 0.1), X),
    (lambda x: x**2 > x, X),
    (lambda x: x.argmax(axis=1), X),
    (lambda x: np.sort(np.abs(x - 1)), X),
    (lambda x: np.where(x > 0, np.exp(x), 0.0), X),
    (lambda x: x.sum(axis=1) > 1, X),
    (lambda x: x.mean() < x, X),
    (lambda x: x > x.std(axis=-1, keepdims=True), SINGLE),
    (lambda x: (x[:, 1:] * 2).sum(axis=1) > 1, X),
    (lambda x: x[:, 1:].sum(axis=1) > 1, X),
    (lambda x: np.cumsum(x, axis=0) > 1, X),
    (lambda x: x.max(axis=0) > 0, X),
    (lambda x: x.sum(axis=0) > 3, I),
    (lambda x: x.mean(axis=0) > 3, I),
    (lambda x: x @ x.T > 3, I),
    (lambda x: np.median(x, axis=1) > 0, X),
    (lambda x: (x.real + x.imag) > 0, Z),
    (lambda x: x * np.float16(2) > 1, HALF),
    (lambda x: np.signbit(x), X),
    (lambda x: np.interp(x, x[0], x[1]) > 1, X),
]

#: Functions that are NumPy's, the operation whose last bit decides, and what it decides.
NUMPYS: list[tuple[Function, Spec, str, str]] = [
    (lambda x: (x @ x.T).astype(np.uint8), X, "a product of matrices", "astype(uint8)"),
    (lambda x: np.dot(x, x[0]) > 0, X, "a product of matrices", "np.greater"),
    (lambda x: np.floor(x.sum(axis=0)), X, "a sum", "np.floor"),
    (lambda x: x.T.sum(axis=1) > 1, X, "a sum", "np.greater"),
    (lambda x: x.sum(axis=1, dtype=np.float64) > 1, SINGLE, "a sum", "np.greater"),
    (lambda x: x.sum(axis=1) > 1, HALF, "a sum", "np.greater"),
    (lambda x: x[:, 1:].sum() > 1, X, "a sum", "np.greater"),
    (lambda x: x[::-1].sum(axis=1) > 1, X, "a sum", "np.greater"),
    (lambda x: x.prod(axis=1) == 1, X, "a product", "np.equal"),
    (lambda x: np.rint(np.convolve(x[0], x[1, :3])), X, "", "np.rint"),
    (lambda x: np.isnan(np.linalg.inv(x[:30])), X, "np.linalg.inv", "np.isnan"),
    (lambda x: np.argsort(np.fft.rfft(x).real), X, "np.fft.rfft", "np.argsort"),
    (lambda x: np.sort(x @ x.T), X, "a product of matrices", "np.sort"),
    (lambda x: np.searchsorted(x[0], x @ x.T), X, "a product of matrices", "np.searchsorted"),
    (lambda x: np.logaddexp(x, 1) > 2, X, "np.", "np.greater"),
    (lambda x: np.float_power(x, 3) > 2, X, "np.power", "np.greater"),
    (lambda x: np.power(x, -1.0) > 2, X, "np.power", "np.greater"),
    (lambda x: np.exp(x) > 2, HALF, "np.exp", "np.greater"),
    (lambda x: np.exp(x) > 2, Z, "np.exp", "np.greater"),
    (lambda x: (x / x).real > 2, Z, "np.divide", "np.greater"),
    (lambda x: np.exp(x[::-1]) > 2, X, "np.exp", "np.greater"),
    (lambda x: np.linalg.norm(x) > 2, X, "a product of matrices", "np.greater"),
    (lambda x: x.astype(np.float16) > 2, X, "a cast to float16", "np.greater"),
    (lambda x: x.sum(axis=1, where=x > 0) > 1, X, "a sum", "np.greater"),
    (lambda x: np.einsum("ij->i", x) > 1, X, "a sum", "np.greater"),
    (lambda x: np.signbit(x - x), X, "np.subtract", "np.signbit"),
    (lambda x: (x @ x.T).astype(bool), X, "a product of matrices", "astype(bool)"),
    (lambda x: np.where((x @ x.T) > 0, 1.0, 0.0), X, "a product of matrices", "np.greater"),
]

#: Functions that run with NumPy's own loops for these.
LOOPED: list[tuple[Function, Spec, list[str]]] = [
    (lambda x: np.exp(x) > 2, X, ["exp"]),
    (lambda x: (x**0.45 * 255).astype(np.uint8), SINGLE, ["power"]),
    (lambda x: np.floor(np.sin(x) + np.cos(x)), X, ["cos", "sin"]),
    (lambda x: np.hypot(x, 1).argmax(axis=0), SINGLE, ["hypot"]),
    (lambda x: (np.exp(x).sum(axis=1) > 2, np.tanh(x)), X, ["exp"]),
    (lambda x: np.abs(x * x) <= 2, Z, ["abs", "multiply"]),
    (lambda x: np.power(2.5, x) > 3, X, ["power"]),
]


@pytest.mark.parametrize(("function", "spec"), FREE)
def test_what_decides_nothing_or_is_numpys_runs(function: Function, spec: Spec) -> None:
    program = program_of(function, spec)
    assert why_not(program, "complex") is None
    assert loops(program) == []


def test_sums_that_decide_need_the_order_of_c() -> None:
    assert judged(program_of(lambda x: x.sum(axis=1) > 1, X), "complex").needs == Order.C
    assert judged(program_of(lambda x: np.exp(x).sum(axis=1) > 1, X), "complex").needs == Order.C
    assert judged(program_of(lambda x: x.sum(axis=1), X), "complex").needs == Order.ANY
    assert judged(program_of(lambda x: x + 1 > 2, X), "complex").needs == Order.ANY


@pytest.mark.parametrize(("function", "spec", "cause", "decided"), NUMPYS)
def test_what_a_last_bit_decides_is_numpys(function: Function, spec: Spec, cause: str, decided: str) -> None:
    why = why_not(program_of(function, spec), "complex")
    assert why is not None
    assert f"the last bit of {cause}" in why
    assert f"decides {decided}" in why
    assert "test_exactness.py:" in why


@pytest.mark.parametrize(("function", "spec", "names"), LOOPED)
def test_functions_that_decide_are_numpys_loops(function: Function, spec: Spec, names: list[str]) -> None:
    program = program_of(function, spec)
    assert why_not(program, "complex") is None
    assert loops(program) == names
    assert judged(program, "complex").needs >= Order.FORWARDS
    looped = with_loops(program, "complex")
    assert [op.name for op, _ in looped.nodes] == [op.name for op, _ in program.nodes]
    assert looped.key != program.key
    assert with_loops(looped, "complex") == looped
    assert from_bytes(to_bytes(looped)) == looped


def test_without_decisions_a_program_is_the_same() -> None:
    program = program_of(lambda x: np.exp(x) * 2, X)
    assert with_loops(program, "complex") is program
    assert loops(program, throughout=True) == ["exp"]


def test_numbers_without_axes_are_multiplied_in_another_way() -> None:
    assert why_not(program_of(lambda x: np.abs(x[0, 0] * x[0, 1]) > 1, Z), "complex") is not None
    assert why_not(program_of(lambda x: x[0, 0] ** x[0, 1] > 1, X), "complex") is not None


def test_complex_numbers_need_a_numpy_that_fuses() -> None:
    program = program_of(lambda x: np.abs(x * x) <= 2, Z)
    assert "np.multiply" in str(why_not(program, "real"))


@pytest.mark.parametrize(
    "function",
    [lambda x: x * 2 + 1 > 3, lambda x: x.sum(axis=1) > 0, lambda x: np.exp(x) > 0, lambda x: np.floor(x / 3)],
)
def test_a_device_that_rounds_as_it_likes_decides_nothing(function: Function) -> None:
    assert why_not(program_of(function, X), "free") is not None


@pytest.mark.parametrize(
    "function", [lambda x: x > 3, lambda x: x.argmax(axis=1), lambda x: np.maximum(x, 1).astype(np.int32), np.floor]
)
def test_what_rounds_nothing_decides_anywhere(function: Function) -> None:
    assert why_not(program_of(function, X), "free") is None


def test_operations_are_counted_where_every_bit_matters() -> None:
    program = program_of(lambda x: np.tanh(x @ x.T) @ x + np.fft.rfft(x).real[:, :1] + x.sum(axis=0), X)
    why = why_not(program, "complex", throughout=True)
    assert why == "exact=True asks for every bit of a product of matrices (2 times), np.fft.rfft, a sum"


def test_of_several_decisions_the_first_is_named() -> None:
    program = program_of(lambda x: (np.floor(x @ x.T), (x @ x.T) > 0, x.sum(axis=0) > 1), X)
    assert str(why_not(program, "complex")).endswith(", and 2 more")
