"""The programs of newcomers: NumPy, JAX and native code give the same results, and all three are timed."""

from __future__ import annotations

import pytest

from benchmarks import newcomer


@pytest.mark.parametrize("name", newcomer.PROGRAMS)
def test_all_tools_agree(name: str) -> None:
    best = newcomer.measure(newcomer.PROGRAMS[name], divisor=10, rounds=1, seconds=0.0)
    assert list(best) == list(newcomer.TOOLS)


def test_a_tool_that_is_wrong_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {"NumPy": newcomer.in_numpy, "JAX": lambda program: (lambda *arrays: arrays[0], lambda array: array)}
    monkeypatch.setattr(newcomer, "TOOLS", wrong)
    with pytest.raises(SystemExit, match="heat with JAX is off by"):
        newcomer.measure(newcomer.PROGRAMS["heat"], divisor=10, rounds=1, seconds=0.0)
