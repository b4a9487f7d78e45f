"""The Python interpreter that children are started with."""

from __future__ import annotations

import os
import sys


def interpreter() -> str:
    """Its file. Raises OSError, which says what to do, where there is none."""
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
