"""Whether a stream would read what it writes: later chunks would see the results of earlier ones.

In place is right only where each chunk is written exactly where it was read: the same array, cut along the same axis.
Everything else that overlaps is refused, before anything is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anygpu.base.typing import HostArray
from anygpu.errors import InvalidOption
from anygpu.streams.sinks import Sink, ToArray, ToFile, ToZarr
from anygpu.streams.sources import InFile, InMemory, Source
from anygpu.tensor_files.header import FileRange

#: Work that NumPy may do to find out whether two arrays overlap; when that is not enough, they may.
_WORK = 100_000


def check_apart(sinks: Sequence[Sink], sources: Sequence[Source], aligned: Sequence[bool]) -> None:
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


def in_place(sinks: Sequence[Sink], source: Source) -> bool:
    """Whether a sink writes to the file of the source, which changes it therefore."""
    path = _file_of_source(source)
    return path is not None and any(_is_same_file(path, _file_of_sink(each)) for each in sinks)


def _conflict(sink: Sink, source: Source, aligned: bool) -> bool:
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


def _same(one: Sink, other: Sink) -> bool:
    if isinstance(one, ToArray) and isinstance(other, ToArray):
        return _overlap(one.array, other.array)
    if isinstance(one, ToFile) and isinstance(other, ToFile):
        return one.path.resolve() == other.path.resolve()
    return isinstance(one, ToZarr) and isinstance(other, ToZarr) and one.folder == other.folder


def _overlap(one: HostArray, other: HostArray) -> bool:
    try:
        return bool(np.shares_memory(one, other, max_work=_WORK))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _is_same_array(one: HostArray, other: HostArray) -> bool:
    return (one.ctypes.data, one.strides, one.shape, one.dtype) == (
        other.ctypes.data,
        other.strides,
        other.shape,
        other.dtype,
    )


def _position(file_range: FileRange) -> tuple[Any, ...]:
    return file_range.offset, file_range.shape, file_range.dtype, file_range.fortran


def _file_of_source(source: Source) -> Path | None:
    if isinstance(source, InFile):
        return source.file_range.path
    return _mapped(source.array) if isinstance(source, InMemory) else None


def _file_of_sink(sink: Sink) -> Path | None:
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
    if one is None or other is None:
        return False
    try:
        return one.samefile(other)
    except OSError:  # one of them is not there
        return one.resolve() == other.resolve()


def _named(sink: Sink) -> str:
    path = _file_of_sink(sink)
    if path is not None:
        return str(path)
    return "the zarr array for the results" if isinstance(sink, ToZarr) else "the array for the results"
