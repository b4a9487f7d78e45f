"""Runs a script under a profiler, in a process of its own: `python -m anygpu.observe.profiled OUT SCRIPT …`.

The profile is written to OUT at the very end, when the script's threads have ended too.
"""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path

from anygpu.observe.profiler import Profiler
from anygpu.observe.script import run_script


def main() -> int:
    out, script, *arguments = sys.argv[1:]
    profiler, process, status = Profiler(script), os.getpid(), 0

    def finish() -> None:
        if os.getpid() == process:
            Path(out).write_bytes(profiler.finish(arguments, status).to_json())

    # First registered, so it runs last.
    atexit.register(finish)
    status = run_script(script, arguments, lambda: profiler)
    return status


if __name__ == "__main__":
    sys.exit(main())
