"""What is told is known: in this process at once, in others after a flush."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from anygpu.base import cache_folder
from anygpu.errors import InvalidOption
from anygpu.placement.history.history import MOST_COLLECTED, PATIENCE, CallHistory, History, open_history, setting
from anygpu.placement.history.records import HabitKey
from anygpu.placement.history.storage import HistoryFile, RowBatch, history_path
from anygpu.testing import ManualClock
from tests.history.memory_storage import MemoryStorage

P, Q, S, F, G = ("0" * 32, "1" * 32, "2" * 32, "3" * 32, "4" * 32)
NOW = 1_800_000_000.0

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this is about fork, or locks of POSIX")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history" / "calls.1"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture(params=["file", "memory"])
def place_of(request: pytest.FixtureRequest, path: Path, clock: ManualClock) -> Any:
    return HistoryFile(path, clock=clock) if request.param == "file" else MemoryStorage()


def test_what_is_told_is_known_at_once_and_after_a_flush_to_others(place_of: Any, clock: ManualClock) -> None:
    one, other = History(place_of, clock=clock), History(place_of, clock=clock)
    for seconds in (3.0, 1.0, 2.0):
        one.ran(P, "webgpu:0", S, seconds)
        clock.advance(1)
    one.ran(P, "numpy", S, 0.5, calls=7)
    one.compiled(P, "webgpu:0", S, 0.25)
    one.agreed(P, "webgpu:0", S)
    assert other.timings(P) == ()
    numpy, gpu = one.timings(P)
    assert (numpy.device, numpy.seconds, numpy.calls, numpy.compile, numpy.agreed) == ("numpy", 0.5, 7, None, False)
    assert (gpu.device, gpu.seconds, gpu.calls, gpu.compile, gpu.agreed) == ("webgpu:0", 2.0, 3, 0.25, True)
    assert gpu.when == NOW + 3
    assert one.flush()
    assert one.timings(P) == other.timings(P) == (numpy, gpu)
    assert one.timings(Q) == ()
    other.ran(P, "webgpu:0", S, 9.0)
    one.ran(P, "webgpu:0", S, 9.0)
    assert one.flush()
    assert other.flush()
    assert [each.calls for each in History(place_of, clock=clock).timings(P)] == [7, 5], "no count is lost"


def test_a_disagreement_is_known_at_once_and_to_others(place_of: Any, clock: ManualClock) -> None:
    one, other = History(place_of, clock=clock), History(place_of, clock=clock)
    one.ran(P, "webgpu:0", S, 1.0)
    one.agreed(P, "webgpu:0", S)
    one.flush()
    other.ran(P, "webgpu:0", S, 1.0)
    other.agreed(P, "webgpu:0", S)
    clock.advance(1)
    one.disagreed(P, "webgpu:0", S)
    (found,) = one.timings(P)
    assert (found.seconds, found.agreed, found.disagreed) == (None, False, NOW + 1)
    one.flush()
    other.flush()  # what it has is older
    (found,) = other.timings(P)
    assert (found.seconds, found.agreed, found.disagreed) == (None, False, NOW + 1)
    clock.advance(1)
    other.ran(P, "webgpu:0", S, 1.0)
    other.agreed(P, "webgpu:0", S)
    (found,) = other.timings(P)
    assert (found.seconds, found.agreed) == (1.0, True)


def test_a_habit_is_what_other_processes_do(place_of: Any, clock: ManualClock) -> None:
    for calls in (10, 30, 20):
        each = History(place_of, clock=clock)
        for _ in range(calls):
            each.called(F, S, 0.5, name="module.score", program=P)
            if calls == 30:
                each.flush()
        each.flush()
        clock.advance(1)
    last = History(place_of, clock=clock)
    last.called(F, S, 100.0, 100, name="module.score")
    last.flush()
    found = last.habit(F, S)
    assert found is not None
    assert (found.calls, found.seconds, found.processes) == (20, 10.0, 3)
    assert (found.name, found.program, found.when) == ("module.score", P, NOW + 2)
    assert last.habit(F, Q) is None
    assert last.habit(G, S) is None


def test_without_names_none_is_kept(path: Path) -> None:
    named, anonymous = History(path), History(path, names=False)
    named.called(F, S, 1.0, name="secret")
    named.flush()
    found = anonymous.habit(F, S)
    assert found is not None
    assert found.name == "secret"
    anonymous.called(F, S, 1.0, name="secret")
    anonymous.flush()
    found = History(path).habit(F, S)
    assert found is not None
    assert found.name is None
    assert b"secret" not in path.read_bytes()


def test_nothing_is_kept_or_read_without_a_place(path: Path) -> None:
    off = History(None)
    off.ran(P, "numpy", S, 1.0)
    off.compiled(P, "numpy", S, 1.0)
    off.agreed(P, "numpy", S)
    off.disagreed(P, "numpy", S)
    off.called(F, S, 1.0)
    assert off.timings(P) == ()
    assert off.habit(F, S) is None
    assert off.flush()


def test_the_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert setting({}) == setting({"ANYGPU_HISTORY": ""}) == "on"
    assert setting({"ANYGPU_HISTORY": "anonymous"}) == "anonymous"
    with pytest.raises(InvalidOption, match=r'ANYGPU_HISTORY is one of "on", "anonymous", "off"; got .no.'):
        setting({"ANYGPU_HISTORY": "no"})
    monkeypatch.setenv("ANYGPU_CACHE_DIR", str(tmp_path))
    assert history_path() == tmp_path / "history" / "calls.1"
    for chosen, exists in (("off", False), ("anonymous", True)):
        kept = open_history({"ANYGPU_HISTORY": chosen})
        kept.called(F, S, 1.0, name="secret")
        assert kept.flush()
        assert history_path().exists() == exists
    found = open_history({}).habit(F, S)
    assert found is not None
    assert found.name is None


def test_nonsense_is_not_kept(path: Path) -> None:
    kept = History(path)
    for seconds in (float("nan"), float("inf"), -1.0, 1e300):
        kept.ran(P, "numpy", S, seconds)
        kept.compiled(P, "numpy", S, seconds)
        kept.called(F, S, seconds)
    kept.ran(P, "numpy", S, 1.0, calls=0)
    kept.ran("no hash", "numpy", S, 1.0)
    kept.ran(P, "numpy", "\ud800", 1.0)
    kept.called("no hash", S, 1.0)
    kept.called(F, "../..", 1.0)
    assert kept.timings("\ud800") == ()
    assert kept.habit("\ud800", S) is None
    assert kept.flush()
    assert not path.exists()
    kept.ran(P, "\ud800\n", S, 1.0)
    kept.called(F, S, 1.0, name="\ud800\n" * 1000, program="no hash")
    assert kept.flush()
    (found,) = History(path).timings(P)
    assert found.device == "??"
    habit = History(path).habit(F, S)
    assert habit is not None
    assert (habit.name, habit.program) == ("?" * 200, None)


def test_memory_is_bounded(path: Path) -> None:
    kept = History(path)
    for number in range(3 * MOST_COLLECTED):
        kept.ran(f"{number:032x}", "numpy", S, 1.0)
        kept.called(f"{number:032x}", S, 1.0)
    assert len(kept._timings) <= MOST_COLLECTED
    assert len(kept._habits) <= MOST_COLLECTED
    while not kept.flush():
        assert len(kept._timings) <= MOST_COLLECTED
    contents = HistoryFile(path).contents()
    assert len(contents.timings) == len(contents.habits) == MOST_COLLECTED
    assert kept._timings == {}


def test_what_could_not_be_written_is_written_later(path: Path) -> None:
    class Reluctant(MemoryStorage):
        times = 0

        def add(self, batch: RowBatch, seconds: float) -> bool:
            self.times += 1
            return self.times >= 3 and super().add(batch, seconds)

    place_of = Reluctant()
    kept = History(place_of)
    kept.ran(P, "numpy", S, 1.0)
    kept.called(F, S, 1.0)
    assert not kept.flush()
    kept.ran(P, "numpy", S, 1.0)
    assert [each.calls for each in kept.timings(P)] == [2]
    assert not kept.flush()
    assert kept.flush()
    assert kept.flush()
    assert place_of.times == 3, "an empty flush asks nobody"
    assert [each.calls for each in kept.timings(P)] == [2]
    assert place_of.habits[HabitKey(F, S)].processes == 1


def test_several_threads_lose_nothing(path: Path) -> None:
    kept = History(path)

    def work() -> None:
        for number in range(200):
            kept.ran(P, "numpy", S, 1.0)
            kept.called(F, S, 1.0)
            if number % 20 == 0:
                kept.flush()
                kept.timings(P)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    while not kept.flush():
        pass
    other = History(path)
    assert [each.calls for each in other.timings(P)] == [800]
    habit = other.habit(F, S)
    assert habit is not None
    assert (habit.calls, habit.processes) == (800, 1)


class Slept:
    """In place of the module `time`: only sleeping takes time, and none of the machine's."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return 1000.0 + self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@needs_fork
