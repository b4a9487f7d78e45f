"""Runs one command and prints what it took, as JSON: `python -I -S short_script_supervisor.py LIMIT COMMAND...`.

Processes that outlive the command count too. On Linux they become children of this process, which waits for them: so
it has to be a process of its own, and it needs nothing but Python's library, so that it starts at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from types import FrameType

#: What is still alive so many seconds after the command has ended is killed, and counted.
PATIENCE = 10.0
PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Where the system offers it; elsewhere processes that outlive the command are not counted."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> list[int]:
    """Of this process, as Linux lists them."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:  # noqa: PTH123 - starts at once
            return [int(number) for number in file.read().split()]
    except OSError:
        return []


def collect_orphans() -> tuple[float, int]:
    """Their processor time, and how many had to be killed."""
    seconds, killed = 0.0, set()
    end = time.monotonic() + PATIENCE
    with contextlib.suppress(ChildProcessError):
        while True:
            number, _, usage = os.wait4(-1, os.WNOHANG)
            if number:
                seconds += usage.ru_utime + usage.ru_stime
                continue
            if time.monotonic() > end:
                for left in children():
                    killed.add(left)
                    os.kill(left, signal.SIGKILL)
            time.sleep(0.005)
    return seconds, len(killed)


def main() -> None:
    limit, *command = sys.argv[1:]
    adopt_orphans()
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def too_long(signal_number: int, frame: FrameType | None) -> None:
        process.kill()

    signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, float(limit))
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    signal.setitimer(signal.ITIMER_REAL, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    orphans, killed = collect_orphans()
    sys.stdout.write(
        json.dumps(
            {
                "code": process.returncode,
                "seconds": seconds,
                "processor": usage.ru_utime + usage.ru_stime + orphans,
                "left_behind": killed,
            }
        )
    )


if __name__ == "__main__":
    main()
