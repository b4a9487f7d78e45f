"""`anygpu verify` as a person or a script meets it."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from anygpu.cli.commands import app
from anygpu.testing.verify import Subject, VerifyRecord, checks, from_json
from anygpu.testing.verify.checks import FAULTS, NAMES, all_checks
from anygpu.workers.device_arrays.registry import registry

Result = subprocess.CompletedProcess[str]
Run = Callable[..., Result]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home-of-mallory")


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    def run(*arguments: str, **more: str) -> Result:
        ours = {
            "ANYGPU_CACHE_DIR": str(folder / "cache"),
            "ANYGPU_ENGINES": "numpy",
            "COLUMNS": "120",
            "HOME": str(folder),
            "LOGNAME": "mallory",
            "USER": "mallory",
            "PYTHONUTF8": "1",
        }
        return subprocess.run(
            [sys.executable, "-m", "anygpu", "verify", *arguments],
            cwd=folder,
            env=dict(os.environ) | ours | more,
            capture_output=True,
            check=False,
            encoding="utf-8",
            timeout=200,
        )

    return run


@pytest.fixture(scope="module")
def clean(run: Run, folder: Path) -> tuple[Result, VerifyRecord, bytes]:
    result = run("numpy", "--seconds", "200", "--programs", "20", "--only", "programs,dtypes,faults", "--only", "grid")
    (path,) = folder.glob("anygpu-verify-numpy-*.json")
    data = path.read_bytes()
    path.unlink()
    return result, from_json(data), data


def test_a_clean_device(clean: tuple[Result, VerifyRecord, bytes]) -> None:
    result, record, _ = clean
    assert result.returncode == 0, result.stderr
    assert record.is_clean
    assert {check.name: check.ended for check in record.checks} == dict.fromkeys(
        ("dtypes", "faults", "grid", "programs"), "complete"
    )
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert any(re.match(r"✓ +programs +20 +0 ", line) for line in lines)
    assert any(line.startswith("matrix product") for line in lines)
    assert "agree with NumPy." in result.stdout
    assert "Attach it to an issue" in lines[-1]
    assert "Ctrl-C ends it with what there is." in result.stderr
    assert "programs: 20 of 20 cases" in result.stderr


def test_the_record_tells_nobody_whose_machine_it_is(clean: tuple[Result, VerifyRecord, bytes], folder: Path) -> None:
    _, record, data = clean
    text = data.decode().lower()
    secrets = ["mallory", str(folder), str(Path.home()), socket.gethostname(), sys.prefix]
    assert [each for each in secrets if len(each) > 2 and each.lower() in text] == []
    assert not re.search(r"[0-9a-f]{8}-[0-9a-f]{4}-|/home/|/root|/usr/|c:\\\\", text)
    assert (record.device.id, record.schema) == ("numpy", "anygpu.verify/1")


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """The command in this process, which has NumPy only."""
    monkeypatch.setenv("ANYGPU_ENGINES", "numpy")
    monkeypatch.chdir(folder)

    def here(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["verify", *arguments])
        return result.exit_code, result.output

    return here


def test_one_case_and_no_file(here: Callable[..., tuple[int, str]], folder: Path) -> None:
    code, output = here("numpy", "--only", "programs", "--seed", "7", "--no-file")
    assert code == 0, output
    assert "The case that was tried agrees" in output
    assert not list(folder.glob("*.json"))


def test_files_of_one_day_do_not_replace_each_other(here: Callable[..., tuple[int, str]], folder: Path) -> None:
    for _ in range(2):
        assert here("--only", "dtypes", "--seed", "3")[0] == 0
    names = sorted(path.name for path in folder.glob("*.json"))
    assert len(names) == 2
    assert names[0].removesuffix("-2.json") == names[1].removesuffix(".json")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("webgpu",), "no device is available"),
        (("numpy", "--only", "nonsense"), "there is no check 'nonsense'; available: dtypes, "),
        (("numpy", "--seed", "7"), "--only programs --seed 7"),
        (("numpy", "--all"), "leave out DEVICE"),
        (("numpy", "--json", "/nowhere/x.json"), "cannot be written to"),
    ],
)
def test_what_cannot_be_done_is_said_at_once(
    here: Callable[..., tuple[int, str]], arguments: tuple[str, ...], said: str
) -> None:
    code, output = here(*arguments)
    assert code == 2
    assert said in output
    assert "Traceback" not in output


def test_the_names_of_the_checks() -> None:
    checks = all_checks()
    assert tuple(check.name for check in checks) == NAMES
    assert sum(check.share for check in checks) == pytest.approx(1)
    assert all(check.proves.endswith(".") for check in checks)


def test_no_fault_can_hang_a_display() -> None:
    """What is compiled for it has no loop."""
    texts = " ".join((*checks._BROKEN.values(), checks._BEYOND))
    assert not re.search(r"\b(for|while|loop|goto)\b", texts)
    subject = Subject(registry.find("numpy").facts)
    assert len(list(FAULTS.cases(subject))) == FAULTS.count(subject)
