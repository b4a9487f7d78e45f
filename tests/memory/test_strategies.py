from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest

from anygpu.engines.memory import Block, Pool, Stats, Timeline, eager, find, lazy, pooled
from anygpu.errors import OutOfMemory, OverBudget, TooBig
from anygpu.testing import FakeMemory


def test_eager_goes_straight_through() -> None:
    memory = FakeMemory()
    stats = eager(memory, device="fake")
    block = stats.allocate(10)
    assert block.nbytes == 10
    stats.release(block)
    assert memory.releases == 1


def test_lazy_frees_in_batches() -> None:
    memory = FakeMemory()
    timeline = Timeline(lambda: None)
    stats = lazy(memory, timeline, device="fake", batch_bytes=1000)
    for block in [stats.allocate(300) for _ in range(3)]:
        stats.release(block)
    assert memory.releases == 0
    stats.release(stats.allocate(100))
    assert memory.releases == 4
    assert stats.snapshot().blocks == 0


def test_lazy_waits_for_the_device_before_it_gives_up() -> None:
    memory = FakeMemory(capacity=1000)
    waits: list[None] = []
    timeline = Timeline(lambda: waits.append(None))
    stats = lazy(memory, timeline, device="fake")
    block = stats.allocate(800)
    timeline.submit()
    stats.release(block)
    stats.allocate(900)
    assert len(waits) == 1


def test_pooled_gives_up_idle_blocks_of_other_sizes_before_it_gives_up() -> None:
    memory = FakeMemory(capacity=10_000)
    stats = pooled(memory, device="fake")
    for block in [stats.allocate(1024) for _ in range(9)]:
        stats.release(block)
    assert memory.live_bytes == 9216
    stats.allocate(8192)
    assert memory.live_bytes == 8192


def test_idle_blocks_count_against_the_budget_and_make_room() -> None:
    memory = FakeMemory()
    stats = pooled(memory, device="fake", budget=10_000)
    block = stats.allocate(8192)
    with pytest.raises(OverBudget):
        stats.allocate(4096)
    stats.release(block)
    stats.allocate(4096)
    assert memory.live_bytes == 4096


def test_arrays_in_dead_cycles_are_found_before_anyone_is_asked_to_evict() -> None:
    memory = FakeMemory(capacity=1000)
    asked: list[int] = []

    def evict(nbytes: int) -> bool:
        asked.append(nbytes)
        return False

    stats = eager(memory, device="fake", evict=evict)

    class Buffer:
        def __init__(self, nbytes: int) -> None:
            self.itself = self
            weakref.finalize(self, stats.release, stats.allocate(nbytes))

    gc.collect()
    gc.disable()
    try:
        Buffer(900)
        kept = stats.allocate(800)
    finally:
        gc.enable()
    assert not asked
    stats.release(kept)


@pytest.mark.parametrize("make", [eager, pooled])
def test_what_can_be_had_again_is_evicted_last(make: Callable[..., Stats]) -> None:
    memory = FakeMemory(capacity=10_000)
    cached: list[Block] = []
    stats: Stats

    def evict(nbytes: int) -> bool:
        if not cached:
            return False
        stats.release(cached.pop())
        return True

    stats = make(memory, device="fake", evict=evict)
    cached += [stats.allocate(4096, owner="cache") for _ in range(2)]
    work = stats.allocate(5120, owner="work")
    assert len(cached) == 1
    with pytest.raises(OutOfMemory):
        stats.allocate(9216)
    assert not cached, "evicted, and still not enough"
    stats.release(work)
    assert stats.snapshot().by_owner == {}


def test_what_can_never_fit_evicts_nothing() -> None:
    memory = FakeMemory()
    asked: list[int] = []

    def evict(nbytes: int) -> bool:
        asked.append(nbytes)
        return True

    stats = pooled(memory, device="fake", evict=evict)
    stats.release(stats.allocate(100))
    memory.fail(1, TooBig("fake", 1 << 40, 1 << 30))
    with pytest.raises(TooBig):
        stats.allocate(1 << 40)
    assert not asked
    pool = find(stats, Pool)
    assert pool is not None
    assert pool.snapshot().idle_blocks == 1
