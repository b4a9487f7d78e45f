"""What a call costs in a child process beyond the same call in this one: `python -m benchmarks.worker [--check]`.

Both homes of a worker run the same program on the same arrays by turns; what counts is a call that is faster than nine
in ten others. Beyond what it costs in a thread, a call in a
child may take 200 µs and one copy of its bytes each way: what NumPy takes to copy them is measured by turns as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from anygpu.array.trace.tracing import record
from anygpu.engines.catalogue import catalogue
from anygpu.program.graph import Program
from anygpu.workers.device_arrays.registry import DeviceRegistry
from anygpu.workers.worker import Worker
from benchmarks.report import Figure, arguments, publish

SIZES = (10**3, 10**4, 10**5, 10**6, 10**7)
#: Rounds and seconds of one size, whichever is over first.
ROUNDS, SECONDS = 400, 3.0

#: The most that a child may cost beyond its two copies.
MICROSECONDS = 200.0


def twice(x: Any) -> Any:
    """As little work as there is: what is left of the time is the way."""
    return x + x


def seconds_of(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def by_turns(sides: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for call in sides.values():
        for _ in range(3):
            call()
    end = time.perf_counter() + SECONDS
    for turn in range(ROUNDS):
        if turn >= 5 and time.perf_counter() > end:
            break
        order = list(sides.items())
        for name, call in order if turn % 2 else reversed(order):
            taken[name].append(seconds_of(call))
    return taken


def measure(engine: str, places: DeviceRegistry) -> list[Figure]:
    device = places.find(engine, isolation="process").device
    workers: dict[str, Worker] = {
        "process": places.worker(device, isolation="process"),
        "thread": places.worker(device, isolation="thread"),
    }
    figures: list[Figure] = []
    for size in SIZES:
        x = np.linspace(0, 1, size, dtype=np.float32)
        program: Program = record(twice, x)
        room = np.empty_like(x)

        def call(worker: Worker, program: Program = program, x: Any = x) -> object:
            return worker.run(program, [x]).results

        taken = by_turns(
            {
                **{home: lambda worker=worker: call(worker) for home, worker in workers.items()},  # type: ignore[misc]
                "copy": lambda x=x, room=room: np.copyto(room, x),  # type: ignore[misc]
            }
        )
        # Not the median: other work on the machine delays most of the calls, and twice as often where two wait.
        child, thread, copy = (1e6 * float(np.quantile(taken[name], 0.1)) for name in ("process", "thread", "copy"))
        name = f"{engine}, {size:.0e} elements".replace("e+0", "e")
        figures += [
            Figure(name=f"{name}: in a thread", value=thread, unit="µs"),
            Figure(name=f"{name}: in a child", value=child, unit="µs"),
            Figure(name=f"{name}: two copies", value=2 * copy, unit="µs"),
            Figure(
                name=f"{name}: a child beyond thread and copies",
                value=child - thread - 2 * copy,
                unit="µs",
                bound=MICROSECONDS,
            ),
        ]
    return figures


def main() -> None:
    options = arguments(__doc__)
    places = DeviceRegistry()
    engines = [entry.name for entry in catalogue() if entry.name in ("opencl", "webgpu")]
    try:
        publish([figure for name in engines for figure in measure(name, places)], options)
    finally:
        places.close()


if __name__ == "__main__":
    main()
