"""Native code warns where NumPy does, also of what no result shows and of inputs that nothing was compared with."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.array.trace.traced import Traced
from anygpu.array.trace.tracing import trace
from tests.native.cases import device, natively
from tests.support.native_placement import settle

pytestmark = pytest.mark.usefixtures("native_at_once_and_right")

X = np.linspace(1, 2, 2000)
NUMBERS = np.arange(2000, dtype=np.int8) % 50


def with_one(value: float, x: Any = X) -> Any:
    changed = x.copy()
    changed[1234] = value
    return changed


def masked_root(x: Any) -> Any:
    return np.where(x > 0, np.sqrt(x), 0)


def masked_quotient(x: Any) -> Any:
    return np.where(x != 3, 1 / (x - 3), 0.0)


def whole(x: Any) -> Any:
    return x.astype(int)


def narrow(x: Any) -> Any:
    return (x * 3).astype(np.int32)


def logistic(x: Any) -> Any:
    return 1 / (1 + np.exp(x))


def is_large(x: Any) -> Any:
    return np.log(x) > 0.5


def extent(x: Any) -> Any:
    return (x.max() - x.min()) + x


def twice_the_sum(x: Any) -> Any:
    return x.astype(np.float32) * (x.sum() * 2)


def rows_above(x: Any) -> Any:
    return (np.exp(x.reshape(40, 50)).sum(axis=1) > 7).sum()


def distance(x: Any) -> Any:
    return np.logaddexp(x, x[::-1])


def bounded(x: Any) -> Any:
    return np.arctanh((x + 1j) * 0.5)


def of_a_part(x: Any) -> Any:
    return x[:20] + x.astype(np.int8)[:20]


def into_another(x: Any) -> Any:
    unused = x * 1j
    np.exp(x, unused)
    return x + 1


def with_a_constant_that_is_cast(x: Any) -> Any:
    whole = np.append(x, np.inf).astype(np.int32)
    return whole * 1.0, (whole * 1.0).sum()


def test_a_constant_that_is_cast_is_numpys() -> None:
    for _ in range(2):
        with np.errstate(all="ignore"):
            result = ag.run(with_a_constant_that_is_cast, X, on="cpu").value
            expected = with_a_constant_that_is_cast(X)
        assert [each.tolist() for each in result] == [each.tolist() for each in expected]
    assert warned(lambda: ag.run(with_a_constant_that_is_cast, X, on="cpu")) == ["invalid value encountered in cast"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: np.minimum(np.exp2(np.full(x.shape, 4294967294.0)), x),
        lambda x: np.pad(x.astype(np.uint64), 1, constant_values=np.nan),
    ],
)
def test_constants_about_which_numpy_warns_are_heard_in_each_call(function: Any) -> None:
    expected = warned(lambda: function(X))
    offloaded = ag.offload(on="cpu", fallback="allow")(function)
    assert expected
    for _ in range(2):
        assert warned(lambda: offloaded(X)) == expected


def test_an_array_with_axes_is_no_element() -> None:
    def changed(x: Any) -> Any:
        y = x * 2
        y[0] = x[1:2]
        return y

    offloaded = ag.offload(on="cpu", fallback="allow")(changed)
    try:
        expected = changed(X)
    except ValueError as error:
        with pytest.raises(ValueError, match=str(error)):
            offloaded(X)
    else:  # up to NumPy 2.3
        assert np.array_equal(offloaded(X), expected)


def under_its_own_modes(x: Any) -> Any:
    with np.errstate(invalid="warn"):
        return np.sqrt(x)


def test_modes_of_the_function_itself_are_heard() -> None:
    offloaded = natively(under_its_own_modes, X)
    with np.errstate(all="ignore"):
        for _ in range(3):
            assert warned(lambda: offloaded(with_one(-1.0))) == ["invalid value encountered in sqrt"]
            settle()


SPECIAL = np.array([-0.0, -np.inf, 4.0, np.inf])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    ("function", "exponent"),
    [
        (lambda x, k: np.power(x, k), 0.5),
        (lambda x, k: np.power(x, k), np.array([0.5])),
        (lambda x, k: np.power(x[:1], k), np.array([0.5])),
        (lambda x, k: np.power(x[:, None], k), np.array([0.5])),
        (lambda x, _: np.power(x, 0.5), 0),
        (lambda x, k: x**k, 0.5),
        (lambda x, k: x**k, 1.5),
        (lambda x, k: x**k, -1.0),
        (lambda x, k: x**k, np.float64(0.5)),
        (lambda x, k: x**k, np.array([0.5])),
        (lambda x, k: x ** k[0], np.array([0.5])),
        (lambda x, k: x[1] ** k + x[:2], 0.5),
        (lambda x, k: x[1] ** k, np.array([0.5, 0.5])),
        (lambda x, _: x ** np.array(0.5), 0),
        (lambda x, _: x**0.5, 0),
    ],
)
def test_powers_of_one_half_are_numpys(function: Any, exponent: Any, dtype: str) -> None:
    x = SPECIAL.astype(dtype)
    with np.errstate(all="ignore"):
        result, expected = ag.run(function, x, exponent, on="cpu").value, function(x, exponent)
    np.testing.assert_allclose(result, expected, rtol=1e-3)
    assert np.array_equal(np.signbit(result) | np.isnan(result), np.signbit(expected) | np.isnan(expected))


@pytest.mark.parametrize("function", [np.sinh, np.expm1, np.tanh, np.arcsinh, np.sin])
def test_subnormal_numbers_keep_their_last_bit(function: Any) -> None:
    x = np.array([5e-324, 1e-323, 1e-310, -2e-308, 0.0])
    assert np.array_equal(ag.run(lambda x: function(x), x, on="cpu").value, function(x))


def warned(call: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(each.message) for each in caught]


@pytest.mark.parametrize(
    ("function", "usual", "odd"),
    [
        (masked_root, X, with_one(-1.0)),
        (masked_quotient, X, with_one(3.0)),
        (whole, X, with_one(np.nan)),
        (whole, X, with_one(np.inf)),
        (whole, X, with_one(1e300)),
        (narrow, X, with_one(1e10)),
        (logistic, X, with_one(1000.0)),
        (is_large, X, with_one(-1.0)),
        (is_large, X.astype(np.float32), with_one(-1.0).astype(np.float32)),
        (extent, NUMBERS, with_one(-100, NUMBERS)),
        (twice_the_sum, NUMBERS.astype(np.int64), with_one(2**62, NUMBERS.astype(np.int64))),
        (rows_above, X, with_one(800.0)),
        (of_a_part, X, with_one(1e300)),
        (into_another, X, with_one(1000.0)),
        (distance, X, with_one(np.nan)),
        (bounded, X.astype(complex), with_one(np.inf, X.astype(complex))),
    ],
    ids=lambda each: each.__name__ if callable(each) else "",
)
def test_a_warning_that_first_comes_with_new_data_is_given(function: Any, usual: Any, odd: Any) -> None:
    offloaded = natively(function, usual)
    expected = warned(lambda: function(odd))
    assert expected
    for _ in range(3):
        assert warned(lambda: offloaded(odd)) == expected
        assert device() == "numpy"
        settle()
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(offloaded(odd), function(odd))


@pytest.mark.parametrize("function", [masked_root, whole, logistic])
def test_data_of_which_numpy_says_nothing_stays_native(function: Any) -> None:
    offloaded = natively(function, X)
    where = []
    for number in range(8):
        assert warned(lambda: offloaded(X + number)) == []  # noqa: B023 - it is called at once
        where.append(device())
    # Others are samples.
    assert where.count("cpu") >= 5


def test_a_warning_is_given_once_by_the_usual_filters_and_then_calls_are_native() -> None:
    offloaded = natively(masked_root, X)
    odd = with_one(-1.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        globals().get("__warningregistry__", {}).clear()
        where = []
        for _ in range(4):
            offloaded(odd)
            where.append(device())
            settle()
    assert len(caught) == 1
    assert where == ["numpy", "cpu", "cpu", "cpu"]


def test_modes_that_ignore_leave_calls_native() -> None:
    offloaded = natively(masked_root, X)
    with np.errstate(all="ignore"):
        offloaded(with_one(-1.0))
        assert device() == "cpu"


def quiet_root(x: Any) -> Any:
    with np.errstate(all="ignore"):
        roots = np.sqrt(x)
    return np.where(x > 0, roots, 0)


def standardised(x: Any) -> Any:
    return np.where(np.isnan(x), 0.0, (x - np.nanmean(x)) * 3)


@pytest.mark.parametrize(("function", "odd"), [(quiet_root, with_one(-1.0)), (standardised, with_one(np.nan))])
def test_what_numpy_is_seen_to_be_silent_about_is_native_again(function: Any, odd: Any) -> None:
    """A line that is told to be quiet, and a NaN that was among the arguments."""
    offloaded = natively(function, X)
    where = []
    for _ in range(5):
        assert warned(lambda: offloaded(odd)) == []
        where.append(device())
        settle()
    assert "cpu" in where
    # In the first comparison, too.
    other = natively(ag.offload(function), odd)
    assert warned(lambda: other(odd)) == []
    assert device() == "cpu"


def with_constant(x: Any) -> Any:
    return np.sqrt(x) * 2 + x, np.full_like(x, -np.inf) + x


def less_the_first(x: Any) -> Any:
    return x * 2 - x[0] + x


def at_least(x: Any, n: Any) -> Any:
    return np.maximum(x * 2, n)


HALVES = np.ones(2000, np.float16)


@pytest.mark.parametrize(
    ("function", "quiet", "odd"),
    [
        (with_constant, (X,), (with_one(-1.0),)),
        (np.log, (with_one(np.nan),), (with_one(-1.0, with_one(np.nan)[::-1].copy()),)),
        (less_the_first, (with_one(np.inf),), (np.roll(with_one(np.inf), -1234),)),
        (is_large, (with_one(np.nan),), (with_one(-1.0),)),
        (at_least, (HALVES, np.inf), (HALVES, 70000.0)),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_silence_about_one_result_says_nothing_about_the_next(function: Any, quiet: Any, odd: Any) -> None:
    """A result that has NaN or infinity by design, and then one of which NumPy warns."""
    offloaded = ag.offload(lambda *given: function(*given))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        offloaded.prepare(*quiet)
        for _ in range(5):
            offloaded(*quiet)
            settle()
        assert device() == ("numpy" if function is at_least else "cpu"), "that there is no warning is proved of arrays"
        with pytest.raises(RuntimeWarning) as expected:
            function(*odd)
        for _ in range(2):
            with pytest.raises(RuntimeWarning) as got:
                offloaded(*odd)
            settle()
            assert str(got.value) == str(expected.value)
        offloaded(*quiet)


def test_another_warning_than_the_one_that_was_shown_is_shown() -> None:
    def function(x: Any) -> Any:
        return np.where(x > 0, np.log(x), 0) * 2

    offloaded = natively(function, X)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        globals().get("__warningregistry__", {}).clear()
        for value in (0.0, 0.0, -1.0, 0.0, -1.0):
            offloaded(with_one(value))
            settle()
    assert [str(each.message) for each in caught] == [
        "divide by zero encountered in log",
        "invalid value encountered in log",
    ]


def test_results_with_warnings_in_each_call_end_on_numpy() -> None:
    offloaded = natively(np.log, X)
    odd = with_one(-1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        for _ in range(12):
            assert len(warned(lambda: offloaded(odd))) == 1
            settle()
    receipt = ag.last_receipt()
    assert receipt is not None
    assert "NumPy may warn" in receipt.reason


def test_complex_numbers_are_cast_to_real_ones_with_numpys_warning() -> None:
    def real_parts(z: Any) -> Any:
        return np.abs(z.astype(np.float64) * 2 + 1)

    offloaded = ag.offload(real_parts)
    z = X + 1j
    with np.errstate(all="ignore"):
        for _ in range(4):
            assert warned(lambda: offloaded.prepare(z)) == warned(lambda: real_parts(z)) != []
    receipt = ag.last_receipt()
    assert receipt is not None
    assert "ComplexWarning" in receipt.reason


@pytest.mark.parametrize("source", ["float16", "float32", "float64"])
@pytest.mark.parametrize("target", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool"])
def test_casts_of_numbers_out_of_range_are_numpys(source: str, target: str) -> None:
    """Also where nothing is heard of them, and on the device by name."""
    rng = np.random.default_rng(0)

    def cast(x: Any) -> Any:
        return (x * 1).astype(target)

    with np.errstate(all="ignore"):
        special = [np.nan, np.inf, -np.inf, -0.0, 1e30, -1e300, 2.0**31, -(2.0**31), 2.0**32, 2.0**63, 2.0**64, 300.0,
                   -1.0, -129.0, 3232329041051381.5, 1e10, 0.9999, -0.9999]  # fmt: skip
        values = np.array(special).astype(source)
        offloaded = natively(cast, np.full(37, 3, source))
        for value in values:
            x = np.full(37, 3, source)
            x[20] = value
            np.testing.assert_array_equal(offloaded(x), cast(x))
        for count in (1, 7, 33, 1000):
            x = rng.choice(values, count)
            np.testing.assert_array_equal(ag.run(cast, x, on="cpu").value, cast(x))


@pytest.mark.parametrize("name", ["sum", "prod", "var", "std"])
def test_sums_of_float16_stay_on_numpy(name: str) -> None:
    """NumPy rounds each step, and a step may overflow."""
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (300, 300)).astype(np.float16)

    def function(x: Any) -> Any:
        return getattr(x, name)(axis=0) * 2

    offloaded = ag.offload(function)
    with np.errstate(all="ignore"):
        for _ in range(3):
            np.testing.assert_array_equal(offloaded.prepare(image), function(image))
    receipt = ag.last_receipt()
    assert receipt is not None
    assert "float16" in receipt.reason


def constant_in_vain(x: Any) -> Any:
    return np.where(np.isnan(np.log(np.float64(-1.0))), np.sqrt(x), x)


def test_a_constant_warns_once_in_every_call() -> None:
    offloaded = ag.offload(constant_in_vain)
    expected = warned(lambda: constant_in_vain(X))
    assert expected == ["invalid value encountered in log"]
    assert warned(lambda: offloaded.prepare(X)) == expected
    for _ in range(4):
        assert warned(lambda: offloaded(X)) == expected
        settle()


def constant_with_warnings_on(x: Any) -> Any:
    with np.errstate(all="ignore"), np.errstate(divide="warn"):
        return x + (1 / np.arange(3))[1]


def constant_with_all_warnings_on(x: Any) -> Any:
    with np.errstate(all="warn"):
        return x + (1 / np.arange(3))[1]


@pytest.mark.parametrize("function", [constant_with_warnings_on, constant_with_all_warnings_on])
def test_a_constant_for_which_the_function_turns_warnings_on_warns_once_in_every_call(function: Any) -> None:
    offloaded = ag.offload(function)
    expected = warned(lambda: function(X))
    assert expected == ["divide by zero encountered in divide"]
    for _ in range(5):
        assert warned(lambda: offloaded(X)) == expected
        settle()


def test_a_constant_that_was_warned_of_does_not_keep_calls_from_being_native() -> None:
    offloaded = ag.offload(constant_in_vain)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        globals().get("__warningregistry__", {}).clear()
        offloaded.prepare(X)
        for _ in range(3):
            offloaded(X)
    assert len(caught) == 1
    assert device() == "cpu"


def mean_in_silence(x: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.nanmean(x) + x * 2


@pytest.mark.parametrize("name", ["nanmean", "nanmax", "nanstd", "nanvar", "nanmin"])
def test_no_mode_hides_what_numpy_says_of_empty_slices(name: str) -> None:
    reduce = getattr(np, name)

    def function(x: Any, y: Any) -> Any:
        return reduce(x) + y * 2

    decorated = ag.offload(function)
    x = with_one(np.nan)
    with np.errstate(all="ignore"):
        for _ in range(6):
            natively(decorated, x, X)
        assert device() == "cpu"
        expected = warned(lambda: function(x * np.nan, X))
        assert len(expected) == 1
        assert warned(lambda: decorated(x * np.nan, X)) == expected


def test_nor_do_those_that_the_function_sets() -> None:
    decorated = ag.offload(mean_in_silence)
    for _ in range(6):
        natively(decorated, X)
    assert device() == "cpu"
    empty = X * np.nan
    assert warned(lambda: decorated(empty)) == warned(lambda: mean_in_silence(empty)) != []


# -- where it is asked for by name


def _as_on_numpy(function: Callable[..., Any], *arguments: Any, times: int = 3) -> None:
    """Some calls raise what NumPy raises, and give the same warnings."""
    named = ag.offload(on="cpu", fallback="allow")(function)

    def outcome(called: Callable[..., Any]) -> tuple[str, list[str]]:
        raised = []

        def call() -> None:
            try:
                called(*arguments)
            except Exception as error:  # noqa: BLE001 - any is compared
                raised.append(repr(error))

        heard = warned(call)
        return str(raised), heard

    expected = outcome(function)
    assert expected != ("[]", [])
    for _ in range(times):
        assert outcome(named) == expected


def _cut(x: Any) -> Any:
    return (x * 1e308)[[0, -1]] + 1


def _cut_to_rows(x: Any) -> Any:
    return np.sqrt(x)[1:5] + 1


def _nothing_is_left(x: Any) -> Any:
    return np.diff(np.log(x)[:1]), x + 1


def _overwritten(x: Any) -> Any:
    root = np.sqrt(x)
    root[10:] = 0
    return root


@pytest.mark.parametrize("function", [_cut_to_rows, _nothing_is_left, _overwritten])
def test_elements_that_are_cut_away_are_warned_of(function: Callable[..., Any]) -> None:
    _as_on_numpy(function, with_one(-1.0))


def test_elements_that_are_not_picked_are_warned_of() -> None:
    _as_on_numpy(_cut, with_one(100.0))


def test_every_element_is_in_one_of_two_parts() -> None:
    """Nothing is computed that is not returned."""

    def differences(x: Any) -> Any:
        root = np.sqrt(x)
        return root[1:] - root[:-1]

    for function, results in ((differences, 1), (_cut_to_rows, 2)):
        traced = trace(function, (X,), {})
        assert isinstance(traced, Traced)
        assert len(traced.program.results) == results


def test_a_number_too_large_for_an_array_is_warned_of() -> None:
    half = np.ones(100, np.float16)
    _as_on_numpy(lambda x: x > 1e5, half)
    _as_on_numpy(lambda x: np.count_nonzero(x % 1e5 > 2), half)


def test_degrees_of_freedom_are_warned_of_whatever_the_modes_are() -> None:
    with np.errstate(all="ignore"):
        _as_on_numpy(lambda x: np.cov(x, x) + 1, np.ones(1))


def test_an_error_comes_after_the_warnings_that_numpy_gives_before() -> None:
    def local(x: Any) -> Any:
        if x.size < 10:
            found = x + 1
        np.sqrt(x)
        return found

    _as_on_numpy(local, with_one(-1.0))
    _as_on_numpy(lambda x: np.histogram(x, 4)[0] + 1, with_one(np.nan))


def test_an_error_that_is_caught_decides_the_result() -> None:
    def caught(x: Any) -> Any:
        try:
            return 1 / x
        except FloatingPointError:
            return x

    x = np.zeros(4)
    with np.errstate(divide="raise"):
        assert ag.offload(on="cpu", fallback="allow")(caught)(x) is x


def test_an_error_is_raised_once_under_modes_that_raise() -> None:
    with np.errstate(invalid="raise"):
        _as_on_numpy(lambda x: np.log10(x) + 1, np.array([-1.0, 0.0, 1.0]))
