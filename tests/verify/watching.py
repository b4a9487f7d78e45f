"""Somebody who is told how far a verification is."""

from __future__ import annotations

from anygpu.testing.verify import CheckRecord, VerifyCheck, WrongCase


class Silent:
    def __init__(self) -> None:
        self.begun_checks: list[str] = []
        self.findings: list[WrongCase] = []
        self.records: list[CheckRecord] = []

    def begun(self, check: VerifyCheck, cases: int) -> None:
        self.begun_checks.append(check.name)

    def advanced(self, check: VerifyCheck, tried: int) -> None:
        pass

    def found(self, finding: WrongCase) -> None:
        self.findings.append(finding)

    def ended(self, record: CheckRecord) -> None:
        self.records.append(record)
