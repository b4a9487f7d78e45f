"""Commands that run a user's script: `anygpu advise` and `anygpu profile`.

Both run it in a process of its own, with the standard streams of this one, get a JSON file back, and exit as the script
did. An interrupt from the keyboard is the script's.
"""

from __future__ import annotations

import io
import json as json_
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

import anygpu
from anygpu.base.printable import encodable, printable
from anygpu.base.tables import pick
from anygpu.base.units import readable_seconds
from anygpu.cli.output import PLAIN, check_output, numbered, show_table, write_new, write_output
from anygpu.observe.advising import watching
from anygpu.observe.advising.judging import AdviceReport, FunctionAdvice
from anygpu.observe.profile import (
    FUNCTIONS,
    OPERATIONS,
    Profile,
    by_device,
    joined,
    line_columns,
    run_scalene,
    summary,
    to_html,
    version,
)
from anygpu.observe.script import decorated
from anygpu.observe.snapshot import Advice

# -- `anygpu advise`: runs a script as it is, and says which of its functions would gain on which device


PAGE = "reference/advice"


def advise(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="A Python file; what follows it are its arguments.")],
    measure: Annotated[
        bool, typer.Option("--try", help="Run each function on each device, instead of predicting.")
    ] = False,
    apply: Annotated[
        bool, typer.Option("--apply", help="Write a copy of the script with decorators on the functions that gain.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Report as JSON with a stable, documented schema.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the report there instead of to standard error.")
    ] = None,
) -> None:
    """Run a script, and report which of its functions would gain on which device of this machine.

    The script need not know anygpu, and its output and exit code stay its own: the report goes to standard error. If
    it uses anygpu, the report says what its calls cost and what to write instead.
    """
    if not script.is_file():
        raise typer.BadParameter(f"there is no file {str(script)!r} in {Path.cwd()}", param_hint="SCRIPT")
    check_output(output, [script, *context.args], "--output")
    code, report = run_and_report(str(script), context.args, measure=measure)
    if report is None:
        Console(stderr=True).print(
            Text(f"anygpu: {script} ended without a report: it was killed, or left with os._exit.", style="yellow")
        )
    else:
        copy = write_copy(script, report) if apply else None
        if output is not None:
            text = io.StringIO()
            _tell(report, copy, Console(file=text, width=120), apply=apply, json=json)
            write_output(output, text.getvalue().encode())
        else:
            _tell(report, copy, Console(stderr=True), apply=apply, json=json)
    if code < 0:
        # As the script ended, so that a shell sees the same.
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    raise typer.Exit(code)


def run_and_report(script: str, arguments: list[str], *, measure: bool = False) -> tuple[int, AdviceReport | None]:
    """Runs the script in a process of its own, with our standard streams; its exit code, and what was found.

    The code is negative if a signal ended it. The report is `None` if the process left none.
    """
    with tempfile.TemporaryDirectory(prefix="anygpu-advise-") as folder:
        path = Path(folder) / "report.json"
        ours = {"report": str(path), "try": measure, "path": str(Path(anygpu.__file__).parents[1])}
        command = [sys.executable, watching.__file__, json_.dumps(ours), script, *arguments]
        code = _status_of(command)
        try:
            return code, AdviceReport.from_json(path.read_bytes())
        except OSError:
            return code, None


