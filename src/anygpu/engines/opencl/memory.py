"""Memory of an OpenCL device, and the three ways in which a host gets at it.

`SharedBlockMemory`: the device is made of the host's own processors. Blocks are ordinary memory, and nothing is ever
copied twice. Whether a driver really works on the memory it is given is tried out when the device is opened.
`MappedBlockMemory`: the device shares the host's memory chips (integrated GPUs), and blocks are mapped for each access.
`StagedBlockMemory`: the device has memory of its own, and bytes pass through page-locked memory of the host.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyopencl as cl

from anygpu.base.this_process import usable_processors
from anygpu.engines.driver import Bytes, Extent
from anygpu.engines.opencl import device

# -- large copies between two places in the host's memory


#: One core cannot use all of the bandwidth of the memory. Measured on two cores: below 4 MB, starting a thread costs
#: more than it saves; copies of 16 MB take 0.7 of the time, and of 64 MB 0.6.
WORTH_A_THREAD = 16 << 20

_PAGE = 4096


def copy_bytes(target: Bytes, source: Bytes) -> None:
    """`target[:] = source`, by two threads where that is faster. Returns when all of it is there."""
    if source.nbytes < WORTH_A_THREAD or usable_processors() < 2:
        target[:] = source
        return
    half = source.nbytes // 2 // _PAGE * _PAGE
    failed: list[BaseException] = []

    def copy_first() -> None:
        try:
            target[:half] = source[:half]
        except BaseException as error:  # noqa: BLE001 - raised where the copy was asked for
            failed.append(error)

    # A thread of its own: one that is kept would not be there after a fork, nor at the end of the interpreter.
    other = threading.Thread(target=copy_first, name="anygpu-copy", daemon=True)
    try:
        other.start()
    except RuntimeError:  # no thread can be started any more
        target[:] = source
        return
    try:
        target[half:] = source[half:]
    finally:
        _join(other)
    if failed:
        raise failed[0]


def _join(thread: threading.Thread) -> None:
    """Also while the caller is interrupted: what it copies to may belong to somebody else afterwards."""
    interrupted: BaseException | None = None
    while thread.is_alive():
        try:
            thread.join()
        except BaseException as error:  # noqa: BLE001 - Ctrl-C, raised below
            interrupted = error
    if interrupted is not None:
        raise interrupted


# -- submissions that the device is done with: the host may touch their memory, or give it back


class Submissions:
    """Numbers in the order of an in-order queue: when one is done, so are all before it."""

    def __init__(self, device: str) -> None:
        """Submissions are numbered from 1; 0 is done from the beginning."""
        self._device = device
        self._newest = 0
        self._done = 0
        self._pending: deque[tuple[int, Any]] = deque()

    @property
    def next(self) -> int:
        """The number that the next one will have."""
        return self._newest + 1

    def add(self, last_event: Any) -> int:
        """Number a submission by its last event."""
        self._newest += 1
        self._pending.append((self._newest, last_event))
        return self._newest

    def is_done(self, number: int) -> bool:
        """Whether a submission is complete; asks the device only where that is not known yet."""
        if number > self._done:
            self.look()
        return number <= self._done

    def look(self) -> int:
        """The newest that is done; forgets the events of all that are."""
        pending = self._pending
        # Negative is the code of what went wrong: that is done as well, and `wait` says so.
        while pending and pending[0][1].get_info(cl.event_info.COMMAND_EXECUTION_STATUS) == 0:
            self._done = pending.popleft()[0]
        return self._done

    def wait(self, number: int) -> None:
        """Return when it is done; raises what the device says went wrong in it or before it."""
        if self.is_done(number):
            return
        pending = self._pending
        while pending and pending[0][0] <= number:
            done, event = pending.popleft()
            try:
                event.wait()
            except cl.Error as error:
                status = int(event.get_info(cl.event_info.COMMAND_EXECUTION_STATUS))
                if typed := device.by_code(status, self._device):
                    raise typed from error
                raise
            finally:
                self._done = done

    def event_of(self, number: int) -> Any | None:
        """The event of that submission, or of a later one; `None` if it is done."""
        if self.is_done(number):
            return None
        return next((event for newer, event in self._pending if newer >= number), None)

    def wait_for_all(self) -> None:
        self.wait(self._newest)

    def forget(self) -> None:
        self._pending.clear()
        self._done = self._newest


# -- blocks


_CACHE_LINE = 64
#: From here on memory comes from the system in pages that are 512 times as large, which halves the cost of first use.
_HUGE_PAGES_FROM = 4 << 20
_CHUNK = 4 << 20
_CHUNKS = 4

_PARTS_KEPT = 64
_part_numbers = itertools.count(1)


class BoundPart(NamedTuple):
    """What a kernel is given for an extent. The number tells two parts apart without keeping either alive."""

    number: int
    buffer: Any


class OpenCLBlock:
    """A piece of memory. It lives as long as it is held: by a driver's caller, or by a view of its bytes."""

    __slots__ = ("__weakref__", "_parts", "_whole", "buffer", "host", "last_use", "nbytes")

    def __init__(self, buffer: Any, nbytes: int, host: Bytes | None = None) -> None:
        """A buffer, with the host's memory behind it where both share one."""
        self.buffer = buffer
        self.nbytes = nbytes
        #: The same bytes as the host sees them, where it always does.
        self.host = host
        #: The number of the last submission that has to do with it.
        self.last_use = 0
        self._whole = BoundPart(next(_part_numbers), buffer)
        self._parts: dict[tuple[int, int], BoundPart] = {}

    def part(self, offset: int, nbytes: int) -> BoundPart:
        """The smallest part: what a kernel does with two parts that overlap is undefined in OpenCL."""
        # An empty part may begin where the block ends; it is never looked at, but something must be given.
        if (offset == 0 and nbytes + 3 >= self.nbytes) or offset >= self.nbytes:
            return self._whole
        part = self._parts.get((offset, nbytes))
        if part is None:
            if len(self._parts) >= _PARTS_KEPT:
                self._parts.clear()
            size = min(max(nbytes + 3 & ~3, 4), self.nbytes - offset)
            part = BoundPart(next(_part_numbers), self.buffer.get_sub_region(offset, size))
            self._parts[offset, nbytes] = part
        return part


