from __future__ import annotations

import pytest

from anygpu.placement.history import history


@pytest.fixture(autouse=True)
def long_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is not served at once is served as if nothing were known: on a busy machine that may be anybody."""
    monkeypatch.setattr(history, "PATIENCE", 120.0)
    monkeypatch.setattr(history.History.flush, "__defaults__", (120.0,))
