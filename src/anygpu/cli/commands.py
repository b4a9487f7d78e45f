"""The commands of `anygpu` in the order of `anygpu --help`, and `anygpu doctor`."""

from __future__ import annotations

from typing import Annotated, NoReturn

import typer
from rich.console import Console

import anygpu
from anygpu import api
from anygpu.cli.demo import demo
from anygpu.cli.devices import ProbeSeconds, calibrate, devices
from anygpu.cli.explain import explain
from anygpu.cli.fleet import fleet, serve
from anygpu.cli.history import history
from anygpu.cli.output import Json, print_json, show_diagnosis, show_findings, waiting
from anygpu.cli.scripts import advise, profile
from anygpu.cli.top import dashboard, run, top
from anygpu.cli.verify import report, verify

app = typer.Typer(
    help="Make NumPy functions faster on whatever this machine has, and see where they run and why.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def doctor(
    json: Json = False,
    timeout: ProbeSeconds = api.PROBE_SECONDS,
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
    with waiting("Examining this machine"):
        diagnosis = api.doctor(timeout=timeout)
    if json:
        print_json(diagnosis.to_json())
    else:
        show_diagnosis(Console(), diagnosis)
    raise typer.Exit(1 if diagnosis.problems else 0)


def _examine_torch(json: bool) -> NoReturn:
    from anygpu.pytorch.torch_doctor import doctor as examine

    with waiting("Measuring torch for two seconds"):
        diagnosis = examine()
    if json:
        print_json(diagnosis.to_json())
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
app.command(rich_help_panel=DEVICES)(devices)
app.command(rich_help_panel=DEVICES)(verify)
app.command(rich_help_panel=ADVANCED, context_settings=_SCRIPT)(run)
app.command(rich_help_panel=ADVANCED)(top)
app.command(rich_help_panel=ADVANCED)(dashboard)
app.command(rich_help_panel=ADVANCED)(serve)
app.add_typer(fleet, name="fleet", rich_help_panel=ADVANCED)
app.command(hidden=True)(calibrate)
app.command(hidden=True)(report)


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
