"""Looks at cards again and again: loads and powers that are counters are those since the last look."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from anygpu.base.units import readable_seconds
from anygpu.hardware import usage as package
from anygpu.hardware.device import Device
from anygpu.hardware.nvidia import nvml_library
from anygpu.hardware.usage import WorkerProcesses, drm_clients, linux_cards, processor
from anygpu.hardware.usage.nvidia_cards import nvml_session, read_nvidia
from anygpu.hardware.usage.usage import Usage, UsageDocument, gone

#: NVML may block for ever on a broken card.
PATIENCE = 2.0


class UsageReader:
    """Reads the use of devices since the last reading. For one thread at a time."""

    def __init__(
        self, *, root: Path = Path("/"), nvml: Any = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._root = root
        self._clock = clock
        self._nvidia = _Nvidia(nvml)
        self._counters: processor.Counters | None = None
        self._clients: tuple[float, list[drm_clients.Client]] | None = None
        self._energy: dict[str, linux_cards.Energy] = {}

    def read(self, devices: Sequence[Device], workers: WorkerProcesses | None = None) -> dict[str, Usage]:
        """By the devices' ids; devices of one card have the same record. `workers` are the processes of a device."""
        workers = package.worker_processes if workers is None else workers
        opened = {device.id: tuple(workers(device.id)) for device in devices if device.software}
        before, after = self._counters, self._read_counters(opened)
        cards: dict[str, Usage] = {}
        found: dict[str, Usage] = {}
        clients: tuple[float, list[drm_clients.Client]] | None = None
        for device in devices:
            if device.software:
                found[device.id] = processor.read_software(device.id, opened[device.id], before, after, root=self._root)
                continue
            card = device.card or device.id
            if card not in cards:
                vendor = card.partition(":")[0]
                if device.kind == "cpu":
                    cards[card] = processor.read_processor(before, after, root=self._root)
                elif vendor == "nvidia":
                    cards[card] = self._nvidia.read(int(card.partition(":")[2]), self._name)
                elif vendor in ("amd", "intel") and device.pci is not None:
                    if clients is None:
                        clients = self._clock(), drm_clients.read_clients(self._root)
                    cards[card] = self._read_linux(vendor, card, device.pci, clients)
                else:
                    cards[card] = gone(card, device.engine, f"{device.api} does not tell what a device is doing")
            found[device.id] = cards[card]
        if clients is not None:
            self._clients = clients
        return found

    def _name(self, pid: int) -> str | None:
        return processor.process_name(pid, self._root)

    def _read_counters(self, opened: dict[str, tuple[int, ...]]) -> processor.Counters:
        processes = [pid for pids in opened.values() for pid in pids]
        self._counters = processor.read_counters(processes, root=self._root, clock=self._clock())
        return self._counters

    def _read_linux(self, vendor: str, card: str, pci: str, looked: tuple[float, list[drm_clients.Client]]) -> Usage:
        now, clients = looked
        then, earlier = self._clients if self._clients is not None else (now, None)
        if vendor == "amd":
            found = linux_cards.read_amd(self._root, pci)
        else:
            energy = linux_cards.intel_energy(self._root, pci, now)
            found = linux_cards.read_intel(self._root, pci, self._energy.get(card), energy)
            self._energy[card] = energy
            busy = drm_clients.busiest_engine(pci, earlier, clients, now - then)
            found.add(
                "load", busy, "Intel's driver tells it only of processes, and none that this user may see has run"
            )
        if not (self._root / "sys/bus/pci/devices" / pci).exists():
            return gone(card, "sysfs", "the card has vanished from the bus")
        names = {client.pid: self._name(client.pid) for client in clients if client.pci == pci}
        found.add("processes", drm_clients.processes_of(pci, earlier, clients, now - then, names))
        return found.usage(card, "sysfs", "the driver does not tell it")


class _Nvidia:
    """NVML in a thread of its own, so that a call that never returns costs the readings and nothing else."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._questions: queue.SimpleQueue[tuple[int, Callable[[int], str | None]]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Usage] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        #: How many questions have no answer yet.
        self._open = 0

    def read(self, index: int, names: Callable[[int], str | None]) -> Usage:
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
