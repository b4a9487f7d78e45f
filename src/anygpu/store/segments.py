"""The files of a shared store: its private folder, a directory of its tensors, and segments of shared memory.

Only this user can use the folder, which has one lock. Each process holds a lock on a file of its own, which the kernel
releases however the process ends: so processes need not sign off, and no count can be wrong.

A segment is writable for its creator, and read-only for the others. A mapping of Python's keeps a descriptor of its
file, and the descriptor keeps the file held. So a segment is held by a process exactly as long as an array of it
exists.
"""

from __future__ import annotations

import contextlib
import errno
import math
import mmap
import os
import secrets
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from anygpu.base.cache_folder import acquire_lock, release_lock, try_lock, why_not_private
from anygpu.base.typing import HostArray
from anygpu.engines.host_arrays import numpy_dtype
from anygpu.errors import OutOfMemory, StoreError
from anygpu.program.dtypes import ITEMSIZE, DType
from anygpu.program.primitives import Spec
from anygpu.workers import shared_memory as worker_memory

if sys.platform != "win32":
    import fcntl

#: Seconds that a process waits for the folder lock, which others hold for less than a millisecond.
LOCK_SECONDS = 10.0

_LOCK = "lock"
_NEW = "new-"
_NO_ROOM = (errno.ENOSPC, errno.ENOMEM, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))


# -- the folder


class _Sections(threading.local):
    """Folders that this thread has locked. A finaliser that runs meanwhile must not wait for its own thread."""

    def __init__(self) -> None:
        self.inside = 0
        self.afterwards: list[Callable[[], None]] = []


_sections = _Sections()


def outside_of_locks(action: Callable[[], None]) -> None:
    """Call it now, or as soon as this thread has no folder locked."""
    if _sections.inside:
        _sections.afterwards.append(action)
    else:
        action()


class PrivateFolder:
    """A folder whose files are all opened through one descriptor, so that no process can substitute another folder."""

    def __init__(self, path: Path) -> None:
        """Create or open it. Raises FileNotFoundError if another process removed it in between."""
        self.path = path
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            pass
        except OSError as error:
            raise StoreError(
                f"{path} cannot be made ({error.strerror}). Open the store within a folder that can be written."
            ) from error
        try:
            self.descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _refused(path, f"it is not a folder that can be opened ({error.strerror})") from error
        try:
            _check_private(path, os.fstat(self.descriptor), folder=True)
        except StoreError:
            self.close()
            raise

    def close(self) -> None:
        """Closes the folder's descriptor; may be called twice."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def names(self) -> list[str]:
        return os.listdir(self.descriptor)  # noqa: PTH208 (by descriptor)

    def open(self, name: str, *, writing: bool = False, create: bool = False, new: bool = False) -> int:
        """A descriptor of a file that this user owns. Raises FileNotFoundError if there is none."""
        flags = os.O_RDWR if writing else os.O_RDONLY
        flags |= (os.O_CREAT if create or new else 0) | (os.O_EXCL if new else 0)
        # A pipe in place of the file would let the opening wait for ever.
        flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        path = self.path / name
        try:
            descriptor = os.open(name, flags, 0o600, dir_fd=self.descriptor)
        except (FileNotFoundError, FileExistsError):
            raise
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise no_room(0, self.descriptor) from error
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise StoreError(
                    f"{path} cannot be opened: this process has reached its limit of open files, and each attached "
                    "tensor takes one. Raise the limit (ulimit -n)."
                ) from error
            raise _refused(path, f"it is not a file that can be opened ({error.strerror})") from error
        try:
            _check_private(path, os.fstat(descriptor), folder=False)
        except StoreError:
            os.close(descriptor)
            raise
        return descriptor

    def replace(self, name: str, content: bytes, seconds: int) -> None:
        """Others see the old file or the new one, never a part. `seconds` becomes its time of last change."""
        new = _NEW + secrets.token_hex(8)
        descriptor = self.open(new, writing=True, new=True)
        try:
            try:
                with room_for(len(content), descriptor):
                    rest = memoryview(content)
                    while rest:
                        rest = rest[os.write(descriptor, rest) :]
            finally:
                os.close(descriptor)
            os.utime(new, (seconds, seconds), dir_fd=self.descriptor)
            os.replace(new, name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
        except BaseException:
            self.remove(new)
            raise

    def changed_at(self, name: str) -> int:
        """Its time of last change in seconds, and 0 where there is none."""
        try:
            return int(os.stat(name, dir_fd=self.descriptor, follow_symlinks=False).st_mtime)
        except FileNotFoundError:
            return 0

    def remove(self, name: str) -> None:
        """Remove a file, if there is one."""
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=self.descriptor)

    def held(self, name: str) -> bool:
        """Whether any process holds the file. The caller must hold the folder lock."""
        try:
            descriptor = self.open(name)
        except (FileNotFoundError, StoreError):
            return False
        try:
            return not try_lock(descriptor)
        finally:
            os.close(descriptor)

    def new_leftovers(self, names: list[str]) -> list[str]:
        """Files whose process died while writing them. The caller must hold the folder lock."""
        return [name for name in names if name.startswith(_NEW)]

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """No other thread or process changes anything inside. Raises FileNotFoundError if the folder was removed."""
        descriptor = self._locked()
        _sections.inside += 1
        try:
            yield
        finally:
            _sections.inside -= 1
            release_lock(descriptor)
            while _sections.afterwards and not _sections.inside:
                _sections.afterwards.pop()()

    def _locked(self) -> int:
        """Acquire the folder's lock, and return its descriptor. Raises `StoreError` after `LOCK_SECONDS`."""
        while True:
            # Opened each time: threads of one process exclude each other only with descriptors of their own.
            descriptor = self.open(_LOCK, writing=True, create=True)
            try:
                if not acquire_lock(descriptor, LOCK_SECONDS):
                    raise StoreError(
                        f"another process has been changing {self.path} for {LOCK_SECONDS:g} seconds, so it seems "
                        "to be stopped. Let it go on, or end it; its lock goes with it."
                    )
                if os.fstat(descriptor).st_nlink:
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # the last process removed it while we waited; there may be another by now

    def remove_all(self) -> None:
        """Remove the folder, the lock last: a process that arrives in between makes a new lock and keeps the folder."""
        self.clear()
        self.remove(_LOCK)
        with contextlib.suppress(OSError):
            here = self.path.lstat()
            if os.path.samestat(here, os.fstat(self.descriptor)):
                self.path.rmdir()

    def clear(self) -> None:
        """Removes every file but the lock. The caller must hold the folder lock."""
        for name in self.names():
            if name != _LOCK:
                self.remove(name)


