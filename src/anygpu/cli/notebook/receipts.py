"""Receipts, plans and statistics as HTML: the words and figures of their texts, with times as bars.

Receipts come first, then plans, statistics and stores. At the end is what the magics show: the last calls (`Keeping`)
and the outcome of `%%offload` (`Notice`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from anygpu.base.markup import (
    BLUE,
    GREY,
    HTML,
    OLIVE,
    ORANGE,
    PINK,
    RED,
    TEAL,
    VIOLET,
    Html,
    Share,
    bar,
    column_table,
    details,
    framed,
    join,
    legend,
    pairs,
    paragraph,
    spoken,
    table,
    tag,
)
from anygpu.base.tables import UNKNOWN, Column
from anygpu.base.units import readable_bytes, readable_seconds
from anygpu.placement.plan.plan import Candidate, Plan
from anygpu.receipts.notes import Failure, Origin, Seen, made
from anygpu.receipts.receipt import Phases, Receipt
from anygpu.store.report import Statistics

if TYPE_CHECKING:
    from anygpu.observe.statistics import CallStatistics, Summary

#: Rows of a table of receipts; of more the last ones are shown.
MOST_ROWS = 25

_COLOURS = {
    "trace": PINK,
    "plan": VIOLET,
    "compile": ORANGE,
    "queue": OLIVE,
    "write": TEAL,
    "run": BLUE,
    "read": RED,
    "other": GREY,
}
_OF_PARTS = (BLUE, TEAL, VIOLET, ORANGE, PINK, OLIVE)


def receipt_html(receipt: Receipt) -> str:
    return framed(f"Receipt of {receipt.task}", receipt_body(receipt))


def receipt_body(receipt: Receipt) -> Html:
    """A receipt without the frame, for what contains one.

    A sentence, the phases as a bar, parts of its run, failed attempts, operations on the host, and all figures folded.
    """
    head = [tag("b", receipt.task), " ran on ", tag("b", receipt.device), f" in {readable_seconds(receipt.seconds)}"]
    if receipt.predicted_seconds is not None:
        head.append(f" (predicted {readable_seconds(receipt.predicted_seconds)})")
    shares = shares_of(receipt.phases)
    parts: list[object] = [paragraph(*head, ": ", receipt.reason), bar(shares), legend(shares)]
    if receipt.parts:
        parts.append(_parts(receipt.parts))
    if receipt.how is not None:
        parts.append(paragraph(receipt.how))
    parts += [
        paragraph(
            tag("span", f"First tried {failure.device}: {failure.error}", class_="bad"),
            f" ({failure.message})" if failure.message else "",
        )
        for failure in receipt.failures
    ]
    for host in receipt.host_operations:
        where = f" at {host.line}" if host.line else ""
        moved = f" ({readable_bytes(host.bytes_moved)} moved)" if host.bytes_moved else ""
        parts.append(paragraph(f"{host.operation}{where} ran on the host: {host.reason}{moved}"))
    parts.append(details("All figures", pairs(_facts(receipt), "All figures of the receipt")))
    return join(parts)


def receipts_html(receipts: Sequence[Receipt]) -> str:
    return framed("Receipts", receipts_table(receipts))


def receipts_table(calls: Sequence[Receipt | Failure]) -> Html:
    """A row for each call with its phases as a bar, the last `MOST_ROWS` of them, and a sentence above."""
    shown = list(calls)[-MOST_ROWS:]
    longest = max(map(_seconds, shown), default=0.0)
    rows = [
        (
            tag("b", each.task),
            each.device,
            readable_seconds(_seconds(each)),
            bar(shares_of(each.phases), longest) if isinstance(each, Receipt) else "",
            _why(each),
        )
        for each in shown
    ]
    receipts = [each for each in shown if isinstance(each, Receipt)]
    names = [name for name in _COLOURS if any(getattr(each.phases, name) >= 5e-7 for each in receipts)]
    key = legend([Share(name, 0.0, "", _COLOURS[name]) for name in names])
    head = ("function", "device", "time", "phases", "why")
    return join((paragraph(_counted(calls)), table(head, rows, "Receipts", (2,)), key))


def _seconds(call: Receipt | Failure) -> float:
    return call.seconds if isinstance(call, Receipt) else call.end - call.begin


def shares_of(phases: Phases) -> list[Share]:
    """The phases of at least half a microsecond, as shares of a bar in their colours."""
    seconds: dict[str, float] = msgspec.structs.asdict(phases)
    return [
        Share(name, value, readable_seconds(value), _COLOURS[name]) for name, value in seconds.items() if value >= 5e-7
    ]


def _counted(calls: Sequence[Receipt | Failure]) -> str:
    """The number of calls, their time and their devices, in a sentence."""
    by_device = Counter(each.device for each in calls).most_common()
    where = ", ".join(f"{count:,} on {device}" for device, count in by_device)
    raised = sum(isinstance(each, Failure) for each in calls)
    said = f"{len(calls):,} call{'' if len(calls) == 1 else 's'} in {readable_seconds(sum(map(_seconds, calls)))}"
    said += (f": {where}" if where else "") + (f"; {raised:,} raised." if raised else ".")
    return said + (f" The last {MOST_ROWS} are below." if len(calls) > MOST_ROWS else "")


def _why(call: Receipt | Failure) -> str:
    """The reason of a call with its failed attempts, or the error that it raised."""
    if isinstance(call, Failure):
        return tag("span", f"It raised {call.error}.", class_="bad")
    tried = "".join(f"; first tried {each.device}: {each.error}" for each in call.failures)
    return call.reason + tried


def _parts(parts: dict[str, float]) -> Html:
    """The named parts of a run as a bar."""
    shares = [
        Share(name, seconds, readable_seconds(seconds), _OF_PARTS[place % len(_OF_PARTS)])
        for place, (name, seconds) in enumerate(parts.items())
    ]
    return join((paragraph("run:", look="soft"), bar(shares), legend(shares)))


def _facts(receipt: Receipt) -> list[tuple[str, object]]:
    """The rows of a receipt's table: kind of device, bytes, memory and kernels."""
    facts: list[tuple[str, object]] = [
        ("kind of device", receipt.kind),
        ("to the device", readable_bytes(receipt.bytes_to_device)),
        ("to the host", readable_bytes(receipt.bytes_to_host)),
        ("was there already", readable_bytes(receipt.bytes_skipped)),
    ]
    known = (
        ("device_seconds", "by the device's clock", readable_seconds),
        ("peak_bytes", "peak of memory", readable_bytes),
        ("kernels", "kernels", str),
        ("predicted_seconds", "predicted", readable_seconds),
    )
    for field, name, readable in known:
        value = getattr(receipt, field)
        facts.append((name, f"unknown: {receipt.unknown[field]}" if value is None else readable(value)))
    if receipt.predicted_bytes is not None:
        facts.append(("predicted peak of memory", readable_bytes(receipt.predicted_bytes)))
    if receipt.driver is not None:
        work: dict[str, int] = msgspec.structs.asdict(receipt.driver)
        facts.append(("calls of the driver", ", ".join(f"{count:,} {what}" for what, count in work.items())))
    if receipt.node is not None:
        network = f"{readable_bytes(receipt.network_bytes)} of network, asked {receipt.asks}×"
        facts.append(("machine", f"{receipt.node} ({network})"))
    if receipt.program is not None:
        facts.append(("program", tag("code", receipt.program)))
    return facts


