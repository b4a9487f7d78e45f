"""`anygpu verify`: tries a device against NumPy, and writes a record; or a report of a mismatch.

`Screen` shows the progress and the outcome, the commands follow, and `anygpu.testing.verify` does the work.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import msgspec
import typer
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from anygpu.agreement.mismatches import Mismatch, kept
from anygpu.base.printable import encode_json, printable
from anygpu.base.units import readable_seconds
from anygpu.cli.output import check_output, numbered, warn_of_old_name, write_new, write_output
from anygpu.errors import AnyGPUError, DeviceUnavailable, InvalidOption
from anygpu.hardware.device import Device, parse_device
from anygpu.hardware.preference import prefer
from anygpu.hardware.selection import require
from anygpu.testing.verify import CallTiming, CheckRecord, VerifyCheck, VerifyRecord, WrongCase

if TYPE_CHECKING:
    from anygpu.testing.verify import VerifyRecord


#: Why not every case was tried.
_ENDED = {
    "complete": "",
    "time": "out of time",
    "interrupted": "interrupted",
    "given up": "given up: the device died too often",
}


class Screen:
    """Tells how far it is on standard error: with bars on a terminal, and a line for each check elsewhere.

    It is the watcher of a verification: `begun`, `advanced`, `found` and `ended` are called by it.
    """

    def __init__(self, console: Console, aside: Console, device: Device, seconds: float) -> None:
        self._console = console
        self._aside = aside
        self._device = device
        self._seconds = seconds
        self._bars = Progress(
            TextColumn("{task.description:<15}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=aside,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        minutes = self._seconds / 60
        at_most = f"{minutes:.0f} minutes" if minutes >= 2 else f"{self._seconds:.0f} seconds"
        self._aside.print(
            Text.assemble(
                "Verifying ", (self._device.id, "bold"), f" ({printable(self._device.name)}): at most {at_most}. "
            ).append("Ctrl-C ends it with what there is.", style="dim")
        )
        if self._aside.is_terminal:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._aside.is_terminal:
            self._bars.stop()

    def begun(self, check: VerifyCheck, cases: int) -> None:
        """A check begins, with so many cases."""
        if self._aside.is_terminal:
            self._tasks[check.name] = self._bars.add_task(check.name, total=cases, note="")

    def advanced(self, check: VerifyCheck, tried: int) -> None:
        if check.name in self._tasks:
            self._bars.update(self._tasks[check.name], completed=tried)

    def found(self, finding: WrongCase) -> None:
        """Marks the check that has found a wrong case."""
        if finding.check in self._tasks:
            self._bars.update(self._tasks[finding.check], note="[red]✗[/red]")

    def ended(self, record: CheckRecord) -> None:
        """Stops the bar of a check, or prints its line where there are no bars."""
        if record.name in self._tasks:
            task = self._tasks[record.name]
            note = f"[red]✗ {record.wrong} wrong[/red]" if record.wrong else ""
            note = note or ("[green]✓[/green]" if record.ended == "complete" else "[yellow]…[/yellow]")
            self._bars.update(task, completed=record.tried, note=f"{note} {_ENDED[record.ended]}")
            self._bars.stop_task(task)
        else:
            wrong = f"{record.wrong} wrong" if record.wrong else "none wrong"
            self._aside.print(
                f"{record.name}: {record.tried} of {record.cases} cases in {record.seconds:.0f} s, {wrong}",
                highlight=False,
            )

    def show(self, record: VerifyRecord, path: Path | None) -> None:
        """Prints the whole outcome on standard output.

        The tables of checks and times, each finding, the verdict, and where the record is.
        """
        device = record.device
        self._console.print()
        self._console.print(
            Text.assemble((device.id, "bold"), f"  {printable(device.name)}, through {device.api}"), soft_wrap=True
        )
        self._console.print(Text(f"  driver: {printable(device.driver)}", style="dim"), soft_wrap=True)
        self._console.print(Padding(_table(record), (0, 0, 1, 2), expand=False))
        if record.timings:
            self._console.print(Padding(_times(record), (0, 0, 1, 2), expand=False))
        for finding in record.findings:
            self._show_finding(finding)
        self._console.print(_verdict(record), soft_wrap=True)
        if path is not None:
            self._console.print(
                Text(
                    f"The record is in {path}. It has no names, paths or serial numbers. Attach it to an issue, and "
                    "this device is listed among those that were seen: thank you."
                ),
                soft_wrap=True,
            )

    def _show_finding(self, finding: WrongCase) -> None:
        """Prints a wrong case: what differs, the reduced program, the driver, and the command that repeats it."""
        what = f"{finding.check}, {finding.case}: it {finding.kind}"
        if finding.operations:
            what += f", in {', '.join(finding.operations)}"
        self._console.print(Text(what, style="bold red"), soft_wrap=True)
        self._console.print(Padding(Text(finding.sentence), (0, 0, 0, 2), expand=False))
        if finding.program is not None:
            before = f" (of {finding.nodes_before})" if finding.nodes != finding.nodes_before else ""
            self._console.print(f"  The program has {finding.nodes} nodes{before}:", highlight=False)
            self._console.print(Padding(Text(finding.program, style="dim"), (0, 0, 0, 4), expand=False), soft_wrap=True)
        self._console.print(Text(f"  driver: {printable(finding.driver)}"), soft_wrap=True)
        self._console.print(Text.assemble("  To repeat it: ", (finding.command, "bold")), soft_wrap=True)
        self._console.print()


def _table(record: VerifyRecord) -> Table:
    """The table of checks: how many cases were tried, wrong, on the host or skipped, and their time."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("", no_wrap=True)
    table.add_column("check", no_wrap=True)
    for name in ("tried", "wrong", "on the host", "skipped", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for check in record.checks:
        mark = Text("✗", style="red") if check.wrong else Text("✓", style="green")
        if check.ended != "complete" and not check.wrong:
            mark = Text("…", style="yellow")
        tried = f"{check.tried:,}" if check.tried == check.cases else f"{check.tried:,} of {check.cases:,}"
        note = _ENDED[check.ended] or "; ".join(check.reasons)
        counts = (check.wrong, check.hosted, check.skipped)
        style = "yellow" if check.ended != "complete" else "dim"
        table.add_row(mark, check.name, tried, *map(str, counts), _seconds(check.seconds), Text(note, style=style))
    return table


def _times(record: VerifyRecord) -> Table:
    """The table of times per call beside NumPy's, a row for each workload and a column for each size."""
    sizes = sorted({timing.elements for timing in record.timings})
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("time per call, vs. NumPy", no_wrap=True)
    for size in sizes:
        table.add_column(f"{size:,} elements", justify="right", no_wrap=True)
    by_name: dict[str, dict[int, CallTiming]] = {}
    for timing in record.timings:
        by_name.setdefault(timing.workload, {})[timing.elements] = timing
    for name, found in by_name.items():
        table.add_row(name, *(_time(found.get(size)) for size in sizes))
    return table


def _time(timing: CallTiming | None) -> Any:
    """A time and how many times as fast or slow as NumPy it is; a dash if it was not measured."""
    if timing is None:
        return Text("–", style="dim")
    factor = timing.speedup
    words = f"{factor:.1f}× faster" if factor >= 1 else f"{1 / factor:.1f}× slower" if factor > 0 else "no time"
    return Text.assemble(f"{readable_seconds(timing.seconds)}  ", (words, "green" if factor >= 1 else "dim"))


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def _verdict(record: VerifyRecord) -> Text:
    """The outcome of a verification in one sentence."""
    tried = sum(check.tried for check in record.checks)
    wrong = sum(check.wrong for check in record.checks)
    left = sum(check.cases - check.tried for check in record.checks)
    in_time = any(check.ended == "time" for check in record.checks)
    missed = "1 case was" if left == 1 else f"{left:,} cases were"
    rest = f" {missed} not reached{'; --seconds gives it more time' if in_time else ''}." if left else ""
    busy = " The machine was busy, so the times say little." if record.disturbed and record.timings else ""
    if not tried:
        return Text(f"Nothing was tried.{rest}", style="yellow")
    if wrong:
        are = "is" if wrong == 1 else "are"
        return Text(f"{wrong:,} of {tried:,} cases {are} wrong on {record.device.id}.{rest}{busy}", style="bold red")
    agree = "The case that was tried agrees" if tried == 1 else f"All {tried:,} cases that were tried agree"
    return Text(f"{agree} with NumPy.{rest}{busy}", style="bold green")


#: Seconds that all checks of one device may take together.
SECONDS = 300.0
#: Time limit for finding devices: a machine that is about to be tried for minutes can wait for them.
FIND_SECONDS = 60.0


def verify(
    device: Annotated[
        str | None,
        typer.Argument(metavar="DEVICE", help="An id, an engine or a kind; the best device by default."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Verify every device of this machine, one after the other.")] = (
        False
    ),
    seconds: Annotated[
        float, typer.Option("--seconds", min=1, help="Time limit for each device; checks that did not run are listed.")
    ] = SECONDS,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="CHECK", help="Run only this check; may be repeated.")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", min=0, help="Run one case of the check again: the seed that a finding names."),
    ] = None,
    programs: Annotated[int, typer.Option("--programs", min=0, help="Number of random programs to try.")] = 500,
    json: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="The file to write; anygpu-verify-DEVICE-DATE.json by default."),
    ] = None,
    no_file: Annotated[bool, typer.Option("--no-file", help="Write no file.")] = False,
    report: Annotated[
        bool,
        typer.Option(
            "--report",
            help="Try nothing: write a report about a result that differed. Instead of DEVICE comes the id in the "
            "warning; the latest by default.",
        ),
    ] = False,
) -> None:
    """Try a device of this machine: is every result what NumPy computes, and how fast is it?

    Takes five minutes. The outcome is a table and one JSON file without personal data: no names, paths or serial
    numbers. Attach it to an issue, and the device is listed among those that were seen.

    Exits with 0 if everything agrees, 1 if something differs, 2 if there is no such device.
    """
    if report:
        _report(device, json)
        return
    try:
        names = tuple(name.strip() for each in only or () for name in each.split(","))
        if seed is not None and len(names) != 1:
            raise InvalidOption("--seed repeats one case of one check: name it, as in `--only programs --seed 7`.")
        if every and (device is not None or json is not None):
            raise InvalidOption(
                "--all verifies every device, each into a file of its own: leave out DEVICE and --json."
            )
        if not no_file:
            _check_folder(Path() if json is None else json.parent)
        records = _verified(
            _devices(device, every), names, seconds, seed, programs, None if no_file else json or Path()
        )
    except AnyGPUError as error:
        sys.stderr.write(f"anygpu: {error}\n")
        raise typer.Exit(2) from None
    raise typer.Exit(0 if all(record.is_clean for record in records) else 1)


