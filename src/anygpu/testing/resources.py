"""Checks for device memory: what every resource must keep to, whatever it wraps, and whether anything was left behind.

`check_resource` interrupts `allocate` and `release` by another release at every single instruction, because that is
what the garbage collector does, once in a million times. `FakeMemory` is the bottom of the composition that is checked,
and `check_no_leaks` is for tests of code that allocates.
"""

from __future__ import annotations

import contextlib
import gc
import random
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from anygpu.engines.memory import Block, Resource, Snapshot, Stats, reclaim
from anygpu.errors import AllocationError, InvalidOption, OutOfMemory, TooBig

Wrap = Callable[["FakeMemory"], Resource]

SIZES = (0, 1, 2, 3, 63, 64, 65, 255, 256, 257, 1023, 1024, 1025, 65_537, 3 << 20)

#: A check that takes longer has locked itself out.
_PATIENCE_SECONDS = 60.0


class FakeMemory:
    """A device's memory that holds nothing, in which faults can be set; the bottom of a composition in a test.

    Without a `capacity`, in bytes, it is never full.
    """

    def __init__(self, capacity: int | None = None, *, device: str = "fake") -> None:
        self.capacity = capacity
        self.device = device
        #: What is out, in the order in which it was allocated.
        self.live: dict[Block, str | None] = {}
        #: How often each method was called.
        self.allocations = 0
        self.releases = 0
        #: Called in the middle of `allocate`, as the garbage collector might call a finalizer.
        self.during_allocate: Callable[[], object] | None = None
        self._faults: list[AllocationError] = []

    @property
    def live_bytes(self) -> int:
        """The bytes of all blocks that are out."""
        return sum(block.nbytes for block in list(self.live))

    def holds(self, block: Block) -> bool:
        """Whether the block, or the one that it is a handle for, is out."""
        return block in self.live or (isinstance(block.handle, Block) and block.handle in self.live)

    def fail(self, times: int = 1, error: AllocationError | None = None) -> None:
        """Raise this, or `OutOfMemory`, at the next calls of `allocate`."""
        self._faults += [error or OutOfMemory(self.device)] * times

    def heal(self) -> None:
        """Forget the faults that have not happened yet."""
        self._faults.clear()

    def allocate(self, nbytes: int, *, owner: str | None = None) -> Block:
        """A new block of at least a byte. Raises the next fault that was set, or `OutOfMemory` beyond the capacity."""
        if nbytes < 0:
            raise InvalidOption(f"{nbytes} bytes cannot be allocated.")
        self.allocations += 1
        if self.during_allocate is not None:
            self.during_allocate()
        if self._faults:
            raise self._faults.pop(0)
        nbytes = max(nbytes, 1)
        if self.capacity is not None and self.live_bytes + nbytes > self.capacity:
            raise OutOfMemory(self.device, nbytes, self.capacity - self.live_bytes)
        block = Block(object(), nbytes)
        self.live[block] = owner
        return block

    def release(self, block: Block) -> None:
        """Takes a block back. Raises `InvalidOption` for one that is not out."""
        if block not in self.live:
            raise InvalidOption(f"{block!r} is not out from FakeMemory.")
        del self.live[block]
        self.releases += 1


def check_resource(wrap: Wrap) -> None:
    """Check what `wrap` makes of a `FakeMemory`. It must let at least 64 MiB be out at once.

    Raises AssertionError with a sentence on the first thing that is wrong.
    """
    for check in (
        _check_sizes,
        _check_misuse,
        _check_errors,
        _check_random_use,
        _check_finalizers,
        _check_interruptions,
        _check_threads,
    ):
        _within_patience(check, wrap)


@contextlib.contextmanager
def check_no_leaks(stats: Stats, *, owner: str | None = None) -> Iterator[None]:
    """Everything that is allocated in the block, by that owner or by anyone, is released in it."""
    gc.collect()
    before = stats.snapshot()
    yield
    gc.collect()
    left = _left_behind(before, stats.snapshot(), owner)
    _expect(not left, f"left behind: {'; '.join(left)}")


