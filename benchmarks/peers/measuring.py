"""Runs each tool in a process of its own, and lets those of one workload take turns."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.cells import Timing
from benchmarks.peers.in_numpy import FUNCTIONS
from benchmarks.peers.results import Cell
from benchmarks.peers.tools import Tool
from benchmarks.peers.workloads import Workload
from benchmarks.report import say

ROOT = Path(__file__).resolve().parents[2]
#: A tool that has no first result by then has failed.
LONGEST_START = 180.0
#: Whoever ends its own processes has so long.
LONGEST_END = 30.0
#: As much as anybody wants to read of what went wrong.
LAST_WORDS = 300


class Failed(Exception):
    """The process ended, or did not answer."""


class Process:
    """A tool with one workload, warmed up and waiting for its turns."""

    def __init__(self, tool: Tool, workload: Workload, folder: Path, cache: str) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        command = [sys.executable, "-m", "benchmarks.peers.process", repr(time.perf_counter()), str(folder)]
        command += [tool.module, tool.factory, workload.name]
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment(tool, cache),
            cwd=ROOT,
        )
        try:
            self.started: dict[str, Any] = self._answer()
        except BaseException:
            # Also when somebody stops the run: the child would go on by itself.
            self.close()
            raise

    def turn(self) -> list[float]:
        assert self._child.stdin is not None
        try:
            self._child.stdin.write("turn\n")
            self._child.stdin.flush()
        except OSError:
            raise Failed(self._last_words()) from None
        return list(self._answer())

    def end(self) -> dict[str, Any]:
        assert self._child.stdin is not None
        self._child.stdin.close()
        last = dict(self._answer())
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(LONGEST_END)
        return last

    def close(self) -> None:
        self._child.kill()
        self._child.wait()
        for stream in (self._child.stdin, self._child.stdout, self._errors):
            if stream is not None:
                # What was written to a process that has ended cannot be flushed.
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def _answer(self) -> Any:
        assert self._child.stdout is not None
        late = threading.Timer(LONGEST_START, self._child.kill)
        late.start()
        try:
            line = self._child.stdout.readline()
        finally:
            late.cancel()
        if not line:
            raise Failed(self._last_words())
        return msgspec.json.decode(line)

    def _last_words(self) -> str:
        status = self._child.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"It ended with status {status}: {lines[-1][:LAST_WORDS] if lines else 'it wrote nothing.'}"


def environment(tool: Tool, cache: str) -> dict[str, str]:
    """As a user has it, but nothing that was compiled or learnt before."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ANYGPU_", "PYTHONDONTWRITE"))}
    paths = [str(ROOT), *([str(ROOT / "src")] if tool.ours else [])]
    ours = {"ANYGPU_ENGINES": tool.engines, "ANYGPU_CACHE_DIR": f"{cache}/anygpu"} if tool.ours else {}
    return kept | ours | {"PYTHONPATH": os.pathsep.join(paths), "TORCHINDUCTOR_CACHE_DIR": f"{cache}/torch"}


@contextlib.contextmanager
def prepared(workload: Workload) -> Iterator[Path]:
    """A folder with the arguments of a workload, and what NumPy makes of them."""
    with tempfile.TemporaryDirectory(prefix="anygpu-peers-") as name:
        folder = Path(name)
        arguments = workload.make(np.random.default_rng(0))
        result = FUNCTIONS[workload.name](*arguments)
        for number, each in enumerate(arguments):
            np.save(folder / f"argument{number}.npy", each)
        for number, each in enumerate(result if isinstance(result, tuple) else (result,)):
            np.save(folder / f"expected{number}.npy", each)
        yield folder


def measure(workload: Workload, tools: Sequence[Tool], *, rounds: int) -> list[Cell]:
    """A cell for each tool. Starts come one after the other; then all take turns, in another order in each round."""
    cells: dict[str, Cell] = {}
    processes: dict[str, Process] = {}
    samples: dict[str, list[float]] = {}
    with prepared(workload) as folder, contextlib.ExitStack() as stack:
        for tool in tools:
            cells[tool.name] = cell = Cell(workload=workload.name, tool=tool.name, reason=why_not(tool, workload))
            if cell.reason:
                continue
            cache = stack.enter_context(tempfile.TemporaryDirectory(prefix="anygpu-peers-", ignore_cleanup_errors=True))
            try:
                process = Process(tool, workload, folder, cache)
            except Failed as failed:
                cells[tool.name] = msgspec.structs.replace(cell, reason=str(failed))
                continue
            stack.callback(process.close)
            processes[tool.name], samples[tool.name] = process, []
            cells[tool.name] = msgspec.structs.replace(cell, **process.started)
            say(f"  {tool.name}: first result after {cells[tool.name].first:.2f} s")
        shuffled = random.Random(0)
        for _ in range(rounds):
            for name in shuffled.sample(list(processes), len(processes)):
                try:
                    samples[name] += processes[name].turn()
                except Failed as failed:
                    cells[name] = Cell(workload=workload.name, tool=name, reason=str(failed))
                    del processes[name]
        for name, process in processes.items():
            cells[name] = msgspec.structs.replace(cells[name], timing=Timing.of(samples[name]), **process.end())
    return list(cells.values())


def why_not(tool: Tool, workload: Workload) -> str:
    """The reason why a cell cannot be measured; empty when it can."""
    if workload.name in tool.cannot:
        return tool.cannot[workload.name]
    return "" if tool.installed else f"It is not installed here: pip install {' '.join(tool.pip)}."


def load_once(tools: Sequence[Tool]) -> None:
    """Import each tool, so that the first one measured does not read its files from the disk alone."""
    for name in dict.fromkeys(tool.imports for tool in tools if tool.installed):
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True, timeout=120, check=False)