def _status_of(command: list[str], in_child: Callable[[], None] | None = None) -> int:
    """Runs a script with our standard streams. An interrupt is the script's: it decides what becomes of it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return subprocess.run(command, check=False, preexec_fn=in_child).returncode
    finally:
        signal.signal(signal.SIGINT, before)


def write_copy(script: Path, report: AdviceReport) -> tuple[Path, list[int]] | None:
    """Write a copy beside the script, with a decorator for each of its functions that gains.

    Returns its path and the lines of these functions, or `None` if there are none. The copy has the script's mode.
    """
    own = encodable(os.path.realpath(script))  # as the report has it
    lines = []
    for each in report.functions:
        file, _, number = each.line.rpartition(":")
        if each.verdict == "gains" and encodable(os.path.realpath(file)) == own:
            lines.append(int(number))
    source, found = decorated(script.read_bytes(), lines)
    if not found:
        return None
    names = numbered(script.with_name(f"{script.stem}_offloaded{script.suffix}"), "_")
    return write_new(names, source, stat.S_IMODE(script.stat().st_mode)), found


# -- what is shown


def _tell(
    report: AdviceReport, copy: tuple[Path, list[int]] | None, console: Console, *, apply: bool, json: bool
) -> None:
    """Print the advice as text or JSON, and where a changed copy of the script was written."""
    if json:
        console.file.write(report.to_json().decode() + "\n")
        return
    show_report(console, report)
    if apply:
        console.print()
        if copy is None:
            console.print(Text("Nothing in the script itself gains, so no copy was written.", style="dim"))
        else:
            count = len(copy[1])
            functions = "1 function is" if count == 1 else f"{count} functions are"
            console.print(Text.assemble("Written to ", (_plain(str(copy[0])), "bold"), f": {functions} offloaded."))


def show_report(console: Console, report: AdviceReport) -> None:
    """Prints findings on a script's calls, and the functions that would gain from a device.

    Then come the functions that would not gain, and how far predictions rest on assumptions.
    """
    gains = [each for each in report.functions if each.verdict == "gains"]
    others = [each for each in report.functions if each.verdict != "gains"]
    took = f"{_plain(report.script)} took {readable_seconds(report.seconds)}"
    if report.findings:
        console.print(Text(f"\n{took}. What its calls of anygpu cost, and what to write instead:\n", style="bold"))
        for each in report.findings:
            _show_finding(console, each)
    elif report.uses_anygpu:
        console.print(Text(f"\n{took}. Nothing was found in its calls of anygpu.", style="bold"))
    if gains:
        console.print(Text(f"\n{took}. These functions would gain from @anygpu.offload:\n", style="bold"))
        _show_functions(console, gains, "green")
    elif not report.uses_anygpu:
        console.print(
            Text(f"\n{took}. No function of it would gain from another device of this machine.", style="bold")
        )
    if others:
        console.print(Text("\nThese would not:\n", style="bold"))
        _show_functions(console, others, "yellow")
    if report.outside_functions > 0.1 * report.seconds and not report.uses_anygpu:
        console.print(
            Text(
                f"\n{readable_seconds(report.outside_functions)} went into code outside of functions, which cannot be "
                "offloaded: put what computes there into a function.",
                style="yellow",
            )
        )
    if any(each.basis == "assumed" for function in report.functions for each in function.estimates):
        console.print(
            Text(
                "\nTimes marked (assumed) are of devices without a calibration: run `anygpu devices --calibrate`, "
                "or use --try.",
                style="dim",
            )
        )
    for note in report.notes:
        console.print(Text(f"\n{note}", style="dim"))


def _show_functions(console: Console, functions: list[FunctionAdvice], style: str) -> None:
    """Prints each function with its time, calls and line, and the sentence about it."""
    for each in functions:
        calls = f"{each.calls:,} {'call' if each.calls == 1 else 'calls'}"
        heading = Text.assemble(
            "  ",
            (_plain(each.name), f"bold {style}"),
            f"  {readable_seconds(each.seconds)} in {calls}  ",
            (_shown_line(each.line), "dim"),
        )
        console.print(heading, soft_wrap=True)
        console.print(Padding(Text(_plain(each.sentence)), (0, 0, 0, 4)))


def _show_finding(console: Console, each: Advice) -> None:
    """Prints one finding: the line, its cost, what happens, what to write instead, and where to read on."""
    where = _shown_line(each.line) if each.line else "somewhere"
    console.print(Text.assemble("  ", (where, "bold yellow"), "  ", (readable_seconds(each.cost), "bold")))
    console.print(Padding(Text(_plain(each.finding)), (0, 0, 0, 4)))
    console.print(Padding(Text(_plain(each.instead), style="green"), (0, 0, 0, 4)))
    console.print(Padding(Text(f"{PAGE}.html#{each.kind}", style="dim"), (0, 0, 1, 4)))


def _shown_line(line: str) -> str:
    """Relative to where the user is, if that is shorter."""
    file, _, number = line.rpartition(":")
    try:
        near = os.path.relpath(file)
    except ValueError:  # another drive
        near = file
    return _plain(f"{near if len(near) < len(file) else file}:{number}")


def _plain(text: str) -> str:
    """Names and messages come from the script: what could move the cursor or change colours is shown as it is."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


# -- `anygpu profile`: where the time of a script goes


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
    """Runs the script under the profiler; its exit status, and its profile if it lived to leave one.

    The interpreter's own flags are passed on.
    """
    with tempfile.TemporaryDirectory(prefix="anygpu-profile-") as folder:
        out = Path(folder) / "profile.json"
        flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        command = [sys.executable, *flags, "-m", "anygpu.observe.script", str(out), script, *arguments]
        status = _status_of(command, _take_interrupts)
        try:
            return _shell_status(status), msgspec.json.decode(out.read_bytes(), type=Profile)
        except (OSError, msgspec.MsgspecError):
            return _shell_status(status), None


def _take_interrupts() -> None:
    """In the child before the script starts: an interrupt raises `KeyboardInterrupt` again."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _shell_status(status: int) -> int:
    """The exit status as shells report it: 128 and the number of the signal for a process that one ended."""
    return 128 - status if status < 0 else status


def show_profile(console: Console, profile: Profile) -> None:
    """Prints the profile: a summary, then tables of lines, functions, steps and operations."""
    console.print()
    console.print(Text(printable(" ".join((profile.script, *profile.arguments))), style="bold"))
    console.print(Text(summary(profile)))
    _show_lines(console, profile)
    _show_profiled(console, profile)
    _show_steps(console, profile)
    _show_operations(console, profile)
    if profile.samples < 100:
        said = f"Only {profile.samples} samples were taken: what is not a call is known roughly. Run it for longer."
        console.print(Text(said, style="yellow"))


def _show_lines(console: Console, profile: Profile) -> None:
    """Prints the lines that took most time or made calls, and how many are left out."""
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


def _show_profiled(console: Console, profile: Profile) -> None:
    """Prints the table of functions, and the sums by phase and by device."""
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
    """Prints the operations that took most; their times are estimates, and marked so."""
    if profile.operations:
        seconds = OPERATIONS[0]._replace(value=lambda each: f"≈ {readable_seconds(each.seconds)}")
        show_table(console, (seconds, *OPERATIONS[1:]), profile.operations[:8], PLAIN)
