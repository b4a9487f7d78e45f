"""Simulated fleets: `python -m benchmarks.simulation [--what NAMES] [--quick] [--json] [--check]`.

measured: 16 devices, beside what 16 lanes of Ray actors were measured to do. decisions: what our own code takes for a
task, from ten devices to ten thousand. large: ten thousand devices and a million tasks. driver: where one driver is the
bound, and what moves that; only reported. `--quick` takes a fiftieth of the tasks, to see that it works.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from anygpu.fleet.simulation.scenario import Arrivals, Scenario
from anygpu.fleet.simulation.simulate import SimulationReport, simulate
from benchmarks.report import Figure, options_parser, publish

#: What `--quick` takes of all counts.
QUICK = 0.02

#: Seconds of a launch, and the share of the time that 16 devices were busy: one driver, a blocking lane for each, Ray
#: 2.60 on two cores. The simulation may be wrong by so many percent of that.
MEASURED = {0.02: 0.78, 0.1: 0.97}
WRONG = 15.0

#: Devices of the fleets whose decisions are compared, and how much more a decision may take than among the fewest.
FLEETS = (10, 100, 1_000, 10_000)
GROWTH = 1.2
#: Rounds of which the least counts: what else runs on the machine only ever adds.
ROUNDS = 3

#: Seconds for a million tasks on ten thousand devices.
LARGE_SECONDS = 120.0

CLOSED = Arrivals(pattern="closed")


def measured(share: float) -> list[Figure]:
    figures = []
    for seconds, busy in MEASURED.items():
        report = simulate(
            Scenario(
                devices=16,
                tasks=max(200, round(160 / seconds * share)),
                task_seconds=seconds,
                noise=0.0,
                batching=False,
                kinds=1,
                arrivals=CLOSED,
            )
        )
        name = f"16 devices, launches of {1e3 * seconds:g} ms"
        figures += [
            Figure(name=f"{name}: busy", value=100 * report.devices_busy, unit="%"),
            Figure(name=f"{name}: off by", value=100 * abs(report.devices_busy / busy - 1), unit="%", bound=WRONG),
        ]
    return figures


def decisions(share: float) -> list[Figure]:
    """Processor time of decisions. The driver costs nothing in these scenarios, so that devices are what is busy."""
    tasks = max(2_000, round(10_000 * share))
    least: dict[int, float] = {}
    for _ in range(ROUNDS):
        for devices in FLEETS:
            found = simulate(_flat(devices, tasks)).decision_seconds
            least[devices] = min(found, least.get(devices, found))
    figures = [
        Figure(name=f"a decision, {devices:,} devices", value=1e6 * seconds, unit="µs")
        for devices, seconds in least.items()
    ]
    growth = max(least.values()) / least[FLEETS[0]]
    return [*figures, Figure(name="the dearest by that of 10 devices", value=growth, unit="×", bound=GROWTH)]


def _flat(devices: int, tasks: int) -> Scenario:
    return Scenario(
        devices=devices,
        tasks=tasks,
        batching=False,
        driver_launch=0.0,
        driver_task=0.0,
        arrivals=Arrivals(load=0.9),
    )


def large(share: float) -> list[Figure]:
    tasks = round(1_000_000 * share)
    report = simulate(
        Scenario(
            devices=10_000,
            tasks=tasks,
            launch_seconds=0.02,
            task_seconds=0.02,
            driver_launch=0.0,
            driver_task=0.0,
            queue=1_000_000,
            arrivals=Arrivals(load=8.0),
        )
    )
    name = f"10,000 devices, {tasks:,} tasks"
    return [
        Figure(name=f"{name}: to simulate", value=report.real_seconds, unit="s", bound=LARGE_SECONDS),
        Figure(name=f"{name}: of the processor", value=report.processor_seconds, unit="s"),
        Figure(name=f"{name}: to prepare", value=report.preparing_seconds, unit="s"),
        Figure(name=f"{name}: in a launch", value=report.tasks_per_launch, unit="tasks"),
        Figure(name=f"{name}: lost or twice", value=report.lost_tasks + report.results_twice, unit="", bound=0.5),
        *_outcome(name, report),
    ]


def driver(share: float) -> list[Figure]:
    tasks = max(1_000, round(20_000 * share))
    figures = []
    for devices, seconds, batching, drivers in (
        (16, 0.02, False, 1),
        (64, 0.02, False, 1),
        (256, 0.02, False, 1),
        (256, 0.1, False, 1),
        (256, 0.02, False, 8),
        (256, 0.02, True, 1),
        (1_000, 0.1, True, 1),
    ):
        report = simulate(
            Scenario(
                devices=devices,
                tasks=tasks,
                task_seconds=seconds,
                kinds=1,
                batching=batching,
                drivers=drivers,
                tenants=drivers,
                arrivals=Arrivals(pattern="closed", clients=(16 if batching else 2) * devices),
            )
        )
        together = ", batches" if batching else ""
        by = "" if drivers == 1 else f", {drivers} drivers"
        figures += _outcome(f"{devices:,} devices, {1e3 * seconds:g} ms{together}{by}", report)
    return figures


def _outcome(name: str, report: SimulationReport) -> list[Figure]:
    return [
        Figure(name=f"{name}: throughput", value=report.throughput, unit="/s"),
        Figure(name=f"{name}: devices busy", value=100 * report.devices_busy, unit="%"),
        Figure(name=f"{name}: driver busy", value=100 * report.driver_busy, unit="%"),
    ]


MEASURES: dict[str, Callable[[float], list[Figure]]] = {
    "measured": measured,
    "decisions": decisions,
    "large": large,
    "driver": driver,
}


def main(given: list[str] | None = None) -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--what", default=",".join(MEASURES), help="which of them, separated by commas")
    parser.add_argument("--quick", action="store_true", help="few tasks: only to see that it works")
    options = parser.parse_args(given)
    figures: list[Figure] = []
    for name in options.what.split(","):
        if name not in MEASURES:
            parser.error(f"there is no {name}; there are {', '.join(MEASURES)}")
        found = MEASURES[name](QUICK if options.quick else 1.0)
        figures += found
        if not options.json:
            sys.stderr.write("".join(f"{figure}\n" for figure in found))
            sys.stderr.flush()
    publish(figures, options)


if __name__ == "__main__":
    main()
