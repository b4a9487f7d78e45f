"""The columns that the page draws: pure functions of the history and of the view that was chosen.

First the figures: the timeline of calls, lines over time, memory by owner, and predictions. Then the tables and tiles,
with notes on what is missing; their columns are those of `anygpu.observe.tables`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from anygpu.base.printable import printable
from anygpu.base.tables import LONG, Column, Formats, Item, Tone, cells, counted, pick, rounded_age
from anygpu.base.units import readable_bytes
from anygpu.hardware.usage import Usage
from anygpu.observe import tables
from anygpu.observe.dashboard.history import (
    BEGIN,
    CALLS,
    DEVICE,
    END,
    ERRORS,
    FUNCTION,
    KEPT_SECONDS,
    MOVE,
    OTHER,
    RUN,
    WAIT,
    CountSample,
    DashboardHistory,
    DeviceSample,
    ProcessHistory,
    Table,
    merged,
    placed,
    stacked,
)
from anygpu.observe.snapshot import Advice
from anygpu.observe.statistics import CallStatistics
from anygpu.observe.tables import CallRow, DeviceRow, ProcessRow

Columns = dict[str, Any]
Timed = TypeVar("Timed", CountSample, DeviceSample)

#: Told apart by most people, on white as on black; what comes later is grey.
PALETTE = (
    "#4c8bf5", "#f2913d", "#35a774", "#c965c4", "#e0575b", "#18a7b5", "#b5992a", "#8f7be8", "#d4679a", "#6f9e3f",
    "#a9714b", "#5fa8d3",
)  # fmt: skip
GREY = "#8a8f98"

#: Blocks to the width of a screen: what is closer cannot be told apart.
_ACROSS = 600
#: Blocks of a row that are drawn one by one; if there are more, time is cut into so many parts.
_MOST_BLOCKS, _PARTS = 150, 150
_MOST_TRACKS, _MOST_POINTS, _MOST_PAIRS = 14, 150, 600
#: The part of a row that is drawn in; the rest is the space between rows, with the line of what waits in it.
_BAND, _WAIT = (0.14, 0.92), 0.07


#: Texts in which Bokeh would see mathematics, for which it would load a library for it from another host.
_MATHEMATICS = ("$$", "\\(", "\\[")
MOST_LETTERS = 60


def shown(text: str, most: int = MOST_LETTERS) -> str:
    """The text without anything that is not a letter or a sign: no escapes, no letters that turn the line around.

    Signs in which Bokeh would see mathematics are parted by a thin space.
    """
    text = printable(text, most)
    for sign in _MATHEMATICS:
        text = text.replace(sign, sign[0] + "\u200a" + sign[1])
    return text


class HistoryView(NamedTuple):
    """The part of the history that is shown: the last `window` seconds before `now`, of one process or of all."""

    now: float
    window: float
    process: int | None = None

    def processes(self, history: DashboardHistory) -> list[tuple[int, ProcessHistory]]:
        """The processes of the view with their histories, by number."""
        return [(pid, each) for pid, each in sorted(history.processes.items()) if self.process in (None, pid)]


def colour(number: int) -> str:
    """The colour of a number: one of the palette, and grey beyond it."""
    return PALETTE[number] if number < len(PALETTE) else GREY


def process_colour(history: DashboardHistory, pid: int) -> str:
    """The colour of a process, by its place among all that are known."""
    return colour(sorted(history.processes).index(pid))


def calls(history: DashboardHistory, view: HistoryView) -> tuple[Columns, list[str]]:
    """The columns of the timeline, and the names of its rows, the lowest first."""
    found: dict[tuple[str, int], Table] = {}
    begin = view.now - view.window
    for pid, each in view.processes(history):
        blocks = each.blocks.rows()
        blocks = merged(blocks[blocks[:, END] > begin], view.window / _ACROSS)
        for device in np.unique(blocks[:, DEVICE]):
            found[history.devices.list[int(device)], pid] = blocks[blocks[:, DEVICE] == device]
    places = sorted(found, reverse=True)[-_MOST_TRACKS:]
    if not places:
        return _no_calls(), []
    rows = [_block_columns(history, view, row, place, found[place]) for row, place in enumerate(places)]
    columns: Columns = {}
    for name, values in rows[0].items():
        if isinstance(values, list):
            columns[name] = [value for each in rows for value in each[name]]
        else:
            # No screen tells more digits apart, and each of them is sent.
            columns[name] = np.concatenate([each[name] for each in rows]).round(4)
    return columns, _row_names(places)


def _no_calls() -> Columns:
    """The columns of an empty timeline."""
    empty = np.empty(0)
    names = ("left", "right", "bottom", "middle", "top", "line", "waited", "run", "move", "wait")
    numbers: Columns = dict.fromkeys(names, empty)
    texts: Columns = {name: [] for name in ("colour", "function", "where", "calls")}
    return numbers | texts


def _block_columns(
    history: DashboardHistory, view: HistoryView, row: int, place: tuple[str, int], blocks: Table
) -> Columns:
    """The columns of one row of the timeline: corners of blocks in seconds before now, and texts about them.

    Where there are too many blocks, the time is cut into parts; their borders stay while time goes on.
    """
    if len(blocks) > _MOST_BLOCKS:
        # Parts stay where they are while time goes on, or everything would flicker.
        width = view.window / _PARTS
        begin = math.floor((view.now - view.window) / width) * width
        drawn = stacked(blocks, begin, begin + (_PARTS + 1) * width, _PARTS + 1)
    else:
        drawn = placed(blocks)
    blocks = drawn.blocks
    low, high = _BAND
    left = blocks[:, BEGIN] - view.now
    # Whatever is shorter than a pixel is drawn as one; and what touches is drawn without a seam.
    right = np.maximum(blocks[:, END] - view.now + view.window / 5000, left + view.window / 1000)
    bottom, top = (row + low + each * (high - low) for each in (drawn.low, drawn.high))
    wait, move, run, count = (blocks[:, column] for column in (WAIT, MOVE, RUN, CALLS))
    functions = blocks[:, FUNCTION].astype(int).tolist()
    names = [shown(name) for name in history.functions.list]
    device, pid = place
    return {
        "left": left,
        "right": right,
        "bottom": bottom,
        "middle": bottom + (top - bottom) * np.divide(run, run + move, out=np.ones(len(run)), where=run + move > 0),
        "top": top,
        "line": np.full(len(left), row + _WAIT),
        "waited": left - np.minimum(wait / count, view.window),
        "colour": [colour(function) for function in functions],
        "function": [names[function] for function in functions],
        "where": [f"{shown(device)}, process {pid}"] * len(left),
        "calls": [
            _calls(number, failed) for number, failed in zip(count.tolist(), blocks[:, ERRORS].tolist(), strict=True)
        ],
        "run": 1e3 * run / count,
        "move": 1e3 * move / count,
        "wait": 1e3 * wait / count,
    }


def _calls(number: float, failed: float) -> str:
    """The number of calls of a block, and how many of them failed, in words."""
    # Of a call that is in several parts of the time, each part has a piece.
    text = "1 call" if number <= 1.5 else f"{number:.0f} calls"
    return f"{text}, {math.ceil(failed)} failed" if failed else text


def _row_names(places: Sequence[tuple[str, int]]) -> list[str]:
    """The names of rows: the device, and the process if there are several."""
    several = len({pid for _, pid in places}) > 1
    return [f"{shown(device, 20)} · {pid}" if several else shown(device, 24) for device, pid in places]


# -- lines: each has its times, its values, its colour and its name


def lines(named: Iterable[tuple[str, str, NDArray[np.float64], NDArray[np.float64]]]) -> Columns:
    """Columns from (name, colour, times, values); lines without a known value are left out."""
    columns: Columns = {"xs": [], "ys": [], "colour": [], "name": []}
    for name, its_colour, times, values in named:
        if len(values) and not np.isnan(values).all():
            columns["xs"].append(times)
            columns["ys"].append(values)
            columns["colour"].append(its_colour)
            columns["name"].append(name)
    return columns


def device_lines(history: DashboardHistory, view: HistoryView, value: Callable[[DeviceSample], float]) -> Columns:
    """One line a card: devices of one card have the same readings."""
    cards: dict[str, list[str]] = {}
    for device in sorted(history.device_samples):
        cards.setdefault(history.usage[device].card, []).append(device)
    found = []
    for number, devices in enumerate(cards.values()):
        samples = _thinned(history.device_samples[devices[0]], view)
        times = np.asarray([sample.time - view.now for sample in samples])
        values = np.asarray([value(sample) for sample in samples])
        found.append((shown(", ".join(devices), 40), colour(number), times, values))
    return lines(found)


def process_lines(
    history: DashboardHistory, view: HistoryView, value: Callable[[CountSample, CountSample], float]
) -> Columns:
    """One line a process, of a value that two samples make."""
    found = []
    for pid, each in view.processes(history):
        samples = _thinned(each.samples, view, least=1.0)
        pairs = list(itertools.pairwise(samples))
        times = np.asarray([after.time - view.now for _, after in pairs])
        values = np.asarray([value(before, after) for before, after in pairs])
        found.append((process_name(each), process_colour(history, pid), times, values))
    return lines(found)


def process_name(each: ProcessHistory) -> str:
    """The id, and what it runs."""
    words = each.process.command.split()
    script = next((word for word in words[1:] if not word.startswith("-")), words[0] if words else "")
    return f"{each.process.pid} {shown(script.rpartition('/')[2], 32)}" + ("" if each.alive else " (ended)")


def rate(before: CountSample, after: CountSample) -> float:
    """Calls a second."""
    return _ratio(after.calls - before.calls, after.time - before.time)


def tasks_per_launch(before: CountSample, after: CountSample) -> float:
    """Tasks in one launch of several, between two samples."""
    return _ratio(after.batched - before.batched, after.batches - before.batches)


def waiting(before: CountSample, after: CountSample) -> float:
    return after.waiting


def _ratio(above: float, below: float) -> float:
    """The quotient of two differences; NaN where a count did not grow, or began anew."""
    return above / below if below > 0 and above >= 0 else math.nan


def _thinned(samples: Iterable[Timed], view: HistoryView, least: float = 0.0) -> list[Timed]:
    """Samples within the window, as many as can be told apart, and always the same ones: lines must not flicker."""
    step = max(view.window / _MOST_POINTS, least)
    kept: list[Timed] = []
    part = -1
    for sample in samples:
        if sample.time < view.now - view.window - step:
            continue
        if int(sample.time / step) != part:
            part = int(sample.time / step)
            kept.append(sample)
    return kept


# -- memory by owner, one upon the other


def owners(history: DashboardHistory, view: HistoryView) -> Columns:
    """Memory by owner as areas of time and bytes, the largest lowest; of equal ones the one that was seen first.

    Owners beyond the palette are one area.
    """
    step = view.window / _MOST_POINTS
    taken: list[tuple[float, dict[str, int]]] = []
    part = -1
    for time, held in history.memory:
        if time < view.now - view.window - step or int(time / step) == part:
            continue
        part = int(time / step)
        sums: dict[str, int] = {}
        for (pid, device, owner), count in held.items():
            if view.process in (None, pid):
                name = f"{owner} on {device}"
                sums[name] = sums.get(name, 0) + count
        taken.append((time - view.now, sums))
    times = np.asarray([time for time, _ in taken])
    names = dict.fromkeys(name for _, sums in taken for name in sums)
    ordered = sorted(names, key=lambda name: -max(sums.get(name, 0) for _, sums in taken))
    most = len(PALETTE) - 1
    columns: Columns = {"xs": [], "ys": [], "colour": [], "name": []}
    floor = np.zeros(len(times))
    for number, name in enumerate(ordered[:most] + ([OTHER] if len(ordered) > most else [])):
        group = ordered[most:] if number == most else [name]
        height = np.asarray([sum(sums.get(each, 0) for each in group) for _, sums in taken], float)
        columns["xs"].append(np.concatenate((times, times[::-1])))
        columns["ys"].append(np.concatenate((floor, (floor + height)[::-1])))
        columns["colour"].append(GREY if number == most else colour(number))
        columns["name"].append(shown(name, 40))
        floor = floor + height
    return columns


# -- predicted against actual


def predictions(history: DashboardHistory, view: HistoryView) -> tuple[Columns, tuple[float, float]]:
    """The latest pairs of predicted and actual seconds, and the bounds of both axes."""
    tables = [each.pairs.rows()[-_MOST_PAIRS:] for _, each in view.processes(history)]
    table = np.concatenate(tables) if tables else np.empty((0, 4))
    if len(table) > _MOST_PAIRS:
        # Of all processes alike.
        table = table[np.linspace(0, len(table) - 1, _MOST_PAIRS).astype(int)]
    functions = table[:, 2].astype(int).tolist()
    names = [shown(name) for name in history.functions.list]
    columns: Columns = {
        "predicted": table[:, 0].copy(),
        "actual": np.maximum(table[:, 1], 1e-9),
        "colour": [colour(function) for function in functions],
        "function": [names[function] for function in functions],
        "device": [shown(history.devices.list[int(device)], 24) for device in table[:, 3]],
    }
    return columns, _bounds(columns)


def _bounds(columns: Columns) -> tuple[float, float]:
    """The same bounds for both axes, by whole powers of ten, so that the diagonal is one."""
    values = np.concatenate((columns["predicted"], columns["actual"]))
    values = values[values > 0]
    if not len(values):
        return 1e-6, 1.0
    low, high = math.floor(math.log10(values.min())), math.ceil(math.log10(values.max()))
    return 10.0**low, 10.0 ** max(high, low + 1)


WINDOWS = {"30 s": 30.0, "2 min": 120.0, "10 min": KEPT_SECONDS}


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
    """The cells of a table for the page's script: texts and tones by row.

    `colour` marks rows, and `why` says of a row what its unknown cells miss. `_MOST_ROWS` rows at most.
    """
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
    """The functions that took longest, each on each of its devices: the legend of the timeline.

    Calls of several processes are merged into one row.
    """
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
    """All processes, those that run first; also while one of them is chosen."""
    ordered = sorted(history.processes.items(), key=lambda item: (not item[1].alive, item[0]))
    rows = [_process(pid, each, view) for pid, each in ordered]
    return table(_PROCESSES, rows, colour=lambda row: process_colour(history, row.pid))


def _process(pid: int, each: ProcessHistory, view: HistoryView) -> ProcessRow:
    """The row of a process: whether it runs, is silent or has ended, and its rates."""
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
    """The devices with their readings, and why some of these are not known."""
    rows = [DeviceRow(device, usage) for device, usage in sorted(history.usage.items())]
    return table(_DEVICES, rows, why=lambda row: _not_known(row.usage))


def _with_runtime(history: DashboardHistory, view: HistoryView) -> list[tuple[int, ProcessHistory]]:
    """The running processes of the view that have submitted tasks."""
    return [(pid, each) for pid, each in view.processes(history) if each.alive and each.latest.runtime is not None]


def lanes(history: DashboardHistory, view: HistoryView) -> Columns:
    """Queues: one row for each device of each runtime."""
    rows = [row for pid, each in _with_runtime(history, view) for row in tables.lanes(pid, each.latest.runtime)]
    return table(_LANES, rows, colour=lambda row: process_colour(history, row.pid))


def tenants(history: DashboardHistory, view: HistoryView) -> Columns:
    """The tenants of all runtimes, those that used most first."""
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
    """A value of two samples that are a few seconds apart; `None` if there are not two yet."""
    if len(each.samples) < 2:
        return None
    newest = each.samples[-1]
    for sample in reversed(each.samples):
        if newest.time - sample.time >= _RATE_SECONDS:
            break
    return value(sample, newest)


def _not_known(usage: Usage) -> str:
    """Why readings of a device are not known, each reason once."""
    about: dict[str, list[str]] = {}
    for reading, why in usage.unknown.items():
        about.setdefault(why, []).append(reading.replace("_", " "))
    return shown("; ".join(f"{', '.join(readings)}: {why}" for why, readings in about.items()), 300)
