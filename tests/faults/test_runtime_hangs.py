"""Kernels that never end under a runtime: they end in a typed timeout, and the other devices go on meanwhile.

How late that comes, and how much slower the others become, is measured by `python -m benchmarks.faults --what hangs`.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from anygpu.errors import DeadlineExceeded, DeviceHung
from benchmarks.faults_scenarios import ENDLESS, PATIENCE, endless, faulty, smooth
from tests.runtime.holding import make_late
from tests.support.fault_schedule import Kind
from tests.support.faults import SWIFTSHADER

X = np.full(4096, 0.5, np.float32)


@pytest.mark.parametrize(
    ("engine", "drivers", "other"),
    [("webgpu", SWIFTSHADER, "opencl"), ("opencl", None, "webgpu")],
    ids=["swiftshader", "pocl"],
)
def test_an_endless_kernel_ends_in_a_typed_timeout(engine: str, drivers: Path | None, other: str) -> None:
    on = {"on": engine, "fallback": "raise"}
    with faulty(engine, drivers=drivers, others=(other,)) as (runtime, known):
        # Both are compiled once before, so that the deadline passes in the kernel and not in its compiler.
        for function in (smooth, endless):
            runtime.submit(function, X, **on).result(PATIENCE)
        known.schedule.mark(ENDLESS, Kind.HANG)
        for number in (1, 2):
            hanging = runtime.submit(endless, X, deadline=10 * PATIENCE, **on)
            until = time.monotonic() + PATIENCE
            while known.schedule.times_injected(Kind.HANG) < number:
                assert time.monotonic() < until, "the kernel has not begun"
            for device in ("numpy", other):
                meanwhile = runtime.submit(smooth, X, on=device, fallback="raise")
                np.testing.assert_allclose(meanwhile.result(PATIENCE), smooth(X), rtol=1e-5)
            assert not hanging.done()
            make_late(runtime, hanging)
            assert isinstance(hanging.exception(PATIENCE), DeadlineExceeded | DeviceHung)
            again = runtime.submit(smooth, X, **on)
            np.testing.assert_allclose(again.result(PATIENCE), smooth(X), rtol=1e-5)
