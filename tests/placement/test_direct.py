"""Calls on a device of this process that is all the caller allows: after the first one, nothing is planned."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.calls.offload import Offloaded
from anygpu.calls.options import options
from anygpu.placement.direct import DirectCalls
from anygpu.placement.planner import Planner
from anygpu.workers.device_arrays.registry import DeviceRegistry

X = np.linspace(1, 2, 100)
SCALE = 2.0


@pytest.fixture
def planner() -> Planner:
    return Planner(known=DeviceRegistry())


def placed(function: Callable[..., Any], planner: Planner, **given: Any) -> Offloaded[..., Any]:
    return Offloaded(function, options(**{"on": "cpu", "fallback": "raise"} | given), lambda: planner)


def sites(function: Offloaded[..., Any]) -> list[Any]:
    return list(function._table.sites.values())


def is_direct(function: Offloaded[..., Any]) -> bool:
    (site,) = sites(function)
    return isinstance(site.host.direct, DirectCalls)


def standardised(x: Any) -> Any:
    return (x - x.mean()) / x.std() * SCALE


def test_later_calls_are_not_planned_and_have_receipts(planner: Planner) -> None:
    function = placed(standardised, planner)
    first = function(X)
    assert is_direct(function)
    planned = ag.last_receipt()
    with ag.collect_receipts() as receipts:
        second = function(X)
    last = ag.last_receipt()
    assert planned is not None
    assert last is not None
    assert receipts == [last]
    assert (last.device, last.program, last.attempts[0].device) == ("cpu", planned.program, "cpu")
    assert (last.phases.compile, last.phases.write) == (0, 0)
    assert last.seconds == pytest.approx(last.phases.plan + last.phases.run)
    np.testing.assert_array_equal(first, second)
    assert not np.shares_memory(first, second)


def test_what_the_function_depends_on_is_looked_at(planner: Planner, monkeypatch: pytest.MonkeyPatch) -> None:
    function = placed(standardised, planner)
    before = function(X)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    np.testing.assert_allclose(function(X), before * 1.5, rtol=1e-12)
    np.testing.assert_allclose(function(X[::-1]), standardised(X[::-1]), rtol=1e-12)
    assert function(X.astype(np.float32)).dtype == np.float32


def test_errors_are_numpys(planner: Planner) -> None:
    function = placed(lambda x, at: x[at] * 2, planner)
    np.testing.assert_array_equal(function(X, np.array([1, 2])), X[[1, 2]] * 2)
    assert is_direct(function)
    with pytest.raises(IndexError):
        function(X, np.array([1, 200]))
    np.testing.assert_array_equal(function(X, np.array([3, 4])), X[[3, 4]] * 2)


def test_numpy_warns_and_raises_as_ever(planner: Planner) -> None:
    def ratio(x: Any, y: Any) -> Any:
        return x / y

    function, zeros = placed(ratio, planner), np.zeros(100)
    function(X, X + 1)
    assert is_direct(function)
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        function(X, zeros)
    with pytest.warns(RuntimeWarning, match="divide by zero"):
        assert np.isinf(function(X, zeros)).all()
    # It is not computed twice each time.
    assert not is_direct(function)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        assert np.isinf(function(X, zeros)).all()


def test_a_worker_that_was_closed_is_opened_again(planner: Planner) -> None:
    function = placed(standardised, planner)
    expected = function(X)
    planner.worker("cpu").close()
    np.testing.assert_array_equal(function(X), expected)
    np.testing.assert_array_equal(function(X), expected)


@pytest.mark.parametrize("given", [{"check": "always"}, {"precision": "float32"}, {"on": ["cpu", "numpy"]}])
def test_what_needs_more_is_planned(planner: Planner, given: dict[str, Any]) -> None:
    function = placed(standardised, planner, **given)
    for _ in range(2):
        np.testing.assert_allclose(function(X), standardised(X), rtol=1e-5)
    assert is_direct(function) == ("on" in given)


def test_many_threads_at_once(planner: Planner) -> None:
    function = placed(standardised, planner)
    wanted = function(X)
    wrong: list[int] = []

    def work() -> None:
        wrong.extend(number for number in range(300) if not np.array_equal(function(X), wanted))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(120)
    assert not wrong
