"""Opens the worker of a device, in a thread or in a child process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from anygpu.base.units import bytes_from
from anygpu.engines.catalogue import EngineEntry
from anygpu.engines.isolation import ISOLATIONS_HERE, Isolation
from anygpu.errors import InvalidOption
from anygpu.hardware.device import Device
from anygpu.workers.worker import Worker

if TYPE_CHECKING:
    from anygpu.workers.child_process import Child

ISOLATION = "ANYGPU_ISOLATION"
MEMORY = "ANYGPU_MEMORY"


def isolation_of(entry: EngineEntry, isolation: Isolation | None = None) -> Isolation:
    """Where a worker of that engine lives: as asked, as the variable says, or as suits the engine."""
    wanted = isolation or os.environ.get(ISOLATION) or entry.traits.isolation
    for known in ISOLATIONS_HERE:
        if wanted == known:
            return known
    source = "isolation=" if isolation else f"the variable {ISOLATION}"
    raise InvalidOption(f'{source} is "thread" or "process"; got {wanted!r}.')


def default_budget() -> int | None:
    """The most bytes of a device's memory that anygpu may take, as the variable says; `None` for no limit."""
    text = os.environ.get(MEMORY)
    if not text:
        return None
    budget = bytes_from(text)
    if budget is None:
        raise InvalidOption(f'{MEMORY} is a number of bytes such as "2GB", "512MiB" or "4096"; got {text!r}.')
    return budget


def open_worker(
    entry: EngineEntry,
    device: Device,
    *,
    isolation: Isolation | None = None,
    generation: int = 1,
    budget: int | None = None,
    adopted: Child | None = None,
) -> Worker:
    """The device, open. `adopted` is the child that verified it, which becomes its worker if it is to live in one."""
    budget = default_budget() if budget is None else budget
    if isolation_of(entry, isolation) == "process":
        from anygpu.workers.process import ProcessWorker

        if adopted is not None and adopted.link is not None and adopted.process.poll() is None:
            return ProcessWorker(adopted, entry, device, generation=generation, budget=budget)
        return ProcessWorker.start(entry, device, generation=generation, budget=budget)
    from anygpu.workers.executor import open_engine
    from anygpu.workers.thread import ThreadWorker

    if adopted is not None:
        adopted.kill()
        adopted.close()
    return ThreadWorker(open_engine(entry, device, budget), device, generation=generation)
