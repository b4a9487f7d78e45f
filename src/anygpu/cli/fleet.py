"""`anygpu fleet`: examines clusters, and writes the files that deploy one."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.console import Console
from rich.text import Text

from anygpu.cli.show import show_finding
from anygpu.errors import InvalidOption
from anygpu.fleet.templates.files import FILES, PRIVATE, Kind, write_files
from anygpu.fleet.templates.options import VENDORS, TemplateOptions, Vendor

fleet = typer.Typer(help="Examine Ray clusters, and write the files that deploy one.", no_args_is_help=True)


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
    timeout: Annotated[float, typer.Option("--timeout", min=1.0, help="Limit on looking at nodes, in seconds.")] = 60.0,
) -> None:
    """Find out what is wrong with a cluster, and print the command that fixes it.

    It looks at versions, tokens, TLS, open ports, file modes, clocks and shared memory, here and on every node. Exits
    with 1 when there is a problem, 0 otherwise.
    """
    from anygpu.fleet.access import find_address
    from anygpu.fleet.doctor import examine

    wanted = address or find_address()
    if wanted is None:
        raise InvalidOption("no cluster was started on this machine. Pass --address HOST:PORT, or set RAY_ADDRESS.")
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


_DEFAULTS = TemplateOptions(token="0" * 64)


@fleet.command()
def template(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=" or ".join(FILES) + ".")],
    out: Annotated[Path | None, typer.Option("--out", help="The folder to write; anygpu-KIND by default.")] = None,
    vendor: Annotated[
        list[str] | None, typer.Option("--vendor", help=f"Whose cards: {', '.join(VENDORS)}; several if repeated.")
    ] = None,
    gpus: Annotated[int, typer.Option("--gpus", help="Cards of one worker.")] = _DEFAULTS.gpus,
    cpus: Annotated[int, typer.Option("--cpus", help="Processors of one worker.")] = _DEFAULTS.cpus,
    memory: Annotated[int, typer.Option("--memory", help="GiB of memory of one worker.")] = _DEFAULTS.memory,
    min_workers: Annotated[int, typer.Option("--min-workers", help="kuberay: never fewer.")] = _DEFAULTS.min_workers,
    max_workers: Annotated[int, typer.Option("--max-workers", help="kuberay: never more.")] = _DEFAULTS.max_workers,
    spot: Annotated[bool, typer.Option("--spot", help="kuberay: also use spot machines.")] = False,
    name: Annotated[str, typer.Option("--name", help="The name of the cluster.")] = _DEFAULTS.name,
    namespace: Annotated[str, typer.Option("--namespace", help="kuberay: where it goes.")] = _DEFAULTS.namespace,
    image: Annotated[str, typer.Option("--image", help="kuberay, compose: the image.")] = _DEFAULTS.image,
    python: Annotated[str, typer.Option("--python", help="kuberay, compose: the images' Python.")] = _DEFAULTS.python,
    serve: Annotated[
        str, typer.Option("--serve", metavar="MODULE:FUNCTION", help="What the endpoint serves.")
    ] = _DEFAULTS.function,
    head: Annotated[str, typer.Option("--head", help="systemd: the head's host name.")] = _DEFAULTS.head,
    port: Annotated[int, typer.Option("--port", help="systemd: the first of 221 ports.")] = _DEFAULTS.port,
    network: Annotated[str, typer.Option("--network", help="systemd: the nodes' network.")] = _DEFAULTS.network,
) -> None:
    """Write commented files that deploy a cluster with a token: for KubeRay, for compose, or units for systemd.

    The token is generated, and goes into one file that only you can read. Existing files are not overwritten.
    """
    if kind not in FILES:
        raise InvalidOption(f"{kind!r} is no kind of template; there are {', '.join(FILES)}.")
    options = TemplateOptions(
        token=secrets.token_hex(32),
        name=name,
        namespace=namespace,
        image=image,
        # Whether they are vendors is checked there.
        vendors=cast("tuple[Vendor, ...]", tuple(vendor or _DEFAULTS.vendors)),
        gpus=gpus,
        cpus=cpus,
        memory=memory,
        min_workers=min_workers,
        max_workers=max_workers,
        spot=spot,
        function=serve,
        head=head,
        port=port,
        network=network,
        python=python,
    )
    folder = out or Path(f"anygpu-{kind}")
    for path in write_files(folder, FILES[cast(Kind, kind)](options)):
        print(f"{path}{'   (the token: mode 0600, do not commit it)' if path.name in PRIVATE else ''}")
