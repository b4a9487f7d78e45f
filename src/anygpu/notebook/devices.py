"""Devices and the diagnosis as HTML, and as text for IPython in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from anygpu.base.display import Listed
from anygpu.base.markup import (
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
from anygpu.hardware.device import Device, State
from anygpu.hardware.diagnosis import Diagnosis
from anygpu.hardware.diagnosis_context import Finding
from anygpu.hardware.inventory import all_facts, explained, in_a_few_words, memory_of, more_words

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
        label = "Devices that are not available"
        parts.append(details("Not available", table((spoken("state"), "what", "why"), missing, label)))
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


#: Modules and names of the classes. They are named and not imported, because not every notebook loads them.
WRITTEN = (
    ("anygpu.receipts", "Receipt"),
    ("anygpu.plan.plan", "Plan"),
    ("anygpu.observe.statistics", "Summary"),
    ("anygpu.hardware.device", "Device"),
    ("anygpu.hardware.diagnosis", "Diagnosis"),
    ("anygpu.base.display", "Listed"),
)


def write(value: Any, printer: Any, cycle: bool) -> None:
    """For IPython's printer."""
    printer.text(text_of(value))


def text_of(value: Any) -> str:
    if isinstance(value, Diagnosis):
        return _diagnosis(value)
    if isinstance(value, Listed):
        if value and all(isinstance(each, Device) for each in value):
            return _devices(value)
        return "\n".join(str(each) for each in value) if value else "[]"
    return str(value)


def _devices(devices: list[Device] | tuple[Device, ...]) -> str:
    width = max((len(each.id) for each in devices), default=0)
    return "\n".join(f"{each.id:<{width}}  {in_a_few_words(each)}" for each in devices)


def _diagnosis(diagnosis: Diagnosis) -> str:
    lines = [diagnosis.verdict, _devices(diagnosis.inventory.devices)]
    for each in diagnosis.findings:
        lines += [f"{each.severity}: {each.title}", f"  {each.cause}", *(f"  → {step}" for step in each.fix)]
    if not diagnosis.problems:
        lines.append("No problems found.")
    return "\n".join(line for line in lines if line)
