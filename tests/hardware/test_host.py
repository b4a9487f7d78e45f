"""The memory of the machine, as the system tells."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from anygpu.hardware import host


def test_linux_tells_what_psutil_does() -> None:
    total, available = host._host_memory()
    assert total == psutil.virtual_memory().total
    assert 0 < available < total


@pytest.mark.parametrize("content", ["", "MemTotal: much", "MemTotal:\nMemAvailable:", "MemTotal: 5 kB"])
def test_a_system_that_tells_nothing_is_asked_through_psutil(tmp_path: Path, content: str) -> None:
    (tmp_path / "meminfo").write_text(content)
    assert host._host_memory(str(tmp_path / "meminfo"))[0] == psutil.virtual_memory().total
    assert host._host_memory(str(tmp_path / "nothing"))[0] == psutil.virtual_memory().total
