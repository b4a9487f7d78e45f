"""What each of the small resources does: the device's memory, Limit, Stats, OnFailure and Fenced."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Iterator

import msgspec
import pytest

from anygpu.engines.memory import (
    Block,
    DeviceMemory,
    Fenced,
    Held,
    Limit,
    OnFailure,
    Pool,
    Stats,
    Timeline,
    find,
    layers,
    pooled,
    reclaim,
)
from anygpu.errors import InvalidOption, OutOfMemory, OverBudget, TooBig
from anygpu.testing import FakeMemory, ManualClock


class Library:
    """Two functions such as a driver has, which must not be called while it is busy."""

    def __init__(self) -> None:
        self.busy = threading.Lock()
        self.made: list[int] = []
        self.freed: list[object] = []

    def allocate(self, nbytes: int) -> object:
        if nbytes > 1000:
            raise RuntimeError("error 7")
        self.made.append(nbytes)
        return object()

    def release(self, handle: object) -> None:
        assert self.busy.locked()
        self.freed.append(handle)


def classify(error: Exception) -> OutOfMemory | None:
    return OutOfMemory("device") if isinstance(error, RuntimeError) else None


def test_the_device_gets_whole_words_and_never_nothing() -> None:
    library = Library()
    memory = DeviceMemory(library.allocate, library.release, guard=library.busy)
    assert [memory.allocate(nbytes).nbytes for nbytes in (0, 1, 4, 5, 63)] == [4, 4, 4, 8, 64]
    assert library.made == [4, 4, 4, 8, 64]
    assert (memory.live_blocks, memory.live_bytes) == (5, 84)


def test_the_library_is_left_alone_while_it_is_busy() -> None:
    library = Library()
    memory = DeviceMemory(library.allocate, library.release, guard=library.busy)
    blocks = [memory.allocate(8) for _ in range(3)]
    with library.busy:
        memory.release(blocks[0])
        other = threading.Thread(target=memory.release, args=(blocks[1],))
        other.start()
        other.join(120)
        assert not other.is_alive(), "release does not wait"
        assert library.freed == []
        assert memory.live_blocks == 3, "they are not gone yet"
    last = memory.allocate(8)
    assert library.freed == [blocks[0].handle, blocks[1].handle], "whoever allocates next does it"
    with library.busy:
        memory.release(last)
    assert memory.reclaim() == 8
    memory.release(blocks[2])
    assert len(library.freed) == 4


def test_arrays_that_outlive_their_device_do_not_meet_the_library() -> None:
    library = Library()
    memory = DeviceMemory(library.allocate, library.release, guard=library.busy)
    stats = pooled(memory, device="fake", keep_bytes=0)
    block = stats.allocate(8)
    memory.close()
    memory.close()
    stats.release(block)
    reclaim(stats)
    assert (library.freed, memory.live_blocks, stats.snapshot().blocks) == ([], 0, 0)
    with pytest.raises(InvalidOption, match="closed"):
        stats.allocate(8)


def test_the_librarys_errors_become_ours() -> None:
    library = Library()
    memory = DeviceMemory(library.allocate, library.release, classify=classify)
    with pytest.raises(OutOfMemory) as caught:
        memory.allocate(2000)
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(RuntimeError, match="error 7"):
        DeviceMemory(library.allocate, library.release).allocate(2000)
    assert memory.live_blocks == 0


def test_a_limit_counts_whole_blocks() -> None:
    memory = FakeMemory()
    limit = Limit(Pool(memory, keep_bytes=0), 1000, device="webgpu:0")
    block = limit.allocate(300)
    assert limit.used == block.nbytes == 320
    with pytest.raises(OverBudget, match="webgpu:0") as caught:
        limit.allocate(690)  # there is room for it, but not for the 768 bytes that it becomes
    assert caught.value.requested == 690
    assert caught.value.limit == 1000
    assert limit.used == memory.live_bytes == 320, "what did not fit was given back"
    limit.allocate(640)
    with pytest.raises(OverBudget):
        limit.allocate(41)
    limit.release(block)
    assert limit.used == 640
    limit.allocate(200)


def test_a_limit_lets_out_the_last_byte() -> None:
    limit = Limit(FakeMemory(), 100, device="fake")
    block = limit.allocate(100)
    with pytest.raises(OverBudget):
        limit.allocate(1)
    limit.release(block)
    limit.allocate(100)
    with pytest.raises(InvalidOption):
        Limit(FakeMemory(), -1, device="fake")


def test_a_failure_below_does_not_count_against_the_budget() -> None:
    memory = FakeMemory()
    limit = Limit(memory, 100, device="fake")
    memory.fail()
    with pytest.raises(OutOfMemory):
        limit.allocate(60)
    assert limit.used == 0


def test_figures_by_owner() -> None:
    stats = Stats(FakeMemory())
    weights = stats.allocate(100, owner="weights")
    work = [stats.allocate(10, owner="work") for _ in range(5)]
    nobody = stats.allocate(1)
    for block in work[1:]:
        stats.release(block)
    snapshot = stats.snapshot()
    assert snapshot.by_owner == {"weights": Held(1, 100), "work": Held(1, 10), "unowned": Held(1, 1)}
    assert (snapshot.blocks, snapshot.bytes) == (3, 111)
    assert (snapshot.peak_bytes, snapshot.total_blocks, snapshot.total_bytes) == (151, 7, 151)
    assert msgspec.json.decode(msgspec.json.encode(snapshot), type=type(snapshot)) == snapshot
    stats.reset_peak()
    assert stats.snapshot().peak_bytes == 111
    for block in (weights, work[0], nobody):
        stats.release(block)
    end = stats.snapshot()
    assert (end.blocks, end.bytes, end.by_owner, end.peak_bytes) == (0, 0, {}, 111)
    with pytest.raises(AttributeError):
        end.blocks = 1  # type: ignore[misc]


def test_figures_of_more_changes_than_are_written_down_at_once() -> None:
    stats = Stats(FakeMemory())
    blocks = [stats.allocate(1, owner=f"call {number}") for number in range(1000)]
    for block in blocks:
        stats.release(block)
    snapshot = stats.snapshot()
    assert (snapshot.bytes, snapshot.peak_bytes, snapshot.total_blocks, snapshot.by_owner) == (0, 1000, 1000, {})


def test_a_failure_is_tried_again_twice_at_most() -> None:
    memory = FakeMemory()
    asked: list[tuple[int, bool]] = []

    def free(nbytes: int, last: bool) -> bool:
        asked.append((nbytes, last))
        return True

    resource = OnFailure(memory, free)
    memory.fail(2)
    resource.allocate(10)
    assert asked == [(10, False), (10, True)]
    memory.fail(3)
    with pytest.raises(OutOfMemory):
        resource.allocate(20)
    assert asked[2:] == [(20, False), (20, True)]
    assert memory.allocations == 6


def test_when_nothing_could_be_freed_the_first_error_is_raised() -> None:
    memory = FakeMemory()
    error = OutOfMemory("fake", 10)
    memory.fail(1, error)
    with pytest.raises(OutOfMemory) as caught:
        OnFailure(memory, lambda nbytes, last: False).allocate(10)
    assert caught.value is error
    assert memory.allocations == 1


@pytest.mark.parametrize("error", [TooBig("fake", 10, 5), OverBudget("fake", 10, 5)])
def test_freeing_does_not_help_against_every_error(error: TooBig | OverBudget) -> None:
    memory = FakeMemory()
    memory.fail(1, error)
    with pytest.raises(type(error)):
        OnFailure(memory, lambda nbytes, last: True).allocate(10)
    assert memory.allocations == 1


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_what_the_error_kept_alive_is_gone_when_memory_is_freed() -> None:
    """Also what the library's own error, which led to ours, kept alive; and without help of the collector."""

    class Array:
        pass

    arrays: list[weakref.ref[Array]] = []
    seen: list[tuple[bool, object]] = []

    def library(nbytes: int) -> object:
        array = Array()
        arrays.append(weakref.ref(array))
        raise RuntimeError("error 7")

    def free(nbytes: int, last: bool) -> bool:
        seen.append((arrays[-1]() is None, sys.exc_info()[0]))
        return True

    resource = OnFailure(DeviceMemory(library, print, classify=classify), free)

    def caller() -> None:
        mine = Array()
        arrays.append(weakref.ref(mine))
        resource.allocate(10)

    cause: BaseException | None = None
    try:
        caller()
    except OutOfMemory as error:
        cause = error.__cause__
    assert isinstance(cause, RuntimeError), "what the library said is still told"
    assert seen == [(True, None), (True, None)], "the frames are dropped, and no exception is being handled"
    assert [array() for array in arrays] == [None] * 4


