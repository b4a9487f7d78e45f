"""How the gate runs its tests: in turns, long tables in part, and failures shown when they happen."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import is_in_sample
from tests.support.turns import Turns

ROOT = Path(__file__).parents[1]
PATIENCE = 60.0


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Turns, Turns]]:
    """Of two processes of a run, which these stand in for: a lock belongs to whoever opened its file."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    both = Turns("run"), Turns("run")
    yield both
    for each in both:
        each.give_back()
        each._queue.close()
        each._running.close()


def taking(turns: Turns, *, alone: bool) -> tuple[threading.Thread, threading.Event]:
    """A thread that waits for its turn, and whether it has it."""
    has_it = threading.Event()

    def take() -> None:
        turns.take(alone=alone)
        has_it.set()

    thread = threading.Thread(target=take)
    thread.start()
    return thread, has_it


def test_most_tests_run_beside_each_other(pair: tuple[Turns, Turns]) -> None:
    for turns in pair:
        thread, has_it = taking(turns, alone=False)
        assert has_it.wait(PATIENCE)
        thread.join()


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (True, True)])
def test_one_that_is_alone_waits_and_is_waited_for(pair: tuple[Turns, Turns], first: bool, second: bool) -> None:
    one, other = pair
    one.take(alone=first)
    thread, has_it = taking(other, alone=second)
    assert not has_it.wait(0.05)
    one.give_back()
    assert has_it.wait(PATIENCE)
    thread.join()


def test_a_turn_can_become_one_that_is_alone(pair: tuple[Turns, Turns]) -> None:
    """As for a further attempt."""
    one, other = pair
    one.take(alone=False)
    one.take(alone=True)
    thread, has_it = taking(other, alone=False)
    assert not has_it.wait(0.05)
    one.give_back()
    assert has_it.wait(PATIENCE)
    thread.join()


def test_a_sample_is_the_part_that_was_asked_for_and_always_the_same() -> None:
    names = [f"tests/test_table.py::test_case[{number}]" for number in range(3000)]
    for one_of in (1, 2, 3, 4):
        sample = [name for name in names if is_in_sample(name, one_of)]
        assert len(sample) == pytest.approx(len(names) / one_of, rel=0.1)
    assert [number for number in range(20) if is_in_sample(f"case {number}", 4)] == [4, 6, 14, 16]


def test_a_failure_is_shown_before_the_run_ends(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "from tests.support.failures_at_once import FailuresAtOnce\n"
        "def pytest_sessionstart(session):\n"
        "    plugins = session.config.pluginmanager\n"
        "    plugins.register(FailuresAtOnce(plugins.get_plugin('terminalreporter')))\n"
    )
    (tmp_path / "test_two.py").write_text(
        "import os\ndef test_fails():\n    assert 1 == 2, 'the reason'\ndef test_ends_the_run():\n    os._exit(3)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-u", "-m", "pytest", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 3
    assert "FAILED test_two.py::test_fails (call, 0 s)" in ran.stdout
    assert "the reason" in ran.stdout
