"""When there are spares: from the first loss on, one for an engine, and not for ever."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import psutil
import pytest

from anygpu.engines import catalogue
from anygpu.engines.catalogue import EngineEntry
from anygpu.testing import FakeEngine
from anygpu.workers import child_process as spare_module
from anygpu.workers.device_arrays.registry import DeviceRegistry
from anygpu.workers.process import ProcessWorker
from anygpu.workers.spares import Spares
from tests.support.faults import _let_children_import_tests
from tests.support.fork_engines import THREADED, UNFORKABLE
from tests.support.isolation import children_with
from tests.workers.programs import doubled
from tests.workers.test_process import until

#: Nothing here takes so long; a test that waits for it has failed.
PATIENCE = 120.0

X = np.ones(3000, np.float32)

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="only Linux copies processes")


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Iterator[DeviceRegistry]:
    _let_children_import_tests()
    entries = (FakeEngine("other").entry(), THREADED, UNFORKABLE)
    monkeypatch.setattr(catalogue, "_of_other_packages", lambda: entries)
    known = DeviceRegistry()
    yield known
    known.close()


def worker_of(known: DeviceRegistry, device: str) -> ProcessWorker:
    worker = known.worker(device)
    assert isinstance(worker, ProcessWorker)
    np.testing.assert_array_equal(worker.run(doubled(X.size), [X]).results[0], 2 * X)
    return worker


def next_worker(known: DeviceRegistry, device: str) -> ProcessWorker:
    """After the loss of the one that is open."""
    lost = worker_of(known, device)
    process = psutil.Process(lost.process_id)
    lost.kill()
    process.wait(PATIENCE)
    while lost.alive:  # until its watcher knows
        lost._connection._lock.acquire()
        lost._connection._lock.release()
    return worker_of(known, device)


def is_copy(worker: ProcessWorker) -> bool:
    return worker._connection.child.is_copy


@linux_only
def test_the_first_loss_brings_a_spare_and_the_next_ones_take_copies_of_it(known: DeviceRegistry) -> None:
    assert not is_copy(worker_of(known, "other:0"))
    assert known.spares.processes() == {}, "it costs nothing before the first loss"
    assert is_copy(next_worker(known, "other:0"))
    processes = known.spares.processes()
    assert list(processes) == ["other"]
    for generation in (3, 4):
        worker = next_worker(known, "other:0")
        assert is_copy(worker)
        assert worker.generation == generation
    assert known.spares.processes() == processes
    known.close()
    assert until(lambda: not psutil.pid_exists(processes["other"]))
    assert until(lambda: not psutil.pid_exists(worker.process_id))


@pytest.mark.full
@linux_only
def test_a_spare_is_given_up_some_time_after_the_last_loss(known: DeviceRegistry) -> None:
    now = [0.0]
    known.spares = spares = Spares(seconds=0.01, clock=lambda: now[0])
    worker = next_worker(known, "other:0")
    spare = psutil.Process(spares.processes()["other"])
    now[0] = 0.02
    spare.wait(PATIENCE)
    assert until(lambda: spares.processes() == {} and spares._timers == {})
    worker_of(known, "other:0")
    assert worker.alive, "its copies go on"
    assert is_copy(next_worker(known, "other:0")), "and the next loss brings another one"


@linux_only
def test_a_spare_that_was_killed_is_replaced_at_the_next_loss(known: DeviceRegistry) -> None:
    next_worker(known, "other:0")
    spare = psutil.Process(known.spares.processes()["other"])
    spare.kill()
    spare.wait(PATIENCE)
    next_worker(known, "other:0")
    assert is_copy(next_worker(known, "other:0"))
    assert known.spares.processes()["other"] != spare.pid


@linux_only
def test_other_surroundings_need_another_spare(known: DeviceRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    next_worker(known, "other:0")
    before = known.spares.processes()["other"]
    monkeypatch.setenv("ANYGPU_SOMETHING", "1")
    worker = next_worker(known, "other:0")
    assert is_copy(worker)
    assert psutil.Process(worker.process_id).environ()["ANYGPU_SOMETHING"] == "1"
    assert known.spares.processes()["other"] != before
    assert until(lambda: not psutil.pid_exists(before))


@linux_only
def test_an_engine_whose_copies_do_not_work_is_started_afresh_from_then_on(known: DeviceRegistry) -> None:
    for _ in range(2):
        assert not is_copy(next_worker(known, "unforkable:0"))
    assert "unforkable" in known.spares._without_copies


@pytest.mark.parametrize("device", ["threaded:0", "other:0"])
def test_where_nothing_is_copied_a_spare_is_used_up_and_the_next_one_starts_in_the_background(
    known: DeviceRegistry, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == "other:0":
        monkeypatch.setattr(spare_module, "can_copy", lambda: False)
    name = device.partition(":")[0]
    engine = f'"name":"{name}"'  # of a spare's command; a worker that was not one before has none in its own
    before = children_with(engine)
    worker = next_worker(known, device)
    assert not is_copy(worker)
    for _ in range(2):
        thread = known.spares._starting.get(name)
        if thread is not None:
            thread.join(PATIENCE)
        spare = known.spares._spares[name]
        assert until(lambda spare=spare: spare.copies is not None)  # type: ignore[misc]
        assert spare.copies is False
        worker = next_worker(known, device)
        assert worker.process_id == spare.process_id
        assert not is_copy(worker)
    known.close()
    assert until(lambda: children_with(engine) <= before)
    assert until(lambda: not psutil.pid_exists(worker.process_id))


def test_an_engine_that_cannot_be_loaded_leaves_nothing() -> None:
    spares = Spares()
    entry = EngineEntry(name="none", target="anygpu.no_such_module:engine")
    assert spares.replacement(entry) is None
    assert spares.processes() == {}
    spares.close()


@linux_only
def test_a_forked_process_does_not_touch_the_spare_of_its_parent() -> None:
    script = """
import os, sys
from anygpu.workers.spares import Spares
from anygpu.testing import FakeEngine
entry = FakeEngine("fake").entry()
spares = Spares()
os.register_at_fork(after_in_child=spares.forked)
first = spares.replacement(entry)
child = os.fork()
if child == 0:
    spares.close()
    os._exit(0 if spares.processes() == {} else 1)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0
assert spares.replacement(entry).is_copy
spares.close()
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
