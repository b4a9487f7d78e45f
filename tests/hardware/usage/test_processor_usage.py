"""The processor's load, and that of devices which are software."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import anygpu as ag
from anygpu.hardware.device import Device, unknown_facts
from anygpu.hardware.usage import NO_SECOND_LOOK
from anygpu.hardware.usage.reading import UsageReader
from anygpu.testing import ManualClock
from anygpu.workers.device_arrays.registry import registry
from tests.hardware.test_sysfs import write


def processor(identity: str = "numpy") -> Device:
    nothing = unknown_facts("-", "memory_total", "memory_free", "driver", "compute_capability", "load", "uuid", "pci")
    return Device(
        id=identity,
        engine="numpy",
        kind="cpu",
        form="host",
        name="a processor",
        state="verified",
        api="CPU",
        card="cpu",
        unknown=nothing,
    )


def test_its_load_is_that_between_two_looks(tmp_path: Path) -> None:
    reader = UsageReader(root=tmp_path, clock=ManualClock())
    write(tmp_path, "proc/stat", "cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1 2 3\n")
    write(tmp_path, "sys/class/hwmon/hwmon0/name", "coretemp\n")
    write(tmp_path, "sys/class/hwmon/hwmon0/temp1_input", "55000\n")
    write(tmp_path, "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "3400000\n")
    write(tmp_path, "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", "4700000\n")
    first = reader.read([processor()])["numpy"]
    assert first.unknown["load"] == NO_SECOND_LOOK
    assert (first.temperature, first.clock, first.clock_limit) == (55.0, 3.4e9, 4.7e9)
    write(tmp_path, "proc/stat", "cpu  150 0 125 825 0 0 0 0 0 0\n")
    assert reader.read([processor()])["numpy"].load == 0.75


def test_here() -> None:
    found = processor().usage(seconds=0.02)
    assert found.card == "cpu"
    assert found.memory_total
    assert found.memory_used is not None
    assert found.memory_free == found.memory_total - found.memory_used


@pytest.mark.full
def test_software_is_as_busy_as_its_worker_process() -> None:
    device = next(each for each in ag.devices() if each.engine == "webgpu" and each.software)
    array = ag.asarray(np.ones(1000, np.float32), device=device.id)
    reader = UsageReader()
    reader.read([device])
    for _ in range(50):
        array = array * 1.0001
        np.asarray(array)
    found = reader.read([device])[device.id]
    (pid,) = registry.process_ids(device.id)
    (process,) = found.processes or ()
    assert process.pid == pid
    assert pid != os.getpid()
    assert process.memory
    assert found.memory_used == process.memory
    assert found.load is not None
    assert found.unknown["temperature"] == "it is software on the processor"


@pytest.mark.full
def test_software_that_nobody_has_open() -> None:
    device = next(each for each in ag.devices() if each.software)
    found = UsageReader().read([device], workers=lambda device: ())[device.id]
    assert found.unknown["load"] == "it is software, and no worker process has it open"
