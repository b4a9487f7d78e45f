"""Histories that are wrong, and what believing them costs. Run it alone: `python -m tests.plan.lies --count 10000`.

Each lie is about one function with one kind of arguments: what a history says of calls on devices, and what they really
take. Some are out of thin air, some have the times of devices swapped, with one another's or with NumPy's, some are off
by a factor, some are old and nearly right. What all calls take together must stay within the worst case that
`anygpu.placement.plan.candidate_history` states, and no device is opened twice on the word of a history.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from typing import NamedTuple

from anygpu.placement.plan.candidate_history import WRONG, Remembered
from anygpu.placement.plan.choosing import DeviceChooser

#: Of the time that calls take on NumPy: what measuring again those that were nearly as good may cost later.
EXPLORING = 0.5
DEVICES = "abcd"
KINDS = ("out of thin air", "swapped", "swapped with numpy", "off by a factor", "nearly right", "praised", "mixed")


class Lie(NamedTuple):
    """What a history says, and what is true. Times are seconds of one call."""

    kind: str
    numpy: float
    #: By device: what it takes, what the history says, what compiling is said to take, and what opening costs.
    real: dict[str, float]
    said: dict[str, float]
    compile: dict[str, float]
    opening: dict[str, float]
    #: The calls that a process is said to make, and those that this one makes.
    usual: int
    calls: int


class Cost(NamedTuple):
    """What calls took together, the devices that were opened for them, calls on devices that lose, and openings."""

    seconds: float
    opened: set[str]
    losing: int
    openings: int


def play(chooser: DeviceChooser, true: dict[str, float], calls: int) -> Cost:
    """Calls as placement makes them."""
    total, opened, losing, openings = 0.0, set(), 0, 0
    for _ in range(calls):
        name = chooser.to_open()
        if name is not None:
            opened.add(name)
            openings += 1
            chooser.begin_trial(name)
            chooser.tried(name, chooser.remembered[name].seconds)
        choice = chooser.choose()
        chooser.measured(choice.candidate, true[choice.candidate])
        total += true[choice.candidate]
        losing += true[choice.candidate] > true["numpy"]
    return Cost(total, opened, losing, openings)


def cost_of(lie: Lie) -> Cost:
    true = {"numpy": lie.numpy, **lie.real}
    chooser = DeviceChooser("numpy")
    chooser.consider(true, lie.opening)
    chooser.recall({name: Remembered(lie.said[name], lie.compile[name], lie.usual, "") for name in lie.real})
    return play(chooser, true, lie.calls)


def worst_case(lie: Lie, opened: set[str]) -> float:
    """The most that calls may take: those on NumPy, and one on each device that was praised, or two if it came near."""
    seconds = lie.calls * lie.numpy * (1 + EXPLORING)
    for name in opened:
        calls = 2 if lie.real[name] <= WRONG * lie.said[name] else 1
        seconds += calls * max(0.0, lie.real[name] - lie.numpy)
    return seconds


def random_lie(rng: random.Random) -> Lie:
    kind = rng.choice(KINDS)
    names = rng.sample(DEVICES, rng.randint(2 if kind == "swapped" else 1, len(DEVICES)))
    numpy = _seconds(rng)
    real = {name: _seconds(rng) for name in names}
    said: dict[str, float] = {}
    for name in names:
        match kind if kind != "mixed" else rng.choice(KINDS[:-1]):
            case "swapped":
                said[name] = real[names[(names.index(name) + 1) % len(names)]]
            case "swapped with numpy":
                said[name] = numpy
            case "off by a factor":
                said[name] = real[name] * 10 ** rng.uniform(-3, 3)
            case "nearly right":
                said[name] = real[name] * rng.uniform(0.5, 2.0)
            case "praised":
                said[name] = numpy * 10 ** rng.uniform(-4, 0)
            case _:
                said[name] = _seconds(rng)
    if kind == "swapped with numpy":
        # What is remembered of NumPy is true of a device, and the other way round.
        fastest = min(real, key=lambda name: real[name])
        numpy, real[fastest], said[fastest] = real[fastest], numpy, real[fastest]
    return Lie(
        kind,
        numpy,
        real,
        said,
        {name: rng.choice((0.0, _seconds(rng) / 10)) for name in names},
        {name: rng.choice((0.0, _seconds(rng))) for name in names},
        rng.choice((0, rng.randint(1, 1000))),
        rng.randint(1, 60),
    )


def _seconds(rng: random.Random) -> float:
    """From a tenth of a millisecond to ten seconds, as often short as long."""
    return float(10 ** rng.uniform(-4, 1))


class Report(NamedTuple):
    lies: Counter[str]
    #: Lies that were believed enough to open a device.
    believed: int
    #: The largest share of its worst case that a lie came to: nearly all of it where one call on a device that was
    #: praised takes far longer than all calls on NumPy.
    worst: float
    #: Lies that cost more than they may, or opened a device twice.
    broken: list[Lie]


def run(count: int, seed: int) -> Report:
    rng = random.Random(seed)
    lies: Counter[str] = Counter()
    believed, worst, broken = 0, 0.0, []
    for _ in range(count):
        lie = random_lie(rng)
        lies[lie.kind] += 1
        cost = cost_of(lie)
        believed += bool(cost.opened)
        share = cost.seconds / worst_case(lie, cost.opened)
        worst = max(worst, share)
        if share > 1 + 1e-9 or cost.openings > len(cost.opened):
            broken.append(lie)
    return Report(lies, believed, worst, broken)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    begin = time.perf_counter()
    report = run(arguments.count, arguments.seed)
    lines = [
        f"{sum(report.lies.values())} lies in {time.perf_counter() - begin:.0f} s, of which {report.believed} opened a "
        "device",
        *(f"  {kind}: {number}" for kind, number in sorted(report.lies.items())),
        f"  the worst came to {100 * report.worst:.0f} % of its worst case",
        f"  beyond their worst case, or a device opened twice: {len(report.broken)}",
        *(f"    {each}" for each in report.broken[:10]),
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if report.broken else 0


if __name__ == "__main__":
    sys.exit(main())
