"""Zeros, infinities, NaN, limits, ties and overflow: each engine against plain NumPy, bit by bit where promised."""

from __future__ import annotations

from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pytest

from anygpu.engines.numpy import lowering
from anygpu.engines.protocol import Lack
from anygpu.program.graph import Program
from anygpu.program.transforms import simplified
from anygpu.workers.device_arrays.registry import registry
from tests.support.special_values import Tally, cases, tally


@pytest.mark.parametrize(
    ("engine", "one_in"), [("numpy", 1), ("cpu", 10), pytest.param("cpu", 1, marks=pytest.mark.full), ("torch", 1)]
)
def test_special_values_are_plain_numpys(engine: str, one_in: int) -> None:
    place = registry.find(engine)
    found = tally(islice(cases("some"), 0, None, one_in), lambda: place.worker)
    assert found.comparisons > 200_000
    assert not found.differences, "\n".join(map(str, found.differences[:20]))


@pytest.mark.parametrize(
    ("types", "one_in", "least"),
    [
        (("float32",), 8, 6_000),
        pytest.param(("float32",), 1, 60_000, marks=pytest.mark.full),
        pytest.param(("int32", "uint8", "float32", "complex64"), 1, 200_000, marks=pytest.mark.long),
    ],
    ids=["sample", "one type", "four types"],
)
def test_special_values_of_jax_are_plain_numpys(types: tuple[str, ...], one_in: int, least: int) -> None:
    """`python -m benchmarks.special_values --engine jax` has them all, and takes many minutes with XLA."""
    place = registry.find("jax")
    chosen = (case for case in cases("some") if case.checks[0].dtype in types)
    found = tally(islice(chosen, 0, None, one_in), lambda: place.worker)
    assert found.comparisons > least
    assert not found.differences, "\n".join(map(str, found.differences[:20]))


class Results(NamedTuple):
    results: list[Any]


class Interpreter:
    """NumPy's engine after a transform of programs, or with a mistake in its results."""

    def __init__(self, mistake: str = "", *, folds: bool = False) -> None:
        self._mistake = mistake
        self._folds = folds

    def supports(self, program: Program) -> list[Lack]:
        return []

    def run(self, program: Program, arguments: Any) -> Results:
        if self._folds:
            program = simplified(program, lowering.evaluate_constant)
        results = [np.array(each) for each in lowering.run(program, arguments)]
        for values in results:
            if values.dtype.kind == "f" and self._mistake == "no negative zero":
                values[values == 0] = 0.0
            if values.dtype.kind == "f" and self._mistake == "no NaN":
                values[np.isnan(values)] = np.inf
            if values.dtype.kind == "f" and self._mistake == "four last digits":
                values *= 1 + 16 * np.finfo(values.dtype).eps
            if values.dtype.kind == "i" and self._mistake == "saturates":
                values[values == np.iinfo(values.dtype).min] += 1
        if self._mistake == "raises":
            raise RuntimeError("no such function")
        return Results(results)


def first_of(computer: Interpreter, dtype: str) -> Tally:
    chosen = (case for case in cases("some") if case.checks[0].dtype == dtype and case.form == "arrays")
    return tally(islice(chosen, 5), lambda: computer)


def test_folding_constants_changes_no_value() -> None:
    chosen = (case for case in cases("some") if "constants" in case.form)
    found = tally(chosen, lambda: Interpreter(folds=True))
    assert not found.differences, "\n".join(map(str, found.differences[:20]))


@pytest.mark.parametrize(
    ("mistake", "dtype"),
    [
        ("no negative zero", "float32"),
        ("no NaN", "float64"),
        ("four last digits", "float32"),
        ("saturates", "int8"),
        ("raises", "bool"),
    ],
)
def test_mistakes_are_noticed(mistake: str, dtype: str) -> None:
    assert not first_of(Interpreter(), dtype).differences
    assert first_of(Interpreter(mistake), dtype).differing > 0


def test_what_numpy_leaves_to_the_processor_is_not_compared() -> None:
    """A float beyond the integers of a type; an overflow of int8 is none of these."""
    (case,) = (
        case for case in cases("some") if case.form == "arrays" and case.checks[0].what == "cast to bool"
        and case.checks[0].dtype == "float64"
    )  # fmt: skip
    by_name = {check.what: check for check in case.checks}
    beyond = by_name["cast to int8"].unspecified
    assert beyond is not None
    values = np.array([np.nan, np.inf, 1e10, -1e10, 300.0, -1.5])
    assert beyond(values).tolist() == [True, True, True, True, False, False]
    beyond = by_name["cast to uint64"].unspecified
    assert beyond is not None
    assert beyond(np.array([-1.0, 1.8e19, 1.9e19])).tolist() == [False, False, True]
