"""The script that is measured: `python -m benchmarks.short_script PROGRAM CALLS REPORT SIDE [IDLE_FROM IDLE_TO]`.

It calls one function so many times and ends. SIDE is "plain" (anygpu is not imported), "offload", or the device that
every call has to use. Arguments alternate between two sets, because scripts seldom compute the same thing twice. What
it writes into REPORT is small. With IDLE_FROM and IDLE_TO, in seconds after the last call, it stays that long and
reports the processor time that it and all processes below its supervisor have used between the two.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.short_script_programs import PROGRAMS
from benchmarks.short_script_workloads import WORKLOADS

PLAIN, OFFLOAD = "plain", "offload"


def bound_to(function: Callable[..., Any], side: str) -> Callable[..., Any]:
    if side == PLAIN:
        return function
    import anygpu as ag

    offloaded: Any = ag.offload(function) if side == OFFLOAD else ag.offload(on=side, fallback="raise")(function)
    return offloaded  # type: ignore[no-any-return]


def device_of_last_call(side: str) -> str:
    if side == PLAIN:
        return "numpy"
    import anygpu as ag

    receipt = ag.last_receipt()
    return receipt.device if receipt is not None else "?"


def processor_seconds_below(parent: int) -> float:
    """Of all processes that descend from this one, dead children of theirs included. It is not counted itself."""
    parents, seconds = {}, {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name, in parentheses, may contain anything.
            fields = file.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        number = int(file.parent.name)
        parents[number] = int(fields[1])
        seconds[number] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    below, found = {parent}, 0.0
    while new := {number for number, its_parent in parents.items() if its_parent in below} - below:
        found += sum(seconds[number] for number in new)
        below |= new
    return found


def used_while_idle(last_call: float, begin: float, end: float) -> float | None:
    """Seconds of the processor between the two, counted from the last call; `None` where there is no /proc."""
    if not Path("/proc/self/stat").exists():
        return None
    supervisor = os.getppid()
    time.sleep(max(0.0, last_call + begin - time.perf_counter()))
    before = processor_seconds_below(supervisor)
    time.sleep(max(0.0, last_call + end - time.perf_counter()))
    return processor_seconds_below(supervisor) - before


def main() -> None:
    name, calls, report, side, *idle = sys.argv[1:]
    program = next(each for each in (*PROGRAMS, *WORKLOADS) if each.name == name)
    arguments = [program.make_args(seed) for seed in (0, 1)]
    function = bound_to(program.function, side)
    seconds: list[float] = []
    devices: list[str] = []
    for number in range(int(calls)):
        begin = time.perf_counter()
        function(*arguments[number % 2])
        seconds.append(time.perf_counter() - begin)
        devices.append(device_of_last_call(side))
    later = used_while_idle(time.perf_counter(), *map(float, idle)) if idle else None
    Path(report).write_text(json.dumps({"calls": seconds, "devices": devices, "later": later}), encoding="utf-8")


if __name__ == "__main__":
    main()
