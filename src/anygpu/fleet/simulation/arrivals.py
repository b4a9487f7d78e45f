"""When tasks are submitted: an endless series of moments for each pattern."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from anygpu.fleet.simulation.scenario import Arrivals


def moments(arrivals: Arrivals, rate: float, draw: random.Random) -> Iterator[float]:
    """The times of arrivals at so many a second, in order. A closed loop has none: it waits for its results."""
    match arrivals.pattern:
        case "constant":
            yield from _constant(rate)
        case "poisson":
            yield from _poisson(rate, draw)
        case "bursts":
            yield from _bursts(rate, arrivals.burst)
        case "diurnal":
            yield from _diurnal(rate, arrivals.period, arrivals.swing, draw)
        case "closed":
            return


def _constant(rate: float) -> Iterator[float]:
    number = 0
    while True:
        yield number / rate
        number += 1


def _poisson(rate: float, draw: random.Random) -> Iterator[float]:
    now = 0.0
    while True:
        now += draw.expovariate(rate)
        yield now


def _bursts(rate: float, size: int) -> Iterator[float]:
    number = 0
    while True:
        now = number * size / rate
        for _ in range(size):
            yield now
        number += 1


def _diurnal(rate: float, period: float, swing: float, draw: random.Random) -> Iterator[float]:
    """By thinning: of moments at the highest rate, as many are kept as the rate of their time is of that."""
    highest = rate * (1 + swing)
    for now in _poisson(highest, draw):
        if draw.random() * highest <= rate * (1 + swing * math.sin(2 * math.pi * now / period)):
            yield now
