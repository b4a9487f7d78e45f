"""Tables of observed processes, described once for `anygpu top`, the dashboard, notebooks and statistics as text.

Every kind of row has a record, made of snapshots, and the columns that can be shown of it by title: a surface picks
those for which it has room. All are pure functions of what processes have answered. Calls and steps come first, then
processes, queues and tenants, problems, and devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from anygpu.base.tables import UNKNOWN, Column, Tone, by_title, counted
from anygpu.hardware.usage import Usage
from anygpu.observe.looking import Rate
from anygpu.observe.snapshot import Snapshot
from anygpu.observe.statistics import CallStatistics, Quantiles, breakdown
from anygpu.runtime.health import Health, LaneHealth, TenantHealth

#: Degrees Celsius at which a temperature is shown as bad.
_HOT = 85.0
_BAR = 10
#: Characters of a sentence on a page.
_SENTENCE = 300


# -- calls of one function on one device


class CallRow(NamedTuple):
    """The calls of one function on one device of one process."""

    calls: CallStatistics
    pid: int = 0
    #: Since the last look; `None` if there was none.
    rate: Rate | None = None
    #: Whether the process did not answer this time.
    stale: bool = False


def errors_of(row: CallRow) -> int:
    return sum(row.calls.errors.values())


def _named_errors(row: CallRow) -> str:
    """How often each error was raised, by name."""
    return ", ".join(f"{counted(count)} {error[:24]}" for error, count in row.calls.errors.items()) or "0"


def _failed(row: CallRow) -> Tone:
    return "bad" if row.calls.errors else "dim"


def _where(row: CallRow) -> Tone:
    return "dim" if row.calls.device == "numpy" else "good"


def _moved(row: CallRow) -> int:
    return row.calls.bytes_to_device + row.calls.bytes_to_host


def _share(row: CallRow, *phases: str) -> float | None:
    """Share of the calls' time in these phases."""
    whole = sum(row.calls.phases.values())
    return sum(row.calls.phases.get(phase, 0.0) for phase in phases) / whole if whole else None


def _ratio(above: float, below: float) -> float | None:
    """The quotient of two sums; `None` if there is nothing to divide by."""
    return above / below if below else None


