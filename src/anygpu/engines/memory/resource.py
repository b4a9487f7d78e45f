"""The one interface of device memory, `Resource`, and the resource at the bottom of every other: a device's own memory.

A resource has two methods, and takes another resource to do the work. What a program wants of its memory (a budget, a
pool, figures, a second try) is what it is wrapped in.

Releases come from finalizers: on any thread, and in the middle of anything, even of `allocate` on the same thread.
A lock taken there would wait for itself. So no resource waits in `release`: it strikes the block off a dictionary
(one step that nothing can interrupt), appends it to a queue, and the current or next holder of the lock does the rest.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sized
from typing import Any, Protocol, TypeVar, runtime_checkable

from anygpu.base.units import readable_bytes
from anygpu.errors import InvalidOption

_numbers = itertools.count(1)
#: For `acquire` of a lock.
_NOT_WAITING = (False,)


class Block:
    """A piece of a device's memory. Equal to itself alone, so that it can be a key."""

    __slots__ = ("__weakref__", "handle", "nbytes", "number")

    #: The library's own object.
    handle: Any
    #: The whole size: what was requested, rounded up.
    nbytes: int
    #: The order of creation in this process.
    number: int

    def __init__(self, handle: Any, nbytes: int) -> None:
        """A piece of memory: the driver's handle, its bytes, and a number that no other block has."""
        self.handle = handle
        self.nbytes = nbytes
        self.number = next(_numbers)

    def __repr__(self) -> str:
        return f"<block {self.number}: {readable_bytes(self.nbytes)}>"


class Resource(Protocol):
    """A source of blocks."""

    def allocate(self, nbytes: int, *, owner: str | None = None) -> Block:
        """Allocate at least `nbytes`, uninitialised; `Stats` counts them for `owner`."""

    def release(self, block: Block) -> None:
        """Release a block of this resource, once. Callable on any thread at any moment; never waits.

        Work that was submitted before may still be using the block; work that is submitted later must not.
        """


class Wrapping(Resource, Protocol):
    """A resource over another one."""

    @property
    def upstream(self) -> Resource: ...


@runtime_checkable
class Reclaiming(Protocol):
    """A resource that caches unused memory."""

    def reclaim(self) -> int:
        """Free all cached memory, after waiting for the device where necessary; returns the bytes freed."""


Wanted = TypeVar("Wanted")


def layers(resource: Resource) -> Iterator[Resource]:
    """The resource, what it wraps, and so on down to the device."""
    layer: Resource | None = resource
    while layer is not None:
        yield layer
        layer = getattr(layer, "upstream", None)


def find(resource: Resource, kind: type[Wanted]) -> Wanted | None:
    """The outermost layer of that kind: `find(memory, Pool)`."""
    return next((layer for layer in layers(resource) if isinstance(layer, kind)), None)


def reclaim(resource: Resource) -> bool:
    """Free all cached memory, layer by layer; returns whether there was any."""
    given = [layer.reclaim() for layer in layers(resource) if isinstance(layer, Reclaiming)]
    return any(given)


def release_all(blocks: deque[Block], upstream: Resource) -> None:
    """Release queued blocks to the resource below. Called without a lock: that resource may call back, or be slow."""
    while blocks:
        try:
            block = blocks.popleft()
        except IndexError:  # another thread was faster
            return
        upstream.release(block)


def finish(returned: Sized, work: Callable[[], object], lock: threading.Lock) -> None:
    """Do the work that returned blocks are waiting for, unless another thread holds the lock: it does that, too.

    Checked again after the lock is released: a block that came in between would otherwise stay.
    """
    while returned:
        # From here to `try` no function of Python is called, so no interrupt leaves the lock taken.
        for taken in map(lock.acquire, _NOT_WAITING):
            if not taken:
                return
            try:
                work()
            finally:
                lock.release()


def refuse_negative(nbytes: int) -> None:
    if nbytes < 0:
        raise InvalidOption(f"{nbytes} bytes cannot be allocated: ask for 0 or more.")


def not_ours(block: Block, resource: Resource) -> InvalidOption:
    """The error of `release` for a block that is not allocated."""
    return InvalidOption(
        f"{block!r} is not out from {type(resource).__name__}: it was released before, or came from another resource. "
        "Release each block once, where it was allocated."
    )


class DeviceMemory:
    """A device's memory as its library gives it: the bottom of every composition.

    A library need not bear being called by two threads, or by a finalizer in the middle of another call. `guard` is the
    lock that is held around every use of the device, if there is more than this one: `allocate` and `reclaim` wait for
    it (so do not hold it when you call them), and `release` leaves the block to the next of these when it cannot have
    the lock at once. It must be a plain lock: a re-entrant one would let the finalizer in.
    """

    def __init__(
        self,
        allocate: Callable[[int], Any],
        release: Callable[[Any], object],
        *,
        classify: Callable[[Exception], BaseException | None] = lambda error: None,
        guard: threading.Lock | None = None,
        granularity: int = 4,
    ) -> None:
        """Memory by two functions of a driver, which are called with `guard` held.

        `classify` makes our errors of the driver's. Sizes are rounded up to `granularity` bytes.
        """
        self._allocate = allocate
        self._release = release
        self._classify = classify
        self._guard = threading.Lock() if guard is None else guard
        self._granularity = granularity
        self._live: dict[Block, int] = {}
        self._returned: deque[Block] = deque()
        self._closed = False

    @property
    def live_blocks(self) -> int:
        """The number of blocks that the library has allocated and not freed."""
        return len(self._live) + len(self._returned)

    @property
    def live_bytes(self) -> int:
        return sum(block.nbytes for block in (*self._live, *self._returned))

    def allocate(self, nbytes: int, *, owner: str | None = None) -> Block:
        """A new block, never of 0 bytes.

        Raises `InvalidOption` after `close`, and what `classify` makes of the driver's errors.
        """
        refuse_negative(nbytes)
        # A block of no bytes could not be bound to a kernel.
        whole = max(1, -(-nbytes // self._granularity)) * self._granularity
        if self._closed:
            raise InvalidOption("the device is closed, and has no memory any more: open it again.")
        with self._guard:
            self._give_back()
            block = Block(self._made(whole), whole)
        self._live[block] = whole
        if self._returned:
            self._settle()
        return block

    def release(self, block: Block) -> None:
        """Give a block back to the driver, now or as soon as its guard is free.

        Raises for blocks that are not from here.
        """
        if self._live.pop(block, None) is None:
            raise not_ours(block, self)
        self._returned.append(block)
        self._settle()

    def reclaim(self) -> int:
        """Free the blocks that were released while the device was busy."""
        with self._guard:
            return self._give_back()

    def close(self) -> None:
        """The device is gone: from now on blocks that come back are forgotten, and the library is not called again.

        Arrays outlive their device, and their finalizers must not meet a library that has closed it. Call `reclaim`
        on the whole composition before, where the library does not free everything by itself.
        """
        with self._guard:
            self._closed = True
            self._give_back()

    def _made(self, nbytes: int) -> Any:
        """The driver's memory, with its errors as ours."""
        try:
            return self._allocate(nbytes)
        except Exception as error:
            ours = self._classify(error)
            if ours is None or ours is error:
                raise
            raise ours from error

    def _settle(self) -> None:
        finish(self._returned, self._give_back, self._guard)

    def _give_back(self) -> int:
        """Release what other threads have returned; returns the bytes. Call it with the guard held."""
        given = 0
        while self._returned:
            block = self._returned.popleft()
            if not self._closed:
                self._release(block.handle)
            given += block.nbytes
        return given