def test_freeing_that_needs_memory_itself_does_not_go_round_for_ever() -> None:
    memory = FakeMemory()
    memory.fail(100)

    def free(nbytes: int, last: bool) -> bool:
        resource.allocate(5)
        return True

    resource = OnFailure(memory, free)
    with pytest.raises(OutOfMemory):
        resource.allocate(10)
    assert memory.allocations == 2


def test_a_fence_holds_back_what_the_device_may_still_use() -> None:
    memory = FakeMemory()
    timeline = Timeline(lambda: None)
    fenced = Fenced(memory, timeline, batch_blocks=2)
    before, after = fenced.allocate(10), fenced.allocate(20)
    timeline.submit()
    fenced.release(before)
    timeline.submit()
    fenced.release(after)
    assert fenced.held_bytes == 30
    assert len(memory.live) == 2
    timeline.finish(1)
    third = fenced.allocate(1)
    fenced.release(third)
    assert set(memory.live) == {after, third}, "a batch is complete; what submission 2 uses stays"
    assert fenced.reclaim() == 21
    assert timeline.completed == 2
    assert not memory.live


def test_what_nothing_uses_needs_no_waiting() -> None:
    waits: list[None] = []
    fenced = Fenced(FakeMemory(), Timeline(lambda: waits.append(None)))
    fenced.release(fenced.allocate(10))
    assert fenced.reclaim() == 10
    assert not waits


