"""What the table of elementwise functions says is what NumPy's functions do."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest

from anygpu.program.functions import (
    BINARY,
    COMPLEX_FORMULAS,
    FUNCTIONS,
    SILENT,
    UNARY,
    Trait,
    having,
)
from tests.support.special_values.comparison import binary_reference, unary_reference

#: Finite numbers of all sizes, with zeros of both signs.
FINITE = np.concatenate([np.linspace(-40, 40, 801), [1e300, -1e300, 1e-300, -0.0, 710.0, -1e-9]])
NOT_FINITE = [np.nan, np.inf, -np.inf]
OF_FLOATS = [fn for fn in FUNCTIONS if "float" in FUNCTIONS[fn].kinds]
#: An error function is no ufunc, and raises nothing.
UFUNCS = [fn for fn in OF_FLOATS if fn != "erf"]


def results(fn: str, x: Any, y: Any = None) -> Any:
    """The results for numbers, and of two operands for all pairs of them."""
    with np.errstate(all="ignore"):
        if fn in UNARY:
            return np.asarray(unary_reference(fn)(np.asarray(x, np.float64)))
        one, other = np.meshgrid(np.asarray(x, np.float64), np.asarray(x if y is None else y, np.float64))
        return np.asarray(binary_reference(fn)(one.ravel(), other.ravel()))


def test_there_is_a_row_for_each_function_in_the_same_order() -> None:
    assert tuple(FUNCTIONS) == (*UNARY, *BINARY)


def test_rows_have_traits_that_there_are() -> None:
    assert {trait for row in FUNCTIONS.values() for trait in row.traits.split()} == set(get_args(Trait))


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_numpy_has_the_function_by_its_name(fn: str) -> None:
    if fn not in ("erf", "mantissa", "exponent", "complex"):
        assert callable(getattr(np, FUNCTIONS[fn].numpy_name))


@pytest.mark.parametrize("fn", sorted(having("monotone")))
def test_monotone_functions_grow_or_fall(fn: str) -> None:
    found = results(fn, np.sort(FINITE))
    steps = np.diff(found[np.isfinite(found)])
    assert (steps >= 0).all() or (steps <= 0).all()


@pytest.mark.parametrize("fn", [fn for fn in FUNCTIONS if FUNCTIONS[fn].poles])
def test_functions_are_infinite_at_their_poles_alone(fn: str) -> None:
    poles = FUNCTIONS[fn].poles
    assert np.isinf(results(fn, poles)).all()
    assert set(FINITE[np.isinf(results(fn, FINITE))]) <= set(poles)


@pytest.mark.parametrize("fn", [fn for fn in UFUNCS if fn in SILENT])
def test_silent_functions_raise_nothing(fn: str) -> None:
    given = np.array([*FINITE[::20], *NOT_FINITE])
    with np.errstate(divide="raise", over="raise", invalid="raise"):
        unary_reference(fn)(given) if fn in UNARY else binary_reference(fn)(*np.meshgrid(given, given))


@pytest.mark.parametrize(
    "fn", [fn for fn in OF_FLOATS if "exact" in FUNCTIONS[fn].traits and fn not in ("nextafter", "remainder")]
)
def test_exact_functions_of_half_precision_need_no_rounding(fn: str) -> None:
    given = np.array([0.5, 1.5, -2.25, 7, 1000, 2.0**-20, -0.0], np.float16).astype(np.float64)
    found = results(fn, given)
    assert (np.isnan(found) | (found == found.astype(np.float16))).all()


@pytest.mark.parametrize("fn", OF_FLOATS)
def test_what_functions_make_of_finite_numbers(fn: str) -> None:
    if FUNCTIONS[fn].result != "same" or fn in ("add", "subtract", "multiply", "hypot", "nextafter"):
        return  # sums and products of the largest numbers are not in the table
    found = results(fn, FINITE[::7] if fn in BINARY else FINITE, [*FINITE[::50], 0.0])
    made = FUNCTIONS[fn].makes
    assert np.isnan(found).any() <= ("nan" in made)
    assert np.isinf(found).any() <= ("inf" in made)


@pytest.mark.parametrize("fn", [fn for fn in OF_FLOATS if FUNCTIONS[fn].keeps])
def test_what_functions_keep(fn: str) -> None:
    keeps = FUNCTIONS[fn].keeps
    some = [0.5, 2.0, -3.0]
    assert np.isnan(results(fn, np.nan, some)).all()
    if fn in BINARY and fn != "hypot":  # of infinity and NaN it is infinity, which is not finite either
        assert np.isnan(results(fn, [*some, np.inf], np.nan)).all()
    if "inf" in keeps:
        assert not np.isfinite(results(fn, NOT_FINITE, some)).any()
    if keeps == "nan, inf" and fn in BINARY:
        assert not np.isfinite(results(fn, some, NOT_FINITE)).any()


def test_formulas_are_there_for_every_function_of_complex_numbers() -> None:
    by_parts = {"negative", "abs", "rint", "isnan", "isinf", "isfinite", "real", "imag", "conj"}
    assert {fn for fn in UNARY if "complex" in FUNCTIONS[fn].kinds} == COMPLEX_FORMULAS | by_parts
