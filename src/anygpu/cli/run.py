"""`anygpu run script.py`: a script as Python would run it, and observed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

#: As `anygpu.observe.variable` has it, which takes longer to load than all that is done here.
VARIABLE = "ANYGPU_OBSERVE"


def run(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="The script; with -m, the name of a module.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[ARGUMENTS]...", help="For the script.")] = None,
    module: Annotated[bool, typer.Option("-m", help="Run a module, as python -m does.")] = False,
) -> None:
    """Run a Python script so that `anygpu top` and `anygpu dashboard` can look at it.

    It runs as `python SCRIPT ARGUMENTS` would, with ANYGPU_OBSERVE=1.
    """
    if not module and not Path(script).exists():
        raise typer.BadParameter(f"there is no file {script!r}. For a module: anygpu run -m {script}")
    command = [sys.executable, *(["-m"] if module else []), script, *(arguments or [])]
    environment = os.environ | {VARIABLE: "1"}
    if sys.platform == "win32":
        # There a process cannot become another one: who waits for the first would not wait for the second.
        raise typer.Exit(subprocess.call(command, env=environment))
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, command, environment)
