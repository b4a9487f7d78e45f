"""What `anygpu top` shows of the processes that it follows, as pages of rows: pure functions of their answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from anygpu.base.printable import printable
from anygpu.base.units import readable_bytes, readable_seconds
from anygpu.observe.looking import Look, processor_share, rates
from anygpu.observe.snapshot import Snapshot
from anygpu.observe.statistics import CallStatistics

UNKNOWN = "–"

#: How a cell is meant: nothing special, not important, good, a warning, bad.
Tone = Literal["", "dim", "good", "warn", "bad"]


class Column(NamedTuple):
    """One column. Of those that do not fit, the ones that are needed least are left out."""

    name: str
    #: What it is, for the help.
    meaning: str
    #: In characters; of a column that takes what is left, or a part of it, the least.
    width: int
    right: bool = True
    takes_rest: bool = False
    #: The higher, the sooner it is left out; 0 never is.
    optional: int = 0


class Cell(NamedTuple):
    text: str
    #: What it is sorted by; numbers come before unknown ones, whichever way.
    key: float | str | None
    tone: Tone = ""


class Row(NamedTuple):
    """One line; `name` stays the same from one picture to the next."""

    name: tuple[str, ...]
    cells: tuple[Cell, ...]


class Page(NamedTuple):
    """One kind of thing that can be looked at."""

    title: str
    columns: tuple[Column, ...]
    #: The column that rows are sorted by at first, and whether the largest come first.
    sort: int
    descending: bool
    rows: Callable[[Sequence[Look]], list[Row]]
    #: What is said when there are none.
    empty: str


def text(value: str, tone: Tone = "") -> Cell:
    shown = printable(value)
    return Cell(shown or UNKNOWN, shown.lower(), tone)


def number(value: float | None, how: Callable[[float], str], tone: Tone = "") -> Cell:
    return Cell(UNKNOWN, None, "dim") if value is None else Cell(how(value), value, tone)


def count(value: float | None, tone: Tone = "") -> Cell:
    """Zeros are dim: what is not zero should be seen."""
    return number(value, compact, tone if value else "dim")


def compact(value: float) -> str:
    """In at most five characters: 7, 12.3, 950, 1,234, 12.3k, 4.56M."""
    if value < 100 and value != int(value):
        return f"{value:.1f}"
    if value < 10_000:
        return f"{value:,.0f}"
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.{0 if value >= 100 * size else 1}f}{unit}"
    raise AssertionError("unreachable")


def percent(value: float) -> str:
    return f"{value * 100:.1f}%" if value < 0.0995 else f"{value:.0%}"


def bytes_(value: float) -> str:
    return readable_bytes(int(value)).replace(" bytes", " B").replace("iB", "")


def seconds_(value: float) -> str:
    return readable_seconds(value) if value < 1000 else ago(value)


def ago(seconds: float) -> str:
    """As a clock: 12s, 3:05, 2:03:04, 5d 3h."""
    whole = int(max(0.0, seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d}"
    if whole < 100 * 3600:
        return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
    return f"{whole // 86400}d {whole // 3600 % 24}h"


def short_command(command: str) -> str:
    """Without the interpreter, whose path is long and says little."""
    first, _, rest = command.partition(" ")
    return rest if rest and first.rpartition("/")[2].startswith(("python", "pypy")) else command


def _pid(look: Look) -> Cell:
    return Cell(str(look.process.pid), look.process.pid, "dim" if look.trouble else "")


def _answers(looks: Sequence[Look]) -> list[tuple[Look, Snapshot]]:
    return [(look, look.snapshot) for look in looks if look.snapshot is not None]


def errors_of(calls: CallStatistics) -> int:
    return sum(calls.errors.values())


# -- functions

_FUNCTIONS = (
    Column("FUNCTION", "the name of the function", 14, right=False, takes_rest=True),
    Column("PID", "its process", 7),
    Column("DEVICE", "where it ran", 10, right=False),
    Column("CALLS/S", "calls in each second, since the last look", 7),
    Column("BUSY", "seconds of calls in each second: 100% is one call at a time without a pause", 5),
    Column("P50", "half of the calls of the last five minutes took no longer", 7),
    Column("P99", "99 % of the calls of the last five minutes took no longer", 7),
    Column("ERR", "calls that raised", 4),
    Column("FALL", "calls that did not run where they were first meant to, or not as a whole", 4),
    Column("CALLS", "calls since the process is observed", 6, optional=1),
    Column("MOVED", "bytes to the device and back", 8, optional=2),
    Column("QUEUE", "share of the calls' time in which they waited for their turn", 5, optional=3),
    Column("PRED", "predicted time by actual time: 1.0 is right, less is too optimistic", 5, optional=4),
)


def _functions(looks: Sequence[Look]) -> list[Row]:
    rows = []
    for look, snapshot in _answers(looks):
        known = rates(look)
        for each in snapshot.statistics.calls:
            rate = known.get((each.function, each.device))
            total = each.seconds.total
            failed, fell = errors_of(each), each.fallbacks + each.host_operations
            late = each.predicted_seconds / each.seconds_of_predicted if each.seconds_of_predicted else None
            cells = (
                text(each.function, "dim" if look.trouble else ""),
                _pid(look),
                text(each.device, "dim" if each.device == "numpy" else "good"),
                count(None if rate is None else rate.calls),
                number(None if rate is None else rate.busy, percent, "dim" if rate is None or not rate.calls else ""),
                number(each.lately.p50, seconds_),
                number(each.lately.p99, seconds_),
                count(failed, "bad"),
                count(fell, "warn"),
                count(each.calls),
                number(each.bytes_to_device + each.bytes_to_host, bytes_),
                number(each.phases.get("queue", 0.0) / total if total else None, percent),
                number(late, lambda value: f"{value:.2f}"),
            )
            rows.append(Row((str(look.process.pid), each.function, each.device), cells))
    return rows


# -- processes

_PROCESSES = (
    Column("PID", "the process", 7),
    Column("COMMAND", "how it was started", 16, right=False, takes_rest=True),
    Column("STATE", "whether it answers", 8, right=False),
    Column("CALLS/S", "calls in each second, since the last look", 7),
    Column("CPU", "share of one core", 5),
    Column("MEMORY", "of the process, without its workers", 8),
    Column("ERR", "calls that raised", 5),
    Column("WAIT", "tasks that wait", 5),
    Column("CALLS", "calls since it is observed", 7, optional=1),
    Column("HELD", "bytes that it has on devices", 8, optional=2),
    Column("SINCE", "how long it is observed", 8, optional=3),
    Column("ANSWER", "how long its last answer took", 7, optional=4),
)


def _state(look: Look) -> Cell:
    if look.ended is not None:
        return Cell("ended", "ended", "dim")
    return Cell("silent", "silent", "warn") if look.trouble is not None else Cell("answers", "answers", "good")


def _processes(looks: Sequence[Look]) -> list[Row]:
    rows = []
    for look in looks:
        seen = look.snapshot
        known = rates(look)
        calls = seen.statistics.calls if seen is not None else ()
        runtime = seen.runtime if seen is not None else None
        held = sum(each.bytes for each in seen.memory.values()) if seen is not None and seen.memory else None
        cells = (
            _pid(look),
            text(short_command(seen.process.command) if seen is not None else look.trouble or "", _pid(look).tone),
            _state(look),
            count(sum(rate.calls for rate in known.values()) if look.before and not look.trouble else None),
            number(processor_share(look), percent),
            number(seen.process.memory_bytes if seen is not None else None, bytes_),
            count(sum(errors_of(each) for each in calls), "bad"),
            count(runtime.waiting if runtime is not None else None, "warn"),
            count(sum(each.calls for each in calls)),
            number(held, bytes_),
            number(seen.time - seen.process.since if seen is not None else None, ago),
            number(look.seconds, seconds_),
        )
        rows.append(Row((str(look.process.pid),), cells))
    return rows


# -- queues

_QUEUES = (
    Column("PID", "the process", 7),
    Column("DEVICE", "whose queue it is; “all” is what waits for any device", 10, right=False),
    Column("STATE", "idle, busy, or late: something takes much longer than predicted", 6, right=False),
    Column("RUNNING", "what runs there", 12, right=False, takes_rest=True),
    Column("FOR", "since when", 7),
    Column("WAIT", "tasks that wait; for a device, the seconds that are predicted for them", 7),
    Column("DONE", "tasks that are done", 6),
    Column("FAIL", "tasks that failed", 5),
    Column("BATCH", "tasks in one launch of several", 5),
    Column("BUSY", "seconds that it has worked", 7, optional=1),
    Column("GEN", "1 for its first worker, one more for each that replaced a lost one", 3, optional=2),
)


def _queues(looks: Sequence[Look]) -> list[Row]:
    rows = []
    for look, snapshot in _answers(looks):
        health = snapshot.runtime
        if health is None:
            continue
        state: Tone = "good" if health.ok else "bad"
        whole = (
            _pid(look),
            text("all"),
            text("ok" if health.ok else "closed" if health.closed else "late", state),
            text(f"{health.waiting} of at most {health.limit} wait, {health.open_tasks} are open", "dim"),
            number(health.oldest_seconds, seconds_),
            count(health.waiting, "warn"),
            count(sum(lane.done for lane in health.lanes)),
            count(sum(lane.failed for lane in health.lanes), "bad"),
            Cell("", None),
            number(sum(lane.busy_seconds for lane in health.lanes), seconds_),
            Cell("", None),
        )
        rows.append(Row((str(look.process.pid), "all"), whole))
        for lane in health.lanes:
            tone: Tone = "bad" if lane.condition == "late" else "good" if lane.condition == "busy" else "dim"
            batch = lane.batched / lane.batches if lane.batches else None
            cells = (
                _pid(look),
                text(lane.device),
                text(lane.condition, tone),
                text(", ".join(lane.running), "" if lane.running else "dim"),
                number(lane.seconds if lane.running else None, seconds_),
                number(lane.backlog_seconds, seconds_, "dim" if not lane.backlog_seconds else ""),
                count(lane.done),
                count(lane.failed, "bad"),
                number(batch, lambda value: f"{value:.1f}"),
                number(lane.busy_seconds, seconds_),
                count(lane.generation),
            )
            rows.append(Row((str(look.process.pid), lane.device), cells))
    return rows


# -- tenants

_TENANTS = (
    Column("TENANT", "who submitted the tasks", 16, right=False, takes_rest=True),
    Column("PID", "the process", 7),
    Column("WAIT", "tasks that wait", 7),
    Column("BYTES", "of the tasks that wait", 9),
    Column("DEVICE TIME", "seconds of devices that it has used", 11),
    Column("NOW", "seconds of devices in each second, since the last look", 6),
)


def _tenants(looks: Sequence[Look]) -> list[Row]:
    rows = []
    for look, snapshot in _answers(looks):
        if snapshot.runtime is None:
            continue
        before = look.before.runtime if look.before is not None else None
        earlier = {each.tenant: each.seconds for each in before.tenants} if before is not None else {}
        elapsed = snapshot.time - look.before.time if look.before is not None else 0.0
        for each in snapshot.runtime.tenants:
            used = each.seconds - earlier.get(each.tenant, 0.0)
            now = used / elapsed if elapsed > 0 and not look.trouble else None
            cells = (
                text(each.tenant),
                _pid(look),
                count(each.waiting, "warn"),
                number(each.bytes, bytes_, "dim" if not each.bytes else ""),
                number(each.seconds, seconds_),
                number(now, percent),
            )
            rows.append(Row((str(look.process.pid), each.tenant), cells))
    return rows


# -- losses: what went wrong with devices, and calls that ran elsewhere because of it

_LOSSES = (
    Column("KIND", "a lost device, a wrong result, a fallback, or a repeat on the same device", 8, right=False),
    Column("PID", "the process", 7),
    Column("DEVICE", "which; for a fallback, where the call ran at last", 10, right=False),
    Column("AGO", "how long ago, where that is known", 7),
    Column("WHAT", "what happened", 20, right=False, takes_rest=True),
)


def _losses(looks: Sequence[Look]) -> list[Row]:
    rows = []
    for look, snapshot in _answers(looks):
        pid = str(look.process.pid)
        health = snapshot.runtime
        for order, loss in enumerate(health.losses if health is not None else ()):
            what = text(str(loss).partition(", generation ")[2] or str(loss), "")
            cells = (text("lost", "bad"), _pid(look), text(loss.device), Cell(UNKNOWN, None, "dim"), what)
            rows.append(Row((pid, "lost", str(order), loss.device), cells))
        for wrong in health.mismatches if health is not None else ():
            said = text(f"{wrong.task}: {wrong.sentence}")
            cells = (text("wrong", "bad"), _pid(look), text(wrong.device), Cell(UNKNOWN, None, "dim"), said)
            rows.append(Row((pid, "wrong", wrong.id), cells))
        # The same function falls back for the same reason again and again: the latest of them is enough.
        latest = {(each.function, each.reason): each for each in snapshot.fallbacks}
        for each in latest.values():
            since = number(snapshot.time - each.end, ago)
            said = text(f"{each.function}: {each.reason}")
            kind = "repeat" if each.repeated else "fallback"
            cells = (text(kind, "warn"), _pid(look), text(each.device), since, said)
            rows.append(Row((pid, kind, each.function, each.reason), cells))
    return rows


# -- anomalies

_ANOMALIES = (
    Column("AGO", "when it was noticed", 7),
    Column("PID", "the process", 7),
    Column("KIND", "what kind", 12, right=False),
    Column("SUBJECT", "the function or device that it is about", 14, right=False),
    Column("WHAT", "what is not as it was", 20, right=False, takes_rest=True),
)


def _anomalies(looks: Sequence[Look]) -> list[Row]:
    rows = []
    for look, snapshot in _answers(looks):
        for each in snapshot.anomalies:
            cells = (
                number(snapshot.time - each.time, ago),
                _pid(look),
                text(each.kind, "warn"),
                text(each.subject),
                text(each.sentence),
            )
            rows.append(Row((str(look.process.pid), each.kind, each.subject, f"{each.time}"), cells))
    return rows


# -- steps: calls that have parts

_STEPS = (
    Column("FUNCTION", "what is called", 12, right=False, takes_rest=True),
    Column("PID", "its process", 7, optional=2),
    Column("DEVICE", "where it ran", 10, right=False, optional=3),
    Column("STEPS/S", "steps in each second, since the last look", 7, optional=4),
    Column("P50", "half of the steps of the last five minutes took no longer", 7),
    Column("WAIT", "share of the time in which a step waited for its data", 5),
    Column("MOVE", "share of the time in which data was moved to the device and back", 5),
    Column("PARTS", "the parts of a step with their shares of the time, the longest first", 27, False, takes_rest=True),
    Column("AGAIN", "attempts that failed and were repeated, as after running out of memory", 5),
    Column("ERR", "steps that raised", 4),
    Column("PEAK", "the most memory that a step had at once", 8),
    Column("PREDICTED", "the memory that was predicted for that step", 9, optional=1),
)


def _steps(looks: Sequence[Look]) -> list[Row]:
    rows = []
    for look, snapshot in _answers(looks):
        known = rates(look)
        for each in snapshot.statistics.calls:
            if not each.parts:
                continue
            rate, whole = known.get((each.function, each.device)), sum(each.phases.values())
            moving = each.phases.get("write", 0.0) + each.phases.get("read", 0.0)
            cells = (
                text(each.function, "dim" if look.trouble else ""),
                _pid(look),
                text(each.device, "good"),
                count(None if rate is None else rate.calls),
                number(each.lately.p50, seconds_),
                number(each.phases.get("queue", 0.0) / whole if whole else None, percent),
                number(moving / whole if whole else None, percent),
                text(parts_of(each)),
                count(each.repeats, "warn"),
                count(errors_of(each), "bad"),
                number(each.peak_bytes, bytes_),
                number(each.predicted_bytes, bytes_),
            )
            rows.append(Row((str(look.process.pid), each.function, each.device), cells))
    return rows


def parts_of(calls: CallStatistics) -> str:
    """Each part with its share of the calls' time, the longest first."""
    whole = sum(calls.phases.values()) or 1.0
    longest = sorted(calls.parts.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {seconds / whole:.0%}" for name, seconds in longest)


PAGES = (
    Page("Functions", _FUNCTIONS, 4, True, _functions, "No call has ended yet."),
    Page("Processes", _PROCESSES, 3, True, _processes, ""),
    Page("Queues", _QUEUES, 0, False, _queues, "No process has called submit() or map()."),
    Page("Tenants", _TENANTS, 4, True, _tenants, "No process has called submit() or map()."),
    Page("Losses", _LOSSES, 3, False, _losses, "No device was lost, and no call ran elsewhere than it was meant to."),
    Page("Anomalies", _ANOMALIES, 0, False, _anomalies, "Nothing is unusual."),
    Page("Steps", _STEPS, 0, False, _steps, "No training step has ended: anygpu.pytorch.Step makes them."),
)
NOBODY = "No process of yours is observed. Start one: anygpu run script.py"


def filtered(rows: Sequence[Row], words: str) -> list[Row]:
    """Those that have every word somewhere, in upper or lower case."""
    wanted = words.lower().split()
    if not wanted:
        return list(rows)
    return [row for row in rows if all(any(word in cell.text.lower() for cell in row.cells) for word in wanted)]


def in_order(rows: Sequence[Row], column: int, *, descending: bool) -> list[Row]:
    """Sorted by a column, and where that is equal by name, so that rows do not dance. What is unknown comes last."""
    known = [row for row in rows if row.cells[column].key is not None]
    unknown = [row for row in rows if row.cells[column].key is None]
    known.sort(key=lambda row: row.name)
    # Texts and numbers are not compared with each other.
    known.sort(key=lambda row: _order(row.cells[column].key), reverse=descending)
    return known + sorted(unknown, key=lambda row: row.name)


def _order(key: float | str | None) -> tuple[bool, float, str]:
    return (True, 0.0, key) if isinstance(key, str) else (False, key or 0.0, "")


def widths(columns: Sequence[Column], available: int) -> list[int]:
    """How wide each column is, in so many characters with one between two; 0 for those that are left out."""
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


def headline(looks: Sequence[Look]) -> str:
    """One line about everything."""
    answering = [look for look in looks if look.trouble is None]
    calls = sum(rate.calls for look in answering for rate in rates(look).values())
    silent = sum(1 for look in looks if look.trouble is not None and look.ended is None)
    parts = [f"{len(answering)} process{'' if len(answering) == 1 else 'es'}", f"{compact(calls)} calls/s"]
    parts += [f"{silent} silent"] if silent else []
    return " · ".join([*parts, time.strftime("%H:%M:%S")])
