"""Looks at cards again and again: loads and powers that are counters are those since the last look."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from anygpu.base.this_process import usable_processors
from anygpu.base.units import readable_seconds
from anygpu.hardware import host
from anygpu.hardware import usage as package
from anygpu.hardware.device import Device
from anygpu.hardware.nvidia import REFUSALS, NvmlCode, nvml_library
from anygpu.hardware.sysfs import folders, read_number, read_text
from anygpu.hardware.usage import WorkerProcesses, linux_cards
from anygpu.hardware.usage.usage import NO_SECOND_LOOK, ProcessUsage, Readings, Usage, UsageDocument, gone, share

# -- NVIDIA's cards, through NVML. One reading that a card refuses costs that reading, not the card


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
        if error.value == NvmlCode.GPU_IS_LOST:
            return gone(card_id, "nvml", "the machine has lost its connection to the card (fallen off the bus)")
        return gone(card_id, "nvml", _refusal(error))
    return found.usage(card_id, "nvml", "the driver did not say")


def _ask(nvml: Any, found: Readings, name: str, ask: Callable[[], object]) -> None:
    """Adds what NVML answers, or why it does not; raises only if the card is lost."""
    try:
        found.add(name, ask(), "the driver's answer is empty")
    except nvml.NVMLError as error:
        if error.value == NvmlCode.GPU_IS_LOST:
            raise
        found.lack(_refusal(error), name)


def _refusal(error: Any) -> str:
    return REFUSALS.get(error.value, f"NVML reports error {error.value} ({error})")


def _reasons(bits: int) -> tuple[str, ...]:
    if bits & 0xC0:
        bits &= ~0x08  # the others say why the hardware slows it down
    return tuple(dict.fromkeys(words for bit, words in _THROTTLE_REASONS.items() if bits & bit))


def _processes(nvml: Any, card: Any, names: Callable[[int], str | None]) -> tuple[ProcessUsage, ...]:
    """The processes that use a card, with their memory and load where NVML knows them."""
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
        if error.value == NvmlCode.GPU_IS_LOST:
            raise
        if error.value != NvmlCode.NOT_FOUND:  # nothing has run lately
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


# -- the processor, and what is software on it: by the counters of the system and of single processes


#: Sensors of processors, by the names of their drivers: Intel, AMD, and most of the others.
_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")


class ProcessorCounters(NamedTuple):
    """Counters of processor time at one moment."""

    seconds: float
    #: Seconds of all processors, and those in which they had something to do; `None` where the system does not tell.
    whole: float | None
    busy: float | None
    #: Seconds of the processors by process, of those that were asked for and are still there.
    processes: dict[int, float]


def read_counters(
    processes: Iterable[int] = (), *, root: Path = Path("/"), clock: float | None = None
) -> ProcessorCounters:
    """The processor time of the machine and of these processes so far; loads are differences of two of them."""
    whole = busy = None
    words = (read_text(root / "proc/stat").value or "").partition("\n")[0].split()
    if len(words) >= 6 and words[0] == "cpu" and all(word.isdecimal() for word in words[1:]):
        # What guests have had is in the time of the users already.
        times = [int(word) for word in words[1:9]]
        whole, busy = float(sum(times)), float(sum(times) - times[3] - times[4])
    taken = {}
    for pid in processes:
        seconds = _processor_seconds(root / "proc" / str(pid) / "stat")
        if seconds is not None:
            taken[pid] = seconds
    return ProcessorCounters(time.monotonic() if clock is None else clock, whole, busy, taken)


def read_processor(before: ProcessorCounters | None, after: ProcessorCounters, *, root: Path = Path("/")) -> Usage:
    """The processor of this machine."""
    found = Readings()
    total = host.memory_total()
    found.add("memory_total", total)
    found.add("memory_used", max(0, total - host.memory_free()))
    if after.whole is None or after.busy is None:
        found.lack("the system does not tell it", "load")
    elif before is None or before.whole is None or before.busy is None:
        found.lack(NO_SECOND_LOOK, "load")
    else:
        found.add("load", share(after.busy - before.busy, after.whole - before.whole), "two looks were too close")
    found.add("temperature", _temperature(root), "no driver of a sensor is loaded")
    found.lack("only root may read the processor's counter of energy", "power", "power_limit")
    _add_clocks(found, root)
    found.lack("Linux does not tell whether the processor is throttled", "throttled")
    found.lack("every process uses the processor; `top` lists them", "processes")
    return found.usage("cpu", "proc", "the system does not tell it")


def read_software(
    device: str,
    workers: Iterable[int],
    before: ProcessorCounters | None,
    after: ProcessorCounters,
    *,
    root: Path = Path("/"),
) -> Usage:
    """A device that is software: what its worker processes take of the processors."""
    found, processes, load = Readings(), [], 0.0
    resident = 0
    for pid in workers:
        taken, then = after.processes.get(pid), None if before is None else before.processes.get(pid)
        if taken is None:
            continue  # it has ended
        part = None
        if then is not None and before is not None:
            part = share((taken - then) / usable_processors(), after.seconds - before.seconds)
        unknown = {} if part is not None else {"load": NO_SECOND_LOOK}
        memory = _resident(root / "proc" / str(pid) / "statm")
        name = read_text(root / "proc" / str(pid) / "comm").value
        if memory is None:
            unknown["memory"] = "it has ended meanwhile"
        if name is None:
            unknown["name"] = "it has ended meanwhile"
        load += part or 0.0
        resident += memory or 0
        processes.append(ProcessUsage(pid=pid, name=name, memory=memory, load=part, unknown=unknown))
    if not processes:
        found.lack("it is software, and no worker process has it open", "load", "memory_used", "processes")
    else:
        found.add("processes", tuple(processes))
        found.add("memory_used", resident)
        known = all(each.load is not None for each in processes)
        found.add("load", min(1.0, load) if known else None, NO_SECOND_LOOK)
    found.add("memory_total", host.memory_total())
    reason = "it is software on the processor"
    found.lack(reason, "temperature", "power", "power_limit", "clock", "clock_limit", "throttled")
    return found.usage(device, "worker", reason)


def process_name(pid: int, root: Path = Path("/")) -> str | None:
    return read_text(root / "proc" / str(pid) / "comm").value


def _processor_seconds(file: Path) -> float | None:
    """Returns the processor time of a process in seconds, from its stat file; `None` if it has ended."""
    # A name may have blanks and brackets in it: what follows the last bracket is numbers.
    words = (read_text(file).value or "").rpartition(")")[2].split()
    try:
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    except (IndexError, ValueError):
        return None


def _resident(file: Path) -> int | None:
    with contextlib.suppress(IndexError, ValueError):
        return int((read_text(file).value or "").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return None


def _temperature(root: Path) -> float | None:
    """Returns the processor's temperature in °C from the first sensor that is known to be its own."""
    for sensor in folders(root / "sys/class/hwmon", "hwmon[0-9]*"):
        if read_text(sensor / "name").value in _SENSORS:
            degrees = read_number(sensor / "temp1_input").value
            if degrees is not None:
                return degrees / 1e3
    return None


