"""What a call that stays on the CPU costs beyond the bare function: `python -m benchmarks.calls [--json] [--check]`.

Functions of one to four arguments on arrays so small that no device could gain anything, called bare and offloaded in
turns. The best of many samples counts, because others use the machine too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import anygpu as ag
from benchmarks.placement import calibrate, settle
from benchmarks.report import Figure, arguments, publish
from benchmarks.sampling import in_turns

#: The most that a call may cost beyond the bare function.
MICROSECONDS = 3.0
ELEMENTS = 64
#: How long each side is repeated.
SECONDS = 1.5


def of_one(x: Any) -> Any:
    return x + 1


def of_two(x: Any, y: Any) -> Any:
    return x * y


def of_three(x: Any, y: Any, z: Any) -> Any:
    return x * y + z


def of_four(x: Any, y: Any, z: Any, factor: float) -> Any:
    return (x * y + z) * factor


def measure(function: Callable[..., Any], values: tuple[Any, ...]) -> list[Figure]:
    offloaded: Any = ag.offload(function)
    for _ in range(100):
        offloaded(*values)
    settle()
    sides = {"bare": functools.partial(function, *values), "offloaded": functools.partial(offloaded, *values)}
    timings = in_turns(sides, seconds=SECONDS)
    receipt = ag.last_receipt()
    if receipt is None or receipt.device != "numpy":
        raise RuntimeError(f"{function.__name__} did not stay on the CPU: {receipt}")
    bare, best = timings["bare"], timings["offloaded"]
    number = f"{len(values)} argument{'s' if len(values) > 1 else ''}"
    return [
        Figure(name=f"{number}: bare", value=1e6 * bare.best, unit="µs"),
        Figure(
            name=f"{number}: offloaded beyond bare", value=1e6 * (best.best - bare.best), unit="µs", bound=MICROSECONDS
        ),
        Figure(name=f"{number}: the same, of medians", value=1e6 * (best.median - bare.median), unit="µs"),
    ]


def main() -> None:
    options = arguments(__doc__)
    # As in a program that has run for a while: what there is, and how fast it is, is known.
    calibrate()
    x, y, z = np.random.default_rng(0).standard_normal((3, ELEMENTS), np.float32)
    calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        (of_one, (x,)),
        (of_two, (x, y)),
        (of_three, (x, y, z)),
        (of_four, (x, y, z, 0.5)),
    ]
    publish([figure for function, values in calls for figure in measure(function, values)], options)


if __name__ == "__main__":
    main()
