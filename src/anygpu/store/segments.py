"""The files of a shared store: a directory of its tensors, and segments of memory that processes map.

A segment is writable for its creator, and read-only for the others. A mapping of Python's keeps a descriptor of its
file, and the descriptor keeps the file held (see `private_folder`). So a segment is held by a process exactly as long
as an array of it exists.
"""

from __future__ import annotations

import math
import mmap
import os
import secrets
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from anygpu.base.typing import HostArray
from anygpu.engines.host_arrays import numpy_dtype
from anygpu.errors import StoreError
from anygpu.program.dtypes import ITEMSIZE, DType
from anygpu.program.primitives import Spec
from anygpu.store.private_folder import PrivateFolder, hold, room_for
from anygpu.workers import shared_memory as worker_memory

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
    """Where each begins in one segment, and how long that is."""
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
    """Also where both have NaNs. In pieces, so that it ends at the first that differs."""
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
