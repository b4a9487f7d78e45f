"""`anygpu serve`: what is typed, and what is said about it. `tests/serving/test_drain.py` runs it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from anygpu.cli.commands import app
from anygpu.cli.fleet import _named

MODULE = "def score(x):\n    return x\n\n\nasync def later(x):\n    return x\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "served_models.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("typed", "name"), [("served_models:score", "score"), ("rank=served_models:score", "rank")])
def test_functions_have_names(typed: str, name: str) -> None:
    found, function = _named(typed)
    assert found == name
    assert function(3) == 3


def test_files_have_names(folder: Path) -> None:
    (folder / "score.program").write_bytes(b"")
    assert _named("score.program") == ("score", Path("score.program"))
    assert _named("rank=score.program") == ("rank", Path("score.program"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["served_models:scor"], "it has later, score"),
        (["served_models:later"], "async function"),
        (["nowhere"], "neither a function, as module:function, nor the file"),
        (["served_models:score", "--host", "0.0.0.0"], "Pass --tokens, or --insecure"),
        (["served_models:score", "--max-body", "lots"], "number of bytes"),
        (["served_models:score", "--latency", "0"], "latency is a number of seconds"),
    ],
)
def test_what_is_refused(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(app, ["serve", *arguments], env={"COLUMNS": "500", "TERM": "dumb"})
    assert done.exit_code == 2
    assert says in " ".join(re.sub(r"[│╭╮╰╯─]", "", done.output).split())
