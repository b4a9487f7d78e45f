"""Released memory: held back until the device has finished with it, then kept for reuse."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Protocol

import msgspec

from anygpu.engines.memory.resource import Block, Resource, finish, not_ours, refuse_negative, release_all
from anygpu.errors import InvalidOption

# -- holds released memory back until the device has finished with it


class Fence(Protocol):
    """The progress of a device. Submissions are numbered from 1."""

    @property
    def submitted(self) -> int:
        """The number of the last submission. Called on any thread; never waits."""

    @property
    def completed(self) -> int:
        """The last submission that is known to be done, with all before it. Called on any thread; never waits."""

    def wait(self) -> None:
        """Wait until everything that was submitted is done. Only called by `allocate` and `reclaim`."""


class Timeline:
    """A fence for a device that can only be waited for: its engine reports submissions and completions."""

    def __init__(self, synchronize: Callable[[], object]) -> None:
        """A count of submissions, and of those that are known to be complete after `synchronize`."""
        self._synchronize = synchronize
        self.submitted = 0
        self.completed = 0

    def submit(self) -> int:
        """Record a submission; returns its number."""
        self.submitted += 1
        return self.submitted

    def finish(self, number: int | None = None) -> None:
        """Record that a submission, or all of them, is done: after a read that waited, for example."""
        self.completed = max(self.completed, self.submitted if number is None else number)

    def wait(self) -> None:
        """Wait until all that was submitted so far is complete."""
        number = self.submitted
        self._synchronize()
        self.finish(number)


class Fenced:
    """Passes a released block on only when the device has done everything that was submitted before its release.

    What is ready goes down in batches, when `batch_bytes` of it have come together. Around a pool it makes reuse wait,
    as memory needs that the host maps or that a second queue uses; around the device it makes freeing wait, for
    libraries that do not keep alive themselves what their queue still needs. When more than `hold_bytes` are held
    back, the next `allocate` waits for the device.

    Code that has recorded work and not submitted it yet must keep its blocks: `Fence.submitted` does not count it.
    """

    def __init__(
        self,
        upstream: Resource,
        fence: Fence,
        *,
        batch_bytes: int = 16 << 20,
        batch_blocks: int = 64,
        hold_bytes: int = 256 << 20,
    ) -> None:
        """Hold blocks back until the device has passed what was submitted before their release.

        The fence is asked after so many bytes or blocks, and waited for beyond `hold_bytes`.
        """
        self._upstream = upstream
        self._fence = fence
        self._batch_bytes = batch_bytes
        self._batch_blocks = batch_blocks
        self._hold_bytes = hold_bytes
        self._lock = threading.Lock()
        self._live: dict[Block, int] = {}
        self._returned: deque[tuple[int, Block]] = deque()
        #: Blocks in order of release, each with the submission that it waits for.
        self._held: deque[tuple[int, Block]] = deque()
        self._held_bytes = 0
        self._leaving: deque[Block] = deque()

    @property
    def upstream(self) -> Resource:
        return self._upstream

    @property
    def held_bytes(self) -> int:
        """Released blocks that are held back."""
        with self._lock:
            self._take_in()
            held = self._held_bytes
        self._settle()
        return held

    def allocate(self, nbytes: int, *, owner: str | None = None) -> Block:
        """A block from upstream, after blocks that the device is done with were given back."""
        if self._returned or self._leaving:
            self._settle()
        if self._held_bytes > self._hold_bytes:
            self.reclaim()
        block = self._upstream.allocate(nbytes, owner=owner)
        self._live[block] = block.nbytes
        return block

    def release(self, block: Block) -> None:
        """Hold a block until the device has passed this moment. Raises for blocks that are not from here."""
        if self._live.pop(block, None) is None:
            raise not_ours(block, self)
        self._returned.append((self._fence.submitted, block))
        self._settle()

    def reclaim(self) -> int:
        """Wait for the device, and pass on everything that was released before."""
        with self._lock:
            self._take_in()
            waiting = bool(self._held) and self._held[-1][0] > self._fence.completed
        if waiting:
            self._fence.wait()
        with self._lock:
            given = self._let_go()
        self._settle()
        return given

    def _settle(self) -> None:
        finish(self._returned, self._hold, self._lock)
        release_all(self._leaving, self._upstream)

    # The caller of everything below must hold the lock.

    def _hold(self) -> None:
        """Take released blocks in, and ask the fence where there are many."""
        self._take_in()
        if self._held_bytes >= self._batch_bytes or len(self._held) >= self._batch_blocks:
            self._let_go()

    def _take_in(self) -> None:
        """Move released blocks to those that are held, and count their bytes."""
        while self._returned:
            held = self._returned.popleft()
            self._held.append(held)
            self._held_bytes += held[1].nbytes

    def _let_go(self) -> int:
        """Move the blocks that the fence has passed to those that leave; returns their bytes. The lock is held."""
        before = self._held_bytes
        completed = self._fence.completed
        while self._held and self._held[0][0] <= completed:
            _, block = self._held.popleft()
            self._held_bytes -= block.nbytes
            self._leaving.append(block)
        return before - self._held_bytes


# -- keeps released blocks for reuse
#
# Because an allocation costs more than most kernels.
#
# In the steady state a program gets *the very same blocks* at every call, so that what was bound to them (bind
# groups, kernel arguments) is still right. Therefore of several idle blocks of one size the one that was made first
# is taken, and not the one that came back last: the choice depends on which blocks are idle, never on the order in
# which finalizers happened to return them. It also leaves the younger blocks to expire when fewer are needed.
#
# A block is reused at once, though work that was submitted may still be using it. That is right where all work goes
# through one queue that keeps its order, as with WebGPU and with OpenCL queues that are in order: what the new owner
# submits, copies and writes from the host included, runs after what the old one submitted. It is wrong for memory
# that the host maps and touches by itself, and for a second queue: put `Fenced` around the pool for these.


#: The owner of memory below a pool: the pool itself, since its blocks are reused without the resource below knowing.
POOL = "pool"

#: Between two powers of two there are four sizes, so that at most a fifth of a block is unused.
_STEPS_LOG2 = 2

SMALLEST = 256
#: Larger blocks are not rounded up: a quarter of such a size is worth saving.
EXACT_FROM = 64 << 20


class PoolSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of a pool. `hits` and `misses` count from its creation."""

    live_blocks: int
    live_bytes: int
    idle_blocks: int
    idle_bytes: int
    hits: int
    misses: int


