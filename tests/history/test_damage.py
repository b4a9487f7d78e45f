"""Writers that are killed, and damaged files: a few of what two programs beside do at length."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.history.fuzz_files import fuzz

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked, to be killed at any moment")


@needs_fork
def test_killed_writers_lose_nothing() -> None:
    # In a process of its own: libraries that other tests have loaded do not like to be forked.
    command = [sys.executable, "-m", "tests.history.kill_writers", "--processes", "4", "--writes", "200", "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # How long callers wait is a figure of the long form: here other tests may have the disk.
    assert "800 writes by 4 processes" in done.stdout, done.stdout + done.stderr
    assert "lost, too many or damaged: 0" in done.stdout


def test_damaged_files_are_read_or_replaced() -> None:
    report = fuzz(300, seed=1)
    assert report.surprises == []
    assert report.outcomes["read"] > 10
    assert report.outcomes["empty"] > 50
    assert sum(report.outcomes.values()) == 300
    assert report.growth_bytes < 16 << 20
