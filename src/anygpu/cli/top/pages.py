"""The pages of `anygpu top`: which rows and columns each has, as pure functions of what processes answered.

First the rows of each page and of the devices above it, then order, filter and width, then the details of one row, and
at the end `Watching`, which takes a `Picture` of everything, and how that is printed once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from anygpu.base.printable import encode_json, printable
from anygpu.base.tables import SHORT, Cell, Column, Tone, cells, compact, percent, pick, short_bytes, short_seconds
from anygpu.hardware.device import Device
from anygpu.hardware.usage import Usage
from anygpu.hardware.usage.reading import UsageReader
from anygpu.observe import tables
from anygpu.observe.looking import Following, Look, processor_share, rates
from anygpu.observe.snapshot import Snapshot
from anygpu.observe.statistics import CallStatistics, Quantiles
from anygpu.observe.tables import CallRow, DeviceRow, Problem, ProcessRow, TenantRow

NO_PROCESS = "No process of yours is observed. Start one: anygpu run script.py"


class PageRow(NamedTuple):
    """One line; `name` stays the same from one picture to the next, so that a cursor can stay on it."""

    name: tuple[str, ...]
    cells: tuple[Cell, ...]


class Page(NamedTuple):
    """One kind of rows that can be looked at."""

    title: str
    columns: tuple[Column[Any], ...]
    items: Callable[[Sequence[Look]], list[Any]]
    name: Callable[[Any], tuple[object, ...]]
    #: The column that rows are sorted by at first, and whether the largest come first.
    sort: int
    descending: bool
    #: Shown when there are no rows.
    empty: str

    def rows(self, looks: Sequence[Look]) -> list[PageRow]:
        """The rows of the page, in the order of the looks."""
        return rows(self.columns, self.items(looks), self.name)


def rows(
    columns: Sequence[Column[Any]], items: Sequence[Any], name: Callable[[Any], tuple[object, ...]]
) -> list[PageRow]:
    """A row of cells for each item, in short formats; `name` identifies an item."""
    return [PageRow(tuple(map(str, name(item))), cells(columns, item, SHORT)) for item in items]


def heading(column: Column[Any]) -> str:
    """The name of a column above it: its short one, or the title in capitals."""
    return column.short or column.title.upper()


# -- the rows of each page


def _answers(looks: Sequence[Look]) -> list[tuple[Look, Snapshot]]:
    """The looks that have an answer, with it; also an old one of a process that is silent now."""
    return [(look, look.snapshot) for look in looks if look.snapshot is not None]


def _calls(looks: Sequence[Look]) -> list[CallRow]:
    """A row for each function and device of each process, with its rate between the last two answers."""
    found = []
    for look, snapshot in _answers(looks):
        known = rates(look)
        for each in snapshot.statistics.calls:
            rate = known.get((each.function, each.device))
            found.append(CallRow(each, look.process.pid, rate, look.trouble is not None))
    return found


def _steps(looks: Sequence[Look]) -> list[CallRow]:
    return [row for row in _calls(looks) if row.calls.parts]


def _process(look: Look) -> ProcessRow:
    """The row of a process: whether it answers, is silent or has ended, and its rates."""
    state: str = "answers"
    tone: Tone = "good"
    if look.trouble is not None:
        state, tone = ("ended", "dim") if look.ended is not None else ("silent", "warn")
    speed = sum(rate.calls for rate in rates(look).values()) if look.before and not look.trouble else None
    return ProcessRow(
        look.process.pid, look.snapshot, state, tone, look.trouble or "", speed, processor_share(look), look.seconds
    )  # fmt: skip


def _tenants(looks: Sequence[Look]) -> list[TenantRow]:
    """The rows of tenants; device seconds a second are those between the last two answers."""
    found = []
    for look, snapshot in _answers(looks):
        before = look.before.runtime if look.before is not None else None
        earlier = {each.tenant: each.seconds for each in before.tenants} if before is not None else {}
        elapsed = snapshot.time - look.before.time if look.before is not None and not look.trouble else 0.0
        for each in snapshot.runtime.tenants if snapshot.runtime is not None else ():
            used = each.seconds - earlier.get(each.tenant, 0.0)
            found.append(TenantRow(each, look.process.pid, used / elapsed if elapsed > 0 else None))
    return found


def _problems(looks: Sequence[Look], group: str) -> list[Problem]:
    """The problems of one group, "loss" or "anomaly", of all processes."""
    found = [each for look, snapshot in _answers(looks) for each in tables.problems([(look.process.pid, snapshot)])]
    return [each for each in found if each.group == group]


def _call_name(row: CallRow) -> tuple[object, ...]:
    return row.pid, row.calls.function, row.calls.device


def _problem_name(problem: Problem) -> tuple[object, ...]:
    return problem.processes[0], problem.kind, problem.subject, problem.device, problem.sentence


_SUBMITTED = "No process has called submit() or map()."

PAGES = (
    Page(
        "Functions",
        pick(tables.CALLS, "function", "process", "device", "calls a second", "busy", "p50", "p99", "errors",
             "elsewhere", "calls", "moved", "queue", "prediction"),
        _calls, _call_name, 4, True, "No call has ended yet.",
    ),
    Page(
        "Processes",
        pick(tables.PROCESSES, "process", "script", "state", "calls a second", "processor", "memory", "errors",
             "waiting", "calls", "held", "since", "answer"),
        lambda looks: [_process(look) for look in looks], lambda row: (row.pid,), 3, True, "",
    ),
    Page(
        "Queues",
        pick(tables.LANES, "process", "device", "state", "running", "for", "waiting", "backlog", "done", "failed",
             "tasks a launch", "busy", "generation"),
        lambda looks: [
            row
            for look, snapshot in _answers(looks)
            for row in tables.lanes(look.process.pid, snapshot.runtime, whole=True)
        ],
        lambda row: (row.pid, row.lane.device), 0, False, _SUBMITTED,
    ),
    Page(
        "Tenants",
        pick(tables.TENANTS, "tenant", "process", "waiting", "bytes", "device time", "now"),
        _tenants, lambda row: (row.pid, row.tenant.tenant), 4, True, _SUBMITTED,
    ),
    Page(
        "Losses",
        pick(tables.PROBLEMS, "what", "process", "device", "when", "event"),
        lambda looks: _problems(looks, "loss"), _problem_name, 3, False,
        "No device was lost, and no call ran elsewhere than it was meant to.",
    ),
    Page(
        "Anomalies",
        pick(tables.PROBLEMS, "when", "process", "what", "subject", "why"),
        lambda looks: _problems(looks, "anomaly"), _problem_name, 0, False, "Nothing is unusual.",
    ),
    Page(
        "Steps",
        pick(tables.STEPS, "step", "process", "device", "calls a second", "p50", "wait", "move", "longest", "again",
             "errors", "peak", "predicted"),
        _steps, _call_name, 0, False, "No training step has ended: anygpu.pytorch.Step makes them.",
    ),
)  # fmt: skip


# -- devices, which are above every page

DEVICES = pick(tables.DEVICES, "card", "bar", "memory", "held", "°C", "power", "clock")


def cards(own: Mapping[str, Usage], devices: Sequence[Device], looks: Sequence[Look]) -> list[DeviceRow]:
    """A row for each card, with its use and the bytes that observed processes hold on it.

    `own` is what this process has read of `devices`; processes tell of their own software devices and of what is
    missing there.
    """
    software = {device.id for device in devices if device.software}
    usages: dict[str, list[Usage]] = {}
    names: dict[str, dict[str, None]] = {}
    for device, usage in own.items():
        if device not in software:
            usages[usage.card] = [usage]
            names.setdefault(usage.card, {})[device] = None
    known = set(usages)
    held: dict[str, int] = {}
    for look, snapshot in _answers(looks):
        if look.trouble is not None:
            continue
        for device, usage in snapshot.usage.items():
            names.setdefault(usage.card, {})[device] = None
            if usage.card not in known:
                usages.setdefault(usage.card, []).append(usage)
            if device in snapshot.memory:
                held[usage.card] = held.get(usage.card, 0) + snapshot.memory[device].bytes
    return [
        DeviceRow(name, _summed(each), tuple(device for device in names[name] if device != name), held.get(name))
        for name, each in usages.items()
    ]


def _summed(usages: Sequence[Usage]) -> Usage:
    """Usage of software is summed over processes, which each have their own; of a card all report the same."""
    first = usages[0]
    if first.source != "worker":
        return first
    loads = [each.load for each in usages if each.load is not None]
    used = [each.memory_used for each in usages if each.memory_used is not None]
    return msgspec.structs.replace(
        first, load=min(1.0, sum(loads)) if loads else None, memory_used=sum(used) if used else None
    )


def device_rows(found: Sequence[DeviceRow]) -> list[PageRow]:
    return rows(DEVICES, found, lambda row: (row.name,))


# -- order, filter and width


def filtered(rows: Sequence[PageRow], words: str) -> list[PageRow]:
    """The rows that have every word somewhere, in upper or lower case."""
    wanted = words.lower().split()
    if not wanted:
        return list(rows)
    return [row for row in rows if all(any(word in cell.text.lower() for cell in row.cells) for word in wanted)]


def in_order(rows: Sequence[PageRow], column: int, *, descending: bool) -> list[PageRow]:
    """Sorted by a column, and where that is equal by name, so that rows do not dance. What is unknown comes last."""
    known = [row for row in rows if row.cells[column].key is not None]
    unknown = [row for row in rows if row.cells[column].key is None]
    known.sort(key=lambda row: row.name)
    # Texts and numbers are not compared with each other.
    known.sort(key=lambda row: _order(row.cells[column].key), reverse=descending)
    return known + sorted(unknown, key=lambda row: row.name)


def _order(key: float | str | None) -> tuple[bool, float, str]:
    """A key that sorts numbers before texts, and never compares the two."""
    return (True, 0.0, key) if isinstance(key, str) else (False, key or 0.0, "")


def widths(columns: Sequence[Column[Any]], available: int) -> list[int]:
    """How wide each column is, in so many characters with one between two; 0 for those that are left out.

    Columns with the highest `optional` go first where there is no room. What is left is divided among those that take
    it.
    """
    taken = [column.width for column in columns]

    def needed() -> int:
        shown = [width for width in taken if width]
        return sum(shown) + len(shown) - 1

    for least_needed in sorted({column.optional for column in columns if column.optional}, reverse=True):
        if needed() <= available:
            break
        taken = [0 if column.optional == least_needed else width for column, width in zip(columns, taken, strict=True)]
    spare = max(0, available - needed())
    taking = sum(column.takes_rest for column in columns)
    for number, column in enumerate(columns):
        if column.takes_rest:
            more = spare // taking
            taken[number], spare, taking = taken[number] + more, spare - more, taking - 1
    return taken


def fit(text: str, room: int, *, right: bool) -> str:
    """The text in exactly so many cells of a terminal, where some letters take two."""
    length = cell_len(text)
    if length > room:
        return set_cell_size(set_cell_size(text, room - 1).rstrip() + "…", room)
    return " " * (room - length) + text if right else text + " " * (room - length)


def headline(looks: Sequence[Look]) -> str:
    """One line about everything: processes, calls a second, silent processes, and the time."""
    answering = [look for look in looks if look.trouble is None]
    calls = sum(rate.calls for look in answering for rate in rates(look).values())
    silent = sum(1 for look in looks if look.trouble is not None and look.ended is None)
    parts = [f"{len(answering)} process{'' if len(answering) == 1 else 'es'}", f"{compact(calls)} calls/s"]
    parts += [f"{silent} silent"] if silent else []
    return " · ".join([*parts, time.strftime("%H:%M:%S")])


# -- all that is known of one row


def details(page: Page, row: PageRow, looks: Sequence[Look]) -> Text:
    """Every column of a row by its name, and of a function everything that was counted."""
    found = Text()
    found.append(f"{page.title}\n\n", style="bold")
    # What is said below in more detail is not said here.
    of_function = page.title in ("Functions", "Steps")
    most = 5 if of_function else len(page.columns)
    for column, cell in list(zip(page.columns, row.cells, strict=True))[:most]:
        _line(found, heading(column).lower(), cell.text)
    for look in looks:
        if str(look.process.pid) != row.name[0] or look.snapshot is None:
            continue
        _line(found, "command", look.snapshot.process.command)
        _line(found, "anygpu", look.snapshot.process.version)
        if look.trouble:
            _line(found, "trouble", look.trouble)
        if of_function:
            for each in look.snapshot.statistics.calls:
                if (each.function, each.device) == row.name[1:]:
                    _function(found, each)
            for fallback in look.snapshot.fallbacks[-5:]:
                if fallback.function == row.name[1]:
                    _line(found, "fallback", f"{fallback.device}: {fallback.reason}")
    found.append("\nEsc closes this.", style="dim")
    return found


def _function(found: Text, calls: CallStatistics) -> None:
    """Append the details of a function: quantiles of its seconds, phases, and failures."""
    found.append("\nSeconds\n", style="bold")
    for name, quantiles in (("five minutes", calls.lately), ("since the start", calls.seconds)):
        _line(found, name, _quantiles(quantiles))
    total = sum(calls.phases.values())
    found.append("\nPhases\n", style="bold")
    for phase, seconds in sorted(calls.phases.items(), key=lambda item: -item[1]):
        if seconds > 0:
            _line(found, phase, _share(seconds, total))
        if phase == "run":
            for part, of_it in sorted(calls.parts.items(), key=lambda item: -item[1]):
                _line(found, f"  {part}", _share(of_it, total))
    found.append("\nCounted\n", style="bold")
    if calls.peak_bytes is not None or calls.predicted_bytes is not None:
        _line(found, "memory", _memory(calls))
    moved = (calls.bytes_to_device, "to the device"), (calls.bytes_to_host, "back"), (calls.bytes_skipped, "not moved")
    _line(found, "bytes", ", ".join(f"{short_bytes(count)} {where}" for count, where in moved))
    _line(found, "compilations", compact(calls.compilations))
    _line(
        found, "fallbacks", f"{compact(calls.fallbacks)} calls, {compact(calls.host_operations)} operations on the host"
    )
    if calls.repeats:
        _line(found, "repeats", f"{compact(calls.repeats)} attempts failed and were made again on the same device")
    if calls.seconds_of_predicted:
        of_them = (
            f"{short_seconds(calls.predicted_seconds)} predicted, {short_seconds(calls.seconds_of_predicted)} taken"
        )
        _line(found, "prediction", of_them)
    for error, times in sorted(calls.errors.items(), key=lambda item: -item[1]):
        _line(found, "error", f"{compact(times)} × {error}")


def _share(seconds: float, total: float) -> str:
    """Seconds with their share of the total, in columns."""
    return f"{short_seconds(seconds):>9}  {percent(seconds / total if total else 0.0):>6}"


def _memory(calls: CallStatistics) -> str:
    """The peak of calls and the predicted one, in words."""
    peak = "the peak is not known" if calls.peak_bytes is None else f"{short_bytes(calls.peak_bytes)} at most at once"
    return peak if calls.predicted_bytes is None else f"{peak}, {short_bytes(calls.predicted_bytes)} predicted"


def _quantiles(seconds: Quantiles) -> str:
    """The quantiles of calls on one line; "no calls" if there were none."""
    if seconds.p50 is None or seconds.p90 is None or seconds.p99 is None:
        return "no calls"
    parts = (("p50", seconds.p50), ("p90", seconds.p90), ("p99", seconds.p99), ("longest", seconds.most))
    return ", ".join(f"{name} {short_seconds(value)}" for name, value in parts) + f"; {compact(seconds.count)} calls"


def _line(found: Text, name: str, value: str) -> None:
    """Appends a line with a name and a value, both made printable."""
    # The names of a step's parts are the user's.
    found.append(f"  {printable(name):<16} ", style="bold").append(f"{printable(value)}\n")


# -- one picture of `anygpu top`: all processes and the devices of this machine, as text and as JSON


class Picture(NamedTuple):
    """Everything at a moment: the looks at processes, the rows of cards, and the use of devices by id."""

    looks: tuple[Look, ...]
    cards: tuple[DeviceRow, ...]
    usage: dict[str, Usage]


class Silent(msgspec.Struct, frozen=True, kw_only=True):
    """A process that has not answered."""

    pid: int
    why: str


class TopDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The document that `anygpu top --once --json` prints."""

    schema: str = "anygpu.top/1"
    #: Seconds since 1970.
    time: float
    processes: tuple[Snapshot, ...]
    silent: tuple[Silent, ...] = ()
    #: Usage of the devices of this machine, by id.
    usage: dict[str, Usage] = {}

    def to_json(self) -> bytes:
        """The document as indented JSON, in UTF-8."""
        return msgspec.json.format(encode_json(self), indent=2)


