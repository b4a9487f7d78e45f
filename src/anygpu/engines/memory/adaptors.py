"""Adaptors of memory resources (a budget, retries, counts by owner), and three strategies composed of them."""

from __future__ import annotations

import gc
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable

import msgspec

from anygpu.engines.memory.pool import Fence, Fenced, Pool
from anygpu.engines.memory.resource import Block, Resource, not_ours, reclaim, refuse_negative
from anygpu.errors import AllocationError, OutOfMemory, OverBudget


class Limit:
    """Raises `OverBudget` instead of letting more than `budget` bytes be out. Counts whole blocks, not what was asked.

    Below a pool it bounds what the device gives, idle blocks included; above one, what is in use.
    """

    def __init__(self, upstream: Resource, budget: int, *, device: str) -> None:
        """At most `budget` bytes at once from upstream, counted as what blocks really have."""
        refuse_negative(budget)
        self._upstream = upstream
        self._budget = budget
        self._device = device
        self._lock = threading.Lock()
        self._live: dict[Block, int] = {}
        self._used = 0
        #: Released bytes, subtracted from `_used` at the next look.
        self._returned: deque[int] = deque()

    @property
    def upstream(self) -> Resource:
        return self._upstream

    @property
    def budget(self) -> int:
        return self._budget

    @property
    def used(self) -> int:
        """Bytes that are allocated, or being allocated."""
        with self._lock:
            return self._count(0)

    def allocate(self, nbytes: int, *, owner: str | None = None) -> Block:
        """A block from upstream.

        Raises `OverBudget` where it does not fit; what upstream raises leaves the count as it was.
        """
        refuse_negative(nbytes)
        # Counted before the allocation, so that two threads cannot both get the last bytes.
        self._reserve(nbytes, nbytes)
        try:
            block = self._upstream.allocate(nbytes, owner=owner)
        except BaseException:
            self._returned.append(nbytes)
            raise
        if block.nbytes != nbytes:
            try:
                self._reserve(block.nbytes - nbytes, nbytes)
            except OverBudget:
                self._returned.append(nbytes)
                self._upstream.release(block)
                raise
        self._live[block] = block.nbytes
        return block

    def release(self, block: Block) -> None:
        """Give a block back. It counts as free even if upstream fails. Raises for blocks that are not from here."""
        nbytes = self._live.pop(block, None)
        if nbytes is None:
            raise not_ours(block, self)
        # The inner resource first: the budget must not be free before the memory is.
        try:
            self._upstream.release(block)
        finally:
            self._returned.append(nbytes)

    def _reserve(self, nbytes: int, requested: int) -> None:
        """Count bytes in advance, so that two threads cannot both have the last of them. Raises `OverBudget`."""
        with self._lock:
            fits = self._count(0) + nbytes <= self._budget
            if fits:
                self._count(nbytes)
        if not fits:
            raise OverBudget(self._device, requested, self._budget)

    def _count(self, change: int) -> int:
        """The bytes that are used after a change; call it with the lock held."""
        while self._returned:
            self._used -= self._returned.popleft()
        self._used += change
        return self._used


# -- retries of failed allocations


#: Retries of one allocation before its error is raised.
RETRIES = 2

#: Called with the bytes that could not be allocated, and whether this is the last try; returns whether it freed any.
Free = Callable[[int, bool], bool]


class OnFailure:
    """Calls `free` when the resource below has no memory now, and tries again if that returns true.

    At most twice, and only once the error is dropped together with the frames that it holds: they are what keeps
    alive the very arrays whose memory is needed. `TooBig` is not a failure of that kind: freeing does not help.
    """

    def __init__(
        self,
        upstream: Resource,
        free: Free,
        *,
        on: type[AllocationError] | tuple[type[AllocationError], ...] = OutOfMemory,
    ) -> None:
        """Try again after `free` has freed something, where upstream fails with one of the errors `on`."""
        self._upstream = upstream
        self._free = free
        self._on = on
        #: Threads that are freeing memory: a failed allocation of these must not be retried, or it would recurse.
        self._freeing: set[int] = set()

    @property
    def upstream(self) -> Resource:
        return self._upstream

    def allocate(self, nbytes: int, *, owner: str | None = None) -> Block:
        """A block from upstream, at the first try or after something was freed.

        The last failure is raised without its frames: these would keep arrays alive that are to be freed.
        """
        try:
            return self._upstream.allocate(nbytes, owner=owner)
        except self._on as error:
            failure = _without_frames(error)
        # Here and not in the except block: there the interpreter itself would hold the error.
        try:
            for retry in range(1, RETRIES + 1):
                if not self._freed(nbytes, retry == RETRIES):
                    break
                try:
                    return self._upstream.allocate(nbytes, owner=owner)
                except self._on as error:
                    failure = _without_frames(error)
            raise failure
        finally:
            # The error holds this frame now: without this, each would keep the other alive.
            del failure

    def release(self, block: Block) -> None:
        self._upstream.release(block)

    def _freed(self, nbytes: int, last: bool) -> bool:
        """Whether something was freed; never while this thread is already freeing, which allocates as well."""
        me = threading.get_ident()
        if me in self._freeing:
            return False
        self._freeing.add(me)
        try:
            return self._free(nbytes, last)
        finally:
            self._freeing.discard(me)


