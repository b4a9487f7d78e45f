"""`anygpu devices --calibrate` as a person or a script meets it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from anygpu.cli.devices import Calibrated

Result = subprocess.CompletedProcess[str]
Run = Callable[..., Result]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("calibrate")


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    def run(*arguments: str, command: tuple[str, ...] = ("devices", "--calibrate"), **more: str) -> Result:
        ours = {"ANYGPU_CACHE_DIR": str(folder), "ANYGPU_ENGINES": "numpy", "COLUMNS": "120", "PYTHONUTF8": "1"}
        return subprocess.run(
            [sys.executable, "-m", "anygpu", *command, *arguments],
            env=dict(os.environ) | ours | more,
            capture_output=True,
            check=False,
            encoding="utf-8",
            timeout=180,
        )

    return run


def test_nothing_is_known_before(run: Run) -> None:
    result = run("--show")
    assert (result.returncode, result.stderr) == (0, "")
    assert "not measured yet: assumed from its kind" in result.stdout


@pytest.mark.full
def test_it_measures_and_keeps(run: Run, folder: Path) -> None:
    result = run("--seconds", "0.4")
    assert (result.returncode, result.stderr) == (0, "")
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert lines[0].startswith("numpy ")
    assert any(line.startswith("a call ") and "at least" in line for line in lines)
    assert any(line.startswith("matrix products") and "Gop/s" in line for line in lines)
    assert any(line.startswith("additions") and "GB/s" in line for line in lines)
    assert "no copy needed" in result.stdout
    assert lines[-1] == f"The measurements were saved in {folder / 'calibrations'}."
    shown = run("--show", "numpy")
    assert "not measured yet" not in shown.stdout
    (measured,) = msgspec.json.decode(run("--show", "--json").stdout, type=Calibrated).calibrations
    assert (measured.device, measured.source) == ("numpy", "measured")


def test_json(run: Run, folder: Path) -> None:
    result = run("--json", "--seconds", "0.2", "numpy")
    document = msgspec.json.decode(result.stdout, type=Calibrated)
    assert next(iter(msgspec.json.decode(result.stdout))) == "schema"
    assert (document.schema, document.folder) == ("anygpu.calibrations/1", str(folder / "calibrations"))
    assert [each.device for each in document.calibrations] == ["numpy"]
    assert document.failures == {}


def test_a_device_that_is_not_there(run: Run) -> None:
    result = run("cuda:7")
    assert result.returncode == 1
    assert result.stdout == ""
    assert 'no device is available for on="cuda:7".' in result.stderr


@pytest.mark.sampled(gate=2)
@pytest.mark.parametrize("seconds", ["0", "-1", "soon"])
def test_a_time_that_makes_no_sense(run: Run, seconds: str) -> None:
    result = run("--seconds", seconds)
    assert (result.returncode, result.stdout) == (2, "")
    assert "--seconds" in result.stderr


def test_it_is_in_the_help(run: Run) -> None:
    result = run("--help")
    assert result.returncode == 0
    assert "Measure how fast each device is" in result.stdout
    assert "--show" in result.stdout


def test_the_old_name_works_and_says_the_new_one(run: Run) -> None:
    result = run("--show", "numpy", command=("calibrate",))
    assert result.returncode == 0
    assert "numpy" in result.stdout
    assert "`anygpu calibrate` is `anygpu devices --calibrate` now" in result.stderr
    assert "calibrate " not in run(command=("--help",)).stdout, "it is not in the list of commands"


def test_names_alone_are_refused(run: Run) -> None:
    result = run("numpy", command=("devices",))
    assert result.returncode == 1
    assert "--calibrate" in result.stderr
