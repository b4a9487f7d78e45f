"""Workers in a child: what happens when either side dies, hangs or forgets, and what is left behind (nothing)."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import anygpu as ag
from anygpu.array.trace.tracing import record
from anygpu.engines.catalogue import catalogue
from anygpu.engines.memory.pool import bucket_size
from anygpu.engines.numpy.lowering import NumpyEngine
from anygpu.errors import DeviceHung, DeviceLost, DeviceUnavailable
from anygpu.hardware.device import Device
from anygpu.program.graph import Node, Program
from anygpu.program.primitives import Concatenate, Input
from anygpu.testing import FakeEngine, Fault, fake_device
from anygpu.workers import child_connection, child_messages, shared_memory
from anygpu.workers.child_messages import error_from_message, error_to_message
from anygpu.workers.device_arrays.registry import DeviceRegistry, registry
from anygpu.workers.link import LinkClosed
from anygpu.workers.process import ProcessWorker
from anygpu.workers.shared_memory import MOST_OUT
from tests.support.isolation import run_alone
from tests.workers.programs import chain, doubled

NUMPY = next(entry for entry in catalogue() if entry.name == "numpy")

#: What Linux calls the file of a segment.
SEGMENT = "/memfd:anygpu (deleted)"

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def numpy_device() -> Device:
    (device,) = NumpyEngine().discover()
    assert isinstance(device, Device)
    return device


@pytest.fixture
def worker() -> Iterator[ProcessWorker]:
    """NumPy in a child: all of a worker's way, and no driver."""
    opened = ProcessWorker.start(NUMPY, numpy_device())
    yield opened
    opened.close()


def faulty(fault: Fault) -> ProcessWorker:
    device = fake_device("bad:0")
    return ProcessWorker.start(FakeEngine("bad", [device], {"execute bad:0": fault}).entry(), device)


def until(condition: Callable[[], bool], seconds: float = 120.0) -> bool:
    """Whether it comes true in that time, as it does at once on a machine with nothing else to do."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        os.sched_yield()
    return True


def mapped_segments(pid: int) -> int:
    """Shared memory of ours that a process sees."""
    return Path(f"/proc/{pid}/maps").read_text().count("memfd:anygpu")


def open_files(pid: int) -> list[str]:
    """The files that a process has open, or had a moment ago."""
    found = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(str(each.readlink()))
    return found


def named_segments(*pids: int, name: str = ".*") -> set[str]:
    """Files in /dev/shm that the processes have mapped or open, and that would outlive them.

    The folder itself is everybody's: what is in it may be another process's.
    """
    seen = "\n".join(line for pid in pids for line in (Path(f"/proc/{pid}/maps").read_text(), *open_files(pid)))
    return {each for each in re.findall(rf"/dev/shm/{name}.*", seen) if Path(each).exists()}


def is_over(process: psutil.Process) -> bool:
    """Also if the first process of the machine, which has inherited it, does not care."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# -- death


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_child_that_is_killed_is_noticed_at_once(worker: ProcessWorker, number: signal.Signals) -> None:
    x = np.ones(100_000, np.float32)
    handle = worker.upload(x)
    (result,) = worker.run(doubled(x.size), [x]).results
    os.kill(worker.process_id, number)
    assert until(lambda: not worker.alive), "the watcher tells without a call"
    for use in (lambda: worker.download(handle), lambda: worker.run(doubled(3), [x[:3]]), lambda: worker.memory()):
        with pytest.raises(DeviceLost, match=number.name) as caught:
            use()
        assert caught.value.generation == 1
    np.testing.assert_array_equal(result, x + x)
    result[:] = 5
    assert until(lambda: worker.shared_bytes <= bucket_size(x.nbytes)), "only the result's memory is left"


