"""Losing the device, running out of memory, and other ends, against the real library and in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: A second adapter, which comes with Debian's chromium.
SWIFTSHADER = Path("/usr/lib/chromium/vk_swiftshader_icd.json")


def run(scenario: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.faults.webgpu_child", scenario],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=ROOT,
        env={**os.environ, **environment},
    )


def seen_in(scenario: str, **environment: str) -> list[list[str]]:
    """What a scenario said, if it came to its end."""
    done = run(scenario, **environment)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return [line.split() for line in done.stdout.splitlines()]


def test_a_lost_device_is_lost_at_every_call_and_stays_so() -> None:
    seen = seen_in("lost_at_each_call")
    assert len(seen) == 10
    for name, first, *again in seen:
        assert first == "DeviceLost", name
        assert again == ["DeviceLost"], name


@pytest.mark.full
def test_a_loss_before_any_call_of_the_library_ends_in_our_own_error() -> None:
    seen = dict(seen_in("lost_before_each_library_call"))
    assert int(seen.pop("calls")) > 50
    # "nothing": the work was done without another look at the device.
    assert seen.keys() <= {"DeviceLost", "nothing"}
    assert int(seen["DeviceLost"]) > 50


def test_a_loss_between_finish_and_submit_takes_the_process_with_it() -> None:
    # The reason why workers are processes. When this test fails, the library has learned to fail softly: use it.
    done = run("lost_between_finish_and_submit")
    assert done.returncode == -signal.SIGABRT
    assert done.stdout.split() == ["before"]
    assert "Parent device is lost" in done.stderr


def test_exhausted_memory_is_an_error_that_passes() -> None:
    assert seen_in("out_of_memory") == [["OutOfMemory", str(128 << 20), "True"]] * 5 + [["works"]]


def test_exhausted_memory_in_a_transfer_loses_nothing() -> None:
    (error,), kept = seen_in("out_of_memory_in_transfers")
    # Of the device for what is between, or of the host for the result.
    assert error in ("OutOfMemory", "_ArrayMemoryError")
    assert kept == ["kept"]


def test_the_driver_on_another_adapter() -> None:
    first, *rest = seen_in("everything", VK_ICD_FILENAMES=str(SWIFTSHADER))
    assert "SwiftShader" in first[0]
    assert rest == [["timed"], ["DeviceLost", "DeviceLost"], ["again"]]


@pytest.mark.full
def test_devices_opened_again_and_again_leave_nothing() -> None:
    command = [sys.executable, "-m", "benchmarks.recreate", "--engine", "webgpu", "--count", "40", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=ROOT)
    assert done.returncode == 0, (done.stdout, done.stderr)
