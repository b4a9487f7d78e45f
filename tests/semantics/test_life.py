"""The corpus through the whole life of its call sites: on NumPy, in trial, as native code, and in a second process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.semantics.all_cases import CASES
from tests.semantics.known_failures import KNOWN_FAILURES

#: The functions of one pair of processes.
_TOGETHER = 12

_NAMES = sorted(set(CASES) - set(KNOWN_FAILURES))
_PORTIONS = {f"from {_NAMES[first]}": _NAMES[first : first + _TOGETHER] for first in range(0, len(_NAMES), _TOGETHER)}


def _process(names: list[str], cache: Path) -> dict[str, int]:
    """Run functions in a process of their own; how often call sites came into each state."""
    command = [sys.executable, "-m", "tests.semantics", "--native", "--history", "--exactly", *names]
    environment = os.environ | {"ANYGPU_CACHE_DIR": str(cache), "ANYGPU_HISTORY": "on"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = re.findall(r"^states: (.*)$", done.stdout, re.MULTILINE)
    return {name: int(count) for name, _, count in (each.rpartition(" ") for each in line.split(", "))}


@pytest.mark.sampled(gate=60)
@pytest.mark.parametrize("portion", _PORTIONS)
def test_functions_do_what_they_do_on_numpy_in_a_first_and_in_a_second_process(portion: str, tmp_path: Path) -> None:
    names = _PORTIONS[portion]
    first, second = _process(names, tmp_path), _process(names, tmp_path)
    usual = {"due", "tracing"}
    assert usual <= set(first), first
    if first.get("native"):
        assert {"compiling", "trial"} <= set(first), first
        assert second.get("trial"), second
        # What the first process has compared is not compiled and compared again before it is used.
        assert second.get("compiling", 0) < first["compiling"], (first, second)
