"""What a user waits for before anything is computed: the import, the first look at the devices, and every later one."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks.report import Figure, arguments, publish

IMPORT_ROUNDS = 15


def import_seconds() -> tuple[float, float]:
    """Best of several, numpy alone and numpy with anygpu by turns, so that both see the same noise."""
    scripts = ("import numpy", "import numpy, anygpu")
    best = [float("inf"), float("inf")]
    for round_number in range(IMPORT_ROUNDS + 1):
        for index, script in enumerate(scripts):
            timed = f"import time; t = time.perf_counter()\n{script}\nprint(time.perf_counter() - t)"
            done = subprocess.run([sys.executable, "-c", timed], capture_output=True, text=True, check=True)
            if round_number:  # the first fills the file cache
                best[index] = min(best[index], float(done.stdout))
    return best[0], best[1]


def command_seconds(cache: str, rounds: int) -> list[float]:
    """The whole command as a person types it, start of Python included."""
    taken = []
    for _ in range(rounds):
        begin = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "anygpu", "devices", "--json"],
            env={**os.environ, "ANYGPU_CACHE_DIR": cache},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        taken.append(time.perf_counter() - begin)
    return taken


def main() -> None:
    options = arguments(__doc__)
    numpy_alone, with_anygpu = import_seconds()
    cold, warm = [], []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as cache:
            cold += command_seconds(cache, 1)
            warm += command_seconds(cache, 3)
    publish(
        [
            Figure(
                name="import anygpu, beyond import numpy", value=(with_anygpu - numpy_alone) * 1e3, unit="ms", bound=60
            ),
            Figure(name="import numpy", value=numpy_alone * 1e3, unit="ms"),
            Figure(name="anygpu devices, nothing known (worst of 3)", value=max(cold), unit="s", bound=15),
            Figure(name="anygpu devices, probe remembered (worst of 9)", value=max(warm), unit="s", bound=3),
            Figure(name="anygpu devices, probe remembered (median)", value=statistics.median(warm), unit="s"),
        ],
        options,
    )


if __name__ == "__main__":
    main()
