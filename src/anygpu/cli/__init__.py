"""The command line. No other package prints."""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.status import Status

import anygpu
from anygpu import api
from anygpu.cli.calibrate import calibrate
from anygpu.cli.demo import demo
from anygpu.cli.explain import explain
from anygpu.cli.fleet import fleet
from anygpu.cli.history import history
from anygpu.cli.output import show_diagnosis, show_findings, show_inventory
from anygpu.cli.scripts import advise, profile
from anygpu.cli.serve import serve
from anygpu.cli.top import dashboard, run, top
from anygpu.cli.verify import report, verify
from anygpu.workers.discovery import discover

app = typer.Typer(
    help="Make NumPy functions faster on whatever this machine has, and see where they run and why.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON with a stable, documented schema.")]
Seconds = Annotated[
    float,
    typer.Option(
        "--timeout",
        min=0.5,
        help="Time limit for probing, in seconds. A device that does not respond for 40 % of it counts as hung.",
    ),
]


def devices(
    json: Json = False,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Probe again, verify every dtype that a device claims, and show all its details."),
    ] = False,
    usage: Annotated[
        bool, typer.Option("--usage", help="Show load, memory, temperature, power and processes of each device.")
    ] = False,
    timeout: Seconds = api.PROBE_SECONDS,
) -> None:
    """List every compute device, each verified by a real computation."""
    with _patience("Looking for devices"):
        inventory = discover(deep=deep, timeout=timeout)
    if usage:
        from anygpu.cli.output import show_usage
        from anygpu.hardware.usage.reading import read_twice

        document = read_twice(inventory.devices, 0.5)
        if json:
            _print_json(document.to_json())
        else:
            show_usage(Console(), document)
        return
    if json:
        _print_json(inventory.to_json())
    else:
        show_inventory(Console(), inventory, deep=deep)


def doctor(
    json: Json = False,
    timeout: Seconds = api.PROBE_SECONDS,
    torch: Annotated[
        bool,
        typer.Option("--torch", help="Check PyTorch settings that cost speed on this machine instead."),
    ] = False,
) -> None:
    """Explain why a GPU is not used, and print the command that fixes it.

    Exits with 1 when there is a problem, 0 otherwise.
    """
    if torch:
        _examine_torch(json)
    with _patience("Examining this machine"):
        diagnosis = api.doctor(timeout=timeout)
    if json:
        _print_json(diagnosis.to_json())
    else:
        show_diagnosis(Console(), diagnosis)
    raise typer.Exit(1 if diagnosis.problems else 0)


def _examine_torch(json: bool) -> NoReturn:
    from anygpu.pytorch.torch_doctor import doctor as examine

    with _patience("Measuring torch for two seconds"):
        diagnosis = examine()
    if json:
        _print_json(diagnosis.to_json())
    else:
        show_findings(Console(), diagnosis.verdict, diagnosis.findings)
    raise typer.Exit(1 if diagnosis.problems else 0)


#: Headings of the list of commands. They and the commands are shown in the order in which they are added.
START, LOOK, DEVICES, ADVANCED = "Start here", "Look closer", "Devices", "Advanced"
# What follows a script is the script's.
_SCRIPT = {"ignore_unknown_options": True, "allow_interspersed_args": False}

app.command(rich_help_panel=START)(demo)
app.command(rich_help_panel=START)(doctor)
# Negative numbers are arguments and not options.
app.command(rich_help_panel=START, context_settings={"ignore_unknown_options": True})(explain)
app.command(rich_help_panel=START, context_settings={**_SCRIPT, "allow_extra_args": True})(advise)
app.command(rich_help_panel=LOOK, context_settings=_SCRIPT)(profile)
app.add_typer(history, name="history", rich_help_panel=LOOK)
app.command(rich_help_panel=LOOK)(report)
app.command(rich_help_panel=DEVICES)(devices)
app.command(rich_help_panel=DEVICES)(calibrate)
app.command(rich_help_panel=DEVICES)(verify)
app.command(rich_help_panel=ADVANCED, context_settings=_SCRIPT)(run)
app.command(rich_help_panel=ADVANCED)(top)
app.command(rich_help_panel=ADVANCED)(dashboard)
app.command(rich_help_panel=ADVANCED)(serve)
app.add_typer(fleet, name="fleet", rich_help_panel=ADVANCED)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"anygpu {anygpu.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    try:
        app(prog_name="anygpu")
    except anygpu.AnyGPUError as error:  # our messages say what to do; a traceback would not help
        sys.exit(f"anygpu: {error}")


def _patience(what: str) -> Status:
    """A spinner on standard error, which keeps piped output clean."""
    return Console(stderr=True).status(f"{what} …")


def _print_json(data: bytes) -> None:
    sys.stdout.write(data.decode() + "\n")
