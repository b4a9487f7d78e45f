"""A function that runs as native code does what it did before: values, types, layouts, views, warnings, errors."""

from __future__ import annotations

import functools
import pickle
import sys
import threading
import warnings
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.base import events
from tests.native.cases import compare, device, natively
from tests.support.native_placement import settle, wrong_functions

pytestmark = pytest.mark.usefixtures("native_at_once_and_right")

X = np.linspace(-2, 2, 12, dtype=np.float32)
M = X.reshape(3, 4)


def smooth(x: Any) -> Any:
    return np.tanh(x) * 2 + x


def inverse(x: Any) -> Any:
    return 1 / x + 1


# -- what a function depends on


FACTOR: Any = 2.0
TABLE = np.arange(12, dtype=np.float32)


def with_globals(x: Any) -> Any:
    return x * FACTOR + TABLE


@pytest.mark.parametrize("value", [3.0, 2, np.float64(2), np.ones(12, np.float32), "text", None])
def test_another_global(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    function = natively(with_globals, X)
    monkeypatch.setitem(globals(), "FACTOR", value)
    compare(with_globals, *[lambda: (X,)] * 5, offloaded=function)
    monkeypatch.undo()
    assert "cpu" in compare(with_globals, *[lambda: (X,)] * 5, offloaded=function)


def test_a_global_array_that_is_written_to() -> None:
    offloaded = natively(with_globals, X)
    where = []
    for _ in range(6):
        TABLE[3] += 1
        np.testing.assert_array_equal(offloaded(X), with_globals(X))
        where.append(device())
        settle()
    assert where.count("cpu") >= 3


def test_attributes_and_closures_that_change() -> None:
    class Model:
        gain = 1.0

        def __init__(self) -> None:
            self.bias = np.ones(12, np.float32)

        def apply(self, x: Any) -> Any:
            return x * self.gain + self.bias + shift

    shift = 1.0
    model = Model()
    function = natively(model.apply, X)
    where = []
    for number in range(20):
        if number == 5:
            model.bias = np.zeros(12, np.float32)
        if number == 10:
            Model.gain = 3.0
        if number == 15:
            shift = -1
        np.testing.assert_array_equal(function(X), model.apply(X))
        where.append(device())
        settle()
    assert all("cpu" in where[begin : begin + 5] for begin in (0, 5, 10, 15)), where


# -- modes and warnings


@pytest.mark.parametrize("mode", ["raise", "call", "print", "log", "warn", "ignore"])
def test_modes_around_a_call(mode: Any, capfd: pytest.CaptureFixture[str]) -> None:
    function = natively(inverse, X)
    heard: list[str] = []

    class Log:
        def write(self, text: str) -> None:
            heard.append(text)

    handler: Any = Log() if mode == "log" else lambda kind, _: heard.append(kind)
    told = []
    for each in (inverse, function, function, inverse):
        heard.clear()
        with warnings.catch_warnings(record=True) as caught, np.errstate(all=mode, call=handler):
            warnings.simplefilter("always")
            try:
                value = each(np.zeros(12, np.float32))
            except FloatingPointError as error:
                value = str(error)
        told.append((str(value), tuple(heard), [str(one.message) for one in caught], capfd.readouterr().err))
        settle()
    assert told[1:] == told[:1] * 3
    function(X)
    assert device() == "cpu", "outside of the block it is native again"


def test_a_function_traced_under_other_modes_does_as_under_the_usual_ones() -> None:
    def guarded(x: Any) -> Any:
        with np.errstate(divide="raise"):
            try:
                return 1 / x
            except FloatingPointError:
                return x * 7

    offloaded = ag.offload(guarded)
    with np.errstate(all="raise"):
        for _ in range(4):
            offloaded(X + 3)
            settle()
        offloaded.prepare(X + 3)
    for modes in ({}, {"all": "ignore"}):
        with np.errstate(**modes):  # type: ignore[arg-type]
            np.testing.assert_array_equal(offloaded(np.zeros(12, np.float32)), np.zeros(12))


@pytest.mark.parametrize(("action", "times"), [("always", 3), ("error", 3), ("default", 1), ("ignore", 0)])
def test_a_warning_is_shown_at_the_users_line(action: Any, times: int) -> None:
    function = natively(inverse, X)
    raised = 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter(action)
        globals().get("__warningregistry__", {}).clear()
        for _ in range(3):
            try:
                assert np.isinf(function(np.zeros(12, np.float32))).all()
            except RuntimeWarning:
                raised += 1
            settle()
    assert raised + len(caught) == times
    assert {(each.filename, each.lineno) for each in caught} <= {(__file__, inverse.__code__.co_firstlineno + 1)}


def masked_logarithm(x: Any) -> Any:
    return np.where(x > 0, np.log(x), 0)


def to_whole_numbers(x: Any) -> Any:
    return (x * 2).astype(np.int32)


@pytest.mark.parametrize(
    ("function", "bad"), [(masked_logarithm, -1), (to_whole_numbers, np.nan)], ids=["masked", "cast"]
)
def test_a_known_warning_of_what_is_not_in_the_result(function: Any, bad: float) -> None:
    """NumPy has the word in each call of which it warns, also after one that was only a sample, and in no others."""
    fine, odd = np.full(12, 1.5, np.float32), np.full(12, bad, np.float32)
    offloaded = natively(function, fine)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        while device() == "cpu":
            offloaded(odd)
        settle()
    where = compare(function, *[lambda: (odd,), lambda: (fine,)] * 4, offloaded=offloaded)
    assert set(where[::2]) == {"numpy"}
    assert "cpu" in where[1::2]


def test_a_mean_of_nothing_warns_whatever_the_modes_are() -> None:
    def means(x: Any) -> Any:
        return x[:0].mean() + x, x[:1].std(ddof=1)

    with np.errstate(all="ignore"):
        assert set(compare(means, *[lambda: (X,)] * 5)) == {"numpy"}


# -- memory

LAYOUTS: dict[str, Any] = {
    "C": lambda: M.copy(),
    "Fortran": lambda: np.asfortranarray(M),
    "transposed": lambda: M.reshape(4, 3).copy().T,
    "strided": lambda: np.repeat(M, 2, axis=1)[:, ::2],
    "reversed": lambda: M[::-1, ::-1].copy()[::-1, ::-1],
    "broadcast": lambda: np.broadcast_to(M[0], (3, 4)),
    "read-only": lambda: _read_only(M.copy()),
    "byte-swapped": lambda: M.astype(M.dtype.newbyteorder()),
    "unaligned": lambda: _unaligned(M),
    "subclass": lambda: M.copy().view(Tagged),
    "masked": lambda: np.ma.masked_array(M, M > 1),
    "record": lambda: np.rec.array(M),
}


class Tagged(np.ndarray):
    """A subclass of the user's."""


def _read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


def _unaligned(array: Any) -> Any:
    found = np.zeros(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
    found[...] = array
    assert not found.flags.aligned
    return found


FUNCTIONS: dict[str, Any] = {
    "values": lambda x: np.tanh(x) + 1,
    "transposed": lambda x: (x + 1).T,
    "several": lambda x: (x * 2, x.sum(axis=0), x.max(), float(x.shape[0])),
    "product": lambda x: x @ x.T,
    "itself": lambda x: x,
    "view": lambda x: x[1:],
    "raveled": lambda x: (x.ravel(), x.reshape(-1) + 1),
    "copy": lambda x: x.copy(),
    "like": lambda x: np.zeros_like(x) + x,
    "flags": lambda x: x * (2 if x.flags.f_contiguous else 3),
    "same twice": lambda x: (y := x + 1, y),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_layouts(name: str) -> None:
    function = FUNCTIONS[name]
    made = [lambda each=each: (each(),) for each in LAYOUTS.values()]
    where = compare(function, *(each for each in made for _ in range(5)), *made, *reversed(made))
    assert ("cpu" in where) == (name not in ("itself", "view")), "what computes nothing stays as it is"


@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (2, 0, 1)])
def test_a_result_has_memory_of_its_own_in_every_order(axes: Any) -> None:
    """As NumPy's has: only what owns its memory can be resized."""
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(axes)
    offloaded = natively(smooth, x)
    value = offloaded(x)
    assert device() == "cpu"
    assert value.strides == smooth(x).strides
    assert value.flags.owndata
    assert value.base is None


def test_arrays_without_axes_and_without_elements() -> None:
    shapes: list[Any] = [(), (0,), (0, 4), (1,), (1, 1, 1), (3, 4)]
    given = [lambda shape=shape: (np.ones(shape, np.float32),) for shape in shapes for _ in range(4)]
    compare(smooth, *given, *reversed(given))


@pytest.mark.parametrize("dtype", ["?", "i1", "u8", "f2", "f8", "c8", "g", "M8[s]", "O", "U3"])
def test_types_after_each_other(dtype: str) -> None:
    def twice(x: Any) -> Any:
        return x + x

    compare(twice, *[lambda: (X,)] * 4, *[lambda: (np.zeros(12, dtype),)] * 4, *[lambda: (X,), lambda: (X[:3],)] * 3)


def test_the_same_array_twice_and_overlapping_ones() -> None:
    def both(x: Any, y: Any) -> Any:
        return x * y + y, x is y

    def overlapping() -> Any:
        x = np.arange(13, dtype=np.float32)
        return x[1:], x[:-1]

    def same() -> Any:
        x = X.copy()
        return x, x

    compare(both, *[overlapping] * 4, *[same] * 4, *[overlapping, same] * 3)


# -- what a function does beside computing


def test_writing_to_an_argument() -> None:
    def accumulate(total: Any, x: Any) -> Any:
        total += np.tanh(x)
        return total

    assert set(compare(accumulate, *[lambda: (np.zeros(12, np.float32), X)] * 6)) == {"numpy"}


def test_random_numbers_and_printing() -> None:
    def noisy(x: Any) -> Any:
        print("called")  # noqa: T201
        return x + np.random.standard_normal(12)

    offloaded = ag.offload(noisy)
    for each in (noisy, offloaded):
        np.random.seed(3)
        values = [each(X) for _ in range(5)]
        settle()
        if each is noisy:
            expected = values
    np.testing.assert_array_equal(values, expected)


def test_a_generator_is_returned() -> None:
    def lazily(x: Any) -> Any:
        return (each * 2 for each in x)

    compare(lazily, *[lambda: (X,)] * 5)


# -- numbers


def test_numbers_that_decide_shapes() -> None:
    def windows(x: Any, n: int) -> Any:
        return np.stack([x[each : each + n] for each in range(len(x) - n)]).mean(axis=1)

    given = [lambda n=n: (X, n) for n in (2, 2, 2, 3, 3, 3, 2, 5, 2, 3, 11, 2)]
    where = compare(windows, *given)
    assert "cpu" in where
    compare(windows, lambda: (X, 12), lambda: (X, 0), lambda: (X, "2"), lambda: (X, 2.0))


@pytest.mark.parametrize("first", [2.5, 0.0, 1, 0])
def test_numbers_of_other_kinds(first: Any) -> None:
    def scaled(x: Any, k: Any) -> Any:
        return x * k + k, np.copysign(x, k)

    numbers = [0.0, -0.0, 1.0, 1, 0, np.nan, np.inf, -np.inf, 2**31, 2**62, 2**63, 2**70, -3, True, 1e300, 5e-324,
               np.float32(2), np.int8(3), 1j, 2.5]  # fmt: skip
    given = [lambda k=k: (X, k) for k in (*[first] * 3, *numbers, *numbers)]
    with np.errstate(all="ignore"):
        compare(scaled, *given)


def test_numbers_that_python_raises_for() -> None:
    def divided(x: Any, n: int) -> Any:
        return x * (10 // n) + 3**n

    given = [lambda n=n: (X, n) for n in (2, 2, 2, 3, 3, 0, 3, -1, 0, 2, 10**4, 2)]
    assert "cpu" in compare(divided, *given)


def test_errors_for_some_values_only() -> None:
    def picked(x: Any, which: Any) -> Any:
        return x[which] * 2

    inside, outside = np.array([1, -12, 11]), np.array([1, 2, 12])
    where = compare(picked, *[lambda: (X, inside)] * 4, *[lambda: (X, outside), lambda: (X, inside)] * 3)
    assert "cpu" in where
    assert where[-2] == "raised"


def test_whole_numbers_divided_by_zero() -> None:
    def quotient(x: Any, y: Any) -> Any:
        return x // y

    whole = np.arange(12)
    where = compare(quotient, *[lambda: (whole, whole + 1)] * 4, *[lambda: (whole, whole)] * 2)
    assert where[2:5] == ["cpu", "cpu", "numpy"]
    where = compare(quotient, *[lambda: (whole, 3)] * 4, *[lambda: (whole, 0)] * 3)
    assert where[2:5] == ["cpu", "cpu", "numpy"]


# -- functions of all kinds


def test_recursion_and_functions_that_call_each_other() -> None:
    @ag.offload
    def inner(x: Any) -> Any:
        return np.tanh(x) + 1

    @ag.offload
    def outer(x: Any, depth: int) -> Any:
        return inner(x) if depth == 0 else outer(x * 2, depth - 1) + 1

    expected = np.tanh(X * 4) + 1 + 2
    where = []
    for _ in range(6):
        np.testing.assert_allclose(outer(X, 2), expected, rtol=1e-5)
        where.append(device())
        np.testing.assert_allclose(inner(X), np.tanh(X) + 1, rtol=1e-5)
        where.append(device())
        settle()
    assert "cpu" in where


def test_methods_objects_and_partials() -> None:
    class Scale:
        def __init__(self, by: float) -> None:
            self.by = by

        def __call__(self, x: Any) -> Any:
            return x * self.by

        @ag.offload
        def method(self, x: Any) -> Any:
            return x * self.by + 1

        @staticmethod
        @ag.offload
        def static(x: Any) -> Any:
            return x + 2

    called = natively(Scale(3.0), X)
    partly = natively(functools.partial(lambda k, x: x * k, 4.0), X)
    for number in range(5):
        each = Scale(float(number))
        for _ in range(3):
            np.testing.assert_array_equal(each.method(X), X * each.by + 1)
            np.testing.assert_array_equal(Scale.static(X), X + 2)
            np.testing.assert_array_equal(called(X), X * 3)
            np.testing.assert_array_equal(partly(X), X * 4)
            settle()
    assert device() == "cpu"


def test_defaults_and_keywords() -> None:
    def shifted(x: Any, by: float = 2.0, *, scale: float = 3.0) -> Any:
        return x * scale + by

    offloaded = natively(shifted, X)
    for keywords in ({}, {"by": 5.0}, {"scale": 1.0}, {"scale": 2, "by": 0}, {"x": X}, {"wrong": 1}, {"by": X}, {}) * 2:
        arguments = () if "x" in keywords else (X,)
        for _ in range(3):
            try:
                expected: Any = shifted(*arguments, **keywords)
            except TypeError as error:
                expected = str(error)
            try:
                got: Any = offloaded(*arguments, **keywords)
            except TypeError as error:
                got = str(error)
            assert np.array_equal(got, expected)
            settle()
    shifted.__defaults__ = (7.0,)
    np.testing.assert_array_equal(offloaded(X), X * 3 + 7)


# -- threads, interrupts and errors


def test_two_threads_at_once() -> None:
    function = ag.offload(smooth)
    small, large = X, np.linspace(0, 1, 5000)
    expected = {12: smooth(small), 5000: smooth(large)}
    wrong: list[Any] = []

    def call() -> None:
        for number in range(200):
            given = (small, large)[number % 2]
            try:
                if not np.allclose(function(given), expected[len(given)], rtol=1e-5):
                    wrong.append(number)
            except BaseException as error:  # noqa: BLE001
                wrong.append(error)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert wrong == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_after_an_error_in_the_trial_it_is_tried_again(error: Any) -> None:
    def raising(x: Any) -> Any:
        if armed[0]:
            raise error("mine")
        return np.tanh(x)

    armed = [False]
    function = ag.offload(raising)
    function(X)
    armed[0] = True
    for _ in range(3):
        with pytest.raises(error, match="mine"):
            function(X)
        settle()
    armed[0] = False
    where = []
    for _ in range(5):
        np.testing.assert_allclose(function(X), np.tanh(X), rtol=1e-5)
        where.append(device())
        settle()
    assert "cpu" in where, ag.last_receipt()


def test_wrong_programs_are_found_by_comparing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a trace has misunderstood is right for its program, and wrong for the function."""
    from collections.abc import Hashable

    def asks(x: Any) -> Any:
        return x * (2 if isinstance(x, Hashable) else 3)

    offloaded = ag.offload(asks)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(5):
            np.testing.assert_array_equal(offloaded(X), X * 3)
            settle()
    assert [each.category.__name__ for each in caught] == ["ResultMismatch"]
    assert len(wrong_functions()) == 1


# -- what others see


@ag.offload
def picklable(x: Any) -> Any:
    return np.tanh(x) * 3


def test_pickling_a_function_with_native_code() -> None:
    @ag.offload
    def local(x: Any) -> Any:
        return np.tanh(x) * 3

    natively(local, X)
    again = pickle.loads(pickle.dumps(picklable))
    assert again is picklable
    cloudpickle = pytest.importorskip("cloudpickle")
    np.testing.assert_array_equal(cloudpickle.loads(cloudpickle.dumps(local))(X), np.tanh(X) * 3)


def test_receipts_and_observers_hear_of_native_calls() -> None:
    function = natively(smooth, X)
    seen: list[Any] = []
    with ag.collect_receipts() as receipts:
        for _ in range(3):
            function(X)
            settle()
    assert {each.device for each in receipts} <= {"cpu", "numpy"}
    assert len(receipts) == 3
    events.calls.append(lambda each, origin: seen.append(each))
    try:
        for _ in range(3):
            function(X)
            settle()
    finally:
        events.calls.pop()
    assert len(seen) == 3
    assert "cpu" in {getattr(each, "device", None) for each in seen}
    function(X)
    receipt = ag.last_receipt()
    assert receipt is not None
    assert receipt.task.endswith("smooth")
    assert receipt.program is not None or receipt.device == "numpy"


def test_a_sample_after_a_change_is_no_change_by_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    function = natively(with_globals, X)
    for number in range(12):
        monkeypatch.setitem(globals(), "FACTOR", 2.0 if number % 2 else "2")
        for _ in range(3):
            if number % 2:
                np.testing.assert_array_equal(function(X), with_globals(X))
            else:
                with pytest.raises(TypeError):
                    function(X)
            settle()
    receipt = ag.last_receipt()
    assert receipt is not None
    assert "modifies" not in receipt.reason


def test_the_switch_interval_is_as_it_was() -> None:
    usual = sys.getswitchinterval()
    for _ in range(3):
        natively(lambda x: smooth(x) + 1, X)
        settle()
    assert sys.getswitchinterval() == pytest.approx(usual)