class LentView:
    """What a NumPy view of a block stands on: holds the block, its mapping and its owner until no view is left."""

    __slots__ = ("__array_interface__", "_held")

    def __init__(self, array: Bytes, held: tuple[object, ...]) -> None:
        """The array's memory without its methods, for reading; `held` are objects that live as long as it."""
        self._held = (array, *held)
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": array.shape,
            "data": (array.ctypes.data, True),
        }

    def array(self) -> Bytes:
        view: Bytes = np.asarray(self)
        return view


class BlockMemory(Protocol):
    """How blocks are made, and how the host reads and writes them."""

    def allocate(self, nbytes: int) -> OpenCLBlock: ...

    def write(self, extent: Extent, data: Bytes) -> None: ...

    def read(self, extent: Extent, target: Bytes) -> None: ...

    def view(self, extent: Extent, owner: object) -> Bytes | None:
        """The bytes in place, when everything that writes them is done; `None` where the host cannot see them."""

    def finish(self) -> None:
        """Return when everything that was written is there."""


class SharedBlockMemory:
    """Memory that device and host share: buffers over our own pages, without copies."""

    def __init__(self, context: Any, alignment: int, submissions: Submissions, *, beside: bool = False) -> None:
        """With `beside` it copies while the device computes, on the same processors: by one thread, and not by two."""
        self._context = context
        self._alignment = max(alignment, _CACHE_LINE)
        self._submissions = submissions
        self._copy: Callable[[Bytes, Bytes], None] = np.copyto if beside else copy_bytes

    def allocate(self, nbytes: int) -> OpenCLBlock:
        """A block over new pages of the host."""
        host = host_memory(nbytes, self._alignment)
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
        return OpenCLBlock(cl.Buffer(self._context, flags, hostbuf=host), nbytes, host)

    def write(self, extent: Extent, data: Bytes) -> None:
        self._submissions.wait(extent.block.last_use)
        self._copy(self._bytes(extent), data)

    def read(self, extent: Extent, target: Bytes) -> None:
        self._submissions.wait(extent.block.last_use)
        self._copy(target, self._bytes(extent))

    def view(self, extent: Extent, owner: object) -> Bytes:
        self._submissions.wait(extent.block.last_use)
        return LentView(self._bytes(extent), (extent.block, owner)).array()

    def finish(self) -> None:
        """The host has written it itself."""

    @staticmethod
    def _bytes(extent: Extent) -> Bytes:
        bytes_of_block: Bytes = extent.block.host
        return bytes_of_block[extent.offset : extent.offset + extent.nbytes]


