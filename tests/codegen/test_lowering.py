"""Values at positions: movement costs no memory and no arithmetic, and nothing is computed twice."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from anygpu.array.core.array import Array
from anygpu.array.core.recording import binary
from tests.codegen.planning import CARD, PROCESSOR, plan, spec

#: One element for each invocation, so that texts are short.


def body(function: Any, *inputs: Any) -> str:
    (kernel,) = plan(function, *inputs, target=CARD).kernels
    return kernel.source.split("@compute")[1]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: np.flip(np.flip(x, 0), 0) + 1,
        lambda x: x.reshape(7, 10).T.T.reshape(70) + 1,
        lambda x: x[None, :, None][0, :, 0] + 1,
    ],
)
def test_movement_that_cancels_leaves_no_arithmetic(function: Any) -> None:
    assert _without_numbers(body(function, spec(70))) == _without_numbers(body(lambda x: x + 1, spec(70)))


def _without_numbers(text: str) -> str:
    """Values are numbered by their place in the program."""
    return re.sub(r"\b(add_|t)\d+", r"\1", text)


def test_what_is_asked_for_twice_is_computed_once() -> None:
    text = body(lambda x: np.exp(x) * np.exp(x) + np.exp(x), spec(70))
    assert len(re.findall(r"exp_f32\(|\bexp\(", text)) == len(re.findall(r"exp_f32\(|\bexp\(", body(np.exp, spec(70))))


def test_broadcasting_reads_where_the_short_one_is() -> None:
    text = body(lambda x, y: x + y, spec(64, 32), spec(32))
    assert re.search(r"input_b\[.*% 32\]", text) or "% 32" in text or "% 8" in text


def test_short_sums_are_done_on_the_way() -> None:
    planned = plan(lambda x: np.sqrt((x * x).sum(axis=-1)) + 1, spec(1000, 3), target=CARD)
    assert len(planned.kernels) == 1
    assert "for (" in planned.kernels[0].source


def test_padding_does_not_read_outside() -> None:
    text = body(lambda x: np.pad(x, 1), spec(7, 9))
    assert "clamp(" in text
    assert "select(" in text


@pytest.mark.parametrize("dtype", ["int8", "uint16"])
def test_narrow_integers_are_wrapped_after_each_step(dtype: Any) -> None:
    (kernel,) = plan(lambda x: x * x + x, spec(70, dtype=dtype), target=CARD).kernels
    name = {"int8": "wrap_i8", "uint16": "wrap_u16"}[dtype]
    assert kernel.source.count(f"{name}") >= 2


def test_halves_are_rounded_after_each_step() -> None:
    (kernel,) = plan(lambda x: x * x + x, spec(70, dtype="float16"), target=PROCESSOR).kernels
    assert kernel.source.count("round_f16") >= 2


def test_constants_stand_in_the_text() -> None:
    assert "2.5f" in body(lambda x: x * 2.5, spec(70))
    assert "bitcast<f32>(0x7f800000u ^ zero)" in body(lambda x: np.minimum(x, np.inf), spec(70))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "uint8"])
@pytest.mark.parametrize("exponent", [1, 2, 3])
def test_small_powers_are_products(dtype: Any, exponent: int) -> None:
    for target in (CARD, PROCESSOR):
        (kernel,) = plan(lambda x: x**exponent, spec(70, dtype=dtype), target=target).kernels
        assert "power_f32(" not in kernel.source
        assert "power_i32(" not in kernel.source
        assert "power_u32(" not in kernel.source


def plain_power(x: Any, exponent: float) -> Array:
    return Array(binary("power", x._value, exponent))


def test_roots_and_reciprocals_are_no_powers() -> None:
    root, inverse = body(lambda x: np.power(x, 0.5), spec(70)), body(lambda x: np.power(x, -1.0), spec(70))
    assert "sqrt" in root
    assert "abs(" not in root
    root = body(lambda x: plain_power(x, 0.5), spec(70))
    assert "sqrt" in root
    # Of -0.0 and -inf the power is not the root.
    assert "abs(" in root
    assert "isinf" in root
    assert "1f /" in inverse or "1.0f /" in inverse or "divide" in inverse
    assert "power" in body(lambda x: x**1.5, spec(70))
    assert "power" in body(lambda x, y: x**y, spec(70), spec(70))
