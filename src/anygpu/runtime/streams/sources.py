"""The sources of a stream: each is an array that is read one span of an axis at a time.

Files are read with positioned reads into memory that the stream owns, never through a memory map: the pages of a map
would count as this process's memory, and the system decides when they go.

The last part opens and creates zarr arrays, for sources and sinks: no other module imports zarr.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import math
import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np

from anygpu.array.core.structure import require_plain
from anygpu.base.typing import HostArray
from anygpu.errors import InvalidOption, MissingExtra
from anygpu.program.primitives import Spec
from anygpu.store.tensor_files.header import FileRange, in_npy, in_safetensors


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a source, so that a resumed stream can tell whether it has changed."""

    path: str
    part: str
    shape: tuple[int, ...]
    dtype: str
    size: int
    #: The modification time in nanoseconds; of an array in many files, the latest.
    changed: int
    #: A hash of both ends of the file.
    ends: str = ""


class StreamSource(Protocol):
    """An array that is read piece by piece."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """In the machine's own byte order."""

    @property
    def in_memory(self) -> bool:
        """Whether pieces are views of existing memory, so that they need no buffer."""

    @property
    def grain(self) -> tuple[int, ...] | None:
        """The preferred lengths of pieces, if there are any."""

    def read(self, axis: int, start: int, stop: int, into: HostArray | None) -> HostArray:
        """Read a span of the axis, into the given memory unless the source is in memory."""

    def identity(self) -> Identity | None:
        """`None` if changes of the source cannot be detected."""

    def close(self) -> None: ...


def shortened(shape: tuple[int, ...], axis: int, length: int) -> tuple[int, ...]:
    return (*shape[:axis], length, *shape[axis + 1 :])


def span_of(axis: int, start: int, stop: int) -> tuple[slice, ...]:
    return (*(slice(None),) * axis, slice(start, stop))


_SAFETENSORS = ".safetensors"
#: Bytes at the ends of a memory map that are compared with its file, to see whether it still is that file.
_COMPARED = 64

#: A gap of at most this many bytes between two pieces is read too, which is faster than another call.
_SKIPPED = 16 << 10
_SLAB = 1 << 20
#: Bytes at both ends of a file that identify it.
_ENDS = 4096


