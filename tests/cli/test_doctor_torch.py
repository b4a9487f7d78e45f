"""`anygpu doctor --torch`, as a person or a script meets it."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest

from anygpu.pytorch.torch_doctor import TorchDiagnosis

#: What would change what the doctor says, or how it looks.
_FOREIGN = ("FORCE_COLOR", "NO_COLOR", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    usual = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
    return subprocess.run(
        [sys.executable, *arguments],
        env=usual | {"COLUMNS": "200", "PYTHONUTF8": "1"} | more,
        capture_output=True,
        check=False,
        encoding="utf-8",
        timeout=120,
    )


@pytest.mark.full
def test_json_has_the_documented_schema_and_the_exit_code_tells_of_problems() -> None:
    done = run("-m", "anygpu", "doctor", "--torch", "--json", MKL_VERBOSE="0", TORCHDYNAMO_DISABLE="1")
    diagnosis = msgspec.json.decode(done.stdout, type=TorchDiagnosis)
    assert diagnosis.schema == "anygpu.torch-doctor/1"
    assert [finding.title for finding in diagnosis.problems][-1] == "TORCHDYNAMO_DISABLE=1 is set"
    assert done.returncode == 1
    assert diagnosis.facts.measured.product_by_threads


@pytest.mark.full
def test_text_names_the_line_to_write() -> None:
    done = run("-m", "anygpu", "doctor", "--torch", OMP_WAIT_POLICY="ACTIVE")
    assert "Advice: OMP_WAIT_POLICY=ACTIVE is set" in done.stdout
    assert "→ unset OMP_WAIT_POLICY\n" in done.stdout
    assert done.stdout.startswith("torch ")
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_without_torch_it_says_what_to_install(more: list[str]) -> None:
    done = run(
        "-c",
        "import importlib.util, sys\n"
        "real = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *given: None if name == 'torch' else real(name, *given)\n"
        f"sys.argv = ['anygpu', 'doctor', '--torch', *{more!r}]\n"
        "from anygpu.cli import main\n"
        "main()\n",
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.strip() == "anygpu: torch is not installed. Install it with: pip install torch"
