"""On a busy machine a look at it may take long: a receipt includes that, or no call waits for it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.calls.offload import Offloaded
from anygpu.calls.options import options
from anygpu.hardware.device import Device
from anygpu.placement.planner import Planner
from anygpu.testing import ManualClock
from anygpu.workers.device_arrays.registry import DeviceRegistry, registry

LOOK = 15.0
X = np.arange(12, dtype=np.float32)


class SlowLook(DeviceRegistry):
    """A registry that looks at the machine for a long time, by a clock of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.looks = 0

    def devices(self, *, low_priority: bool = False) -> list[Device]:
        self.looks += 1
        self.clock.advance(LOOK)
        return registry.devices(low_priority=low_priority)


def offloaded(places: SlowLook, function: Any, **given: Any) -> Offloaded[..., Any]:
    planner = Planner(known=places, clock=places.clock)
    return Offloaded(function, options(**given), lambda: planner)


def receipt_of(function: Offloaded[..., Any], *arguments: Any) -> ag.Receipt:
    with ag.collect_receipts() as collected:
        function(*arguments)
    return collected[0]


def test_the_first_call_for_a_device_waits_and_says_so() -> None:
    places = SlowLook()
    receipt = receipt_of(offloaded(places, lambda x: x * 2, on="numpy"), X)
    assert places.looks == 0
    receipt = receipt_of(offloaded(places, lambda x: x * 2, on="opencl"), X)
    assert places.looks == 1
    assert receipt.phases.plan >= LOOK


@pytest.mark.parametrize("size", [12, 1 << 21], ids=["small", "large"])
def test_the_first_calls_without_a_device_do_not_wait(size: int) -> None:
    places = SlowLook()
    function = offloaded(places, lambda x: x * 2)
    for _ in range(3):
        assert receipt_of(function, np.ones(size, np.float32)).phases.total < LOOK
    assert places.looks == 0


@pytest.mark.parametrize("given", [{}, {"on": "numpy"}], ids=["anywhere", "where they are"])
def test_calls_with_arrays_of_ours_do_not_wait(given: dict[str, Any]) -> None:
    places = SlowLook()

    def untraceable(x: Any) -> Any:
        return x * float(np.asarray(x).sum() > 0)

    for function in (lambda x: x * 2, untraceable):
        placed = offloaded(places, function, **given)
        assert receipt_of(placed, ag.asarray(X)).phases.total < LOOK
    assert places.looks == 0


def test_loading_what_plans_a_call_is_in_its_receipt() -> None:
    """The first call of a process with a large array loads it."""
    script = """
import sys, time
import numpy as np
import anygpu as ag

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "anygpu.placement.place_call":
            time.sleep(0.3)

function = ag.offload(lambda x: x + 1, on="numpy")
sys.meta_path.insert(0, Slow())
x = np.ones(1 << 24, np.float32)
assert "anygpu.placement.place_call" not in sys.modules
result = function.run(x)
assert result.receipt.phases.plan > 0.29, result.receipt.phases
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