def test_when_too_much_is_held_back_the_next_allocation_waits() -> None:
    memory = FakeMemory()
    waits: list[None] = []
    timeline = Timeline(lambda: waits.append(None))
    fenced = Fenced(memory, timeline, hold_bytes=100)
    blocks = [fenced.allocate(60), fenced.allocate(60)]
    timeline.submit()
    for block in blocks:
        fenced.release(block)
        assert not waits, "a release never waits"
    fenced.allocate(1)
    assert len(waits) == 1
    assert memory.live_bytes == 1


def test_a_fenced_pool_reuses_a_block_only_when_the_device_is_done_with_it() -> None:
    timeline = Timeline(lambda: None)
    staging = Fenced(Pool(FakeMemory(), keep_bytes=1 << 20), timeline, batch_blocks=1)
    first = staging.allocate(100)
    timeline.submit()
    staging.release(first)
    second = staging.allocate(100)
    assert second is not first
    timeline.finish()
    staging.release(second)
    assert staging.allocate(100) is first


def test_looking_into_a_composition() -> None:
    memory = FakeMemory()
    stats = pooled(memory, device="fake", budget=1 << 20)
    assert [type(layer) for layer in layers(stats)] == [Stats, OnFailure, Pool, Limit, FakeMemory]
    pool = find(stats, Pool)
    assert pool is not None
    assert find(stats, Fenced) is None
    stats.release(stats.allocate(10))
    assert pool.snapshot().idle_blocks == 1
    assert reclaim(stats)
    assert not reclaim(stats)
    assert not memory.live


def test_a_block_says_what_it_is() -> None:
    block = Block(object(), 2048)
    assert repr(block) == f"<block {block.number}: 2.0 KiB>"
    assert Block(object(), 1).number > block.number


def test_the_clock_is_only_asked_never_waited_for() -> None:
    clock = ManualClock()
    pool = Pool(FakeMemory(), keep_bytes=1, clock=clock)
    pool.release(pool.allocate(1))
    assert clock() == 0
