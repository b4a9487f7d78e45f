"""How soon changes are found, and how often there was none: `python -m benchmarks.anomalies [--json] [--check]`.

Series are simulated with the noise of this machine: a function is called fifty times a second for a while, and parts of
that, five seconds each, are put together at random. Time is simulated as well.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from anygpu.observe.statistics import batches
from anygpu.observe.watching import LevelWatch, ProcessWatch, leak, time_until
from anygpu.receipts.notes import HostNote
from benchmarks.report import Figure, options_parser, publish

#: False alarms a day, calls until a slowdown by half is found, megabytes until a leak is.
MOST_ALARMS, MOST_CALLS, MOST_MEGABYTES = 1.0, 30.0, 20.0
#: Percent of the forecasts whose interval for nine in ten has to hold: from here to there.
LEAST_HELD, MOST_HELD = 85.0, 95.0

#: Calls a second, seconds between two looks at them, and those of a part; and the seconds of a day.
_RATE, _LOOK, _PART, _DAY = 50, 2, 5, 86_400
_MIB = 1 << 20

Times = NDArray[np.float64]


def noise(seconds: float) -> Times:
    """How long calls of one function took here, relative to their median."""
    x = np.random.default_rng(0).random(60_000)
    clock, found = time.perf_counter, []
    next_one = clock()
    for _ in range(int(seconds * _RATE)):
        next_one += 1 / _RATE
        time.sleep(max(0.0, next_one - clock()))
        begin = clock()
        np.tanh(x).sum()
        found.append(clock() - begin)
    times = np.array(found)
    relative: Times = times / np.median(times)
    return relative


def series(generator: np.random.Generator, measured: Times, count: int, level: float = 1e-3) -> Times:
    """So many calls, of parts that stay as they were measured: disturbances last longer than a call."""
    length = _PART * _RATE
    begins = generator.integers(0, len(measured) - length, count // length + 1)
    parts = [measured[begin : begin + length] for begin in begins]
    return level * np.concatenate(parts)[:count]


def alarms_in_a_day(generator: np.random.Generator, measured: Times) -> int:
    watch, said = ProcessWatch(), HostNote("simulated", "simulated", None)
    found, each = 0, _RATE * _LOOK
    times = series(generator, measured, _DAY * _RATE).reshape(-1, each)
    for look, part in enumerate(times.tolist()):
        notes = [(said, 0.0, 0.0, took) for took in part]
        found += len(watch.add_calls(batches(notes, []), float(look * _LOOK)))
    return found


def calls_until_slower(generator: np.random.Generator, measured: Times) -> float:
    watch = LevelWatch()
    for seconds in series(generator, measured, 500).tolist():
        watch.add(seconds)
    for number, seconds in enumerate(series(generator, measured, 300, 1.5e-3).tolist(), 1):
        found = watch.add(seconds)
        if found is not None and found.kind == "slower":
            return number
    return np.inf


def megabytes_until_leak(generator: np.random.Generator) -> float:
    """A megabyte in a hundred calls, beside an allocator whose blocks come and go."""
    calls = np.arange(3_000)
    held = 300e6 + generator.integers(0, 8, len(calls)) * 512e3 + generator.normal(0, 100e3, len(calls))
    held += calls * (_MIB / 100)
    for end in range(100, len(calls), 20):
        if leak([(float(call), int(held[call])) for call in range(max(0, end - 1_000), end)]) is not None:
            return end / 100
    return np.inf


def holds(generator: np.random.Generator) -> bool | None:
    """Whether a forecast of when memory is full came true; `None` if none was made."""
    drift, spread = generator.uniform(0.5e6, 2e6), generator.uniform(1e6, 6e6)
    steps = drift * 2 + spread * np.sqrt(2) * generator.standard_normal(20_000)
    held = 1e9 + np.cumsum(steps)
    limit = held[99] + generator.uniform(100, 1000) * drift
    forecast = time_until(limit, [(2.0 * step, float(held[step])) for step in range(100)])
    if forecast is None:
        return None
    reached = np.flatnonzero(held[100:] >= limit)
    took = 2.0 * (reached[0] + 1) if len(reached) else np.inf
    return bool(forecast.earliest <= took <= forecast.latest)


def figures(seconds: float, days: int) -> list[Figure]:
    generator = np.random.default_rng(18)
    measured = noise(seconds)
    alarms = [alarms_in_a_day(generator, measured) for _ in range(days)]
    calls = [calls_until_slower(generator, measured) for _ in range(200)]
    leaks = [megabytes_until_leak(generator) for _ in range(50)]
    held = [each for _ in range(1_000) if (each := holds(generator)) is not None]
    share = 100 * float(np.mean(held))
    late = float(np.quantile(calls, 0.95, method="inverted_cdf"))
    return [
        Figure(name="spread of the noise (p90 of times / median)", value=float(np.quantile(measured, 0.9)), unit="×"),
        Figure(name=f"false alarms a day, mean of {days}", value=float(np.mean(alarms)), unit="", bound=MOST_ALARMS),
        Figure(name="slower by half: calls until found, middle", value=float(np.median(calls)), unit="calls"),
        Figure(
            name="slower by half: 95 %",
            value=late,
            unit="calls",
            bound=MOST_CALLS,
        ),
        Figure(name="leak: most until found", value=max(leaks), unit="MiB", bound=MOST_MEGABYTES),
        Figure(name=f"forecasts that hold, of {len(held)}", value=share, unit="%", bound=MOST_HELD),
        Figure(name="forecasts that do not hold", value=100 - share, unit="%", bound=100 - LEAST_HELD),
    ]


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for measuring the noise")
    parser.add_argument("--days", type=int, default=3)
    options = parser.parse_args()
    publish(figures(options.seconds, options.days), options)


if __name__ == "__main__":
    main()
