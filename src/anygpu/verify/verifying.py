"""One device from beginning to end: its checks, and the record of them."""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import time
from collections.abc import Callable, Sequence
from importlib import metadata

from anygpu._version import __version__
from anygpu.base.disturbance import conditions, read_processors
from anygpu.device_arrays.registry import DeviceRegistry, registry
from anygpu.engines.catalogue import entry_of
from anygpu.hardware import host
from anygpu.hardware.device import Device
from anygpu.verify.cases import Check
from anygpu.verify.document import Machine, Record, VerifiedDevice
from anygpu.verify.privacy import this_owner, without_personal_data
from anygpu.verify.running import Trial, Watcher, driver_of
from anygpu.verify.subject import CASE_SECONDS, Subject


def verify_device(
    device: Device,
    checks: Sequence[Check],
    watcher: Watcher,
    *,
    seconds: float,
    number: int | None = None,
    places: DeviceRegistry = registry,
    timeout: float = CASE_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> Record:
    """Try the checks on the device; with a `number`, only the case of that number in each."""
    subject = Subject(device, places=places, timeout=timeout)
    # Before the time begins: loading a library takes as long as hundreds of cases.
    _ = subject.worker
    begin, before = clock(), read_processors()
    trial = Trial(subject, watcher, seconds=seconds, clock=clock)
    outcome = trial.run(checks, number=number)
    return Record(
        anygpu=__version__,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        device=facts_of(device),
        machine=this_machine(device),
        seconds=round(clock() - begin, 1),
        budget=seconds,
        disturbed=conditions(before, read_processors()).disturbed,
        checks=outcome.checks,
        findings=tuple(outcome.findings),
        timings=tuple(outcome.timings),
    )


def facts_of(device: Device) -> VerifiedDevice:
    """What the device is. Its identity and its place on the bus stay behind."""
    owner = this_owner()
    return VerifiedDevice(
        id=device.id,
        engine=device.engine,
        kind=device.kind,
        form=device.form,
        name=without_personal_data(device.name, owner),
        vendor=device.vendor,
        api=device.api,
        driver=driver_of(device),
        memory=device.memory_total,
        model=device.model,
        features=device.features,
        limits=device.limits,
    )


def this_machine(device: Device) -> Machine:
    libraries = {}
    for name in dict.fromkeys(("numpy", *entry_of(device.id).versions)):
        with contextlib.suppress(metadata.PackageNotFoundError):
            libraries[name] = metadata.version(name)
    return Machine(
        system=_system(),
        processor=host.processor_name(),
        cores=os.cpu_count(),
        memory=host.memory_total(),
        python=platform.python_version(),
        libraries=libraries,
    )


def _system() -> str:
    """Without what a kernel of one's own is called."""
    name = platform.system()
    with contextlib.suppress(OSError):
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    numbers = ".".join(platform.release().split("-")[0].split(".")[:2])
    return f"{name}, {platform.system()} {numbers}, {platform.machine()}"
