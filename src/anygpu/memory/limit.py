"""A budget in bytes, whatever the memory of the device."""

from __future__ import annotations

import threading
from collections import deque

from anygpu.errors import OverBudget
from anygpu.memory.resource import Block, Resource, not_ours, refuse_negative


class Limit:
    """Raises `OverBudget` instead of letting more than `budget` bytes be out. Counts whole blocks, not what was asked.

    Below a pool it bounds what the device gives, idle blocks included; above one, what is in use.
    """

    def __init__(self, upstream: Resource, budget: int, *, device: str) -> None:
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
        nbytes = self._live.pop(block, None)
        if nbytes is None:
            raise not_ours(block, self)
        # The inner resource first: the budget must not be free before the memory is.
        try:
            self._upstream.release(block)
        finally:
            self._returned.append(nbytes)

    def _reserve(self, nbytes: int, requested: int) -> None:
        with self._lock:
            fits = self._count(0) + nbytes <= self._budget
            if fits:
                self._count(nbytes)
        if not fits:
            raise OverBudget(self._device, requested, self._budget)

    def _count(self, change: int) -> int:
        while self._returned:
            self._used -= self._returned.popleft()
        self._used += change
        return self._used
