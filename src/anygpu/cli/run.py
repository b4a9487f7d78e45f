"""`anygpu run`: a script, observed. `anygpu dashboard`: observed processes in a browser."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from anygpu.errors import MissingExtra

#: As `anygpu.observe` has it, which takes longer to load than all that is done here.
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


def dashboard(
    port: Annotated[int, typer.Option(min=0, max=65535, help="TCP port; 0 picks a free one.")] = 0,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Follow all observed processes of this user in a browser: calls, devices, memory, queues, problems, advice.

    A process is observed if it was started with `anygpu run script.py` or with ANYGPU_OBSERVE=1. The page is served
    on this machine only, and only to who has its address.
    """
    try:
        from anygpu.observe.dashboard.server import Dashboard, ObservedProcesses
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "bokeh":
            raise
        raise MissingExtra("bokeh", "dashboard") from error

    console = Console()
    source = ObservedProcesses()
    server = Dashboard(source, port=port)

    def ready() -> None:
        console.print(Text(f"{server.url} shows all observed processes. Ctrl-C ends it."), soft_wrap=True)
        if open_browser:
            webbrowser.open(server.url)

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(server.run(ready))
    source.close()
