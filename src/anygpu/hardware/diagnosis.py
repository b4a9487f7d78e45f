"""Why is my GPU not used? Causes and fixes, from what the probes found and what the machine says of itself. Pure.

What no cause explains is still passed on in the probe's own words: nothing that was found is left out.
"""

from __future__ import annotations

import msgspec

from anygpu.base.display import drawn
from anygpu.base.printable import encode_json
from anygpu.hardware.device import Unavailable
from anygpu.hardware.diagnosis_context import DiagnosisContext, Finding, Gpu, together
from anygpu.hardware.diagnosis_rules import RULES, as_reported
from anygpu.hardware.evidence import Evidence
from anygpu.hardware.inventory import Inventory

SCHEMA = "anygpu.doctor/1"


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The doctor's report; `to_json` gives the documented schema for bug reports."""

    schema: str = SCHEMA
    #: The answer in one sentence.
    verdict: str
    findings: tuple[Finding, ...]
    inventory: Inventory
    evidence: Evidence

    @property
    def problems(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == "problem")

    def to_json(self) -> bytes:
        return msgspec.json.format(encode_json(self), indent=2)

    def _repr_html_(self) -> str | None:
        return drawn(self)


def diagnose(inventory: Inventory, evidence: Evidence) -> Diagnosis:
    case = DiagnosisContext(inventory, evidence)
    findings = [finding for rule in RULES for finding in rule(case)]
    explained = {finding.about for finding in findings}
    findings += [
        as_reported(case, item) for item in inventory.unavailable if item.id not in explained and _matters(item)
    ]
    findings.sort(key=lambda finding: ("problem", "advice", "note").index(finding.severity))
    return Diagnosis(verdict=_verdict(case), findings=tuple(findings), inventory=inventory, evidence=evidence)


def _matters(item: Unavailable) -> bool:
    # A CPU-only build or a missing accelerator is a problem only beside a card, and then a rule has said so. But who
    # installed NVIDIA's driver expects a card.
    return item.engine == "nvidia" or item.cause not in ("cpu_only_build", "no_device", "not_installed")


def _verdict(case: DiagnosisContext) -> str:
    working = [gpu for gpu in case.gpus if gpu.ways]
    idle = [gpu for gpu in case.gpus if not gpu.ways]
    if working:
        names = dict.fromkeys(gpu.name for gpu in working)
        ways = "; ".join(_how_it_works([gpu for gpu in working if gpu.name == name]) for name in names)
        verdict = f"Your {'GPU works' if len(working) == 1 else f'{len(working)} GPUs work'}: {ways}."
        return verdict + (f" Nothing here can use {together(gpu.name for gpu in idle)} yet." if idle else "")
    if idle:
        there, them = ("is a GPU", "it") if len(idle) == 1 else (f"are {len(idle)} GPUs", "them")
        return f"There {there} ({together(gpu.name for gpu in idle)}), but nothing here can use {them} yet."
    if case.seems_to_have_a_gpu:
        return "There seems to be a GPU, but nothing here can use it yet."
    return "There is no GPU here; your code runs on the CPU."


def _how_it_works(alike: list[Gpu]) -> str:
    """Through which devices; of many equal cards only through which engines."""
    ways = [device for gpu in alike for device in gpu.ways]
    through = dict.fromkeys(device.id if len(alike) == 1 else device.engine for device in ways)
    return f"{together(gpu.name for gpu in alike)} through {together(through)}"
