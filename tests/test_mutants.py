"""The list of `scripts/mutants` fits the source: what it takes out is there, and what it puts in is Python."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FIELDS = {"name", "room", "commit", "bug", "file", "now", "broken", "test"}
MUTANTS: list[dict[str, str]] = tomllib.loads((ROOT / "scripts" / "mutants.toml").read_text())["mutant"]

each_mutant = pytest.mark.parametrize("mutant", MUTANTS, ids=[each["name"] for each in MUTANTS])


@each_mutant
def test_the_edit_applies_and_what_it_leaves_is_python(mutant: dict[str, str]) -> None:
    assert set(mutant) == FIELDS
    assert mutant["file"].startswith("src/anygpu/")
    text = (ROOT / mutant["file"]).read_text()
    assert text.count(mutant["now"]) == 1, "`now` has to be in the file once: has the code been rewritten?"
    assert mutant["now"] != mutant["broken"]
    compile(text.replace(mutant["now"], mutant["broken"]), mutant["file"], "exec")


@each_mutant
def test_its_test_is_there(mutant: dict[str, str]) -> None:
    file, _, name = mutant["test"].partition("::")
    function = name.partition("[")[0].rpartition("::")[2]
    assert function.startswith("test_")
    assert f"def {function}(" in (ROOT / file).read_text()


def test_there_are_enough_of_them_in_enough_rooms() -> None:
    names = [each["name"] for each in MUTANTS]
    assert len(names) == len(set(names))
    assert len(names) >= 40
    assert len({each["room"] for each in MUTANTS}) >= 20


def test_a_bug_is_said_in_a_sentence() -> None:
    wrong = [each["name"] for each in MUTANTS if not each["bug"].endswith(".") or len(each["bug"]) > 160]
    assert wrong == []
