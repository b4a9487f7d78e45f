"""A trace of what a process did: complete, bounded, and readable whatever happens."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.base import events
from anygpu.observe import trace
from anygpu.observe.recording import TraceIncomplete
from anygpu.receipts.notes import HostNote, Note, Origin, origin_here
from anygpu.receipts.receipt import Phases, Receipt
from anygpu.workers.device_arrays import handle
from tests.observe.trace_checks import PHASES, Trace
from tests.support.observing import tell

UNKNOWN = dict.fromkeys(("device_seconds", "peak_bytes", "kernels", "predicted_seconds"), "it is a test")
X = np.linspace(-1, 1, 64 * 64, dtype=np.float32).reshape(64, 64)


def receipt(phases: Phases, task: str = "score", device: str = "opencl:0", **more: Any) -> Receipt:
    unknown = {name: why for name, why in UNKNOWN.items() if name not in more}
    return Receipt(task=task, device=device, kind="gpu", reason="it is a test", phases=phases, unknown=unknown, **more)


def note(begin: float, end: float, task: str = "quiet") -> Note:
    return HostNote(task, "it is a test", None), begin, begin, end


def score(x: Any, w: Any) -> Any:
    return np.tanh(x @ w).mean(axis=0)


@pytest.mark.parametrize("on", ["numpy", "cpu", "torch", "jax", "webgpu", "opencl"])
def test_totals_equal_the_receipts_on_every_engine(on: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    function = ag.offload(on=on, fallback="raise")(score)
    with ag.collect_receipts() as receipts, trace(path) as recording:
        for _ in range(5):
            function(X, X)
        tasks = [ag.submit(function, X, X) for _ in range(12)]
        for task in tasks:
            task.result(timeout=120)
    found = Trace(path)
    found.check()
    device = receipts[-1].device
    assert len(receipts) == recording.calls == found.said["calls"] == 17
    waited = found.waited()
    drawn = found.seconds("score") + sum(each["dur"] for each in found.calls("score") if "×" in each["name"]) / 1e6
    assert drawn + waited == pytest.approx(sum(each.seconds for each in receipts), rel=0.02)
    for phase in PHASES:
        wanted = sum(getattr(each.phases, phase) for each in receipts)
        slack = 0.002 * sum(each.seconds for each in receipts)  # phases too short to be seen are not drawn
        got = found.seconds(phase) + (waited if phase == "queue" else 0.0)
        assert got == pytest.approx(wanted, rel=0.02, abs=slack), phase
    tracks = found.tracks()
    assert threading.current_thread().name in tracks
    there = [each for name, events in tracks.items() if name.startswith(device) for each in events]
    ran = sum(each["dur"] for each in there if each["name"].split(" × ")[0] == "score") / 1e6
    assert ran == pytest.approx(sum(each.phases.run for each in receipts), rel=0.02, abs=1e-4)
    assert len(found.of_kind("s")) == len(found.of_kind("f")) == 12
    assert any(each["name"].startswith("memory of") for each in found.of_kind("C"))


def test_nested_calls_are_inside_of_each_other(tmp_path: Path) -> None:
    @ag.offload
    def inner(x: Any) -> Any:
        return np.sqrt(x)

    @ag.offload
    def outer(x: Any) -> Any:
        return inner(x) + inner(x)

    with trace(tmp_path / "run.json"):
        for _ in range(50):
            outer(np.ones(10))
    found = Trace(tmp_path / "run.json")
    found.check()
    assert len(found.calls("test_nested_calls_are_inside_of_each_other.<locals>.inner") or found.calls("inner")) == 100


def test_threads_have_tracks_of_their_own(tmp_path: Path) -> None:
    @ag.offload
    def double(x: Any) -> Any:
        return x * 2

    def work() -> None:
        for _ in range(300):
            double(np.ones(100))

    with trace(tmp_path / "run.json") as recording:
        threads = [threading.Thread(target=work, name=f"reader {number}") for number in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    found = Trace(tmp_path / "run.json")
    found.check()
    assert recording.calls == 1200
    assert {f"reader {number}" for number in range(4)} <= set(found.tracks())


def test_device_time_is_shown_where_it_is_known(tmp_path: Path) -> None:
    with trace(tmp_path / "run.json"):
        tell(receipt(Phases(write=0.001, run=0.01, read=0.002), device_seconds=0.004, bytes_to_device=7, kernels=3))
    found = Trace(tmp_path / "run.json")
    found.check()
    write, run, clock, read = found.tracks()["opencl:0"]
    assert (write["name"], write["args"]) == ("write", {"bytes": 7})
    assert (run["name"], run["args"]) == ("score", {"kernels": 3})
    assert (clock["name"], clock["dur"]) == ("by the device's clock", 4000)
    assert read["name"] == "read"


def test_one_launch_of_many_tasks_is_one_slice(tmp_path: Path) -> None:
    with trace(tmp_path / "run.json") as recording:
        here = origin_here()
        assert here is not None
        origin = here._replace(time=here.time - 1)
        for number in range(40):
            tell(receipt(Phases(queue=0.001 * number, run=0.02)), origin)
        tell(receipt(Phases(run=0.4)), origin)  # it has begun before the others ended, however long these lines take
    found = Trace(tmp_path / "run.json")
    found.check()
    (first,), (second,) = (found.tracks()[name] for name in ("opencl:0", "opencl:0 (2)"))
    assert (first["name"], second["name"]) == ("score × 40", "score")
    assert first["dur"] == pytest.approx(40 * 20_000)
    assert recording.calls == 41


def test_workers_come_and_go_as_instants(tmp_path: Path) -> None:
    with trace(tmp_path / "run.json"):
        events.workers.tell(handle.WorkerEvent("lost", "opencl:0", 1, 0.0, "it was killed"))
        events.workers.tell(handle.WorkerEvent("replaced", "opencl:0", 2, 0.25))
    assert not events.workers
    lost, replaced = Trace(tmp_path / "run.json").of_kind("i")
    assert (lost["name"], lost["args"]["why"]) == ("worker lost", "it was killed")
    assert (replaced["name"], replaced["args"]["generation"]) == ("worker replaced", 2)


def test_a_file_has_a_limit_and_counts_what_it_leaves_out(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    recording = trace(path, limit="1MB")
    recording.__enter__()
    for number in range(100_000):
        tell(note(number * 1e-3, number * 1e-3 + 5e-4))
    with pytest.warns(TraceIncomplete, match=r"reached its limit of .* calls are counted in it"):
        recording.__exit__(None, None, None)
    assert path.stat().st_size <= 1_000_000
    found = Trace(path)
    found.check()
    assert recording.calls + recording.dropped == 100_000
    assert (found.said["calls"], found.said["dropped_calls"]) == (recording.calls, recording.dropped)
    assert found.said["dropped_seconds"] == pytest.approx(recording.dropped * 5e-4)
    assert len(found.calls("quiet")) == recording.calls > 1000


def test_a_hundred_thousand_quiet_calls_fit_by_default(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with trace(path) as recording:
        for number in range(100_000):
            tell(note(number * 1e-3, number * 1e-3 + 5e-4))
    assert (recording.calls, recording.dropped) == (100_000, 0)
    assert path.stat().st_size < 60_000_000


def test_the_file_is_there_when_the_block_raises(tmp_path: Path) -> None:
    path = tmp_path / "run.json"

    def block() -> None:
        with trace(path):
            tell(note(1.0, 2.0))
            assert not path.exists()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        block()
    found = Trace(path)
    assert (found.said["ended_by"], found.said["calls"]) == ("ZeroDivisionError", 1)
    assert [each.name for each in tmp_path.iterdir()] == ["run.json"]
    assert not events.calls


def test_a_call_that_raises_is_drawn(tmp_path: Path) -> None:
    @ag.offload
    def broken(x: Any) -> Any:
        raise KeyError("no")

    with trace(tmp_path / "run.json"):
        for _ in range(3):
            with pytest.raises(KeyError):
                broken(np.ones(3))
    found = Trace(tmp_path / "run.json")
    found.check()
    assert [each["name"] for each in found.of_kind("i")] == ["raised KeyError"] * 3


def test_names_cannot_break_the_file(tmp_path: Path) -> None:
    hostile = 'x"},{"ph":"\\ud800<script>\x1b[2J\n' + "\ud800" + "y" * 1000
    with trace(tmp_path / "run.json"):
        tell(note(1.0, 2.0, hostile))
        tell(receipt(Phases(run=0.01), hostile, hostile, how=hostile))
    found = Trace(tmp_path / "run.json")
    found.check()
    names = [each["name"] for each in found.of_kind("X")]
    assert all(len(name) <= 200 for name in names)
    assert any(name.startswith('x"},{"ph"') for name in names)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no folder for the trace: .*missing'$"), trace(tmp_path / "missing/x"):
        pass


@pytest.mark.filterwarnings("ignore")  # other libraries warn of forks
def test_a_forked_child_leaves_the_file_alone(tmp_path: Path) -> None:
    with trace(tmp_path / "run.json") as recording:
        tell(note(1.0, 2.0))
        child = os.fork()
        if not child:
            try:
                for number in range(1000):
                    tell(note(number, number + 0.5))
                recording.__exit__(None, None, None)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
    assert Trace(tmp_path / "run.json").said["calls"] == 1


FULL_DISK = """
import resource, sys
from anygpu.base import events
from anygpu.observe import trace
from anygpu.receipts.notes import HostNote
try:
    with trace(sys.argv[1]):
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
        for number in range(20_000):
            events.calls.tell((HostNote("f", "it is a test", None), number, number, number + 0.5), None)
        print("the calls went on")
except OSError as error:
    print(type(error).__name__)
"""


def test_a_full_disk_does_not_break_calls(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path / "run.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split("\n") == ["the calls went on", "OSError", ""]
    assert not list(tmp_path.iterdir())


def test_wrong_limits_are_refused(tmp_path: Path) -> None:
    for limit in ("large", 10, "10KB"):
        with pytest.raises(ag.InvalidOption, match="limit is a size"):
            trace(tmp_path / "run.json", limit=limit)


def test_threads_that_have_ended_are_named_by_number(tmp_path: Path) -> None:
    with trace(tmp_path / "run.json"):
        here = origin_here()
        assert here is not None
        tell(receipt(Phases(run=0.01)), Origin(here.time, 12345, here.context))
    assert "thread 12345" in Trace(tmp_path / "run.json").tracks()
