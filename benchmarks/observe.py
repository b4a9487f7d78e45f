"""What it costs to be observed, and that everything is counted: `python -m benchmarks.observe [--json] [--check]`.

Calls are timed in one process, with observation off and on in turns. Counts and quantiles of a million calls of 300
functions are compared with the true ones, and so is the memory.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import numpy as np

import anygpu as ag
from anygpu import observe
from anygpu.hardware import host
from anygpu.observe.observation import Observation
from anygpu.observe.statistics import MOST_FUNCTIONS, OTHER
from anygpu.receipts.notes import HostNote
from benchmarks.report import Figure, options_parser, publish

#: Microseconds that a quiet call may take more, the share of a call of a millisecond, megabytes that memory may change
#: by in a million calls, and the relative error of a quantile.
MOST_MICROSECONDS, MOST_SHARE, MOST_MEGABYTES, MOST_ERROR = 2.0, 0.01, 2.0, 0.015

_CALLS, _FUNCTIONS = 1_000_000, 300
#: Calls that are timed together: a fold of what was buffered has to be among them.
_AT_ONCE = 1024


@ag.offload
def quiet(x: np.ndarray) -> np.ndarray:
    return x


@ag.offload(on="numpy")
def millisecond(x: np.ndarray) -> float:
    until = time.perf_counter() + 1e-3
    while time.perf_counter() < until:
        pass
    return 0.0


def seconds_of(function: Callable[[np.ndarray], object], calls: int, at_once: int) -> float:
    x = np.ones(4)
    clock, times = time.perf_counter, []
    for _ in range(calls // at_once):
        begin = clock()
        for _ in range(at_once):
            function(x)
        times.append((clock() - begin) / at_once)
    # Others use this machine as well: of ten, the fastest was the least disturbed.
    return float(np.quantile(times, 0.1))


def off_and_on(function: Callable[[np.ndarray], object], calls: int, at_once: int, rounds: int) -> tuple[float, float]:
    """The best of each, in turns."""
    seconds_of(function, calls, at_once)
    off, on = [], []
    for _ in range(rounds):
        off.append(seconds_of(function, calls, at_once))
        observe.start()
        on.append(seconds_of(function, calls, at_once))
        observe.stop()
    return min(off), min(on)


def million() -> tuple[bool, float, float]:
    """Whether all counts are exact, the worst relative error of a quantile, and megabytes that were added."""
    generator = np.random.default_rng(18)
    seconds = np.exp(generator.normal(-9, 2, _CALLS))
    functions = generator.integers(0, _FUNCTIONS, _CALLS)
    notes = [HostNote(f"function_{number}", "measured", None) for number in range(_FUNCTIONS)]
    observation = Observation()

    def tell(begin: int, end: int) -> None:
        for number, took in zip(functions[begin:end].tolist(), seconds[begin:end].tolist(), strict=True):
            observation((notes[number], 0.0, 0.0, took), None)

    # What is made once for each function is there after a part of the calls. They come few at a time, so that lists of
    # this program are not what is measured.
    warm, few = _CALLS // 5, 1_000
    for begin in range(0, warm, few):
        tell(begin, begin + few)
    observation.summary()
    gc.collect()
    before = host.resident_bytes()
    for begin in range(warm, _CALLS, few):
        tell(begin, begin + few)
    found = observation.summary()
    gc.collect()
    grown = (host.resident_bytes() - before) / 1e6
    named = {each.function: each for each in found.calls}
    exact, worst = len(named) == MOST_FUNCTIONS + 1, 0.0
    exact &= sum(each.calls for each in found.calls) == _CALLS
    for number in range(_FUNCTIONS):
        each = named.get(f"function_{number}")
        if each is None:
            continue
        true = np.sort(seconds[functions == number])
        exact &= each.calls == each.seconds.count == len(true)
        exact &= bool(np.isclose(each.seconds.total, true.sum()))
        for share, value in ((0.5, each.seconds.p50), (0.9, each.seconds.p90), (0.99, each.seconds.p99)):
            wanted = np.quantile(true, share, method="inverted_cdf")
            worst = max(worst, abs((value or 0.0) / wanted - 1))
    exact &= OTHER in named
    return exact, worst, grown


def figures(rounds: int) -> list[Figure]:
    exact, worst, grown = million()
    quiet_off, quiet_on = off_and_on(quiet, 20 * _AT_ONCE, _AT_ONCE, rounds)
    long_off, long_on = off_and_on(millisecond, 300, 1, rounds)
    return [
        Figure(name="quiet call, off", value=quiet_off * 1e6, unit="µs"),
        Figure(name="quiet call, on", value=quiet_on * 1e6, unit="µs"),
        Figure(name="quiet call, more", value=(quiet_on - quiet_off) * 1e6, unit="µs", bound=MOST_MICROSECONDS),
        Figure(name="call of 1 ms, more", value=(long_on / long_off - 1) * 100, unit="%", bound=MOST_SHARE * 100),
        Figure(name="a million calls, wrong counts", value=0.0 if exact else 1.0, unit="", bound=0.5),
        Figure(name="a million calls, worst quantile", value=worst * 100, unit="%", bound=MOST_ERROR * 100),
        Figure(name="a million calls, memory", value=grown, unit="MB", bound=MOST_MEGABYTES),
    ]


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    publish(figures(options.rounds), options)


if __name__ == "__main__":
    main()
