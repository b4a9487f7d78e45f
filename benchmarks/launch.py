"""What a program of fifty kernels costs the host when nothing is new: `python -m benchmarks.launch [--check]`."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from anygpu.array.trace.tracing import record
from anygpu.engines.compiling_engine import CompilingEngine
from anygpu.workers.device_arrays.registry import DeviceRegistry
from anygpu.workers.thread import ThreadWorker
from benchmarks.report import Figure, arguments, publish

KERNELS = 50
REPEATS = 30

#: The most that each may be.
HOST_MICROSECONDS = 40.0


def fifty_sums(x: Any) -> Any:
    """Sums that cannot be one kernel: each needs all of the one before."""
    for _ in range(KERNELS):
        x = x + np.cumsum(x)[-1]
    return x


def measure(engine_name: str) -> list[Figure]:
    places = DeviceRegistry()
    # In this process: the way to a child is measured by benchmarks.worker.
    place = places.find(engine_name, isolation="thread")
    worker = place.worker
    engine: object = worker.engine if isinstance(worker, ThreadWorker) else None
    if not isinstance(engine, CompilingEngine):
        raise TypeError(f"{engine_name} does not compile kernels itself")
    x = np.zeros(64, np.float32)
    program = record(fifty_sums, x)
    buffers = [place.upload(x)]
    for _ in range(3):
        place.run(program, buffers)
    engine.synchronize(place.facts)
    before = engine.counters(place.facts)
    seconds = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        results = place.run(program, buffers)
        seconds.append(time.perf_counter() - begin)
        engine.synchronize(place.facts)
        del results
    after = engine.counters(place.facts)
    kernels = (after.dispatches - before.dispatches) / REPEATS
    figures = [
        Figure(name=f"{engine_name}: kernels of the program", value=kernels, unit=""),
        Figure(
            name=f"{engine_name}: host time per kernel",
            value=1e6 * float(np.median(seconds)) / kernels,
            unit="µs",
            bound=HOST_MICROSECONDS,
        ),
        Figure(
            name=f"{engine_name}: submissions per run",
            value=(after.submits - before.submits) / REPEATS,
            unit="",
            bound=1.0,
        ),
        Figure(
            name=f"{engine_name}: allocations and compilations",
            value=float(after.allocations - before.allocations + after.compilations - before.compilations),
            unit="",
            bound=0.5,
        ),
    ]
    places.close()
    return figures


def main() -> None:
    options = arguments(__doc__)
    publish([figure for name in ("webgpu", "opencl") for figure in measure(name)], options)


if __name__ == "__main__":
    main()