def _check_folder(folder: Path) -> None:
    """Raises `InvalidOption` if no file can be made in the folder: better now than after five minutes of checks."""
    if not os.access(folder, os.W_OK):
        raise InvalidOption(f"{folder.absolute()} cannot be written to. Name another file with --json, or --no-file.")


def _devices(wanted: str | None, every: bool) -> Sequence[Device]:
    """The devices to verify: the named one, every one, or the best that is not NumPy."""
    from anygpu.engines.catalogue import catalogue
    from anygpu.workers.discovery import discover

    # One engine is enough where one is named: others may take long to load.
    engine = None if wanted is None else parse_device(wanted.lower()).engine
    entries = [entry for entry in catalogue() if entry.name == engine] or list(catalogue())
    with Console(stderr=True).status("Looking for devices …"):
        inventory = discover(timeout=FIND_SECONDS, entries=entries)
    found = require(inventory.devices, prefer(wanted), inventory.unavailable)
    if every:
        return found
    # NumPy is what devices are compared with, so without a name it is tried only where there is nothing else.
    return [next((each for each in found if each.engine != "numpy"), found[0])]


def _verified(
    devices: Sequence[Device],
    names: tuple[str, ...],
    seconds: float,
    number: int | None,
    programs: int,
    file: Path | None,
) -> list[VerifyRecord]:
    """Verifies the devices one after the other, shows each outcome, and returns the records.

    `file` is where the record goes, a folder for names of our own, or `None`. An interrupted verification is the last.
    """
    from anygpu.testing.verify.checks import all_checks, chosen
    from anygpu.testing.verify.running import verify_device

    checks = all_checks(programs) if number is None else all_checks(1, first=number)
    wanted = chosen(names, checks)
    records = []
    for device in devices:
        screen = Screen(Console(), Console(stderr=True), device, seconds)
        with screen:
            try:
                record = verify_device(device, wanted, screen, seconds=seconds, number=number)
            except DeviceUnavailable as error:
                raise DeviceUnavailable(f'on="{device.id}"', error.refusals, device=device.id) from None
        path = None if file is None else _written(record, file)
        screen.show(record, path)
        records.append(record)
        if any(check.ended == "interrupted" for check in record.checks):
            break
    return records


