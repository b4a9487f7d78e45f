"""Chunks on a device are compared with NumPy's before one is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anygpu.array.trace.tracing import record
from anygpu.calls.options import options
from anygpu.errors import ResultMismatch
from anygpu.placement.planner import Planner
from anygpu.runtime.streams.devices import ChunkCheck
from tests.support.slowed import SlowedRegistry

RATES = (1.0, 0.1)


def doubled(x: Any) -> Any:
    return x * 2.5


@pytest.fixture
def planner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planner:
    monkeypatch.setenv("ANYGPU_CACHE_DIR", str(tmp_path))
    return Planner(known=SlowedRegistry("opencl:0"))


def test_the_first_chunk_of_a_length_is_compared_and_later_ones_every_so_often(planner: Planner) -> None:
    check = ChunkCheck(planner, doubled, "doubled", options())
    x = np.random.default_rng(0).normal(size=50).astype(np.float32)
    program = record(doubled, x)
    assert check.is_due("opencl:0", 1, 50, RATES)
    assert check.compare("opencl:0", 1, program, 50, [x], [doubled(x)], [doubled(x)]) is None
    due = [check.is_due("opencl:0", 1, 50, RATES) for _ in range(1002)]
    assert due.index(True) == 1000, "as `calls_between_samples` says"
    assert check.is_due("opencl:0", 2, 50, RATES), "another worker"
    assert check.is_due("opencl:0", 1, 49, RATES), "another length is another program"
    assert not ChunkCheck(planner, doubled, "doubled", options(on="opencl")).is_due("opencl:0", 1, 50, RATES)
    assert not ChunkCheck(planner, doubled, "doubled", options(check="off")).is_due("opencl:0", 1, 50, RATES)
    assert ChunkCheck(planner, doubled, "doubled", options(on="opencl", check="always")).is_due("x", 1, 5, RATES)


def test_a_wrong_chunk_ends_the_devices_part_and_pins_the_function(planner: Planner) -> None:
    check = ChunkCheck(planner, doubled, "doubled", options())
    x = np.random.default_rng(0).normal(size=50).astype(np.float32)
    wrong = doubled(x)
    wrong[7] = 0
    with pytest.raises(ResultMismatch, match=r"element \[7\] is 0.0"):
        check.compare("opencl:0", 1, record(doubled, x), 50, [x], [doubled(x)], [wrong])
    assert check.pinned
    assert len(planner.mismatches()) == 1
    why = check.compare("opencl:0", 1, record(doubled, x), 50, [x], [doubled(x)], [wrong])
    assert why is not None
    assert "differed from NumPy" in why