def parts_of(row: CallRow) -> str:
    """Each part with its share of the calls' time, the longest first."""
    whole = sum(row.calls.phases.values()) or 1.0
    longest = sorted(row.calls.parts.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {seconds / whole:.0%}" for name, seconds in longest)


def breakdown_of(phases: Mapping[str, float], parts: Mapping[str, float]) -> str:
    """Shares of the time of steps, with waiting and transfers, in the order in which that happens."""
    shares = breakdown(phases, parts)
    whole = sum(seconds for _, seconds in shares) or 1.0
    return ", ".join(f"{name} {seconds / whole:.0%}" for name, seconds in shares if seconds >= 0.005 * whole)


_FEW_MINUTES = "of the calls of the last five minutes took no longer"

CALLS: dict[str, Column[CallRow]] = by_title(
    Column("function", lambda row: row.calls.function, "text", 14, "the name of the function",
           lambda row: "dim" if row.stale else "", takes_rest=True),
    Column("process", lambda row: row.pid, "id", 7, "its process", short="PID"),
    Column("device", lambda row: row.calls.device, "text", 10, "where it ran", _where, letters=24),
    Column("calls a second", lambda row: row.rate.calls if row.rate else None, "count", 7,
           "calls in each second, since the last look", short="CALLS/S"),
    Column("busy", lambda row: row.rate.busy if row.rate else None, "share", 5,
           "seconds of calls in each second: 100% is one call at a time without a pause"),
    Column("p50", lambda row: row.calls.lately.p50, "seconds", 7, f"half {_FEW_MINUTES}"),
    Column("p90", lambda row: row.calls.lately.p90, "seconds", 7, f"90 % {_FEW_MINUTES}"),
    Column("p99", lambda row: row.calls.lately.p99, "seconds", 7, f"99 % {_FEW_MINUTES}"),
    Column("errors", errors_of, "count", 4, "calls that raised", "bad", short="ERR"),
    Column("failed", _named_errors, "id", 8, "calls that raised, by error", _failed),
    Column("elsewhere", lambda row: row.calls.fallbacks + row.calls.host_operations, "count", 4,
           "calls that did not run where they were first meant to, or not as a whole", "warn", short="FALL"),
    Column("calls", lambda row: row.calls.calls, "count", 6, "calls since the process is observed", optional=1),
    Column("moved", _moved, "bytes", 8, "bytes to the device and back", optional=2),
    Column("queue", lambda row: _ratio(row.calls.phases.get("queue", 0.0), row.calls.seconds.total), "share", 5,
           "share of the calls' time in which they waited for their turn", optional=3),
    Column("prediction", lambda row: _ratio(row.calls.predicted_seconds, row.calls.seconds_of_predicted), "ratio", 5,
           "predicted time by actual time: 1.0 is right, less is too optimistic", short="PRED", optional=4),
    Column("actual / predicted",
           lambda row: _ratio(row.calls.seconds_of_predicted, row.calls.predicted_seconds), "ratio"),
)  # fmt: skip

STEPS: dict[str, Column[CallRow]] = by_title(
    CALLS["function"]._replace(title="step", short="FUNCTION", meaning="what is called", width=12),
    CALLS["process"]._replace(optional=2),
    CALLS["device"]._replace(tone="good", optional=3),
    CALLS["calls a second"]._replace(
        short="STEPS/S", meaning="steps in each second, since the last look", optional=4
    ),
    CALLS["calls"]._replace(title="steps"),
    CALLS["p50"]._replace(meaning="half of the steps of the last five minutes took no longer"),
    Column("wait", lambda row: _share(row, "queue"), "share", 5,
           "share of the time in which a step waited for its data"),
    Column("move", lambda row: _share(row, "write", "read"), "share", 5,
           "share of the time in which data was moved to the device and back"),
    Column("longest", parts_of, "text", 27,
           "the parts of a step with their shares of the time, the longest first", short="PARTS", takes_rest=True),
    Column("parts", lambda row: breakdown_of(row.calls.phases, row.calls.parts), "prose", letters=_SENTENCE),
    Column("again", lambda row: row.calls.repeats, "count", 5,
           "attempts that failed and were repeated, as after running out of memory", "warn"),
    CALLS["errors"]._replace(meaning="steps that raised"),
    CALLS["failed"],
    Column("peak", lambda row: row.calls.peak_bytes, "bytes", 8, "the most memory that a step had at once"),
    Column("predicted", lambda row: row.calls.predicted_bytes, "bytes", 9,
           "the memory that was predicted for that step", optional=1),
)  # fmt: skip


def merged_calls(several: Sequence[CallStatistics]) -> CallStatistics:
    """The calls of one function on one device in several processes: sums, and the quantiles of the slowest process.

    Where no call was made lately, quantiles are those of all time.
    """
    errors: dict[str, int] = {}
    for each in several:
        for name, count in each.errors.items():
            errors[name] = errors.get(name, 0) + count

    def slowest(known: Sequence[Quantiles]) -> Quantiles:
        def most(values: Iterable[float | None]) -> float | None:
            return max((value for value in values if value is not None), default=None)

        return Quantiles(
            count=sum(one.count for one in known),
            total=sum(one.total for one in known),
            p50=most(one.p50 for one in known),
            p90=most(one.p90 for one in known),
            p99=most(one.p99 for one in known),
            most=max(one.most for one in known),
        )

    seconds, lately = slowest([each.seconds for each in several]), slowest([each.lately for each in several])
    return msgspec.structs.replace(
        several[0],
        calls=sum(each.calls for each in several),
        errors=errors,
        predicted_seconds=sum(each.predicted_seconds for each in several),
        seconds_of_predicted=sum(each.seconds_of_predicted for each in several),
        seconds=seconds,
        lately=seconds if lately.p50 is None else lately,
    )


# -- processes


class ProcessRow(NamedTuple):
    """One process, with the state and tone that its last answer or silence has."""

    pid: int
    #: The last answer; `None` if there was none.
    snapshot: Snapshot | None
    state: str
    tone: Tone = ""
    #: In place of the command of a process that has not answered.
    trouble: str = ""
    #: Calls a second, and share of one core, since an earlier answer.
    speed: float | None = None
    processor: float | None = None
    #: How long the last answer took.
    seconds: float | None = None

    @property
    def calls(self) -> tuple[CallStatistics, ...]:
        return self.snapshot.statistics.calls if self.snapshot is not None else ()

    @property
    def runtime(self) -> Health | None:
        return self.snapshot.runtime if self.snapshot is not None else None


def short_command(command: str) -> str:
    """Without the interpreter, whose path is long and says little."""
    first, _, rest = command.partition(" ")
    return rest if rest and first.rpartition("/")[2].startswith(("python", "pypy")) else command


def _held(row: ProcessRow) -> int | None:
    """Bytes that the process holds on all devices; `None` if that is not known."""
    memory = row.snapshot.memory if row.snapshot is not None else {}
    return sum(each.bytes for each in memory.values()) if memory else None


def _command(row: ProcessRow) -> str:
    return row.trouble if row.snapshot is None else row.snapshot.process.command


PROCESSES: dict[str, Column[ProcessRow]] = by_title(
    Column("process", lambda row: row.pid, "id", 7, "the process", lambda row: "" if row.tone == "good" else row.tone,
           short="PID"),
    Column("script", lambda row: short_command(_command(row)), "text", 16, "how it was started", short="COMMAND",
           takes_rest=True),
    Column("command", _command, "prose", letters=120),
    Column("state", lambda row: row.state, "text", 8, "whether it answers", lambda row: row.tone),
    Column("calls a second", lambda row: row.speed, "count", 7, "calls in each second, since the last look",
           short="CALLS/S"),
    Column("processor", lambda row: row.processor, "share", 5, "share of one core", short="CPU"),
    Column("memory", lambda row: row.snapshot.process.memory_bytes if row.snapshot else None, "bytes", 8,
           "of the process, without its workers"),
    Column("errors", lambda row: sum(sum(each.errors.values()) for each in row.calls), "count", 5,
           "calls that raised", "bad", short="ERR"),
    Column("waiting", lambda row: row.runtime.waiting if row.runtime else None, "count", 5, "tasks that wait", "warn",
           short="WAIT"),
    Column("calls", lambda row: sum(each.calls for each in row.calls), "count", 7, "calls since it is observed",
           optional=1),
    Column("held", _held, "bytes", 8, "bytes that it has on devices", optional=2),
    Column("since", lambda row: row.snapshot.time - row.snapshot.process.since if row.snapshot else None, "age", 8,
           "how long it is observed", optional=3),
    Column("answer", lambda row: row.seconds, "seconds", 7, "how long its last answer took", optional=4),
)  # fmt: skip


# -- queues and tenants


class LaneRow(NamedTuple):
    """The queue of one device of a runtime, or of the runtime as a whole."""

    pid: int
    lane: LaneHealth
    #: The state of the runtime as a whole, for the row that stands for all its devices.
    whole: Health | None = None


def _lane_tone(row: LaneRow) -> Tone:
    """Bad for a queue that is late, good for one that works, dim for the rest."""
    if row.whole is not None:
        return "good" if row.whole.ok else "bad"
    tones: dict[str, Tone] = {"late": "bad", "busy": "good"}
    return tones.get(row.lane.condition, "dim")


def lanes(pid: int, health: Health | None, *, whole: bool = False) -> list[LaneRow]:
    """A row for each device of a runtime; with `whole` one for all of them first."""
    if health is None:
        return []
    rows = [LaneRow(pid, lane) for lane in health.lanes]
    if whole:
        total = LaneHealth(
            device="all",
            condition="idle" if health.ok else "late",
            running=(f"{health.waiting} of at most {health.limit} wait, {health.open_tasks} are open",),
            seconds=health.oldest_seconds or 0.0,
            done=sum(lane.done for lane in health.lanes),
            failed=sum(lane.failed for lane in health.lanes),
            busy_seconds=sum(lane.busy_seconds for lane in health.lanes),
        )
        rows.insert(0, LaneRow(pid, total, health))
    return rows


def _condition(row: LaneRow) -> str:
    """The state of a queue in one word."""
    if row.whole is None:
        return row.lane.condition
    return "ok" if row.whole.ok else "closed" if row.whole.closed else "late"


LANES: dict[str, Column[LaneRow]] = by_title(
    Column("process", lambda row: row.pid, "id", 7, "the process", short="PID"),
    Column("device", lambda row: row.lane.device, "text", 10,
           "whose queue it is; “all” is what waits for any device", letters=24),
    Column("state", _condition, "text", 6, "idle, busy, or late: something takes much longer than predicted",
           _lane_tone),
    Column("running", lambda row: ", ".join(row.lane.running), "text", 12, "what runs there",
           lambda row: "dim" if row.whole else "", takes_rest=True),
    Column("for", lambda row: (row.lane.seconds or None) if row.lane.running else None, "seconds", 7, "since when"),
    Column("waiting", lambda row: row.whole.waiting if row.whole else None, "count", 4,
           "tasks that wait for any device", "warn", short="WAIT"),
    Column("backlog", lambda row: None if row.whole else row.lane.backlog_seconds, "seconds", 7,
           "seconds that are predicted for what waits for the device"),
    Column("done", lambda row: row.lane.done, "count", 6, "tasks that are done"),
    Column("failed", lambda row: row.lane.failed, "count", 5, "tasks that failed", "bad", short="FAIL"),
    Column("tasks a launch", lambda row: _ratio(row.lane.batched, row.lane.batches), "count", 5,
           "tasks in one launch of several", short="BATCH"),
    Column("busy", lambda row: row.lane.busy_seconds, "long", 7, "seconds that it has worked", optional=1),
    Column("generation", lambda row: row.lane.generation, "count", 3,
           "1 for its first worker, one more for each that replaced a lost one", short="GEN", optional=2),
)  # fmt: skip


class TenantRow(NamedTuple):
    """A tenant of one process, or of several together."""

    tenant: TenantHealth
    pid: int = 0
    #: Seconds of devices in each second lately, and share of all that was used.
    lately: float | None = None
    share: float | None = None


TENANTS: dict[str, Column[TenantRow]] = by_title(
    Column("tenant", lambda row: row.tenant.tenant, "text", 16, "who submitted the tasks", takes_rest=True),
    Column("process", lambda row: row.pid, "id", 7, "the process", short="PID"),
    Column("waiting", lambda row: row.tenant.waiting, "count", 7, "tasks that wait", "warn", short="WAIT"),
    Column("bytes", lambda row: row.tenant.bytes, "bytes", 9, "of the tasks that wait"),
    Column("device time", lambda row: row.tenant.seconds, "long", 11, "seconds of devices that it has used"),
    Column("now", lambda row: row.lately, "share", 6, "seconds of devices in each second, since the last look"),
    Column("share", lambda row: row.share, "share"),
)  # fmt: skip


def merged_tenants(several: Iterable[TenantHealth]) -> list[TenantRow]:
    """The tenants of several processes, those that used most first."""
    found: dict[str, list[TenantHealth]] = {}
    for each in several:
        found.setdefault(each.tenant, []).append(each)
    total = sum(one.seconds for group in found.values() for one in group)
    rows = []
    for tenant, group in found.items():
        seconds = sum(one.seconds for one in group)
        waiting, size = sum(one.waiting for one in group), sum(one.bytes for one in group)
        whole = TenantHealth(tenant=tenant, waiting=waiting, bytes=size, seconds=seconds)
        rows.append(TenantRow(whole, share=_ratio(seconds, total)))
    return sorted(rows, key=lambda row: -row.tenant.seconds)


# -- problems: lost devices, wrong results, anomalies, and calls that ran elsewhere or again


class Problem(NamedTuple):
    """Something that went wrong, or is not as it was: its kind, where, and a sentence."""

    kind: str
    processes: tuple[int, ...]
    device: str | None
    #: The function or device that it is about, if that is not the device itself.
    subject: str
    sentence: str
    #: Seconds ago; `None` where that is not known.
    age: float | None
    tone: Tone
    group: Literal["loss", "anomaly"] = "loss"

    @property
    def about(self) -> str:
        """The subject and device together, as far as there are both."""
        return f"{self.subject} on {self.device}" if self.subject and self.device else self.subject or self.device or ""


def problems(snapshots: Iterable[tuple[int, Snapshot]], now: float | None = None) -> list[Problem]:
    """Losses and wrong results, then anomalies and fallbacks, the newest first. `now` is each snapshot's by default.

    A fallback that happens again and again, also in several processes, is told once with how often.
    """
    lasting: list[Problem] = []
    timed: list[Problem] = []
    # The same thing happens again and again, and in several processes: it is told once, with how often.
    again: dict[tuple[str, str, str, bool], list[tuple[float, int]]] = {}
    for pid, snapshot in snapshots:
        moment = snapshot.time if now is None else now
        health = snapshot.runtime
        if health is not None:
            lasting += [
                Problem("lost", (pid,), loss.device, "", str(loss).partition(", ")[2] or str(loss), None, "bad")
                for loss in reversed(health.losses)
            ]
            lasting += [
                Problem("wrong", (pid,), wrong.device, wrong.task, wrong.sentence, None, "bad")
                for wrong in reversed(health.mismatches)
            ]
        for odd in snapshot.anomalies:
            tone: Tone = "" if odd.kind == "faster" else "warn"
            age = moment - odd.time
            timed.append(Problem(odd.kind, (pid,), odd.device, odd.subject, odd.sentence, age, tone, "anomaly"))
        for each in snapshot.fallbacks:
            key = each.function, each.device, each.reason, each.repeated
            again.setdefault(key, []).append((moment - each.end, pid))
    for (function, device, reason, repeated), times in again.items():
        pids = tuple(sorted({pid for _, pid in times}))
        often = f"{len(times)} × " if len(times) > 1 else ""
        kind = "repeat" if repeated else "fallback"
        timed.append(Problem(kind, pids, device, function, often + reason, min(times)[0], "warn"))
    return [*lasting, *sorted(timed, key=lambda problem: problem.age or 0.0)]


def _processes(problem: Problem) -> float | str:
    return problem.processes[0] if len(problem.processes) == 1 else f"{len(problem.processes)} processes"


PROBLEMS: dict[str, Column[Problem]] = by_title(
    Column("when", lambda each: each.age, "age", 7, "how long ago, where that is known", short="AGO"),
    Column("what", lambda each: each.kind, "text", 12,
           "a lost device, a wrong result, a fallback, a repeat on the same device, or what is not as it was",
           lambda each: each.tone, short="KIND", letters=24),
    Column("process", _processes, "id", 7, "the process", short="PID"),
    Column("device", lambda each: each.device, "text", 10, "which; for a fallback, where the call ran at last",
           letters=24),
    Column("subject", lambda each: each.subject, "text", 14, "the function or device that it is about"),
    Column("about", lambda each: each.about, "text", 14, "the function or device that it is about"),
    Column("why", lambda each: each.sentence, "prose", 20, "what is not as it was", short="WHAT", takes_rest=True,
           letters=_SENTENCE),
    Column("event", lambda each: f"{each.subject}: {each.sentence}" if each.subject else each.sentence, "text", 20,
           "what happened", short="WHAT", takes_rest=True),
)  # fmt: skip


# -- devices


class DeviceRow(NamedTuple):
    """A card, the processor, or software that behaves like a card."""

    name: str
    usage: Usage
    #: The devices that use it.
    devices: tuple[str, ...] = ()
    #: Bytes that the observed processes hold there.
    held: int | None = None


def bar(share: float | None) -> str:
    """A share as a bar, in characters that every terminal has."""
    if share is None:
        return UNKNOWN
    full = round(share * _BAR)
    return f"{'█' * full}{'░' * (_BAR - full)} {share:>4.0%}"


def load_tone(share: float | None) -> Tone:
    """Good below 80 % of load, a warning from there on, bad from 95 %."""
    if share is None:
        return "dim"
    return "bad" if share >= 0.95 else "warn" if share >= 0.8 else "good"


def _memory_tone(row: DeviceRow) -> Tone:
    used, total = row.usage.memory_used, row.usage.memory_total
    return load_tone(used / total) if used and total and used / total > 0.8 else ""


def _card(row: DeviceRow) -> str:
    """The name of a card with the devices that use it, or why it is throttled."""
    if row.usage.throttled:
        return f"{row.name}: throttled, {', '.join(row.usage.throttled)}"
    return f"{row.name} ({', '.join(row.devices)})" if row.devices else row.name


def _throttled(row: DeviceRow) -> str | None:
    return None if row.usage.throttled is None else ", ".join(row.usage.throttled) or "no"


DEVICES: dict[str, Column[DeviceRow]] = by_title(
    Column("card", _card, "text", 14, "a card or the processor, and the devices that use it",
           lambda row: "bad" if row.usage.throttled else "", short="DEVICE", takes_rest=True),
    Column("device", lambda row: row.name, letters=24),
    Column("bar", lambda row: bar(row.usage.load), "text", 17, "share of the time in which it works",
           lambda row: load_tone(row.usage.load), short="LOAD"),
    Column("load", lambda row: row.usage.load, "share"),
    Column("memory", lambda row: (row.usage.memory_used, row.usage.memory_total), "bytes", 17, "in use, of all",
           _memory_tone),
    Column("held", lambda row: row.held, "bytes", 8, "what the observed processes hold there"),
    Column("°C", lambda row: row.usage.temperature, "celsius", 4, "temperature",
           lambda row: "bad" if (row.usage.temperature or 0.0) >= _HOT else ""),
    Column("power", lambda row: (row.usage.power, row.usage.power_limit), "watts", 13, "watts, of at most"),
    Column("clock", lambda row: (row.usage.clock, row.usage.clock_limit), "hertz", 19, "its clock, of at most",
           optional=2),
    Column("throttled", _throttled, "text", 8, "why it runs slower than it could",
           lambda row: "bad" if row.usage.throttled else "", letters=_SENTENCE),
)  # fmt: skip
