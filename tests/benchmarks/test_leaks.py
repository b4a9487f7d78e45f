"""How memory is watched: the clock, the slope, what the C library keeps; and that a leak is found."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from benchmarks import leaks
from benchmarks.soak_watch import Clock, middle_slope
from tests.support.isolation import run_alone

#: Some threads have a large array each, one after the other; what is left of these is printed, in MB.
_THREADS = """\
import sys, threading
import numpy as np
from benchmarks.soak_watch import give_back, keep_little, private_bytes

if sys.argv[1] == "little":
    keep_little()

def work(wait, done):
    np.ones(1 << 22, np.uint8)
    done.set()
    wait.wait()

before, wait, threads = private_bytes(), threading.Event(), []
for _ in range(8):
    done = threading.Event()
    threads.append(threading.Thread(target=work, args=(wait, done)))
    threads[-1].start()
    done.wait()
give_back()
print((private_bytes() - before) / 1e6)
wait.set()
"""


def left_by_threads(kept: str) -> float:
    done = subprocess.run([sys.executable, "-c", _THREADS, kept], capture_output=True, text=True, check=True)
    return float(done.stdout)


def test_the_heaps_of_threads_keep_large_arrays_that_were_freed_unless_they_are_told_not_to() -> None:
    assert left_by_threads("usual") > 4
    assert left_by_threads("little") < 2


def test_the_middle_of_the_slopes_does_not_see_one_peak() -> None:
    assert middle_slope([0, 1, 2, 3, 4], [0, 2, 4, 600, 8]) == 2
    assert middle_slope([0, 1], [0, 5]) == 0


def test_the_clock_counts_no_time_in_which_nobody_looked() -> None:
    times = iter([0.0, 10.0, 10.5, 11.0, 71.0, 71.5, 171.5])
    clock = Clock(lambda: next(times))
    clock.start()
    assert [clock.now() for _ in range(4)] == [0.5, 1.0, 1.0, 1.5]
    assert clock.lost == 60
    clock.skip()
    assert clock._now == 101.5


@contextmanager
def _leaking(each: int) -> Iterator[leaks.Round]:
    kept: list[bytes] = []

    def some(count: int) -> None:
        kept.extend(bytes(each) for _ in range(count) if each)

    yield some


def _leak(each: int) -> leaks.Kept:
    leaks.COMPONENTS["leaking"] = leaks.Component(lambda: _leaking(each), 2000, leaks.A_FAULT)
    return leaks.kept_by("leaking", 6, 1.0)


def leak_is_found() -> None:
    kept = _leak(2000)
    assert kept.each(kept.private) > leaks.A_FAULT
    assert kept.each(kept.blocks) > 0.5


def nothing_is_found_without_a_leak() -> None:
    kept = _leak(0)
    assert kept.each(kept.private) <= leaks.A_FAULT
    assert kept.each(kept.blocks) <= 0.5


@pytest.mark.parametrize("script", [leak_is_found, nothing_is_found_without_a_leak])
def test_a_leak_is_found(script: Callable[[], None]) -> None:
    """In processes of their own: memory that earlier tests have given back would take a leak in."""
    run_alone(script)
