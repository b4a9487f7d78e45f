"""`anygpu serve` and `anygpu fleet`: functions over HTTP; and clusters, examined and simulated.

`serve` is first, with the names and files that it takes. Then `simulate` and its report, then `doctor`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from anygpu.base.units import readable_seconds
from anygpu.cli.output import find_function, grid, show_findings
from anygpu.errors import InvalidOption

if TYPE_CHECKING:
    from anygpu.fleet.simulation.scenario import ArrivalPattern, Scenario
    from anygpu.fleet.simulation.simulate import SimulationReport, TimeQuantiles


_EXAMPLE = "anygpu serve mymodule:score --port 8000"
#: The part before "=": a name, which is no path and no module.
_NAMED = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)=(?P<target>.+)")


def serve(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]MODULE:FUNCTION",
            help="A function, whose module may be in the current folder; or the file of a saved program.",
        ),
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="TCP port; 0 picks a free one.")] = 8000,
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    tokens: Annotated[
        Path | None, typer.Option(metavar="FILE", help='Lines "tenant token": who may use the models.')
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Accept every client that reaches the address.")] = False,
    latency: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Maximum predicted time of a batch; 0.05 by default.")
    ] = None,
    queue: Annotated[int | None, typer.Option(min=1, help="Maximum length of the queue; 1000 by default.")] = None,
    deadline: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Time limit of a request; 60 by default.")
    ] = None,
    max_body: Annotated[str, typer.Option(metavar="BYTES", help="Maximum size of a request body.")] = "64MB",
    notice: Annotated[
        float, typer.Option(metavar="SECONDS", help="From SIGTERM until new connections are refused.")
    ] = 1.0,
    patience: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time for open requests to finish after that.")
    ] = 30.0,
) -> None:
    """Serve functions by the Open Inference Protocol, which KServe and Triton speak, until SIGTERM or Ctrl-C."""
    from anygpu.runtime.serving.server import Server

    try:
        server = Server(
            dict(_named(each) for each in models),
            port=port,
            host=host,
            tokens=tokens,
            insecure=insecure,
            latency=latency,
            queue=queue,
            deadline=deadline,
            max_body=max_body,
            notice=notice,
            patience=patience,
        )
    except InvalidOption as error:
        raise typer.BadParameter(_as_typed(str(error))) from None
    console = Console()

    def say(line: str) -> None:
        console.print(Text(line), soft_wrap=True)

    server.run(lambda: say(f"{server.url}/v2/models has {', '.join(server.models)}. Ctrl-C ends it."))
    if not server.finished:
        say("Stopped, and requests that were open got no answer.")
        raise typer.Exit(1)
    say("Stopped: every open request was answered.")


def _named(text: str) -> tuple[str, Any]:
    """The name and the function, or the file, of one argument of `serve`. Raises `typer.BadParameter`.

    Without `NAME=` a function has its own name, and a program that of its file.
    """
    named = _NAMED.fullmatch(text)
    name, target = (named["name"], named["target"]) if named is not None else (None, text)
    if ":" not in target:
        if not Path(target).is_file():
            why = f"{target!r} is neither a function, as module:function, nor the file of a saved program"
            raise typer.BadParameter(f"{why}. For example: {_EXAMPLE}", param_hint="MODULE:FUNCTION")
        return name or Path(target).stem, Path(target)
    found = find_function(target, _EXAMPLE)
    return name or target.rpartition(":")[2].rpartition(".")[2], found


def _as_typed(message: str) -> str:
    """The names of arguments as the command line has them."""
    return re.sub(
        r"\b(tokens|port|max_body|insecure)=(True)?", lambda found: f"--{found[1].replace('_', '-')}", message
    )


def _option(text: str, **options: Any) -> Any:
    """An option of `simulate`, whose name comes from its parameter."""
    return typer.Option(help=text, **options)


def simulate(
    devices: Annotated[int, _option("Devices of the fleet, all alike.", min=1)] = 16,
    nodes: Annotated[int | None, _option("Machines; eight devices each by default.", min=1)] = None,
    drivers: Annotated[int, _option("Processes that submit, each for its own tenants.", min=1)] = 1,
    tasks: Annotated[int, _option("Tasks in all.", min=1)] = 10_000,
    arrivals: Annotated[str, _option("When tasks come: constant, poisson, bursts, diurnal or closed.")] = "poisson",
    load: Annotated[float, _option("Arrival rate, as a share of the devices' capacity without batching.")] = 0.8,
    rate: Annotated[float | None, _option("Arrival rate in tasks per second, instead of --load.")] = None,
    burst: Annotated[int, _option("With bursts: tasks that come at once.")] = 100,
    period: Annotated[float, _option("With diurnal: seconds of a day.")] = 60.0,
    clients: Annotated[
        int | None, _option("With closed: clients, each of which waits for its result; two for each device by default.")
    ] = None,
    task_seconds: Annotated[float, _option("Seconds that a task takes on a device.")] = 0.1,
    launch_seconds: Annotated[float, _option("Overhead of a launch on a device, in seconds.")] = 0.0,
    batching: Annotated[bool, _option("Batch tasks that wait together.")] = True,
    marginal: Annotated[float, _option("Time of each further task in a batch, as a share of the first.")] = 0.1,
    noise: Annotated[float, _option("How much these times vary: the standard deviation of their logarithm.")] = 0.05,
    in_flight: Annotated[int, _option("Launches that a device may have at once.", min=1)] = 1,
    kinds: Annotated[int, _option("Functions that tasks call.", min=1)] = 4,
    tenants: Annotated[int, _option("Tenants.", min=1)] = 1,
    priorities: Annotated[int, _option("Tasks have priorities from 0 up to this.", min=0, max=10)] = 0,
    deadline: Annotated[float | None, _option("Deadline of a task in seconds; none by default.")] = None,
    queue: Annotated[
        int | None, _option("Tasks that may wait at a driver; 1,000 and ten for each device by default.", min=1)
    ] = None,
    nbytes: Annotated[int, typer.Option("--bytes", min=0, help="Bytes of a task's arguments.")] = 8192,
    latency: Annotated[float, _option("Network latency, one way, in seconds.")] = 2e-4,
    bandwidth: Annotated[float, _option("Network bandwidth of a node, in bytes per second.")] = 1.25e9,
    actor_faults: Annotated[float, _option("Actors that die, for each device and hour.")] = 0.0,
    node_faults: Annotated[float, _option("Nodes that die, for each node and hour.")] = 0.0,
    link_cuts: Annotated[float, _option("Links that are cut, for each node and hour.")] = 0.0,
    cut_seconds: Annotated[float, _option("Seconds for which a link is cut.")] = 20.0,
    driver_launch: Annotated[float, _option("Seconds of the driver's processor for a launch.")] = 1 / 1452,
    driver_task: Annotated[float, _option("Seconds of the driver's processor for a task.")] = 6e-5,
    seed: Annotated[int, _option("The same seed gives the same figures.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, with the scenario.")] = False,
) -> None:
    """Simulate a hypothetical cluster: throughput, waiting, what is busy, and what breaks first.

    The real queue, chooser and batches run on a simulated clock; devices, network and faults are modelled. All seconds
    are simulated, except those of a decision. It needs neither Ray nor a GPU.
    """
    scenario = _scenario(dict(locals()))
    # Only now: other commands do not need it.
    from anygpu.fleet.simulation.simulate import simulate as run

    with Console(stderr=True).status(f"Simulating {tasks:,} tasks on {devices:,} devices …"):
        report = run(scenario)
    if json:
        sys.stdout.write(report.to_json().decode() + "\n")
    else:
        _show(Console(), report)


def _scenario(options: dict[str, Any]) -> Scenario:
    """The scenario of the command's options, by their names."""
    from anygpu.fleet.simulation.scenario import Arrivals, Faults, Scenario, SimulatedNetwork

    def pick(*names: str) -> dict[str, Any]:
        return {name: options[name] for name in names}

    return Scenario(
        **pick("devices", "nodes", "drivers", "in_flight", "tasks", "kinds", "priorities", "deadline", "queue", "seed"),
        **pick("launch_seconds", "task_seconds", "marginal", "noise", "batching", "nbytes"),
        **pick("driver_launch", "driver_task"),
        tenants=max(options["tenants"], options["drivers"]),
        arrivals=Arrivals(pattern=_pattern(options["arrivals"]), **pick("rate", "load", "burst", "period", "clients")),
        network=SimulatedNetwork(latency=options["latency"], bytes_per_second=options["bandwidth"]),
        faults=Faults(
            actors=options["actor_faults"],
            nodes=options["node_faults"],
            links=options["link_cuts"],
            link_cut=options["cut_seconds"],
        ),
    )


