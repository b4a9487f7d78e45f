"""Native code among faults: `python -m benchmarks.cpu_faults [--check]`.

Damaged files, a compiling child that is killed, forks, threads and interrupts. Each figure is what went wrong: a call
that gave another answer, or none.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from anygpu.array.trace.tracing import record
from anygpu.engines.cpu import compiler
from anygpu.engines.cpu import engine as executable_module
from anygpu.engines.cpu.engine import CpuExecutable, executable
from anygpu.engines.cpu.runtime import native_runtime
from benchmarks.report import Figure, arguments, publish

DAMAGED, KILLS, FORKS, CALLS, INTERRUPTS = 1000, 200, 1000, 2000, 20_000


def function(x: Any) -> Any:
    return np.sqrt(x * x + 1.0) * 2.0 - x / 3.0


def compiled(size: int) -> tuple[CpuExecutable, Any, Any]:
    x = np.random.default_rng(size).random(size)
    return executable(record(function, x)), x, function(x)


def damaged_files(count: int) -> Figure:
    """Files of programs that were damaged, truncated, swapped or filled with something else, and were loaded."""
    rng = random.Random(0)
    loaded = 0
    made = 0

    def count_compilations(*given: Any, **named: Any) -> bytes:
        nonlocal made
        made += 1
        if given[0] not in images:
            images[given[0]] = compiler.compiled(*given, **named)
        return images[given[0]]

    images: dict[str, bytes] = {}
    patched = mock.patch.object(executable_module, "compiled", count_compilations)
    before = os.environ.get("ANYGPU_CACHE_DIR")
    try:
        with patched, tempfile.TemporaryDirectory() as folder:
            os.environ["ANYGPU_CACHE_DIR"] = folder
            compiled(101)
            (path,) = Path(folder, "native").glob("program-*")
            right = path.read_bytes()
            compiled(102)
            (other,) = set(Path(folder, "native").glob("program-*")) - {path}
            wrong = _damages(right, other.read_bytes(), rng)
            for _ in range(count):
                path.write_bytes(next(wrong))
                made = 0
                program, x, expected = compiled(101)
                loaded += made != 1 or not np.array_equal(program([x])[0], expected)
    finally:
        os.environ.pop("ANYGPU_CACHE_DIR")
        if before is not None:
            os.environ["ANYGPU_CACHE_DIR"] = before
    return Figure(name=f"of {count:,} damaged files, loaded", value=float(loaded), unit="", bound=0.5)


def _damages(right: bytes, other: bytes, rng: random.Random) -> Iterator[bytes]:
    while True:
        damaged = bytearray(right)
        damaged[rng.randrange(len(right))] ^= 1 << rng.randrange(8)
        yield bytes(damaged)
        yield right[: rng.randrange(len(right))]
        yield right + rng.randbytes(1 + rng.randrange(64))
        yield other
        yield rng.randbytes(len(right))


def killed_children(count: int) -> Figure:
    """Modules that were not compiled although only their child was killed."""
    child = compiler._child
    lost = 0
    for number in range(count):
        child.start()
        pid = child.pid
        # At any moment: before, while or after it compiles.
        timer = threading.Timer(random.Random(number).random() * 0.2, _kill, (pid,))
        timer.start()
        program, x, expected = compiled(1000 + number)
        lost += not np.array_equal(program([x])[0], expected)
        timer.join()
    return Figure(name=f"of {count} kills of the compiling child, programs lost", value=float(lost), unit="", bound=0.5)


def _kill(pid: int | None) -> None:
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def forks(count: int) -> Figure:
    """Processes that were forked between parallel calls and gave another answer, or none."""
    program, x, expected = compiled(200_000)
    wrong = 0
    for _ in range(count):
        child = os.fork()
        if not child:
            os._exit(0 if np.array_equal(program([x])[0], expected) else 1)
        wrong += not np.array_equal(program([x])[0], expected)
        wrong += os.waitpid(child, 0)[1] != 0
    return Figure(name=f"of {count:,} forks, wrong answers", value=float(wrong), unit="", bound=0.5)


def threads(count: int) -> Figure:
    """Calls of eight threads at once with another answer."""
    programs = [compiled(size) for size in (50, 5_000, 150_000)]
    wrong: list[int] = []

    def work(number: int) -> None:
        for turn in range(count):
            program, x, expected = programs[(number + turn) % 3]
            if not np.array_equal(program([x])[0], expected):
                wrong.append(number)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return Figure(name=f"of 8 x {count:,} calls at once, wrong answers", value=float(len(wrong)), unit="", bound=0.5)


def interrupts(count: int) -> Figure:
    """Answers of calls among interrupts."""
    program, x, expected = compiled(200_000)
    strided = np.repeat(x, 2)[::2]
    wrong = interrupted = 0
    usual = signal.signal(signal.SIGALRM, signal.default_int_handler)
    turn = 0
    try:
        while interrupted < count:
            turn += 1
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.000_01 * (turn % 30 + 1))
                    wrong += not np.array_equal(program([strided if turn % 2 else x])[0], expected)
                    while True:
                        pass
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupted += 1
    finally:
        signal.signal(signal.SIGALRM, usual)
    wrong += not np.array_equal(program([x])[0], expected)
    return Figure(name=f"of {interrupted:,} interrupts, wrong answers", value=float(wrong), unit="", bound=0.5)


def main() -> None:
    options = arguments(__doc__)
    native_runtime().pool.start(max(2, native_runtime().pool.threads))
    figures = [threads(CALLS), interrupts(INTERRUPTS), forks(FORKS), damaged_files(DAMAGED), killed_children(KILLS)]
    publish(figures, options)


if __name__ == "__main__":
    main()
