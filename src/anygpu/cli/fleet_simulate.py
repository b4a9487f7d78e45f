"""`anygpu fleet simulate`: what a fleet would do, before there is one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from anygpu.base.units import readable_seconds

if TYPE_CHECKING:
    from anygpu.fleet.simulation.scenario import Pattern
    from anygpu.fleet.simulation.simulate import Quantiles, Report


def simulate(
    devices: Annotated[int, typer.Option(min=1, help="Devices of the fleet, all alike.")] = 16,
    nodes: Annotated[int | None, typer.Option(min=1, help="Machines; eight devices each by default.")] = None,
    drivers: Annotated[int, typer.Option(min=1, help="Processes that submit, each for its own tenants.")] = 1,
    tasks: Annotated[int, typer.Option(min=1, help="Tasks in all.")] = 10_000,
    arrivals: Annotated[
        str, typer.Option(help="When tasks come: constant, poisson, bursts, diurnal or closed.")
    ] = "poisson",
    load: Annotated[
        float, typer.Option(help="Arrival rate, as a share of the devices' capacity without batching.")
    ] = 0.8,
    rate: Annotated[float | None, typer.Option(help="Arrival rate in tasks per second, instead of --load.")] = None,
    burst: Annotated[int, typer.Option(help="With bursts: tasks that come at once.")] = 100,
    period: Annotated[float, typer.Option(help="With diurnal: seconds of a day.")] = 60.0,
    clients: Annotated[
        int | None,
        typer.Option(help="With closed: clients, each of which waits for its result; two for each device by default."),
    ] = None,
    task_seconds: Annotated[float, typer.Option(help="Seconds that a task takes on a device.")] = 0.1,
    launch_seconds: Annotated[float, typer.Option(help="Overhead of a launch on a device, in seconds.")] = 0.0,
    batching: Annotated[bool, typer.Option(help="Batch tasks that wait together.")] = True,
    marginal: Annotated[
        float, typer.Option(help="Time of each further task in a batch, as a share of the first.")
    ] = 0.1,
    noise: Annotated[
        float, typer.Option(help="How much these times vary: the standard deviation of their logarithm.")
    ] = 0.05,
    in_flight: Annotated[int, typer.Option(min=1, help="Launches that a device may have at once.")] = 1,
    kinds: Annotated[int, typer.Option(min=1, help="Functions that tasks call.")] = 4,
    tenants: Annotated[int, typer.Option(min=1, help="Tenants.")] = 1,
    priorities: Annotated[int, typer.Option(min=0, max=10, help="Tasks have priorities from 0 up to this.")] = 0,
    deadline: Annotated[float | None, typer.Option(help="Deadline of a task in seconds; none by default.")] = None,
    queue: Annotated[
        int | None,
        typer.Option(min=1, help="Tasks that may wait at a driver; 1,000 and ten for each device by default."),
    ] = None,
    nbytes: Annotated[int, typer.Option("--bytes", min=0, help="Bytes of a task's arguments.")] = 8192,
    latency: Annotated[float, typer.Option(help="Network latency, one way, in seconds.")] = 2e-4,
    bandwidth: Annotated[float, typer.Option(help="Network bandwidth of a node, in bytes per second.")] = 1.25e9,
    actor_faults: Annotated[float, typer.Option(help="Actors that die, for each device and hour.")] = 0.0,
    node_faults: Annotated[float, typer.Option(help="Nodes that die, for each node and hour.")] = 0.0,
    link_cuts: Annotated[float, typer.Option(help="Links that are cut, for each node and hour.")] = 0.0,
    cut_seconds: Annotated[float, typer.Option(help="Seconds for which a link is cut.")] = 20.0,
    driver_launch: Annotated[float, typer.Option(help="Seconds of the driver's processor for a launch.")] = 1 / 1452,
    driver_task: Annotated[float, typer.Option(help="Seconds of the driver's processor for a task.")] = 6e-5,
    seed: Annotated[int, typer.Option(help="The same seed gives the same figures.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, with the scenario.")] = False,
) -> None:
    """Simulate a hypothetical cluster: throughput, waiting, what is busy, and what breaks first.

    The real queue, chooser and batches run on a simulated clock; devices, network and faults are modelled. All seconds
    are simulated, except those of a decision. It needs neither Ray nor a GPU.
    """
    # Only now: other commands do not need them.
    from anygpu.fleet.simulation.scenario import Arrivals, Faults, Network, Scenario
    from anygpu.fleet.simulation.simulate import simulate as run

    scenario = Scenario(
        devices=devices,
        nodes=nodes,
        drivers=drivers,
        in_flight=in_flight,
        tasks=tasks,
        kinds=kinds,
        tenants=max(tenants, drivers),
        priorities=priorities,
        deadline=deadline,
        queue=queue,
        arrivals=Arrivals(
            pattern=_pattern(arrivals), rate=rate, load=load, burst=burst, period=period, clients=clients
        ),
        launch_seconds=launch_seconds,
        task_seconds=task_seconds,
        marginal=marginal,
        noise=noise,
        batching=batching,
        nbytes=nbytes,
        network=Network(latency=latency, bytes_per_second=bandwidth),
        driver_launch=driver_launch,
        driver_task=driver_task,
        faults=Faults(actors=actor_faults, nodes=node_faults, links=link_cuts, link_cut=cut_seconds),
        seed=seed,
    )
    with Console(stderr=True).status(f"Simulating {tasks:,} tasks on {devices:,} devices …"):
        report = run(scenario)
    if json:
        sys.stdout.write(report.to_json().decode() + "\n")
    else:
        _show(Console(), report)


def _pattern(name: str) -> Pattern:
    from anygpu.fleet.simulation.scenario import PATTERNS

    for pattern in PATTERNS:
        if name == pattern:
            return pattern
    raise typer.BadParameter(f"{name!r} is none of {', '.join(PATTERNS)}.", param_hint="--arrivals")


def _show(console: Console, report: Report) -> None:
    scenario = report.scenario
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(
        "fleet",
        f"{scenario.devices:,} devices on {scenario.node_count:,} nodes, "
        f"{'one driver' if scenario.drivers == 1 else f'{scenario.drivers} drivers'}",
    )
    table.add_row(
        "tasks",
        f"{scenario.tasks:,} in {readable_seconds(report.seconds)}; simulated in "
        f"{readable_seconds(report.real_seconds)}",
    )
    table.add_row("throughput", f"{report.throughput:,.0f} tasks/s, {report.tasks_per_launch:.1f} in a launch")
    table.add_row("waiting", _quantiles(report.waiting))
    table.add_row("latency", _quantiles(report.latency))
    table.add_row(
        "busy",
        f"devices {report.devices_busy:.1%}, driver {report.driver_busy:.1%}, busiest link {report.link_busy:.1%}",
    )
    table.add_row(
        "a decision",
        f"{readable_seconds(report.decision_seconds)} of our own code for a task, measured here",
    )
    failed = ", ".join(f"{count:,} {name}" for name, count in report.failed.items()) or "none"
    table.add_row(
        "faults",
        f"{report.faults:,} devices gone, {report.lost_launches:,} launches lost, {report.repeated:,} tasks run again; "
        f"{report.lost_tasks} tasks lost, {report.results_twice} results twice",
    )
    table.add_row("errors", f"{failed}; {report.refused:,} refused")
    table.add_row("breaks first", report.breaks_first)
    console.print(table)


def _quantiles(found: Quantiles) -> str:
    return ", ".join(
        f"p{share} {readable_seconds(seconds)}"
        for share, seconds in ((50, found.p50), (95, found.p95), (99, found.p99))
    )
