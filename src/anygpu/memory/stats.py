"""Counts allocated memory by owner, and its peak."""

from __future__ import annotations

import threading
from collections import deque

import msgspec

from anygpu.memory.resource import Block, Resource, not_ours

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
        block = self._upstream.allocate(nbytes, owner=owner)
        name = UNOWNED if owner is None else owner
        self._live[block] = name
        self._changes.append((name, block.nbytes))
        if len(self._changes) >= _ADD_UP_AT:
            with self._lock:
                self._add_up()
        return block

    def release(self, block: Block) -> None:
        name = self._live.pop(block, None)
        if name is None:
            raise not_ours(block, self)
        # Before the block is passed on: its next owner must not be counted beside the last one.
        self._changes.append((name, -block.nbytes))
        self._upstream.release(block)

    def snapshot(self) -> Snapshot:
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
