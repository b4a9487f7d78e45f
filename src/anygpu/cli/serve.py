"""`anygpu serve`: functions and saved programs over HTTP."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from anygpu.cli.output import find_function
from anygpu.errors import InvalidOption

_EXAMPLE = "anygpu serve mymodule:score --port 8000"
#: The part before "=": a name, which is no path and no module.
_NAMED = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)=(?P<target>.+)")


def serve(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]MODULE:FUNCTION",
            help="A function, whose module may be in the current folder; or the file of a saved program.",
        ),
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="TCP port; 0 picks a free one.")] = 8000,
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    tokens: Annotated[
        Path | None, typer.Option(metavar="FILE", help='Lines "tenant token": who may use the models.')
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Accept every client that reaches the address.")] = False,
    latency: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Maximum predicted time of a batch; 0.05 by default.")
    ] = None,
    queue: Annotated[int | None, typer.Option(min=1, help="Maximum length of the queue; 1000 by default.")] = None,
    deadline: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Time limit of a request; 60 by default.")
    ] = None,
    max_body: Annotated[str, typer.Option(metavar="BYTES", help="Maximum size of a request body.")] = "64MB",
    notice: Annotated[
        float, typer.Option(metavar="SECONDS", help="From SIGTERM until new connections are refused.")
    ] = 1.0,
    patience: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time for open requests to finish after that.")
    ] = 30.0,
) -> None:
    """Serve functions by the Open Inference Protocol, which KServe and Triton speak, until SIGTERM or Ctrl-C."""
    from anygpu.serving.server import Server

    try:
        server = Server(
            dict(_named(each) for each in models),
            port=port,
            host=host,
            tokens=tokens,
            insecure=insecure,
            latency=latency,
            queue=queue,
            deadline=deadline,
            max_body=max_body,
            notice=notice,
            patience=patience,
        )
    except InvalidOption as error:
        raise typer.BadParameter(_as_typed(str(error))) from None
    console = Console()

    def say(line: str) -> None:
        console.print(Text(line), soft_wrap=True)

    server.run(lambda: say(f"{server.url}/v2/models has {', '.join(server.models)}. Ctrl-C ends it."))
    if not server.finished:
        say("Stopped, and requests that were open got no answer.")
        raise typer.Exit(1)
    say("Stopped: every open request was answered.")


def _named(text: str) -> tuple[str, Any]:
    named = _NAMED.fullmatch(text)
    name, target = (named["name"], named["target"]) if named is not None else (None, text)
    if ":" not in target:
        if not Path(target).is_file():
            why = f"{target!r} is neither a function, as module:function, nor the file of a saved program"
            raise typer.BadParameter(f"{why}. For example: {_EXAMPLE}", param_hint="MODULE:FUNCTION")
        return name or Path(target).stem, Path(target)
    found = find_function(target, _EXAMPLE)
    return name or target.rpartition(":")[2].rpartition(".")[2], found


def _as_typed(message: str) -> str:
    """The names of arguments as the command line has them."""
    return re.sub(
        r"\b(tokens|port|max_body|insecure)=(True)?", lambda found: f"--{found[1].replace('_', '-')}", message
    )
