"""Only tests that measure times, or start processes, are tried again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FAILS_ONCE = """
import pytest

calls = []

def may_fail(where):
    if where == "{where}":
        calls.append(1)
        assert len(calls) > {failures}, "it took too long"

@pytest.fixture(scope="module")
def cluster():
    may_fail("setup")

{mark}
def test_something(cluster):
    may_fail("call")
"""


@pytest.mark.parametrize(
    ("mark", "folder", "failures", "passes"),
    [
        ("@pytest.mark.serial", "engines", 1, True),
        ("@pytest.mark.serial", "engines", 2, True),
        ("@pytest.mark.serial", "engines", 3, False),
        ("", "engines", 1, False),
        ("", "workers", 1, True),
        ("", "workers", 2, False),
    ],
)
@pytest.mark.parametrize("where", ["setup", "call"])
def test_a_test_that_fails_at_times(
    mark: str, folder: str, failures: int, passes: bool, where: str, tmp_path: Path
) -> None:
    file = tmp_path / "tests" / folder / "test_times.py"
    file.parent.mkdir(parents=True)
    file.write_text(FAILS_ONCE.format(mark=mark, failures=failures, where=where))
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = serial\n")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.support.repeating", "-p", "no:cacheprovider", str(file)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode == 0) == passes, ran.stdout
    assert (f"REPEATED tests/{folder}/test_times.py::test_something: " in ran.stdout) == passes
    assert ("1 passed" if passes else "1 failed" if where == "call" else "1 error") in ran.stdout
