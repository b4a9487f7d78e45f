"""Tests that depend on the clock, or on other processes, are tried again when they fail, and pytest's summary says so.

Those marked `serial` measure times. Those of `WITH_PROCESSES` start processes, threads and sockets, which the machine
may be slow to start or end. No other test runs beside a further attempt. Tests of values are never repeated: a wrong
value that comes and goes is a wrong value. None is repeated that took long before it failed: what hangs does so again,
and the time limit of a test counts once for all its attempts.
"""

from __future__ import annotations

import time

import pytest
from _pytest.runner import runtestprotocol

from tests.support import turns

#: A machine that others use too may take a processor away in the middle of a measurement.
ATTEMPTS = 3
#: Folders below tests/ whose tests get a second attempt.
WITH_PROCESSES = ("cli", "deploy", "faults", "fleet", "observe", "residency", "runtime", "serving", "tasks", "workers")
#: Seconds that an attempt may take to be worth another, and all that are repeated in one process together.
MOST_SECONDS, MOST_IN_ALL = 45.0, 240.0

_repeated = 0.0


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    attempts = _attempts(item)
    if attempts == 1:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    global _repeated
    failures: list[str] = []
    for attempt in range(1, attempts + 1):
        if attempt > 1 and turns.ours is not None:
            turns.ours.take(alone=True)
        begin = time.monotonic()
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        failed = [report for report in reports if report.failed]
        seconds = time.monotonic() - begin
        _repeated += seconds if attempt > 1 else 0.0
        if not failed or attempt == attempts or failed[0].when == "teardown":
            break
        if seconds > MOST_SECONDS or _repeated > MOST_IN_ALL:
            break
        failures.append(failed[0].longreprtext)
        if failed[0].when == "setup":
            # What could not be set up is remembered as long as others of its file or folder may need it.
            item.session._setupstate.teardown_exact(None)
        item._initrequest()  # type: ignore[attr-defined]
    for report in reports:
        if failures and report.when == "call":
            report.user_properties.append(("repeated", failures[-1].splitlines()[-1]))
            report.sections += [(f"attempt {number}", text) for number, text in enumerate(failures, 1)]
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _attempts(item: pytest.Item) -> int:
    if item.get_closest_marker("serial") is not None:
        return ATTEMPTS
    return 2 if item.nodeid.startswith(tuple(f"tests/{folder}/" for folder in WITH_PROCESSES)) else 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.stats.get("passed", ()):
        for name, reason in report.user_properties:
            if name == "repeated":
                terminalreporter.write_line(f"REPEATED {report.nodeid}: {reason}")
