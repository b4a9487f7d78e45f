"""What calls have learnt on a busy machine is said to be doubtful, and undone within fifty calls on a calm one."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from anygpu.hardware.device import Device
from anygpu.placement import offload
from anygpu.placement import planner as planner_module
from anygpu.placement.call_site import CallSite
from anygpu.placement.offload import Offloaded
from anygpu.placement.options import options
from anygpu.placement.pacing import LOOKING
from anygpu.placement.planner import Planner
from anygpu.plan.calibration import Calibration, assumed
from anygpu.testing import FakeProcessors
from anygpu.workers.worker import Worker
from tests.support.slowed import ProcessorTime, SlowedRegistry

UNDONE = 50
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
        (found,) = self.function._known.sites.values()
        return found

    def call(self, times: int) -> None:
        for _ in range(times):
            self.function(X)
            assert self.planner.settle(120)


@pytest.mark.full
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


def test_a_calibration_of_a_busy_machine_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner_module, "recalled", lambda device: None)
    machine = Machine(monkeypatch)
    made: list[Calibration] = []

    def calibrate(worker: Worker, *, seconds: float) -> Calibration:
        disturbed = machine.processors.busy > 0
        found = assumed(worker.device)
        launch = 10.0 if disturbed else found.launch
        made.append(msgspec.structs.replace(found, source="measured", launch=launch, disturbed=disturbed))
        return made[-1]

    kept: list[Calibration] = []
    monkeypatch.setattr(planner_module, "calibrate", calibrate)
    monkeypatch.setattr(planner_module, "remember", lambda measured, device: kept.append(measured))
    machine.processors.busy = 0.6
    machine.call(20)
    planner = machine.planner
    found = planner.machine().device("opencl:0")
    assert isinstance(found, Device)
    assert planner.calibration(found).disturbed
    count = len(made)
    machine.call(20)
    assert len(made) == count, "nobody repeats it while the machine is busy"
    machine.processors.busy = 0.0
    machine.call(UNDONE)
    assert not planner.calibration(found).disturbed
    assert not kept[-1].disturbed
    count = len(made)
    machine.call(20)
    assert len(made) == count


def test_a_calibration_that_is_never_calm_is_repeated_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner_module, "recalled", lambda device: None)
    machine = Machine(monkeypatch)
    made: list[str] = []

    def calibrate(worker: Worker, *, seconds: float) -> Calibration:
        made.append(worker.device.id)
        return msgspec.structs.replace(assumed(worker.device), source="measured", disturbed=True)

    monkeypatch.setattr(planner_module, "calibrate", calibrate)
    monkeypatch.setattr(planner_module, "remember", lambda measured, device: None)
    machine.call(100)
    assert all(made.count(each) <= planner_module._MOST_CALIBRATIONS for each in made)
