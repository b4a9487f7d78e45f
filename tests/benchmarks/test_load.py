"""The load beside a measurement: it computes, and nothing of it is left."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.load import busy_processes

ROOT = Path(__file__).parents[2]


def test_all_processes_compute_in_the_block_and_none_is_left_after_it() -> None:
    with busy_processes(2) as pids:
        processes = [psutil.Process(pid) for pid in pids]
        assert [process.is_running() for process in processes] == [True, True]
    assert not any(process.is_running() for process in processes)


def test_an_error_in_the_block_leaves_no_process() -> None:
    pids: list[int] = []

    def fail() -> None:
        with busy_processes(1) as started:
            pids.extend(started)
            raise KeyError("the measurement")

    with pytest.raises(KeyError):
        fail()
    assert not psutil.pid_exists(pids[0])


@pytest.mark.full
def test_the_load_ends_with_a_caller_that_is_killed() -> None:
    script = """
import sys
from benchmarks.load import busy_processes

with busy_processes(1) as pids:
    print(*pids, flush=True)
    sys.stdin.read()
"""
    caller = subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert caller.stdout is not None
    busy = psutil.Process(int(caller.stdout.readline()))
    caller.send_signal(signal.SIGKILL)
    caller.communicate()
    # By waiting for its end, and not for a time.
    busy.wait(30)
    assert not busy.is_running()
