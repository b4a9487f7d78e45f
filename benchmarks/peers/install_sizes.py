"""How much each tool takes on the disk: what pip puts into an empty folder."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.peers.measuring import ROOT
from benchmarks.peers.results import Installed
from benchmarks.peers.tools import Tool

#: For all packages of one tool, from the network.
LONGEST_INSTALL = 400


def install(tool: Tool) -> Installed:
    with tempfile.TemporaryDirectory(prefix="anygpu-peers-") as folder:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", folder, *tool.pip]
        try:
            done = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST_INSTALL, check=False
            )
        except subprocess.TimeoutExpired:
            return Installed(tool=tool.name, reason=f"pip took longer than {LONGEST_INSTALL} s.")
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"pip ended with status {done.returncode}"]
            return Installed(tool=tool.name, reason=lines[-1])
        return Installed(tool=tool.name, bytes=size_of(Path(folder)), packages=packages_in(Path(folder)))


def size_of(folder: Path) -> int:
    """Of all files, as they are and not in blocks of the disk."""
    return sum(each.lstat().st_size for each in folder.rglob("*") if not each.is_dir())


def packages_in(folder: Path) -> tuple[str, ...]:
    """Each with its version, as "numpy 2.4.6"."""
    return tuple(sorted(each.stem.replace("-", " ", 1) for each in folder.glob("*.dist-info")))