class MappedBlockMemory:
    """Memory that is mapped into the host for each copy."""

    def __init__(self, context: Any, queue: Any, submissions: Submissions) -> None:
        """Memory that the driver allocates where it likes."""
        self._context = context
        self._queue = queue
        self._submissions = submissions

    def allocate(self, nbytes: int) -> OpenCLBlock:
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
        return OpenCLBlock(cl.Buffer(self._context, flags, nbytes), nbytes)

    def write(self, extent: Extent, data: Bytes) -> None:
        """Copy bytes through a mapping that drops the old contents."""
        mapped = self._map(extent, cl.map_flags.WRITE_INVALIDATE_REGION)
        mapped[:] = data
        mapped.base.release(self._queue)

    def read(self, extent: Extent, target: Bytes) -> None:
        """Copy bytes through a mapping."""
        mapped = self._map(extent, cl.map_flags.READ)
        target[:] = mapped
        mapped.base.release(self._queue)

    def view(self, extent: Extent, owner: object) -> Bytes:
        """An array over mapped memory, which keeps the block alive."""
        # The mapping ends with the view: pyopencl releases it with its last reference.
        return LentView(self._map(extent, cl.map_flags.READ), (extent.block, owner)).array()

    def finish(self) -> None:
        self._queue.finish()

    def _map(self, extent: Extent, flags: int) -> Any:
        """A part of a buffer as an array, after all submissions are done."""
        # What went wrong before is raised by the one who knows its code.
        self._submissions.wait_for_all()
        mapped, _ = cl.enqueue_map_buffer(
            self._queue, extent.block.buffer, flags, extent.offset, (extent.nbytes,), np.uint8, is_blocking=True
        )
        return mapped


