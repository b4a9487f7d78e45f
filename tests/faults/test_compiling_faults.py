"""Losing the device, exhausting it, asking too much of it and bad kernels, under whole programs, in children."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.compiled import NAMES


def seen(scenario: str, name: str) -> list[list[str]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.compiling_child", scenario, name],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, (done.stdout, done.stderr[-3000:])
    return [line.split() for line in done.stdout.splitlines()]


def test_a_lost_device_is_lost_for_everything_and_another_engine_works() -> None:
    assert seen("lost", "webgpu") == [["works"], ["DeviceLost"] * 5, ["nothing"], ["works"]]


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_exhausted_memory_has_its_name_and_passes(name: str) -> None:
    assert seen("out_of_memory", name) == [["works"], *[["OutOfMemory", "True"], ["works"]] * 2]


@pytest.mark.parametrize("name", NAMES)
def test_a_result_larger_than_any_buffer_is_too_big(name: str) -> None:
    assert seen("too_big", name) == [["TooBig", "True"], ["works"]]


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_that_does_not_compile_has_its_name_and_spoils_nothing(name: str) -> None:
    first, error, *after = seen("bad_kernel", name)
    assert first == ["works"]
    assert error == ["CannotCompile"]
    assert after == [["works"], ["works"]]
