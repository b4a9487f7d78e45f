"""Chunks whose transfers overlap the computing of others."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from anygpu.placement.planner import Planner
from anygpu.receipts.receipt import Phases
from anygpu.runtime.streams.executor import visible
from anygpu.runtime.streams.streaming import stream
from anygpu.workers.device_arrays.registry import DeviceRegistry
from anygpu.workers.process import ProcessWorker

X = np.random.default_rng(0).random((400_000, 40), np.float32)


def roots(x: Any) -> Any:
    return np.sqrt(x * np.float32(2) + np.float32(1))


@pytest.fixture(scope="module")
def planner() -> Iterator[Planner]:
    known = DeviceRegistry()
    planner = Planner(known=known)
    yield planner
    planner.close()
    known.close()


def run(planner: Planner, **options: Any) -> Any:
    return stream(roots, X, given={"on": "opencl", "fallback": "warn"}, planner=lambda: planner, **options)


def test_transfers_of_one_chunk_overlap_the_computing_of_another(planner: Planner) -> None:
    run(planner)  # opens the worker, and its side
    done = run(planner)
    np.testing.assert_allclose(done.value, roots(X), rtol=1e-5)
    seconds = done.seconds
    assert done.chunks > 4
    assert 0 < seconds.overlapped < seconds.transfer
    phases = done.receipt.phases
    assert phases.total <= 1.05 * (seconds.total + phases.trace), "what was overlapped was not waited for"
    assert done.overlap >= 0.95, "computing and what it waited for take no longer than all"


def test_without_memory_for_two_chunks_they_go_one_after_the_other(planner: Planner) -> None:
    done = run(planner, memory="8MB")
    np.testing.assert_allclose(done.value, roots(X), rtol=1e-5)
    assert done.seconds.overlapped == 0


def test_a_device_that_is_lost_costs_no_chunk(planner: Planner, monkeypatch: pytest.MonkeyPatch) -> None:
    run(planner)
    calls = 0
    run_large = ProcessWorker._run_large

    def killing(worker: ProcessWorker, *given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 5:
            os.kill(worker.process_id, signal.SIGKILL)
        return run_large(worker, *given)

    monkeypatch.setattr(ProcessWorker, "_run_large", killing)
    done = run(planner)
    np.testing.assert_allclose(done.value, roots(X), rtol=1e-5)
    assert 1 <= len(done.receipt.failures) <= 2, "the chunk that ran, and the one that was on its way"


@pytest.mark.parametrize("took", [1.0, 1.5, 2.0, 5.0])
def test_the_visible_phases_are_those_that_were_waited_for(took: float) -> None:
    phases = Phases(queue=3.0, write=0.75, run=1.0, read=0.25, other=0.5)
    shown = visible(phases, took)
    assert shown.total == pytest.approx(took)
    assert shown.run == 1.0
    assert shown.write <= phases.write
    assert shown.read <= phases.read
