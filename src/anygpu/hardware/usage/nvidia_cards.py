"""NVIDIA's cards, through NVML. One reading that a card refuses costs that reading, not the card."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from anygpu.hardware.nvidia import REFUSALS, Code
from anygpu.hardware.usage.usage import ProcessUsage, Readings, Usage, gone

#: For each reading: how NVML is asked for it.
_QUESTIONS: Mapping[str, Callable[[Any, Any], object]] = {
    "memory_used": lambda nvml, card: nvml.nvmlDeviceGetMemoryInfo(card).used,
    "memory_total": lambda nvml, card: nvml.nvmlDeviceGetMemoryInfo(card).total,
    "load": lambda nvml, card: nvml.nvmlDeviceGetUtilizationRates(card).gpu / 100,
    "temperature": lambda nvml, card: float(nvml.nvmlDeviceGetTemperature(card, nvml.NVML_TEMPERATURE_GPU)),
    "power": lambda nvml, card: nvml.nvmlDeviceGetPowerUsage(card) / 1e3,
    "power_limit": lambda nvml, card: nvml.nvmlDeviceGetEnforcedPowerLimit(card) / 1e3,
    "clock": lambda nvml, card: nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_SM) * 1e6,
    "clock_limit": lambda nvml, card: nvml.nvmlDeviceGetMaxClockInfo(card, nvml.NVML_CLOCK_SM) * 1e6,
    "throttled": lambda nvml, card: _reasons(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(card)),
}

#: Bits of nvml.h. An idle card, and clocks that were set by a user, are not throttling.
_THROTTLE_REASONS = {
    0x04: "power limit",
    0x08: "slowed by its hardware",
    0x20: "temperature",
    0x40: "temperature",
    0x80: "the power supply asked for it",
}


def read_nvidia(nvml: Any, index: int, names: Callable[[int], str | None]) -> Usage:
    """One look at the card with this number. `names` are those of processes."""
    card_id = f"nvidia:{index}"
    found = Readings()
    try:
        card = nvml.nvmlDeviceGetHandleByIndex(index)
        for name, ask in _QUESTIONS.items():
            _ask(nvml, found, name, partial(ask, nvml, card))
        _ask(nvml, found, "processes", partial(_processes, nvml, card, names))
    except nvml.NVMLError as error:
        if error.value == Code.GPU_IS_LOST:
            return gone(card_id, "nvml", "the machine has lost its connection to the card (fallen off the bus)")
        return gone(card_id, "nvml", _refusal(error))
    return found.usage(card_id, "nvml", "the driver did not say")


def _ask(nvml: Any, found: Readings, name: str, ask: Callable[[], object]) -> None:
    try:
        found.add(name, ask(), "the driver's answer is empty")
    except nvml.NVMLError as error:
        if error.value == Code.GPU_IS_LOST:
            raise
        found.lack(_refusal(error), name)


def _refusal(error: Any) -> str:
    return REFUSALS.get(error.value, f"NVML reports error {error.value} ({error})")


def _reasons(bits: int) -> tuple[str, ...]:
    if bits & 0xC0:
        bits &= ~0x08  # the others say why the hardware slows it down
    return tuple(dict.fromkeys(words for bit, words in _THROTTLE_REASONS.items() if bits & bit))


def _processes(nvml: Any, card: Any, names: Callable[[int], str | None]) -> tuple[ProcessUsage, ...]:
    memory: dict[int, int | None] = {}
    for function in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses):
        for process in function(card):
            held = process.usedGpuMemory
            # On Windows, and inside of containers, NVML does not know it.
            memory[process.pid] = memory.get(process.pid) if held is None else held
    loads: dict[int, float] = {}
    refused = "NVML has no sample of it"
    try:
        for sample in nvml.nvmlDeviceGetProcessUtilization(card, 0):
            if 0 <= sample.smUtil <= 100:
                loads[sample.pid] = sample.smUtil / 100
    except nvml.NVMLError as error:
        if error.value == Code.GPU_IS_LOST:
            raise
        if error.value != Code.NOT_FOUND:  # nothing has run lately
            refused = _refusal(error)
    found = []
    for pid, held in memory.items():
        name, load = names(pid), loads.get(pid)
        unknown = {}
        if name is None:
            unknown["name"] = "it has ended, or runs in another container"
        if held is None:
            unknown["memory"] = "NVML does not tell it here"
        if load is None:
            unknown["load"] = refused
        found.append(ProcessUsage(pid=pid, name=name, memory=held, load=load, unknown=unknown))
    return tuple(sorted(found, key=lambda each: (-(each.load or 0.0), -(each.memory or 0), each.pid)))


@contextlib.contextmanager
def nvml_session(nvml: Any) -> Iterator[Any]:
    """NVML between its beginning and its end; both cost milliseconds, so a session is kept by whoever looks often."""
    nvml.nvmlInit()
    try:
        yield nvml
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()