@contextlib.contextmanager
def room_for(nbytes: int, descriptor: int) -> Iterator[None]:
    """Turns errors of the system that mean a lack of memory into `OutOfMemory`."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise no_room(nbytes, descriptor) from error


def no_room(nbytes: int, descriptor: int) -> OutOfMemory:
    """Returns the error for shared memory that is full, with the bytes that are left."""
    found = os.fstatvfs(descriptor)
    return OutOfMemory("the host's shared memory", nbytes, found.f_bavail * found.f_frsize)


def hold(descriptor: int) -> None:
    """Hold the file until every copy of the descriptor is closed. Waits only for processes that check it."""
    fcntl.flock(descriptor, fcntl.LOCK_SH)


def _check_private(path: Path, found: os.stat_result, *, folder: bool) -> None:
    """Raises `StoreError` if the file or folder is of another kind, or if other users may use it."""
    if folder and not stat.S_ISDIR(found.st_mode):
        raise _refused(path, "it is not a folder")
    if not folder and not stat.S_ISREG(found.st_mode):
        raise _refused(path, "it is not an ordinary file")
    if (why := why_not_private(found)) is not None:
        raise _refused(path, why)


def _refused(path: Path, why: str) -> StoreError:
    """Returns the error for a file or folder that must not be used."""
    return StoreError(
        f"{path} is not used: {why}. Tensors are shared between processes of one user only. Remove it if it is yours, "
        "or use another name for the store."
    )


# -- the directory: one record of all tensors, read in full or refused


#: The namespaces, and the name last.
SegmentKey = tuple[str, ...]

FORMAT = 1
#: A directory of more bytes than this was not written by us.
MOST_BYTES = 16 << 20
#: Where a tensor begins in its segment: a line of the processor's cache.
ALIGNMENT = 64

#: As NumPy has it.
MOST_AXES = 64

_MOST = 1 << 62

_Count = Annotated[int, Meta(ge=0, lt=_MOST)]


class SegmentEntry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One tensor: whose it is, and where its bytes are."""

    key: Annotated[SegmentKey, Meta(min_length=1)]
    owner: str
    #: The hash of its content as the publishing process computed it; may be empty.
    hash: str
    dtype: DType
    shape: Annotated[tuple[_Count, ...], Meta(max_length=MOST_AXES)]
    segment: Annotated[str, Meta(pattern="^segment-[0-9a-f]{32}\\Z")]
    offset: _Count
    #: The generation of the directory that had it first: no two tensors of one name ever have the same.
    version: Annotated[int, Meta(ge=1, lt=_MOST)]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEMSIZE[self.dtype]


