"""What is left of a child that has ended."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from typing import IO

import pytest

from anygpu.workers import child_process
from anygpu.workers.child_process import Child
from anygpu.workers.child_start import waits_for_processor


class Closing(io.BytesIO):
    """A file that another thread closes while it is read."""

    def __init__(self, error: Exception) -> None:
        super().__init__(b"out of memory")
        self.error = error

    def tell(self) -> int:
        raise self.error


@pytest.mark.parametrize("error", [ValueError("I/O operation on closed file"), OSError(9, "Bad file descriptor")])
def test_last_words_that_another_thread_closes_just_now(error: Exception) -> None:
    child = Child.__new__(Child)
    child._stderr = io.BytesIO(b"out of memory\n")
    assert child.last_words() == "out of memory"
    child._stderr = Closing(error)
    assert child.last_words() == ""


class Dying:
    """A process that was ended by SIGSEGV, and whose end is told when it was asked for it so many times."""

    pid = 0
    stdin: IO[bytes] | None = None
    stdout: IO[bytes] | None = None

    def __init__(self, times: int) -> None:
        self.left = times
        self.killed = False

    def poll(self) -> int | None:
        return None if self.left else -signal.SIGSEGV

    def wait(self, timeout: float | None = None) -> int:
        if self.left:
            self.left -= 1
            raise subprocess.TimeoutExpired("dying", timeout or 0.0)
        return -signal.SIGSEGV

    def kill(self) -> None:
        self.killed = True


@pytest.mark.parametrize(
    ("times", "busy", "code"),
    [(0, False, signal.SIGSEGV), (1, False, signal.SIGSEGV), (2, False, signal.SIGKILL), (9, True, signal.SIGSEGV)],
)
def test_a_child_that_waits_for_a_processor_is_waited_for(
    times: int, busy: bool, code: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is stuck in a driver is not: its end is taken for what would have ended it."""
    monkeypatch.setattr(child_process, "waits_for_processor", lambda process: busy)
    child = Child.__new__(Child)
    child._stderr = io.BytesIO()
    child.process = process = Dying(times)
    assert child.collect() == (-code, "")
    assert process.killed == (times > 0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_whether_a_process_waits_for_a_processor() -> None:
    assert waits_for_processor(os.getpid())
    with subprocess.Popen([sys.executable, "-c", "print(flush=True)\ninput()"], stdin=-1, stdout=-1) as sleeping:
        assert sleeping.stdout is not None
        sleeping.stdout.readline()
        sleeping.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, sleeping.pid, os.WSTOPPED)
        assert not waits_for_processor(sleeping.pid)
        sleeping.kill()
    assert not waits_for_processor(sleeping.pid)
