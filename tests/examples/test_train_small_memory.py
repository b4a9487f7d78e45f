"""A vision transformer is fine-tuned in half of the memory that its batch wants."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.full
def test_it_learns_in_half_of_the_memory(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    small = ["--width", "64", "--depth", "2", "--batch", "64", "--steps", "16", "--pretraining", "30"]
    command = [sys.executable, "-m", "examples.train_small_memory", *small, "--cache", str(tmp_path)]
    # Several threads that wait for each other are slow on a busy machine.
    variables = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=root, env=variables, capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    losses = [float(value) for value in re.findall(r"loss ([\d.]+)", done.stdout)]
    assert losses[-1] < 0.8 * losses[0], done.stdout
    before, after = re.findall(r"Right (?:before|after): (\d+)%", done.stdout)
    assert int(after) > int(before) + 20, done.stdout
    assert "micro-batches of at most" in done.stdout or "recomputed" in done.stdout, "the whole batch does not fit"