def _without_frames(error: AllocationError) -> AllocationError:
    """Drop the tracebacks of the error and its causes, which keep arrays alive."""
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        traceback.clear_frames(link.__traceback__)
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error


# -- counts by owner


#: The owner of a block without one.
UNOWNED = "unowned"

#: Changes that are queued before they are added up.
_ADD_UP_AT = 256


class Held(msgspec.Struct, frozen=True):
    """The allocations of one owner."""

    blocks: int = 0
    bytes: int = 0


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot. Bytes are those of whole blocks."""

    blocks: int
    bytes: int
    #: Since creation, or since `reset_peak`.
    peak_bytes: int
    #: All allocations so far.
    total_blocks: int
    total_bytes: int
    #: Owners with allocations only.
    by_owner: dict[str, Held]


class Stats:
    """Counts allocations. As the outermost layer it sees owners; below a pool, the device's allocations."""

    def __init__(self, upstream: Resource) -> None:
        """Count the blocks and bytes that are held, in all and by owner."""
        self._upstream = upstream
        self._lock = threading.Lock()
        self._live: dict[Block, str] = {}
        #: Owners and bytes, negative for a release, in order. Only adding them up needs the lock.
        self._changes: deque[tuple[str, int]] = deque()
        self._bytes = 0
        self._peak_bytes = 0
        self._total_blocks = 0
        self._total_bytes = 0
        #: Blocks and bytes.
        self._by_owner: dict[str, list[int]] = {}

    @property
    def upstream(self) -> Resource:
        return self._upstream

    def allocate(self, nbytes: int, *, owner: str | None = None) -> Block:
        """A block from upstream, noted for its owner. Changes are added up later, without a lock for each."""
        block = self._upstream.allocate(nbytes, owner=owner)
        name = UNOWNED if owner is None else owner
        self._live[block] = name
        self._changes.append((name, block.nbytes))
        if len(self._changes) >= _ADD_UP_AT:
            with self._lock:
                self._add_up()
        return block

    def release(self, block: Block) -> None:
        """Give a block back. Raises for blocks that are not from here."""
        name = self._live.pop(block, None)
        if name is None:
            raise not_ours(block, self)
        # Before the block is passed on: its next owner must not be counted beside the last one.
        self._changes.append((name, -block.nbytes))
        self._upstream.release(block)

    def snapshot(self) -> Snapshot:
        """The counts at this moment."""
        with self._lock:
            self._add_up()
            return Snapshot(
                blocks=sum(blocks for blocks, _ in self._by_owner.values()),
                bytes=self._bytes,
                peak_bytes=self._peak_bytes,
                total_blocks=self._total_blocks,
                total_bytes=self._total_bytes,
                by_owner={owner: Held(*held) for owner, held in self._by_owner.items()},
            )

    def reset_peak(self) -> None:
        """Reset `peak_bytes` to the bytes allocated now."""
        with self._lock:
            self._add_up()
            self._peak_bytes = self._bytes

    def _add_up(self) -> None:
        """Add the noted changes to the counts; call it with the lock held."""
        while self._changes:
            owner, nbytes = self._changes.popleft()
            held = self._by_owner.get(owner)
            if held is None:
                held = self._by_owner[owner] = [0, 0]
            self._bytes += nbytes
            held[1] += nbytes
            if nbytes > 0:
                held[0] += 1
                self._total_blocks += 1
                self._total_bytes += nbytes
                if self._bytes > self._peak_bytes:
                    self._peak_bytes = self._bytes
            else:
                held[0] -= 1
        # Owners without allocations are forgotten: there may be a new one for every call.
        self._by_owner = {owner: held for owner, held in self._by_owner.items() if held[0]}


# -- three memory strategies
#
# Each a composition of resources over the device's own.
#
# All of them count by owner outermost, keep to a budget, and try again after giving back what is held unused.


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
    """The resource with statistics, and with freeing and trying again where memory runs out."""

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
