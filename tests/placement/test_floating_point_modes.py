"""NumPy's floating-point modes and Python's warning filters hold wherever calls run."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.agreement.trust import is_finite, may_warn
from anygpu.calls.offload import Offloaded
from anygpu.placement.planner import Planner
from anygpu.program.graph import Program
from anygpu.receipts.receipt import Receipt
from anygpu.runtime.runtime import Runtime
from tests.placement.moved import moved
from tests.support.slowed import SlowedRegistry

pytestmark = pytest.mark.software_devices("calls move by themselves to a device that stands in for a GPU")


@pytest.fixture(scope="module")
def planner() -> Iterator[Planner]:
    planner = Planner(known=SlowedRegistry("opencl:0"))
    planner._look()
    yield planner
    planner.close()


def inverse(x: Any) -> Any:
    return 1.0 / x


def masked(x: Any) -> Any:
    return np.where(x > 0, np.log(x), 0.0)


FINE = np.array([1.0, 2.0, 4.0], np.float32)
ZERO = np.array([1.0, 0.0, 4.0], np.float32)


def called(function: Offloaded[..., Any], *arguments: Any) -> tuple[Any, Receipt]:
    with ag.collect_receipts() as collected:
        value = function(*arguments)
    return value, collected[0]


@pytest.mark.parametrize("mode", ["raise", "call", "print", "log"])
def test_loud_modes_are_numpys_own(planner: Planner, mode: Any, capfd: pytest.CaptureFixture[str]) -> None:
    function, _ = moved(planner, inverse, FINE)
    heard: list[str] = []
    log = io.StringIO()
    handler: Any = log if mode == "log" else lambda kind, flag: heard.append(kind)
    with np.errstate(divide=mode, call=handler):
        if mode == "raise":
            with pytest.raises(FloatingPointError, match="divide by zero"):
                function(ZERO)
        else:
            value, receipt = called(function, ZERO)
            assert np.isinf(value[1])
            assert receipt.device == "numpy"
            assert f'divide="{mode}"' in receipt.reason
    assert heard == (["divide by zero"] if mode == "call" else [])
    assert ("divide by zero" in log.getvalue()) == (mode == "log")
    assert ("divide by zero" in capfd.readouterr().err) == (mode == "print")
    assert called(function, FINE)[1].device == "opencl:0", "outside of the block it moves again"


def test_underflow_that_is_not_ignored_is_numpys(planner: Planner) -> None:
    function, _ = moved(planner, inverse, FINE)
    with np.errstate(under="warn"):
        assert called(function, FINE)[1].device == "numpy"


def test_a_new_infinity_is_warned_of_at_the_users_line_and_shown_once(planner: Planner) -> None:
    function, state = moved(planner, inverse, FINE)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        value, receipt = called(function, ZERO)
        assert planner.settle(30)
        assert np.array_equal(value, [1.0, np.inf, 0.25])
        (warning,) = caught
        assert warning.category is RuntimeWarning
        assert warning.filename == __file__
        assert receipt.device == "numpy"
        assert "not finite" in receipt.reason
        assert {flag.kind for flag in state.trust.flags} == {"divide by zero"}
        value, receipt = called(function, ZERO)
        assert receipt.device == "opencl:0", "it was shown, and the filters show it once"
        assert np.array_equal(value, [1.0, np.inf, 0.25])
        assert len(caught) == 1


@pytest.mark.parametrize(("action", "shown"), [("always", 3), ("error", 3), ("ignore", 0), ("once", 1), ("module", 1)])
def test_what_the_filters_say_is_done(planner: Planner, action: Any, shown: int) -> None:
    function, _ = moved(planner, inverse, FINE)
    seen = 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter(action)
        # Another line than in other tests: Python remembers the lines of a module, not those of a test.
        getattr(warnings, "onceregistry", {}).clear()
        globals().get("__warningregistry__", {}).clear()
        for _ in range(3):
            try:
                assert np.isinf(function(ZERO)[1])
            except RuntimeWarning:
                seen += 1
            assert planner.settle(30)
        assert seen + len(caught) == shown


def test_filters_that_were_changed_show_it_again(planner: Planner) -> None:
    function, _ = moved(planner, inverse, FINE)
    for _ in range(3):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            function(ZERO)
            assert planner.settle(30)
            assert len(caught) == 1


def test_a_masked_nan_is_known_from_the_comparison(planner: Planner) -> None:
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        function, state = moved(planner, masked, ZERO)
    assert {flag.kind for flag in state.trust.flags} == {"divide by zero"}
    with pytest.raises(RuntimeWarning, match="divide by zero"):
        function(ZERO)


def test_modes_that_ignore_everything_ask_nothing(planner: Planner) -> None:
    function, _ = moved(planner, inverse, FINE)
    with np.errstate(all="ignore"):
        value, receipt = called(function, ZERO)
    assert receipt.device == "opencl:0"
    assert np.isinf(value[1])


def test_a_nan_that_was_given_is_carried_without_a_word(planner: Planner) -> None:
    function, _ = moved(planner, inverse, FINE)
    nan = np.array([1.0, np.nan, 4.0], np.float32)
    assert called(function, nan)[1].device == "numpy", "the first time NumPy has the word"
    assert planner.settle(30)
    assert called(function, nan)[1].device == "opencl:0"


def test_a_device_that_was_asked_for_warns_and_raises_as_numpy_does(planner: Planner) -> None:
    with pytest.raises(RuntimeWarning, match="divide by zero"):
        ag.run(inverse, ZERO, on="opencl")
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        ag.run(inverse, ZERO, on="opencl")


@pytest.mark.parametrize("device", ["cpu", "opencl"])
def test_loud_modes_hold_on_the_way_to_a_finite_result(device: str) -> None:
    """Also where it is masked, cast away or a whole number, and in calls that are not planned any more."""
    cases: list[tuple[Any, Any]] = [
        (lambda x: np.where(x > 1, 1 / (x - 1), 0), FINE),
        (lambda x: x // 0, np.arange(3)),
        (lambda x: x.astype(np.int8), np.full(3, np.nan, np.float32)),
    ]
    for function, given in cases:
        offloaded: Any = ag.offload(on=device)(function)
        with np.errstate(all="ignore"):
            for _ in range(3):
                np.testing.assert_array_equal(offloaded(given), function(given))
        for _ in range(2):
            with np.errstate(all="raise"), pytest.raises(FloatingPointError):
                offloaded(given)


def test_programs_that_cannot_warn_are_not_looked_at() -> None:
    def program(function: Any, *inputs: Any) -> Program:
        return ag.record(function, *inputs)

    assert not may_warn(program(lambda x: np.maximum(-x, 0)[::-1], FINE))
    assert not may_warn(program(lambda x: x > 0, FINE))
    assert may_warn(program(inverse, FINE))
    lines = frozenset(line for line in program(inverse, FINE).lines if line is not None)
    assert not may_warn(program(inverse, FINE), lines), "the function has told NumPy to be quiet there"


def test_finite_is_told_of_floats_alone() -> None:
    assert is_finite([np.full(1000, 3e38, np.float32), np.arange(3)])
    assert not is_finite([np.array([1.0, np.nan])])
    assert not is_finite([np.array([np.inf, -np.inf])])


def test_tasks_run_under_the_modes_of_whoever_submitted_them(planner: Planner) -> None:
    with Runtime(known=planner.places) as runtime:
        with np.errstate(divide="raise"):
            future = runtime.submit(inverse, ZERO)
            with pytest.raises(FloatingPointError):
                future.result(120)
            outcomes = list(runtime.map(inverse, [FINE, ZERO]))
        assert [outcome.ok for outcome in outcomes] == [True, False]
        with np.errstate(all="ignore"):
            assert np.isinf(runtime.submit(inverse, ZERO).result(120)[1])
        with pytest.raises(RuntimeWarning):
            runtime.submit(inverse, ZERO).result(120)