def _add_clocks(found: Readings, root: Path) -> None:
    """Adds the highest clock of the processor's cores, now and at most, in hertz."""
    places = folders(root / "sys/devices/system/cpu", "cpu[0-9]*/cpufreq")
    reason = "the system does not tell the processor's clock"
    for name, file in (("clock", "scaling_cur_freq"), ("clock_limit", "cpuinfo_max_freq")):
        known = [value for place in places if (value := read_number(place / file).value) is not None]
        found.add(name, max(known) * 1e3 if known else None, reason)


#: NVML may block for ever on a broken card.
PATIENCE = 2.0


class UsageReader:
    """Reads the use of devices since the last reading. For one thread at a time."""

    def __init__(
        self, *, root: Path = Path("/"), nvml: Any = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Takes no reading yet. `root` is where /proc and /sys are, and `nvml` replaces NVIDIA's bindings in tests."""
        self._root = root
        self._clock = clock
        self._nvidia = _Nvidia(nvml)
        self._counters: ProcessorCounters | None = None
        self._clients: tuple[float, list[linux_cards.Client]] | None = None
        self._energy: dict[str, linux_cards.Energy] = {}

    def read(self, devices: Sequence[Device], workers: WorkerProcesses | None = None) -> dict[str, Usage]:
        """By the devices' ids; devices of one card have the same record. `workers` are the processes of a device."""
        workers = package.worker_processes if workers is None else workers
        opened = {device.id: tuple(workers(device.id)) for device in devices if device.software}
        before, after = self._counters, self._read_counters(opened)
        cards: dict[str, Usage] = {}
        found: dict[str, Usage] = {}
        clients: tuple[float, list[linux_cards.Client]] | None = None
        for device in devices:
            if device.software:
                found[device.id] = read_software(device.id, opened[device.id], before, after, root=self._root)
                continue
            card = device.card or device.id
            if card not in cards:
                vendor = card.partition(":")[0]
                if device.kind == "cpu":
                    cards[card] = read_processor(before, after, root=self._root)
                elif vendor == "nvidia":
                    cards[card] = self._nvidia.read(int(card.partition(":")[2]), self._name)
                elif vendor in ("amd", "intel") and device.pci is not None:
                    if clients is None:
                        clients = self._clock(), linux_cards.read_clients(self._root)
                    cards[card] = self._read_linux(vendor, card, device.pci, clients)
                else:
                    cards[card] = gone(card, device.engine, f"{device.api} does not tell what a device is doing")
            found[device.id] = cards[card]
        if clients is not None:
            self._clients = clients
        return found

    def _name(self, pid: int) -> str | None:
        return process_name(pid, self._root)

    def _read_counters(self, opened: dict[str, tuple[int, ...]]) -> ProcessorCounters:
        processes = [pid for pids in opened.values() for pid in pids]
        self._counters = read_counters(processes, root=self._root, clock=self._clock())
        return self._counters

    def _read_linux(self, vendor: str, card: str, pci: str, looked: tuple[float, list[linux_cards.Client]]) -> Usage:
        """The use of an AMD or Intel card; loads and powers are those since the last reading."""
        now, clients = looked
        then, earlier = self._clients if self._clients is not None else (now, None)
        if vendor == "amd":
            found = linux_cards.read_amd(self._root, pci)
        else:
            energy = linux_cards.intel_energy(self._root, pci, now)
            found = linux_cards.read_intel(self._root, pci, self._energy.get(card), energy)
            self._energy[card] = energy
            busy = linux_cards.busiest_engine(pci, earlier, clients, now - then)
            found.add(
                "load", busy, "Intel's driver tells it only of processes, and none that this user may see has run"
            )
        if not (self._root / "sys/bus/pci/devices" / pci).exists():
            return gone(card, "sysfs", "the card has vanished from the bus")
        names = {client.pid: self._name(client.pid) for client in clients if client.pci == pci}
        found.add("processes", linux_cards.processes_of(pci, earlier, clients, now - then, names))
        return found.usage(card, "sysfs", "the driver does not tell it")


class _Nvidia:
    """NVML in a thread of its own, so that a call that never returns costs the readings and nothing else."""

    def __init__(self, nvml: Any) -> None:
        """Starts no thread yet; `_open` counts the questions that have no answer."""
        self._nvml = nvml
        self._questions: queue.SimpleQueue[tuple[int, Callable[[int], str | None]]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Usage] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        #: How many questions have no answer yet.
        self._open = 0

    def read(self, index: int, names: Callable[[int], str | None]) -> Usage:
        """The use of a card by NVML, which is asked on a thread of its own: a driver that hangs costs `PATIENCE`
        seconds.
        """
        card = f"nvidia:{index}"
        if self._thread is None:
            self._thread = threading.Thread(target=self._answer, name="anygpu: NVML", daemon=True)
            self._thread.start()
        silent = gone(card, "nvml", f"NVML has not answered within {readable_seconds(PATIENCE)}")
        if self._open:
            # An answer that came too late is of no use; one that is still missing blocks all others.
            if self._answers.empty():
                return silent
            self._answers.get()
            self._open -= 1
        self._open += 1
        self._questions.put((index, names))
        try:
            answer = self._answers.get(timeout=PATIENCE)
        except queue.Empty:
            return silent
        self._open -= 1
        return answer

    def _answer(self) -> None:
        """The thread: answers questions within one session of NVML, or why NVML cannot be used. It never ends."""
        nvml = self._nvml
        if nvml is None:
            nvml = nvml_library()
        try:
            with nvml_session(nvml):
                while True:
                    self._answers.put(read_nvidia(nvml, *self._questions.get()))
        except nvml.NVMLError as error:
            while True:
                index, _ = self._questions.get()
                self._answers.put(gone(f"nvidia:{index}", "nvml", f"NVML cannot be used: {error}"))


def read_twice(devices: Sequence[Device], seconds: float) -> UsageDocument:
    """Two looks, so many seconds apart."""
    reader = UsageReader()
    reader.read(devices)
    time.sleep(seconds)
    return UsageDocument(seconds=seconds, usage=reader.read(devices))
