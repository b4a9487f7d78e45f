"""Floats that are arguments become inputs, and stay Python's: types and values are NumPy's, whatever the number."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy
import pytest

from anygpu.array.trace.traced import NotTraceable, Traced
from anygpu.array.trace.tracing import trace
from anygpu.engines.numpy import lowering
from anygpu.program.graph import Program
from tests.array.against_numpy import DTYPES, outcome, quiet, values

#: NumPy's own types do not know that its functions take other numbers.
np: Any = numpy

OPERATORS: tuple[Callable[[Any, Any], Any], ...] = (
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow),
    *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
    *(np.maximum, np.minimum, np.arctan2, np.hypot, np.copysign, np.fmod, np.float_power, np.logaddexp, np.heaviside),
)


#: Those that order numbers.
ORDERS = (operator.lt, operator.le, operator.gt, operator.ge)


class Recorded(NamedTuple):
    """A program and the function that it was made of."""

    function: Callable[..., Any]
    traced: Traced

    @property
    def lifted(self) -> bool:
        return float not in self.traced.by_value

    @property
    def program(self) -> Program:
        return self.traced.program


def run(recorded: Recorded, *arguments: Any) -> Any:
    given = recorded.traced.inputs(recorded.function, arguments, {})
    assert given is not None, recorded.traced.changed(recorded.function, arguments, {})
    return recorded.traced.rebuild(lowering.run(recorded.program, given), given)


def traced(function: Callable[..., Any], *arguments: Any, lift: bool = True) -> Recorded:
    made = trace(function, arguments, {}, by_value=frozenset() if lift else frozenset((float, int)))
    assert isinstance(made, Traced), made
    return Recorded(function, made)


def same(got: Any, expected: Any, what: object = None) -> None:
    assert type(got) is type(expected), what
    assert np.asarray(got).dtype == np.asarray(expected).dtype, what
    np.testing.assert_array_equal(got, expected, err_msg=str(what))


@pytest.mark.sampled(gate=4)
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_operator_gives_what_numpy_gives_for_numbers_that_come_later(dtype: str) -> None:
    with quiet():
        x = values(dtype)
        for op in OPERATORS:
            for swapped in (False, True):
                check_operator(op, x, swapped)


def check_operator(op: Callable[[Any, Any], Any], x: Any, swapped: bool) -> None:
    def function(x: Any, t: float) -> Any:
        return op(t, x) if swapped else op(x, t)

    if isinstance(outcome(lambda: function(x, 1.5)), type):  # NumPy has no such operation
        assert isinstance(trace(function, (x, 1.5), {}), NotTraceable)
        return
    if x.dtype.kind == "c" and op in ORDERS:  # NumPy warns where one of them is NaN
        assert isinstance(trace(function, (x, 1.5), {}), NotTraceable)
        return
    lifted = traced(function, x, 0.7)
    assert lifted.lifted
    for number in (1.5, -2.0, 0.0, math.inf, math.nan, 1e300):
        what = (op, x.dtype, swapped, number)
        fixed = traced(function, x, number, lift=False)
        assert not fixed.lifted
        got, expected = run(lifted, x, number), function(x, number)
        same(got, run(fixed, x, number), what)
        assert got.dtype == expected.dtype, what
        # How far our functions may be from NumPy's is tested elsewhere; here they have to be those of the same number.
        wide = np.complex128 if got.dtype.kind == "c" else np.float64
        close = 1e-2 if got.dtype == np.float16 else 1e-5
        if got.dtype.kind != "c":
            np.testing.assert_allclose(got.astype(wide), expected.astype(wide), rtol=close, err_msg=str(what))


WEAK: tuple[Callable[[Any], Any], ...] = (
    *(
        lambda t: t * 2,
        lambda t: 2 * t,
        lambda t: 1 / t,
        lambda t: t / 3,
        lambda t: -t,
        lambda t: +t,
        lambda t: abs(-t),
    ),
    *(lambda t: t**2, lambda t: t**-1, lambda t: 2**t, lambda t: t // 0.3, lambda t: 7 % t, lambda t: t + True),
    *(
        lambda t: (t - 1) * (t + 1),
        lambda t: t * 1j,
        lambda t: (t * 1j).imag,
        lambda t: t.real,
        lambda t: t.conjugate(),
    ),
    *(lambda t: t > 1, lambda t: (t > 1) & (t < 3), lambda t: t > 1, lambda t: t == 1.25, lambda t: (t > 1) * 2.5),
    *(lambda t: divmod(t, 0.5)[1], lambda t: t * math.inf, lambda t: t - 1e-300, lambda t: t * 10**20),
)


@pytest.mark.parametrize("number", range(len(WEAK)))
def test_arithmetic_with_pythons_numbers_stays_weak_and_is_pythons(number: int) -> None:
    made_of = WEAK[number]
    for dtype in ("int16", "float16", "float32", "float64", "complex64"):
        x = np.arange(1, 5).astype(dtype)

        def function(x: Any, t: float) -> Any:
            return x * made_of(t), made_of(t)

        with quiet():
            program = traced(function, x, 3.75)
            assert program.lifted
            for value in (1.25, 0.5, 2.0):
                got, expected = run(program, x, value), function(x, value)
                same(got[0], expected[0], (dtype, value))
                assert type(got[1]) is type(expected[1])
                assert got[1] == expected[1]


def test_numpys_functions_make_a_strong_number_of_a_weak_one() -> None:
    x = np.ones(3, np.float32)
    functions: tuple[Callable[[Any, Any], Any], ...] = (
        lambda x, t: x * np.tanh(t),
        lambda x, t: x * np.add(t, 0.0),
        lambda x, t: x + np.sum(t),
        lambda x, t: np.float32(2) * t * x,
        lambda x, t: np.float16(2) / t * x,
        lambda x, t: t * np.float64(2) * x,
        lambda x, t: np.ones(3) * t + x,
        lambda x, t: np.ones(3, np.float32) * t + x,
        lambda x, t: np.maximum(t, 1) * x,
    )
    for function in functions:
        program = traced(function, x, 0.25)
        assert program.lifted
        same(run(program, x, 0.75), function(x, 0.75))


def test_functions_that_take_numbers_beside_arrays_take_weak_ones() -> None:
    x = np.linspace(0, 2, 5, dtype=np.float32)

    def put(x: Any, t: float) -> Any:
        y = x.copy()
        y[1:3] = t
        y[0] += t
        np.copyto(y, t, where=x > 1.5)
        return y

    for function in (
        lambda x, t: np.where(x > t, x, t),
        lambda x, t: np.where(t > 0.5, x, 2),
        lambda x, t: np.where(x > 1, t, 0),
        lambda x, t: np.clip(x, 0.1, t),
        lambda x, t: x.clip(t, 1.5),
        lambda x, t: np.full_like(x, t) + x,
        lambda x, t: np.full(x.shape, t, dtype=np.float32) + x,
        lambda x, t: np.trapezoid(x, dx=t),
        lambda x, t: np.gradient(x, t),
        lambda x, t: np.nan_to_num(x, nan=t) * t,
        lambda x, t: np.isclose(x, t),
        lambda x, t: np.stack([x * t, x]),
        lambda x, t: np.add(x, t, dtype=np.float64),
        lambda x, t: np.add(x, t, out=np.zeros_like(x)),
        lambda x, t: x.astype(np.int32) * t,
        lambda x, t: np.power(x, t),
        lambda x, t: np.result_type(x, t) == np.float32 and x * t,
        lambda x, t: isinstance(t, float) and x * t,
        put,
    ):
        program = traced(function, x, 0.25)
        same(run(program, x, 0.25), function(x, 0.25), function)
        if program.lifted:
            same(run(program, x, 0.75), function(x, 0.75), function)


def test_a_float32_program_has_no_float64_in_it() -> None:
    x = np.ones(3, np.float32)
    program = traced(lambda x, a, b: x * (a * 2) + b / (1 + a), x, 0.5, 0.25)
    assert {spec.dtype for spec in program.program.specs} == {"float32"}


def test_the_key_does_not_depend_on_the_number_and_equal_numbers_are_one_input() -> None:
    x = np.ones(3, np.float32)

    def function(x: Any, t: float) -> Any:
        return np.sin(x * t) + np.cos(x * t)

    assert traced(function, x, 0.5).program.key == traced(function, x, 0.75).program.key
    assert len(traced(function, x, 0.5).program.inputs) == 2


@pytest.mark.parametrize(
    "function",
    [
        lambda x, t: x * 2 if t > 0 else -x,
        lambda x, t: x * float(t),
        lambda x, t: x[: int(t)] * 2,
        lambda x, t: x * math.sin(t),
        lambda x, t: x * len(f"{t:.3f}"),
        lambda x, t: x * len(str(t)),
        lambda x, t: x * max(t, 1.0),
        lambda x, t: x * round(t),
        lambda x, t: x * {1.5: 3}.get(t, 1),
        lambda x, t: x * t.is_integer(),
        lambda x, t: x * t**0.5,
        lambda x, t: np.linspace(0, t, 5) + x,
        lambda x, t: [x, -x][t > 1],
        lambda x, t: x * np.quantile(np.arange(4.0), t / 10),
    ],
)
def test_whoever_asks_for_the_value_gets_it_and_a_program_for_it_alone(function: Any) -> None:
    x = np.linspace(0, 1, 5)
    program = traced(function, x, 1.5)
    assert not program.lifted
    same(run(program, x, 1.5), function(x, 1.5))


def test_a_refusal_that_was_swallowed_counts_too() -> None:
    def function(x: Any, t: float) -> Any:
        try:
            return x * float(t)
        except TypeError:
            return x

    program = traced(function, np.ones(3), 2.5)
    assert not program.lifted
    assert np.array_equal(run(program, np.ones(3), 2.5), np.full(3, 2.5))


def test_numpys_own_floats_are_inputs_of_their_own_type() -> None:
    x = np.ones(3, np.float32)
    for kind in (np.float64, np.float32, np.float16):
        program = traced(lambda x, t: x * t, x, kind(0.5))
        assert program.lifted
        same(run(program, x, kind(0.75)), x * kind(0.75))


def test_bools_and_ints_that_decide_are_a_part_of_the_program() -> None:
    x = np.ones((3, 4))
    program = traced(lambda x, axis, flag, t: x.sum(axis=axis, keepdims=flag) * t, x, 1, True, 0.5)
    assert program.lifted
    assert len(program.program.inputs) == 2
    same(run(program, x, 1, True, 0.25), x.sum(axis=1, keepdims=True) * 0.25)


def test_numbers_may_be_nested_and_many_are_data() -> None:
    x = np.ones(3)

    def function(x: Any, options: dict[str, Any]) -> Any:
        return x * options["a"][0] + options["b"]

    program = traced(function, x, {"a": [0.5, "text"], "b": 2.0})
    assert program.lifted
    same(run(program, x, {"a": [0.25, "text"], "b": 3.0}), x * 0.25 + 3.0)
    many = [0.5] * 100
    recorded = traced(lambda x, many: x * sum(many), x, many)
    assert recorded.traced.inputs(recorded.function, (x, [0.5] * 99 + [0.25]), {}) is None


def test_a_call_in_which_python_itself_fails_is_not_the_programs() -> None:
    x = np.ones(3)
    program = traced(lambda x, t: x * (1 / t), x, 2.0)
    assert program.traced.inputs(program.function, (x, 0.0), {}) is None
    program = traced(lambda x, t: x * t**3, x, 2.0)
    assert program.traced.inputs(program.function, (x, 1e200), {}) is None


@pytest.mark.parametrize(
    "divide",
    [lambda n: 10.0 / n, lambda n: 10.0 // n, lambda n: 10.0 % n, lambda n: n**-1.0],
    ids=["/", "//", "%", "**"],
)
def test_a_division_by_zero_whose_result_is_not_used_is_not_the_programs(divide: Callable[[float], float]) -> None:
    def function(x: Any, n: float) -> Any:
        divide(n)
        return x * 2

    x = np.ones(3)
    recorded = traced(function, x, 2.0)
    assert recorded.lifted
    same(run(recorded, x, 4.0), x * 2)
    # The function itself runs then, and raises what Python raises.
    assert recorded.traced.inputs(function, (x, 0.0), {}) is None
