"""Devices and the diagnosis as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from anygpu.hardware.device import Device, State
from anygpu.hardware.diagnosis import Diagnosis
from anygpu.hardware.diagnosis_context import Finding
from anygpu.hardware.inventory import all_facts, explained, in_a_few_words, memory_of, more_words
from anygpu.notebook.markup import (
    GREY,
    OLIVE,
    RED,
    TEAL,
    Html,
    details,
    framed,
    join,
    pairs,
    paragraph,
    spoken,
    table,
    tag,
)

_MARKS: dict[State, tuple[str, str]] = {
    "verified": ("✓", TEAL),
    "usable": ("?", OLIVE),
    "present": ("✗", RED),
    "hung": ("✗", RED),
    "absent": ("–", GREY),
}
_SEVERITIES = {"problem": ("Problem", "✗"), "advice": ("Advice", "→"), "note": ("Note", "·")}


def device_html(device: Device) -> str:
    rows: list[tuple[str, object]] = [
        ("state", join((_mark(device.state), " ", device.state))),
        ("what", in_a_few_words(device)),
        ("kind", f"{device.kind}, {device.form}"),
        ("memory", memory_of(device)),
        ("driver", device.driver or f"unknown: {device.unknown['driver']}"),
        ("features", " ".join(device.features) or "none"),
    ]
    head = paragraph(tag("b", device.id), f" ({device.name})")
    return framed(f"Device {device.id}", head, pairs(rows, "Facts of the device"), _more(device))


def devices_html(devices: Sequence[Device]) -> str:
    rows = [(_mark(each.state), tag("b", each.id), in_a_few_words(each), more_words(each)) for each in devices]
    return framed(
        "Devices",
        table((spoken("state"), "device", "what", "driver, memory and features"), rows, "Devices, best first"),
        details("All figures", *(join((paragraph(tag("b", each.id)), _facts(each))) for each in devices)),
    )


def diagnosis_html(diagnosis: Diagnosis) -> str:
    inventory = diagnosis.inventory
    rows = [(_mark(each.state), tag("b", each.id), in_a_few_words(each)) for each in inventory.devices]
    parts: list[object] = [
        paragraph(tag("b", diagnosis.verdict)),
        table((spoken("state"), "device", "what can compute here"), rows, "Devices"),
        *(_finding(each) for each in diagnosis.findings),
    ]
    if not diagnosis.problems:
        parts.append(paragraph("No problems found."))
    if inventory.unavailable:
        missing = [(_mark(each.state), each.id, explained(each)) for each in inventory.unavailable]
        parts.append(
            details("Not available", table((spoken("state"), "what", "why"), missing, "What is not available"))
        )
    return framed("Diagnosis", *parts)


def _finding(finding: Finding) -> Html:
    word, sign = _SEVERITIES[finding.severity]
    heading = tag("span", f"{sign} {word}:", class_="bad" if finding.severity == "problem" else "k")
    steps = [tag("li", "→ ", tag("code", step)) for step in finding.fix]
    parts: Iterable[object] = (
        paragraph(heading, " ", tag("b", finding.title)),
        paragraph(finding.cause),
        tag("ul", *steps) if steps else "",
    )
    return tag("div", *parts, style="margin:8px 0")


def _more(device: Device) -> Html:
    return details("All figures", _facts(device))


def _facts(device: Device) -> Html:
    return pairs(all_facts(device), f"Figures of {device.id}")


def _mark(state: State) -> Html:
    sign, colour = _MARKS[state]
    return tag("span", sign, role="img", aria_label=state, title=state, style=f"color:{colour};font-weight:700")
