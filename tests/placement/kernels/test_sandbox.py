"""The children in which kernels run first: kept, replaced, ended in time and let go of."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import psutil
import pytest

from anygpu.array.trace.tracing import record
from anygpu.errors import DeviceHung, DeviceUnavailable
from anygpu.hardware.device import Device
from anygpu.placement.kernels.first_use import Sandboxes, trials_of_its_own
from anygpu.program.primitives import Spec
from anygpu.workers.device_arrays.registry import registry

PROGRAM = record(lambda x: x * 2 + 1, Spec((8,), "float32"))
LONG = record(lambda x: x @ x @ x @ x @ x @ x, Spec((1500, 1500), "float64"))


@pytest.fixture(scope="module")
def device() -> Device:
    return registry.find("opencl").facts


@pytest.fixture(scope="module")
def trials() -> Iterator[Sandboxes]:
    with trials_of_its_own() as trials:
        yield trials


def results(trials: Sandboxes, device: Device) -> list[float]:
    (found,) = trials.run(device, PROGRAM, [np.arange(8, dtype=np.float32)], "k", 30.0)
    return [float(each) for each in found]


def test_one_child_of_a_device_serves_many_kernels(trials: Sandboxes, device: Device) -> None:
    assert results(trials, device) == [1, 3, 5, 7, 9, 11, 13, 15]
    (first,) = trials.processes()
    assert trials.lacks(device, PROGRAM, "k", 30.0) == []
    trials.compile(device, PROGRAM, "k", 30.0)
    assert results(trials, device)[1] == 3
    assert trials.processes() == [first]


def test_a_child_that_an_earlier_kernel_has_killed_is_replaced(trials: Sandboxes, device: Device) -> None:
    results(trials, device)
    (first,) = trials.processes()
    psutil.Process(first).kill()
    assert results(trials, device)[1] == 3
    (second,) = trials.processes()
    assert second != first


def test_what_does_not_end_in_time_is_ended(trials: Sandboxes, device: Device) -> None:
    results(trials, device)
    (first,) = trials.processes()
    with pytest.raises(DeviceHung, match=r"within 0.05 s while the kernel long was run aside") as caught:
        trials.run(device, LONG, [np.ones((1500, 1500))], "long", 0.05)
    assert "timeout=" in caught.value.__notes__[0]
    assert trials.processes() == []
    assert not psutil.pid_exists(first)
    assert results(trials, device)[1] == 3


def test_a_child_without_work_is_let_go_of(device: Device) -> None:
    with trials_of_its_own(idle=0.01) as trials:
        results(trials, device)
        for process in trials.processes():
            psutil.Process(process).wait(timeout=120)
        assert trials.processes() == []
        assert results(trials, device)[1] == 3  # and another one comes when there is work


def test_after_the_end_nothing_is_started(device: Device) -> None:
    with trials_of_its_own() as trials:
        results(trials, device)
        children = trials.processes()
    assert trials.processes() == []
    assert not any(psutil.pid_exists(each) for each in children)
    with pytest.raises(DeviceUnavailable, match="shutting down"):
        results(trials, device)
