"""Holds released memory back until the device has finished with it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from anygpu.memory.resource import Block, Resource, finish, not_ours, release_all


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
        if self._returned or self._leaving:
            self._settle()
        if self._held_bytes > self._hold_bytes:
            self.reclaim()
        block = self._upstream.allocate(nbytes, owner=owner)
        self._live[block] = block.nbytes
        return block

    def release(self, block: Block) -> None:
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
        self._take_in()
        if self._held_bytes >= self._batch_bytes or len(self._held) >= self._batch_blocks:
            self._let_go()

    def _take_in(self) -> None:
        while self._returned:
            held = self._returned.popleft()
            self._held.append(held)
            self._held_bytes += held[1].nbytes

    def _let_go(self) -> int:
        before = self._held_bytes
        completed = self._fence.completed
        while self._held and self._held[0][0] <= completed:
            _, block = self._held.popleft()
            self._held_bytes -= block.nbytes
            self._leaving.append(block)
        return before - self._held_bytes
