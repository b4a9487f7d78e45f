"""The programs of newcomers: NumPy, JAX and native code give the same results, and all three are timed."""

from __future__ import annotations

import pytest

from benchmarks import newcomer
from benchmarks.newcomer_programs import NEWCOMERS


@pytest.mark.parametrize("name", newcomer.PROGRAMS)
def test_all_tools_agree(name: str) -> None:
    best = newcomer.measure(newcomer.PROGRAMS[name], divisor=10, rounds=1, seconds=0.0)
    assert list(best) == list(newcomer.TOOLS)


def test_a_tool_that_is_wrong_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {"NumPy": newcomer.in_numpy, "JAX": lambda program: (lambda *arrays: arrays[0], lambda array: array)}
    monkeypatch.setattr(newcomer, "TOOLS", wrong)
    with pytest.raises(SystemExit, match="heat with JAX is off by"):
        newcomer.measure(newcomer.PROGRAMS["heat"], divisor=10, rounds=1, seconds=0.0)


def test_scripts_are_judged_one_by_one_and_by_the_fifth_fastest() -> None:
    scripts = [newcomer.Script(f"script {number}", 1.0, (0.4, 0.3, 0.3)) for number in range(5)]
    scripts += [newcomer.Script(f"script {number}", 1.0, (1.05, 1.0, 1.0)) for number in range(5, 9)]
    found = {figure.name: figure for figure in newcomer.figures_of_scripts(scripts)}
    assert found["script 8: slowest process"].share < 1
    assert found["process 1 by NumPy, 5 of 9 at most"].value == 0.4
    assert found["process 2 by NumPy, 5 of 9 at most"].share == pytest.approx(0.9)
    slower = newcomer.figures_of_scripts([*scripts[:8], newcomer.Script("slow", 1.0, (0.5, 1.07, 0.5))])
    assert [figure.name for figure in slower if figure.share > 1] == ["slow: slowest process"]


def test_every_newcomer_has_a_script() -> None:
    assert [each.name for each in NEWCOMERS] == list(newcomer.SCRIPT_CALLS)
