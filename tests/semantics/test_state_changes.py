"""What a function depends on beside its arguments is changed after it has become native code."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import anygpu as ag
from tests.semantics.outcomes import Outcome, difference
from tests.semantics.state_changes import BEFORE, CASES, StateChange, outcomes
from tests.support.native_placement import native_at_once, settle, wrong_functions

#: Of these only side effects tell what was run.
SAME_VALUES = frozenset(
    (
        "a class whose subclasses are counted",
        "what a finaliser does",
        "a log that a member keeps",
        "what a class says of its subclasses",
    )
)
#: Cases of one process: one that has just begun, and one that begins with what the first has learnt.
PARTS = 12


@pytest.fixture
def at_once() -> Iterator[None]:
    with native_at_once():
        yield


def _as_it_is(function: Any) -> Any:
    return function


def _nothing() -> None:
    """Nothing is looked at after a call."""


def complaint(case: StateChange, expected: list[Outcome], where: list[str]) -> str | None:
    """What is wrong with a case, `None` when nothing is; `where` gets the device of each call."""

    def called() -> None:
        settle()
        receipt = ag.last_receipt()
        where.append("nowhere" if receipt is None else receipt.device)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ag.ResultMismatch)
        got = outcomes(case, ag.offload, called)
    for number, (one, other) in enumerate(zip(expected, got, strict=True)):
        differs = difference(one, other)
        if differs is not None:
            return f"{case.name}: call {number} on {where[number]}: {differs}"
    wrong = wrong_functions()
    return f"{case.name}: {wrong[0]}" if wrong else None


@pytest.mark.sampled(gate=3)
@pytest.mark.parametrize("name", CASES)
def test_a_change_is_seen_by_the_next_call(name: str, at_once: None) -> None:
    case = CASES[name]
    expected = outcomes(case, _as_it_is, _nothing)
    changes = difference(expected[BEFORE - 1], expected[BEFORE]) is not None
    assert changes or name in SAME_VALUES, "the change makes no difference"
    wrong = complaint(case, expected, [])
    assert wrong is None, wrong


@pytest.mark.sampled(gate=PARTS)
@pytest.mark.parametrize("part", range(PARTS))
def test_it_is_seen_in_a_process_that_begins_with_native_code(part: int, tmp_path: Path) -> None:
    environment = os.environ | {"ANYGPU_NATIVE": "on", "ANYGPU_HISTORY": "on", "ANYGPU_CACHE_DIR": str(tmp_path)}
    begun = []
    for _ in range(2):
        command = [sys.executable, "-m", __name__, str(part)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        begun.append(int(done.stdout))
    assert begun[0] < begun[1], "the second process was to begin with native code"


def _check(part: int) -> None:
    """Check a part of the cases in this process: print how many began as native code, or exit with what is wrong."""
    begun, wrong = 0, []
    with native_at_once(history="on"):
        for case in list(CASES.values())[part::PARTS]:
            where: list[str] = []
            wrong.append(complaint(case, outcomes(case, _as_it_is, _nothing), where))
            begun += where[:1] == ["cpu"]
    sys.stdout.write(str(begun))
    sys.exit("\n".join(filter(None, wrong)) or None)


if __name__ == "__main__":
    _check(int(sys.argv[1]))
