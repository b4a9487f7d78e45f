"""The tables and tiles of the dashboard: which columns each has, and notes on what is missing. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from anygpu.base.tables import LONG, Column, Formats, Item, Tone, cells, counted, pick, rounded_age
from anygpu.base.units import readable_bytes
from anygpu.hardware.usage import Usage
from anygpu.observe import tables
from anygpu.observe.dashboard.history import DashboardHistory, ProcessHistory
from anygpu.observe.dashboard.panels import Columns, HistoryView, colour, process_colour, rate, shown
from anygpu.observe.snapshot import Advice
from anygpu.observe.statistics import CallStatistics
from anygpu.observe.tables import CallRow, DeviceRow, ProcessRow

_MOST_ROWS = 60
#: How far apart the two samples are that a rate is made of.
_RATE_SECONDS = 5.0
#: A process that is busy may answer late.
_SILENT_SECONDS = 3.0


def _count(value: float) -> str:
    return counted(value) if value < 1e6 else f"{value / 1e6:,.1f} M"


_PAGE = Formats(
    {
        **LONG.units,
        "count": _count,
        "celsius": lambda value: f"{value:.0f} °C",
        "ratio": lambda value: f"{value:.2f} ×",
    },
    lambda text, letters: shown(" ".join(text.split()), letters),
)

_FUNCTIONS = pick(
    tables.CALLS, "function", "device", "calls", "p50", "p90", "p99", "actual / predicted", "failed"
)  # fmt: skip
_FITS = pick(tables.CALLS, "function", "device", "calls", "p50", "actual / predicted")
_STEPS = pick(
    tables.STEPS, "step", "device", "steps", "parts", "peak", "predicted", "again", "failed", "process"
)  # fmt: skip
_PROCESSES = pick(tables.PROCESSES, "process", "command", "state", "calls a second", "processor", "memory")
_DEVICES = (
    tables.DEVICES["device"],
    tables.DEVICES["load"]._replace(title="busy"),
    tables.DEVICES["memory"],
    tables.DEVICES["°C"]._replace(title="temperature"),
    *pick(tables.DEVICES, "power", "clock", "throttled"),
)
_LANES = pick(
    tables.LANES, "device", "process", "state", "running", "backlog", "done", "failed", "tasks a launch"
)  # fmt: skip
_TENANTS = pick(tables.TENANTS, "tenant", "waiting", "bytes", "device time", "share")
_PROBLEMS = pick(tables.PROBLEMS, "when", "what", "about", "why", "process")
_ADVICE: tuple[Column[tuple[int, Advice]], ...] = (
    Column("cost so far", lambda each: each[1].cost, "long"),
    Column("line", lambda each: each[1].line, letters=80),
    Column("what happens", lambda each: each[1].finding, "prose", letters=300),
    Column("what to write instead", lambda each: each[1].instead, "prose", letters=300),
    Column("process", lambda each: each[0], "id"),
)


def table(
    columns: Sequence[Column[Item]],
    items: Iterable[Item],
    *,
    colour: Callable[[Item], str] | None = None,
    why: Callable[[Item], str] | None = None,
) -> Columns:
    """Texts and tones of the cells by row, for the page's script; `why` says of a row what its unknown cells miss."""
    shown_items = list(items)[:_MOST_ROWS]
    rows = [cells(columns, item, _PAGE) for item in shown_items]
    return {
        "heads": [column.title for column in columns],
        "kinds": ["number" if column.right else column.unit for column in columns],
        "rows": [[cell.text for cell in row] for row in rows],
        "tones": [[cell.tone for cell in row] for row in rows],
        "colours": [] if colour is None else [colour(item) for item in shown_items],
        "whys": [] if why is None else [why(item) for item in shown_items],
    }


def tiles(history: DashboardHistory, view: HistoryView) -> list[tuple[str, str, Tone]]:
    """The figures at the top: name, value and tone."""
    here = [each for _, each in view.processes(history)]
    alive = [each for each in here if each.alive]
    calls = [one for each in here for one in each.latest.statistics.calls]
    failed = sum(sum(one.errors.values()) for one in calls)
    moved_away = sum(one.fallbacks for one in calls)
    lost = sum(len(each.latest.runtime.losses) for each in here if each.latest.runtime is not None)
    waiting = sum(each.latest.runtime.waiting for each in alive if each.latest.runtime is not None)
    memory = sum(held.bytes for each in alive for held in each.latest.memory.values())
    return [
        ("processes", f"{len(alive)}", ""),
        ("calls a second", _count(sum(latest_rate(each) or 0.0 for each in alive)), ""),
        ("calls", _count(sum(one.calls for one in calls)), ""),
        ("waiting", _count(waiting), ""),
        ("memory on devices", readable_bytes(memory), ""),
        ("failed calls", _count(failed), "bad" if failed else ""),
        ("fallbacks", _count(moved_away), "warn" if moved_away else ""),
        ("devices lost", _count(lost), "bad" if lost else ""),
    ]


def functions(history: DashboardHistory, view: HistoryView, columns: Sequence[Column[CallRow]] = _FUNCTIONS) -> Columns:
    """The functions that took longest, each on each of its devices: the legend of the timeline."""
    found: dict[tuple[str, str], list[CallStatistics]] = {}
    for _, each in view.processes(history):
        for one in each.latest.statistics.calls:
            found.setdefault((one.function, one.device), []).append(one)
    rows = [CallRow(tables.merged_calls(several)) for several in found.values()]
    rows.sort(key=lambda row: -row.calls.seconds.total)
    return table(columns, rows, colour=lambda row: colour(history.functions.number(row.calls.function)))


def fits(history: DashboardHistory, view: HistoryView) -> Columns:
    """The functions with how well their times were predicted."""
    return functions(history, view, _FITS)


