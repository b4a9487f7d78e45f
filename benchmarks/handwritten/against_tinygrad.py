"""Matmuls of tinygrad beside the hand-written ones and ours: each of its settings in a process of its own, all by
turns."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import numpy as np

from benchmarks.handwritten.side import Side
from benchmarks.handwritten.workloads import Workload
from benchmarks.report import Figure

_CHILD = Path(__file__).parent / "in_tinygrad.py"
_ROUNDS = 15

HOW_TO_INSTALL = """{python} has no tinygrad. Install it next to anygpu, or into an environment of its own:

    python -m venv /tmp/tinygrad && /tmp/tinygrad/bin/pip install tinygrad
    python -m benchmarks.bare --engine opencl --against tinygrad --python /tmp/tinygrad/bin/python
"""


class Failed(Exception):
    """tinygrad ended before it could be measured."""


class Child:
    """A matmul in tinygrad, compiled and waiting to be told to run."""

    def __init__(self, python: str, workload: Workload, beam: int, errors: IO[str]) -> None:
        size = [str(workload.size[name]) for name in ("ROWS", "INNER", "COLUMNS")]
        # DEV is the newer spelling of which device, and CL=1 the older one. The search ends when a round of it wins
        # less than 50 µs: as it comes it goes on for 10 ns, which on a busy machine is for ever.
        settings = {"DEV": "CL", "CL": "1", "BEAM": str(beam), "BEAM_MIN_PROGRESS": "50"}
        environment = {**os.environ, **settings}
        self._process = subprocess.Popen(
            [python, str(_CHILD), *size],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
        )
        if self._answer() != "ready":
            code = self.close()
            errors.seek(0)
            said = [line for line in errors.read().splitlines() if not line.endswith("warning generated.")]
            last = "\n".join(said[-20:])
            raise Failed(f"tinygrad with BEAM={beam} ended with {code} on {workload}, so it is left out.\n{last}")

    def resident(self) -> float:
        if self._process.stdin is None:
            raise RuntimeError("the child was started without a way to talk to it.")
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return float(self._answer())

    def close(self) -> int:
        if self._process.stdin is not None:
            self._process.stdin.close()
        return self._process.wait()

    def _answer(self) -> str:
        if self._process.stdout is None:
            raise RuntimeError("the child was started without a way to hear it.")
        return self._process.stdout.readline().strip()


def against_tinygrad(
    workloads: Sequence[Workload], bare: Side, ours: Side, options: argparse.Namespace
) -> list[Figure]:
    """Resident calls of all, by turns. By hand has to be at least as fast as tinygrad, with and without its search."""
    if subprocess.run([options.python, "-c", "import tinygrad"], capture_output=True, check=False).returncode:
        raise SystemExit(HOW_TO_INSTALL.format(python=options.python))
    found: list[Figure] = []
    for workload in workloads:
        found += _figures(workload, _best(workload, bare, ours, options))
    return found


def _best(workload: Workload, bare: Side, ours: Side, options: argparse.Namespace) -> dict[str, float]:
    arguments = workload.make()
    expected = np.asarray(workload.function(*arguments))
    calls: dict[str, Callable[[], float]] = {
        "by hand": bare.prepared(workload, arguments, expected).resident,
        "anygpu": ours.prepared(workload, arguments, expected).resident,
    }
    with ExitStack() as opened:
        for beam in options.beam:
            sys.stderr.write(f"{workload}: tinygrad with BEAM={beam} compiles ...\n")
            errors = opened.enter_context(tempfile.TemporaryFile("w+"))
            try:
                child = Child(options.python, workload, beam, errors)
            except Failed as failure:
                sys.stderr.write(f"{failure}\n")
                continue
            opened.callback(child.close)
            calls[f"tinygrad BEAM={beam}"] = child.resident
        best = dict.fromkeys(calls, float("inf"))
        for _ in range(_ROUNDS):
            for name, call in calls.items():
                best[name] = min(best[name], call())
    return best


def _figures(workload: Workload, best: dict[str, float]) -> list[Figure]:
    found = [Figure(name=f"{workload}: {name}", value=seconds * 1e3, unit="ms") for name, seconds in best.items()]
    for name, seconds in best.items():
        if name.startswith("tinygrad"):
            found += [
                Figure(name=f"{workload}: {side} / {name}", value=best[side] / seconds, unit="×", bound=1.0)
                for side in ("by hand", "anygpu")
            ]
    return found
