"""This process: the processors that it may use, and the Python interpreter that its children are started with."""

from __future__ import annotations

import contextlib
import os
import sys


def usable_processors(cgroup: str = "/sys/fs/cgroup/cpu.max") -> int:
    """The processors that this process may use, as far as it or its container is limited."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # No Linux, or no limit. And `open`, because loading `pathlib` takes longer than a first call may.
    with contextlib.suppress(OSError, ValueError), open(cgroup) as file:
        quota, period = map(int, file.read().split())
        return max(1, min(found, quota // period))
    return found


def interpreter() -> str:
    """Returns the path of the interpreter to start children with.

    Raises OSError, whose message says what to do, where there is none: Python may be embedded in another program.
    """
    # An interpreter that an embedding application has set for multiprocessing is used for our children too. If that
    # module is not loaded, none was set.
    spawn = sys.modules.get("multiprocessing.spawn")
    told = os.fsdecode(spawn.get_executable() or "") if spawn is not None else ""
    if told and told != sys.executable:
        return told
    if not sys.executable:
        raise OSError(
            "there is no Python interpreter to start a child with (sys.executable is empty). Name one with "
            "multiprocessing.set_executable()"
        )
    if not getattr(sys, "orig_argv", True) and "py" not in os.path.basename(sys.executable).lower():
        # Python was not started by a command line, so it is embedded, and the name is that of the embedding program.
        raise OSError(
            f"there is no Python interpreter to start a child with: sys.executable is {sys.executable}, the program "
            "that Python is embedded in. Name the interpreter with multiprocessing.set_executable()"
        )
    return sys.executable
