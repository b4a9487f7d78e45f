"""Whether work survives its devices: `python -m benchmarks.faults [--what losses,memory,kills,poison,hangs] [--busy]`.

Real faults, injected into the workers of a `Runtime` (`tests.support.faults`): devices are destroyed, memory is
limited by RLIMIT_AS or by a budget, processes are killed, kernels never end. Full counts are 1,000 losses (half on
lavapipe, half on SwiftShader), 1,000 lacks of memory, 200 kills over 10,000 tasks, one poisonous task, and 100 endless
kernels on each of SwiftShader and PoCL; `--count N` takes N of each instead. Bytes left are what the engine in the
worker counts for arrays and temporaries after the last task, without what its pool keeps. With `--busy` two processes
compute beside it all the time; with `--check` a bound that is missed is an error.

Before each hang, two seconds are for the tasks of other devices while nothing hangs; `--calm` shortens that. On a
machine that is busy with other things, `--look` gives devices more seconds to be found before anything begins; of the
time after a deadline, only that counts in which this process could run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import msgspec
import numpy as np

from anygpu.workers.device_arrays import registry
from benchmarks.faults_scenarios import Hung, Tally, hangs, is_poison, kills, losses, poison, shortages
from benchmarks.load import busy_processes
from benchmarks.report import Figure, options_parser, publish
from tests.support.fault_schedule import Kind
from tests.support.faults import SWIFTSHADER


class Never(Figure, frozen=True, kw_only=True):
    """A count of what must not happen."""

    unit: str = ""
    bound: float | None = 0.0

    @property
    def share(self) -> float:
        return 2.0 if self.value else 0.0


#: Of each kind, when nobody says how many.
LOSSES, SHORTAGES, KILLS, TASKS, HANGS = 1000, 1000, 200, 10_000, 100
#: Seconds without a hang between two.
CALM = 2.0


def tallied(name: str, tally: Tally, expected: int, *, replaced: bool = True) -> list[Figure]:
    """The figures of many tasks. Faults that did not happen count against it."""
    figures = [
        Figure(name=f"{name}: events that happened", value=tally.events, unit=""),
        Never(name=f"{name}: events that did not happen", value=max(0, expected - tally.events)),
        Figure(name=f"{name}: tasks", value=tally.tasks, unit=""),
        Never(name=f"{name}: tasks lost", value=tally.lost),
        Never(name=f"{name}: wrong results", value=tally.wrong),
        Never(name=f"{name}: not delivered exactly once", value=tally.not_once),
        Never(name=f"{name}: bytes left on the device", value=tally.bytes_left),
    ]
    figures += [Never(name=f"{name}: {what} left", value=count) for what, count in tally.left.items()]
    figures += [Figure(name=f"{name}: ended by {error}", value=n, unit="") for error, n in tally.errors.items()]
    if tally.at_submit:
        figures.append(Figure(name=f"{name}: of these between finish and submit", value=tally.at_submit, unit=""))
    if replaced:
        figures += [
            Figure(name=f"{name}: until replaced, median", value=tally.replaced_by(0.5), unit="s"),
            Figure(name=f"{name}: until replaced, 95 %", value=tally.replaced_by(0.95), unit="s", bound=2.0),
        ]
    return figures


def hung_figures(name: str, hung: Hung, expected: int) -> list[Figure]:
    figures = [
        Figure(name=f"{name}: endless kernels", value=hung.hangs, unit=""),
        Never(name=f"{name}: that did not happen", value=max(0, expected - hung.hangs)),
        Never(name=f"{name}: no typed timeout", value=sum(hung.untyped.values())),
        Figure(name=f"{name}: after the deadline, median", value=float(np.median(hung.late)), unit="s"),
        Figure(name=f"{name}: after the deadline, at most", value=max(hung.late), unit="s"),
        Figure(name=f"{name}: the same, if not stopped", value=max(hung.late_running), unit="s", bound=1.0),
        Never(name=f"{name}: wrong results elsewhere", value=hung.wrong),
    ]
    for device in hung.calm:
        meanwhile = f"{name}: p99 of {device} meanwhile, of calm"
        figures.append(Figure(name=meanwhile, value=hung.slower(device), unit="×", bound=2.0))
    return figures


def measure_losses(count: int | None) -> list[Figure]:
    total = LOSSES if count is None else count
    half = -(-total // 2)
    figures = tallied("lost, lavapipe", losses(half, seed=1), half)
    return figures + tallied("lost, SwiftShader", losses(half, drivers=SWIFTSHADER, seed=2), half)


def measure_memory(count: int | None) -> list[Figure]:
    half = -(-(SHORTAGES if count is None else count) // 2)
    limited = shortages(half, Kind.NO_ROOM, seed=3)
    budget = shortages(half, Kind.OVER_BUDGET, seed=4)
    return [
        *tallied("RLIMIT_AS, lavapipe", limited, half, replaced=False),
        *tallied("budget, lavapipe", budget, half, replaced=False),
    ]


def measure_kills(count: int | None) -> list[Figure]:
    total = KILLS if count is None else count
    tasks = TASKS if count is None else max(100, total * 50)
    return tallied("SIGKILL, PoCL", kills(total, tasks, seed=5), total)


def measure_poison(count: int | None) -> list[Figure]:
    poisoned = poison(1000 if count is None else 20 * count)
    return [
        Figure(name="poison: workers killed by the task", value=poisoned.workers_killed, unit="", bound=3),
        Never(name="poison: not named as such", value=float(not is_poison(poisoned.error))),
        Figure(name="poison: tasks beside it", value=poisoned.others.tasks, unit=""),
        Never(name="poison: of these lost or wrong", value=poisoned.others.lost + poisoned.others.wrong),
    ]


def measure_hangs(count: int | None, calm: float = CALM) -> list[Figure]:
    total = HANGS if count is None else count
    on_swiftshader = hangs(total, engine="webgpu", drivers=SWIFTSHADER, others=("opencl",), each=calm)
    on_pocl = hangs(total, engine="opencl", others=("webgpu",), each=calm)
    return [*hung_figures("hung, SwiftShader", on_swiftshader, total), *hung_figures("hung, PoCL", on_pocl, total)]


MEASURES: dict[str, Callable[[int | None], list[Figure]]] = {
    "losses": measure_losses,
    "memory": measure_memory,
    "kills": measure_kills,
    "poison": measure_poison,
    "hangs": measure_hangs,
}


def measured_apart(name: str, count: int | None, *more: str) -> list[Figure]:
    """Measured in a process of its own, which is the caller: whether it lived is one of the figures."""
    command = [sys.executable, "-m", "benchmarks.faults", "--what", name, "--json", "--here", *more]
    if count is not None:
        command += ["--count", str(count)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    found = msgspec.json.decode(done.stdout, type=_Published).figures if done.returncode == 0 else []
    # JSON does not tell the two kinds of figures apart.
    figures = [Never(name=each.name, value=each.value) if each.bound == 0 else each for each in found]
    return [*figures, Never(name=f"{name}: callers that died", value=float(done.returncode != 0))]


class _Published(msgspec.Struct):
    figures: list[Figure]


def main() -> None:
    parser: argparse.ArgumentParser = options_parser(__doc__)
    parser.add_argument("--what", default=",".join(MEASURES), help="which of them, separated by commas")
    parser.add_argument("--count", type=int, help="how many of each, instead of the full counts")
    parser.add_argument("--busy", action="store_true", help="beside two processes that compute all the time")
    parser.add_argument("--here", action="store_true", help="in this process, and not in one of its own for each")
    parser.add_argument("--calm", type=float, default=CALM, help="seconds without a hang between two")
    parser.add_argument("--look", type=float, default=registry.LOOK_SECONDS, help="seconds to find the devices in")
    options = parser.parse_args()
    registry.LOOK_SECONDS = options.look
    measures: dict[str, Callable[[int | None], list[Figure]]] = {
        **MEASURES,
        "hangs": partial(measure_hangs, calm=options.calm),
    }
    more = ("--calm", str(options.calm), "--look", str(options.look))
    names = options.what.split(",")
    for name in names:
        if name not in MEASURES:
            parser.error(f"there is no {name}; there are {', '.join(MEASURES)}")
    figures: list[Figure] = []
    with busy_processes(2) if options.busy else nullcontext():
        for name in names:
            found = measures[name](options.count) if options.here else measured_apart(name, options.count, *more)
            figures += found
            if not options.here:
                # As they come: all of it takes the better part of an hour.
                sys.stderr.write("".join(f"{figure}\n" for figure in found))
    publish(figures, options)


if __name__ == "__main__":
    main()
