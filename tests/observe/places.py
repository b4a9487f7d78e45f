"""A folder of their own where the processes of a test meet."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from anygpu.observe.sockets import VARIABLE


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Not pytest's own, whose path is too long for a socket."""
    folder = Path(tempfile.mkdtemp(prefix="ag-"))
    monkeypatch.setenv(VARIABLE, str(folder))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
