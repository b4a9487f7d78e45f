"""Writers that are killed, and files that somebody has damaged: a few of what two programs beside do at length."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.history.fuzz_files import fuzz_in_children
from tests.history.kill_writers import run

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked, to be killed at any moment")


@needs_fork
@pytest.mark.serial
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_killed_writers_lose_nothing_and_nobody_waits(tmp_path: Path) -> None:
    report = run(4, 200, 1, tmp_path / "history" / "history.sqlite3")
    assert report.mistakes == []
    assert report.writes == 800
    assert report.kills > 10
    assert report.calls >= 1600
    assert report.late <= 2, f"a virtual machine may stand still for a moment: {report}"


def test_damaged_files_are_read_or_set_aside() -> None:
    report = fuzz_in_children(300, seed=1)
    assert report.surprises == []
    assert report.outcomes["set aside"] > 50
    assert sum(report.outcomes.values()) == 300
    assert report.growth_bytes < 16 << 20
