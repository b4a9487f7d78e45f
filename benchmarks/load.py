"""A load beside a measurement: `with busy_processes(2): …`, or `python -m benchmarks.load --count 2 -- COMMAND…`.

Each process computes in Python without a pause, so it takes a whole processor when nobody else wants one, and its fair
share otherwise. A process ends with its caller, however that dies: it reads from a pipe that only the caller holds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

#: Computes until its standard input ends, and says so when it begins.
_PROGRAM = """
import os, threading
threading.Thread(target=lambda: (os.read(0, 1), os._exit(0)), daemon=True).start()
os.write(1, b".")
n = 1
while True:
    n = n * 1103515245 + 12345 & 0x7FFFFFFF
"""


@contextmanager
def busy_processes(count: int = 2) -> Iterator[list[int]]:
    """Runs `count` processes that compute all the time; all of them do so when the block begins, and are gone after it.

    Yields their process ids.
    """
    with ExitStack() as stack:
        processes = [stack.enter_context(_computing()) for _ in range(count)]
        for process in processes:
            assert process.stdout is not None
            if process.stdout.read(1) != b".":
                raise RuntimeError(f"process {process.pid} of the load did not start")
        yield [process.pid for process in processes]


@contextmanager
def _computing() -> Iterator[subprocess.Popen[bytes]]:
    """A process that computes. It is killed at the end: its thread that reads the pipe may wait for a processor."""
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=os.cpu_count() or 1, help="how many processes compute beside it")
    parser.add_argument("command", nargs="+", help="what to run meanwhile")
    options = parser.parse_args()
    with busy_processes(options.count):
        code = subprocess.run(options.command, check=False).returncode
    sys.exit(code)


if __name__ == "__main__":
    main()
