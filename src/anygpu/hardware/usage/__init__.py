"""The use of cards at the moment: memory, load, temperature, power, clocks, throttling, and processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

#: The processes that have a device open, by its id.
WorkerProcesses = Callable[[str], Iterable[int]]


def _no_workers(device: str) -> Iterable[int]:
    return ()


#: Set by the registry of devices, which is in a layer above.
worker_processes: WorkerProcesses = _no_workers
