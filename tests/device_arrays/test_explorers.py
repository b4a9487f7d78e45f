"""Explorers: children that give way to everybody else, apart from the workers that serve callers."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from anygpu.array.trace.tracing import trace
from anygpu.errors import DeviceLost
from anygpu.program.graph import Program
from anygpu.workers.device_arrays.registry import DeviceRegistry
from anygpu.workers.process import ProcessWorker


@pytest.fixture
def known() -> Iterator[DeviceRegistry]:
    known = DeviceRegistry()
    yield known
    known.close()


def explorer_of(known: DeviceRegistry, device: str) -> ProcessWorker:
    worker = known.explorer(device)
    assert isinstance(worker, ProcessWorker)
    return worker


def doubled() -> Program:
    traced = trace(lambda x: x * 2, (np.zeros(1000, np.float32),), {})
    program: Program = traced.program  # type: ignore[union-attr]
    return program


@pytest.mark.sampled(gate=3)
@pytest.mark.parametrize("device", ["opencl:0", "webgpu:0", "torch:cpu"])
def test_an_explorer_has_a_lower_priority_than_a_worker(known: DeviceRegistry, device: str) -> None:
    explorer = explorer_of(known, device)
    x = np.arange(1000, dtype=np.float32)
    np.testing.assert_array_equal(explorer.run(doubled(), [x]).results[0], 2 * x)
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, explorer.process_id) > ours or ours > 9
    assert not known.is_open(device), "it is not open for callers"
    worker = known.worker(device)
    assert worker is not explorer
    np.testing.assert_array_equal(worker.run(doubled(), [x]).results[0], 2 * x)
    if isinstance(worker, ProcessWorker):
        assert os.getpriority(os.PRIO_PROCESS, worker.process_id) == ours


def test_there_is_one_explorer_at_a_time(known: DeviceRegistry) -> None:
    first = explorer_of(known, "opencl:0")
    second = explorer_of(known, "webgpu:0")
    assert (first.alive, second.alive) == (False, True)
    assert known.explorer("webgpu:0") is second


def test_an_explorer_that_died_is_replaced_and_closing_ends_it(known: DeviceRegistry) -> None:
    explorer = explorer_of(known, "opencl:0")
    assert known.explorer("opencl:0") is explorer
    explorer.kill()
    with pytest.raises(DeviceLost):
        explorer.run(doubled(), [np.zeros(1000, np.float32)])
    other = explorer_of(known, "opencl:0")
    assert other is not explorer
    known.explorers.close()
    assert not other.alive


def test_the_worker_itself_explores_where_two_would_take_too_much(
    known: DeviceRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert known.explorer("numpy") is known.worker("numpy")
    monkeypatch.setenv("ANYGPU_MEMORY", "1GB")
    assert known.explorer("opencl:0") is known.worker("opencl:0")
