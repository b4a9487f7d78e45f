"""The directory of a shared store: one record of all its tensors, read in full or refused."""

from __future__ import annotations

import math
from typing import Annotated

import msgspec
from msgspec import Meta

from anygpu.errors import StoreError
from anygpu.program.dtypes import ITEMSIZE, DType

#: The namespaces, and the name last.
Key = tuple[str, ...]

FORMAT = 1
#: A directory of more bytes than this was not written by us.
MOST_BYTES = 16 << 20
#: Where a tensor begins in its segment: a line of the processor's cache.
ALIGNMENT = 64

#: As NumPy has it.
MOST_AXES = 64

_MOST = 1 << 62

_Count = Annotated[int, Meta(ge=0, lt=_MOST)]


class Entry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One tensor: whose it is, and where its bytes are."""

    key: Annotated[Key, Meta(min_length=1)]
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
    format: int = FORMAT
    generation: _Count = 0
    entries: tuple[Entry, ...] = ()

    def by_key(self) -> dict[Key, Entry]:
        return {entry.key: entry for entry in self.entries}

    def segments(self) -> frozenset[str]:
        return frozenset(entry.segment for entry in self.entries)

    def without(self, keys: frozenset[Key], added: tuple[Entry, ...] = ()) -> Directory:
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
    seen: set[Key] = set()
    for entry in directory.entries:
        _check(entry, directory.generation)
        if entry.key in seen:
            raise ValueError(f"it has {entry.key} twice")
        seen.add(entry.key)
    return directory


def fits_anywhere(shape: tuple[int, ...], dtype: DType) -> bool:
    """The zeros do not count, because NumPy multiplies the others all the same."""
    return len(shape) <= MOST_AXES and math.prod(size for size in shape if size) * ITEMSIZE[dtype] < _MOST


def _check(entry: Entry, generation: int) -> None:
    if not fits_anywhere(entry.shape, entry.dtype):
        raise ValueError(f"{entry.key} has the shape {entry.shape}, which no memory holds")
    if entry.offset % ALIGNMENT:
        raise ValueError(f"{entry.key} begins at byte {entry.offset}, where no tensor begins")
    if entry.version > generation:
        raise ValueError(f"{entry.key} is newer than the directory")
