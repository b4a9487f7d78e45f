"""The file that a stream writes: whether it is also read, and the record by which a stream is resumed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from anygpu.base.typing import HostArray
from anygpu.base.units import readable_bytes
from anygpu.errors import InvalidOption
from anygpu.runtime.streams.sinks import StreamSink, ToArray, ToFile, ToZarr
from anygpu.runtime.streams.sources import Identity, InFile, InMemory, StreamSource
from anygpu.store.tensor_files.header import FileRange
from anygpu.store.tensor_files.writing import sync_folder

# -- whether a stream would read what it writes: later chunks would see the results of earlier ones
#
# In place is right only where each chunk is written exactly where it was read: the same array, cut along the same axis.
# Everything else that overlaps is refused, before anything is written.


#: Work that NumPy may do to find out whether two arrays overlap; when that is not enough, they may.
_WORK = 100_000


def check_apart(sinks: Sequence[StreamSink], sources: Sequence[StreamSource], aligned: Sequence[bool]) -> None:
    """Raises if they are not. `aligned`: for each sink, whether it is cut where the sources are."""
    for number, sink in enumerate(sinks):
        for source in sources:
            if _conflict(sink, source, aligned[number]):
                raise InvalidOption(
                    f"{_named(sink)} is read and written by the same stream, and not in the same places. Write to "
                    "another array or file."
                )
        for other in sinks[:number]:
            if _same(sink, other):
                raise InvalidOption(f"two results of the stream go to {_named(sink)}. Give each a sink of its own.")


def in_place(sinks: Sequence[StreamSink], source: StreamSource) -> bool:
    """Whether a sink writes to the file of the source, which changes it therefore."""
    path = _file_of_source(source)
    return path is not None and any(_is_same_file(path, _file_of_sink(each)) for each in sinks)


def _conflict(sink: StreamSink, source: StreamSource, aligned: bool) -> bool:
    """Whether writing to this sink would change what a later chunk reads from the source."""
    if isinstance(sink, ToZarr):
        theirs = getattr(source, "folder", None)
        return theirs is not None and sink.folder == theirs
    if isinstance(sink, ToFile):
        return _is_same_file(_file_of_source(source), sink.path)
    if not isinstance(sink, ToArray):
        return False
    if isinstance(source, InMemory) and _overlap(sink.array, source.array):
        return not (aligned and _is_same_array(sink.array, source.array))
    if not _is_same_file(_file_of_source(source), _file_of_sink(sink)):
        return False
    if not isinstance(source, InFile) or sink.file_range is None:
        return True  # at least one of them is not one span of the file
    read, written = source.file_range, sink.file_range
    if read.offset + read.nbytes <= written.offset or written.offset + written.nbytes <= read.offset:
        return False
    return not (aligned and _position(read) == _position(written))


def _same(one: StreamSink, other: StreamSink) -> bool:
    """Whether two sinks would write to the same memory, file or folder."""
    if isinstance(one, ToArray) and isinstance(other, ToArray):
        return _overlap(one.array, other.array)
    if isinstance(one, ToFile) and isinstance(other, ToFile):
        return one.path.resolve() == other.path.resolve()
    return isinstance(one, ToZarr) and isinstance(other, ToZarr) and one.folder == other.folder


def _overlap(one: HostArray, other: HostArray) -> bool:
    """Whether two arrays share memory; where that is too hard to tell, they count as sharing it."""
    try:
        return bool(np.shares_memory(one, other, max_work=_WORK))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _is_same_array(one: HostArray, other: HostArray) -> bool:
    """Whether both are the same elements in the same order, so that a chunk is read before it is overwritten."""
    return (one.ctypes.data, one.strides, one.shape, one.dtype) == (
        other.ctypes.data,
        other.strides,
        other.shape,
        other.dtype,
    )


def _position(file_range: FileRange) -> tuple[Any, ...]:
    return file_range.offset, file_range.shape, file_range.dtype, file_range.fortran


def _file_of_source(source: StreamSource) -> Path | None:
    if isinstance(source, InFile):
        return source.file_range.path
    return _mapped(source.array) if isinstance(source, InMemory) else None


def _file_of_sink(sink: StreamSink) -> Path | None:
    if isinstance(sink, ToFile):
        return sink.path
    return _mapped(sink.array) if isinstance(sink, ToArray) else None


def _mapped(array: Any) -> Path | None:
    """The file that an array, or what it is a part of, maps."""
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap) and array.filename is not None:
            return Path(array.filename)
        array = array.base
    return None


def _is_same_file(one: Path | None, other: Path | None) -> bool:
    """Whether both paths lead to one file, through links too; a file that does not exist is compared by its path."""
    if one is None or other is None:
        return False
    try:
        return one.samefile(other)
    except OSError:  # one of them is not there
        return one.resolve() == other.resolve()


def _named(sink: StreamSink) -> str:
    """Returns how a sink is called in a message."""
    path = _file_of_sink(sink)
    if path is not None:
        return str(path)
    return "the zarr array for the results" if isinstance(sink, ToZarr) else "the array for the results"


# -- the record beside a file that a stream writes, from which another process can resume it


_VERSION = 2


class StreamRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a stream, and how far it has come."""

    version: int = _VERSION
    #: The key of the program of the whole array.
    program: str
    #: A hash of the arrays that the function uses besides its arguments.
    surroundings: str
    axis: int
    sources: tuple[Identity, ...]
    #: Names of the files.
    sinks: tuple[str, ...]
    #: Steps along the split axis of the results that are in the files, and on the disk.
    done: int = 0
    length: int
    #: The span of each piece, and a hash of its values in all files.
    pieces: tuple[tuple[int, int, str], ...] = ()


