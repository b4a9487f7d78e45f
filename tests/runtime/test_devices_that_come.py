"""A device that was asked for comes later, as when a fleet grows: calls that had to do without it go there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anygpu.hardware.device import Device
from anygpu.runtime.runtime import Runtime
from anygpu.workers.device_arrays.registry import DeviceRegistry


class Growing(DeviceRegistry):
    """Has NumPy only, until OpenCL comes."""

    has_come = False

    def devices(self, *, low_priority: bool = False) -> list[Device]:
        found = super().devices(low_priority=low_priority)
        return [device for device in found if device.id == "numpy" or self.has_come]


def double(x: Any) -> Any:
    return x * 2


def test_a_call_goes_to_a_device_that_has_come() -> None:
    known = Growing()
    x = np.ones(1000, np.float32)
    with Runtime(known=known) as runtime:
        first = runtime.run(double, x, on="opencl", fallback="allow")
        assert first.receipt.device == "numpy"
        known.has_come = True
        runtime._planner.forget_machine()
        second = runtime.run(double, x, on="opencl", fallback="allow")
        assert second.receipt.device.startswith("opencl")
        np.testing.assert_array_equal(second.value, 2 * x)
    known.close()


def test_a_call_does_without_a_device_that_has_gone(caplog: pytest.LogCaptureFixture) -> None:
    known = Growing()
    known.has_come = True
    x = np.ones(1000, np.float32)
    with Runtime(known=known) as runtime:
        planner = runtime._planner
        first = runtime.run(double, x, on="opencl", fallback="allow")
        assert first.receipt.device.startswith("opencl")
        known.has_come = False
        planner.forget_machine()
        # As the background does, which has nobody to tell that there is no candidate.
        for candidates in list(planner._candidates):
            candidates.consider(planner)
            assert not candidates.evaluated
        for _ in range(3):
            again = runtime.run(double, x, on="opencl", fallback="allow")
            assert again.receipt.device == "numpy"
            np.testing.assert_array_equal(again.value, 2 * x)
    assert not caplog.records, "no lane and no intake has stumbled"
    known.close()
