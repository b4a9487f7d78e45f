"""What a planner adds up, whichever thread tells it."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest

from anygpu.calls.offload import Offloaded
from anygpu.calls.options import options
from anygpu.placement import candidates
from anygpu.placement.planner import Planner
from anygpu.workers.device_arrays.registry import DeviceRegistry


def test_no_seconds_are_lost_when_several_threads_add_some() -> None:
    planner = Planner()

    def add() -> None:
        for _ in range(5_000):
            planner.add_seconds(1.0)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=add) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert planner.seconds == 20_000


@pytest.mark.software_devices("a call that names no device has candidates that compute on the processor")
def test_workers_are_asked_without_the_planners_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker may be busy with a task that waits for its runtime, which waits for the planner's lock."""
    known = DeviceRegistry()
    planner = Planner(known=known)
    known.worker("opencl:0")
    asked: list[str] = []

    def ask(find: object, device: str, program: object) -> None:
        assert not planner.lock._is_owned()  # type: ignore[attr-defined]
        asked.append(device)

    monkeypatch.setattr(candidates, "lacking", ask)
    x = np.ones(1000, np.float32)
    call = Offloaded(lambda x: x * 2 + 1, options(), lambda: planner).call((x,), {})
    call.record()
    call.consider()
    assert "opencl:0" in asked
    planner.close()
    known.close()
