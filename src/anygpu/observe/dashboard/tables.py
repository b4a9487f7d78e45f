"""What the tables and the tiles of the dashboard say, as columns of texts. Pure functions of the history."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from anygpu.base.units import readable_bytes, readable_seconds
from anygpu.hardware.usage.usage import Usage
from anygpu.observe.dashboard.history import History, ProcessHistory
from anygpu.observe.dashboard.names import shown
from anygpu.observe.dashboard.panels import Columns, View, colour, process_colour, rate
from anygpu.observe.statistics import CallStatistics, breakdown

_MOST_ROWS = 60
_SENTENCE = 300
#: What is not known.
UNKNOWN = "–"
#: How far apart the two samples are that a rate is made of.
_RATE_SECONDS = 5.0
#: A process that is busy may answer late.
_SILENT_SECONDS = 3.0


def table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> Columns:
    rows = list(rows)[:_MOST_ROWS]
    return {name: [row[index] for row in rows] for index, name in enumerate(names)}


def tiles(history: History, view: View) -> Columns:
    """The figures at the top."""
    here = [each for _, each in view.processes(history)]
    alive = [each for each in here if each.alive]
    calls = [one for each in here for one in each.latest.statistics.calls]
    rates = [latest_rate(each) for each in alive]
    failed = sum(sum(one.errors.values()) for one in calls)
    moved_away = sum(one.fallbacks for one in calls)
    lost = sum(len(each.latest.runtime.losses) for each in here if each.latest.runtime is not None)
    waiting = sum(each.latest.runtime.waiting for each in alive if each.latest.runtime is not None)
    memory = sum(held.bytes for each in alive for held in each.latest.memory.values())
    return table(
        ("name", "value", "level"),
        [
            ("processes", f"{len(alive)}", ""),
            ("calls a second", _count(sum(known for known in rates if known is not None)), ""),
            ("calls", _count(sum(one.calls for one in calls)), ""),
            ("waiting", _count(waiting), ""),
            ("memory on devices", readable_bytes(memory), ""),
            ("failed calls", _count(failed), "bad" if failed else ""),
            ("fallbacks", _count(moved_away), "warn" if moved_away else ""),
            ("devices lost", _count(lost), "bad" if lost else ""),
        ],
    )


def functions(history: History, view: View) -> Columns:
    """The functions that took longest, each on each of its devices: the legend of the timeline."""
    merged: dict[tuple[str, str], list[CallStatistics]] = {}
    for _, each in view.processes(history):
        for one in each.latest.statistics.calls:
            merged.setdefault((one.function, one.device), []).append(one)
    ordered = sorted(merged.items(), key=lambda item: -sum(one.seconds.total for one in item[1]))
    return table(
        ("colour", "function", "device", "calls", "p50", "p90", "p99", "of predicted", "failed", "level"),
        [
            (
                colour(history.functions.number(function)),
                shown(function),
                shown(device, 24),
                _count(sum(one.calls for one in all_of_it)),
                *(_quantile(all_of_it, name) for name in ("p50", "p90", "p99")),
                _of_predicted(all_of_it),
                _errors(all_of_it),
                "bad" if any(one.errors for one in all_of_it) else "",
            )
            for (function, device), all_of_it in ordered
        ],
    )


def steps(history: History, view: View) -> Columns:
    """Training steps, and other calls that have parts: where their time goes, and their memory."""
    found = [(pid, one) for pid, each in view.processes(history) for one in each.latest.statistics.calls if one.parts]
    found.sort(key=lambda item: -item[1].seconds.total)
    names = ("step", "device", "steps", "parts", "peak", "predicted", "again", "failed", "process", "level")
    return table(names, [_step(pid, one) for pid, one in found])


def _step(pid: int, one: CallStatistics) -> tuple[str, ...]:
    shares = breakdown(one.phases, one.parts)
    whole = sum(seconds for _, seconds in shares) or 1.0
    return (
        shown(one.function),
        shown(one.device, 24),
        _count(one.calls),
        _sentence(", ".join(f"{name} {seconds / whole:.0%}" for name, seconds in shares if seconds >= 0.005 * whole)),
        _bytes(one.peak_bytes) or UNKNOWN,
        _bytes(one.predicted_bytes) or UNKNOWN,
        _count(one.repeats),
        _errors([one]),
        str(pid),
        "bad" if one.errors else "warn" if one.repeats else "",
    )


def processes(history: History, view: View) -> Columns:
    rows = []
    for pid, each in sorted(history.processes.items(), key=lambda item: (not item[1].alive, item[0])):
        speed = latest_rate(each)
        rows.append(
            (
                process_colour(history, pid),
                str(pid),
                shown(each.process.command, 120),
                _state(each, view),
                UNKNOWN if speed is None or not each.alive else _count(speed),
                UNKNOWN if not each.alive else _processor(each),
                readable_bytes(each.process.memory_bytes),
                "" if each.alive else "dim",
            )
        )
    return table(("colour", "process", "command", "state", "calls a second", "processor", "memory", "level"), rows)


def devices(history: History, view: View) -> Columns:
    return table(
        ("device", "card", "busy", "memory", "temperature", "power", "clock", "throttled", "not known", "level"),
        [
            (
                shown(device, 24),
                shown(usage.card, 24),
                UNKNOWN if usage.load is None else f"{usage.load:.0%}",
                _of(_bytes(usage.memory_used), _bytes(usage.memory_total)),
                UNKNOWN if usage.temperature is None else f"{usage.temperature:.0f} °C",
                _of(_watts(usage.power), _watts(usage.power_limit)),
                UNKNOWN if usage.clock is None else f"{usage.clock / 1e6:.0f} MHz",
                _throttled(usage),
                _not_known(usage),
                "warn" if usage.throttled else "",
            )
            for device, usage in sorted(history.usage.items())
        ],
    )


def lanes(history: History, view: View) -> Columns:
    """Queues: one row for each device of each runtime."""
    rows = []
    for pid, each in view.processes(history):
        if each.latest.runtime is None or not each.alive:
            continue
        rows += [
            (
                process_colour(history, pid),
                shown(lane.device, 24),
                str(pid),
                lane.condition,
                shown(", ".join(lane.running)) if lane.running else UNKNOWN,
                readable_seconds(lane.backlog_seconds) if lane.backlog_seconds else UNKNOWN,
                _count(lane.done),
                _count(lane.failed),
                f"{lane.batched / lane.batches:.1f}" if lane.batches else UNKNOWN,
                {"late": "bad"}.get(lane.condition, ""),
            )
            for lane in each.latest.runtime.lanes
        ]
    names = ("colour", "device", "process", "is", "runs", "backlog", "done", "failed", "tasks a launch", "level")
    return table(names, rows)


def tenants(history: History, view: View) -> Columns:
    found: dict[str, tuple[int, int, float]] = {}
    for _, each in view.processes(history):
        if each.latest.runtime is None or not each.alive:
            continue
        for one in each.latest.runtime.tenants:
            waiting, size, seconds = found.get(one.tenant, (0, 0, 0.0))
            found[one.tenant] = waiting + one.waiting, size + one.bytes, seconds + one.seconds
    total = sum(seconds for _, _, seconds in found.values())
    return table(
        ("tenant", "waiting", "bytes", "device time", "share"),
        [
            (
                shown(tenant),
                _count(waiting),
                readable_bytes(size),
                _long(seconds),
                f"{seconds / total:.0%}" if total else UNKNOWN,
            )
            for tenant, (waiting, size, seconds) in sorted(found.items(), key=lambda item: -item[1][2])
        ],
    )


def problems(history: History, view: View) -> Columns:
    """What went wrong: devices that were lost and wrong results, then anomalies and fallbacks, the newest first."""
    here = view.processes(history)
    rows: list[tuple[str, ...]] = []
    timed: list[tuple[float, tuple[str, ...]]] = []
    for pid, each in here:
        if each.latest.runtime is not None:
            rows += [
                (UNKNOWN, "lost", shown(loss.device, 24), _sentence(str(loss)), str(pid), "bad")
                for loss in reversed(each.latest.runtime.losses)
            ]
            for wrong in reversed(each.latest.runtime.mismatches):
                about = shown(f"{wrong.task} on {wrong.device}")
                rows.append((UNKNOWN, "wrong", about, _sentence(wrong.sentence), str(pid), "bad"))
        for odd in each.latest.anomalies:
            about = shown(odd.subject if odd.device is None else f"{odd.subject} on {odd.device}")
            level = "" if odd.kind == "faster" else "warn"
            why = _sentence(odd.sentence)
            timed.append((odd.time, (_ago(view.now - odd.time), shown(odd.kind, 24), about, why, str(pid), level)))
    # The same thing happens again and again, and in several processes: it is told once, with how often.
    again: dict[tuple[str, str, str, bool], list[tuple[float, int]]] = {}
    for pid, each in here:
        for fallback in each.latest.fallbacks:
            key = fallback.function, fallback.device, fallback.reason, fallback.repeated
            again.setdefault(key, []).append((fallback.end, pid))
    for (function, device, reason, repeated), times in again.items():
        newest = max(end for end, _ in times)
        pids = sorted({pid for _, pid in times})
        often = f"{len(times)} × " if len(times) > 1 else ""
        where = str(pids[0]) if len(pids) == 1 else f"{len(pids)} processes"
        about, why = shown(f"{function} on {device}"), often + _sentence(reason)
        timed.append(
            (newest, (_ago(view.now - newest), "repeat" if repeated else "fallback", about, why, where, "warn"))
        )
    timed.sort(key=lambda item: -item[0])
    return table(("when", "what", "about", "why", "process", "level"), [*rows, *(row for _, row in timed)])


def advice(history: History, view: View) -> Columns:
    """What to change, the costliest first."""
    found = [(pid, one) for pid, each in view.processes(history) for one in each.latest.advice]
    found.sort(key=lambda item: -item[1].cost)
    return table(
        ("cost", "line", "finding", "instead", "process"),
        [
            (
                _long(one.cost),
                shown(one.line or UNKNOWN, 80),
                _sentence(one.finding),
                _sentence(one.instead),
                str(pid),
            )
            for pid, one in found
        ],
    )


def notes(history: History, view: View) -> Columns:
    """Why a panel is empty, by its name; and what to know of one that is not."""
    here = [each for _, each in view.processes(history)]
    said: dict[str, str] = {}
    if not history.processes:
        said["page"] = "No observed process. Start one with: anygpu run script.py"
    readings = {"load": "load", "temperature": "temperature", "power": "power", "memory": "memory_used"}
    for panel, reading in readings.items():
        if all(getattr(usage, reading) is None for usage in history.usage.values()):
            whys = dict.fromkeys(usage.unknown[reading] for usage in history.usage.values())
            said[panel] = _sentence("; ".join(whys)) if whys else "No process has looked at its devices yet."
    if not any(held for _, held in history.memory):
        said["owners"] = "No process holds memory of a device."
    if all(each.latest.runtime is None for each in here):
        said["waiting"] = said["batches"] = "No task was submitted: ag.submit() and ag.map() make tasks."
        said["lanes"] = said["tenants"] = "No task was submitted."
    if not any(len(each.pairs) for each in here):
        said["predictions"] = "No call had a prediction: the first calls of a function have none."
    if not steps(history, view)["step"]:
        said["steps"] = "No training step has ended: anygpu.pytorch.Step makes them."
    if not any(each.latest.advice for each in here):
        said["advice"] = "No advice. anygpu advise script.py looks more closely."
    if not problems(history, view)["what"]:
        said["problems"] = "No lost devices, no fallbacks."
    missed = sum(each.missed for each in here)
    if missed:
        said["missed"] = (
            f"{_count(missed)} calls came too fast to be drawn one by one; they are counted everywhere else."
        )
    return table(("panel", "text"), said.items())


# -- one cell


def latest_rate(each: ProcessHistory) -> float | None:
    """Calls a second, over the last few seconds."""
    if len(each.samples) < 2:
        return None
    newest = each.samples[-1]
    for sample in reversed(each.samples):
        if newest.time - sample.time >= _RATE_SECONDS:
            break
    found = rate(sample, newest)
    return found if found == found else None


def _state(each: ProcessHistory, view: View) -> str:
    since = view.now - each.answered
    if not each.alive:
        return f"ended {_ago(since)}"
    return f"silent for {since:.0f} s" if each.silent and since > _SILENT_SECONDS else "runs"


def _processor(each: ProcessHistory) -> str:
    if len(each.samples) < 2:
        return UNKNOWN
    newest = each.samples[-1]
    for sample in reversed(each.samples):
        if newest.time - sample.time >= _RATE_SECONDS:
            break
    elapsed = newest.time - sample.time
    return f"{(newest.processor_seconds - sample.processor_seconds) / elapsed:.0%}" if elapsed > 0 else UNKNOWN


def _quantile(all_of_it: Sequence[CallStatistics], name: str) -> str:
    """Of the last minutes, or of all time if there was no call in them; the slowest process counts."""
    known = [value for one in all_of_it if (value := getattr(one.lately, name)) is not None]
    known = known or [value for one in all_of_it if (value := getattr(one.seconds, name)) is not None]
    return readable_seconds(max(known)) if known else UNKNOWN


def _of_predicted(all_of_it: Sequence[CallStatistics]) -> str:
    predicted = sum(one.predicted_seconds for one in all_of_it)
    return f"{sum(one.seconds_of_predicted for one in all_of_it) / predicted:.2f} ×" if predicted else UNKNOWN


def _errors(all_of_it: Sequence[CallStatistics]) -> str:
    sums: dict[str, int] = {}
    for one in all_of_it:
        for error, count in one.errors.items():
            sums[error] = sums.get(error, 0) + count
    return ", ".join(f"{_count(count)} {shown(error, 24)}" for error, count in sums.items()) or "0"


def _count(value: float) -> str:
    if value < 10 and value != int(value):
        return f"{value:.1f}"
    return f"{value:,.0f}" if value < 1e6 else f"{value / 1e6:,.1f} M"


def _ago(seconds: float) -> str:
    if seconds < 60:
        return f"{max(0.0, seconds):.0f} s ago"
    return f"{seconds / 60:.0f} min ago" if seconds < 3600 else f"{seconds / 3600:.0f} h ago"


def _long(seconds: float) -> str:
    if seconds < 120:
        return readable_seconds(seconds)
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def _sentence(text: str) -> str:
    return shown(" ".join(text.split()), _SENTENCE)


def _bytes(count: int | None) -> str | None:
    return None if count is None else readable_bytes(count)


def _watts(value: float | None) -> str | None:
    return None if value is None else f"{value:.0f} W"


def _of(value: str | None, limit: str | None) -> str:
    if value is None:
        return UNKNOWN
    return value if limit is None else f"{value} of {limit}"


def _throttled(usage: Usage) -> str:
    if usage.throttled is None:
        return UNKNOWN
    return _sentence(", ".join(usage.throttled)) or "no"


def _not_known(usage: Usage) -> str:
    about: dict[str, list[str]] = {}
    for reading, why in usage.unknown.items():
        about.setdefault(why, []).append(reading.replace("_", " "))
    return _sentence("; ".join(f"{', '.join(readings)}: {why}" for why, readings in about.items()))
