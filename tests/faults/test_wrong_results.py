"""A device that is wrong in one element: noticed before its first result is returned, or by the next sample."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.agreement.mismatches import kept
from anygpu.calls.background import LOOKING
from anygpu.calls.offload import Offloaded
from anygpu.calls.options import options
from anygpu.errors import ResultMismatch
from anygpu.placement import explore
from anygpu.placement.call_site import CallSite
from anygpu.placement.device_call import is_ordinary, sample_now
from anygpu.placement.plan.candidate_history import DeviceChoice
from anygpu.placement.planner import Planner
from anygpu.program.graph import Program
from anygpu.runtime.runtime import Runtime
from tests.support.wrong_results import WrongRegistry

pytestmark = pytest.mark.software_devices("calls move by themselves to a device that may be wrong")


def chain(x: Any) -> Any:
    """Sixty passes over memory in NumPy, one in a fused kernel."""
    for _ in range(20):
        x = np.maximum(x * 1.01 + 0.5, -2.0)
    return x


class Watched:
    def __init__(self, when: Callable[[Program, int], bool], function: Any = chain, **given: Any) -> None:
        self.planner = Planner(known=WrongRegistry("opencl:0", when))
        self.planner.seconds = LOOKING
        self.planner.wake()
        assert self.planner.settle(60)
        self.function: Offloaded[..., Any] = Offloaded(function, options(**given), lambda: self.planner)
        self.wrong = self.planner.places.wrong  # type: ignore[attr-defined]
        self.receipts: list[ag.Receipt] = []
        self.warned: list[Warning] = []

    def call(self, *arguments: Any) -> Any:
        with warnings.catch_warnings(record=True) as caught, ag.collect_receipts() as collected:
            warnings.simplefilter("always")
            value = self.function(*arguments)
            assert self.planner.settle(60)
        self.warned += [each.message for each in caught if isinstance(each.message, Warning)]
        self.receipts += collected
        return value

    @property
    def state(self) -> CallSite:
        (state,) = self.function._table.sites.values()
        assert isinstance(state, CallSite)
        return state


def numbers(seed: int = 0, size: int = 900_000) -> Any:
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYGPU_CACHE_DIR", str(tmp_path))


def test_a_wrong_device_never_gets_a_call_and_its_user_is_told_once() -> None:
    watched = Watched(lambda program, run: len(program) > 20)
    x = numbers()
    expected = chain(x)
    for _ in range(60):
        np.testing.assert_array_equal(watched.call(x), expected, strict=True)
    assert {receipt.device for receipt in watched.receipts} == {"numpy"}
    assert watched.wrong.spoilt >= 1
    (warning,) = [each for each in watched.warned if isinstance(each, ResultMismatch)]
    assert warning.device == "opencl:0"
    assert warning.task == "chain"
    assert len(warning.index) == 1
    assert "No such result was returned" in str(warning)
    (found,) = watched.planner.mismatches()
    assert warning.command == f"anygpu verify --report {found.id}"
    assert found.before_use
    assert [each.id for each in kept()] == [found.id]
    assert "opencl:0 differed from NumPy" in watched.receipts[-1].reason
    assert watched.function.explain(x).chosen == "numpy"
    # Other shapes of the same function stay at home too.
    watched.call(numbers(size=700_000))
    for _ in range(10):
        watched.call(numbers(size=700_000))
    assert {receipt.device for receipt in watched.receipts} == {"numpy"}


def test_a_device_that_turns_wrong_is_found_by_the_next_sample() -> None:
    wrong = False
    watched = Watched(lambda program, run: wrong and len(program) > 20)
    x = numbers()
    expected = chain(x)
    while [receipt.device for receipt in watched.receipts[-3:]] != ["opencl:0"] * 3:
        assert len(watched.receipts) < 400
        watched.call(x)
    chooser = watched.state.chooser
    # As if most calls until the next sample had been made.
    wrong = True
    chooser.tracks["opencl:0"].unchecked = 10**6
    sampled = watched.call(x)
    np.testing.assert_array_equal(sampled, expected)
    assert "checks opencl:0" in watched.receipts[-1].reason
    (found,) = watched.planner.mismatches()
    assert not found.before_use
    assert "may be wrong" in str(watched.warned[-1])
    for _ in range(5):
        np.testing.assert_array_equal(watched.call(x), expected)
    assert watched.receipts[-1].device == "numpy"
    # It may go on with when that was decided.
    assert watched.receipts[-1].reason.startswith(found.reason.rstrip("."))


@pytest.mark.full
def test_with_check_always_every_result_is_compared_first() -> None:
    watched = Watched(lambda program, run: len(program) > 20, check="always", on="opencl:0")
    x = numbers()
    np.testing.assert_array_equal(watched.call(x), chain(x))
    assert [type(each) for each in watched.warned] == [ResultMismatch]
    assert watched.receipts[-1].device == "numpy"
    strict = Watched(lambda program, run: len(program) > 20, check="always", on="opencl:0", fallback="raise")
    with pytest.raises(ResultMismatch, match="disagrees with NumPy"):
        strict.call(x)
    right = Watched(lambda program, run: False, check="always", on="opencl:0")
    np.testing.assert_allclose(right.call(x), chain(x), rtol=1e-5)
    assert right.receipts[-1].device == "opencl:0"


def test_with_check_off_nothing_is_compared() -> None:
    watched = Watched(lambda program, run: len(program) > 20, check="off")
    x = numbers()
    while [receipt.device for receipt in watched.receipts[-3:]] != ["opencl:0"] * 3:
        assert len(watched.receipts) < 400
        watched.call(x)
    assert watched.planner.mismatches() == ()


@pytest.mark.full
def test_a_worker_that_was_replaced_is_compared_before_it_is_used() -> None:
    watched = Watched(lambda program, run: False)
    x = numbers()
    while [receipt.device for receipt in watched.receipts[-3:]] != ["opencl:0"] * 3:
        assert len(watched.receipts) < 400
        watched.call(x)
    inner = watched.wrong.inner

    class Later:
        generation = inner.generation + 1

        def __getattr__(self, name: str) -> Any:
            return getattr(inner, name)

    watched.wrong.inner = Later()
    watched.wrong.when = lambda program, run: len(program) > 20
    for _ in range(20):
        np.testing.assert_array_equal(watched.call(x), chain(x))
    assert len(watched.planner.mismatches()) == 1
    assert watched.planner.mismatches()[0].before_use


def test_a_warning_that_is_an_error_is_raised_by_the_next_call() -> None:
    watched = Watched(lambda program, run: len(program) > 20)
    x = numbers()
    with pytest.raises(ResultMismatch):  # noqa: PT012
        for _ in range(400):
            watched.function(x)
            assert watched.planner.settle(60)
    np.testing.assert_array_equal(watched.function(x), chain(x))


def small(x: Any) -> Any:
    for _ in range(20):
        x = np.maximum(x * 1.01 + 0.5, -2.0)
    return x


def submitted(places: WrongRegistry, rounds: int) -> tuple[list[ag.Receipt], Planner, list[Warning]]:
    """Rounds of many small tasks, each as NumPy has it; calls one by one are taken to be slow, so that launches pay."""
    receipts: list[ag.Receipt] = []
    with (
        warnings.catch_warnings(record=True) as caught,
        Runtime(known=places) as runtime,
    ):
        warnings.simplefilter("always")
        planner = runtime._planner
        x = numbers(size=64)
        call = runtime._calls(small, {}).call((x,), {})
        call.record()
        call.consider()
        state = call.site
        state.chooser.measured("numpy", 100.0)
        assert is_ordinary(call, small(x))
        state.candidates.end_calibrating()
        sample = sample_now(call, small(x))
        assert sample is not None
        explore._try_out(planner, state, small, "opencl:0", sample)
        for _ in range(5):
            state.chooser.measured("opencl:0", 1.0)
        vars(state.chooser)["choose"] = lambda waiting=None: (
            DeviceChoice("opencl:0", "known", "a test wants it there.")
            if state.chooser.pinned is None
            else DeviceChoice("numpy", "pinned", state.chooser.pinned)
        )
        vars(state.chooser)["to_try"] = lambda: None
        for number in range(rounds):
            given = [numbers(64 * number + each, 64) for each in range(64)]
            futures = [runtime.submit(small, each) for each in given]
            for each, future in zip(given, futures, strict=True):
                np.testing.assert_allclose(future.result(60), small(each), rtol=1e-5)
            assert planner.settle(60)
            receipts += [future.receipt for future in futures if future.receipt is not None]
        assert runtime.health().mismatches == planner.mismatches()
        assert ("wrong: small on opencl:0" in str(runtime.health())) == bool(planner.mismatches())
    return receipts, planner, [each.message for each in caught if isinstance(each.message, Warning)]


def test_a_launch_that_is_wrong_is_never_used() -> None:
    places = WrongRegistry("opencl:0", lambda program, run: len(program.inputs[0].shape) == 2)
    receipts, planner, warned = submitted(places, 6)
    assert places.wrong.spoilt >= 1
    assert not any(receipt.how for receipt in receipts)
    assert len(planner.mismatches()) == 1
    assert [type(each) for each in warned] == [ResultMismatch]
    assert "differed" in receipts[-1].reason


def test_a_launch_that_is_right_is_used_once_it_was_compared() -> None:
    receipts, planner, warned = submitted(WrongRegistry("opencl:0", lambda program, run: False), 8)
    assert any("compared with NumPy before it is used" in receipt.reason for receipt in receipts)
    assert any(receipt.how and "in one launch of" in receipt.how for receipt in receipts)
    assert planner.mismatches() == ()
    assert warned == []
