"""`anygpu fleet`: examines clusters, writes the files that deploy one, and simulates hypothetical ones."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from anygpu.cli.fleet_simulate import simulate
from anygpu.cli.show import show_finding
from anygpu.errors import InvalidOption

fleet = typer.Typer(
    help="Examine Ray clusters, write the files that deploy one, and simulate larger ones.", no_args_is_help=True
)
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
        console = Console()
        console.print(Text(diagnosis.verdict, style="bold"))
        console.print()
        for finding in diagnosis.findings:
            show_finding(console, finding)
        if not diagnosis.problems:
            console.print(Text("No problems found.", style="green"))
    raise typer.Exit(1 if diagnosis.problems else 0)


@fleet.command()
def template(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="kuberay, compose or systemd.")],
    out: Annotated[Path | None, typer.Option("--out", help="The folder to write; anygpu-KIND by default.")] = None,
    vendor: Annotated[
        list[str] | None, typer.Option("--vendor", help="Whose cards: nvidia, amd, intel or cpu; several if repeated.")
    ] = None,
    gpus: Annotated[int | None, typer.Option("--gpus", help="Cards of one worker; 1 by default.")] = None,
    cpus: Annotated[int | None, typer.Option("--cpus", help="Processors of one worker; 4 by default.")] = None,
    memory: Annotated[int | None, typer.Option("--memory", help="GiB of memory of one worker; 16 by default.")] = None,
    min_workers: Annotated[int | None, typer.Option("--min-workers", help="kuberay: never fewer than 0.")] = None,
    max_workers: Annotated[int | None, typer.Option("--max-workers", help="kuberay: never more than 4.")] = None,
    spot: Annotated[bool, typer.Option("--spot", help="kuberay: also use spot machines.")] = False,
    name: Annotated[str | None, typer.Option("--name", help="The cluster's name; anygpu by default.")] = None,
    namespace: Annotated[str | None, typer.Option("--namespace", help="kuberay: anygpu by default.")] = None,
    image: Annotated[str | None, typer.Option("--image", help="kuberay, compose: the image to build and use.")] = None,
    python: Annotated[str | None, typer.Option("--python", help="kuberay, compose: the Python of images.")] = None,
    function: Annotated[
        str | None, typer.Option("--serve", metavar="MODULE:FUNCTION", help="What the endpoint serves.")
    ] = None,
    head: Annotated[str | None, typer.Option("--head", help="systemd: the head's host name.")] = None,
    port: Annotated[
        int | None, typer.Option("--port", help="systemd: the first of 221 ports; 6379 by default.")
    ] = None,
    network: Annotated[str | None, typer.Option("--network", help="systemd: the nodes' network, 10.0.0.0/24.")] = None,
) -> None:
    """Write commented files that deploy a cluster with a token: for KubeRay, for compose, or units for systemd.

    Tokens are generated, and go into files that only you can read. Existing files are not overwritten.
    """
    from anygpu.fleet.templates.files import FILES, PRIVATE, TemplateOptions, write_files

    if kind not in FILES:
        raise InvalidOption(f"{kind!r} is no kind of template; available: {', '.join(FILES)}.")
    chosen = {
        "vendors": tuple(vendor) if vendor else None,
        "gpus": gpus,
        "cpus": cpus,
        "memory": memory,
        "min_workers": min_workers,
        "max_workers": max_workers,
        "spot": spot,
        "name": name,
        "namespace": namespace,
        "image": image,
        "python": python,
        "function": function,
        "head": head,
        "port": port,
        "network": network,
    }
    given: dict[str, Any] = {option: value for option, value in chosen.items() if value is not None}
    options = TemplateOptions(token=secrets.token_hex(32), tenant_token=secrets.token_hex(32), **given)
    for path in write_files(out or Path(f"anygpu-{kind}"), FILES[kind](options)):
        print(f"{path}{'   (a token: mode 0600, do not commit it)' if path.name in PRIVATE else ''}")
