"""How tests are run: in three sets, long tables in part, and failures shown when they happen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sets import sets_of_cases

ROOT = Path(__file__).parents[1]


def pytest_in(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs pytest on the tests in a folder."""
    return subprocess.run(
        [sys.executable, "-u", "-m", "pytest", "-p", "no:cacheprovider", *arguments, str(folder)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_sample_is_the_part_that_was_asked_for_and_always_the_same() -> None:
    names = [f"tests/test_table.py::test_case[{number}]" for number in range(3000)]
    for gate, full in ((1, 1), (4, 1), (8, 2), (40, 4)):
        chosen = sets_of_cases([(name, "") for name in names], gate=gate, full=full)
        in_gate = [name for name in names if chosen[name] == "gate"]
        in_full = [name for name in names if chosen[name] != "long"]
        assert len(in_gate) == -(-len(names) // gate)
        assert len(in_full) == pytest.approx(len(names) / full, rel=0.1)
    few = sets_of_cases([(f"case {number}", "") for number in range(20)], gate=8, full=4)
    assert [name for name, chosen in few.items() if chosen == "gate"] == ["case 4", "case 14", "case 16"]


def test_a_new_case_of_a_table_hardly_changes_the_sample() -> None:
    cases = [(f"case {number}", "") for number in range(200)]
    before = sets_of_cases(cases[:-1], gate=10)
    after = sets_of_cases(cases, gate=10)
    assert sum(before[name] != after[name] for name in before) <= 1


def test_a_sample_has_each_engine() -> None:
    cases = [(f"case {number} on {engine}", engine) for number in range(5) for engine in ("torch", "webgpu", "opencl")]
    chosen = sets_of_cases(cases, gate=50)
    assert sorted(engine for name, engine in cases if chosen[name] == "gate") == ["opencl", "torch", "webgpu"]


TABLE = """
import pytest

@pytest.mark.sampled(gate=10)
@pytest.mark.parametrize("engine", ["torch", "opencl:0"])
@pytest.mark.parametrize("number", range(20))
def test_sampled(engine, number): pass

@pytest.mark.full
def test_slower(): pass

@pytest.mark.long
def test_soak(): pass

def test_plain(): pass
"""


@pytest.mark.parametrize(("selected", "passed"), [("not full and not long", 5), ("not long", 42), ("long", 1)])
def test_the_three_sets(selected: str, passed: int, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import pytest\n"
        "from tests.support.sets import mark_samples\n"
        "@pytest.hookimpl(tryfirst=True)\n"
        "def pytest_collection_modifyitems(items): mark_samples(items)\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  full\n  long\n  sampled\n")
    (tmp_path / "test_table.py").write_text(TABLE)
    ran = pytest_in(tmp_path, "-m", selected)
    assert f"{passed} passed" in ran.stdout, ran.stdout


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
    ran = pytest_in(tmp_path)
    assert ran.returncode == 3
    assert "FAILED test_two.py::test_fails (call, 0 s)" in ran.stdout
    assert "the reason" in ran.stdout
