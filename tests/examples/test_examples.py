"""The shop window: ten ordinary NumPy functions, each equal to NumPy's answer on every engine."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import anygpu as ag
from examples.compare import ENGINES, difference, run_on

EXAMPLES = {
    "kmeans": "kmeans_step",
    "pca": "pca",
    "black_scholes": "black_scholes",
    "nbody": "nbody_step",
    "edges": "edges",
    "mandelbrot": "mandelbrot",
    "fft_filter": "low_pass",
    "softmax_regression": "training_step",
    "kalman": "kalman",
    "life": "life",
    "stream_large_file": "certainty",
}


#: These compile every kernel for a while, so one example must do here; `python -m examples.<name>` tries the others.
SLOW = ("webgpu", "opencl")
TRIED = [(name, device) for device in ENGINES for name in EXAMPLES if device not in SLOW or name == "black_scholes"]


@pytest.mark.sampled(gate=15)
@pytest.mark.parametrize(("name", "device"), TRIED)
def test_an_example_agrees_with_numpy(name: str, device: str) -> None:
    example = importlib.import_module(f"examples.{name}")
    function = getattr(example, EXAMPLES[name])
    inputs = example.inputs(np.random.default_rng(0))
    with ag.observe.host_operations() as told:
        got = run_on(device, function, inputs)
    assert difference(function(*inputs), got) is None
    assert told == [], "nothing of it ran on the host"


def test_the_service_answers_and_stops_when_it_is_told_to() -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "examples.service"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=180, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line.split(" ran on ")[0] for line in lines[:6]] == ["similarity"] * 3 + ["level"] * 3
    assert all(line.startswith("not a request: ") for line in lines[6:8])
    assert lines[8:] == ["healthy: True, done: 6", "all was done before it stopped: True"]


def test_a_served_function_answers() -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "examples.serving"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=180, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == "best: [0, 2]"
