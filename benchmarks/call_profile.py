"""Where a resident call spends its time, step by step: `python -m benchmarks.call_profile --engine opencl`.

Resident: the arguments are on the device already, and the result stays there. Both sides run by turns in one process,
as in `benchmarks.bare`. A step is a function of anygpu; what it takes is without the steps inside of it. What counts
is the call that is faster than nine of ten, step by step, so steps do not quite add up; timing a step takes about half
a microsecond, which is not subtracted. The clock is the calling thread's processor time (`--wall` for the wall clock):
other work on the machine does not count, nor does waiting for the device.

With `--busy` so many processes compute meanwhile.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from benchmarks.bare import RESIDENT_MICROSECONDS, by_hand
from benchmarks.handwritten.ours import Ours
from benchmarks.handwritten.workloads import WORKLOADS
from benchmarks.load import busy_processes
from benchmarks.report import Figure, options_parser, publish

#: Functions of anygpu on the way of a call, by the step that they are counted for. What an engine does not have, or
#: what a call does not need, is left out of the table.
STEPS: dict[str, tuple[str, ...]] = {
    "compute": ("anygpu.array.core.array:compute",),
    "make the program": ("anygpu.array.core.expression:program_of", "anygpu.array.core.expression:linearise"),
    "hash the program": ("anygpu.program.graph:Program.key",),
    "find the worker": (
        "anygpu.workers.device_arrays.handle:DeviceHandle.run",
        "anygpu.workers.device_arrays.handle:run_and_keep",
    ),
    "worker": ("anygpu.workers.thread:ThreadWorker.run",),
    "check the arguments": ("anygpu.workers.executor:check_arguments", "anygpu.workers.thread:check_arguments"),
    "executor": ("anygpu.workers.executor:Executor.run",),
    "find the compiled program": (
        "anygpu.engines.compiling_engine:CompilingEngine.supports",
        "anygpu.engines.compiling_engine:CompilingEngine.compile",
    ),
    "counters and peak": (
        "anygpu.engines.compiling_engine:CompilingEngine.counters",
        "anygpu.engines.compiling_engine:CompilingEngine.reset_peak",
        "anygpu.engines.compiling_engine:CompilingEngine.peak_bytes",
    ),
    "prepared launch": ("anygpu.workers.thread:ThreadWorker.launch",),
    "lay out the commands": ("anygpu.engines.compiling_session:Session.run",),
    "memory": ("anygpu.engines.memory.adaptors:Stats.allocate", "anygpu.engines.memory.adaptors:Stats.release"),
    "encode and submit": (
        "anygpu.engines.opencl.engine:OpenCLDriver.submit",
        "anygpu.engines.webgpu.engine:WebGPUDriver.submit",
        "anygpu.engines.opencl.engine:OpenCLDriver.submit_prepared",
        "anygpu.engines.webgpu.engine:WebGPUDriver.submit_prepared",
    ),
    "synchronize": ("anygpu.engines.compiling_session:Session.synchronize",),
}

Clock = Callable[[], float]


class StepTimer:
    """What each step of one call takes, without the steps inside of it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: Of the steps that are under way, the time that steps inside of them took.
        self._inside: list[float] = []
        self._taken: dict[str, float] = defaultdict(float)

    def wrapped(self, step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        clock, inside, taken = self._clock, self._inside, self._taken

        def timed(*arguments: Any, **options: Any) -> Any:
            inside.append(0.0)
            begin = clock()
            try:
                return function(*arguments, **options)
            finally:
                seconds = clock() - begin
                taken[step] += seconds - inside.pop()
                if inside:
                    inside[-1] += seconds

        return timed

    def take(self) -> dict[str, float]:
        taken = dict(self._taken)
        self._taken.clear()
        return taken


@contextmanager
def replaced(where: str, timer: StepTimer, step: str) -> Iterator[None]:
    """A function, method or cached property is timed in this block, if there is such a one."""
    module, path = where.split(":")
    owner: Any = importlib.import_module(module)
    *classes, name = path.split(".")
    for each in classes:
        owner = getattr(owner, each)
    plain = vars(owner).get(name)
    if plain is None:
        yield
        return
    if hasattr(plain, "func"):  # a cached property
        function, plain.func = plain.func, timer.wrapped(step, plain.func)
        try:
            yield
        finally:
            plain.func = function
        return
    setattr(owner, name, timer.wrapped(step, plain))
    try:
        yield
    finally:
        setattr(owner, name, plain)


def profile(engine: str, name: str, *, calls: int, wall: bool) -> list[Figure]:
    workload = next(each for each in WORKLOADS if each.name == name)
    clock = time.perf_counter if wall else time.thread_time
    arguments = workload.make()
    expected = np.asarray(workload.function(*arguments))
    hand = by_hand(engine).prepared(workload, arguments, expected)
    ours = Ours(engine).prepared(workload, arguments, expected)
    bare, whole = turns(clock, hand.resident, ours.resident, calls)
    steps = steps_of(clock, ours.resident, calls)
    beyond = (whole - bare) * 1e6
    kind = "" if wall else ", processor time"
    found = [
        Figure(name=f"{engine}, {name}: by hand{kind}", value=bare * 1e6, unit="µs"),
        Figure(name=f"{engine}, {name}: anygpu{kind}", value=whole * 1e6, unit="µs"),
        Figure(
            name=f"{engine}, {name}: beyond bare{kind}",
            value=beyond,
            unit="µs",
            bound=RESIDENT_MICROSECONDS if not wall else None,
        ),
    ]
    return found + [Figure(name=f"    {step}", value=seconds * 1e6, unit="µs") for step, seconds in steps.items()]


def turns(clock: Clock, one: Callable[[], object], other: Callable[[], object], calls: int) -> tuple[float, float]:
    """Two things that run by turns."""
    taken: tuple[list[float], list[float]] = [], []
    for turn in range(calls + calls // 10):
        for function, seconds in zip((one, other), taken, strict=True):
            begin = clock()
            function()
            if turn >= calls // 10:
                seconds.append(clock() - begin)
    return quick(taken[0]), quick(taken[1])


def quick(samples: list[float]) -> float:
    """What one in ten is faster than: of a sample that other work on the machine disturbs, the part it leaves alone."""
    return statistics.quantiles(samples, n=10)[0]


def steps_of(clock: Clock, call: Callable[[], object], calls: int) -> dict[str, float]:
    """Each step, and what is in none of them."""
    timer = StepTimer(clock)
    timed = timer.wrapped("record the operations, and the rest", call)
    samples: dict[str, list[float]] = defaultdict(list)
    with ExitStack() as stack:
        for step, functions in STEPS.items():
            for where in functions:
                try:
                    stack.enter_context(replaced(where, timer, step))
                except ImportError:  # another engine's library
                    continue
        for turn in range(calls + calls // 10):
            timed()
            taken = timer.take()
            if turn >= calls // 10:
                for step, seconds in taken.items():
                    samples[step].append(seconds)
    order = ["record the operations, and the rest", *STEPS]
    return {step: quick(samples[step]) for step in order if len(samples[step]) > 1}


def main() -> None:
    parser = options_parser(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--engine", choices=["webgpu", "opencl"], required=True)
    parser.add_argument("--only", metavar="NAME", default="matmul 128", help="the workload (default: matmul 128)")
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--wall", action="store_true", help="by the wall clock")
    parser.add_argument("--busy", type=int, default=0, metavar="COUNT", help="so many processes compute beside it")
    options = parser.parse_args()
    with busy_processes(options.busy):
        figures = profile(options.engine, options.only, calls=options.calls, wall=options.wall)
    publish(figures, options)


if __name__ == "__main__":
    main()
