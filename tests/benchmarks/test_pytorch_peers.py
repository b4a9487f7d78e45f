"""What the comparison with Accelerate and Lightning says, from runs that are made up."""

from __future__ import annotations

import pytest

from benchmarks import pytorch_peers
from benchmarks.pytorch_peers_process import Run


def made_up(**fields: float) -> Run:
    return Run(batch=128, rows_per_second=50.0, seconds=20.0, peak_bytes=300, how="in halves", **fields)  # type: ignore[arg-type]


def test_middle_values_count_and_ours_have_bounds() -> None:
    runs = {"anygpu, later run": [made_up(), made_up(trials=1)], "Accelerate": [made_up(trials=8)]}
    found = {each.name: each for each in pytorch_peers.figures_of(runs, [made_up()], 128, 400)}
    assert found["anygpu, later run: trials"].share == 1.0
    assert found["anygpu, later run: slower than without a limit"].value == 1.0
    assert found["anygpu, later run: peak by budget"].value == 0.75
    assert found["Accelerate: trials"].bound is None
    assert str(made_up(trials=2)).startswith("2 trials, 0.0 s lost, 50 rows/s")


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(pytorch_peers, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as ended:
        pytorch_peers.main([])
    assert ended.value.code == 2
    assert "pip install accelerate; pip install lightning" in capsys.readouterr().err
