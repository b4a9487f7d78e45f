"""What a test counts is its own: threads of other tests open files and start children in the same process meanwhile."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil

_ROOT = Path(__file__).parents[2]


def run_alone(function: Callable[[], None]) -> None:
    """Call a function of a test's file, which asserts what it likes, in a new process."""
    name = function.__name__
    script = f"from {function.__module__} import {name}; {name}()"
    done = subprocess.run([sys.executable, "-c", script], cwd=_ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def descriptors_in(folder: Path) -> list[str]:
    """The files in a folder, and the folder itself, that this process has open, also those without a name any more.

    One for each descriptor. Only Linux tells.
    """
    found = []
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed since
            found.append(str(each.readlink()))
    own = str(folder.resolve())
    return sorted(each for each in found if each == own or each.startswith((f"{own}/", f"{own} (deleted)")))


def children_with(word: str) -> set[psutil.Process]:
    """The children of this process, and theirs, whose command has that word: the name or the module of their engine."""
    found = set()
    for each in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # also of one that has ended, and was not waited for
            if each.status() != psutil.STATUS_ZOMBIE and any(word in part for part in each.cmdline()):
                found.add(each)
    return found
