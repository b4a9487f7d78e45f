"""Stand-ins for what a machine with NVIDIA's driver has: the NVML library and the program nvidia-smi.

They are real files that a child process loads and runs, so nothing in anygpu or in the bindings is patched.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

_SOURCE = Path(__file__).with_name("nvml.c")
_LIBRARY = "libnvidia-ml.so.1"


def build_nvml(directory: Path, *, without: Sequence[str] = ()) -> Path:
    """Compile the stand-in for NVML into `directory` and return that; an old library is `without` some functions."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise RuntimeError("the stand-in for NVML needs a C compiler: install gcc (Debian and Ubuntu: apt install gcc)")
    directory.mkdir(parents=True, exist_ok=True)
    # A function under another name is a function that the bindings do not find.
    renamed = [f"-D{function}=without_{function}" for function in without]
    command = [compiler, "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", *renamed]
    built = subprocess.run(
        [*command, "-o", str(directory / _LIBRARY), str(_SOURCE)], capture_output=True, check=False, text=True
    )
    if built.returncode != 0:
        raise RuntimeError(f"the stand-in for NVML does not compile:\n{built.stderr}")
    return directory


def hide_nvml(directory: Path) -> Path:
    """Make the library impossible to load, even on a machine that has the real one: the empty file is found first."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / _LIBRARY).touch()
    return directory


def write_nvidia_smi(
    directory: Path, stdout: str = "", exit_code: int = 0, *, unknown_column: str | None = None, hangs: bool = False
) -> Path:
    """Write a program `nvidia-smi` into `directory` and return that.

    `unknown_column` is one that it refuses, as an old nvidia-smi does; with `hangs` it never answers.
    """
    directory.mkdir(parents=True, exist_ok=True)
    lines = ["#!/bin/sh"]
    if hangs:
        lines.append("exec /bin/sleep 600")
    if unknown_column is not None:
        complaint = shlex.quote(f'Field "{unknown_column}" is not a valid field to query.\n\n')
        lines.append(f'case "$1" in *{unknown_column}*) printf %s {complaint}; exit 2;; esac')
    lines += [f"printf %s {shlex.quote(stdout)}", f"exit {exit_code}"]
    program = directory / "nvidia-smi"
    program.write_text("\n".join(lines) + "\n")
    program.chmod(0o755)
    return directory


def environment(
    *, library: Path, programs: Path, scenario: str | None = None, log: Path | None = None
) -> dict[str, str]:
    """The environment of a child process that sees only these stand-ins of NVIDIA's.

    `library` is a directory of `build_nvml` or `hide_nvml`; `programs` replaces the PATH and may be empty.
    """
    paths = [str(library), os.environ.get("LD_LIBRARY_PATH", "")]
    variables = {
        **os.environ,
        "LD_LIBRARY_PATH": os.pathsep.join(path for path in paths if path),
        "PATH": str(programs),
    }
    if scenario is not None:
        variables["ANYGPU_FAKE_NVML"] = scenario
    if log is not None:
        variables["ANYGPU_FAKE_NVML_LOG"] = str(log)
    return variables
