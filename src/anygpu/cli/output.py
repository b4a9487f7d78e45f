"""Output of commands: tables on a terminal, and files that are written whole or not at all.

First inventories, diagnoses and usage, then tables of columns, then files, and at the end how a function is found by
the name that was typed. Texts of users and drivers are printed as text: markup in them has no effect.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.padding import Padding
from rich.status import Status
from rich.table import Table
from rich.text import Text

from anygpu.base.printable import printable
from anygpu.base.tables import LONG, UNKNOWN, Column, Formats, Item, cells, pick
from anygpu.base.units import readable_seconds
from anygpu.errors import InvalidOption
from anygpu.hardware.device import Card, Device, State
from anygpu.hardware.diagnosis import Diagnosis
from anygpu.hardware.inventory import Finding, Inventory, all_facts, explained, in_a_few_words, memory_of, more_words
from anygpu.hardware.usage import ProcessUsage, UsageDocument

# -- prints inventories, diagnoses, usage and tables on a terminal


#: An option of most commands.
Json = Annotated[bool, typer.Option("--json", help="Print JSON with a stable, documented schema.")]

_MARKS: dict[State, tuple[str, str]] = {
    "verified": ("✓", "green"),
    "usable": ("?", "yellow"),
    "present": ("✗", "red"),
    "hung": ("✗", "red"),
    "absent": ("–", "dim"),
}
_SEVERITIES = {"problem": ("Problem", "red"), "advice": ("Advice", "yellow"), "note": ("Note", "cyan")}


def waiting(what: str) -> Status:
    """A spinner on standard error, which keeps piped output clean."""
    return Console(stderr=True).status(f"{what} …")


def print_json(data: bytes) -> None:
    """Prints a JSON document and a newline on standard output, as it is."""
    sys.stdout.write(data.decode() + "\n")


def warn_of_old_name(old: str, new: str) -> None:
    """Say on standard error that a command has another name from the next release on."""
    sys.stderr.write(f"anygpu: `anygpu {old}` is `anygpu {new}` now; the old name goes with the next release.\n")


def show_inventory(console: Console, inventory: Inventory, *, deep: bool = False) -> None:
    """Prints the cards with the devices that reach each, and then what is not available with its reason."""
    for card in inventory.cards:
        _show_card(console, card, [device for device in inventory.devices if device.card == card.id], deep=deep)
    if inventory.unavailable:
        console.print("[bold]Not available[/bold]")
        table = grid(3)
        for item in inventory.unavailable:
            table.add_row(_mark(item.state), item.id, Text(explained(item)))
        console.print(Padding(table, (0, 0, 1, 2)))
    console.print(Text(_how_we_know(inventory), style="dim"))


def show_diagnosis(console: Console, diagnosis: Diagnosis) -> None:
    """Prints the verdict, the devices that can compute, and each finding with its fix."""
    console.print(Text(diagnosis.verdict, style="bold"))
    console.print()
    console.print("[bold]What can compute here[/bold]")
    table = grid(3)
    for device in diagnosis.inventory.devices:
        table.add_row(_mark(device.state), device.id, Text(in_a_few_words(device)))
    console.print(Padding(table, (0, 0, 1, 2)))
    for finding in diagnosis.findings:
        show_finding(console, finding)
    if not diagnosis.problems:
        console.print(Text("No problems found.", style="green"))


def show_findings(console: Console, verdict: str, findings: Sequence[Finding]) -> None:
    """Prints a verdict and findings; says so if none of them is a problem."""
    console.print(Text(verdict, style="bold"))
    console.print()
    for finding in findings:
        show_finding(console, finding)
    if not any(finding.severity == "problem" for finding in findings):
        console.print(Text("No problems found.", style="green"))


def _show_card(console: Console, card: Card, ways: list[Device], *, deep: bool) -> None:
    """Print a card with the devices that reach it; with `deep`, all their facts."""
    heading = Text(card.name, style="bold")
    heading.append(f"  {memory_of(card)}", style="default")
    console.print(heading)
    table = grid(3)
    for device in ways:
        table.add_row(_mark(device.state), device.id, Text(in_a_few_words(device)))
        table.add_row("", "", Text(more_words(device), style="dim"))
        if deep:
            for name, value in all_facts(device):
                table.add_row("", "", Text(f"{name}: {value}", style="dim"))
    if not ways:
        table.add_row(_mark("present"), "", Text("no engine can use this card; run `anygpu doctor` to see why"))
    if card.note is not None:
        table.add_row("", "", Text(card.note, style="yellow"))
    console.print(Padding(table, (0, 0, 1, 2)))


def show_finding(console: Console, finding: Finding) -> None:
    """Prints one finding: its severity and title, its cause, and the commands that fix it, each on one line."""
    word, style = _SEVERITIES[finding.severity]
    line = Text(f"{word}: ", style=f"bold {style}")
    line.append(finding.title, style="bold")
    console.print(line)
    console.print(Padding(Text(finding.cause), (0, 0, 0, 2)))
    for step in finding.fix:
        # Not wrapped by us: a command must stay on one line to be copied.
        console.print(Text.assemble("  ", ("→ ", style), (step, "bold")), soft_wrap=True)
    console.print()


def grid(columns: int, *, right: int | None = None, style: str = "") -> Table:
    """A table without titles: the last column takes several lines, and the others one."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for number in range(columns - 1):
        table.add_column(no_wrap=True, justify="right" if number == right else "left", style=style)
    table.add_column(overflow="fold")
    return table