def _pattern(name: str) -> ArrivalPattern:
    """The pattern of arrivals of that name. Raises `typer.BadParameter`."""
    from anygpu.fleet.simulation.scenario import PATTERNS

    for pattern in PATTERNS:
        if name == pattern:
            return pattern
    raise typer.BadParameter(f"{name!r} is none of {', '.join(PATTERNS)}.", param_hint="--arrivals")


def _show(console: Console, report: SimulationReport) -> None:
    """Print the report of a simulation as a table."""
    scenario = report.scenario
    table = grid(2, style="dim")
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


def _quantiles(found: TimeQuantiles) -> str:
    """Three quantiles of a time on one line."""
    return ", ".join(
        f"p{share} {readable_seconds(seconds)}"
        for share, seconds in ((50, found.p50), (95, found.p95), (99, found.p99))
    )


fleet = typer.Typer(help="Examine Ray clusters, and simulate larger ones.", no_args_is_help=True)
fleet.command()(simulate)


@fleet.command()
def doctor(
    address: Annotated[
        str | None,
        typer.Option("--address", help="The cluster's head, host:port; RAY_ADDRESS or this machine's by default."),
    ] = None,
    dashboard: Annotated[
        str | None, typer.Option("--dashboard", help="The dashboard's URL; port 8265 of the head by default.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON with a stable, documented schema.")] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1.0, help="Time limit for inspecting nodes, in seconds.")
    ] = 60.0,
) -> None:
    """Find out what is wrong with a cluster, and print the command that fixes it.

    It looks at versions, tokens, TLS, open ports, file modes, clocks and shared memory, here and on every node. Exits
    with 1 when there is a problem, 0 otherwise.
    """
    from anygpu.fleet.doctor import examine
    from anygpu.fleet.security import find_address

    wanted = address or find_address()
    with Console(stderr=True).status(f"Examining {wanted} …"):
        diagnosis = examine(wanted, dashboard=dashboard, timeout=timeout)
    if json:
        sys.stdout.write(diagnosis.to_json().decode() + "\n")
    else:
        show_findings(Console(), diagnosis.verdict, diagnosis.findings)
    raise typer.Exit(1 if diagnosis.problems else 0)
