"""What calls have learnt on a busy machine is said to be so, and undone on a calm one."""

from __future__ import annotations

import importlib
from typing import Any

import msgspec
import numpy as np
import pytest

from anygpu.calls import loading, offload
from anygpu.calls.background import LOOKING
from anygpu.calls.offload import Offloaded
from anygpu.calls.options import options
from anygpu.placement import calibrate as calibration
from anygpu.placement.call_site import CallSite
from anygpu.placement.plan.calibration import Calibration, assumed
from anygpu.placement.plan.choosing import LONGEST_IN_DOUBT
from anygpu.placement.planner import Planner
from anygpu.testing import FakeProcessors
from anygpu.workers.worker import Worker
from tests.support.slowed import ProcessorTime, SlowedRegistry

UNDONE = LONGEST_IN_DOUBT + 10
X = np.random.default_rng(0).normal(size=900_000).astype(np.float32)


def chain(x: Any) -> Any:
    """Sixty passes over memory in NumPy, one in a fused kernel."""
    for _ in range(20):
        x = np.maximum(x * 1.01 + 0.5, -2.0)
    return x


class Machine:
    """A planner on a machine that is as busy as a test says, and calls of one function."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = ProcessorTime()
        monkeypatch.setattr(offload, "_clock", clock)
        # Else it is imported beside the calls, and how many of them are made meanwhile depends on the machine.
        importlib.import_module(loading.PLANNING)
        places = SlowedRegistry("opencl:0", clock, clock.seconds(chain, X) / 10)
        self.processors = FakeProcessors(clock)
        self.planner = Planner(known=places, clock=clock, read_processors=self.processors)
        # As if calls had paid for everything that may be explored.
        self.planner.seconds = 100 * LOOKING
        self.planner.wake()
        assert self.planner.settle(240)
        self.function: Offloaded[..., Any] = Offloaded(chain, options(), lambda: self.planner)

    @property
    def site(self) -> CallSite:
        (found,) = self.function._table.sites.values()
        return found

    def call(self, times: int) -> None:
        for _ in range(times):
            self.function(X)
            assert self.planner.settle(120)


@pytest.mark.full
@pytest.mark.software_devices("calls that name no device have to move to one")
def test_a_device_that_was_slow_on_a_busy_machine_gets_its_calls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    slowed = machine.planner.places.slowed  # type: ignore[attr-defined]
    slowed.factor, machine.processors.busy = 40.0, 0.6
    machine.call(30)
    assert machine.site.chooser.current == "numpy"
    sentence = next(each.sentence for each in machine.function.explain(X).candidates if each.device == "opencl:0")
    assert "busy" in sentence
    slowed.factor, machine.processors.busy = 1.0, 0.0
    machine.call(UNDONE)
    assert machine.site.chooser.current == "opencl:0"
    assert "busy" not in machine.function.explain(X).reason


@pytest.mark.software_devices("devices that no call names are calibrated")
@pytest.mark.native_off("calls pay for the calibration of devices, not for native code")
def test_a_calibration_of_a_busy_machine_is_repeated_by_the_next_process(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[str, Calibration] = {}
    made: list[str] = []
    monkeypatch.setattr(calibration, "recalled", lambda device: kept.get(device.id))
    monkeypatch.setattr(calibration, "remember", lambda measured, device: kept.update({device.id: measured}))

    def calibrate(worker: Worker, *, seconds: float) -> Calibration:
        made.append(worker.device.id)
        is_first = made.count(worker.device.id) == 1
        return msgspec.structs.replace(assumed(worker.device), source="measured", disturbed=is_first)

    monkeypatch.setattr(calibration, "calibrate", calibrate)
    Machine(monkeypatch).call(40)
    assert made.count("opencl:0") == 1
    assert [kept["opencl:0"].disturbed] == [True]
    Machine(monkeypatch).call(40)
    assert made.count("opencl:0") == 2
    assert [kept["opencl:0"].disturbed] == [False]
    Machine(monkeypatch).call(40)
    assert made.count("opencl:0") == 2
