"""Takes the picture of `anygpu top` that the documentation shows: `python -m benchmarks.top_picture FILE.svg`."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from anygpu.cli.top.screen import Top
from anygpu.observe.sockets import VARIABLE

_LOADS = (["--rate", "300"], ["--rate", "500", "--tasks"], ["--rate", "200", "--device", "webgpu"])


async def picture(seconds: float) -> str:
    app = Top(interval=1.0)
    async with app.run_test(size=(100, 26)) as pilot:
        await pilot.pause(seconds)
        return app.export_screenshot(title="anygpu top")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=15.0, help="when it is taken, after the processes began")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ag-") as folder:
        os.environ[VARIABLE] = folder
        command = [sys.executable, "-m", "benchmarks.top_load"]
        loads = [subprocess.Popen([*command, *each], stderr=subprocess.DEVNULL) for each in _LOADS]
        try:
            found = asyncio.run(picture(options.seconds))
        finally:
            for each in loads:
                each.kill()
                each.wait()
    # Fonts of another host: a reader's own will do, and nobody is told who reads.
    found = re.sub(r"@font-face\s*\{.*?\}", "", found, flags=re.DOTALL)
    options.file.write_text(found, encoding="utf-8")


if __name__ == "__main__":
    main()
