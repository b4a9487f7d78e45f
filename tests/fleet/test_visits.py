"""Calls to another machine on the caller's own thread: as tasks of the queue, but for the threads."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.fleet import Fleet
from anygpu.fleet.machines import ActorWorker
from tests.fleet.test_fleet import SECOND, values, wave


def test_a_call_is_made_on_its_callers_thread(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.run(wave, values(100), on=SECOND)
    done = {lane.device: lane.done for lane in fleet.health().lanes}[SECOND]
    asked: list[int] = []
    worker = fleet._places.worker(SECOND)
    run = worker.run

    def seen(*given: Any, **options: Any) -> Any:
        asked.append(threading.get_ident())
        return run(*given, **options)

    monkeypatch.setattr(worker, "run", seen)
    with ag.collect_receipts() as collected:
        result = fleet.run(wave, values(100), on=SECOND)
        fleet.run(wave, values(100), on=SECOND, priority=3)
    np.testing.assert_allclose(result.value, wave(values(100)), rtol=1e-5)
    assert asked[0] == threading.get_ident()
    assert asked[1] != threading.get_ident()
    assert collected[0] == result.receipt
    assert len(collected) == 2
    assert {lane.device: lane.done for lane in fleet.health().lanes}[SECOND] == done + 2
    assert fleet.health().open_tasks == 0


def test_an_actor_that_was_killed_is_opened_anew(fleet: Fleet) -> None:
    fleet.run(wave, values(100), on=SECOND)
    worker = fleet._places.worker(SECOND)
    assert isinstance(worker, ActorWorker)
    os.kill(worker.process_id_there, signal.SIGKILL)
    result = fleet.run(wave, values(100), on=SECOND)
    np.testing.assert_allclose(result.value, wave(values(100)), rtol=1e-5)
    assert result.receipt.device == SECOND
    assert fleet._places.worker(SECOND).generation > worker.generation
