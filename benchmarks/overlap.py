"""Transfers that overlap computing: `python -m benchmarks.overlap [--engine opencl] [--check]`.

A function whose transfers take as long as its computing, on arrays of 32 MB: how many times a product and a square root
follow one another is chosen so. It runs through two threads that share a worker, through the queue of a runtime, and as
a stream; each with its transfers beside the computing of the neighbouring call and, by turns in the same process, one
after the other. What counts is the better half of the rounds.

A device that is the processor itself can only show it where a core is left for the copies. So PoCL first gets one
compute thread (`POCL_MAX_PTHREAD_COUNT=1`), for which the bound holds: 1.5 times as fast. Then the same is measured
with the whole device, where computing and copying share all cores: only reported.
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from anygpu.array.trace.tracing import record
from anygpu.placement.planner import Planner
from anygpu.runtime.runtime import Runtime
from anygpu.runtime.streams.streaming import stream
from anygpu.workers.device_arrays.registry import DeviceRegistry
from anygpu.workers.process import ProcessWorker
from benchmarks.report import Figure, options_parser, publish, say

#: The most that the overlapped side may take, by the other one: 1.5 times as fast.
BOUND = 1 / 1.5
ROWS, COLUMNS = 100_000, 80
CALLS, ROUNDS = 16, 4
#: Steps that are tried to make computing take as long as transfers.
STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_ONE_THREAD = ("POCL_MAX_PTHREAD_COUNT", "POCL_CPU_MAX_CU_COUNT", "LP_NUM_THREADS")


class Steps:
    """A chain of products and roots, as long as it has to be; of each row the values, or only their mean."""

    def __init__(self, count: int, *, mean: bool) -> None:
        self.count = count
        self.mean = mean

    def __call__(self, x: Any) -> Any:
        for _ in range(self.count):
            x = np.sqrt(x * x * np.float32(0.5) + np.float32(1))
        return x.mean(axis=1) if self.mean else x


def balanced(worker: ProcessWorker, x: Any, *, mean: bool) -> tuple[Steps, float, float]:
    """The function whose computing takes about as long as its transfers, and the seconds of both."""
    tried: list[tuple[float, Steps, float, float]] = []
    for count in STEPS:
        function = Steps(count, mean=mean)
        program = record(function, x)
        for _ in range(2):
            worker.run(program, [x])
        phases = [worker.run(program, [x]).phases for _ in range(3)]
        computing = min(each.run for each in phases)
        moving = min(each.write + each.read for each in phases)
        tried.append((abs(np.log(computing / moving)), function, computing, moving))
        if computing > 1.5 * moving:
            break
    _, function, computing, moving = min(tried, key=lambda each: each[0])
    return function, computing, moving


def in_threads(worker: ProcessWorker, function: Steps, arrays: list[Any]) -> Callable[[], list[Any]]:
    """Two threads that take one call after the other."""
    program = record(function, arrays[0])

    def run() -> list[Any]:
        left = list(enumerate(arrays))
        results: list[Any] = [None] * len(left)

        def take() -> None:
            while left:
                number, x = left.pop()
                results[number] = worker.run(program, [x]).results[0][:16].copy()

        threads = [threading.Thread(target=take) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    return run


def in_queue(runtime: Runtime, function: Steps, arrays: list[Any], device: str) -> Callable[[], list[Any]]:
    def run() -> list[Any]:
        futures = [runtime.submit(function, x, on=device, fallback="raise") for x in arrays]
        return [future.result()[:16].copy() for future in futures]

    return run


def as_stream(planner: Planner, function: Steps, whole: Any, length: int, device: str) -> Callable[[], list[Any]]:
    def run() -> list[Any]:
        streamed = stream(function, whole, given={"on": device, "fallback": "raise"}, planner=lambda: planner)
        return [streamed.value[start : start + 16].copy() for start in range(0, len(whole), length)]

    return run


def compared(worker: ProcessWorker, run: Callable[[], list[Any]], expected: list[Any]) -> tuple[float, float]:
    """Seconds one after the other, and overlapped."""
    taken: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(2 * ROUNDS + 2):
        overlapped = bool(turn % 2)
        worker.may_overlap(overlapped)
        begin = time.perf_counter()
        results = run()
        if turn >= 2:
            taken[overlapped].append(time.perf_counter() - begin)
        for result, wanted in zip(results, expected, strict=True):
            np.testing.assert_allclose(result, wanted, rtol=1e-4)
    worker.may_overlap(True)
    alone, beside = (statistics.median(sorted(taken[side])[: ROUNDS // 2 + 1]) for side in (False, True))
    return alone, beside


def measure(engine: str, *, limited: bool) -> list[Figure]:
    for name in _ONE_THREAD:
        os.environ.pop(name, None)
        if limited:
            os.environ[name] = "1"
    where = "one compute thread" if limited else "the whole device"
    places = DeviceRegistry()
    figures: list[Figure] = []
    try:
        device = places.find(engine, isolation="process").device
        worker = places.worker(device, isolation="process")
        assert isinstance(worker, ProcessWorker)
        draw = np.random.default_rng(0)
        whole = draw.random((ROWS * CALLS, COLUMNS), np.float32)
        arrays = [whole[start : start + ROWS] for start in range(0, len(whole), ROWS)]
        planner = Planner(known=places)
        with Runtime(known=places) as runtime:
            for mean in (True, False):
                function, computing, moving = balanced(worker, arrays[0], mean=mean)
                what = "uploads" if mean else "round trips"
                say(f"{where}, {what}: {function.count} steps, {computing * 1e3:.1f} ms, moving {moving * 1e3:.1f} ms")
                expected = [function(x[:16]) for x in arrays]
                ways = {
                    "two threads": in_threads(worker, function, arrays),
                    "runtime": in_queue(runtime, function, arrays, device),
                    "stream": as_stream(planner, function, whole, ROWS, device),
                }
                for way, run in ways.items():
                    alone, beside = compared(worker, run, expected)
                    name = f"{engine}, {where}, {way}, {what}"
                    say(f"{name}: {alone / beside:.2f}")
                    bound = BOUND if limited and mean else None
                    figures += [
                        Figure(name=f"{name}: one after the other", value=alone / CALLS * 1e3, unit="ms"),
                        Figure(name=f"{name}: overlapped", value=beside / CALLS * 1e3, unit="ms"),
                        Figure(name=f"{name}: times as fast", value=alone / beside, unit="×"),
                        Figure(name=f"{name}: takes, by that", value=beside / alone, unit="×", bound=bound),
                    ]
        planner.close()
    finally:
        places.close()
    return figures


def main() -> None:
    parser: argparse.ArgumentParser = options_parser(__doc__)
    parser.add_argument("--engine", default="opencl", help="opencl or webgpu (opencl)")
    parser.add_argument("--limited", action="store_true", help="only with one compute thread")
    options = parser.parse_args()
    figures = measure(options.engine, limited=True)
    if not options.limited:
        figures += measure(options.engine, limited=False)
    publish(figures, options)


if __name__ == "__main__":
    main()
