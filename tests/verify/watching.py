"""Somebody who is told how far a verification is."""

from __future__ import annotations

from anygpu.verify.cases import Check
from anygpu.verify.document import CheckRecord, Finding


class Silent:
    def __init__(self) -> None:
        self.begun_checks: list[str] = []
        self.findings: list[Finding] = []
        self.records: list[CheckRecord] = []

    def begun(self, check: Check, cases: int) -> None:
        self.begun_checks.append(check.name)

    def advanced(self, check: Check, tried: int) -> None:
        pass

    def found(self, finding: Finding) -> None:
        self.findings.append(finding)

    def ended(self, record: CheckRecord) -> None:
        self.records.append(record)
