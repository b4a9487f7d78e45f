"""Every resource, and every composition that means something, over a memory that tests can see into."""

from __future__ import annotations

from anygpu.engines.memory import (
    DeviceMemory,
    Fenced,
    Limit,
    OnFailure,
    Pool,
    Resource,
    Stats,
    Timeline,
    eager,
    lazy,
    pooled,
    reclaim,
)
from anygpu.testing import FakeMemory, ManualClock
from anygpu.testing.resources import Wrap

BUDGET = 64 << 20
#: Small enough that pools throw things out in every test.
KEEP = 1 << 20


def fenced(resource: Resource) -> Fenced:
    """Over a device that is always one submission behind, until somebody waits for it."""
    timeline = Timeline(lambda: None)
    timeline.submit()
    return Fenced(resource, timeline, batch_blocks=3)


def device_memory(memory: FakeMemory) -> DeviceMemory:
    return DeviceMemory(memory.allocate, memory.release)


def pool(resource: Resource) -> Pool:
    return Pool(resource, keep_bytes=KEEP, idle_seconds=10.0, clock=ManualClock())


def retrying(resource: Resource) -> OnFailure:
    return OnFailure(resource, lambda nbytes, last: reclaim(resource))


def _lazy(memory: FakeMemory) -> Resource:
    timeline = Timeline(lambda: None)
    timeline.submit()
    return lazy(memory, timeline, device="fake", budget=BUDGET, batch_bytes=4096)


COMPOSITIONS: dict[str, Wrap] = {
    "the fake itself": lambda memory: memory,
    "device": device_memory,
    "pool": pool,
    "limit": lambda memory: Limit(memory, BUDGET, device="fake"),
    "stats": Stats,
    "on failure": retrying,
    "fenced": fenced,
    "limit over pool": lambda memory: Limit(pool(memory), BUDGET, device="fake"),
    "pool over limit": lambda memory: pool(Limit(memory, BUDGET, device="fake")),
    "fenced over pool": lambda memory: fenced(pool(memory)),
    "pool over fenced": lambda memory: pool(fenced(memory)),
    "stats below and above a pool": lambda memory: Stats(pool(Stats(memory))),
    "eager": lambda memory: eager(device_memory(memory), device="fake"),
    "lazy": _lazy,
    "pooled": lambda memory: pooled(device_memory(memory), device="fake", keep_bytes=KEEP),
    "pooled within a budget": lambda memory: pooled(memory, device="fake", budget=BUDGET, keep_bytes=KEEP),
}
