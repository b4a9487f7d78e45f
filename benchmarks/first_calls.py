"""When calls become native: `python -m benchmarks.first_calls [--json] [--check]`.

Sixteen cells, of 0.1 to 100 ms on NumPy. Each is called without a pause in a new process, until a receipt names the
device `cpu`, and for a while after that: in a first process, with an empty cache, and in a second one. A cell is in
time when every call that begins later than `FIRST` or `SECOND` says is native. Beside it is where the time goes, as far
as anygpu says so.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from anygpu.base.units import readable_seconds
from benchmarks.report import Figure, options_parser, publish, say
from benchmarks.short_script_processes import compile_sources, environment
from benchmarks.workloads import WORKLOADS

#: Names of the placement grid's workloads, each with two numbers of elements.
CELLS = {
    "chain of 4": (100_000, 1_000_000),
    "chain of 16": (100_000, 1_000_000),
    "softmax": (100_000, 1_000_000),
    "layer norm": (100_000, 1_000_000),
    "Black–Scholes": (10_000, 100_000),
    "edges of an image": (10_000, 100_000),
    "k-means step": (10_000, 100_000),
    "n-body step": (1_000, 100_000),
}
#: Native from so many seconds after the begin of the first call on, or from this call where that is later.
FIRST, SECOND = (0.5, 4), (0.1, 2)
#: Of the cells, so many may be late.
MOST_LATE = 1
#: A process gives up after so many seconds; one that has become native goes on until this.
LONGEST, SHORTEST = 5.0, 1.5
STEPS = ("loading", "tracing", "compiling", "comparing")


class Became(msgspec.Struct, frozen=True, kw_only=True):
    """One process: when its calls became native."""

    #: Of one call on NumPy, the fastest of those before; `None` where the first one was native.
    numpy: float | None = None
    #: The first native call, counted from 1, and the seconds from the begin of the first call to its begin.
    call: int | None = None
    begins: float | None = None
    #: When the last call before it began: later ones are native.
    before: float = 0.0
    #: Where the time went, in seconds.
    timings: dict[str, float] = {}

    def in_time(self, bound: tuple[float, int]) -> bool:
        seconds, call = bound
        return self.call is not None and (self.call <= call or self.before < seconds)

    def __str__(self) -> str:
        if self.call is None or self.begins is None:
            return f"{'never':>7} {'':>9}"
        return f"{self.call:>7} {readable_seconds(self.begins):>9}"


def measure(name: str, size: int) -> Became:
    """In this process: call the workload until it is native."""
    import numpy as np

    import anygpu as ag

    workload = next(each for each in WORKLOADS if each.name == name)
    arguments = workload.make(size, np.random.default_rng(0))
    function: Any = ag.offload(workload.stages[0])
    begun = time.perf_counter()
    call, begins, before = None, None, 0.0
    on_numpy: list[float] = []
    for number in range(1, sys.maxsize):
        begin = time.perf_counter()
        if begin - begun > (LONGEST if call is None else SHORTEST):
            break
        function(*arguments)
        seconds = time.perf_counter() - begin
        receipt = ag.last_receipt()
        if call is None and receipt is not None and receipt.device == "cpu":
            call, begins = number, begin - begun
        elif call is None:
            before = begin - begun
            on_numpy.append(seconds)
    return Became(numpy=min(on_numpy, default=None), call=call, begins=begins, before=before, timings=timings())


def timings() -> dict[str, float]:
    """What placing native code says of the last function; nothing where it says nothing."""
    try:
        history: Sequence[tuple[Any, dict[str, float]]] = import_module("anygpu.native.trial").history
    except (ImportError, AttributeError):
        return {}
    return dict(history[-1][1]) if history else {}


def in_process(name: str, size: int, folder: Path) -> Became:
    command = [sys.executable, "-m", "benchmarks.first_calls", "--one", name, str(size)]
    done = subprocess.run(command, env=environment(folder), capture_output=True, text=True, check=True)
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Became)


def figures_of(first: Sequence[Became], second: Sequence[Became]) -> list[Figure]:
    """How many cells are late in each process; at most one may be."""
    found = [Figure(name="cells", value=len(first), unit="")]
    for title, cells, bound in (("first", first, FIRST), ("second", second, SECOND)):
        late = sum(not each.in_time(bound) for each in cells)
        name = f"{title} process: not native from {bound[0]:g} s or call {bound[1]} on"
        found.append(Figure(name=name, value=late, unit="cells", bound=MOST_LATE))
    return found


def line_of(name: str, size: int, first: Became, second: Became) -> str:
    steps = " ".join(
        f"{readable_seconds(each.timings[step]) if step in each.timings else '-':>9}"
        for each in (first, second)
        for step in STEPS
    )
    numpy = readable_seconds(first.numpy) if first.numpy is not None else "-"
    return f"{name:<18} {size:>10,} {numpy:>9} {first} {second}  {steps}"


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--one", nargs=2, metavar=("WORKLOAD", "SIZE"), help="one of them, in this process")
    options = parser.parse_args()
    if options.one:
        sys.stdout.write(msgspec.json.encode(measure(options.one[0], int(options.one[1]))).decode() + "\n")
        return
    compile_sources()
    say(f"{'':<39} {'first process':<17} {'second process':<18} {'first: where the time goes':<40} second")
    say(
        f"{'workload':<18} {'elements':>10} {'NumPy':>9}"
        + 2 * f" {'call':>7} {'begins':>9}"
        + f" {'':1}"
        + 2 * _steps()
    )
    first, second = [], []
    for name, sizes in CELLS.items():
        for size in sizes:
            with tempfile.TemporaryDirectory(prefix="anygpu-first-calls-", ignore_cleanup_errors=True) as folder:
                first.append(in_process(name, size, Path(folder)))
                second.append(in_process(name, size, Path(folder)))
            say(line_of(name, size, first[-1], second[-1]))
    publish(figures_of(first, second), options)


def _steps() -> str:
    return "".join(f" {step:>9}" for step in STEPS)


if __name__ == "__main__":
    main()