def digest_of(arrays: Sequence[Any]) -> str:
    """Returns a hash of dtype, shape and content of the arrays, in order."""
    found = hashlib.blake2b(digest_size=16)
    for each in arrays:
        array = np.ascontiguousarray(each)
        found.update(f"{array.dtype}{array.shape}".encode())
        found.update(array.reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def record_path_of(path: Path) -> Path:
    """The path of the record of a stream into this file."""
    return path.with_name(f"{path.name}.partial.json")


def earlier_record(now: StreamRecord, partials: Sequence[Path], record_path: Path) -> StreamRecord:
    """The record of an earlier stream; `now` if there is none. Raises if it was a different stream."""
    try:
        data = record_path.read_bytes()
    except FileNotFoundError:
        return now
    if not all(each.exists() for each in partials):
        return now
    try:
        before = msgspec.json.decode(data, type=StreamRecord)
    except msgspec.DecodeError as error:
        raise InvalidOption(f"{record_path} cannot be read ({error}). {_anew(record_path, partials)}") from None
    different = list(_differences(before, now))
    if different:
        raise InvalidOption(
            f"the stream into {record_path.name.removesuffix('.partial.json')} cannot go on: {'; '.join(different)}. "
            f"{_anew(record_path, partials)}"
        )
    return before if _adds_up(before) else now


def _adds_up(record: StreamRecord) -> bool:
    """Whether its pieces cover everything from the beginning to `done`."""
    end = 0
    for start, stop, _ in record.pieces:
        if start != end or stop < start:
            return False
        end = stop
    return end == record.done <= record.length


def write_record(record: StreamRecord, record_path: Path) -> None:
    """Write the record atomically."""
    new = record_path.with_name(f"{record_path.name}.new")
    with new.open("wb") as file:
        file.write(msgspec.json.encode(record))
        file.flush()
        os.fsync(file.fileno())
    new.replace(record_path)
    sync_folder(record_path.parent)


def _differences(before: StreamRecord, now: StreamRecord) -> list[str]:
    """Why a stream cannot be resumed: what has changed since it was begun, as parts of a sentence."""
    if before.version != now.version:
        return ["it was begun by another version of anygpu"]
    found: list[str] = []
    if before.program != now.program:
        found.append("the function has changed")
    if before.surroundings != now.surroundings:
        found.append("arrays that the function uses besides its arguments have changed")
    if before.axis != now.axis:
        found.append(f"it went along axis {before.axis}, and now along axis {now.axis}")
    if before.sinks != now.sinks:
        found.append(f"it wrote to {', '.join(before.sinks)}, and now to {', '.join(now.sinks)}")
    if len(before.sources) != len(now.sources):
        found.append(f"it had {len(before.sources)} sources, and now has {len(now.sources)}")
        return found
    for old, new in zip(before.sources, now.sources, strict=True):
        found += _differences_of(old, new)
    return found


def _differences_of(old: Identity, new: Identity) -> list[str]:
    """Says how one source differs from when the stream was begun.

    The times are compared last, as they say the least.
    """
    if (old.path, old.part) != (new.path, new.part):
        return [f"it read {old.path}, and now reads {new.path}"]
    if (old.shape, old.dtype) != (new.shape, new.dtype):
        return [f"{new.path} was {old.dtype}{list(old.shape)}, and is {new.dtype}{list(new.shape)} now"]
    if old.size != new.size:
        return [f"{new.path} had {readable_bytes(old.size)}, and has {readable_bytes(new.size)} now"]
    same = (old.changed, old.ends) == (new.changed, new.ends)
    return [] if same else [f"{new.path} has been written to since"]


def _anew(record_path: Path, partials: Sequence[Path]) -> str:
    return (
        f"Delete {', '.join(str(each) for each in (record_path, *partials))} to begin anew, or leave out resume=True."
    )