def _mark(state: State) -> Text:
    """The sign and colour for the state of a device."""
    return Text(*_MARKS[state])


def _how_we_know(inventory: Inventory) -> str:
    """How the states of devices were found out, and how long that took."""
    took = f"Took {readable_seconds(inventory.seconds)}."
    if not inventory.remembered:
        return f"✓: a computation on the device just gave the right result. {took}"
    oldest = max(inventory.remembered.values())
    ago = (
        f"{oldest / 3600:.0f} h" if oldest >= 3600 else f"{oldest / 60:.0f} min" if oldest >= 60 else f"{oldest:.0f} s"
    )
    return f"✓: a computation on the device gave the right result, up to {ago} ago; --deep checks again. {took}"


# -- tables

#: Texts in full, and nothing in place of what is not known.
PLAIN = LONG._replace(text=lambda text, letters: printable(text), unknown="")
#: The same with a mark for what is not known.
MARKED = PLAIN._replace(unknown=UNKNOWN)
_STYLES = {"": "", "dim": "dim", "good": "", "warn": "yellow", "bad": "bold red"}


def show_table(console: Console, columns: Sequence[Column[Item]], items: Iterable[Item], formats: Formats) -> None:
    """Print an empty line and a table. Names in it are whatever users have chosen: markup in them is only text."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        prose = column.unit == "prose"
        table.add_column(column.title, justify="right" if column.right else "left", no_wrap=not prose)
    for item in items:
        table.add_row(*(Text(each.text, _STYLES[each.tone]) for each in cells(columns, item, formats)))
    console.print()
    console.print(table)


_PROCESSES: tuple[Column[tuple[str, ProcessUsage]], ...] = (
    Column("device", lambda each: each[0]),
    Column("process", lambda each: each[1].pid, "id"),
    Column("load", lambda each: each[1].load, "share"),
    Column("memory", lambda each: each[1].memory, "bytes"),
    Column("name", lambda each: each[1].name),
)


def show_usage(console: Console, document: UsageDocument) -> None:
    """A line for each device, then the processes that use them, then why something is not known."""
    from anygpu.observe.tables import DEVICES, DeviceRow

    rows = [DeviceRow(device, usage) for device, usage in document.usage.items()]
    show_table(console, pick(DEVICES, "device", "load", "memory", "°C", "power", "clock", "throttled"), rows, MARKED)
    cards = {usage.card: (device, usage) for device, usage in reversed(document.usage.items())}
    processes = [
        (device, process)
        for device, usage in document.usage.items()
        if cards[usage.card][0] == device
        for process in usage.processes or ()
    ]
    if processes:
        show_table(console, _PROCESSES, processes, MARKED)
    _show_unknown(console, document)


def _show_unknown(console: Console, document: UsageDocument) -> None:
    """Each reason once, with the devices and readings that it is about."""
    about: dict[str, dict[str, list[str]]] = {}
    for device, usage in document.usage.items():
        for reading, why in usage.unknown.items():
            about.setdefault(why, {}).setdefault(device, []).append(reading)
    if not about:
        return
    console.print()
    console.print(Text("–: not known", style="dim"))
    table = Table.grid(padding=(0, 2, 0, 0))
    for why, devices in about.items():
        readings = dict.fromkeys(reading for names in devices.values() for reading in names)
        what = ", ".join(reading.replace("_", " ") for reading in readings)
        table.add_row(Text(", ".join(devices), style="dim"), Text(f"{what}: {why}", style="dim"))
    console.print(Padding(table, (0, 0, 0, 2)))


# -- files that commands write: whole or not at all, never over an input, and with the mode that they had


def check_output(path: Path | None, inputs: Iterable[str | Path], option: str) -> None:
    """Raises `typer.BadParameter` before any work is done if `path` cannot be written, or is one of the inputs.

    `option` is the name of the option in the message. `None` is no file, and always right.
    """
    if path is None:
        return
    folder = path.absolute().parent
    if not folder.is_dir():
        raise typer.BadParameter(f"there is no folder {str(folder)!r}", param_hint=option)
    if path.is_dir():
        raise typer.BadParameter(f"{str(path)!r} is a folder; give the name of a file", param_hint=option)
    for each in inputs:
        if _is_same(path, each):
            raise typer.BadParameter(
                f"{str(path)!r} is an input, which would be overwritten; give another name", param_hint=option
            )


def write_output(path: Path, content: bytes) -> None:
    """Writes the file beside its place and renames it. A file that is replaced keeps its mode; links are followed.

    Pipes and terminals are written directly. Raises `InvalidOption` if it cannot be written.
    """
    try:
        before = path.stat() if path.exists() else None
        if before is not None and not stat.S_ISREG(before.st_mode):
            path.write_bytes(content)  # a pipe or a terminal, such as /dev/stdout
            return
        target = Path(os.path.realpath(path))
        beside = target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}.partial")
        _create(beside, content, None if before is None else stat.S_IMODE(before.st_mode))
        try:
            beside.replace(target)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InvalidOption(f"cannot write {str(path)!r}: {error.strerror}.") from None


def write_new(names: Iterable[Path], content: bytes, mode: int | None = None) -> Path:
    """Writes to the first of the names that is free, and returns it. A link is not free, wherever it leads.

    Raises `InvalidOption` if no name is free or the file cannot be written.
    """
    path = None
    for path in names:
        try:
            _create(path, content, mode)
        except FileExistsError:
            continue
        except OSError as error:
            raise InvalidOption(f"cannot write {str(path)!r}: {error.strerror}.") from None
        return path
    raise InvalidOption(f"cannot write {str(path)!r}: it and all other names for it are taken.")


def numbered(path: Path, separator: str = "-") -> Iterable[Path]:
    """The path, then the same name with 2, 3 and so on before its suffix."""
    yield path
    for number in range(2, 1000):
        yield path.with_name(f"{path.stem}{separator}{number}{path.suffix}")


def _create(path: Path, content: bytes, mode: int | None) -> None:
    """Create a file that does not exist; without a mode it gets the one that the process' umask allows."""
    # A file with a mode of its own is private until it has it.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        if mode is not None:
            path.chmod(mode)
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise


def _is_same(one: Path, other: str | Path) -> bool:
    """Whether both names lead to one file; `False` if one does not exist."""
    try:
        return one.samefile(other)
    except (OSError, ValueError):  # one of them does not exist
        return False


def find_function(name: str, example: str) -> Callable[..., Any]:
    """The function `module:name`, or `module:Class.name`; modules of the current folder come first, as for scripts.

    The module is imported, which runs it; what it raises is raised. A name that does not exist is a
    `typer.BadParameter` with `example`.
    """

    def wrong(why: str) -> NoReturn:
        raise typer.BadParameter(f"{why}. For example: {example}", param_hint="MODULE:FUNCTION")

    module_name, colon, path = name.partition(":")
    if not (colon and module_name and path):
        wrong(f"{name!r} is not of the form module:function")
    if module_name.endswith(".py") or "/" in module_name:
        instead = Path(module_name).stem
        wrong(f"{module_name!r} is a file; name the module instead, as in {instead}:{path}")
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there, and something that it needs is not
        wrong(f"there is no module {error.name!r}, neither installed nor in {here}")
    for part in path.split("."):
        if not hasattr(found, part):
            wrong(f"{module_name} has no {path!r}{_did_you_mean(found)}")
        found = getattr(found, part)
    if not callable(found):
        wrong(f"{name} is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]


def _did_you_mean(module: Any) -> str:
    """The end of a message: up to eight functions that the module itself has."""
    own = [
        name
        for name, each in vars(module).items()
        if callable(each) and not name.startswith("_") and getattr(each, "__module__", None) == module.__name__
    ]
    return f"; it has {', '.join(sorted(own)[:8])}" if own else ""