class Watching:
    """Takes one picture after the other. For one thread at a time.

    `devices` may be set from another thread once they are known.
    """

    def __init__(self, following: Following | None = None, devices: Sequence[Device] = ()) -> None:
        self._following = following or Following()
        self._reader = UsageReader()
        #: The devices of this machine, once they are known.
        self.devices: Sequence[Device] = devices

    def look(self) -> Picture:
        """Asks all processes and reads the devices of this machine. Takes as long as the slowest answer."""
        looks = self._following.look()
        devices = self.devices
        usage = self._reader.read([each for each in devices if not each.software])
        return Picture(tuple(looks), tuple(cards(usage, devices, looks)), usage)

    def close(self) -> None:
        self._following.close()


def document(picture: Picture) -> TopDocument:
    """The picture as the document of `--json`; processes that have ended are left out."""
    answered = [look for look in picture.looks if look.trouble is None and look.snapshot is not None]
    silent = [look for look in picture.looks if look.trouble is not None and look.ended is None]
    return TopDocument(
        time=time.time(),
        processes=tuple(look.snapshot for look in answered if look.snapshot is not None),
        silent=tuple(Silent(pid=look.process.pid, why=look.trouble or "") for look in silent),
        usage=picture.usage,
    )


STYLES = {"": "", "dim": "dim", "good": "green", "warn": "yellow", "bad": "bold red"}


