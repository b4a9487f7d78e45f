"""Receipts as HTML: the same words and figures as in the text, and where the time went as a bar."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from anygpu.base.units import readable_bytes, readable_seconds
from anygpu.notebook.markup import (
    BLUE,
    GREY,
    OLIVE,
    ORANGE,
    PINK,
    RED,
    TEAL,
    VIOLET,
    Html,
    Share,
    bar,
    details,
    framed,
    join,
    legend,
    pairs,
    paragraph,
    table,
    tag,
)
from anygpu.notes import Failure
from anygpu.receipts import Phases, Receipt

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
    """Without the frame, for what contains a receipt."""
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
    """A row for each call, and a sentence above."""
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
    """The phases that the text names."""
    seconds: dict[str, float] = msgspec.structs.asdict(phases)
    return [
        Share(name, value, readable_seconds(value), _COLOURS[name]) for name, value in seconds.items() if value >= 5e-7
    ]


def _counted(calls: Sequence[Receipt | Failure]) -> str:
    by_device = Counter(each.device for each in calls).most_common()
    where = ", ".join(f"{count:,} on {device}" for device, count in by_device)
    raised = sum(isinstance(each, Failure) for each in calls)
    said = f"{len(calls):,} call{'' if len(calls) == 1 else 's'} in {readable_seconds(sum(map(_seconds, calls)))}"
    said += (f": {where}" if where else "") + (f"; {raised:,} raised." if raised else ".")
    return said + (f" The last {MOST_ROWS} are below." if len(calls) > MOST_ROWS else "")


def _why(call: Receipt | Failure) -> object:
    if isinstance(call, Failure):
        return tag("span", f"It raised {call.error}.", class_="bad")
    tried = "".join(f"; first tried {each.device}: {each.error}" for each in call.failures)
    return call.reason + tried


def _parts(parts: dict[str, float]) -> Html:
    shares = [
        Share(name, seconds, readable_seconds(seconds), _OF_PARTS[place % len(_OF_PARTS)])
        for place, (name, seconds) in enumerate(parts.items())
    ]
    return join((paragraph("run:", look="soft"), bar(shares), legend(shares)))


def _facts(receipt: Receipt) -> list[tuple[str, object]]:
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
