"""`anygpu history` as a person or a script meets it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from anygpu.base.cache_folder import write_file
from anygpu.cli.commands import app
from anygpu.cli.history import KnownHistory
from anygpu.errors import InvalidOption
from anygpu.placement.history.history import History

P, Q, S, OLD, F, G = ("0" * 32, "1" * 32, "2" * 32, "5" * 32, "3" * 32, "abcdef01" * 4)


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANYGPU_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("ANYGPU_HISTORY", raising=False)
    return tmp_path / "history" / "calls.1"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["history", *arguments])


def fill(path: Path, *, days_ago: float = 3.01) -> None:
    kept = History(path, clock=lambda: time.time() - days_ago * 86_400)
    for _ in range(41):
        kept.ran(P, "numpy", S, 0.1)
    kept.ran(P, "webgpu:0", OLD, 0.5)
    kept.called(F, S, 5.0, 41, name="mine.score", program=P)
    kept.called(G, S, 1.0, 10, name=None)
    assert kept.flush(5.0)
    kept = History(path)
    kept.ran(P, "webgpu:0", S, 0.025, calls=7)
    kept.compiled(P, "webgpu:0", S, 2.0)
    kept.agreed(P, "webgpu:0", S)
    kept.called(F, Q, 1.0, 7, name="mine.score", program=P)
    assert kept.flush(5.0)


def test_nothing_is_known_at_first(path: Path) -> None:
    shown = invoke()
    assert shown.exit_code == 0, shown.output
    assert "Nothing is known of earlier calls." in shown.output
    assert str(path) in shown.output
    assert not path.exists()
    assert "Nothing is known" in invoke("clear").output


def test_the_table(path: Path) -> None:
    fill(path)
    shown = invoke()
    assert shown.exit_code == 0, shown.output
    lines = [line.split() for line in shown.output.splitlines()]
    assert ["mine.score", "webgpu:0", "25", "ms", "7", "just", "now"] in lines
    assert ["numpy", "100", "ms", "41", "3", "days", "ago"] in lines
    assert ["abcdef01", "as", "it", "is", "100", "ms", "10", "3", "days", "ago"] in lines
    assert f"The history is kept in {path}, " in shown.output
    assert "… and 2 more" in invoke("--limit", "1").output


def test_the_json_document(path: Path) -> None:
    fill(path)
    shown = invoke("--json")
    document = msgspec.json.decode(shown.output, type=KnownHistory)
    assert document.schema == "anygpu.history/1"
    assert (document.path, document.setting, document.problem) == (str(path), "on", None)
    assert document.nbytes == path.stat().st_size
    assert [each.habit.name for each in document.functions] == ["mine.score", None, "mine.score"]
    assert [(each.device, each.seconds) for each in document.functions[0].timings] == [
        ("webgpu:0", 0.025),
        ("numpy", 0.1),
        ("webgpu:0", 0.5),
    ]
    only = json.loads(invoke("explain", "score", "--json").output)
    assert len(only["functions"]) == 2


def test_what_is_known_of_one_function(path: Path) -> None:
    fill(path)
    shown = invoke("explain", "score").output
    assert "mine.score  a process makes 41 calls that take 5 s; 1 process, the last 3 days ago" in shown
    assert "measured just now, 7 calls · agreed with NumPy · compiling took 2 s" in shown
    assert "It is 4 times as fast as numpy." in shown
    assert "1 timing with another driver or version, not used." in shown
    assert "it was not traced" in invoke("explain", G[:8]).output
    failed = invoke("explain", "nothing")
    assert isinstance(failed.exception, InvalidOption)
    assert "'nothing'; the history has abcdef01, mine.score." in str(failed.exception)


def test_one_function_is_forgotten_and_then_all(path: Path) -> None:
    fill(path)
    kept = History(path)
    kept.ran(Q, "numpy", S, 1.0)
    kept.called("6" * 32, S, 1.0, name="mine.other", program=Q)
    assert kept.flush(5.0)
    assert "The history of mine.score was cleared." in invoke("clear", "mine.score").output
    assert History(path).timings(P) == ()
    assert len(History(path).timings(Q)) == 1
    assert isinstance(invoke("clear", "mine.score").exception, InvalidOption)
    assert "The history was cleared." in invoke("clear").output
    assert json.loads(invoke("--json").output)["functions"] == []


def test_a_program_that_another_function_has_as_well_is_not_forgotten(path: Path) -> None:
    fill(path)
    kept = History(path)
    kept.called("6" * 32, S, 1.0, name="mine.other", program=P)
    assert kept.flush(5.0)
    assert invoke("clear", "mine.score").exit_code == 0
    assert len(History(path).timings(P)) == 3


def test_what_is_wrong_is_said(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(path)
    monkeypatch.setenv("ANYGPU_HISTORY", "off")
    assert "ANYGPU_HISTORY=off: nothing is added to" in invoke().output
    path.parent.chmod(0o777)
    shown = invoke()
    assert "belongs to another user, or others can write to it" in shown.output
    failed = invoke("clear")
    assert "could not be cleared: The history is not used" in str(failed.exception)
    assert "belongs" in json.loads(invoke("--json").output)["problem"]


def test_what_is_known_of_training_steps_is_cleared_with_the_rest(path: Path) -> None:
    step = path.parent / "steps" / ("0" * 32)
    assert write_file(step, b"a plan")
    assert invoke("clear").exit_code == 0
    assert not step.exists()