def show_once(console: Console, picture: Picture) -> None:
    """All pages that have anything to say, one below the other."""
    console.print(Text(f"anygpu top · {headline(picture.looks)}"))
    if picture.cards:
        _show(console, "", DEVICES, device_rows(picture.cards))
    if not picture.looks:
        console.print()
        console.print(Text(NO_PROCESS))
        return
    for page in PAGES:
        rows = page.rows(picture.looks)
        if rows:
            _show(console, page.title, page.columns, in_order(rows, page.sort, descending=page.descending))


def _show(console: Console, title: str, columns: Sequence[Column[Any]], rows: Sequence[PageRow]) -> None:
    """Prints rows as a table, cut to the width of the terminal; nothing is cut in a file."""
    console.print()
    if title:
        console.print(Text(title, style="bold"))
    if console.is_terminal:
        room = widths(columns, console.width)
    else:  # to a file, nothing is left out or cut off
        room = [
            max(cell_len(each) for each in (heading(column), *(row.cells[number].text for row in rows)))
            for number, column in enumerate(columns)
        ]
    shown = [(number, column, width) for number, (column, width) in enumerate(zip(columns, room, strict=True)) if width]
    head = " ".join(fit(heading(column), width, right=column.right) for _, column, width in shown)
    console.print(Text(head.rstrip(), style="dim"), soft_wrap=True)
    for row in rows:
        line = Text(" ").join(_styled(row.cells[number], column, width) for number, column, width in shown)
        line.rstrip()
        console.print(line, soft_wrap=True)


def _styled(cell: Cell, column: Column[Any], width: int) -> Text:
    return Text(fit(cell.text, width, right=column.right), style=STYLES[cell.tone])
