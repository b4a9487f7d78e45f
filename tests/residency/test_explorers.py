"""Explorers: children that give way to everybody else, apart from the workers that serve callers."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from anygpu.array.trace.tracing import trace
from anygpu.errors import DeviceLost
from anygpu.program.graph import Program
from anygpu.residency.registry import DeviceRegistry
from anygpu.workers.process import ProcessWorker

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def known() -> Iterator[DeviceRegistry]:
    known = DeviceRegistry()
    yield known
    known.close()


def explorer_of(known: DeviceRegistry, device: str) -> ProcessWorker:
    worker = known.explorer(device)
    assert isinstance(worker, ProcessWorker)
    return worker


def policies(process: int) -> set[int]:
    return {os.sched_getscheduler(int(thread.name)) for thread in Path(f"/proc/{process}/task").iterdir()}


def doubled() -> Program:
    traced = trace(lambda x: x * 2, (np.zeros(1000, np.float32),), {})
    program: Program = traced.program  # type: ignore[union-attr]
    return program


@pytest.mark.sampled(gate=3)
@linux
@pytest.mark.parametrize("device", ["opencl:0", "webgpu:0", "torch:cpu"])
def test_all_threads_of_an_explorer_are_idle_and_none_of_a_worker(known: DeviceRegistry, device: str) -> None:
    explorer = explorer_of(known, device)
    x = np.arange(1000, dtype=np.float32)
    np.testing.assert_array_equal(explorer.run(doubled(), [x]).results[0], 2 * x)
    # Mesa makes a thread for its cache, now and then, whose policy it chooses itself.
    assert policies(explorer.process_id) - {os.SCHED_BATCH} == {os.SCHED_IDLE}
    assert not known.is_open(device), "it is not open for callers"
    worker = known.worker(device)
    assert worker is not explorer
    np.testing.assert_array_equal(worker.run(doubled(), [x]).results[0], 2 * x)
    if isinstance(worker, ProcessWorker):
        assert os.SCHED_IDLE not in policies(worker.process_id)
        assert os.getpriority(os.PRIO_PROCESS, worker.process_id) == os.getpriority(os.PRIO_PROCESS, 0)


@linux
def test_a_paused_explorer_takes_no_time_and_goes_on(known: DeviceRegistry) -> None:
    explorer = explorer_of(known, "opencl:0")
    known.explorers.pause()
    stopped = os.waitid(os.P_PID, explorer.process_id, os.WSTOPPED | os.WNOWAIT)
    assert stopped is not None
    assert stopped.si_code == os.CLD_STOPPED
    known.explorers.resume()
    x = np.arange(1000, dtype=np.float32)
    np.testing.assert_array_equal(explorer.run(doubled(), [x]).results[0], 2 * x)
    assert known.explorers.pauses == 1


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


@linux
def test_a_paused_explorer_dies_with_its_parent() -> None:
    script = """
import sys
from anygpu.residency.registry import registry
explorer = registry.explorer("opencl:0")
registry.explorers.pause()
print(explorer.process_id, flush=True)
sys.stdin.read()
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "ANYGPU_ENGINES": "opencl"},
    )
    with parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
        parent.wait()
        ended, _, _ = select.select([child], [], [], 120)
        os.close(child)
    assert ended, "it is left behind, stopped"
