"""The surfaces on which people read: the command line, and notebooks (`notebook`). No other package prints.

Importing this package loads no command, because notebooks load it too: `commands` has them.
"""

from __future__ import annotations

import sys

from anygpu.errors import AnyGPUError


def main() -> None:
    """Runs `anygpu` with the arguments of the process; an error of anygpu's becomes one line and exit code 1."""
    from anygpu.cli.commands import app

    try:
        app(prog_name="anygpu")
    except AnyGPUError as error:  # our messages say what to do; a traceback would not help
        sys.exit(f"anygpu: {error}")
