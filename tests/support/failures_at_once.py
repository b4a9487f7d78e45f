"""Failures are shown when they happen: a run that is stopped before its end has said what failed, and why."""

from __future__ import annotations

import pytest

#: Of what is shown of a failure; pytest shows all of it in the end.
LINES = 12


class FailuresAtOnce:
    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._reporter.write_line("")
            self._reporter.write_line(f"FAILED {report.nodeid} ({report.when}, {report.duration:.0f} s)", red=True)
            for line in report.longreprtext.splitlines()[-LINES:]:
                self._reporter.write_line(f"    {line}")
