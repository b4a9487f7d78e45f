"""Every call of an observed process is counted once, whatever way it was made, and costs nothing otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import anygpu as ag
from anygpu import observe
from anygpu.base import events
from anygpu.observe.observation import BUFFERED, RECENT, Observation
from anygpu.receipts.notes import Failure, HostNote, Note


@pytest.fixture
def observed() -> Iterator[None]:
    observe.start()
    yield
    observe.stop()


def calls_of(function: str) -> dict[str, int]:
    return {each.device: each.calls for each in observe.summary().calls if each.function == function}


@ag.offload
def doubled(x: np.ndarray) -> np.ndarray:
    return x * 2


@ag.offload
def refuses(x: np.ndarray) -> np.ndarray:
    raise ValueError("not today")


def test_nothing_is_counted_unless_it_is_asked_for() -> None:
    doubled(np.ones(3))
    found = observe.summary()
    assert not found.observed
    assert found.calls == ()
    assert not events.calls


@pytest.mark.usefixtures("observed")
def test_quiet_calls_are_counted() -> None:
    for _ in range(BUFFERED * 2 + 7):
        doubled(np.ones(3))
    assert sum(calls_of("doubled").values()) == BUFFERED * 2 + 7
    observe.stop()
    assert not events.calls


@pytest.mark.usefixtures("observed")
def test_calls_on_a_device_are_counted_there() -> None:
    for _ in range(3):
        ag.run(doubled, np.ones(300), on="torch:cpu")
    assert calls_of("doubled") == {"torch:cpu": 3}


@pytest.mark.usefixtures("observed")
def test_tasks_are_counted_once() -> None:
    ag.submit(doubled, np.ones(3)).result(60)
    outcomes = ag.map(doubled, [np.ones(3)] * 20)
    assert all(outcome.error is None for outcome in outcomes)
    assert sum(calls_of("doubled").values()) == 21


@pytest.mark.usefixtures("observed")
def test_opaque_tasks_are_counted_once() -> None:
    import torch

    def opaque(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    function = ag.offload(engine="torch")(opaque)
    function(np.ones(4, np.float32))
    ag.submit(function, np.ones(4, np.float32)).result(60)
    (found,) = [each for each in observe.summary().calls if "opaque" in each.function]
    assert found.calls == 2


@pytest.mark.usefixtures("observed")
def test_errors_are_counted_and_raised_as_before() -> None:
    for _ in range(3):
        with pytest.raises(ValueError, match="not today"):
            refuses(np.ones(3))
    with pytest.raises(ValueError, match="not today"):
        ag.submit(refuses, np.ones(3)).result(60)
    (found,) = [each for each in observe.summary().calls if each.function == "refuses"]
    assert (found.calls, found.errors) == (4, {"ValueError": 4})


def note(seconds: float = 1e-5, end: float = 1.0) -> Note:
    return HostNote("f", "it is a test", None), end - seconds, end - seconds, end


@pytest.mark.full
def test_no_call_is_lost_between_threads() -> None:
    observation = Observation()
    each = 20_000

    def work() -> None:
        for _ in range(each):
            observation(note(), None)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        observation.summary()
    for thread in threads:
        thread.join()
    (found,) = observation.summary().calls
    assert found.calls == found.seconds.count == 4 * each
    assert observation.calls == 4 * each


def test_the_latest_calls_are_numbered_and_bounded() -> None:
    observation = Observation()
    for _ in range(RECENT + 50):
        observation(note(), None)
    observation(Failure("g", "opencl:0", "OutOfMemory", 1.0, 3.0), None)
    found = observation.recent()
    assert len(found) == RECENT
    assert found[-1].number == RECENT + 51
    assert (found[-1].function, found[-1].device, found[-1].error) == ("g", "opencl:0", "OutOfMemory")
    assert found[-1].seconds == 2.0
    assert [call.number for call in observation.recent(since=RECENT + 49)] == [RECENT + 50, RECENT + 51]


FORKING = """
import os
import numpy as np
import anygpu as ag

@ag.offload
def doubled(x):
    return x * 2

def calls():
    return sum(each.calls for each in ag.statistics().calls)

ag.observe.start()
doubled(np.ones(3))
child = os.fork()
if child == 0:
    before = calls()
    doubled(np.ones(3))
    os._exit(0 if (before, calls()) == (0, 1) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert calls() == 1
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_begins_anew() -> None:
    # In a process of its own: other libraries have threads in this one, and warn of forks.
    done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