def test_nobody_waits_long_for_one_who_does_not_let_go(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = History(path)
    kept.ran(P, "numpy", S, 1.0)
    assert kept.flush()
    script = """
import sys, fcntl
file = open(sys.argv[1], "r+")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", script, str(path.with_name("history.lock"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == b"held\n"
        kept.ran(P, "numpy", S, 1.0)
        slept = Slept()
        with monkeypatch.context() as patched:
            patched.setattr(cache_folder, "time", slept)
            assert not kept.flush(PATIENCE)
            assert 0 < slept.seconds < PATIENCE * 2
            slept.seconds = 0.0
            assert [each.calls for each in kept.timings(P)] == [2], "this process's own is known"
            assert kept.habit(F, S) is None
            assert slept.seconds == 0, "reading does not wait"
        holder.stdin.close()
        holder.wait()
    assert kept.flush()
    assert [each.calls for each in History(path).timings(P)] == [2]


@needs_fork
def test_a_child_that_is_forked_off_is_a_process_of_its_own(path: Path) -> None:
    script = """
import os, sys, threading
from pathlib import Path
from anygpu.placement.history.history import History
kept = History(Path(sys.argv[1]))
P, F, S = "0" * 32, "3" * 32, "2" * 32
kept.ran(P, "numpy", S, 1.0)
kept.called(F, S, 1.0, 5)
assert kept.flush()
kept.ran(P, "numpy", S, 1.0)
held, forked = threading.Event(), threading.Event()
def be_at_it():
    with kept._lock:
        held.set()
        forked.wait()
other = threading.Thread(target=be_at_it)
other.start()
held.wait()
child = os.fork()
if child == 0:
    kept.ran(P, "numpy", S, 1.0)
    kept.called(F, S, 1.0, 7)
    ok = kept.flush() and kept.timings(P)[0].calls == 2 and kept.habit(F, S).calls == 5
    os._exit(0 if ok else 1)
forked.set()
other.join()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert kept.flush()
assert kept.timings(P)[0].calls == 3
found = History(Path(sys.argv[1])).habit(F, S)
assert (found.processes, found.calls) == (2, 5), found
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_history_is_what_placement_needs() -> None:
    kept: CallHistory = History(MemoryStorage())
    assert kept.flush()