def bucket_size(nbytes: int, *, smallest: int = SMALLEST, exact_from: int = EXACT_FROM) -> int:
    """`nbytes` rounded up to the next of four sizes between two powers of two."""
    refuse_negative(nbytes)
    if nbytes <= smallest:
        return smallest
    if nbytes > exact_from:
        return nbytes
    shift = (nbytes - 1).bit_length() - 1 - _STEPS_LOG2
    return ((nbytes - 1 >> shift) + 1) << shift


class Pool:
    """Keeps up to `keep_bytes` of released blocks, each for `idle_seconds` at most.

    Expiry is checked when the pool is used, without a timer; idle code can call `expire`.
    """

    def __init__(
        self,
        upstream: Resource,
        *,
        keep_bytes: int,
        idle_seconds: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        smallest: int = SMALLEST,
        exact_from: int = EXACT_FROM,
    ) -> None:
        """Keep up to `keep_bytes` of released blocks for `idle_seconds`, by sizes that are rounded to buckets.

        Raises `InvalidOption` for numbers that make no sense.
        """
        if keep_bytes < 0 or idle_seconds <= 0 or smallest < 16:
            raise InvalidOption(
                f"a pool that keeps {keep_bytes} bytes for {idle_seconds} s in blocks of {smallest} bytes or more "
                "makes no sense: give keep_bytes of 0 or more, idle_seconds above 0, and smallest of 16 or more."
            )
        self._upstream = upstream
        self._keep_bytes = keep_bytes
        self._idle_seconds = idle_seconds
        self._clock = clock
        # A program asks for the same few sizes over and over.
        self._size_of = lru_cache(4096)(partial(bucket_size, smallest=smallest, exact_from=exact_from))
        self._lock = threading.Lock()
        self._live: dict[Block, int] = {}
        #: Released blocks that are not on the shelf yet.
        self._returned: deque[tuple[Block, int]] = deque()
        #: Blocks off the shelf, to be released to the resource below.
        self._leaving: deque[Block] = deque()
        #: By number, in the order in which they became idle: the block, its size, and since when.
        self._idle: OrderedDict[int, tuple[Block, int, float]] = OrderedDict()
        #: For each size the numbers of idle blocks, negative, so that the block that was made first is at the end.
        self._shelves: dict[int, list[int]] = {}
        self._idle_bytes = 0
        #: No block can expire before.
        self._next_expiry = clock() + idle_seconds
        self._hits = 0
        self._misses = 0

    @property
    def upstream(self) -> Resource:
        return self._upstream

    def allocate(self, nbytes: int, *, owner: str | None = None) -> Block:
        """A block of the bucket's size: the one released last, for it is likeliest in caches, or a new one.

        It can be larger than asked for, and holds whatever was in it.
        """
        size = self._size_of(nbytes)
        block = None
        with self._lock:
            if self._returned:
                self._put_on_shelf()
            shelf = self._shelves.get(size)
            if shelf:
                number = -shelf[-1]
                found = self._idle[number][0]
                nbytes = found.nbytes
                # From here to the end of the block nothing is called, so no interrupt comes in between.
                del shelf[-1]
                del self._idle[number]
                self._idle_bytes -= nbytes
                self._hits += 1
                block = found
            else:
                self._misses += 1
                self._drop_expired()
        if self._returned or self._leaving:
            self._settle()
        if block is None:
            block = self._upstream.allocate(size, owner=POOL)
        self._live[block] = size
        return block

    def release(self, block: Block) -> None:
        """Put a block on its shelf. Raises for blocks that are not from here."""
        size = self._live.pop(block, None)
        if size is None:
            raise not_ours(block, self)
        self._returned.append((block, size))
        self._settle()

    def trim(self, to_bytes: int = 0) -> int:
        """Release the blocks that were idle longest until at most `to_bytes` are kept; returns the bytes released."""
        with self._lock:
            self._put_on_shelf()
            before = self._idle_bytes
            self._drop_until(to_bytes)
            given = before - self._idle_bytes
        self._settle()
        return given

    def expire(self) -> None:
        """Release blocks that have been idle too long."""
        with self._lock:
            self._put_on_shelf()
            self._drop_expired()
        self._settle()

    def reclaim(self) -> int:
        return self.trim(0)

    def snapshot(self) -> PoolSnapshot:
        """The counts at this moment."""
        with self._lock:
            self._put_on_shelf()
            live = list(self._live)
            snapshot = PoolSnapshot(
                live_blocks=len(live),
                live_bytes=sum(block.nbytes for block in live),
                idle_blocks=len(self._idle),
                idle_bytes=self._idle_bytes,
                hits=self._hits,
                misses=self._misses,
            )
        self._settle()
        return snapshot

    def _settle(self) -> None:
        """Finish deferred releases, unless another thread is doing so: then it does these too."""
        finish(self._returned, self._put_on_shelf, self._lock)
        release_all(self._leaving, self._upstream)

    # The caller of everything below must hold the lock.

    def _put_on_shelf(self) -> None:
        """Sort released blocks onto shelves by size, and drop what is too much or too old. The lock is held.

        Each step leaves the pool whole, so an interrupt in between loses no block.
        """
        now = self._clock()
        while self._returned:
            block, size = self._returned[0]
            number, nbytes = block.number, block.nbytes
            # Each of the two ends with steps that call nothing, so an interrupt comes before all of them, or after.
            if nbytes > self._keep_bytes:
                self._leaving += (block,)
                del self._returned[0]
                continue
            shelf = self._shelves.get(size)
            if shelf is None:
                shelf = self._shelves[size] = []
            place = bisect_left(shelf, -number)
            shelf[place:place] = (-number,)
            self._idle[number] = (block, size, now)
            self._idle_bytes += nbytes
            del self._returned[0]
        if self._idle_bytes > self._keep_bytes:
            self._drop_until(self._keep_bytes)
        if now >= self._next_expiry:
            self._drop_expired()

    def _drop_until(self, to_bytes: int) -> None:
        while self._idle_bytes > to_bytes:
            self._drop_oldest()

    def _drop_expired(self) -> None:
        """Drop the blocks that have been idle for too long, at most once in that time. The lock is held."""
        now = self._clock()
        if now < self._next_expiry:
            return
        while self._idle and self._idle_since(now) + self._idle_seconds <= now:
            self._drop_oldest()
        self._next_expiry = self._idle_since(now) + self._idle_seconds

    def _idle_since(self, now: float) -> float:
        """The time since which the oldest idle block is idle."""
        return next(iter(self._idle.values()))[2] if self._idle else now

    def _drop_oldest(self) -> None:
        """Move the block that has been idle longest to those that leave. The lock is held."""
        number = next(iter(self._idle))
        block, size, _ = self._idle[number]
        nbytes = block.nbytes
        shelf = self._shelves[size]
        place = shelf.index(-number)
        # Nothing below is a call: see `_put_on_shelf`.
        del self._idle[number]
        del shelf[place]
        if not shelf:
            del self._shelves[size]
        self._idle_bytes -= nbytes
        self._leaving += (block,)
