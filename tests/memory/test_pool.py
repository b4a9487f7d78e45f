from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anygpu.engines.memory import Pool, bucket_size
from anygpu.engines.memory.pool import EXACT_FROM, SMALLEST
from anygpu.engines.memory.resource import Block
from anygpu.errors import InvalidOption, OutOfMemory
from anygpu.testing import FakeMemory, ManualClock
from tests.support.interrupting import AtMoment, places_of

MiB = 1 << 20


def pool_of(memory: FakeMemory, clock: ManualClock | None = None, keep_bytes: int = 64 * MiB) -> Pool:
    return Pool(memory, keep_bytes=keep_bytes, idle_seconds=10.0, clock=clock or ManualClock())


@given(st.integers(0, 1 << 34))
def test_a_size_is_rounded_up_by_a_quarter_at_most(nbytes: int) -> None:
    size = bucket_size(nbytes)
    assert size >= nbytes
    if SMALLEST < nbytes <= EXACT_FROM:
        assert size < nbytes * 1.25
        assert size % 4 == 0
    if nbytes > EXACT_FROM:
        assert size == nbytes, "a block that is nearly as large as the device allows must not be made larger"
    assert bucket_size(size) == size
    assert bucket_size(nbytes + 1) >= size


def test_there_are_four_sizes_between_two_powers_of_two() -> None:
    assert sorted({bucket_size(nbytes) for nbytes in range(1024, 2049)}) == [1024, 1280, 1536, 1792, 2048]


@pytest.mark.parametrize("seed", range(20))
def test_in_the_steady_state_every_call_gets_the_very_same_blocks(seed: int) -> None:
    """Whatever the order in which finalizers release them."""
    chance = random.Random(seed)
    memory = FakeMemory()
    pool = pool_of(memory)
    sizes = [chance.choice((100, 1000, 5000)) for _ in range(20)]
    released_early = [chance.random() < 0.3 for _ in sizes]

    def call() -> list[int]:
        blocks = []
        later = []
        for size, early in zip(sizes, released_early, strict=True):
            block = pool.allocate(size)
            blocks.append(block)
            if early:
                pool.release(block)
            else:
                later.append(block)
        chance.shuffle(later)
        for block in later:
            pool.release(block)
        return [block.number for block in blocks]

    first = call()
    made = memory.allocations
    assert all(call() == first for _ in range(5))
    assert memory.allocations == made, "nothing is allocated in the steady state"
    snapshot = pool.snapshot()
    assert snapshot.misses == made
    assert snapshot.hits == 6 * len(sizes) - made


def test_no_more_is_kept_than_the_cap() -> None:
    memory = FakeMemory()
    pool = pool_of(memory, keep_bytes=MiB)
    blocks = [pool.allocate(300_000) for _ in range(10)]
    assert pool.snapshot().live_blocks == 10
    for block in blocks:
        pool.release(block)
        assert pool.snapshot().idle_bytes <= MiB
        assert memory.live_bytes <= MiB + pool.snapshot().live_bytes
    assert pool.snapshot().idle_blocks == 3
    assert list(memory.live) == blocks[-3:], "what has been idle longest goes first"


def test_a_block_that_is_larger_than_the_cap_throws_nothing_else_out() -> None:
    memory = FakeMemory()
    pool = pool_of(memory, keep_bytes=MiB)
    small = pool.allocate(1000)
    large = pool.allocate(2 * MiB)
    pool.release(small)
    pool.release(large)
    assert list(memory.live) == [small]


def test_what_is_idle_too_long_is_given_back_when_the_pool_is_next_used() -> None:
    clock = ManualClock()
    memory = FakeMemory()
    pool = pool_of(memory, clock)
    early, late = pool.allocate(1000), pool.allocate(2000)
    pool.release(early)
    clock.advance(6)
    pool.release(late)
    clock.advance(5)
    assert len(memory.live) == 2, "there is no timer"
    other = pool.allocate(70_000)
    assert set(memory.live) == {late, other}
    clock.advance(4.9)
    pool.expire()
    assert set(memory.live) == {late, other}
    clock.advance(0.1)
    pool.release(other)
    assert set(memory.live) == {other}
    clock.advance(9.9)
    assert pool.allocate(70_000) is other, "being used again begins its time anew"
    pool.release(other)
    clock.advance(9.9)
    pool.expire()
    assert set(memory.live) == {other}
    clock.advance(0.1)
    pool.expire()
    assert not memory.live


def test_fewer_blocks_in_use_let_the_rest_expire() -> None:
    clock = ManualClock()
    memory = FakeMemory()
    pool = pool_of(memory, clock)
    for block in [pool.allocate(1000) for _ in range(8)]:
        pool.release(block)
    for _ in range(20):
        clock.advance(1)
        pool.release(pool.allocate(1000))
    assert len(memory.live) == 1


def test_trimming_gives_back_what_has_been_idle_longest() -> None:
    memory = FakeMemory()
    pool = pool_of(memory)
    blocks = [pool.allocate(1024) for _ in range(4)]
    for block in blocks:
        pool.release(block)
    assert pool.trim(2048) == 2048
    assert list(memory.live) == blocks[2:]
    assert pool.trim(10_000) == 0
    assert pool.trim() == 2048
    assert not memory.live


def test_a_failure_below_is_counted_as_a_miss_and_keeps_what_is_idle() -> None:
    memory = FakeMemory()
    pool = pool_of(memory)
    pool.release(pool.allocate(1000))
    memory.fail()
    with pytest.raises(OutOfMemory):
        pool.allocate(5000)
    snapshot = pool.snapshot()
    assert (snapshot.misses, snapshot.hits, snapshot.idle_blocks, snapshot.live_blocks) == (2, 0, 1, 0)


def test_below_the_pool_everything_belongs_to_the_pool() -> None:
    memory = FakeMemory()
    pool_of(memory).allocate(1000, owner="model")
    assert list(memory.live.values()) == ["pool"]


def test_options_that_make_no_sense() -> None:
    with pytest.raises(InvalidOption, match="keep_bytes"):
        Pool(FakeMemory(), keep_bytes=-1)
    with pytest.raises(InvalidOption, match="idle_seconds"):
        Pool(FakeMemory(), keep_bytes=1, idle_seconds=0)


def test_an_interrupt_at_any_moment_leaves_the_lock_free_and_no_block_with_two_owners() -> None:
    """Also in a release, which takes the lock only if it is free: a later call would wait for it without end."""
    made: list[tuple[Pool, Block]] = []

    def prepare() -> None:
        pool = pool_of(FakeMemory())
        made.append((pool, pool.allocate(1000)))

    def call() -> None:
        pool, block = made[-1]
        pool.release(block)
        pool.allocate(1000)

    prepare()
    places = places_of(call)
    assert places
    for place in places:
        prepare()
        AtMoment(place).run(call)
        pool, _ = made.pop()
        assert pool._lock.acquire(blocking=False)
        pool._lock.release()
        again = [pool.allocate(1000) for _ in range(3)]
        assert len({block.number for block in again}) == 3