def _written(record: VerifyRecord, file: Path) -> Path:
    """Writes the record, and returns the path.

    In a folder it gets a name with the device and the date that is still free.
    """
    if file.is_dir():
        name = f"anygpu-verify-{record.device.id.replace(':', '-')}-{record.date}.json"
        return write_new(numbered(file / name), record.to_json() + b"\n")
    write_output(file, record.to_json() + b"\n")
    return file


def report(
    number: Annotated[str | None, typer.Argument(metavar="ID")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o")] = None,
) -> None:
    """The old name of `anygpu verify --report`."""
    warn_of_old_name("report", "verify --report")
    _report(number, output)


def _report(number: str | None, output: Path | None) -> None:
    """Write a report about the mismatch with this id, or the latest, to a file.

    The report has versions, the device, the program, the shapes and hashes of its inputs, and both values, but not
    the inputs themselves. The program includes the function's constants and the names of its source files.
    """
    found = kept()
    if not found:
        print("No mismatch with NumPy is on record.")
        raise typer.Exit
    chosen = found[-1] if number is None else next((each for each in found if each.id == number), None)
    if chosen is None:
        known = ", ".join(each.id for each in found)
        raise InvalidOption(f"no mismatch {number!r} is on record; the ids on record are {known}.")
    content = msgspec.json.format(encode_json(chosen), indent=2) + b"\n"
    if output is not None:
        check_output(output, (), "--json")
        write_output(output, content)
        path = output
    else:
        path = write_new(numbered(Path(f"anygpu-report-{chosen.id}.json")), content)
    _show(chosen, path)


def _show(found: Mismatch, path: Path) -> None:
    """Prints the mismatch in a sentence, and where its report was written."""
    print(f"{found.when}: {found.device} disagreed with NumPy on {found.task}: {found.sentence}.")
    print(f"Wrote {path}. Please attach it to an issue on anygpu's tracker.")
