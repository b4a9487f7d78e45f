"""The sinks of a stream: each takes spans of one array, in order, from one thread.

A file gets its whole size at once and is written with positioned writes under another name beside its own. It takes its
name when everything is in it and on the disk, so whoever sees the name sees all of the data.
"""

from __future__ import annotations

import errno
import io
import math
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from anygpu.array.core.device import to_numpy_dtype
from anygpu.array.core.structure import Structure, flatten, unflatten
from anygpu.base.interrupts import whole
from anygpu.base.typing import HostArray
from anygpu.errors import InvalidOption
from anygpu.program.primitives import Spec
from anygpu.runtime.streams.sources import InFile, created, file_range_of, folder_of, span_of
from anygpu.store.tensor_files.header import FileRange, safetensors_header
from anygpu.store.tensor_files.writing import sync_folder

_SAFETENSORS = ".safetensors"


class StreamSink(Protocol):
    """Takes one array, span by span."""

    def begin(self, spec: Spec | None, axis: int | None, length: int) -> None:
        """Start an array of this shape, if it is known yet, that comes in spans of about this length."""

    def write(self, values: Any, start: int, stop: int) -> None: ...

    def finish(self) -> Any:
        """Finish the array; returns the value for the caller."""

    def abandon(self) -> None:
        """Discard an unfinished array. Does nothing after `finish`."""


class _NothingOpen:
    """A sink that has nothing to open before its first span, and nothing to give back."""

    def begin(self, spec: Spec | None, axis: int | None, length: int) -> None: ...

    def abandon(self) -> None: ...


class Collected(_NothingOpen):
    """Into a new array."""

    def __init__(self) -> None:
        self._whole: HostArray = np.empty(0)
        self._axis: int | None = None

    def begin(self, spec: Spec | None, axis: int | None, length: int) -> None:
        """Allocates the whole array; raises `InvalidOption` if its shape is not known."""
        if spec is None:
            raise InvalidOption("results whose shape is not known cannot be collected into one array.")
        self._axis = axis
        self._whole = np.empty(spec.shape, to_numpy_dtype(spec.dtype))

    def write(self, values: Any, start: int, stop: int) -> None:
        _put(self._whole, self._axis, values, start, stop)

    def finish(self) -> Any:
        return self._whole


class Joined(_NothingOpen):
    """Into new arrays, nested as the function returns them, whose length is known only at the end."""

    def __init__(self, axis: int) -> None:
        self._axis = axis
        self._structure: Structure | None = None
        self._parts: list[list[Any]] = []

    def write(self, values: Any, start: int, stop: int) -> None:
        """Keeps the leaves of one chunk; raises `InvalidOption` if they cannot be joined along the axis."""
        leaves, structure = flatten(values)
        if self._structure is None:
            self._structure, self._parts = structure, [[] for _ in leaves]
        if structure != self._structure or any(np.ndim(leaf) <= self._axis for leaf in leaves):
            raise InvalidOption(
                f"the results of chunks are joined along axis {self._axis}, so each has to be an array that has it, or "
                "the same nest of such arrays. Pass a function as the sink to do something else with them."
            )
        for parts, leaf in zip(self._parts, leaves, strict=True):
            parts.append(leaf)

    def finish(self) -> Any:
        if self._structure is None:
            return np.empty(0)
        return unflatten(self._structure, [np.concatenate(parts, axis=self._axis) for parts in self._parts])


class ListSink(_NothingOpen):
    """Into a list, one value for each item."""

    def __init__(self) -> None:
        self._values: list[Any] = []

    def write(self, values: Any, start: int, stop: int) -> None:
        self._values.append(values)

    def finish(self) -> Any:
        return self._values


class ToFunction(_NothingOpen):
    """Into a function of the caller, which gets each span and its position."""

    def __init__(self, function: Callable[[Any, int, int], object]) -> None:
        self._function = function

    def write(self, values: Any, start: int, stop: int) -> None:
        self._function(values, start, stop)

    def finish(self) -> Any:
        return None


