"""Streams whose devices fail in the middle, and whose process is killed: nothing is lost, nothing is written twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import anygpu as ag
from anygpu.calls.options import Fallback
from anygpu.engines import Isolation
from anygpu.errors import DeviceHung, DeviceLost, InvalidOption, OutOfMemory
from anygpu.hardware.device import Device, Unavailable
from anygpu.placement.planner import Planner
from anygpu.program.graph import Program
from anygpu.receipts import receipt
from anygpu.runtime.streams.pipeline import Streamed
from anygpu.runtime.streams.streaming import stream
from anygpu.workers.device_arrays.registry import DeviceRegistry, registry
from anygpu.workers.process import ProcessWorker
from anygpu.workers.worker import Argument, Ran, Worker

X = np.random.default_rng(0).normal(size=(40_000, 32)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(32, 600)).astype(np.float32)
MEMORY = "60MB"


def score(x: Any) -> Any:
    return np.tanh(x @ W).sum(axis=1)


@pytest.fixture(autouse=True)
def nothing_said() -> None:
    receipt.forget_what_was_said()


class Failing:
    """A worker in a child that fails in the runs it is told to; "kill" kills the real process first."""

    def __init__(self, worker: Worker, planned: dict[int, Exception | str]) -> None:
        self._worker = worker
        self._planned = planned
        self.runs = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def run(self, program: Program, arguments: Sequence[Argument], **more: Any) -> Ran:
        number, self.runs = self.runs, self.runs + 1
        failure = self._planned.pop(number, None)
        if isinstance(failure, Exception):
            raise failure
        if failure == "kill":
            assert isinstance(self._worker, ProcessWorker)
            os.kill(self._worker.process_id, signal.SIGKILL)
        return self._worker.run(program, arguments, **more)


class WithFailures(DeviceRegistry):
    """PoCL in a child that fails when told to, and NumPy."""

    def __init__(self) -> None:
        super().__init__()
        self.planned: dict[int, Exception | str] = {}
        self.failing: list[Failing] = []

    def devices(self, *, low_priority: bool = False) -> list[Device]:
        return [device for device in registry.devices() if device.id in ("numpy", "opencl:0")]

    def unavailable(self) -> list[Unavailable]:
        return []

    def explorer(self, device_id: str) -> Worker:
        return self.worker(device_id)

    def worker(self, device_id: str, *, isolation: Isolation | None = None) -> Worker:
        worker = super().worker(device_id, isolation=isolation)
        if device_id != "opencl:0":
            return worker
        if not self.failing or self.failing[-1]._worker is not worker:
            self.failing.append(Failing(worker, self.planned))
        return self.failing[-1]


@pytest.fixture
def known() -> Iterator[WithFailures]:
    known = WithFailures()
    yield known
    known.close()


def run(known: WithFailures, told: list[tuple[Any, int, int]], fallback: Fallback = "raise") -> Streamed:
    planner = Planner(known=known)
    return stream(
        score,
        X,
        lambda *each: told.append(each),
        memory=MEMORY,
        given={"on": "opencl", "fallback": fallback},
        planner=lambda: planner,
    )


def check(told: list[tuple[Any, int, int]]) -> None:
    """Each row came once, in order, and is right."""
    assert [start for _, start, _ in told] == [0, *(stop for _, _, stop in told[:-1])]
    assert told[-1][2] == len(X)
    np.testing.assert_allclose(np.concatenate([chunk for chunk, _, _ in told]), score(X), rtol=1e-4, atol=1e-3)


@pytest.mark.full
def test_without_failures_weights_go_to_the_device_once(known: WithFailures) -> None:
    told: list[tuple[Any, int, int]] = []
    streamed = run(known, told)
    check(told)
    assert streamed.chunks > 4
    assert streamed.receipt.device == "opencl:0"
    assert streamed.receipt.bytes_to_device < X.nbytes + 2 * W.nbytes
    assert streamed.receipt.peak_bytes is not None
    assert streamed.peak_bytes <= 60_000_000


def test_a_device_that_is_lost_in_mid_stream_is_replaced(known: WithFailures) -> None:
    told: list[tuple[Any, int, int]] = []
    known.planned = {2: "kill"}
    streamed = run(known, told)
    check(told)
    assert streamed.receipt.device == "opencl:0"
    assert [attempt.error for attempt in streamed.receipt.attempts] == ["DeviceLost", None]
    assert known.worker("opencl:0").generation == 2


def test_a_device_that_is_lost_again_and_again_is_given_up(known: WithFailures) -> None:
    known.planned = {number: DeviceLost("opencl:0") for number in range(2, 20)}
    with pytest.raises(DeviceLost):
        run(known, [])
    told: list[tuple[Any, int, int]] = []
    known.failing.clear()
    known.planned = {number: DeviceLost("opencl:0") for number in range(2, 20)}
    with pytest.warns(ag.errors.DeviceFallback, match="runs on numpy instead of opencl:0") as warned:
        streamed = run(known, told, "warn")
    assert warned[0].filename == __file__
    check(told)
    assert {attempt.error for attempt in streamed.receipt.failures} == {"DeviceLost"}


def test_a_lack_of_memory_makes_chunks_smaller(known: WithFailures) -> None:
    told: list[tuple[Any, int, int]] = []
    known.planned = {1: OutOfMemory("opencl:0", 1 << 20), 2: OutOfMemory("opencl:0", 1 << 19)}
    streamed = run(known, told)
    check(told)
    assert streamed.receipt.device == "opencl:0"
    lengths = [stop - start for _, start, stop in told]
    assert max(lengths[1:]) <= lengths[0] // 4


def test_a_device_that_hangs_loses_the_rest_of_the_work(known: WithFailures) -> None:
    told: list[tuple[Any, int, int]] = []
    known.planned = {1: DeviceHung("opencl:0", 1.0)}
    streamed = run(known, told, "allow")
    check(told)
    assert streamed.receipt.device == "numpy"
    known.failing.clear()
    known.planned = {1: DeviceHung("opencl:0", 1.0)}
    with pytest.raises(DeviceHung):
        run(known, [])


# -- a process that is killed

CHILD = """
    import sys, numpy as np
    from anygpu.runtime.streams.streaming import stream
    from tests.faults.test_streams import row_function

    def progress(done, total):
        if done > total // 2:
            print(done, flush=True)
            sys.stdin.read()  # until it is killed

    stream(row_function, sys.argv[1], sys.argv[2], memory="2MB", resume=True, progress=progress)