def _left_behind(before: Snapshot, after: Snapshot, owner: str | None) -> list[str]:
    """A phrase for each owner that holds more blocks or bytes than before."""
    left = []
    for name, held in after.by_owner.items():
        earlier = before.by_owner.get(name)
        blocks = held.blocks - (earlier.blocks if earlier else 0)
        nbytes = held.bytes - (earlier.bytes if earlier else 0)
        if (owner is None or name == owner) and (blocks > 0 or nbytes > 0):
            left.append(f"{name} has {blocks} blocks and {nbytes} bytes more than before")
    return left


def _check_sizes(wrap: Wrap) -> None:
    """Blocks are at least as large as asked for, never share memory, and can be released in another order."""
    memory = FakeMemory()
    resource = wrap(memory)
    for _ in range(3):
        blocks = [resource.allocate(size, owner="sizes") for size in SIZES]
        for size, block in zip(SIZES, blocks, strict=True):
            _expect(block.nbytes >= size, f"{size} bytes were asked for, and {block!r} was given")
        _expect(len({id(block.handle) for block in blocks}) == len(SIZES), "two blocks share their memory")
        for block in blocks[::2] + blocks[1::2]:
            resource.release(block)
    _expect_all_back(resource, memory)


def _check_misuse(wrap: Wrap) -> None:
    """A second release, a stranger's block and a negative size are refused with `InvalidOption`."""
    memory = FakeMemory()
    resource = wrap(memory)
    kept = resource.allocate(64)
    block = resource.allocate(64)
    resource.release(block)
    _expect_refused(lambda: resource.release(block), "a block that is released twice")
    _expect_refused(lambda: resource.release(Block(object(), 64)), "a block of another resource")
    _expect_refused(lambda: resource.allocate(-1), "a negative size")
    resource.release(kept)
    _expect_all_back(resource, memory)


def _check_errors(wrap: Wrap) -> None:
    """What the memory below raises comes through, and leaves no trace."""
    memory = FakeMemory()
    resource = wrap(memory)
    kept = resource.allocate(100)
    for error in (OutOfMemory("fake", 5000), TooBig("fake", 5000, 4096)):
        # So that nothing is kept which could be given out without asking below.
        reclaim(resource)
        before = memory.allocations
        memory.fail(100, error)
        try:
            resource.allocate(5000)
        except AllocationError as caught:
            _expect(caught is error, f"{error!r} became {caught!r}")
        else:
            _expect(False, f"{error!r} was swallowed")
        tries = memory.allocations - before
        _expect(tries <= 3, f"a failure is tried again twice at most, not {tries - 1} times")
        memory.heal()
        resource.release(resource.allocate(5000))
    resource.release(kept)
    _expect_all_back(resource, memory)


def _check_random_use(wrap: Wrap) -> None:
    """A thousand random allocations and releases with faults: no block is out twice, or given back while in use."""
    chance = random.Random(0)
    memory = FakeMemory()
    resource = wrap(memory)
    live: list[Block] = []
    for _ in range(1000):
        if chance.random() < 0.05:
            memory.fail()
        if live and chance.random() < 0.5:
            resource.release(live.pop(chance.randrange(len(live))))
            continue
        with contextlib.suppress(OutOfMemory):
            block = resource.allocate(chance.choice(SIZES[:-1]), owner=chance.choice("abc"))
            _expect(all(block is not other for other in live), f"{block!r} was given out twice")
            live.append(block)
        for block in live:
            _expect(memory.holds(block), f"{block!r} is in use, and was given back to the device")
    for block in live:
        resource.release(block)
    _expect_all_back(resource, memory)


def _check_finalizers(wrap: Wrap) -> None:
    """A release in the middle of `allocate`, on the same thread, and of several others in a row."""
    memory = FakeMemory()
    resource = wrap(memory)
    waiting = [resource.allocate(1 << 20, owner="finalized") for _ in range(8)]

    def finalize() -> None:
        if waiting:
            resource.release(waiting.pop())

    memory.during_allocate = finalize
    size = 2000
    blocks = []
    while waiting:
        blocks.append(resource.allocate(size))
        size = size * 5 // 4 + 1
    memory.during_allocate = None
    for block in blocks:
        resource.release(block)
    _expect_all_back(resource, memory)


