"""Spares: copies of them are workers like any other, and neither they nor their copies are left behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

from anygpu.engines.catalogue import EngineEntry, entry_of
from anygpu.errors import DeviceLost
from anygpu.testing import FakeEngine, check_worker, fake_device
from anygpu.workers import child_messages
from anygpu.workers.child_messages import error_to_message
from anygpu.workers.child_process import Spare, can_copy
from anygpu.workers.process import ProcessWorker
from anygpu.workers.worker import open_worker
from tests.support.faults import _let_children_import_tests
from tests.support.fork_engines import THREADED
from tests.support.isolation import run_alone
from tests.workers.programs import doubled
from tests.workers.test_process import is_over, until

FAKE = FakeEngine("fake").entry()
X = np.ones(3000, np.float32)

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="only Linux copies processes")


@contextmanager
def ready(entry: EngineEntry = FAKE, *, quietly: bool = False, may_copy: bool | None = None) -> Iterator[Spare]:
    spare = Spare(entry, quietly=quietly, may_copy=may_copy)
    try:
        spare.wait()
        yield spare
    finally:
        spare.kill()


def worker_of(spare: Spare, device: str = "fake:0") -> ProcessWorker:
    child = spare.take()
    assert child is not None
    worker = open_worker(spare.entry, fake_device(device), isolation="process", adopted=child)
    assert isinstance(worker, ProcessWorker)
    assert worker.process_id == child.process.pid
    return worker


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@linux_only
def test_copies_are_workers_and_the_spare_stays() -> None:
    assert can_copy()
    with ready() as spare:
        first, second = worker_of(spare), worker_of(spare)
        assert len({first.process_id, second.process_id, spare.process_id}) == 3
        for worker in (first, second):
            np.testing.assert_array_equal(worker.run(doubled(X.size), [X]).results[0], 2 * X)
        processes = [psutil.Process(worker.process_id) for worker in (first, second)]
        check_worker(first)
        second.close()
        assert until(lambda: not any(process.is_running() for process in processes))
        worker_of(spare).close()


def make_many_copies() -> None:
    with ready() as spare:
        worker_of(spare).close()
        before = descriptors()
        for end in (ProcessWorker.close, ProcessWorker.kill) * 3:
            worker = worker_of(spare)
            worker.run(doubled(X.size), [X])
            end(worker)
            worker.close()
            del worker
        # The thread that waits for the end of a worker has its descriptor for a moment longer, now and when they were
        # counted before.
        assert until(lambda: descriptors() <= before)
        assert psutil.Process(spare.process_id).children() == [], "not even one that nobody has waited for"
        assert len(psutil.Process(spare.process_id).open_files()) <= 1, "of its own standard error"


@linux_only
def test_many_copies_leave_no_process_and_no_descriptor() -> None:
    run_alone(make_many_copies)


def lost_before_it_is_asked(worker: ProcessWorker) -> None:
    with worker._connection._lock:  # the thread that watches it does not come first
        worker.kill()
        worker._connection.child.process.wait()
        worker._connection.request(child_messages.AskMemory())


def used_after_it_was_closed(worker: ProcessWorker) -> None:
    worker.close()
    worker.run(doubled(X.size), [X])


def lost_as_it_says_itself(worker: ProcessWorker) -> None:
    worker._connection.unwrap(error_to_message(DeviceLost("fake:0")), child_messages.RunDone)


@linux_only
@pytest.mark.parametrize("lose", [lost_before_it_is_asked, used_after_it_was_closed, lost_as_it_says_itself])
def test_the_error_of_a_lost_worker_does_not_keep_its_descriptors(lose: Callable[[ProcessWorker], None]) -> None:
    """An error whose traceback has a frame that has the error would keep them until garbage is collected."""
    with ready() as spare:
        worker = worker_of(spare)
        process = weakref.ref(worker._connection.child.process)
        gc.disable()
        try:
            with suppress(DeviceLost):
                lose(worker)
            assert not worker.alive
            del worker
            assert until(lambda: process() is None), "the thread that watches it has it for a moment longer"
        finally:
            gc.enable()


@linux_only
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_it_is_known_how_a_copy_ended(number: signal.Signals) -> None:
    with ready() as spare:
        worker = worker_of(spare)
        os.kill(worker.process_id, number)
        with pytest.raises(DeviceLost, match=number.name):
            worker.run(doubled(X.size), [X])


@linux_only
def test_the_last_words_of_a_copy_are_its_own() -> None:
    device = fake_device("bad:0")
    entry = FakeEngine("bad", [device], {"execute bad:0": "abort"}).entry()
    with ready(entry) as spare:
        for _ in range(2):
            worker = worker_of(spare, "bad:0")
            with pytest.raises(DeviceLost, match="SIGABRT") as caught:
                worker.run(doubled(X.size), [X])
            assert str(caught.value).count("SIGABRT") == 1


@linux_only
def test_copies_outlive_their_spare_and_the_reason_of_their_end_is_unknown_then() -> None:
    with ready() as spare:
        worker = worker_of(spare)
        idle = worker_of(spare)
    assert not psutil.pid_exists(spare.process_id)
    np.testing.assert_array_equal(worker.run(doubled(X.size), [X]).results[0], 2 * X)
    worker.kill()
    with pytest.raises(DeviceLost, match="for an unknown reason"):
        worker.run(doubled(X.size), [X])
    process = psutil.Process(idle.process_id)
    idle.close()
    assert until(lambda: is_over(process))


def test_a_spare_that_died_gives_nothing_and_says_so() -> None:
    with ready() as spare:
        psutil.Process(spare.process_id).kill()
        psutil.Process(spare.process_id).wait(120)
        assert spare.take() is None
        assert spare.take() is None


def test_a_spare_whose_engine_cannot_be_loaded_does_not_start() -> None:
    spare = Spare(EngineEntry(name="none", target="anygpu.no_such_module:engine"))
    with pytest.raises(OSError, match="no_such_module"):
        spare.wait()
    assert spare.take() is None


@pytest.mark.parametrize("entry", [FAKE, THREADED], ids=["not allowed to copy", "its library has a thread"])
def test_a_spare_that_makes_no_copies_becomes_the_worker_itself(entry: EngineEntry) -> None:
    _let_children_import_tests()
    with ready(entry, may_copy=None if entry is THREADED else False) as spare:
        assert spare.copies is False
        worker = worker_of(spare, f"{entry.name}:0")
        assert worker.process_id == spare.process_id
        assert spare.take() is None
        spare.kill()
        np.testing.assert_array_equal(worker.run(doubled(X.size), [X]).results[0], 2 * X)
        worker.close()


@linux_only
def test_what_was_loaded_quietly_does_not_serve_quietly() -> None:
    with ready(entry_of("opencl:0"), quietly=True) as spare:
        ours = os.getpriority(os.PRIO_PROCESS, 0)
        # The thread that loaded it may be ending still: Python's `join` does not wait for the system's.
        assert until(lambda: _priorities(spare.process_id) == {ours})


def _priorities(process: int) -> set[int]:
    found = set()
    for thread in Path(f"/proc/{process}/task").iterdir():
        with suppress(ProcessLookupError):
            found.add(os.getpriority(os.PRIO_PROCESS, int(thread.name)))
    return found


def test_a_spare_does_not_suit_another_engine_or_other_surroundings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with ready() as spare:
        assert spare.suits(FAKE)
        assert not spare.suits(FakeEngine("fake", faults={"discover": "hang"}).entry())
        with monkeypatch.context() as changed:
            changed.setenv("ANYGPU_SOMETHING", "1")
            assert not spare.suits(FAKE)
        with monkeypatch.context() as changed:
            changed.chdir(tmp_path)
            assert not spare.suits(FAKE)
        assert spare.suits(FAKE)


_PARENT = """
import sys
from tests.workers.test_spare import Spare, FAKE, worker_of
spare = Spare(FAKE)
spare.wait()
worker = worker_of(spare)
{first}
print(spare.process_id, worker.process_id, flush=True)
sys.stdin.read()
"""


def _ended(first: str = "", *, kill: bool) -> bool:
    """Whether spare and copy end with the process that has them, which does that first and ends, or is killed."""
    script = _PARENT.format(first=first)
    parent = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    processes = [psutil.Process(int(each)) for each in parent.stdout.readline().split()]
    assert len(processes) == 2
    if kill:
        parent.kill()
        parent.wait()
    else:
        parent.communicate(timeout=120)
    ended = until(lambda: all(is_over(process) for process in processes))
    # What it may have forked reads from it until now.
    parent.communicate(timeout=120)
    return ended


@linux_only
@pytest.mark.parametrize("first", ["", "import os\nif os.fork() == 0: os._exit(len(sys.stdin.read()))"])
def test_neither_spare_nor_copy_outlives_a_parent_that_is_killed(first: str) -> None:
    """Also when the parent has forked, and what it has forked lives on."""
    assert _ended(first, kill=True)


@linux_only
def test_neither_spare_nor_copy_outlives_a_parent_that_ends() -> None:
    assert _ended(kill=False)