def plan_html(plan: Plan) -> str:
    """A plan as HTML: where the call would run, and a bar for each candidate."""
    parts: list[object] = [
        paragraph(tag("b", plan.task), " would run on ", tag("b", plan.chosen), ": ", plan.reason),
    ]
    if plan.program is not None and plan.bytes_in is not None and plan.bytes_out is not None:
        facts = f"{readable_bytes(plan.bytes_in)} in, {readable_bytes(plan.bytes_out)} out"
        parts.append(paragraph(f"Its program: {plan.flops:,} operations, {facts}.", look="soft"))
    if plan.not_recorded is not None:
        parts.append(paragraph("Not traced: ", plan.not_recorded))
    longest = max((each.seconds for each in plan.candidates), default=0.0)
    rows: list[Sequence[object]] = [
        _candidate(each, longest, chosen=each.device == plan.chosen) for each in plan.candidates
    ]
    rows += [(_mark("✗", "refused"), each.device, "", "", "", each.sentence) for each in plan.refused]
    parts.append(
        table((spoken("choice"), "device", "time", "basis", "phases", "why"), rows, "Devices that could run it", (2,))
    )
    parts.append(_key(share for each in plan.candidates for share in _shares(each)))
    return framed(f"Plan for {plan.task}", *parts)


def _candidate(candidate: Candidate, longest: float, *, chosen: bool) -> tuple[object, ...]:
    """The row of a candidate: its seconds as a bar, and its reason."""
    why: list[object] = [candidate.sentence]
    if candidate.phases is not None and candidate.basis != "measured":
        why += [Html("<br/>"), tag("span", str(candidate.phases), class_="soft")]
    if candidate.network_seconds is not None:
        why.append(f" Network {readable_seconds(candidate.network_seconds)}.")
    if candidate.how is not None:
        why.append(f" It would run {candidate.how}.")
    return (
        _mark("→", "chosen") if chosen else "",
        tag("b", candidate.device) if chosen else candidate.device,
        readable_seconds(candidate.seconds),
        candidate.basis,
        bar(_shares(candidate), longest),
        join(why),
    )


def _shares(candidate: Candidate) -> list[Share]:
    """The shares of a candidate's bar: its predicted phases, or the whole call if it was measured."""
    if candidate.phases is not None and candidate.basis != "measured":
        return shares_of(candidate.phases)
    return [Share("whole call", candidate.seconds, readable_seconds(candidate.seconds), GREY)]


def _key(shares: Iterable[Share]) -> Html:
    """The legend of several bars: each name once, with its colour."""
    names = {share.name: share for share in shares}
    return legend([Share(each.name, 0.0, "", each.colour) for each in names.values()])


