"""Calls that find their own device: they move, move away from a slow one, come back, and never wait for a compiler."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.calls import offload
from anygpu.calls.background import LOOKING
from anygpu.calls.offload import Offloaded
from anygpu.calls.options import options
from anygpu.placement.call_site import CallSite
from anygpu.placement.planner import Planner
from anygpu.testing import FakeProcessors
from tests.support.slowed import ProcessorTime, Slowed, SlowedRegistry

pytestmark = pytest.mark.software_devices("calls move by themselves to a device that stands in for a GPU")


def chain(x: Any) -> Any:
    """Sixty passes over memory in NumPy, one in a fused kernel."""
    for _ in range(20):
        x = np.maximum(x * 1.01 + 0.5, -2.0)
    return x


class Watched:
    """An offloaded function, with the devices that its calls went to."""

    def __init__(self, planner: Planner, function: Any = chain) -> None:
        self.planner = planner
        self.function: Offloaded[..., Any] = Offloaded(function, options(), lambda: planner)
        self.went: list[str] = []

    def call(self, *arguments: Any, times: int = 1) -> None:
        for _ in range(times):
            with ag.collect_receipts() as collected:
                self.function(*arguments)
            self.went.append(collected[0].device)
            # What runs in the background must not make the machine busier for one call than for another.
            assert self.planner.settle(120)

    def call_until(self, device: str, *arguments: Any, at_most: int = 400) -> None:
        """How many calls pay for recording and trials depends on how fast the machine is."""
        while self.went[-3:] != [device] * 3:
            assert len(self.went) < at_most, f"no call went to {device}"
            self.call(*arguments)


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch) -> Planner:
    clock = ProcessorTime()
    x = np.random.default_rng(0).normal(size=900_000).astype(np.float32)
    places = SlowedRegistry("opencl:0", clock, clock.seconds(chain, x) / 10)
    monkeypatch.setattr(offload, "_clock", clock)
    planner = Planner(known=places, clock=clock, read_processors=FakeProcessors(clock))
    # As if calls had taken long enough for a look at the machine: on a fast one those of a test do not.
    planner.seconds = LOOKING
    planner.wake()
    assert planner.settle(120)
    return planner


def test_a_call_moves_to_the_faster_device_and_says_why(planner: Planner) -> None:
    x = np.random.default_rng(0).normal(size=900_000).astype(np.float32)
    watched = Watched(planner)
    watched.call_until("opencl:0", x)
    assert watched.went[0] == "numpy"
    receipt = ag.last_receipt()
    assert receipt is not None
    assert receipt.device == watched.went[-1]
    plan = watched.function.explain(x)
    assert plan.chosen == "opencl:0"
    assert "per call" in plan.reason
    assert {candidate.basis for candidate in plan.candidates} >= {"measured"}


def test_a_slow_device_loses_its_work_and_gets_it_back(planner: Planner) -> None:
    x = np.random.default_rng(0).normal(size=900_000).astype(np.float32)
    watched = Watched(planner)
    watched.call_until("opencl:0", x)
    opencl: Slowed = planner.places.slowed  # type: ignore[attr-defined]
    opencl.factor = 25.0
    watched.call(x, times=10)
    assert watched.went[-1] == "numpy", "within ten calls"
    watched.call(x, times=20)
    assert watched.went[-20:].count("opencl:0") <= 4
    opencl.factor = 1.0
    watched.call(x, times=50)
    assert watched.went[-1] == "opencl:0", "within fifty"


def test_the_first_calls_never_wait_for_a_compiler(planner: Planner, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).normal(size=200_000).astype(np.float32)
    slowed: Slowed = planner.places.slowed  # type: ignore[attr-defined]
    asked: list[str] = []
    compiled = threading.Event()

    def hold_up(name: str) -> None:
        real = getattr(slowed, name)

        def held(*given: Any, **options: Any) -> Any:
            asked.append(name)
            assert compiled.wait(120)
            return real(*given, **options)

        monkeypatch.setattr(slowed, name, held, raising=False)

    for name in ("prepare", "run"):
        hold_up(name)
    # As if calls had paid for everything that may be explored.
    planner.seconds = 100 * LOOKING
    for number in range(3):

        def unseen(x: Any, scale: float = 0.123 + number) -> Any:
            for _ in range(20):  # many passes over memory in NumPy, and one in a kernel: worth compiling
                x = np.maximum(x * 1.01 + scale, -2.0)
            return x

        compiled.clear()
        asked.clear()
        watched = Watched(planner, unseen)
        # All of them return, those before the compiler has begun and those after it, which nobody lets come to an end.
        until = time.monotonic() + 120
        while not asked:
            assert time.monotonic() < until, "nothing was compiled"
            watched.function(x)
        for _ in range(5):
            watched.function(x)
        compiled.set()
        assert planner.settle(120)


LIMIT: float | None = None


def changes_its_mind(x: Any) -> Any:
    for _ in range(20):
        x = np.maximum(x * 1.01 + 0.5, -2.0)
    return x if LIMIT is None or x.sum() > LIMIT else -x


def test_a_function_that_stops_being_a_program_goes_home_and_says_so(
    planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(0).normal(size=900_000).astype(np.float32)
    watched = Watched(planner, changes_its_mind)
    watched.call_until("opencl:0", x)
    monkeypatch.setattr(f"{__name__}.LIMIT", 0.0)
    with ag.collect_receipts() as collected:
        np.testing.assert_array_equal(watched.function(x), changes_its_mind(x))
    assert collected[0].device == "numpy"
    assert "cannot be traced" in collected[0].reason


def test_numpy_is_never_busy(planner: Planner) -> None:
    x = np.random.default_rng(0).normal(size=900_000).astype(np.float32)
    watched = Watched(planner)
    watched.call_until("opencl:0", x)
    (state,) = watched.function._table.sites.values()
    assert isinstance(state, CallSite)
    waiting = state.candidates.waiting_times({"numpy": 1.0, "opencl:0": 2.0})
    assert waiting == {"opencl:0": 2.0}
