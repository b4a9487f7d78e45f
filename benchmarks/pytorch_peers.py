"""Training in half of the memory that a batch wants: `python -m benchmarks.pytorch_peers [--json] [--check]`.

A vision transformer of 2.7 million parameters is trained with batches of 64, first by plain torch without a limit;
then with half of that memory, which an allocator enforces, by `anygpu.pytorch.Step`, by Accelerate's
`find_executable_batch_size` and by Lightning's `scale_batch_size`. Each run is a process of its own. They take turns,
so that all of them see the same machine, and middle values count. "Lost" is all time before the first step whose
training is kept, and attempts that failed later. Ours runs twice in each turn: with an empty cache, and with what that
left.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import msgspec

from anygpu.base.units import readable_bytes
from benchmarks.pytorch_peers_process import MEANS, Run
from benchmarks.report import Figure, options_parser, publish, say
from tests.support.counting_allocator import environment

#: What is needed beside the extra `torch`, and the command that installs it.
PEERS = {"accelerate": "pip install accelerate", "lightning": "pip install lightning"}
#: Trials of our first and our later runs, and how far the speed of ours may be below plain torch without a limit.
MOST_TRIALS = {"anygpu": 1.0, "anygpu, later run": 0.0}
MOST_SLOWER = 1 / 0.85
#: How far a peak may be above the budget: an allocator that refuses leaves no room.
MOST_PEAK = 1.0


def run(means: str, batch: int, steps: int, budget: int, cache: Path) -> Run:
    """In a process of its own, whose allocations are counted."""
    root = Path(__file__).resolve().parents[1]
    command = [sys.executable, "-m", "benchmarks.pytorch_peers_process", means]
    command += ["--batch", str(batch), "--steps", str(steps), "--budget", str(budget)]
    variables = environment() | {
        "ANYGPU_CACHE_DIR": str(cache),
        "PYTHONPATH": os.pathsep.join((str(root / "src"), str(root))),
    }
    done = subprocess.run(command, env=variables, cwd=root, capture_output=True, text=True, timeout=1800, check=False)
    if done.returncode:
        raise RuntimeError(f"{means} ended with status {done.returncode}:\n{done.stderr[-3000:]}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Run)


def missing() -> list[str]:
    return [command for name, command in PEERS.items() if find_spec(name) is None]


def median(runs: list[Run], what: str) -> float:
    return float(statistics.median(getattr(each, what) for each in runs))


def figures_of(runs: dict[str, list[Run]], plain: list[Run], batch: int, budget: int) -> list[Figure]:
    free = median(plain, "rows_per_second")
    figures = [
        Figure(name="plain torch, no limit: peak", value=median(plain, "peak_bytes") / 2**20, unit="MiB"),
        Figure(name="plain torch, no limit: speed", value=free, unit="rows/s"),
        Figure(name="plain torch, no limit: everything", value=median(plain, "seconds"), unit="s"),
        Figure(name="the budget", value=budget / 2**20, unit="MiB"),
    ]
    for name, each in runs.items():
        ours = name in MOST_TRIALS
        speed = median(each, "rows_per_second")
        figures += [
            Figure(
                name=f"{name}: trials",
                value=median(each, "trials"),
                unit="trials",
                # A figure of 0 has to be below its bound, which is a number to divide by.
                bound=MOST_TRIALS[name] + 0.5 if ours else None,
            ),
            Figure(name=f"{name}: lost to trials", value=median(each, "lost_seconds"), unit="s"),
            Figure(name=f"{name}: speed", value=speed, unit="rows/s"),
            Figure(
                name=f"{name}: slower than without a limit",
                value=free / speed,
                unit="×",
                bound=MOST_SLOWER if ours else None,
            ),
            Figure(name=f"{name}: everything", value=median(each, "seconds"), unit="s"),
            Figure(name=f"{name}: rows of a step, of {batch}", value=median(each, "batch"), unit="rows"),
            Figure(
                name=f"{name}: peak by budget",
                value=max(one.peak_bytes for one in each) / budget,
                unit="×",
                bound=MOST_PEAK if ours else None,
            ),
        ]
    return figures


def main(given: list[str] | None = None) -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=12, help="of the whole batch")
    parser.add_argument("--means", default=";".join(MEANS), help="some of them, with semicolons between")
    options = parser.parse_args(given)
    absent = missing()
    chosen = [name for name in options.means.split(";") if name]
    if absent and any(not name.startswith("anygpu") for name in chosen):
        parser.exit(2, f"What is compared with is not installed. First run: {'; '.join(absent)}\n")
    runs: dict[str, list[Run]] = {name: [] for name in chosen}
    plain: list[Run] = []
    budget = 0
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory() as cache:
            plain.append(run("plain", options.batch, options.steps, 0, Path(cache)))
            # The first run sets the budget of all others.
            budget = budget or plain[0].peak_bytes // 2
            say(f"round {number + 1}: plain torch takes {readable_bytes(plain[-1].peak_bytes)}")
            for name in chosen:
                found = run(name, options.batch, options.steps, budget, Path(cache))
                runs[name].append(found)
                say(f"{name}: {found}")
    publish(figures_of(runs, plain, options.batch, budget), options)


if __name__ == "__main__":
    main()
