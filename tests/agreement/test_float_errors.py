"""The floating-point errors that native code finds in a program are those of which NumPy warns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anygpu.agreement.analysis import flags_of
from anygpu.agreement.float_errors import FloatErrors, error_program
from anygpu.array.trace.tracing import record

X = np.linspace(1, 2, 1003)


def with_some(x: Any, *values: float) -> Any:
    changed = x.copy()
    changed[7 : 7 + len(values)] = values
    return changed


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: np.sqrt(x) * 2 + x,
        lambda x: np.where(x > 1, np.log(x), 0),
        lambda x: 1 / x,
        lambda x: x // (x - 3),
        lambda x: x % (x - 3),
        lambda x: np.exp(x * x),
        lambda x: x**-3.5,
        lambda x: x - x[0],
        lambda x: np.sin(x) > 0,
        lambda x: np.arctanh(x / 4) + np.arcsin(x / 4),
        lambda x: np.maximum(x * x, 3.0),
        lambda x: np.hypot(x, 1e38),
        lambda x: (x * 3).astype(np.float16),
        lambda x: np.full_like(x, -np.inf) + x,
        lambda x: np.nan_to_num(x) * 2,
        lambda x: np.tanh(x) + np.floor(x) + np.abs(x),
    ],
)
def test_of_one_number_after_the_other_they_are_exactly_numpys(function: Any, dtype: str) -> None:
    program = record(function, X.astype(dtype))
    errors = FloatErrors(program, frozenset())
    for odd in (
        (),
        (np.nan,),
        (np.inf, -np.inf),
        (0.0, -0.0),
        (-1.0, np.nan),
        (3.0,),
        (6e4,),
        (1e38,),
        (1e300, 5e-324),
    ):
        with np.errstate(all="ignore"):
            x = with_some(X.astype(dtype), *odd)
        expected, found = flags_of(program, [x]), errors.met([x])
        if "power" in {flag.operation for flag in expected}:  # a division by 0 and an overflow are not told apart
            assert found >= expected, odd
        else:
            assert found == expected, odd


@pytest.mark.parametrize(
    "function",
    [lambda x: x / x.sum(), lambda x: np.cumsum(x), lambda x: np.outer(x, x) @ x, lambda x: np.fft.rfft(x).real,
     lambda x: x.max() - x, lambda x: (x + 1j * x) * (x - 1j), lambda x: np.abs(x * (1 + 1j))],
)  # fmt: skip
@pytest.mark.parametrize("odd", [(), (np.nan,), (np.inf, -np.inf), (1e200, 1e308, 1e308), (0.0,)], ids=str)
def test_of_sums_transforms_and_complex_numbers_they_are_no_fewer(function: Any, odd: Any) -> None:
    x = with_some(X[:60], *odd)
    program = record(function, x)
    found, expected = FloatErrors(program, frozenset()).met([x]), flags_of(program, [x])
    assert found >= expected
    if np.isfinite(x).all() and not expected:
        assert not found


@pytest.mark.parametrize(
    "function",
    [lambda x: x.sum(), lambda x: x.reshape(6, 10).mean(axis=0), np.cumsum, lambda x: np.cumsum(x.reshape(6, 10), 1)],
)
@pytest.mark.parametrize("odd", [(), (np.nan,), (np.inf,), (-np.inf, np.nan), (np.inf, 1.0, -np.inf), (1e308, 1e308)])
def test_a_nan_is_carried_through_sums(function: Any, odd: Any) -> None:
    x = with_some(X[:60], *odd)
    program = record(function, x)
    found, expected = FloatErrors(program, frozenset()).met([x]), flags_of(program, [x])
    assert found >= expected
    if len(odd) < 2:
        assert not found


def test_lines_that_are_told_to_be_quiet_do_not_count() -> None:
    program = record(lambda x: np.sqrt(x), X)
    quiet = frozenset(line for line in program.lines if line is not None)
    assert error_program(program, quiet) is None
    assert FloatErrors(program, quiet).met([with_some(X, -1.0)]) == frozenset()


def test_a_program_without_errors_needs_no_code() -> None:
    assert error_program(record(lambda x: np.maximum(-x, 0)[::-1], X), frozenset()) is None