def steps(history: DashboardHistory, view: HistoryView) -> Columns:
    """Training steps, and other calls that have parts: where their time goes, and their memory."""
    found = [
        CallRow(one, pid)
        for pid, each in view.processes(history)
        for one in each.latest.statistics.calls
        if one.parts
    ]  # fmt: skip
    return table(_STEPS, sorted(found, key=lambda row: -row.calls.seconds.total))


def processes(history: DashboardHistory, view: HistoryView) -> Columns:
    ordered = sorted(history.processes.items(), key=lambda item: (not item[1].alive, item[0]))
    rows = [_process(pid, each, view) for pid, each in ordered]
    return table(_PROCESSES, rows, colour=lambda row: process_colour(history, row.pid))


def _process(pid: int, each: ProcessHistory, view: HistoryView) -> ProcessRow:
    since = view.now - each.answered
    state: str = "runs"
    tone: Tone = ""
    if not each.alive:
        state, tone = f"ended {rounded_age(since)} ago", "dim"
    elif each.silent and since > _SILENT_SECONDS:
        state, tone = f"silent for {since:.0f} s", "warn"
    speed, processor = (latest_rate(each), _processor(each)) if each.alive else (None, None)
    return ProcessRow(pid, each.latest, state, tone, speed=speed, processor=processor)


def devices(history: DashboardHistory, view: HistoryView) -> Columns:
    rows = [DeviceRow(device, usage) for device, usage in sorted(history.usage.items())]
    return table(_DEVICES, rows, why=lambda row: _not_known(row.usage))


def _with_runtime(history: DashboardHistory, view: HistoryView) -> list[tuple[int, ProcessHistory]]:
    return [(pid, each) for pid, each in view.processes(history) if each.alive and each.latest.runtime is not None]


def lanes(history: DashboardHistory, view: HistoryView) -> Columns:
    """Queues: one row for each device of each runtime."""
    rows = [row for pid, each in _with_runtime(history, view) for row in tables.lanes(pid, each.latest.runtime)]
    return table(_LANES, rows, colour=lambda row: process_colour(history, row.pid))


def tenants(history: DashboardHistory, view: HistoryView) -> Columns:
    running = [each.latest.runtime for _, each in _with_runtime(history, view)]
    return table(
        _TENANTS,
        tables.merged_tenants(one for runtime in running if runtime is not None for one in runtime.tenants),
    )


def problems(history: DashboardHistory, view: HistoryView) -> Columns:
    """Lost devices and wrong results, then anomalies and fallbacks, the newest first."""
    here = [(pid, each.latest) for pid, each in view.processes(history)]
    return table(_PROBLEMS, tables.problems(here, view.now))


def advice(history: DashboardHistory, view: HistoryView) -> Columns:
    """Changes to programs that would save time, the costliest first."""
    found = [(pid, one) for pid, each in view.processes(history) for one in each.latest.advice]
    return table(_ADVICE, sorted(found, key=lambda each: -each[1].cost))


def notes(history: DashboardHistory, view: HistoryView) -> dict[str, str]:
    """By panel, why it is empty or what to know of it."""
    here = [each for _, each in view.processes(history)]
    said: dict[str, str] = {}
    if not history.processes:
        said["page"] = "No observed process. Start one with: anygpu run script.py"
    readings = {"load": "load", "temperature": "temperature", "power": "power", "memory": "memory_used"}
    for panel, reading in readings.items():
        if all(getattr(usage, reading) is None for usage in history.usage.values()):
            whys = dict.fromkeys(usage.unknown[reading] for usage in history.usage.values())
            said[panel] = shown("; ".join(whys), 300) if whys else "No process has looked at its devices yet."
    if not any(held for _, held in history.memory):
        said["owners"] = "No process holds memory of a device."
    if all(each.latest.runtime is None for each in here):
        said["waiting"] = said["batches"] = "No task was submitted: ag.submit() and ag.map() make tasks."
        said["lanes"] = said["tenants"] = "No task was submitted."
    if not any(len(each.pairs) for each in here):
        said["predictions"] = "No call had a prediction: the first calls of a function have none."
    if not steps(history, view)["rows"]:
        said["steps"] = "No training step has ended: anygpu.pytorch.Step makes them."
    if not any(each.latest.advice for each in here):
        said["advice"] = "No advice. anygpu advise script.py looks more closely."
    if not problems(history, view)["rows"]:
        said["problems"] = "No lost devices, no fallbacks."
    missed = sum(each.missed for each in here)
    if missed:
        said["missed"] = (
            f"{_count(missed)} calls came too fast to be drawn one by one; they are counted everywhere else."
        )
    return said


def latest_rate(each: ProcessHistory) -> float | None:
    """Calls a second, over the last few seconds."""
    found = _change(each, rate)
    return found if found == found else None


def _processor(each: ProcessHistory) -> float | None:
    """Share of one core, over the last few seconds."""

    def share(before: Any, after: Any) -> float | None:
        elapsed = after.time - before.time
        return (after.processor_seconds - before.processor_seconds) / elapsed if elapsed > 0 else None

    return _change(each, share)


def _change(each: ProcessHistory, value: Callable[[Any, Any], float | None]) -> float | None:
    """A value of two samples that are a few seconds apart."""
    if len(each.samples) < 2:
        return None
    newest = each.samples[-1]
    for sample in reversed(each.samples):
        if newest.time - sample.time >= _RATE_SECONDS:
            break
    return value(sample, newest)


def _not_known(usage: Usage) -> str:
    about: dict[str, list[str]] = {}
    for reading, why in usage.unknown.items():
        about.setdefault(why, []).append(reading.replace("_", " "))
    return shown("; ".join(f"{', '.join(readings)}: {why}" for why, readings in about.items()), 300)
