"""Three memory strategies, each a composition of resources over the device's own.

All of them count by owner outermost, keep to a budget, and try again after giving back what is held unused.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

from anygpu.errors import OutOfMemory, OverBudget
from anygpu.memory.adaptors import Limit, OnFailure, Stats
from anygpu.memory.fence import Fence, Fenced
from anygpu.memory.pool import Pool
from anygpu.memory.resource import Resource, reclaim

#: Called with the missing bytes: evicts arrays that can be restored; returns whether there were any.
Evict = Callable[[int], bool]

#: Default for the idle bytes of a pool; engines pass a value that fits their device.
KEEP_BYTES = 256 << 20


def eager(memory: Resource, *, device: str, budget: int | None = None, evict: Evict | None = None) -> Stats:
    """Blocks are allocated and freed immediately: the least memory, and the slowest.

    For devices with little memory, and to find out whether a fault has to do with reuse.
    """
    return _finished(_within(memory, budget, device), evict)


def lazy(
    memory: Resource,
    fence: Fence,
    *,
    device: str,
    budget: int | None = None,
    evict: Evict | None = None,
    batch_bytes: int = 16 << 20,
    hold_bytes: int = 256 << 20,
) -> Stats:
    """Blocks are freed in batches, once the device is done with what was submitted before their release.

    For libraries in which freeing waits for the device, or must not happen while it uses the memory.
    """
    limited = _within(memory, budget, device)
    return _finished(Fenced(limited, fence, batch_bytes=batch_bytes, hold_bytes=hold_bytes), evict)


def pooled(
    memory: Resource,
    *,
    device: str,
    budget: int | None = None,
    evict: Evict | None = None,
    keep_bytes: int = KEEP_BYTES,
    idle_seconds: float = 60.0,
    clock: Callable[[], float] = time.monotonic,
) -> Stats:
    """Blocks are kept for reuse: the default. The budget bounds idle blocks as well."""
    limited = _within(memory, budget, device)
    return _finished(Pool(limited, keep_bytes=keep_bytes, idle_seconds=idle_seconds, clock=clock), evict)


def _within(memory: Resource, budget: int | None, device: str) -> Resource:
    return memory if budget is None else Limit(memory, budget, device=device)


def _finished(resource: Resource, evict: Evict | None) -> Stats:
    def free(nbytes: int, last: bool) -> bool:
        """Free cached blocks first, then arrays in dead cycles, then arrays that would have to be restored.

        One of them at the first try, if it helps; at the last one all of them.
        """
        freed = reclaim(resource)
        if last or not freed:
            freed |= collect()
        if evict is not None and (last or not freed):
            freed |= evict(nbytes)
        # The released memory may be in a pool, in blocks of another size.
        reclaim(resource)
        return freed

    def collect() -> bool:
        before = stats.snapshot().bytes
        gc.collect()
        return stats.snapshot().bytes < before

    stats = Stats(OnFailure(resource, free, on=(OutOfMemory, OverBudget)))
    return stats
