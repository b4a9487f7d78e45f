"""How fast native code is on this machine: three programs, run in this process as calls run it, for 0.1 seconds."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from anygpu.codegen.nests.inspection import work_of
from anygpu.codegen.nests.schedule import nests
from anygpu.codegen.nests.steps import Nest
from anygpu.engines.cpu.engine import executable
from anygpu.errors import CannotCompile, MissingExtra
from anygpu.plan.calibration import Calibration, NativeSpeed, assumed_speed
from anygpu.plan.microbenchmarks import BenchmarkTrial, native_trials, values

#: The best run counts, of so many at least, and of all that there is time for.
_RUNS, _SECONDS = 12, 0.03
#: Loops of programs take so much longer for an instruction than those of the trials, which do nothing but compute.
_USUAL = 1.3
#: A call through Python takes so many times what NumPy's interpreter takes for the smallest program.
_CALL = 1.7


def with_native_speed(
    numpy: Calibration, before: Calibration, clock: Callable[[], float] = time.perf_counter
) -> Calibration:
    """The speed of native code, of which NumPy does a part: as it was measured, and as it was assumed `before`."""
    return msgspec.structs.replace(
        before,
        source=numpy.source,
        launch=_CALL * numpy.launch,
        kernel=numpy.kernel,
        rates=numpy.rates,
        wide=numpy.wide,
        measured=numpy.measured,
        native=measured_speed(clock),
    )


def measured_speed(clock: Callable[[], float] = time.perf_counter) -> NativeSpeed:
    """The speed of nests; what is assumed where nothing can be compiled."""
    assumed = assumed_speed()
    alone, together, moving = native_trials()
    try:
        one, several = (_seconds(each, clock) / _work(each, assumed)[0] for each in (alone, together))
        bandwidth = _work(moving, assumed)[1] / _seconds(moving, clock)
    except (CannotCompile, MissingExtra):
        return assumed
    # A second thread of one core is less than another core. Less than half of them says that others had the processors.
    threads = min(max(one / several, (1 + assumed.threads) / 2), assumed.threads)
    return NativeSpeed(threads, assumed.vector_bytes, one * _USUAL, bandwidth)


def _seconds(trial: BenchmarkTrial, clock: Callable[[], float]) -> float:
    """The best run."""
    run, arrays = executable(trial.program), values(trial)
    times: list[float] = []
    end = clock() + _SECONDS
    while len(times) < _RUNS or clock() < end:
        begin = clock()
        run(arrays)
        times.append(clock() - begin)
    return max(min(times), 1e-9)


def _work(trial: BenchmarkTrial, speed: NativeSpeed) -> tuple[float, float]:
    """Instructions and bytes of its nests."""
    steps = nests(trial.program, vector_bytes=speed.vector_bytes).steps
    works = [work_of(step, speed.vector_bytes) for step in steps if isinstance(step, Nest)]
    return sum(work.instructions for work in works), sum(work.bytes for work in works)