class StagedBlockMemory:
    """Writes return as soon as the bytes are in page-locked memory; a ring of chunks lets copies overlap."""

    def __init__(self, context: Any, queue: Any, submissions: Submissions) -> None:
        """A ring of page-locked pieces, through which copies pass; made when they are needed."""
        self._context = context
        self._queue = queue
        self._submissions = submissions
        self._ring: list[tuple[Bytes, Any]] = []
        self._turn = 0
        #: For each chunk the event of the copy that uses it.
        self._busy: list[Any] = [None] * _CHUNKS

    def allocate(self, nbytes: int) -> OpenCLBlock:
        """A block on the device. A first write makes drivers that allocate late do so now, where it can be handled."""
        block = OpenCLBlock(cl.Buffer(self._context, cl.mem_flags.READ_WRITE, nbytes), nbytes)
        # Drivers only promise memory until it is first used; a promise that cannot be kept had better fail here.
        event = cl.enqueue_fill_buffer(self._queue, block.buffer, np.zeros(1, np.uint32), 0, 4)
        block.last_use = self._submissions.add(event)
        return block

    def write(self, extent: Extent, data: Bytes) -> None:
        """Copy bytes piece by piece: one is filled while the others are on their way."""
        event = None
        for begin in range(0, len(data), _CHUNK):
            turn, chunk = self._next_chunk()
            piece = data[begin : begin + _CHUNK]
            staged = chunk[: len(piece)]
            staged[:] = piece
            event = self._busy[turn] = cl.enqueue_copy(
                self._queue, extent.block.buffer, staged, dst_offset=extent.offset + begin, is_blocking=False
            )
        if event is not None:
            extent.block.last_use = self._submissions.add(event)

    def read(self, extent: Extent, target: Bytes) -> None:
        """Copy bytes piece by piece: one is emptied while the others arrive."""
        arriving: list[tuple[Any, Bytes, Bytes]] = []
        for begin in range(0, extent.nbytes, _CHUNK):
            if len(arriving) == _CHUNKS - 1:
                _arrive(arriving.pop(0))
            turn, chunk = self._next_chunk()
            part = target[begin : begin + _CHUNK]
            staged = chunk[: len(part)]
            event = self._busy[turn] = cl.enqueue_copy(
                self._queue, staged, extent.block.buffer, src_offset=extent.offset + begin, is_blocking=False
            )
            arriving.append((event, staged, part))
        for each in arriving:
            _arrive(each)

    def view(self, extent: Extent, owner: object) -> None:
        return None

    def finish(self) -> None:
        self._submissions.wait_for_all()

    def _next_chunk(self) -> tuple[int, Bytes]:
        """The next piece of the ring, free to be used; waits for its last copy."""
        turn = self._turn
        self._turn = (turn + 1) % _CHUNKS
        if turn == len(self._ring):
            self._ring.append(self._page_locked())
        if (event := self._busy[turn]) is not None:
            event.wait()
        return turn, self._ring[turn][0]

    def _page_locked(self) -> tuple[Bytes, Any]:
        """A page-locked piece for copies, and the buffer that keeps it."""
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
        buffer = cl.Buffer(self._context, flags, _CHUNK)
        access = cl.map_flags.READ | cl.map_flags.WRITE
        mapped, _ = cl.enqueue_map_buffer(self._queue, buffer, access, 0, (_CHUNK,), np.uint8, is_blocking=True)
        return mapped, buffer


def _arrive(arriving: tuple[Any, Bytes, Bytes]) -> None:
    """Wait for a piece, and copy it to its target."""
    event, staged, target = arriving
    event.wait()
    target[:] = staged


def host_memory(nbytes: int, alignment: int) -> Bytes:
    """Ordinary memory that begins at a multiple of `alignment`."""
    if nbytes >= _HUGE_PAGES_FROM:
        return np.frombuffer(_pages(nbytes), np.uint8)
    roomy = np.empty(nbytes + alignment, np.uint8)
    start = -roomy.ctypes.data % alignment
    return roomy[start : start + nbytes]


def _pages(nbytes: int) -> mmap.mmap:
    """New pages, large ones where Linux has them. Raises `MemoryError`."""
    try:
        if sys.platform == "win32":
            return mmap.mmap(-1, nbytes)
        pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"the system gives no {nbytes} bytes: {error}") from error
    if sys.platform == "linux":
        # A kernel without huge pages refuses the advice, and works all the same.
        with contextlib.suppress(OSError):
            pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


def works_in_place(context: Any, queue: Any, alignment: int) -> bool:
    """Whether the device and the host see each other's writes to the same bytes with no mapping in between."""
    size = 256
    source, target = (host_memory(size, max(alignment, _CACHE_LINE)) for _ in range(2))
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
    source[:] = target[:] = 0
    buffers = [cl.Buffer(context, flags, hostbuf=host) for host in (source, target)]
    for value in (1, 2):  # twice: the second time a secret copy would be stale
        source[:] = value
        cl.enqueue_copy(queue, buffers[1], buffers[0], byte_count=size).wait()
        if not (target == value).all():
            return False
    return True
