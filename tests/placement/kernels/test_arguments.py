"""What a kernel is called with: each argument where it belongs, and nothing converted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.errors import InvalidOption
from anygpu.placement.kernels.arguments import Given, Number, call_text, given_to
from anygpu.program.ops.custom import Parameter

READ = (Parameter("a", "float32", "input"), Parameter("x", "int32", "update"))
NUMBERS = (Number("alpha", "float32"), Number("n", "uint32"))
FLOATS, WHOLE = np.ones(3, np.float32), np.ones(2, np.int32)


def given(*arguments: Any, **keywords: Any) -> Given:
    return given_to("k", READ, NUMBERS, arguments, keywords)


def test_arrays_come_first_and_numbers_by_position_or_name() -> None:
    for found in (
        given(FLOATS, WHOLE, 2, 3),
        given(FLOATS, WHOLE, n=3, alpha=2.0),
        given(FLOATS, x=WHOLE, alpha=2, n=3),
    ):
        assert found.arrays[0] is FLOATS
        assert found.arrays[1] is WHOLE
        assert found.numbers == {"alpha": 2.0, "n": 3}
        assert list(found.numbers) == ["alpha", "n"]
        assert isinstance(found.numbers["alpha"], float)


def test_a_number_is_as_exact_as_the_kernel_gets_it() -> None:
    assert given(FLOATS, WHOLE, 0.1, 3).numbers["alpha"] == float(np.float32(0.1))
    assert given(FLOATS, WHOLE, np.float64(0.1), np.int64(3)).numbers == {"alpha": float(np.float32(0.1)), "n": 3}
    assert given(FLOATS, WHOLE, ag.asarray(2.5), 3).numbers["alpha"] == 2.5
    assert given(FLOATS, WHOLE, float("inf"), 3).numbers["alpha"] == float("inf")


@pytest.mark.parametrize(
    ("arguments", "keywords", "words"),
    [
        ((FLOATS,), {}, "'x' is missing"),
        ((FLOATS, WHOLE, 1.0, 2, 3), {}, "5 arguments"),
        ((FLOATS, WHOLE, 1.0, 2), {"beta": 3}, "no 'beta'"),
        ((FLOATS, WHOLE, 1.0, 2), {"n": 3}, "'n' is given twice"),
        ((FLOATS.astype(np.float64), WHOLE, 1.0, 2), {}, r"got one of float64.*a\.astype\(np\.float32\)"),
        ((FLOATS.astype(">f4"), WHOLE, 1.0, 2), {}, "got one of >f4"),
        ((FLOATS, FLOATS, 1.0, 2), {}, "x of the kernel k is an array of int32"),
        (([1.0], WHOLE, 1.0, 2), {}, "got a list"),
        ((FLOATS, WHOLE, "much", 2), {}, "got 'much'"),
        ((FLOATS, WHOLE, FLOATS, 2), {}, r"got an array of shape \(3,\)"),
        ((FLOATS, WHOLE, 1.0, 2.5), {}, r"Round it"),
        ((FLOATS, WHOLE, 1.0, -1), {}, "from 0 to 4294967295"),
        ((FLOATS, WHOLE, 1e300, 1), {}, "more than it can hold"),
        ((FLOATS, WHOLE, None, 1), {}, "got None"),
        ((FLOATS, WHOLE, 1j, 1), {}, "got 1j"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_to_do(
    arguments: tuple[Any, ...], keywords: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidOption, match=words):
        given(*arguments, **keywords)


def test_the_call_is_written_out_for_people() -> None:
    assert call_text("k", READ, NUMBERS) == "k(a: array of float32, x: array of int32, alpha: float32, n: uint32)"