class ToArray:
    """Into an array of the caller; a memory map is written through its file, so that none of its pages stay."""

    def __init__(self, array: HostArray) -> None:
        """Keeps the caller's array; raises `InvalidOption` if it is read-only.

        The file of a memory map is found here.
        """
        if not array.flags.writeable:
            raise InvalidOption("the array for the results of a stream cannot be written to.")
        self.array = self._array = array
        self._axis: int | None = None
        self._written = 0
        self._growing = False
        self._file: io.FileIO | None = None
        self.file_range = self._file_range = file_range_of(array, writing=True)

    def begin(self, spec: Spec | None, axis: int | None, length: int) -> None:
        """Checks that the results fit, and opens the file of a memory map that can be written in place."""
        self._axis, self._growing = axis, spec is None
        if spec is not None:
            _require_fit("the array for the results", self._array.shape, self._array.dtype, spec)
        if self._file_range is not None and not self._file_range.fortran and self._array.dtype.isnative:
            self._file = self._file_range.path.open("r+b", buffering=0)

    def write(self, values: Any, start: int, stop: int) -> None:
        """Writes one span; of results whose length is not known, each has to fit into what is left of the array."""
        room = self._array.shape[self._axis or 0] if self._array.ndim else 0
        if self._growing and stop > room:
            raise InvalidOption(f"the array for the results has room for {room}, which is too small.")
        if self._growing:
            part = self._array[span_of(self._axis or 0, start, stop)]
            _require_fit("the array for the results", part.shape, part.dtype, _spec(values))
        self._written = stop
        if self._file is None or self._file_range is None:
            _put(self._array, self._axis, values, start, stop)
        else:
            write_span(self._file, self._file_range, self._axis, values, start, stop)

    def finish(self) -> Any:
        """Returns the array; raises `InvalidOption` if results of unknown length did not fill it."""
        if self._growing and self._array.ndim and self._written < self._array.shape[self._axis or 0]:
            raise InvalidOption(
                f"the array for the results has room for {self._array.shape[self._axis or 0]}, and there were only "
                f"{self._written}."
            )
        self.abandon()
        return self._array

    def abandon(self) -> None:
        if self._file is not None:
            self._file.close()


