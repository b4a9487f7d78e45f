"""What a verification looks like: a line of progress, then a table, the times, and what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from anygpu.base.printable import printable
from anygpu.base.units import readable_seconds
from anygpu.hardware.device import Device
from anygpu.verify.cases import Check
from anygpu.verify.document import CheckRecord, Finding, Record, Timing

#: Why not every case was tried.
_ENDED = {
    "complete": "",
    "time": "out of time",
    "interrupted": "interrupted",
    "given up": "given up: the device died too often",
}


class Screen:
    """Tells how far it is on standard error: with bars on a terminal, and a line for each check elsewhere."""

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

    def begun(self, check: Check, cases: int) -> None:
        if self._aside.is_terminal:
            self._tasks[check.name] = self._bars.add_task(check.name, total=cases, note="")

    def advanced(self, check: Check, tried: int) -> None:
        if check.name in self._tasks:
            self._bars.update(self._tasks[check.name], completed=tried)

    def found(self, finding: Finding) -> None:
        if finding.check in self._tasks:
            self._bars.update(self._tasks[finding.check], note="[red]✗[/red]")

    def ended(self, record: CheckRecord) -> None:
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

    def show(self, record: Record, path: Path | None) -> None:
        """The whole outcome, on standard output."""
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

    def _show_finding(self, finding: Finding) -> None:
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


def _table(record: Record) -> Table:
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


def _times(record: Record) -> Table:
    sizes = sorted({timing.elements for timing in record.timings})
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("time per call, vs. NumPy", no_wrap=True)
    for size in sizes:
        table.add_column(f"{size:,} elements", justify="right", no_wrap=True)
    by_name: dict[str, dict[int, Timing]] = {}
    for timing in record.timings:
        by_name.setdefault(timing.workload, {})[timing.elements] = timing
    for name, found in by_name.items():
        table.add_row(name, *(_time(found.get(size)) for size in sizes))
    return table


def _time(timing: Timing | None) -> Any:
    if timing is None:
        return Text("–", style="dim")
    factor = timing.speedup
    words = f"{factor:.1f}× faster" if factor >= 1 else f"{1 / factor:.1f}× slower" if factor > 0 else "no time"
    return Text.assemble(f"{readable_seconds(timing.seconds)}  ", (words, "green" if factor >= 1 else "dim"))


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def _verdict(record: Record) -> Text:
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