def _check_interruptions(wrap: Wrap) -> None:
    """A release at every instruction of `allocate` and `release`: one instruction further at each turn."""
    instruction = 0
    while _is_interrupted_at(instruction, wrap):
        instruction += 1
    _expect(instruction > 0, "nothing was interrupted")


def _is_interrupted_at(instruction: int, wrap: Wrap) -> bool:
    """Allocates and releases, with other blocks released at one instruction; whether that many instructions ran.

    The trace function of the thread counts instructions; a debugger's or coverage's is put back afterwards.
    """
    memory = FakeMemory()
    resource = wrap(memory)
    spare = [resource.allocate(size, owner="spare") for size in (512, 700)]
    resource.release(resource.allocate(512))
    counted = 0

    def watch(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal counted
        frame.f_trace_opcodes = True
        if event == "opcode":
            if counted == instruction and spare:
                for block in spare:
                    resource.release(block)
                spare.clear()
            counted += 1
        return watch

    previous = sys.gettrace()
    sys.settrace(watch)
    try:
        again = resource.allocate(512)
        fresh = resource.allocate(40_000)
        resource.release(again)
        resource.release(fresh)
    finally:
        sys.settrace(previous)
    interrupted = not spare
    for block in spare:
        resource.release(block)
    _expect(again is not fresh, "one block was given out twice")
    _expect_all_back(resource, memory)
    return interrupted


def _check_threads(wrap: Wrap) -> None:
    """Four threads, each releasing what another one allocated, with as many switches as Python allows."""
    memory = FakeMemory()
    resource = wrap(memory)
    out: dict[Block, int] = {}
    hands: list[list[Block]] = [[] for _ in range(4)]
    wrong: list[str] = []

    def use(me: int) -> None:
        chance = random.Random(me)
        try:
            for _ in range(150):
                block = resource.allocate(chance.choice((64, 300, 5000)), owner=f"thread {me}")
                if out.setdefault(block, me) != me:
                    wrong.append(f"{block!r} was given to two threads at once")
                hands[chance.randrange(4)].append(block)
                while hands[me]:
                    block = hands[me].pop()
                    del out[block]
                    resource.release(block)
        except Exception as error:  # noqa: BLE001 - reported in the thread that checks
            wrong.append(f"{type(error).__name__}: {error}")

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=use, args=(me,)) for me in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    _expect(not wrong, wrong[0] if wrong else "")
    for block in (block for hand in hands for block in hand):
        resource.release(block)
    _expect_all_back(resource, memory)


def _within_patience(check: Callable[[Wrap], None], wrap: Wrap) -> None:
    """Runs a check on a thread of its own, since a resource that waits for itself would never come back.

    Raises what the check raises, and `AssertionError` after a minute.
    """
    failures: list[BaseException] = []

    def run() -> None:
        try:
            check(wrap)
        except BaseException as error:  # noqa: BLE001 - raised again where it belongs
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_PATIENCE_SECONDS)
    _expect(not thread.is_alive(), f"{check.__name__.removeprefix('_check_')}: the resource waits for itself for ever")
    if failures:
        raise failures[0]


def _expect_all_back(resource: Resource, memory: FakeMemory) -> None:
    """Raises `AssertionError` if blocks are still out after the resource gave back all that it keeps."""
    # Twice: the first may wake what the second can give back.
    reclaim(resource)
    reclaim(resource)
    _expect(not memory.live, f"never given back to the device: {list(memory.live)}")


def _expect_refused(call: Callable[[], object], what: str) -> None:
    """Raises `AssertionError` unless the call raises `InvalidOption`."""
    try:
        call()
    except InvalidOption:
        return
    _expect(False, f"{what} was accepted")


def _expect(condition: bool, otherwise: str) -> None:
    if not condition:
        raise AssertionError(otherwise)