class InFile:
    """In one span of a file."""

    in_memory = False
    grain = None

    def __init__(self, file_range: FileRange, part: str = "") -> None:
        """Opens the file, which is closed by `close`, and advises the system that it is read in order."""
        self.file_range = self._file_range = file_range
        self._part = part
        self.shape = file_range.shape
        self.dtype = file_range.dtype.newbyteorder("=")
        self._swapped = not file_range.dtype.isnative
        self._file = file_range.path.open("rb", buffering=0)
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):  # only advice: some file systems take none
                os.posix_fadvise(self._file.fileno(), file_range.offset, file_range.nbytes, os.POSIX_FADV_SEQUENTIAL)

    def read(self, axis: int, start: int, stop: int, into: HostArray | None) -> HostArray:
        """Read the rows `start` to `stop` along an axis from the file, into `into` if it has that layout."""
        file_range = self._file_range
        shape = shortened(self.shape, axis, stop - start)
        if file_range.fortran:
            # As Fortran lays it out, it is the transposed array as C does.
            values: HostArray = np.empty(shape[::-1], self.dtype)
            axis_here, whole = len(shape) - 1 - axis, self.shape[::-1]
        else:
            values = np.empty(shape, self.dtype) if into is None else into
            axis_here, whole = axis, self.shape
        row = math.prod(whole[axis_here + 1 :]) * self.dtype.itemsize
        block = whole[axis_here] * row
        size, count = (stop - start) * row, math.prod(whole[:axis_here])
        wanted = values.reshape(-1).view(np.uint8)
        if count > 1 and block - size <= _SKIPPED:
            self._fill_from_slabs(wanted.reshape(count, size), start * row, block)
        else:
            for number in range(count):
                offset = file_range.offset + number * block + start * row
                self._fill(wanted[number * size : (number + 1) * size].data, offset)
        if self._swapped:
            values.byteswap(inplace=True)
        return values.T if file_range.fortran else values

    def read_all(self) -> HostArray:
        values: HostArray = np.empty(self.shape, self.dtype)
        self._fill(values.reshape(-1).view(np.uint8).data, self._file_range.offset)
        return values

    def _fill_from_slabs(self, wanted: HostArray, first: int, block: int) -> None:
        """Read many short pieces together with the small gaps between them."""
        rows = max(1, _SLAB // block)
        slab = np.empty((min(rows, len(wanted)), block), np.uint8)
        for number in range(0, len(wanted), rows):
            part = slab[: min(rows, len(wanted) - number)]
            self._fill(part.reshape(-1).data, self._file_range.offset + number * block)
            wanted[number : number + len(part)] = part[:, first : first + wanted.shape[1]]

    def _fill(self, wanted: memoryview, offset: int) -> None:
        """Reads bytes from an offset until `wanted` is full; raises `InvalidOption` if the file ends before."""
        done = 0
        while done < len(wanted):
            if hasattr(os, "preadv"):
                count = os.preadv(self._file.fileno(), [wanted[done:]], offset + done)
            else:
                self._file.seek(offset + done)
                count = self._file.readinto(wanted[done:])
            if not count:
                raise InvalidOption(f"{self._file_range.path} was truncated while it was read.")
            done += count

    def identity(self) -> Identity | None:
        """Returns path, size, times and a hash of both ends of the file, by which a change is noticed."""
        stat = os.fstat(self._file.fileno())
        file_range = self._file_range
        return Identity(
            path=str(file_range.path.resolve()),
            part=self._part or str(file_range.offset),
            shape=self.shape,
            dtype=file_range.dtype.str,
            size=stat.st_size,
            changed=stat.st_mtime_ns,
            ends=self._ends(stat.st_size),
        )

    def _ends(self, size: int) -> str:
        """Returns a hash of the first and the last bytes of the file: the whole would take as long as the stream."""
        found = hashlib.blake2b(digest_size=16)
        for offset in (0, max(0, size - _ENDS)):
            data = bytearray(min(_ENDS, size))
            self._fill(memoryview(data), offset)
            found.update(data)
        return found.hexdigest()

    def close(self) -> None:
        self._file.close()


class InMemory:
    """An ordinary array."""

    in_memory = True
    grain = None

    def __init__(self, array: HostArray) -> None:
        """Keeps the caller's array.

        One of foreign byte order is copied piece by piece, so it counts as not in memory.
        """
        self.array = self._array = array
        self.shape: tuple[int, ...] = array.shape
        self.dtype = array.dtype.newbyteorder("=")
        self.in_memory = array.dtype.isnative

    def read(self, axis: int, start: int, stop: int, into: HostArray | None) -> HostArray:
        """Returns a view of the span, or a copy in the machine's byte order."""
        part: HostArray = self._array[span_of(axis, start, stop)]
        if self.in_memory:
            # Not as what it may be a subclass of: a piece of a memory map is an array like any other.
            return part.view(np.ndarray)
        if into is None:
            return part.astype(self.dtype)
        np.copyto(into, part)
        return into

    def identity(self) -> Identity | None:
        return None

    def close(self) -> None:
        """Nothing to do: the array is the caller's."""


def source_of(given: Any) -> StreamSource | None:
    """The array that a caller means; `None` for something that can only be iterated over."""
    match given:
        case str():
            return _of_path(given)
        case os.PathLike():
            return _of_path(os.fspath(given))
        case (str() | os.PathLike() as path, str(name)) if str(path).endswith(_SAFETENSORS):
            return InFile(in_safetensors(_existing(os.fspath(path)), name), name)
        case np.ndarray():
            require_plain(given, "a stream")
            file_range = file_range_of(given)
            if file_range is not None:
                return InFile(file_range)
            return InMemory(np.asarray(given))
    if _is_zarr(given):
        return InZarr(given)
    if hasattr(given, "shape") and hasattr(given, "dtype"):
        # Another library's array, or anygpu's own: one array, and not an iterable of its rows.
        require_plain(given, "a stream")
        return InMemory(np.asarray(given))
    if isinstance(given, Iterable):
        return None
    raise InvalidOption(
        f"a stream reads an array, the path of a .npy file, of a zarr array, or of a tensor as "
        f'"file.safetensors:name", or iterates over arrays; got {given!r}.'
    )


def is_one_tensor(given: tuple[Any, ...]) -> bool:
    """Whether a tuple names one tensor, and not several sources."""
    return len(given) == 2 and isinstance(given[1], str) and str(given[0]).endswith(_SAFETENSORS)


def _of_path(text: str) -> StreamSource:
    """Returns the source of a path. A folder is a zarr array, and `file.safetensors:name` names a tensor."""
    file, colon, name = text.rpartition(_SAFETENSORS + ":")
    if colon and name:
        return InFile(in_safetensors(_existing(file + _SAFETENSORS), name), name)
    path = _existing(text)
    if path.is_dir():
        return InZarr(opened(path))
    if path.suffix == _SAFETENSORS:
        raise InvalidOption(f'{path} may have several tensors: name one, as "{path}:name".')
    return InFile(in_npy(path))


def _existing(text: str) -> Path:
    """Returns the path; raises `FileNotFoundError` with a sentence if nothing is there."""
    path = Path(text)
    if not path.exists():
        raise FileNotFoundError(2, "there is no such file for a stream to read", text)
    return path


def _is_zarr(given: Any) -> bool:
    return type(given).__module__.partition(".")[0] == "zarr"


def file_range_of(array: HostArray, *, writing: bool = False) -> FileRange | None:
    """The range of a memory map, or of a part of one, in its file; `None` if the memory and the file may differ."""
    modes = ("r+", "w+") if writing else ("r", "r+", "w+")
    if not isinstance(array, np.memmap) or array.filename is None or array.mode not in modes or not array.size:
        return None
    pages = getattr(array, "_mmap", None)
    if not isinstance(pages, mmap.mmap) or not (array.flags.c_contiguous or array.flags.f_contiguous):
        return None
    begins = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    within = array.ctypes.data - np.frombuffer(pages, np.uint8).ctypes.data
    path = Path(array.filename)
    fortran = not array.flags.c_contiguous
    found = FileRange(path, begins + within, array.shape, array.dtype, fortran)
    return found if 0 <= within <= len(pages) - array.nbytes and _is_that_file(array, found) else None


def _is_that_file(array: HostArray, found: FileRange) -> bool:
    """Whether the file under that name still is the one that was mapped."""
    flat = np.asarray(array).ravel(order="K").view(np.uint8)
    try:
        with found.path.open("rb") as file:
            for start in (0, max(0, found.nbytes - _COMPARED)):
                file.seek(found.offset + start)
                length = min(_COMPARED, found.nbytes)
                if file.read(length) != flat[start : start + length].tobytes():
                    return False
    except OSError:
        return False
    return True


# -- zarr


def _zarr() -> Any:
    """Imports zarr; raises `MissingExtra` where it is not installed."""
    try:
        return importlib.import_module("zarr")
    except ImportError as error:
        raise MissingExtra("zarr", "zarr") from error


def opened(path: Path) -> Any:
    """Opens a zarr array for reading; raises `InvalidOption` for a folder that is none."""
    zarr = _zarr()
    try:
        return zarr.open_array(str(path), mode="r")
    except (ValueError, FileNotFoundError, TypeError) as error:
        raise InvalidOption(f"{path} is a folder, but not a zarr array: {error}") from error


def created(path: Path, spec: Spec, dtype: np.dtype[Any], axis: int | None, length: int) -> Any:
    """A new array in a folder, chunked along the axis as it will be written; an old one is replaced."""
    shape = list(spec.shape)
    chunks = [max(1, each) for each in shape]
    if axis is not None:
        chunks[axis] = max(1, min(chunks[axis], length))
    return _zarr().create_array(store=str(path), shape=spec.shape, chunks=tuple(chunks), dtype=dtype, overwrite=True)


def folder_of(target: Any) -> str:
    """The location of an array, or of the folder for a new one, as a string."""
    location = str(target if isinstance(target, Path) else target.store_path)
    return location if "://" in location and not location.startswith("file://") else str(_folder(location).resolve())


def _folder(location: str) -> Path:
    return Path(location.removeprefix("file://"))


class InZarr:
    """In the chunks of a zarr array."""

    in_memory = False

    def __init__(self, array: Any) -> None:
        """Keeps the array, which the caller or `opened` has opened; raises `InvalidOption` for a group of arrays."""
        if not hasattr(array, "shape") or not hasattr(array, "chunks"):
            raise InvalidOption(f"{array!r} is not a zarr array, but a group of them: pass one of its arrays.")
        self._array = array
        self.folder = folder_of(array)
        self.shape: tuple[int, ...] = tuple(array.shape)
        self.dtype = np.dtype(array.dtype).newbyteorder("=")
        self.grain: tuple[int, ...] | None = tuple(array.chunks)

    def read(self, axis: int, start: int, stop: int, into: HostArray | None) -> HostArray:
        """Reads a span, which zarr decompresses chunk by chunk; it is copied into `into` if that is given."""
        values: HostArray = np.asarray(self._array[span_of(axis, start, stop)])
        if into is None:
            return values.astype(self.dtype, copy=False)
        np.copyto(into, values)
        return into

    def identity(self) -> Identity | None:
        """Size and times of the array's files, by which a change is noticed; `None` if it is not in a folder."""
        folder = Path(str(self._array.store_path).removeprefix("file://"))
        described = [each for each in (folder / "zarr.json", folder / ".zarray") if each.is_file()]
        if not described:
            return None
        # Chunks are files of their own.
        stats = [each.stat() for each in folder.rglob("*") if each.is_file()]
        return Identity(
            path=str(folder.resolve()),
            part="zarr",
            shape=self.shape,
            dtype=np.dtype(self._array.dtype).str,
            size=sum(each.st_size for each in stats),
            changed=max(each.st_mtime_ns for each in stats),
            ends=hashlib.blake2b(described[0].read_bytes(), digest_size=16).hexdigest(),
        )

    def close(self) -> None:
        """Nothing to do: zarr keeps no file open."""
