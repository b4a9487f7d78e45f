"""A device that was asked for comes later, as when a fleet grows: calls that had to do without it go there."""

from __future__ import annotations

from typing import Any

import numpy as np

from anygpu.hardware.device import Device
from anygpu.residency.registry import DeviceRegistry
from anygpu.runtime.runtime import Runtime


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
