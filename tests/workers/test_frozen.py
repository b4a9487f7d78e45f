"""A real application, frozen with PyInstaller: anygpu's children work in it and the user writes nothing for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from anygpu.workers.child_start import WORKER_ARGUMENT

#: No guard, no call of ours: an application as anyone writes it. It notes each time that it is started, and asks a
#: worker as well as an array, to see whose process did it.
APPLICATION = """
import json
import os
import sys

with open(sys.argv[1], "a") as file:
    file.write("started\\n")

import numpy as np

import anygpu as ag

devices = ag.devices()
values = np.linspace(1, 0, 1000, dtype=np.float32)
computed = np.asarray(ag.sort(ag.sin(ag.asarray(values, device="webgpu"))))

from anygpu.engines.catalogue import catalogue
from anygpu.workers.worker import open_worker

[entry] = [entry for entry in catalogue() if entry.name == "webgpu"]
[device] = [device for device in devices if device.id == "webgpu:0"]
worker = open_worker(entry, device)
[worked] = worker.run(ag.record(lambda x: ag.sort(ag.sin(x)), values), [values]).results

print(json.dumps({
    "anygpu": ag.__file__,
    "bundle": sys._MEIPASS,
    "verified": {device.id: device.verified for device in devices},
    "own_process": os.getpid(),
    "worker_process": worker.process_id,
    "has_loaded_wgpu": "wgpu" in sys.modules,
    "error_of_array": float(np.abs(computed - np.sin(values[::-1])).max()),
    "error_of_worker": float(np.abs(worked - np.sin(values[::-1])).max()),
}))
"""

#: Both kinds of application from one analysis, which takes most of the time. An application of this size needs none of
#: what is excluded (pyopencl asks for pytest, cffi for setuptools, rich for IPython), and is not compressed.
SPECIFICATION = """
analysis = Analysis(
    ["application.py"],
    excludes=[
        "pyopencl", "pytools", "setuptools", "distutils", "rendercanvas", "yaml", "charset_normalizer",
        "IPython", "ipykernel", "ipywidgets", "pygments", "markdown_it", "pytest", "_pytest", "pip",
    ],
)
modules = PYZ(analysis.pure)
start = EXE(modules, analysis.scripts, exclude_binaries=True, name="folder")
COLLECT(start, analysis.binaries, analysis.datas, name="folder")
EXE(modules, analysis.scripts, analysis.binaries, analysis.datas, name="single", cdict={})
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("PyInstaller", reason="PyInstaller is not installed")
    installed = {point.value for point in metadata.entry_points(group="pyinstaller40")}
    assert "anygpu._pyinstaller:hook_folders" in installed, "anygpu was installed before it had hooks: install it again"
    folder = tmp_path_factory.mktemp("frozen")
    (folder / "application.py").write_text(APPLICATION)
    (folder / "application.spec").write_text(SPECIFICATION)
    done = subprocess.run(
        [sys.executable, "-m", "PyInstaller", "--noconfirm", "--log-level", "WARN", "application.spec"],
        cwd=folder,
        env=os.environ | {"PYINSTALLER_CONFIG_DIR": str(folder / "configuration")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "dist"


def executable(built: Path, kind: str) -> Path:
    suffix = ".exe" if sys.platform == "win32" else ""
    return built / ("folder" if kind == "folder" else "") / f"{kind}{suffix}"


def run(application: Path, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """As a user starts it: from some other folder, on a machine where no Python is set up."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    (folder / "temporary").mkdir()
    return subprocess.run(
        [application, *arguments],
        cwd=folder,
        env=ours | {"ANYGPU_CACHE_DIR": str(folder / "cache"), "TMPDIR": str(folder / "temporary")},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


@pytest.mark.full
@pytest.mark.parametrize("kind", ["folder", "single"])
def test_children_work_in_a_frozen_application(built: Path, kind: str, tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    done = run(executable(built, kind), str(starts), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert Path(told["anygpu"]).is_relative_to(told["bundle"]), "this is the checkout, not the application"
    assert told["verified"]["webgpu:0"], done.stderr
    assert "opencl:0" not in told["verified"], "pyopencl is not in the application"
    assert told["error_of_array"] < 1e-6
    assert told["error_of_worker"] < 1e-6
    assert told["worker_process"] != told["own_process"]
    assert not told["has_loaded_wgpu"], "something ran on the device in the application's own process"
    assert starts.read_text() == "started\n", "a child ran the application"
    assert not [left for left in (tmp_path / "temporary").iterdir() if left.name.startswith("_MEI")]


@pytest.mark.full
def test_a_child_that_fails_is_still_not_the_application(built: Path, tmp_path: Path) -> None:
    done = run(executable(built, "folder"), WORKER_ARGUMENT, "no request", folder=tmp_path)
    assert done.returncode == 1
    assert "DecodeError" in done.stderr
    assert not done.stdout
    assert not (tmp_path / "no request").exists()
