from __future__ import annotations

import itertools

import numpy as np
import pytest

from anygpu.program.dtypes import (
    DTYPES,
    ITEMSIZE,
    KIND,
    DType,
    can_cast_safely,
    default_float,
    is_floating,
    is_inexact,
    is_integer,
    promote,
    promote_all,
)

#: NumPy has no bfloat16 of its own.
NUMPYS = [dtype for dtype in DTYPES if dtype != "bfloat16"]


def test_promotion_is_numpys() -> None:
    pairs = list(itertools.product(NUMPYS, repeat=2))
    assert {pair: promote(*pair) for pair in pairs} == {pair: np.promote_types(*pair).name for pair in pairs}


@pytest.mark.parametrize("dtype", NUMPYS)
def test_the_facts_are_numpys(dtype: DType) -> None:
    known = np.dtype(dtype)
    kinds = {"b": "bool", "i": "signed", "u": "unsigned", "f": "float", "c": "complex"}
    assert ITEMSIZE[dtype] == known.itemsize
    assert KIND[dtype] == kinds[known.kind]
    assert is_integer(dtype) == (known.kind in "iu")
    assert is_floating(dtype) == (known.kind == "f")
    assert is_inexact(dtype) == (known.kind in "fc")
    assert default_float(dtype) == np.sqrt(np.ones(1, dtype)).dtype.name


@pytest.mark.parametrize("one", DTYPES)
def test_promotion_is_symmetric_and_idempotent(one: DType) -> None:
    for other in DTYPES:
        both = promote(one, other)
        assert both == promote(other, one)
        assert both == promote(both, one) == promote(both, other)
        assert can_cast_safely(one, both)


@pytest.mark.parametrize(
    ("other", "together"),
    [
        ("bool", "bfloat16"),
        ("int8", "bfloat16"),
        ("uint8", "bfloat16"),
        ("int16", "float32"),
        ("int64", "float64"),
        ("float16", "float32"),
        ("float32", "float32"),
        ("float64", "float64"),
        ("complex64", "complex64"),
        ("complex128", "complex128"),
    ],
)
def test_promotion_of_bfloat16(other: DType, together: DType) -> None:
    assert promote("bfloat16", other) == together


def test_promotion_of_many_goes_from_left_to_right() -> None:
    assert promote_all("int8", "uint8", "float32") == np.result_type("int16", "float32").name
    assert promote_all("bool") == "bool"
