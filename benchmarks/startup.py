"""What a user waits for before anything is computed: the import, the first look at the devices, and every later one."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec

from anygpu.calls.loading import PLANNING
from benchmarks.report import Figure, options_parser, publish, say

IMPORT_ROUNDS = 15
#: What places native code.
NATIVE = "anygpu.native.trial"
#: The same script on plain NumPy and offloaded.
THREE_CALLS = """
import numpy as np
{decorator}
def standardised(x):
    return (x - x.mean()) / x.std()
for number in range(3):
    standardised(np.arange(100.0))
"""


def installed(folder: str) -> dict[str, str]:
    """The environment of a child that finds bytecode, as pip leaves it beside every module that it installs."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**environment, "PYTHONPYCACHEPREFIX": folder}


def import_seconds(environment: dict[str, str]) -> tuple[float, float, float, float]:
    """Processor time, best of several, of importing numpy, of anygpu after it, and of what plans calls after that.

    They are measured in one process, because numpy alone swings by more than anygpu takes. The last figure is what
    plans calls beside numpy, the median of several: it hardly depends on how fast the machine is at the moment.
    """
    timed = (
        "import time; clock = time.process_time; marks = [clock()]\n"
        "import numpy; marks.append(clock())\n"
        "import anygpu; marks.append(clock())\n"
        f"import {PLANNING}; marks.append(clock())\n"
        "print(*(after - before for before, after in zip(marks, marks[1:])))"
    )
    taken = []
    for _ in range(IMPORT_ROUNDS + 1):
        command = [sys.executable, "-c", timed]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        taken.append([float(seconds) for seconds in done.stdout.split()])
    # The first round writes the bytecode and fills the file cache.
    of_numpy, of_anygpu, of_planning = (min(column) for column in zip(*taken[1:], strict=True))
    return of_numpy, of_anygpu, of_planning, statistics.median(row[2] / row[0] for row in taken[1:])


def native_seconds(environment: dict[str, str]) -> float | None:
    """Processor time, best of several, of loading what places native code after anygpu; `None` where it is missing."""
    if find_spec(NATIVE) is None:
        return None
    timed = (
        f"import time, numpy, anygpu; begin = time.process_time()\nimport {NATIVE}\nprint(time.process_time() - begin)"
    )
    command = [sys.executable, "-c", timed]
    taken = [
        float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
        for _ in range(IMPORT_ROUNDS + 1)
    ]
    return min(taken[1:])


def three_calls_seconds(environment: dict[str, str], cache: str) -> float:
    """How much longer than on NumPy a whole process with three short calls takes: the best of each, in turns."""
    best: dict[str, float] = {}
    for _ in range(IMPORT_ROUNDS + 1):
        for decorator in ("", "import anygpu as ag\n@ag.offload"):
            begin = time.perf_counter()
            subprocess.run(
                [sys.executable, "-c", THREE_CALLS.format(decorator=decorator)],
                env={**environment, "ANYGPU_CACHE_DIR": cache},
                check=True,
            )
            best[decorator] = min(best.get(decorator, 60.0), time.perf_counter() - begin)
    numpy, offloaded = best.values()
    return offloaded - numpy


def command_seconds(environment: dict[str, str], cache: str, rounds: int) -> list[float]:
    """The whole command as a person types it, start of Python included."""
    taken = []
    for _ in range(rounds):
        begin = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "anygpu", "devices", "--json"],
            env={**environment, "ANYGPU_CACHE_DIR": cache},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        taken.append(time.perf_counter() - begin)
    return taken


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument(
        "--gate", action="store_true", help="leave out the bounds in milliseconds that a slow machine misses"
    )
    options = parser.parse_args()
    cold, warm = [], []
    with tempfile.TemporaryDirectory() as bytecode:
        environment = installed(bytecode)
        of_numpy, of_anygpu, of_planning, beside_numpy = import_seconds(environment)
        of_native = native_seconds(environment)
        with tempfile.TemporaryDirectory() as cache:
            beyond = three_calls_seconds(environment, cache)
            command_seconds(environment, cache, 1)  # writes the bytecode of what the command imports
        for _ in range(3):
            with tempfile.TemporaryDirectory() as cache:
                cold += command_seconds(environment, cache, 1)
                warm += command_seconds(environment, cache, 3)
    if of_native is None:
        say(f"There is no module {NATIVE}: loading it is not measured.")
    publish(
        [
            Figure(name="import anygpu after numpy, processor time", value=of_anygpu * 1e3, unit="ms", bound=35),
            Figure(
                name="load what plans calls, processor time",
                value=of_planning * 1e3,
                unit="ms",
                bound=None if options.gate else 120,
            ),
            Figure(name="load what plans calls, beside import numpy", value=beside_numpy, unit="×", bound=0.8),
            *(
                [
                    Figure(
                        name="load what places native code, processor time",
                        value=of_native * 1e3,
                        unit="ms",
                        bound=None if options.gate else 60,
                    )
                ]
                if of_native is not None
                else []
            ),
            Figure(
                name="three short calls, a process beyond NumPy",
                value=beyond * 1e3,
                unit="ms",
                bound=None if options.gate else 10,
            ),
            Figure(name="import numpy, processor time", value=of_numpy * 1e3, unit="ms"),
            Figure(
                name="anygpu devices, nothing known (median of 3)", value=statistics.median(cold), unit="s", bound=15
            ),
            Figure(name="anygpu devices, nothing known (worst)", value=max(cold), unit="s"),
            Figure(
                name="anygpu devices, probe remembered (median of 9)", value=statistics.median(warm), unit="s", bound=3
            ),
            Figure(name="anygpu devices, probe remembered (worst)", value=max(warm), unit="s"),
        ],
        options,
    )


if __name__ == "__main__":
    main()