class ToFile:
    """Into a .npy or .safetensors file."""

    def __init__(self, path: Path, tensor: str | None = None, *, resume: bool = False) -> None:
        """Names the file and its partial one, and creates neither.

        A stream that may be resumed finds its partial file by name. Any other gets a name of its own, so that two do
        not meet.
        """
        self.path = path
        self._tensor = tensor
        self._resume = resume
        # The partial file of a resumable stream has a fixed name.
        self.partial = path.with_name(
            f"{path.name}.partial" if resume else f".{path.name}.{secrets.token_hex(4)}.partial"
        )
        #: Whether the partial file may be there.
        self._begun = False
        self._file: io.FileIO | None = None
        self._file_range: FileRange | None = None
        self._axis: int | None = None
        self._growing = False
        self._rows = 0

    def begin(self, spec: Spec | None, axis: int | None, length: int) -> None:
        """Creates the partial file if the shape is known; else with the first span.

        Raises `InvalidOption` if it can be neither.
        """
        self._axis, self._growing = axis, spec is None
        if self._growing and (self._tensor is not None or axis):
            raise InvalidOption(
                "results whose length is not known beforehand can be written to a .npy file along axis 0 only. Collect "
                "them, or pass a function as the sink."
            )
        if spec is not None:
            self._open(spec.shape, to_numpy_dtype(spec.dtype))

    def _open(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """Creates or reopens the partial file, locks it, and gives it its full size: a full disk is noticed here."""
        header = self._header(shape, dtype)
        self._file_range = file_range = FileRange(self.partial, len(header), shape, dtype)
        whole = len(header) + file_range.nbytes
        _require_room(self.path, whole)
        self._begun = True  # before: it may be interrupted in between
        self._file = file = io.FileIO(self.partial, "r+" if self._resume and self.partial.exists() else "w+")
        _lock(file, self.path)
        os.ftruncate(file.fileno(), whole)
        _write_all(file, memoryview(header), 0)

    def part_of_earlier(self, spec: Spec, axis: int | None, start: int, stop: int) -> HostArray | None:
        """A span that an earlier stream has written; `None` if the file does not look like its partial file."""
        shape, dtype = spec.shape, to_numpy_dtype(spec.dtype)
        header = self._header(shape, dtype)
        file_range = FileRange(self.partial, len(header), shape, dtype)
        try:
            with self.partial.open("rb") as file:
                if (
                    file.read(len(header)) != header
                    or os.fstat(file.fileno()).st_size != len(header) + file_range.nbytes
                ):
                    return None
        except OSError:
            return None
        source = InFile(file_range)
        try:
            return source.read(axis or 0, start, stop, None) if axis is not None else source.read_all()
        finally:
            source.close()

    def _header(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
        """Returns the bytes before the data: of a safetensors file with one tensor, or of a .npy file."""
        if self._tensor is not None:
            return safetensors_header(self._tensor, shape, dtype)
        text = io.BytesIO()
        description = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(text, description)
        return text.getvalue()

    def write(self, values: Any, start: int, stop: int) -> None:
        """Writes one span at its place. A file whose length is not known yet grows with each."""
        if self._file is None:
            first = np.asarray(values)
            if not first.ndim:
                raise InvalidOption("each result must be an array with axes, so that a file can have them in a row.")
            self._open((0, *first.shape[1:]), first.dtype)
        if self._file is None or self._file_range is None:
            raise InvalidOption("nothing can be written before the file is open.")
        if self._growing:
            part = np.asarray(values)
            _require_fit("the file", (len(part), *self._file_range.shape[1:]), self._file_range.dtype, _spec(part))
            self._file_range = self._file_range._replace(shape=(stop, *part.shape[1:]))
        write_span(self._file, self._file_range, self._axis, values, start, stop)

    def sync(self) -> None:
        """Flush the written data to the disk."""
        if self._file is not None:
            (os.fdatasync if hasattr(os, "fdatasync") else os.fsync)(self._file.fileno())

    def finish(self) -> Any:
        """Completes the file: its header if its length was not known, and its name. Returns its path."""
        if self._file is None:
            self._open((0,), np.dtype(np.float64))
        file, file_range = self._file, self._file_range
        if file is None or file_range is None:
            raise InvalidOption("nothing was written to the file.")
        if self._growing:
            _write_all(file, memoryview(self._header(file_range.shape, file_range.dtype)), 0)
        os.fsync(file.fileno())
        file.close()
        self._file = None
        self.partial.replace(self.path)
        self._begun = False
        sync_folder(self.path.parent)
        return self.path

    def abandon(self) -> None:
        """Closes the file, and removes the partial one unless it is kept to be resumed. May be called twice."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._begun and not self._resume:
            self.partial.unlink(missing_ok=True)
            self._begun = False


class ToZarr:
    """Into a zarr array, or into a new one in a folder."""

    def __init__(self, target: Any) -> None:
        """Names the array or the folder of a new one, which `begin` creates."""
        self._target = target
        self.folder = folder_of(target)
        self._array: Any = None
        self._axis: int | None = None
        self._partial: Path | None = None

    def begin(self, spec: Spec | None, axis: int | None, length: int) -> None:
        """Creates a zarr array under another name, or checks that the results fit into the caller's.

        Raises `InvalidOption` if the shape of the results is not known or does not fit.
        """
        if spec is None:
            raise InvalidOption(
                "results whose length is not known beforehand cannot be written to a zarr array. Collect them, write a "
                ".npy file, or pass a function as the sink."
            )
        self._axis = axis
        if isinstance(self._target, Path):
            path = self._target
            self._partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
            self._array = created(self._partial, spec, to_numpy_dtype(spec.dtype), axis, length)
        else:
            self._array = self._target
            _require_fit("the zarr array", tuple(self._array.shape), np.dtype(self._array.dtype), spec)

    def write(self, values: Any, start: int, stop: int) -> None:
        _put(self._array, self._axis, values, start, stop)

    @whole
    def finish(self) -> Any:
        """Returns the array.

        A new one gets its name only now, in place of an older one, which is removed afterwards.
        """
        if self._partial is None:
            return self._array
        path: Path = self._target
        # A folder cannot replace another in one step: the old one is out of the way for a moment.
        old = path.with_name(f".{path.name}.{secrets.token_hex(4)}.old") if path.exists() else None
        if old is not None:
            path.rename(old)
        self._partial.rename(path)
        self._partial = None
        if old is not None:
            shutil.rmtree(old)
        return path

    def abandon(self) -> None:
        if self._partial is not None:
            shutil.rmtree(self._partial, ignore_errors=True)
            self._partial = None


def sink_of(given: Any, *, resume: bool = False) -> StreamSink:
    """The sink that a caller means."""
    match given:
        case None:
            return Collected()
        case str() | os.PathLike():
            return _of_path(os.fspath(given), resume=resume)
        case np.ndarray():
            return ToArray(given)
    if type(given).__module__.partition(".")[0] == "zarr":
        return ToZarr(given)
    if callable(given):
        return ToFunction(given)
    raise InvalidOption(
        f"the results of a stream go into a .npy file, a zarr array, an array, or to a function(chunk, start, stop); "
        f"got {given!r}."
    )


def _of_path(text: str, *, resume: bool) -> StreamSink:
    """Returns the sink of a path by its suffix.

    It raises FileNotFoundError without its folder, `InvalidOption` for others.
    """
    file, colon, name = text.rpartition(_SAFETENSORS + ":")
    path = Path(file + _SAFETENSORS if colon and name else text)
    if not path.parent.is_dir():
        raise FileNotFoundError(2, "there is no such folder for the results of a stream", str(path.parent))
    if colon and name:
        return ToFile(path, name, resume=resume)
    if path.suffix == ".npy":
        return ToFile(path, resume=resume)
    if path.suffix == ".zarr":
        return ToZarr(path)
    raise InvalidOption(f'a stream writes to "….npy", "….zarr" or "….safetensors:name"; got {text!r}.')


def write_span(file: io.FileIO, file_range: FileRange, axis: int | None, values: Any, start: int, stop: int) -> None:
    """Write the values of a span of the axis, or the whole array without one, at their position."""
    given = np.ascontiguousarray(values, file_range.dtype)
    shape = file_range.shape
    axis, start, stop = (axis, start, stop) if axis is not None else (0, 0, shape[0] if shape else 1)
    row = math.prod(shape[axis + 1 :]) * file_range.dtype.itemsize
    block = (shape[axis] if shape else 1) * row
    taken = given.reshape(-1).view(np.uint8).data
    size = (stop - start) * row
    for number in range(math.prod(shape[:axis])):
        _write_all(file, taken[number * size : (number + 1) * size], file_range.offset + number * block + start * row)


def _write_all(file: io.FileIO, taken: memoryview, offset: int) -> None:
    """Writes all bytes at an offset, however few the system takes at a time."""
    done = 0
    while done < len(taken):
        if hasattr(os, "pwrite"):
            done += os.pwrite(file.fileno(), taken[done:], offset + done)
        else:
            file.seek(offset + done)
            done += file.write(taken[done:])


def _put(array: Any, axis: int | None, values: Any, start: int, stop: int) -> None:
    array[... if axis is None else span_of(axis, start, stop)] = values


def _spec(values: Any) -> Spec:
    array = np.asarray(values)
    name: Any = array.dtype.name
    return Spec(array.shape, name)


def _require_fit(what: str, shape: tuple[int, ...], dtype: np.dtype[Any], spec: Spec) -> None:
    if shape != spec.shape or dtype.name != spec.dtype:
        raise InvalidOption(f"{what} is {dtype.name}{list(shape)}, and the results are {spec}.")


def _require_room(path: Path, nbytes: int) -> None:
    """Check the folder before the stream starts, not after hours."""
    free = shutil.disk_usage(path.parent).free
    if nbytes > free:
        raise OSError(errno.ENOSPC, f"the results need {nbytes:,} bytes, and the disk has {free:,} left", str(path))


def _lock(file: io.FileIO, path: Path) -> None:
    """Lock the file: two streams that resume the same file would corrupt it."""
    try:
        import fcntl
    except ImportError:  # not on Windows, where a renamed file cannot be opened twice for writing anyway
        return
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise InvalidOption(f"another stream is writing {path} now. Wait for it, or write to another file.") from None
    except OSError:  # a file system without locks
        pass
