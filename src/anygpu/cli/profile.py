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
from rich.table import Table
from rich.text import Text

from anygpu.base.printable import printable
from anygpu.base.units import readable_bytes, readable_seconds
from anygpu.cli.output_files import check_output, write_output
from anygpu.observe.profile_html import summary, to_html
from anygpu.observe.profile_records import Profile, ScaleneLine, by_device
from anygpu.observe.scalene import joined, run_scalene, version
from anygpu.observe.statistics import breakdown

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


def _table(*names: str) -> Table:
    """Names of columns; those that end with a colon hold text, and all others numbers."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in names:
        text = name.endswith(":")
        table.add_column(name.removesuffix(":"), justify="left" if text else "right", no_wrap=name != "code:")
    return table


def _show_lines(console: Console, profile: Profile) -> None:
    extra = ("Scalene", "peak") if profile.scalene is not None else ()
    table = _table("seconds", "%", "calls", *extra, "line:", "code:")
    for each in profile.lines:
        scalene = each.scalene.percent / 100 if each.scalene is not None else 0.0
        shown = each.seconds >= _LEAST * profile.seconds or each.calls or scalene >= 2 * _LEAST
        if not shown or table.row_count == _MOST:
            continue
        seen = []
        if extra:
            seen = _of_scalene(each.scalene)
        table.add_row(
            readable_seconds(each.seconds),
            f"{100 * each.seconds / profile.seconds:.1f}" if profile.seconds else "",
            f"{each.calls:,}" if each.calls else "",
            *seen,
            Text(printable(f"{Path(each.file).name}:{each.line}")),
            Text(printable(each.code), overflow="ellipsis", no_wrap=True),
        )
    console.print()
    console.print(table)
    hidden = len(profile.lines) - table.row_count
    if hidden > 0:
        console.print(Text(f"and {hidden:,} more lines, in --html and --json", style="dim"))


def _of_scalene(line: ScaleneLine | None) -> list[str]:
    if line is None:
        return ["", ""]
    return [f"{line.percent:.1f} %", f"{line.peak_megabytes:.0f} MB" if line.peak_megabytes >= 1 else ""]


def _bytes(size: int) -> str:
    return readable_bytes(size) if size else ""


def _show_functions(console: Console, profile: Profile) -> None:
    if not profile.functions:
        return
    table = _table("seconds", "calls", "moved", "function:", "device:", "most of it in:")
    for each in profile.functions[:_MOST]:
        longest = sorted(each.phases.items(), key=lambda item: -item[1])[:2]
        table.add_row(
            readable_seconds(each.seconds),
            f"{each.calls:,}",
            _bytes(each.bytes_to_device + each.bytes_to_host),
            Text(printable(each.function)),
            Text(printable(each.device)),
            Text(", ".join(f"{name} {readable_seconds(took)}" for name, took in longest if took >= 5e-7)),
        )
    console.print()
    console.print(table)
    whole = sum(profile.phases.values())
    phases = [f"{name} {readable_seconds(took)}" for name, took in profile.phases.items() if took > _LEAST * whole]
    devices = [f"{printable(each.device)} {readable_seconds(each.seconds)}" for each in by_device(profile)]
    console.print(Text(f"By phase: {', '.join(phases)}. By device: {', '.join(devices)}.", style="dim"))


def _show_steps(console: Console, profile: Profile) -> None:
    """Calls that have parts, such as those of a training step."""
    steps = [each for each in profile.functions if each.parts][:_MOST]
    if not steps:
        return
    table = _table("steps", "each", "again", "raised", "peak", "predicted", "step:", "where its time goes:")
    table.columns[-1].no_wrap = False
    for each in steps:
        shares = breakdown(each.phases, each.parts)
        whole = sum(seconds for _, seconds in shares) or 1.0
        parts = (f"{name} {seconds / whole:.0%}" for name, seconds in shares if seconds >= _LEAST * whole)
        table.add_row(
            f"{each.calls:,}",
            readable_seconds(each.seconds / each.calls),
            f"{each.repeats:,}" if each.repeats else "",
            f"{each.errors:,}" if each.errors else "",
            _bytes(each.peak_bytes or 0),
            _bytes(each.predicted_bytes or 0),
            Text(printable(each.function)),
            Text(printable(", ".join(parts))),
        )
    console.print()
    console.print(table)


def _show_operations(console: Console, profile: Profile) -> None:
    if not profile.operations:
        return
    table = _table("seconds", "runs", "operation:", "device:", "line:")
    for each in profile.operations[:8]:
        line = "" if each.line is None else printable(Path(each.line).name)
        table.add_row(
            f"≈ {readable_seconds(each.seconds)}",
            f"{each.runs:,}",
            Text(printable(each.operation)),
            Text(printable(each.device)),
            Text(line),
        )
    console.print()
    console.print(table)
