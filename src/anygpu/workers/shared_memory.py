"""Memory that a worker and its child both see. The worker's side owns all of it.

A segment has no name that could outlive its processes: on Linux it never has one, elsewhere on Unix it loses it before
anybody uses it, and on Windows the system forgets it with its last user. Its descriptor goes through the socket. So
nothing is left behind when either process is killed.

Segments are kept for the next call that needs one of their size, in an `anygpu.engines.memory` pool. A result is an
array in a segment, which goes back to the pool when the array and all its views are gone.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import mmap
import os
import secrets
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from anygpu.base.typing import HostArray
from anygpu.engines.host_arrays import numpy_dtype
from anygpu.engines.memory.pool import Pool
from anygpu.engines.memory.resource import Block, DeviceMemory
from anygpu.errors import OutOfMemory
from anygpu.hardware import host
from anygpu.program.primitives import Spec
from anygpu.workers.child_messages import Attached, Envelope

#: memory: a Linux memfd; posix: shared memory of POSIX, unlinked at once; named: a file mapping of Windows.
SegmentKind = Literal["memory", "posix", "named"]

ByteArray = npt.NDArray[np.uint8]

_PAGE = 4096
_HUGE_PAGES_FROM = 4 << 20

#: Results that are out at once, beyond which they are copied into ordinary memory: each segment takes a descriptor of
#: this process, and there may be no more than a thousand of these.
MOST_OUT = 128

KEEP_BYTES = 256 << 20
IDLE_SECONDS = 30.0

_numbers = itertools.count(1)


def default_kind() -> SegmentKind:
    if sys.platform == "win32":
        return "named"
    return "memory" if hasattr(os, "memfd_create") else "posix"


class SharedSegment:
    """A piece of shared memory as this process sees it."""

    __slots__ = ("_map", "address", "bytes", "descriptor", "name", "nbytes", "number")

    def __init__(self, number: int, nbytes: int, mapped: mmap.mmap, descriptor: int, name: str = "") -> None:
        """Takes over the mapping and the descriptor, which is -1 for a segment with a name."""
        self.number = number
        self.nbytes = nbytes
        self.name = name
        #: Until the child has it; -1 afterwards, and where a name does the same.
        self.descriptor = descriptor
        self._map: mmap.mmap | None = mapped
        self.bytes: ByteArray = np.frombuffer(mapped, np.uint8)
        self.address: int = self.bytes.ctypes.data

    def array(self, spec: Spec) -> HostArray:
        """The first bytes as an array. It must not outlive the segment."""
        view: HostArray = self.bytes[: spec.nbytes].view(numpy_dtype(spec.dtype)).reshape(spec.shape)
        return view

    @property
    def closed(self) -> bool:
        return self._map is None

    def sent(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def close(self) -> None:
        """Closes the descriptor and the mapping; the memory goes with the last view of it."""
        self.sent()
        mapped, self._map = self._map, None
        if mapped is not None:
            del self.bytes
            # There may still be views of it; then it goes with the last of these.
            with contextlib.suppress(BufferError):
                mapped.close()


def new_segment(nbytes: int, kind: SegmentKind) -> SharedSegment:
    """Makes a segment of that many bytes. Raises OSError where there is not so much shared memory."""
    number = next(_numbers)
    if kind == "named":
        name = f"anygpu-{os.getpid()}-{secrets.token_hex(8)}"
        return SharedSegment(number, nbytes, _named(name, nbytes), -1, name)
    descriptor = _nameless(nbytes, kind)
    try:
        os.ftruncate(descriptor, nbytes)
        if kind == "posix" and hasattr(os, "posix_fallocate"):
            # It has a limit of its own, and beyond it the first touch would kill the process.
            os.posix_fallocate(descriptor, 0, nbytes)
        return SharedSegment(number, nbytes, _mapped(descriptor, nbytes), descriptor)
    except BaseException:
        os.close(descriptor)
        raise


def attached_segment(number: int, nbytes: int, descriptor: int, name: str) -> SharedSegment:
    """The child's view of a segment. The descriptor is closed, once the mapping holds the memory.

    Raises OSError where there is no room for it now; then it can be tried again.
    """
    if name:
        return SharedSegment(number, nbytes, _named(name, nbytes), -1, name)
    segment = SharedSegment(number, nbytes, _mapped(descriptor, nbytes), -1)
    os.close(descriptor)
    return segment


def _nameless(nbytes: int, kind: SegmentKind) -> int:
    if kind == "memory" and sys.platform == "linux":
        return os.memfd_create("anygpu", os.MFD_CLOEXEC)
    import _posixshmem  # type: ignore[import-not-found]  # what multiprocessing.shared_memory stands on

    name = f"/anygpu-{secrets.token_hex(8)}"
    descriptor: int = _posixshmem.shm_open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode=0o600)
    _posixshmem.shm_unlink(name)
    return descriptor


def _mapped(descriptor: int, nbytes: int) -> mmap.mmap:
    """Maps the whole segment, in huge pages if it is large and Linux has them."""
    mapped = mmap.mmap(descriptor, nbytes)
    if sys.platform == "linux" and nbytes >= _HUGE_PAGES_FROM:
        # Refused by kernels that have no huge pages for shared memory, which work all the same.
        with contextlib.suppress(OSError):
            mapped.madvise(mmap.MADV_HUGEPAGE)
    return mapped


def _named(name: str, nbytes: int) -> mmap.mmap:
    if sys.platform == "win32":
        return mmap.mmap(-1, nbytes, tagname=name)
    raise OSError("only Windows has file mappings with a name")


class SharedMemory:
    """The worker's side: a pool of segments, and news of them for the child.

    The caller of `allocate` must hold the worker's lock; blocks may come back at any moment, from finalisers.
    """

    def __init__(
        self,
        device: str,
        *,
        kind: SegmentKind | None = None,
        keep_bytes: int = KEEP_BYTES,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        """Makes an empty pool. Up to `keep_bytes` are kept for later calls, for `idle_seconds` after their last use.

        `unannounced` has the segments that the child has yet to be told of, and `forgotten` the numbers that it may
        unmap.
        """
        self._device = device
        self._kind = kind or default_kind()
        self._root = DeviceMemory(self._new, self._drop, granularity=_PAGE)
        self._pool = Pool(self._root, keep_bytes=keep_bytes, idle_seconds=idle_seconds, smallest=4 * _PAGE)
        self._closed = False
        #: Bytes of every segment that exists, by its number.
        self._sizes: dict[int, int] = {}
        #: Results that are in use.
        self.out = 0
        #: Segments that the child has not been told of.
        self.unannounced: deque[SharedSegment] = deque()
        self.forgotten: deque[int] = deque()

    def allocate(self, nbytes: int) -> Block:
        """A block whose handle is a `Segment`."""
        return self._pool.allocate(nbytes)

    def release(self, block: Block) -> None:
        """Gives a block back to the pool, or to the system if the pool is closed."""
        if self._closed:
            self._close(block.handle)
        else:
            self._pool.release(block)

    def result(self, block: Block, spec: Spec) -> HostArray:
        """The values in a block, which goes back to the pool with the last view of them."""
        segment: SharedSegment = block.handle
        if self.out >= MOST_OUT:
            copy: HostArray = segment.array(spec).copy()
            self.release(block)
            return copy
        return Lent(self, block).array(spec)

    @property
    def live_bytes(self) -> int:
        return sum(list(self._sizes.values()))

    def expire(self) -> None:
        self._pool.expire()

    def reclaim(self) -> None:
        """Give back what is kept for the next calls."""
        self._pool.reclaim()

    def close(self) -> None:
        """Give back what is idle now, and the rest when its views are gone."""
        if not self._closed:
            self._closed = True
            self._pool.reclaim()

    def _new(self, nbytes: int) -> SharedSegment:
        """Makes a segment for the pool; raises `OutOfMemory` where the host has none left."""
        try:
            segment = new_segment(nbytes, self._kind)
        except (OSError, ValueError) as error:
            raise OutOfMemory("the host's shared memory", nbytes, host.memory_free()) from error
        self._sizes[segment.number] = nbytes
        self.unannounced.append(segment)
        return segment

    def _drop(self, segment: SharedSegment) -> None:
        self._close(segment)
        self.forgotten.append(segment.number)

    def _close(self, segment: SharedSegment) -> None:
        self._sizes.pop(segment.number, None)
        segment.close()


class Lent:
    """The memory of a segment as the base of an array, which returns it when the array is gone."""

    __slots__ = ("__array_interface__", "_block", "_shared")

    def __init__(self, shared: SharedMemory, block: Block) -> None:
        """Shows the block's memory as an array interface; the block goes back with this object."""
        self._shared = shared
        self._block = block
        shared.out += 1
        segment: SharedSegment = block.handle
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "typestr": "|u1",
            "shape": (segment.nbytes,),
            "data": (segment.address, False),
        }

    def array(self, spec: Spec) -> HostArray:
        whole: ByteArray = np.asarray(self)
        view: HostArray = whole[: spec.nbytes].view(numpy_dtype(spec.dtype)).reshape(spec.shape)
        return view

    def __del__(self) -> None:
        self._shared.out -= 1
        self._shared.release(self._block)


