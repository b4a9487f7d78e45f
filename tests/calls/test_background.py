"""The thread for what nobody should wait for."""

from __future__ import annotations

import subprocess
import sys
import threading

from anygpu.calls.background import Background


def test_jobs_run_one_after_the_other_on_another_thread() -> None:
    background = Background()
    ran: list[tuple[int, str]] = []
    for number in range(20):
        background.submit(lambda number=number: ran.append((number, threading.current_thread().name)))  # type: ignore[misc]
    assert background.settle(120)
    assert ran == [(number, "anygpu-background") for number in range(20)]
    assert not background.busy
    background.close()


def test_nothing_is_waited_for_when_nothing_was_begun() -> None:
    assert Background().settle(0)


def test_what_has_not_begun_is_dropped_at_the_end() -> None:
    background = Background()
    begun, may_end = threading.Event(), threading.Event()
    ran: list[str] = []

    def first() -> None:
        begun.set()
        may_end.wait(120)
        ran.append("first")

    background.submit(first)
    background.submit(lambda: ran.append("second"))
    assert begun.wait(120)
    background.close()
    assert background.closed
    may_end.set()
    assert background.settle(120)
    assert ran in ([], ["first"]), "not waited for, and nothing new begins"
    background.submit(lambda: ran.append("third"))
    assert "third" not in ran


def test_what_must_finish_is_waited_for() -> None:
    background = Background()
    begun, may_end = threading.Event(), threading.Event()
    ran: list[str] = []

    def careful() -> None:
        with background.must_finish():
            begun.set()
            may_end.wait(120)
            ran.append("careful")

    background.submit(careful)
    assert begun.wait(120)
    threading.Timer(0.05, may_end.set).start()
    background.close()
    assert ran == ["careful"]


def test_python_ends_at_once_while_something_is_tried() -> None:
    """Children, threads and libraries: whatever is under way, the end of the program is not held up for long."""
    script = """
import numpy as np, anygpu as ag, time
@ag.offload
def f(x):
    for _ in range(10): x = np.maximum(x * 1.01 + 0.5, -2.0)
    return x
x = np.ones(300_000, np.float32)
end = time.perf_counter() + 0.5
while time.perf_counter() < end: f(x)
print("done", flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False, timeout=180
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
