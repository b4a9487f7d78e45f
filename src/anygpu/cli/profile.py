"""`anygpu profile`: where the time of a script goes."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from anygpu.base.printable import printable
from anygpu.base.tables import pick
from anygpu.base.units import readable_seconds
from anygpu.cli.output_files import check_output, write_output
from anygpu.cli.show import PLAIN, show_table
from anygpu.observe.profile_html import FUNCTIONS, OPERATIONS, line_columns, summary, to_html
from anygpu.observe.profile_records import Profile, by_device
from anygpu.observe.scalene import joined, run_scalene, version

#: Rows of a table on the screen, and the part of the whole below which a row is left out.
_MOST, _LEAST = 15, 0.005


def profile(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="The script; what follows are its own arguments.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[ARGUMENT]…")] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write one HTML file.")] = None,
    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write JSON, as documented.")] = None,
    scalene: Annotated[
        bool, typer.Option("--scalene", help="Run the script again under Scalene, and show its CPU and memory too.")
    ] = False,
) -> None:
    """Run a script as `python SCRIPT` does, and show where its time went: by line, function, device and operation.

    Its output is its own; the profile comes at the end, on standard error. The exit status is the script's.
    """
    given = arguments or []
    if not Path(script).is_file():
        raise typer.BadParameter(f"there is no file {script!r} in {Path.cwd()}", param_hint="SCRIPT")
    check_output(html, [script, *given], "--html")
    check_output(json, [script, *given], "--json")
    if html is not None and json is not None and html.absolute() == json.absolute():
        raise typer.BadParameter("--html and --json have the same name", param_hint="--json")
    name = f"Scalene {version()}" if scalene else ""
    status, found = _run(script, given)
    console = Console(stderr=True)
    if found is None:
        console.print(Text(f"There is no profile: {script} was ended with status {status} before it could be written."))
        raise typer.Exit(status)
    if scalene:
        with console.status("Running it again under Scalene …"):
            found = joined(found, run_scalene(script, given), name)
    show_profile(console, found)
    if html is not None:
        write_output(html, to_html(found).encode())
        console.print(Text(f"Written: {html}"), soft_wrap=True)
    if json is not None:
        write_output(json, found.to_json())
        console.print(Text(f"Written: {json}"), soft_wrap=True)
    raise typer.Exit(status)


def _run(script: str, arguments: list[str]) -> tuple[int, Profile | None]:
    """The exit status of the script, and its profile if it lived to leave one."""
    with tempfile.TemporaryDirectory(prefix="anygpu-profile-") as folder:
        out = Path(folder) / "profile.json"
        flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        command = [sys.executable, *flags, "-m", "anygpu.observe.script", str(out), script, *arguments]
        # An interrupt is the script's: it decides what becomes of it.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            status = subprocess.run(command, check=False, preexec_fn=_take_interrupts).returncode
        finally:
            signal.signal(signal.SIGINT, before)
        try:
            return _shell_status(status), msgspec.json.decode(out.read_bytes(), type=Profile)
        except (OSError, msgspec.MsgspecError):
            return _shell_status(status), None


def _take_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _shell_status(status: int) -> int:
    return 128 - status if status < 0 else status


def show_profile(console: Console, profile: Profile) -> None:
    console.print()
    console.print(Text(printable(" ".join((profile.script, *profile.arguments))), style="bold"))
    console.print(Text(summary(profile)))
    _show_lines(console, profile)
    _show_functions(console, profile)
    _show_steps(console, profile)
    _show_operations(console, profile)
    if profile.samples < 100:
        said = f"Only {profile.samples} samples were taken: what is not a call is known roughly. Run it for longer."
        console.print(Text(said, style="yellow"))


def _show_lines(console: Console, profile: Profile) -> None:
    least = _LEAST * profile.seconds
    shown = [
        line
        for line in profile.lines
        if line.seconds >= least or line.calls or (line.scalene and line.scalene.percent >= 200 * _LEAST)
    ][:_MOST]
    known = line_columns(profile)
    extra = ("Scalene: CPU", "peak memory") if profile.scalene is not None else ()
    show_table(console, pick(known, "seconds", "%", "calls", *extra, "line", "code"), shown, PLAIN)
    hidden = len(profile.lines) - len(shown)
    if hidden > 0:
        console.print(Text(f"and {hidden:,} more lines, in --html and --json", style="dim"))


def _show_functions(console: Console, profile: Profile) -> None:
    if not profile.functions:
        return
    titles = ("seconds", "calls", "moved", "function", "device", "most of it in")
    show_table(console, pick(FUNCTIONS, *titles), profile.functions[:_MOST], PLAIN)
    whole = sum(profile.phases.values())
    phases = [f"{name} {readable_seconds(took)}" for name, took in profile.phases.items() if took > _LEAST * whole]
    devices = [f"{printable(each.device)} {readable_seconds(each.seconds)}" for each in by_device(profile)]
    console.print(Text(f"By phase: {', '.join(phases)}. By device: {', '.join(devices)}.", style="dim"))


def _show_steps(console: Console, profile: Profile) -> None:
    """Calls that have parts, such as those of a training step."""
    steps = [each for each in profile.functions if each.parts][:_MOST]
    titles = ("calls", "each", "again", "raised", "peak", "predicted", "function", "where its time goes")
    names = {"calls": "steps", "function": "step"}
    columns = [FUNCTIONS[title]._replace(title=names.get(title, title)) for title in titles]
    if steps:
        show_table(console, columns, steps, PLAIN)


def _show_operations(console: Console, profile: Profile) -> None:
    if profile.operations:
        seconds = OPERATIONS[0]._replace(value=lambda each: f"≈ {readable_seconds(each.seconds)}")
        show_table(console, (seconds, *OPERATIONS[1:]), profile.operations[:8], PLAIN)