class Directory(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The directory of a shared store: all its tensors, and a generation that changes with them."""

    format: int = FORMAT
    generation: _Count = 0
    entries: tuple[SegmentEntry, ...] = ()

    def by_key(self) -> dict[SegmentKey, SegmentEntry]:
        return {entry.key: entry for entry in self.entries}

    def segments(self) -> frozenset[str]:
        return frozenset(entry.segment for entry in self.entries)

    def without(self, keys: frozenset[SegmentKey], added: tuple[SegmentEntry, ...] = ()) -> Directory:
        """Returns the next generation of the directory, without these keys and with the added entries."""
        kept = tuple(entry for entry in self.entries if entry.key not in keys)
        return Directory(FORMAT, self.generation + 1, kept + added)


EMPTY = Directory()

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Directory)


def encode(directory: Directory) -> bytes:
    """Raises UnicodeEncodeError for names that no file can have, and StoreError for too many tensors."""
    content = _encoder.encode(directory)
    if len(content) > MOST_BYTES:
        raise StoreError(
            f"the directory of a shared store has at most {MOST_BYTES:,} bytes, and this one would have "
            f"{len(content):,}. Use several stores, or shorter names."
        )
    return content


def decode(content: bytes) -> Directory:
    """Raises ValueError with the reason, for anything that `encode` cannot have written."""
    if len(content) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
    try:
        directory = _decoder.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise ValueError(str(error)) from error
    if directory.format != FORMAT:
        raise ValueError(f"it has the format {directory.format}, and this version of anygpu knows {FORMAT} only")
    seen: set[SegmentKey] = set()
    for entry in directory.entries:
        _check(entry, directory.generation)
        if entry.key in seen:
            raise ValueError(f"it has {entry.key} twice")
        seen.add(entry.key)
    return directory


def fits_anywhere(shape: tuple[int, ...], dtype: DType) -> bool:
    """The zeros do not count, because NumPy multiplies the others all the same."""
    return len(shape) <= MOST_AXES and math.prod(size for size in shape if size) * ITEMSIZE[dtype] < _MOST


def _check(entry: SegmentEntry, generation: int) -> None:
    """Raises ValueError for an entry that no process can have written."""
    if not fits_anywhere(entry.shape, entry.dtype):
        raise ValueError(f"{entry.key} has the shape {entry.shape}, which no memory holds")
    if entry.offset % ALIGNMENT:
        raise ValueError(f"{entry.key} begins at byte {entry.offset}, where no tensor begins")
    if entry.version > generation:
        raise ValueError(f"{entry.key} is newer than the directory")


# -- segments


PREFIX = "segment-"

_PAGE = 4096
_PIECE = 64 << 20


class ReservedSegment:
    """Reserved memory to write into; invisible to other processes until it is published."""

    def __init__(self, name: str, spec: Spec, memory: worker_memory.SharedSegment) -> None:
        """Shows the memory as a writable array; it is given back with this object unless it is published."""
        self.name = name
        self.spec = spec
        self._memory = memory
        #: Writable for the process that reserved it; read-only once it is published.
        self.values: HostArray = memory.array(spec)
        self.published = False

    def seal(self) -> None:
        """Make the values read-only. Views that were taken before can still write."""
        self.published = True
        self.values.flags.writeable = False
        self._memory.close()


def layout(specs: Sequence[Spec]) -> tuple[list[int], int]:
    """Returns the offset of each tensor in one segment, aligned, and the length of the whole."""
    offsets, end = [], 0
    for spec in specs:
        offsets.append(end)
        end += -(-spec.nbytes // ALIGNMENT) * ALIGNMENT
    return offsets, end


def create(folder: PrivateFolder) -> tuple[str, int]:
    """An empty segment, held. The caller must hold the folder lock: until it is held, it looks like a leftover."""
    name = PREFIX + secrets.token_hex(16)
    descriptor = folder.open(name, writing=True, new=True)
    hold(descriptor)
    return name, descriptor


def writable(name: str, descriptor: int, spec: Spec) -> ReservedSegment:
    """Takes the descriptor over."""
    try:
        nbytes = _size(spec.nbytes)
        with room_for(nbytes, descriptor):
            _allocate(descriptor, nbytes)
            memory = worker_memory.attached_segment(0, nbytes, descriptor, "")
    except BaseException:
        os.close(descriptor)
        raise
    return ReservedSegment(name, spec, memory)


def write(descriptor: int, nbytes: int, offsets: Sequence[int], arrays: Sequence[HostArray]) -> None:
    """Through the file, which tells of missing memory in a way that a mapping cannot: that one kills the process."""
    with room_for(nbytes, descriptor):
        for offset, values in zip(offsets, arrays, strict=True):
            for begin, piece in _pieces(values):
                _write(descriptor, piece, offset + begin)
        if os.fstat(descriptor).st_size < _size(nbytes):
            os.ftruncate(descriptor, _size(nbytes))


def readable(folder: PrivateFolder, name: str) -> mmap.mmap:
    """The whole segment, read-only and held. Raises FileNotFoundError where it was removed."""
    descriptor = folder.open(name)
    try:
        hold(descriptor)
        return mapped(descriptor)
    finally:
        os.close(descriptor)


def mapped(descriptor: int) -> mmap.mmap:
    """The segment of a descriptor, which the mapping keeps a copy of."""
    nbytes = os.fstat(descriptor).st_size
    if not nbytes:
        raise StoreError("a segment of a shared store is empty, so the directory of the store is wrong about it.")
    return mmap.mmap(descriptor, nbytes, access=mmap.ACCESS_READ)


def tensor(memory: mmap.mmap, entry: SegmentEntry) -> HostArray:
    """Read-only, and nothing is copied or even read."""
    end = entry.offset + entry.nbytes
    if end > len(memory):
        raise StoreError(
            f"{entry.key} should have {entry.nbytes:,} bytes from {entry.offset:,} on, and its segment "
            f"{entry.segment} has {len(memory):,} in all, so the directory of the store is wrong about it."
        )
    flat = np.frombuffer(memory, np.uint8, entry.nbytes, entry.offset)
    values: HostArray = flat.view(numpy_dtype(entry.dtype)).reshape(entry.shape)
    return values


def same_bytes(one: HostArray, other: HostArray) -> bool:
    """Whether both have the same bytes, NaNs included. It compares in pieces, and ends at the first that differs."""
    flat = other.reshape(-1).view(np.uint8)
    return all(np.array_equal(piece, flat[begin : begin + len(piece)]) for begin, piece in _pieces(one))


def _size(nbytes: int) -> int:
    return max(nbytes, _PAGE)


def _allocate(descriptor: int, nbytes: int) -> None:
    """Allocates the memory of a segment now: a later lack of it would kill the process that writes."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, nbytes)
        return
    zeros = np.zeros(min(nbytes, 1 << 20), np.uint8)
    for begin in range(0, nbytes, len(zeros)):
        _write(descriptor, zeros[: nbytes - begin], begin)


def _pieces(values: HostArray) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    """Its bytes in order, and where each piece begins. Only what is not contiguous is copied, a piece at a time."""
    if values.flags.c_contiguous:
        flat = values.reshape(-1).view(np.uint8)
        for begin in range(0, flat.nbytes, _PIECE):
            yield begin, flat[begin : begin + _PIECE]
        return
    if values.nbytes <= _PIECE or len(values) == 1:
        yield from _pieces(np.ascontiguousarray(values))
        return
    rows = max(1, _PIECE * len(values) // values.nbytes)
    each = values.nbytes // len(values)
    for first in range(0, len(values), rows):
        for begin, piece in _pieces(np.ascontiguousarray(values[first : first + rows])):
            yield first * each + begin, piece


def _write(descriptor: int, piece: npt.NDArray[np.uint8], offset: int) -> None:
    """Writes all bytes at an offset."""
    rest = piece.data
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written
