"""Kernels that never end under a runtime: a typed timeout in time, and the other devices go on meanwhile.

How much slower those become is measured by `python -m benchmarks.faults --what hangs`; here it is too noisy to judge.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.faults_scenarios import hangs
from tests.support.faults import SWIFTSHADER


@pytest.mark.parametrize(
    ("engine", "drivers", "other"),
    [("webgpu", SWIFTSHADER, "opencl"), ("opencl", None, "webgpu")],
    ids=["swiftshader", "pocl"],
)
def test_an_endless_kernel_ends_in_a_typed_timeout_within_a_second(
    engine: str, drivers: Path | None, other: str
) -> None:
    hung = hangs(2, engine=engine, drivers=drivers, others=(other,), each=0.05)
    assert hung.hangs == 2
    assert hung.untyped == {}
    assert max(hung.late_running) <= 1.0
    assert hung.wrong == 0
    assert all(hung.meanwhile[device] for device in ("numpy", other))
