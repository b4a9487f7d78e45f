"""Whether a device that becomes slow loses its work, and gets it back: `python -m benchmarks.slowdown [--check]`.

PoCL in its child, made five times slower in mid-run by a worker that waits (`tests.support.slowed`), beside NumPy. The
workload is the shortest chain of operations on which PoCL is at least 1.5 times as fast as NumPy, so that it is clearly
slower than NumPy afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import anygpu as ag
from anygpu.calls.offload import Offloaded
from anygpu.calls.options import options
from anygpu.placement.planner import Planner
from benchmarks.report import Figure, arguments, publish
from tests.support.slowed import SlowedRegistry

ELEMENTS = 1_000_000
SLOWER = 5.0
LEARNING, SLOW, AFTERWARDS = 60, 60, 80
#: In calls.
UNTIL_LOST, UNTIL_BACK = 10, 50


def chain(steps: int) -> Callable[[Any], Any]:
    def chained(x: Any) -> Any:
        for _ in range(steps):
            x = np.maximum(x * 1.01 + 0.5, -2.0)
        return x

    return chained


def seconds_of(call: Callable[[], Any], times: int = 7) -> float:
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    return sorted(taken)[times // 2]


def just_faster(x: Any) -> tuple[Callable[[Any], Any], float]:
    """A function on which PoCL is faster, but not by much, and by how much it is."""
    for steps in (3, 4, 6, 8, 12, 16, 24):
        function = chain(steps)
        there = ag.offload(on="opencl", fallback="raise")(function)
        there(x)
        gain = seconds_of(lambda function=function: function(x)) / seconds_of(lambda there=there: there(x))  # type: ignore[misc]
        if gain >= 1.5:
            return function, gain
    raise SystemExit("PoCL is not faster than NumPy on any of the chains here.")


def measure() -> list[Figure]:
    x = np.random.default_rng(0).normal(size=ELEMENTS).astype(np.float32)
    function, gain = just_faster(x)
    known = SlowedRegistry("opencl:0")
    planner = Planner(known=known)
    planner.machine()
    offloaded: Offloaded[..., Any] = Offloaded(function, options(), lambda: planner)
    went: list[str] = []

    def call(times: int) -> list[str]:
        for _ in range(times):
            with ag.collect_receipts() as collected:
                offloaded(x)
            went.append(collected[0].device)
            planner.settle(60)
        return went[-times:]

    settled = call(LEARNING)[-1]
    known.slowed.factor = SLOWER
    slow = call(SLOW)
    known.slowed.factor = 1.0
    after = call(AFTERWARDS)
    lost = next((n for n in range(SLOW - 3) if "opencl:0" not in slow[n : n + 3]), SLOW)
    back = next((n for n in range(AFTERWARDS - 5) if set(after[n : n + 5]) == {"opencl:0"}), AFTERWARDS)
    return [
        Figure(name="PoCL faster than NumPy before, times", value=gain, unit="×"),
        Figure(
            name=f"calls went to {settled} before; share on opencl while slow",
            value=slow.count("opencl:0") / SLOW,
            unit="",
        ),
        Figure(name="calls until a device five times slower lost its work", value=lost, unit="", bound=UNTIL_LOST),
        Figure(name="calls until it had its work back", value=back, unit="", bound=UNTIL_BACK),
    ]


def main() -> None:
    publish(measure(), arguments(__doc__))


if __name__ == "__main__":
    main()
