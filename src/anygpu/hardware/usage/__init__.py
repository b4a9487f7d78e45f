"""What cards are doing at the moment: memory, load, temperature, power, clocks, throttling, and whose processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

#: The processes that have a device open, by its id.
WorkerProcesses = Callable[[str], Iterable[int]]


def _nobody(device: str) -> Iterable[int]:
    return ()


#: Set by the registry of devices, which is in a layer above.
worker_processes: WorkerProcesses = _nobody
