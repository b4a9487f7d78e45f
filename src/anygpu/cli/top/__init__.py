"""The commands for observed processes: `anygpu run`, `anygpu top` and `anygpu dashboard`.

`pages` has the rows and columns of `top`, and one picture as text and JSON; `screen` is its Textual application, and
only imported for it. The dashboard's server is `anygpu.observe.dashboard`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from anygpu.errors import MissingExtra

#: How far the two looks of a single picture are apart: rates and loads are those between them.
_BETWEEN = 0.5
_PROBE_SECONDS = 15.0
#: How long one picture waits for devices that were not probed before.
_LONGEST_PROBE = 1.0


def top(
    once: Annotated[bool, typer.Option("--once", help="Print one snapshot and exit; textual is not needed.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print one snapshot as JSON with a stable, documented schema.")
    ] = False,
    interval: Annotated[
        float,
        typer.Option("--interval", "-d", min=0.1, max=60.0, metavar="SECONDS", help="Refresh interval, in seconds."),
    ] = 1.0,
    filter: Annotated[
        str, typer.Option("--filter", metavar="WORDS", help="Show only lines that contain these words.")
    ] = "",
) -> None:
    """Watch the observed processes of this user: devices, functions, queues, tenants, losses.

    A process is observed if it calls anygpu.observe.start(), if ANYGPU_OBSERVE=1 is set, or if it is started with
    `anygpu run`. Press ? for the keys.
    """
    if once or json:
        _once(json=json)
        return
    try:
        from anygpu.cli.top.screen import Top
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.split(".")[0] == "textual":
            raise MissingExtra("textual", "top") from None
        raise
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise typer.BadParameter("there is no terminal. To print one picture: anygpu top --once")
    Top(interval=interval, words=filter).run()


def _once(*, json: bool) -> None:
    """Prints one picture of all observed processes, as text or JSON.

    Two looks half a second apart give rates. Devices are probed meanwhile, and left out if that takes longer.
    """
    from anygpu.cli.top.pages import Watching, document, show_once
    from anygpu.workers.discovery import discover

    watching = Watching()
    watching.look()

    def find_devices() -> None:
        watching.devices = discover(timeout=_PROBE_SECONDS, low_priority=True).devices

    # Devices that were probed before are there at once. Otherwise those are shown that processes have open, without
    # waiting for a probe.
    probing = threading.Thread(target=find_devices, daemon=True)
    begin = time.monotonic()
    probing.start()
    probing.join(_LONGEST_PROBE)
    time.sleep(max(0.0, _BETWEEN - (time.monotonic() - begin)))
    picture = watching.look()
    watching.close()
    if json:
        sys.stdout.write(document(picture).to_json().decode() + "\n")
    else:
        show_once(Console(), picture)


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