def test_a_task_that_could_not_be_sent_was_not_begun(worker: ProcessWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a task which must not run twice is tried again elsewhere."""

    def closed(*_: object) -> None:
        raise LinkClosed

    monkeypatch.setattr(worker._connection, "_send", closed)
    with pytest.raises(DeviceLost) as caught:
        worker.run(doubled(4), [np.zeros(4, np.float32)])
    assert not caught.value.started


@pytest.mark.sampled(gate=2)
@pytest.mark.parametrize(("fault", "words"), [("abort", "SIGABRT"), ("segfault", "SIGSEGV"), ("exit", "exit code 3")])
def test_a_crash_in_mid_call_is_a_lost_device(fault: Fault, words: str) -> None:
    worker = faulty(fault)
    with pytest.raises(DeviceLost, match=words) as caught:
        worker.run(doubled(100_000), [np.ones(100_000, np.float32)])
    assert caught.value.device == "bad:0"
    assert not worker.alive
    assert worker.shared_bytes == 0


def test_the_last_words_of_a_child_are_in_the_error() -> None:
    worker = faulty("segfault")
    assert worker._connection.child.process.stdin is not None
    os.pwrite(worker._connection.child._stderr.fileno(), b"a driver's last words", 0)
    with pytest.raises(DeviceLost, match="a driver's last words"):
        worker.run(doubled(3), [np.ones(3, np.float32)])


def test_a_child_that_hangs_is_killed_when_its_time_is_over() -> None:
    worker = faulty("hang")
    child = psutil.Process(worker.process_id)
    with pytest.raises(DeviceHung) as caught:
        worker.run(doubled(3), [np.ones(3, np.float32)], timeout=0.2)
    assert 0 < caught.value.seconds <= 0.2
    assert not worker.alive
    assert until(lambda: not child.is_running())
    with pytest.raises(DeviceLost, match="did not respond"):
        worker.run(doubled(3), [np.ones(3, np.float32)])


def test_a_child_that_prints_does_no_harm() -> None:
    worker = faulty("print")
    (result,) = worker.run(doubled(3), [np.ones(3, np.float32)]).results
    assert result.tolist() == [2, 2, 2]
    worker.close()


def test_a_closed_worker_leaves_no_process() -> None:
    worker = ProcessWorker.start(NUMPY, numpy_device())
    child = psutil.Process(worker.process_id)
    worker.close()
    assert until(lambda: not child.is_running())
    opened = ProcessWorker.start(NUMPY, numpy_device())
    child = psutil.Process(opened.process_id)
    del opened
    gc.collect()
    assert until(lambda: not child.is_running()), "a worker that nobody has any more ends its child"


def test_a_device_that_is_not_there_any_more_cannot_be_opened() -> None:
    entry = FakeEngine("some", [fake_device("some:0", name="Another")]).entry()
    with pytest.raises(DeviceUnavailable, match="it is Another now"):
        ProcessWorker.start(entry, fake_device("some:0"))
    with pytest.raises(DeviceUnavailable, match="it is gone"):
        ProcessWorker.start(entry, fake_device("some:7"))


_PARENT = """
import sys, time
import numpy as np
from tests.workers.test_process import NUMPY, ProcessWorker, doubled, faulty, numpy_device
worker = {worker}
x = np.ones(1_000_000, np.float32)
kept = worker.run(doubled(x.size), [x]).results if {calls} else None
print(worker.process_id, flush=True)
worker.run(doubled(x.size), [x]) if {hangs} else sys.stdin.read()
"""


@linux_only
@pytest.mark.parametrize("hangs", [False, True])
def test_nothing_is_left_behind_when_the_parent_is_killed(hangs: bool) -> None:
    """Also when the child hangs in a driver call that holds the interpreter's lock."""
    how = 'faulty("hang")' if hangs else "ProcessWorker.start(NUMPY, numpy_device())"
    script = _PARENT.format(worker=how, calls=not hangs, hangs=hangs)
    parent = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    if hangs:
        assert until(lambda: mapped_segments(child.pid) > 0), "the call is under way"
    named = named_segments(parent.pid, child.pid)
    parent.kill()
    parent.communicate()
    assert until(lambda: is_over(child))
    assert named == set(), "what has no name is gone with its last process"


# -- shared memory


def use_shared_memory() -> None:
    worker = ProcessWorker.start(NUMPY, numpy_device())
    x = np.ones(300_000, np.float32)
    program = doubled(x.size)
    for _ in range(5):
        (result,) = worker.run(program, [x]).results
        del result
    steady = worker.shared_bytes
    assert steady == 2 * bucket_size(x.nbytes)
    kept = [worker.run(program, [x]).results[0] for _ in range(4)]
    assert worker.shared_bytes == 5 * bucket_size(x.nbytes)
    parts = [each[10:20] for each in kept]
    del kept
    worker.run(program, [x])
    assert worker.shared_bytes >= 5 * bucket_size(x.nbytes), "a part of a result holds it"
    for part in parts:
        np.testing.assert_array_equal(part, 2)
    del parts, part
    worker._connection.shared._pool.trim(0)  # type: ignore[union-attr]
    worker._connection.tidy()
    worker.run(doubled(3), [x[:3]])
    assert worker.shared_bytes == 0
    assert mapped_segments(worker.process_id) == 0
    assert mapped_segments(os.getpid()) == 0
    worker.close()


@linux_only
def test_shared_memory_is_used_again_and_given_back() -> None:
    run_alone(use_shared_memory)


def keep_many_results() -> None:
    worker = ProcessWorker.start(NUMPY, numpy_device())
    x = np.ones(10_000, np.float32)
    results = [worker.run(doubled(x.size), [x]).results[0] for _ in range(3 * MOST_OUT)]
    assert open_files(os.getpid()).count(SEGMENT) <= MOST_OUT + 10
    assert all((each == 2).all() for each in results)
    worker.close()


@linux_only
def test_any_number_of_results_can_be_kept() -> None:
    run_alone(keep_many_results)


@pytest.mark.parametrize(("by_port", "kind"), [(False, "posix"), (True, None)])
def test_the_ways_of_other_systems(by_port: bool, kind: shared_memory.SegmentKind | None) -> None:
    """POSIX shared memory, as on macOS; and a port of this machine without shared memory, as where nothing else is."""
    worker = ProcessWorker.start(NUMPY, numpy_device(), by_port=by_port, memory_kind=kind)
    for size in (3, 1_000_000):
        x = np.arange(size, dtype=np.float32)
        (result,) = worker.run(doubled(size), [x]).results
        np.testing.assert_array_equal(result, x + x)
        np.testing.assert_array_equal(worker.download(worker.upload(x)), x)
    if sys.platform == "linux":
        assert named_segments(os.getpid(), worker.process_id, name="anygpu-[0-9a-f]{16}") == set()
    worker.close()


def test_many_new_arrays_at_once(worker: ProcessWorker) -> None:
    """More descriptors than one message carries."""
    count = 150
    nodes = [Node(Input((10_000,), "float32")) for _ in range(count)]
    program = Program([*nodes, Node(Concatenate(0), tuple(range(count)))], [count])
    arrays = [np.full(10_000, number, np.float32) for number in range(count)]
    (result,) = worker.run(program, arrays).results
    np.testing.assert_array_equal(result, np.concatenate(arrays))


# -- handles


def test_handles_that_nobody_has_are_free_in_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = DeviceRegistry()
    worker = registry.worker("opencl:0")
    assert isinstance(worker, ProcessWorker)
    x = np.ones(1_000_000, np.float32)
    handles = [worker.upload(x) for _ in range(10)]
    full = worker.run(chain(3), [x[:3]]).peak_bytes
    del handles
    worker.run(chain(3), [x[:3]])
    empty = worker.run(chain(3), [x[:3]]).peak_bytes
    assert full is not None
    assert empty is not None
    assert full - empty >= 10 * x.nbytes
    monkeypatch.setattr(child_connection, "DROPPED_BYTES", 3 * x.nbytes)
    handles = [worker.upload(x) for _ in range(4)]
    number = worker._connection.number
    del handles
    assert len(worker._connection.dropped) < 4, "when many bytes wait, the child is told without a call"
    assert worker._connection.number == number
    registry.close()


def test_a_handle_of_an_earlier_worker_is_refused(worker: ProcessWorker) -> None:
    old = ProcessWorker.start(NUMPY, worker.device)
    handle = old.upload(np.ones(3, np.float32))
    with pytest.raises(DeviceLost, match="opened anew") as caught:
        worker.run(doubled(3), [handle])
    assert caught.value.generation == 1
    other = ProcessWorker.start(FakeEngine().entry(), fake_device())
    with pytest.raises(ag.InvalidOption, match="download it"):
        other.download(handle)
    other.close()
    old.close()


# -- programs and errors


def test_a_program_is_sent_once_and_again_when_the_child_has_forgotten_it(worker: ProcessWorker) -> None:
    x = np.ones(3, np.float32)
    sent: list[child_messages.Envelope] = []
    post = worker._connection.post

    def watch(envelope: child_messages.Envelope, attached: Any) -> None:
        sent.append(envelope)
        post(envelope, attached)

    worker._connection.post = watch  # type: ignore[method-assign]
    for _ in range(3):
        worker.run(doubled(3), [x])
    assert [each.task.text is None for each in sent if isinstance(each.task, child_messages.Run)] == [False, True, True]
    # As if the child had forgotten it.
    worker._connection.sent[chain(3).key] = None
    (result,) = worker.run(chain(3), [x]).results
    np.testing.assert_allclose(result, np.tanh(x) + x)
    for size in range(4, 4 + child_connection.PROGRAMS_SENT):
        worker._connection.sent[doubled(size).key] = None
    worker.run(doubled(3), [x])
    assert len(worker._connection.sent) <= child_connection.PROGRAMS_SENT + 1


def test_errors_cross_with_their_class_and_their_fields() -> None:
    for error in (
        ag.errors.OutOfMemory("webgpu:0", 1 << 20, 7),
        ag.DeviceUnavailable("cuda", ["one reason.", "and another."]),
        ag.Unsupported("float64", "webgpu:0"),
        ag.DeadlineExceeded("it", 2.0, still_running=True),
        ag.MissingExtra("wgpu", "webgpu"),
    ):
        copy = error_from_message(error_to_message(error), "webgpu:0")
        assert type(copy) is type(error)
        assert str(copy) == str(error)
        assert vars(copy) == vars(error)
    for usual in (
        FloatingPointError("underflow"),
        IndexError("index 5"),
        MemoryError("none"),
        OverflowError("too large"),
        TypeError("not that"),
        ValueError("no"),
        ZeroDivisionError("0"),
        np.linalg.LinAlgError("Singular matrix"),
    ):
        copy = error_from_message(error_to_message(usual), "webgpu:0")
        assert (type(copy), str(copy)) == (type(usual), str(usual))
    try:
        raise LookupError("a bug of ours")
    except LookupError as bug:
        copy = error_from_message(error_to_message(bug), "webgpu:0")
    assert isinstance(copy, ag.DeviceError)
    assert "LookupError: a bug of ours" in str(copy)
    assert any("Traceback" in note for note in copy.__notes__), "what nobody expected tells where it came from"


def test_a_child_of_a_usual_error_arrives_as_its_parent() -> None:
    copy = error_from_message(error_to_message(np.exceptions.AxisError(3, 2)), "webgpu:0")
    assert type(copy) is ValueError
    assert "axis 3 is out of bounds" in str(copy)


def test_an_error_of_the_users_values_is_raised_as_numpy_raises_it() -> None:
    """Also with `fallback="allow"`: it is not a failure of the device, and would be the same elsewhere."""
    singular = np.zeros((3, 3))
    with pytest.raises(np.linalg.LinAlgError) as expected:
        np.linalg.inv(singular)
    with pytest.raises(np.linalg.LinAlgError, match=str(expected.value)):
        ag.run(np.linalg.inv, singular, on="opencl", fallback="allow")
    traced = record(np.linalg.inv, singular)
    worker = registry.find("opencl").worker
    with pytest.raises(np.linalg.LinAlgError):
        worker.run(traced, [singular])
    assert worker.alive


def test_an_error_of_the_engine_leaves_the_worker_alive() -> None:
    worker = faulty("raise")
    with pytest.raises(ag.DeviceError, match="the fake driver is in a bad mood"):
        worker.run(doubled(3), [np.ones(3, np.float32)])
    assert worker.alive
    assert worker.memory().total is not None
    worker.close()


def test_what_ran_on_the_host_names_the_users_line() -> None:
    """Two programs of one key come from two lines, and each is told with its own."""
    registry = DeviceRegistry()
    place = registry.find("opencl")
    x = np.arange(9, dtype=np.float32).reshape(3, 3)
    recorded = record(lambda x: np.linalg.svd(x)[1] + 1, x)
    programs = {
        f"{file}:7": Program(recorded.nodes, recorded.outputs, lines=[(file, 7)] * len(recorded))
        for file in ("mine.py", "yours.py")
    }
    assert place.worker.supports(recorded), "this engine has no svd"
    for line, program in programs.items():
        ran = place.worker.run(program, [x])
        assert {each.line for each in ran.host_operations} == {line}
        np.testing.assert_allclose(ran.results[0], np.linalg.svd(x)[1] + 1, rtol=1e-4, atol=1e-4)
        with ag.observe.host_operations() as told:
            place.run(program, [x])
        assert {each.line for each in told} == {line}
    registry.close()


# -- callers


def test_several_threads_take_turns(worker: ProcessWorker) -> None:
    wrong: list[object] = []

    def use(number: int) -> None:
        for size in (3, 50_000):
            x = np.full(size, number, np.float32)
            for _ in range(10):
                (result,) = worker.run(doubled(size), [x]).results
                if not (result == 2 * number).all():
                    wrong.append(result)

    threads = [threading.Thread(target=use, args=[number], daemon=True) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_caller_who_does_not_wait_any_longer_does_no_harm(worker: ProcessWorker) -> None:
    """Ctrl-C: the answer of the abandoned call comes later, and is nobody's."""
    x = np.ones(1_000_000, np.float32)
    worker.run(doubled(x.size), [x])
    receive = worker._connection.link.receive
    calls_left = 1

    def interrupted(timeout: float | None = None) -> memoryview:
        nonlocal calls_left
        if calls_left:
            calls_left -= 1
            raise KeyboardInterrupt
        return receive(timeout)

    worker._connection.link.receive = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        worker.run(doubled(x.size), [x], keep=True)
    assert worker.alive
    assert len(worker._connection.abandoned) == 1
    (result,) = worker.run(chain(4), [x[:4]]).results
    np.testing.assert_allclose(result, np.tanh(x[:4]) + x[:4], rtol=1e-6)
    assert worker._connection.abandoned == {}
    assert len(worker._connection.dropped) == 1, "what the abandoned call has left on the device is given up"


def test_waiting_for_another_caller_has_an_end_too(worker: ProcessWorker) -> None:
    with worker._connection.use(), pytest.raises(ag.DeadlineExceeded):
        worker.run(doubled(3), [np.ones(3, np.float32)], timeout=0.05)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_does_not_touch_the_child_of_its_parent(worker: ProcessWorker) -> None:
    script = """
import os, sys
import numpy as np
from tests.workers.test_process import DeviceLost, NUMPY, ProcessWorker, doubled, numpy_device
worker = ProcessWorker.start(NUMPY, numpy_device())
x = np.ones(3, np.float32)
worker.run(doubled(3), [x])
child = os.fork()
if child == 0:
    try:
        worker.run(doubled(3), [x])
    except DeviceLost as error:
        sys.exit(0 if "forked" in str(error) else 1)
    sys.exit(2)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0
assert worker.run(doubled(3), [x]).results[0].tolist() == [2, 2, 2]
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_memory_that_was_given_back_before_it_was_used_is_not_announced(worker: ProcessWorker) -> None:
    """As when there is room for the first of two arguments, and not for the second."""
    assert worker._connection.shared is not None
    block = worker._connection.shared.allocate(1 << 20)
    worker._connection.shared.release(block)
    worker._connection.shared._pool.trim(0)
    x = np.ones(100_000, np.float32)
    (result,) = worker.run(doubled(x.size), [x]).results
    np.testing.assert_array_equal(result, x + x)
