"""What a terminal shows of the same values, where IPython's own way is to write out every field of a record."""

from __future__ import annotations

from typing import Any

from anygpu.base.display import Listed
from anygpu.hardware.device import Device
from anygpu.hardware.diagnosis import Diagnosis
from anygpu.hardware.inventory import in_a_few_words

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
