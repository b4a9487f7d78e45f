"""A program run on a place, with the receipt of what happened."""

from __future__ import annotations

from collections.abc import Sequence

from anygpu.engines.compiling import CompilingEngine
from anygpu.engines.driver import Counters
from anygpu.engines.protocol import Buffer
from anygpu.notices import host_operations
from anygpu.program.graph import Program
from anygpu.receipts import Attempt, DriverWork, PhaseTimer, Receipt
from anygpu.runtime.hosting import run_with_host
from anygpu.runtime.places import EnginePlace

_NOT_MEASURED = {
    "device_seconds": "this engine gives no time by the device's own clock",
    "peak_bytes": "this engine does not count memory",
    "kernels": "this engine does not tell how many kernels it starts",
    "predicted_seconds": "the device was given, so nothing was predicted",
}


def run_with_receipt(
    place: EnginePlace, program: Program, buffers: Sequence[Buffer], *, task: str = "program"
) -> tuple[list[Buffer], Receipt]:
    """Run and wait. Phases are those that a place sees: compiling, and running until the device is done."""
    timer = PhaseTimer()
    engine, device = place.engine, place.facts
    before = engine.counters(device) if isinstance(engine, CompilingEngine) else None
    seconds: float | None = None
    with host_operations() as hosted:
        with timer.phase("compile"):
            lacks = engine.supports(program, device)
            executable = None if lacks else engine.compile(program, device)
        with timer.phase("run"):
            if executable is None:
                results = run_with_host(engine, device, program, buffers, lacks)
            elif isinstance(engine, CompilingEngine):
                results, seconds = engine.execute_timed(executable, buffers)
            else:
                results = engine.execute(executable, buffers)
            engine.synchronize(device)
    phases = timer.finish()
    work: DriverWork | None = None
    peak: int | None = None
    after: Counters | None = None
    if isinstance(engine, CompilingEngine) and before is not None:
        after = engine.counters(device)
        work = _difference(before, after)
        peak = engine.session(device).memory.snapshot().peak_bytes
    known = {"device_seconds": seconds, "peak_bytes": peak, "kernels": work.dispatches if work is not None else None}
    return results, Receipt(
        task=task,
        device=device.id,
        kind=device.kind,
        reason="it was asked for.",
        phases=phases,
        attempts=(Attempt(device=device.id, phases=phases),),
        device_seconds=seconds,
        bytes_to_device=after.bytes_to_device - before.bytes_to_device if after and before else 0,
        bytes_to_host=after.bytes_to_host - before.bytes_to_host if after and before else 0,
        peak_bytes=peak,
        kernels=work.dispatches if work is not None else None,
        driver=work,
        host_operations=tuple(hosted),
        unknown={name: why for name, why in _NOT_MEASURED.items() if known.get(name) is None},
    )


def _difference(before: Counters, after: Counters) -> DriverWork:
    return DriverWork(
        allocations=after.allocations - before.allocations,
        compilations=after.compilations - before.compilations,
        submits=after.submits - before.submits,
        dispatches=after.dispatches - before.dispatches,
    )