"""


def row_function(x: Any) -> Any:
    return np.sqrt(x * x + 1).sum(axis=1)


def killed_in_the_middle(source: Path, sink: Path) -> int:
    """How far it said it was."""
    command = [sys.executable, "-c", textwrap.dedent(CHILD), str(source), str(sink)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        told = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    return told


def names(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


def test_a_stream_goes_on_after_its_process_was_killed(tmp_path: Path) -> None:
    source, sink = tmp_path / "x.npy", tmp_path / "y.npy"
    np.save(source, X)
    told = killed_in_the_middle(source, sink)
    assert 0 < told < len(X)
    assert names(tmp_path) == {"x.npy", "y.npy.partial", "y.npy.partial.json"}
    done = json.loads((tmp_path / "y.npy.partial.json").read_text())["done"]
    went: list[int] = []
    stream(row_function, source, sink, memory="2MB", resume=True, progress=lambda done, _: went.append(done))
    assert went[0] > done > 0, "what is done is not computed again"
    np.testing.assert_allclose(np.load(sink), row_function(X), rtol=1e-5)
    assert names(tmp_path) == {"x.npy", "y.npy"}
    assert went[-1] == len(X)


def test_only_the_same_stream_can_go_on(tmp_path: Path) -> None:
    source, sink = tmp_path / "x.npy", tmp_path / "y.npy"
    np.save(source, X)

    def stop(done: int, _: Any) -> None:
        raise KeyError(done)

    with pytest.raises(KeyError):
        stream(row_function, source, sink, memory="2MB", resume=True, progress=stop)
    left = names(tmp_path)
    assert left == {"x.npy", "y.npy.partial", "y.npy.partial.json"}
    with pytest.raises(InvalidOption, match="the function has changed"):
        stream(lambda x: x.sum(axis=1), source, sink, memory="2MB", resume=True)
    changed = source.stat().st_mtime_ns
    os.utime(source, ns=(changed, changed + 1))
    with pytest.raises(InvalidOption, match=r"x\.npy has been written to since"):
        stream(row_function, source, sink, memory="2MB", resume=True)
    np.save(source, X[:-1])
    with pytest.raises(InvalidOption, match=r"x\.npy was <f4\[40000, 32\], and is <f4\[39999, 32\] now.*Delete"):
        stream(row_function, source, sink, memory="2MB", resume=True)
    (tmp_path / "y.npy.partial.json").write_text("{")
    with pytest.raises(InvalidOption, match="cannot be read"):
        stream(row_function, source, sink, memory="2MB", resume=True)
    assert names(tmp_path) == left
    # Without resume=True it is another stream, which has nothing to do with that.
    stream(row_function, source, sink, memory="2MB")
    np.testing.assert_allclose(np.load(sink), row_function(X[:-1]), rtol=1e-5)


def test_weights_that_changed_are_noticed(tmp_path: Path) -> None:
    source, sink = tmp_path / "x.npy", tmp_path / "y.npy"
    np.save(source, X)
    weights = W.copy()

    def stop(done: int, _: Any) -> None:
        raise KeyError(done)

    def function(x: Any) -> Any:
        return x @ weights[:, :2]

    with pytest.raises(KeyError):
        stream(function, source, sink, memory="4MB", resume=True, progress=stop)
    weights[0, 0] += 1
    with pytest.raises(InvalidOption, match="have changed"):
        stream(function, source, sink, memory="4MB", resume=True)


def test_what_nobody_could_recognise_cannot_be_gone_on_with(tmp_path: Path) -> None:
    for source, sink in ((X, tmp_path / "y.npy"), (iter([X]), tmp_path / "y.npy")):
        with pytest.raises(InvalidOption, match="resume=True needs"):
            stream(row_function, source, sink, resume=True)
    np.save(tmp_path / "x.npy", X)
    with pytest.raises(InvalidOption, match="resume=True needs"):
        stream(row_function, tmp_path / "x.npy", resume=True)


def test_two_streams_do_not_go_on_with_the_same_file(tmp_path: Path) -> None:
    source, sink = tmp_path / "x.npy", tmp_path / "y.npy"
    np.save(source, X)

    def again(done: int, _: Any) -> None:
        if done == len(X):
            with pytest.raises(InvalidOption, match="another stream is writing"):
                stream(row_function, source, sink, memory="2MB", resume=True)

    stream(row_function, source, sink, memory="2MB", resume=True, progress=again)
    np.testing.assert_allclose(np.load(sink), row_function(X), rtol=1e-5)


@pytest.mark.full
def test_ten_times_the_memory_is_streamed_inside_of_it() -> None:
    """In a process of its own, which has nothing else in its memory."""
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.streaming", "--gigabytes", "0.5", "--on", "numpy", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    figures = {each["name"]: each for each in msgspec.json.decode(done.stdout)["figures"]}
    assert figures["worst difference from NumPy in 64 bits"]["value"] < 1e-4
    assert figures["most bytes resident beyond before"]["value"] < 200
    assert figures["total"]["value"] < time.perf_counter() - begin