def _mark(sign: str, meaning: str) -> Html:
    return tag("span", sign, role="img", aria_label=meaning, title=meaning)


#: Rows of a table of statistics; those that took longest come first.
MOST_FUNCTIONS = 50


def summary_html(summary: Summary) -> str:
    """The statistics of a process as HTML, one row for each function and device."""
    # The package of observing is loaded where there is a summary, and not for every receipt.
    from anygpu.observe.statistics import SUMMARY

    if not summary.observed or not summary.calls:
        return framed("Statistics", paragraph(str(summary)))
    longest = max(each.seconds.total for each in summary.calls)
    shown = summary.calls[:MOST_FUNCTIONS]
    phases: Column[CallStatistics] = Column("phases", lambda each: bar(shares_of(Phases(**each.phases)), longest))
    hidden = len(summary.calls) - len(shown)
    return framed(
        "Statistics",
        paragraph(f"Calls in {readable_seconds(summary.seconds)}"),
        column_table((*SUMMARY, phases), shown, "Calls by function and device", HTML._replace(unknown=UNKNOWN)),
        _key(share for each in shown for share in shares_of(Phases(**each.phases))),
        paragraph(f"{hidden:,} more rows are not shown; print(ag.statistics()) has them.") if hidden else "",
    )


def store_html(statistics: Statistics) -> str:
    """The statistics of a store: its bytes by tier, budgets, copies and owners."""
    limits = ((statistics.budget, "on the device"), (statistics.host_budget, "on the host"))
    budgets = ", ".join(f"{readable_bytes(limit)} {where}" for limit, where in limits if limit is not None)
    facts: list[tuple[str, object]] = [
        ("tensors", f"{statistics.tensors:,} in {statistics.contents:,} contents"),
        (
            f"on {statistics.device}",
            f"{readable_bytes(statistics.device_bytes)}, at most {readable_bytes(statistics.peak_device_bytes)} so far",
        ),
        ("on the host", readable_bytes(statistics.host_bytes)),
        ("on disk", readable_bytes(statistics.disk_bytes)),
        ("shared", readable_bytes(statistics.bytes_saved)),
        ("budget", budgets or "none"),
        ("mode", statistics.mode),
        ("leases, pinned", f"{statistics.leases:,}, {statistics.pinned:,}"),
        ("left the device, came back", f"{statistics.evictions:,}, {statistics.returns:,}"),
    ]
    copies = [
        (kind.replace("_", " "), f"{each.count:,}", readable_bytes(each.bytes))
        for kind, each in statistics.copies.items()
    ]
    owners = [(name, f"{each.tensors:,}", readable_bytes(each.bytes)) for name, each in statistics.by_owner.items()]
    return framed(
        f"Store {statistics.name}",
        paragraph(tag("b", f"Store {statistics.name}")),
        pairs(facts, "Facts of the store"),
        table(("copies", "number", "bytes"), copies, "Copies", (1, 2)),
        table(("owner", "tensors", "bytes"), owners[:MOST_FUNCTIONS], "Owners", (1, 2)) if owners else "",
    )


MOST_KEPT = 200


class Keeping:
    """Observes calls, and keeps the last ones as they left them: making a receipt takes longer than a small call.

    It is called on the thread of each call; a deque of fixed length needs no lock.
    """

    def __init__(self) -> None:
        self._seen: deque[Seen] = deque(maxlen=MOST_KEPT)

    def __call__(self, seen: Seen, origin: Origin | None) -> None:
        self._seen.append(seen)

    def last(self, count: int) -> LastCalls:
        """The last `count` calls, whose receipts are made here."""
        return LastCalls([each if isinstance(each, Failure) else made(each) for each in list(self._seen)[-count:]])


class LastCalls(list[Receipt | Failure]):
    """Calls in the order in which they ended, shown as lines in a terminal and as a table in a notebook."""

    def __repr__(self) -> str:
        if not self:
            return _NO_CALLS
        return "\n".join(_failed(each) if isinstance(each, Failure) else str(each) for each in self)

    def _repr_html_(self) -> str:
        if not self:
            return framed("Receipts", paragraph(_NO_CALLS))
        return framed("Receipts", receipts_table(self))


_NO_CALLS = "No offloaded function has been called since %load_ext anygpu."


def _failed(failure: Failure) -> str:
    took = readable_seconds(failure.end - failure.begin)
    return f"{failure.task} raised {failure.error} on {failure.device} after {took}."


class Said(NamedTuple):
    """The outcome of `%%offload` for one function of a cell."""

    function: str
    #: The rest of a sentence.
    what: str


class Notice:
    """The outcome of `%%offload`, a line for each function."""

    def __init__(self, said: Sequence[Said]) -> None:
        self._said = tuple(said)

    def __repr__(self) -> str:
        return "\n".join(f"{each.function} {each.what}" for each in self._said)

    def _repr_html_(self) -> str:
        lines = [paragraph(tag("code", each.function), f" {each.what}", look="soft") for each in self._said]
        return framed("What %%offload did", join(lines))
