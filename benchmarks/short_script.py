"""The script that is measured: `python -m benchmarks.short_script PROGRAM CALLS REPORT SIDE`.

It calls one function so many times and ends. SIDE is "plain" (anygpu is not imported) or "offload". Arguments alternate
between two sets, or come from the result before. What it writes into REPORT is the device of the last call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.newcomer_programs import NEWCOMERS
from benchmarks.short_script_program import Program
from benchmarks.short_script_programs import PROGRAMS
from benchmarks.short_script_unrecorded import LEFT_TO_NUMPY
from benchmarks.short_script_workloads import WORKLOADS

EVERY: tuple[Program, ...] = (*PROGRAMS, *WORKLOADS, *NEWCOMERS, *LEFT_TO_NUMPY)
PLAIN, OFFLOAD = "plain", "offload"


def run(program: Program, calls: int, function: Callable[..., Any]) -> None:
    """Call the function so often, as a user's script does."""
    sets = [program.make_args(seed) for seed in (0, 1)]
    if program.following is None:
        for number in range(calls):
            function(*sets[number % 2])
        return
    arguments = sets[0]
    for _ in range(calls):
        arguments = program.following(arguments, function(*arguments))


def device_of_last() -> str:
    """Where the last call ran. Most scripts ask for no receipt, which loads 15 ms; so this asks for none either."""
    from anygpu.receipts.notes import HostNote, NativeNote, last, made

    note = last.get()
    if note is None:
        return "?"
    if isinstance(note, tuple) and isinstance(note[0], HostNote | NativeNote):
        return "numpy" if isinstance(note[0], HostNote) else "cpu"
    return made(note).device


def main() -> None:
    name, calls, report, side = sys.argv[1:]
    program = next(each for each in EVERY if each.name == name)
    if side == PLAIN:
        run(program, int(calls), program.function)
        device = "numpy"
    else:
        import anygpu as ag

        run(program, int(calls), ag.offload(program.function))
        device = device_of_last()
    Path(report).write_text(device, encoding="utf-8")


if __name__ == "__main__":
    main()
