"""The elementwise functions under their own names: the Array API's list, their signatures, and what no ufunc does."""

from __future__ import annotations

import inspect
import math
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anygpu.array.core.array import Array, as_array
from anygpu.array.functions import elementwise
from tests.array.against_numpy import DTYPES, check, compare, np, quiet, values

#: Those of the Array API standard 2024.12.
OF_ONE = (
    *("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "bitwise_invert", "ceil", "conj", "cos", "cosh", "exp"),
    *("expm1", "floor", "imag", "isfinite", "isinf", "isnan", "log", "log1p", "log2", "log10", "logical_not"),
    *("negative", "positive", "real", "reciprocal", "sign", "signbit", "sin", "sinh", "square", "sqrt", "tan", "tanh"),
    "trunc",
)
OF_TWO = (
    *("add", "atan2", "bitwise_and", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor"),
    *("copysign", "divide", "equal", "floor_divide", "greater", "greater_equal", "hypot", "less", "less_equal"),
    *("logaddexp", "logical_and", "logical_or", "logical_xor", "maximum", "minimum", "multiply", "nextafter"),
    *("not_equal", "pow", "remainder", "subtract"),
)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with quiet():
        yield


@pytest.mark.parametrize("name", [*OF_ONE, *OF_TWO])
def test_functions_have_a_name_a_text_and_the_standards_signature(name: str) -> None:
    function = getattr(elementwise, name)
    assert function.__name__ == name
    assert function.__doc__
    assert pickle.loads(pickle.dumps(function)) is function
    parameters = list(inspect.signature(function).parameters.values())
    assert [each.name for each in parameters] == (["x"] if name in OF_ONE else ["x1", "x2"])
    assert all(each.kind is inspect.Parameter.POSITIONAL_ONLY for each in parameters)


def test_every_ufunc_has_a_function_of_its_name() -> None:
    for name, theirs in vars(np).items():
        if isinstance(theirs, np.ufunc) and theirs.signature is None and name != "isnat":
            assert callable(getattr(elementwise, name)), name


@pytest.mark.parametrize("name", OF_ONE)
def test_of_one(name: str) -> None:
    for dtype in ("bool", "int8", "uint16", "int64", "float16", "float32", "complex64"):
        x = values(dtype)
        theirs = _outcome(getattr(np, name), x)
        check(_outcome(getattr(elementwise, name), as_array(x)), theirs, dtype)


@pytest.mark.parametrize("name", OF_TWO)
def test_of_two(name: str) -> None:
    for x1, x2 in (
        (values("float32"), values("float32", 1)),
        (values("int16"), np.arange(17, dtype="uint8") % 5),
        (values("bool"), values("bool", 3)),
        (values("complex64"), 2),
        (3, np.arange(17, dtype="int8") % 5),
        (2.5, values("float16")),
    ):
        theirs = _outcome(getattr(np, name), x1, x2)
        ours = _outcome(
            getattr(elementwise, name), *(as_array(x) if isinstance(x, np.ndarray) else x for x in (x1, x2))
        )
        check(ours, theirs, name, ulps=4 if name == "logaddexp" else 0)


def _outcome(function: Any, *operands: Any) -> Any:
    try:
        return function(*operands)
    except TypeError:
        return TypeError


def test_without_an_array() -> None:
    check(elementwise.add(1, 2.5), np.asarray(3.5), "scalars")
    check(elementwise.sqrt([1, 4]), np.sqrt([1, 4]), "list")
    check(elementwise.multiply(np.float32(2), np.int8(3)), np.asarray(np.float32(6)), "NumPy's scalars")
    check(elementwise.add(np.arange(3, dtype=">i4"), 1), np.arange(1, 4, dtype="int32"), "the other byte order")
    x = as_array(np.arange(2.0))
    check(elementwise.add([x, x + 1], 1), np.array([[1.0, 2], [2, 3]]), "a list of arrays")


def test_functions_with_two_results() -> None:
    for dtype in ("bool", "int8", "uint8", "float16", "float64"):
        check(elementwise.divmod(as_array(values(dtype)), 3), np.divmod(values(dtype), 3), dtype)
        check(elementwise.frexp(as_array(values(dtype))), np.frexp(values(dtype)), dtype)
        check(elementwise.modf(as_array(values(dtype))), np.modf(values(dtype)), dtype)


class TestCornerCases:
    def test_every_half(self) -> None:
        halves = np.arange(1 << 16, dtype="uint16").view("float16")
        for ufunc in (np.spacing, np.modf, np.deg2rad, np.rad2deg, np.sign, np.rint, np.square, np.isfinite):
            compare(ufunc, halves)
        compare(lambda x: np.heaviside(x, 0.5), halves)
        compare(lambda x: np.fmax(x, 1), halves)

    def test_least_common_multiple_of_the_least_integers(self) -> None:
        bytes_ = np.arange(-128, 128, dtype="int8")
        compare(np.lcm.outer, bytes_, bytes_)
        compare(np.gcd.outer, bytes_, bytes_)

    def test_spacing_at_the_ends(self) -> None:
        for dtype in ("float32", "float64"):
            info = np.finfo(dtype)
            line = np.array([info.tiny, info.max, info.smallest_subnormal, 1, 2, 0.5, 0, np.inf, np.nan], dtype)
            compare(np.spacing, np.concatenate([line, -line]))

    def test_exponents_beyond_int32(self) -> None:
        compare(np.ldexp, np.ones(4), np.array([2**40, -(2**40), 3, -1]))

    def test_sums_of_logarithms_far_apart(self) -> None:
        line = np.array([-np.inf, np.inf, np.nan, 0, 1e300, -1e300, 700.0, 1000.0, -745.0])
        compare(np.logaddexp.outer, line, line, ulps=4)
        compare(np.logaddexp2.outer, line, line, ulps=4)

    def test_integers_to_negative_powers(self) -> None:
        x = as_array(np.arange(1, 4))
        with pytest.raises(ValueError, match="negative integer powers"):
            np.power(x, -1).compute()

    def test_messages_say_what_to_do(self) -> None:
        x = as_array(np.ones(3))
        with pytest.raises(TypeError, match="bitwise_and of float64, float64 is not possible; convert with astype"):
            elementwise.bitwise_and(x, x)
        with pytest.raises(TypeError, match="logical_not"):
            elementwise.negative(x > 0)


class TestRound:
    @pytest.mark.parametrize("decimals", [0, 1, 3, -1, -2])
    def test_against_numpy(self, decimals: int) -> None:
        for dtype in DTYPES:
            x = values(dtype)
            theirs = _outcome(np.round, x, decimals)
            check(_outcome(elementwise.round, as_array(x), decimals), theirs, dtype)

    def test_through_numpy(self) -> None:
        x = as_array(np.array([1.25, -2.5]))
        out = as_array(np.zeros(2, "float32"))
        assert np.round(x, 1, out=out) is out
        check(out, np.array([1.2, -2.5], "float32"), "out")
        check(np.around(x), np.array([1.0, -2.0]), "around")
        check(x.round(1), np.array([1.2, -2.5]), "method")

    def test_is_a_new_array(self) -> None:
        x = as_array(np.arange(3))
        y = elementwise.round(x)
        y += 1
        check(x, np.arange(3), "unchanged")


class TestClip:
    @pytest.mark.parametrize(
        ("low", "high"),
        [
            (1, 5),
            (None, 3),
            (0.5, None),
            (0.5, 2.5),
            (-500, 500),
            (5, 1),
            (np.float32(1.5), 3),
            (np.int8(1), np.uint8(9)),
            (np.array([1, 2, 3] * 3 + [0] * 8), 6),
            (1, np.array([[4], [5]], "int8")),
            (np.nan, 3),
            (1, 2 + 1j),
        ],
    )
    def test_against_numpy(self, low: Any, high: Any) -> None:
        for dtype in DTYPES:
            compare(np.clip, values(dtype), low, high, ours=elementwise.clip)

    def test_through_numpy(self) -> None:
        a = np.arange(-3.0, 4)
        check(np.clip(as_array(a), -1, 2), np.clip(a, -1, 2), "by position")
        check(np.clip(as_array(a), min=-1), np.clip(a, -1, None), "one limit")

    def test_without_limits(self) -> None:
        x = as_array(np.arange(3))
        y = elementwise.clip(x)
        y += 1
        check(x, np.arange(3), "unchanged")

    def test_ways_to_write_it(self) -> None:
        a = np.arange(-3.0, 4)
        x, expected = as_array(a), np.clip(a, -1, 2)
        check(elementwise.clip(x, -1, 2), expected, "by position")
        check(elementwise.clip(x, min=-1, max=2), expected, "the standard's names")
        check(elementwise.clip(x, a_min=-1, a_max=2), expected, "NumPy's names")
        check(x.clip(-1, 2), expected, "method")
        check(elementwise.clip(x, min=-1), np.clip(a, -1, None), "one limit")
        out = as_array(np.zeros(7))
        assert elementwise.clip(x, -1, 2, out=out) is out
        check(out, expected, "out")
        with pytest.raises(ValueError, match="not both"):
            elementwise.clip(x, 1, max=2)
        with pytest.raises(OverflowError):
            elementwise.clip(as_array(np.arange(3, dtype="int8")), 500, None)
        with pytest.raises(TypeError, match=r"np\.asarray"):
            elementwise.clip(x, 0, 1, out=np.zeros(7))

    @settings(max_examples=30, deadline=None)
    @given(
        line=st.lists(st.integers(-128, 127), max_size=6),
        # Which of two zeros a limit gives is nobody's promise, so there is only one here.
        low=st.none() | st.integers(-300, 300) | st.floats(allow_nan=False, width=32).map(lambda limit: limit + 0.0),
        high=st.none() | st.integers(-300, 300) | st.floats(allow_nan=False, width=32).map(lambda limit: limit + 0.0),
    )
    def test_any_limits(self, line: list[int], low: Any, high: Any) -> None:
        compare(np.clip, np.array(line, "int8"), low, high, ours=elementwise.clip)


class TestParts:
    def test_of_complex_numbers_follow_the_array_and_cannot_be_written_to(self) -> None:
        x = as_array(np.array([1 + 2j, 3 - 4j]))
        real, imag = elementwise.real(x), elementwise.imag(x)
        check(real, np.array([1.0, 3.0]), "real")
        check(imag, np.array([2.0, -4.0]), "imag")
        x[0] = 5 + 6j
        check(real, np.array([5.0, 3.0]), "fresh")
        for part in (real, imag, real[:1]):
            with pytest.raises(ValueError, match="write x = "):
                part += 1

    def test_of_real_numbers(self) -> None:
        for dtype in ("bool", "int8", "float32"):
            x = as_array(values(dtype))
            assert elementwise.real(x) is x
            check(elementwise.imag(x), np.imag(values(dtype)), dtype)

    def test_through_numpy(self) -> None:
        a = values("complex64")
        check(np.real(as_array(a)), a.real, "real")
        check(np.imag(as_array(a)), a.imag, "imag")


@settings(max_examples=50, deadline=None)
@given(
    x=st.floats(width=64) | st.integers(-(2**63), 2**63 - 1),
    dtype=st.sampled_from(["int64", "float64"]),
    name=st.sampled_from(["sqrt", "exp", "tanh", "floor", "abs", "sign", "isfinite", "reciprocal", "expm1"]),
)
def test_any_number(x: float, dtype: str, name: str) -> None:
    if dtype == "int64" and not (isinstance(x, int) or (math.isfinite(x) and abs(x) < 2**62)):
        return
    compare(getattr(np, name), np.array([x]).astype(dtype))


def test_arrays_are_lazy() -> None:
    result = elementwise.tanh(elementwise.add(as_array(np.ones(3)), 1))
    assert isinstance(result, Array)
    assert not result._value.computed
