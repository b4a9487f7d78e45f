"""Timing several things against each other on a machine that others use too: in turns, in one run.

A library's threads go on spinning for some milliseconds after it has returned, and what ran before has filled the
caches. So the order is another one in every round, and the first part of each turn is not counted.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Mapping

from benchmarks.cells import Timing

Call = Callable[[], object]

#: A sample is the mean of so many calls that it takes at least this long: a clock costs some itself.
SAMPLE_SECONDS = 0.8e-3
MOST_CALLS = 400
#: OpenBLAS lets its threads spin for about 25 ms.
DROPPED_SECONDS = 25e-3
TURN_SECONDS = 20e-3
FEWEST_ROUNDS, MOST_ROUNDS = 3, 12
#: What is so much slower than the fastest is measured once: it cannot win.
FAR_BEHIND = 5.0


def seconds_of(call: Call) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def calls_for(seconds: float) -> int:
    """How many calls of so many seconds make a sample."""
    return max(1, min(MOST_CALLS, int(SAMPLE_SECONDS / max(seconds, 1e-7))))


def sample(call: Call, calls: int) -> float:
    """The mean of some calls."""
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin) / calls


def turn(call: Call, calls: int, *, dropped: float = DROPPED_SECONDS, counted: float = TURN_SECONDS) -> list[float]:
    """Samples of one side, alone for a while; at least one is dropped, and one is counted."""
    end = time.perf_counter() + dropped
    while True:
        sample(call, calls)
        if time.perf_counter() >= end:
            break
    end = time.perf_counter() + counted
    samples = []
    while True:
        samples.append(sample(call, calls))
        if time.perf_counter() >= end:
            return samples


def in_turns(
    sides: Mapping[str, Call],
    *,
    seconds: float,
    always: Collection[str] = (),
    after_turn: Callable[[str], None] = lambda name: None,
) -> dict[str, Timing]:
    """Sample all sides in turns for about so many seconds each. All have been called before.

    Those that are far behind drop out after the first round, unless they are to be measured `always`.
    """
    estimates = {name: min(seconds_of(call), seconds_of(call)) for name, call in sides.items()}
    fastest = min(estimates.values())
    samples: dict[str, list[float]] = {name: [] for name in sides}
    shuffled = random.Random(0)
    end = time.perf_counter() + seconds * len(sides)
    for number in range(MOST_ROUNDS):
        if number >= FEWEST_ROUNDS and time.perf_counter() > end:
            break
        near = [name for name in sides if estimates[name] < FAR_BEHIND * fastest or name in always]
        names = near if number else list(sides)
        shuffled.shuffle(names)
        for name in names:
            samples[name] += turn(sides[name], calls_for(estimates[name]))
            after_turn(name)
    return {name: Timing.of(taken) for name, taken in samples.items()}
