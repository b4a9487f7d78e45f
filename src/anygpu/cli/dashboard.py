"""`anygpu dashboard`: follow observed processes in a browser."""

from __future__ import annotations

import asyncio
import contextlib
import webbrowser
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from anygpu.errors import MissingExtra


def dashboard(
    port: Annotated[int, typer.Option(min=0, max=65535, help="TCP port; 0 picks a free one.")] = 0,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Follow all observed processes of this user in a browser: calls, devices, memory, queues, problems, advice.

    A process is observed if it was started with `anygpu run script.py` or with ANYGPU_OBSERVE=1. The page is served
    on this machine only, and only to who has its address.
    """
    try:
        from anygpu.observe.dashboard.server import Dashboard
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("bokeh", "tornado"):
            raise
        raise MissingExtra("bokeh", "dashboard") from error
    from anygpu.observe.dashboard.source import ObservedProcesses

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
