"""`anygpu verify --report` writes what a warning announced."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from anygpu.agreement.comparison import Difference
from anygpu.agreement.mismatches import FOLDER, Mismatch, keep, mismatch
from anygpu.array.trace.tracing import record
from anygpu.cli.commands import app
from anygpu.program.graph import Program
from anygpu.program.wire import from_bytes


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANYGPU_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def kept_one() -> tuple[Mismatch, Program]:
    x = np.arange(4, dtype=np.float32)
    program = record(lambda x: x * 2, x)
    difference = Difference(0, (2,), 4.0, 0.0, 1e-7, 1, "element [2] is 0.0, and NumPy has 4.0")
    found = mismatch("score", "opencl:0", None, program, [x], difference, before_use=True)
    keep(found)
    return found, program


def test_a_report_has_the_program_and_no_data(folder: Path) -> None:
    import base64

    found, program = kept_one()
    (folder / "cache" / FOLDER / "broken.json").write_bytes(b"[" * 100_000)
    shown = CliRunner().invoke(app, ["verify", "--report", found.id])
    assert shown.exit_code == 0, shown.output
    assert f"Wrote anygpu-report-{found.id}.json" in shown.output
    read = msgspec.json.decode((folder / f"anygpu-report-{found.id}.json").read_bytes(), type=Mismatch)
    assert read == found
    assert from_bytes(base64.b64decode(read.program)) == program
    assert read.inputs[0].startswith("float32[4] ")
    assert {"anygpu", "numpy", "python", "system"} <= set(read.versions)


def test_the_latest_is_meant_without_an_id_and_unknown_ids_are_named(folder: Path) -> None:
    assert "No mismatch" in CliRunner().invoke(app, ["verify", "--report"]).output
    found, _ = kept_one()
    assert CliRunner().invoke(app, ["verify", "--report", "--json", "out.json"]).exit_code == 0
    assert (folder / "out.json").exists()
    failed = CliRunner().invoke(app, ["verify", "--report", "nothing"])
    assert found.id in str(failed.exception)


def test_the_old_name_works_and_says_the_new_one(folder: Path) -> None:
    found, _ = kept_one()
    shown = CliRunner().invoke(app, ["report", found.id, "-o", "out.json"])
    assert shown.exit_code == 0
    assert "`anygpu report` is `anygpu verify --report` now" in shown.stderr
    assert (folder / "out.json").exists()
