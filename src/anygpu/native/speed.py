"""How fast native code is on this machine: measured, for 0.1 seconds, or predicted for users without llvmlite."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import msgspec

from anygpu.engines.codegen.nests.inspection import work_of
from anygpu.engines.codegen.nests.schedule import nests
from anygpu.engines.codegen.nests.steps import Nest
from anygpu.engines.cpu.engine import CpuEngine, executable
from anygpu.engines.numpy.lowering import NumpyEngine
from anygpu.errors import CannotCompile, DeviceFallback, MissingExtra
from anygpu.hardware.device import Device
from anygpu.placement.plan.calibration import Calibration, NativeSpeed, assumed, assumed_speed
from anygpu.placement.plan.microbenchmarks import BenchmarkTrial, native_trials, values
from anygpu.placement.plan.predicting import predict
from anygpu.program.graph import Program

#: The best run counts, of at least this many, and of as many as fit into the seconds.
_RUNS, _SECONDS = 12, 0.03
#: An instruction takes this much longer in loops of programs than in those of the trials, which only compute.
_USUAL = 1.3
#: The time of a call through Python, relative to NumPy's interpreter on the smallest program.
_CALL = 1.7


def with_native_speed(
    numpy: Calibration, before: Calibration, clock: Callable[[], float] = time.perf_counter
) -> Calibration:
    """Return the calibration of native code: `numpy` for what NumPy does, and nests as they were measured."""
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
    """Return the measured speed of nests, or the assumed one where nothing compiles."""
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
    """Return the best run."""
    run, arrays = executable(trial.program), values(trial)
    times: list[float] = []
    end = clock() + _SECONDS
    while len(times) < _RUNS or clock() < end:
        begin = clock()
        run(arrays)
        times.append(clock() - begin)
    return max(min(times), 1e-9)


def _work(trial: BenchmarkTrial, speed: NativeSpeed) -> tuple[float, float]:
    """Return the instructions and bytes of its nests."""
    steps = nests(trial.program, vector_bytes=speed.vector_bytes).steps
    works = [work_of(step, speed.vector_bytes) for step in steps if isinstance(step, Nest)]
    return sum(work.instructions for work in works), sum(work.bytes for work in works)


# -- the gain that a user without llvmlite misses


#: A smaller gain is not worth a warning.
_WORTH_SAYING = 1.5

_said = False


def predicted_gain(program: Program) -> float:
    """Return how many times as fast as NumPy native code is predicted to be, without measurements of this machine."""
    (numpy,) = NumpyEngine().discover()
    assert isinstance(numpy, Device)
    seconds = [predict(program, assumed(each)).seconds for each in (numpy, CpuEngine.processor())]
    return seconds[0] / max(seconds[1], 1e-9)


def warn_once(task: str, function: Callable[..., Any], program: Program, error: MissingExtra) -> None:
    """Warn of the first function of this process that would gain, at the line where it begins."""
    global _said
    gain = predicted_gain(program)
    if _said or gain < _WORTH_SAYING:
        return
    _said = True
    inner = getattr(function, "__func__", function)
    code = getattr(inner, "__code__", None)
    file, line = (code.co_filename, code.co_firstlineno) if code is not None else ("anygpu", 0)
    message = f"{task} stays on NumPy: {error} (which is predicted to make it about {gain:.0f} × faster)"
    warnings.warn_explicit(message, DeviceFallback, file, line, module=getattr(inner, "__module__", None))
