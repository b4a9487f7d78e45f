"""The conformance suite on every composition, and proof that it sees what it should see."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import pytest

from anygpu.engines.memory import Block, Resource, Stats, pooled
from anygpu.testing import FakeMemory, check_no_leaks, check_resource, resources
from tests.memory.compositions import COMPOSITIONS


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_every_composition_conforms(name: str) -> None:
    check_resource(COMPOSITIONS[name])


class Passing:
    """Hands everything through; the wrong ones below each do one thing wrong."""

    def __init__(self, upstream: Resource) -> None:
        self.upstream = upstream

    def allocate(self, nbytes: int, *, owner: str | None = None) -> Block:
        return self.upstream.allocate(nbytes, owner=owner)

    def release(self, block: Block) -> None:
        self.upstream.release(block)


class Forgetful(Passing):
    def release(self, block: Block) -> None:
        pass


class Careless(Passing):
    """Takes anything back."""

    def release(self, block: Block) -> None:
        if block in self.upstream.live:  # type: ignore[attr-defined]
            super().release(block)


class Stingy(Passing):
    def allocate(self, nbytes: int, *, owner: str | None = None) -> Block:
        return super().allocate(nbytes // 2, owner=owner)


class Sharing(Passing):
    """Gives out one block to everybody."""

    def __init__(self, upstream: Resource) -> None:
        super().__init__(upstream)
        self._block = upstream.allocate(4 << 20)

    def allocate(self, nbytes: int, *, owner: str | None = None) -> Block:
        return self._block

    def release(self, block: Block) -> None:
        pass


class Stubborn(Passing):
    """Tries again for ever."""

    def allocate(self, nbytes: int, *, owner: str | None = None) -> Block:
        for _ in range(50):
            try:
                return super().allocate(nbytes, owner=owner)
            except MemoryError:
                continue
        return super().allocate(nbytes, owner=owner)


class Locking(Passing):
    """Takes a plain lock in `release`, as one would."""

    def __init__(self, upstream: Resource) -> None:
        super().__init__(upstream)
        self._lock = threading.Lock()

    def allocate(self, nbytes: int, *, owner: str | None = None) -> Block:
        with self._lock:
            return super().allocate(nbytes, owner=owner)

    def release(self, block: Block) -> None:
        with self._lock:
            super().release(block)


class Interruptible(Passing):
    """Reads, and then writes: a release in between is lost."""

    def __init__(self, upstream: Resource) -> None:
        super().__init__(upstream)
        self._idle: list[Block] = []

    def release(self, block: Block) -> None:
        idle = [*self._idle, block]
        self._idle = idle

    def reclaim(self) -> int:
        for block in self._idle:
            super().release(block)
        count, self._idle = len(self._idle), []
        return count

    def allocate(self, nbytes: int, *, owner: str | None = None) -> Block:
        return super().allocate(nbytes, owner=owner)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (Forgetful, "never given back"),
        (Careless, "released twice was accepted"),
        (Stingy, "bytes were asked for"),
        (Sharing, "share their memory"),
        (Stubborn, "twice at most"),
        (Locking, "waits for itself"),
    ],
)
def test_the_suite_sees_what_is_wrong(wrong: type[Passing], sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "_PATIENCE_SECONDS", 1.0)
    with pytest.raises(AssertionError, match=sentence):
        check_resource(wrong)


def test_the_suite_sees_a_release_that_is_lost_between_two_instructions() -> None:
    with pytest.raises(AssertionError, match="never given back"):
        resources._check_interruptions(Interruptible)


def test_what_leaks_is_reported_by_owner() -> None:
    stats = pooled(FakeMemory(), device="fake")
    earlier = stats.allocate(100, owner="model")
    kept: list[Any] = []
    with pytest.raises(AssertionError, match="model has 1 blocks and 256 bytes more"), check_no_leaks(stats):
        kept.append(stats.allocate(100, owner="model"))
    with pytest.raises(AssertionError, match="model has 1 blocks"), check_no_leaks(stats, owner="model"):
        kept.append(stats.allocate(100, owner="model"))
    with check_no_leaks(stats, owner="other"):
        stats.release(stats.allocate(100, owner="other"))
        kept.append(stats.allocate(100, owner="model"))
    with check_no_leaks(stats):
        for block in [earlier, *kept]:
            stats.release(block)


def test_a_block_in_a_dead_cycle_is_no_leak() -> None:
    stats = Stats(FakeMemory())

    class Buffer:
        def __init__(self) -> None:
            self.itself = self
            block = stats.allocate(10, owner="cycle")
            weakref.finalize(self, stats.release, block)

    with check_no_leaks(stats):
        Buffer()
