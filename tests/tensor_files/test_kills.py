"""Saves that are killed, and files that somebody has tampered with: a few of what two programs beside do at length."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.tensor_files.fuzz_files import fuzz

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked, to be killed at a chosen moment")


@needs_fork
@pytest.mark.parametrize("how", [["--every-step"], ["--count", "12"]])
def test_a_killed_save_leaves_the_old_or_the_new(how: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.tensor_files.kill_saves", *how], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_fork
def test_a_save_that_is_not_safe_would_be_found_out() -> None:
    command = [sys.executable, "-m", "tests.tensor_files.kill_saves", "--every-step", "--in-place"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "InvalidTensorFile" in done.stdout, done.stderr


def test_tampered_files_are_refused_or_right() -> None:
    report = fuzz(5_000, seed=1)
    assert report.surprises == []
    assert report.outcomes["accepted"] > 200
    assert report.most_bytes < 16 << 20
