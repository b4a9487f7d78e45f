from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.standins.nvidia import build_nvml, write_nvidia_smi


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a stand-in for NVML; without a compiler the tests fail, for a skipped test proves nothing."""
    if sys.platform != "linux":
        pytest.skip("the stand-in for NVML is a Linux shared library")
    return build_nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def fake_nvidia_smi(tmp_path: Path) -> Callable[..., Path]:
    """Writes a program `nvidia-smi` that prints what it is told; returns the directory for the PATH."""
    if sys.platform == "win32":
        pytest.skip("the stand-in for nvidia-smi is a shell script")

    def write(stdout: str = "", exit_code: int = 0, *, unknown_column: str | None = None, hangs: bool = False) -> Path:
        return write_nvidia_smi(tmp_path / "programs", stdout, exit_code, unknown_column=unknown_column, hangs=hangs)

    return write
