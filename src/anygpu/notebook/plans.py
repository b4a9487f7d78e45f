"""Plans as HTML: every candidate with its time as a bar, and why."""

from __future__ import annotations

from collections.abc import Sequence

from anygpu.base.units import readable_bytes, readable_seconds
from anygpu.notebook.markup import GREY, Html, Share, bar, framed, join, legend, paragraph, spoken, table, tag
from anygpu.notebook.receipts import shares_of
from anygpu.plan.plan import Candidate, Plan


def plan_html(plan: Plan) -> str:
    parts: list[object] = [
        paragraph(tag("b", plan.task), " would run on ", tag("b", plan.chosen), ": ", plan.reason),
    ]
    if plan.program is not None and plan.bytes_in is not None and plan.bytes_out is not None:
        facts = f"{readable_bytes(plan.bytes_in)} in, {readable_bytes(plan.bytes_out)} out"
        parts.append(paragraph(f"Its program: {plan.flops:,} operations, {facts}.", look="soft"))
    if plan.not_recorded is not None:
        parts.append(paragraph("Not traced: ", plan.not_recorded))
    longest = max((each.seconds for each in plan.candidates), default=0.0)
    rows: list[Sequence[object]] = [_row(each, longest, chosen=each.device == plan.chosen) for each in plan.candidates]
    rows += [(_mark("✗", "refused"), each.device, "", "", "", each.sentence) for each in plan.refused]
    parts.append(
        table((spoken("choice"), "device", "time", "basis", "phases", "why"), rows, "Devices that could run it", (2,))
    )
    names = {share.name: share for each in plan.candidates for share in _shares(each)}
    parts.append(legend([Share(each.name, 0.0, "", each.colour) for each in names.values()]))
    return framed(f"Plan for {plan.task}", *parts)


def _row(candidate: Candidate, longest: float, *, chosen: bool) -> tuple[object, ...]:
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
    if candidate.phases is not None and candidate.basis != "measured":
        return shares_of(candidate.phases)
    return [Share("whole call", candidate.seconds, readable_seconds(candidate.seconds), GREY)]


def _mark(sign: str, meaning: str) -> Html:
    return tag("span", sign, role="img", aria_label=meaning, title=meaning)