# -- shared memory as the child's side sees it: what was announced, and what is mapped


class AttachedSegments:
    """The segments of one link."""

    def __init__(self) -> None:
        self._mapped: dict[int, SharedSegment] = {}
        #: Segments that were announced and are not mapped yet, with their descriptors.
        self._announced: dict[int, tuple[Attached, int]] = {}

    def forget(self, envelope: Envelope) -> None:
        """Let go of what will not be used again."""
        for number in envelope.forgotten:
            segment = self._mapped.pop(number, None)
            if segment is not None:
                segment.close()
            _, descriptor = self._announced.pop(number, (None, -1))
            if descriptor >= 0:
                os.close(descriptor)

    def announce(self, envelope: Envelope, next_descriptor: Callable[[], int]) -> None:
        """Take what is new."""
        for new in envelope.attached:
            self._announced[new.segment] = (new, -1 if new.name else next_descriptor())

    def size(self, number: int) -> int:
        """The bytes of a segment, mapped or not."""
        found = self._mapped.get(number)
        return found.nbytes if found is not None else self._announced[number][0].nbytes

    def find(self, number: int, device: str) -> SharedSegment:
        """Mapped when it is first used: where there is no room for it now, a later task for `device` may have it."""
        found = self._mapped.get(number)
        if found is None:
            new, descriptor = self._announced[number]
            try:
                found = attached_segment(new.segment, new.nbytes, descriptor, new.name)
            except OSError as error:
                if error.errno != errno.ENOMEM:
                    raise
                raise OutOfMemory(device, new.nbytes) from error
            self._mapped[number] = found
            del self._announced[number]
        return found

    def close(self) -> None:
        """Let go of all of them."""
        for segment in self._mapped.values():
            segment.close()
        for _, descriptor in self._announced.values():
            if descriptor >= 0:
                os.close(descriptor)
        self._mapped.clear()
        self._announced.clear()
