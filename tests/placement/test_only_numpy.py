"""Whoever asks for NumPy alone gets it: nothing is probed, opened or traced for other devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.calls.background import LOOKING
from anygpu.calls.offload import Offloaded
from anygpu.calls.options import Options, options
from anygpu.hardware.device import Device
from anygpu.placement.planner import Planner
from anygpu.runtime.runtime import Runtime
from anygpu.workers.device_arrays.registry import DeviceRegistry


class Unprobed(DeviceRegistry):
    """A registry that must not look at the machine."""

    def devices(self, *, low_priority: bool = False) -> list[Device]:
        raise AssertionError("the machine was looked at")


def chain(x: Any) -> Any:
    for _ in range(10):
        x = np.sqrt(x * x + 1)
    return x


@pytest.fixture(params=["argument", "variable"])
def given(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Options:
    if request.param == "argument":
        return options(on="NumPy")
    monkeypatch.setenv("ANYGPU_DEVICE", "numpy")
    return options()


@pytest.fixture
def planner() -> Planner:
    planner = Planner(known=Unprobed())
    planner.seconds = 100 * LOOKING  # calls have taken long enough to make a look worth while
    return planner


@pytest.mark.parametrize(("size", "calls"), [(1000, 20), (1 << 20, 3)])
def test_calls_look_for_no_other_device(given: Options, planner: Planner, size: int, calls: int) -> None:
    function: Offloaded[..., Any] = Offloaded(chain, given, lambda: planner)
    x = np.ones(size)
    for _ in range(calls):
        np.testing.assert_array_equal(function(x), chain(x))
    result = function.run(x)
    assert result.receipt.device == "numpy"
    assert result.receipt.reason == "numpy is the only device allowed."
    assert planner.settle(60)
    assert not planner.awake


def test_a_plan_and_a_precision_look_for_no_other_device(given: Options, planner: Planner) -> None:
    function: Offloaded[..., Any] = Offloaded(chain, given, lambda: planner)
    plan = function.explain(np.ones(1000))
    assert [each.device for each in plan.candidates] == ["numpy"]
    narrow: Offloaded[..., Any] = Offloaded(chain, options(on="numpy", precision="float32"), lambda: planner)
    assert narrow(np.ones(1000)).dtype == np.float32


def test_a_runtime_looks_for_no_other_device() -> None:
    with Runtime(known=Unprobed()) as runtime:
        np.testing.assert_array_equal(runtime.submit(chain, np.ones(1000), on="numpy").result(), chain(np.ones(1000)))


def test_a_second_name_is_looked_for() -> None:
    assert not options(on=["numpy", "opencl"]).names_only_numpy
    assert not options(on="cpu").names_only_numpy
    assert not options().names_only_numpy
    assert ag.run(chain, np.ones(10), on=["numpy", "opencl"]).receipt.device == "numpy"


def test_what_numpy_may_lack_is_planned() -> None:
    """Whether the machine has that much memory, or is that idle, is seen when a call is planned."""
    assert options(on="numpy").needs_no_planning
    assert not options(on="numpy", min_memory=1 << 60).needs_no_planning
    assert not options(on="numpy", max_load=0.5).needs_no_planning
    assert not options(on="numpy", precision="float32").needs_no_planning
    assert not options().needs_no_planning
