"""The command that starts a child, and where there is none: it is refused rather than guessed."""

from __future__ import annotations

import multiprocessing
import multiprocessing.spawn
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from anygpu.workers import child_start
from anygpu.workers.child_start import APPLICATION, WORKER_ARGUMENT, child_command, is_frozen, serve_if_worker


def test_an_interpreter_runs_the_child_and_nothing_of_the_folder_it_is_started_in(tmp_path: Path) -> None:
    (tmp_path / "anygpu.py").write_text("raise SystemExit('the wrong anygpu')")
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    done = subprocess.run(
        child_command(["no request"]),
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "DecodeError" in done.stderr
    assert "the wrong" not in done.stderr
    assert not is_frozen()


def test_serving_does_nothing_where_nothing_is_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["program", WORKER_ARGUMENT, "{}"])
    serve_if_worker()
    assert not hasattr(sys, APPLICATION)


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> str:
    """Stands for an application frozen by another tool than PyInstaller, which tests/workers/test_frozen.py builds."""
    application = str(Path("/opt/paint/paint").resolve())
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(sys, "executable", application)
    monkeypatch.setattr(sys, "argv", [application, "picture.png"])
    monkeypatch.setattr(sys, APPLICATION, "", raising=False)
    return application


def test_a_frozen_application_is_not_started_again_unless_it_knows_children(frozen: str) -> None:
    with pytest.raises(OSError, match=r"anygpu\.freeze_support\(\)"):
        child_command(["{}"])
    serve_if_worker()
    assert child_command(["{}"]) == [frozen, WORKER_ARGUMENT, "{}"]


def test_nuitka_names_the_application_elsewhere(frozen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys, "frozen")
    monkeypatch.setattr(sys, "executable", "/opt/paint/python")
    monkeypatch.setitem(vars(child_start), "__compiled__", SimpleNamespace(standalone=True))
    serve_if_worker()
    assert child_command(["{}"]) == [frozen, WORKER_ARGUMENT, "{}"]


def test_without_an_interpreter_there_is_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    monkeypatch.setattr(multiprocessing.spawn, "_python_exe", None)
    with pytest.raises(OSError, match=r"multiprocessing\.set_executable\(\)"):
        child_command(["{}"])


def test_an_embedding_program_is_not_taken_for_an_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    # Stands for a program such as QGIS, whose Python has no command line and calls the program its executable.
    monkeypatch.setattr(sys, "executable", "/opt/maps/maps")
    monkeypatch.setattr(sys, "orig_argv", [])
    monkeypatch.setattr(multiprocessing.spawn, "_python_exe", "/opt/maps/maps")
    with pytest.raises(OSError, match="/opt/maps/maps, the program that Python is embedded in"):
        child_command(["{}"])
    multiprocessing.set_executable("/opt/maps/python3")
    assert child_command(["{}"])[0] == "/opt/maps/python3"


def test_the_runtime_hook_uses_the_same_names() -> None:
    hook = Path(child_start.__file__).parents[1] / "_pyinstaller" / "rthooks" / "pyi_rth_anygpu.py"
    text = hook.read_text()
    assert f'"{WORKER_ARGUMENT}"' in text
    assert f"sys.{APPLICATION} = sys.executable" in text
