"""How fast a device is: measured in a time that is set beforehand, and kept on disk for the next process."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from anygpu.base.cache_folder import cache_folder
from anygpu.base.disturbance import Reading, conditions, read_processors
from anygpu.base.this_process import usable_processors
from anygpu.engines import Isolation
from anygpu.engines.catalogue import EngineEntry, catalogue
from anygpu.engines.disk_cache import DiskCache, stamp_of
from anygpu.errors import InvalidOption
from anygpu.hardware.device import CPU, Device
from anygpu.placement.plan.calibration import Calibration, assumed
from anygpu.workers.worker import Worker, isolation_of

if TYPE_CHECKING:
    from pathlib import Path

#: What a device may take, unless the caller says otherwise.
SECONDS = 3.0

#: Counts up when measurements change their meaning, so that what an earlier version kept is not taken for one.
_VERSION = 2
_KIND = "calibration"

#: How often a trial is tried again, at the end, whose runs were too different.
_LATER_ROUNDS = 3
#: If more of them stay too different, the machine was too busy for all of them.
_MOST_DOUBTFUL = 0.25


def calibrate(
    worker: Worker,
    *,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.perf_counter,
    opening: float | None = None,
    read: Callable[[], Reading] | None = None,
) -> Calibration:
    """Measure how fast the worker's device is, in about `seconds` at most.

    The most important trials come first. Rates for which there is no time are assumed, and scaled by what was measured.
    `opening` is the time in seconds that opening the device took, if the caller has measured it; `read` reads the load
    of the processors. Raises `InvalidOption` for a time that is not positive.

    Sizes of kernels are not tuned: that would take longer than all the rest. So a program that is compiled with care
    may be faster than predicted, until its own history is known.
    """
    if not seconds > 0:
        raise InvalidOption(f"seconds is the time that calibrating may take, more than 0; got {seconds:g}.")
    # Recalling a calibration needs none of this.
    from anygpu.placement.benchmark import Bench
    from anygpu.placement.plan.microbenchmarks import fit, trials

    # On a device that is the processor, it is the threads of a child that wait for one.
    read = partial(read_processors, getattr(worker, "process_id", None)) if read is None else read
    before = read()
    bench = Bench(worker, clock, seconds)
    # One of the numbers that a float32 has between 1 and 2: no compiler has seen the program with it.
    number = 1.0 + (time.time_ns() // 1000 % (1 << 23)) / (1 << 23)
    for trial in trials(number):
        bench.try_out(trial)
    for _ in range(_LATER_ROUNDS):
        again, bench.doubtful = bench.doubtful, []
        for trial in again:
            known = len(bench.measurements)
            bench.try_out(trial)
            if len(bench.measurements) == known:  # there was no time for it
                bench.doubtful.append(trial)
    found = fit(worker.device, bench.measurements, opening=opening)
    if worker.device.engine == CPU:
        from anygpu.native.speed import with_native_speed

        found = with_native_speed(found, assumed(worker.device), clock)
    disturbed = conditions(before, read()).disturbed or len(bench.doubtful) > _MOST_DOUBTFUL * len(bench.measurements)
    return msgspec.structs.replace(found, disturbed=disturbed) if bench.measurements else found


def recalled(device: Device, *, isolation: Isolation | None = None) -> Calibration | None:
    """The calibration that was measured before with this driver, these libraries and processors; `None` if there is
    none.

    `isolation` is that of the worker; `None` is the default of its engine.
    """
    found = _kept(device).record(_KIND, _key(device, isolation), Calibration)
    return found if found is not None and found.device == device.id and found.is_plausible else None


def remember(calibration: Calibration, device: Device, *, isolation: Isolation | None = None) -> None:
    """Keep a calibration for `recalled`, in this process and in others; a folder that cannot be written is no error.

    A measurement on a busy machine does not replace one on a calm machine.
    """
    if calibration.disturbed and (known := recalled(device, isolation=isolation)) and not known.disturbed:
        return
    _kept(device).put_record(_KIND, _key(device, isolation), calibration)


def calibration_folder() -> Path:
    """Where calibrations are kept."""
    return cache_folder() / "calibrations"


def _kept(device: Device) -> DiskCache:
    """The files in which calibrations of a device are kept, for its driver and libraries as they are now."""
    entry = _entry(device)
    return DiskCache(calibration_folder(), stamp_of(device, entry.versions if entry is not None else ()))


def _key(device: Device, isolation: Isolation | None) -> bytes:
    """The key of a calibration, beside the stamp of its device: two cards of one model may sit in different slots."""
    entry = _entry(device)
    if isolation is None and entry is not None:
        isolation = isolation_of(entry)
    return msgspec.msgpack.encode((_VERSION, device.id, usable_processors(), isolation))


def _entry(device: Device) -> EngineEntry | None:
    """The catalogue's entry of the device's engine; `None` for an engine that is not known any more."""
    return next((entry for entry in catalogue() if entry.name == device.engine), None)
