"""The range of one array in a file, for the two formats that store it contiguously: npy and safetensors.

Both are read without running anything that a file says: npy files with pickled objects are refused, and the header of a
safetensors file is checked in full before any of it is believed.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from anygpu.errors import InvalidOption
from anygpu.tensor_files.header import KIND_OF, Entry, Header, encoded_header, read_header, shown


class FileRange(NamedTuple):
    """A contiguous array in a file, in C or Fortran order."""

    path: Path
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool = False

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def in_npy(path: Path) -> FileRange:
    with path.open("rb") as file:
        try:
            version = np.lib.format.read_magic(file)
            read: Any = np.lib.format.read_array_header_1_0
            if version != (1, 0):
                read = np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read(file)
        except ValueError as error:
            raise InvalidOption(f"{path} is not an .npy file: {error}") from error
        found = FileRange(path, file.tell(), shape, dtype, fortran)
    if dtype.hasobject:
        raise InvalidOption(
            f"{path} has Python objects in it, which would have to be unpickled, which anygpu refuses. Save it "
            "again with a numeric dtype."
        )
    return _inside(found)


def in_safetensors(path: Path, name: str) -> FileRange:
    with path.open("rb", buffering=0) as file:
        return stretch_in(read_header(str(path), file), path, name)


def stretch_in(header: Header, path: Path, name: str) -> FileRange:
    """The range of a tensor in a safetensors file whose header was read."""
    entry = entry_in(header, path, name)
    if entry.numpy_dtype is None:
        raise InvalidOption(
            f"the tensor {shown(name)} of {path} has the dtype {entry.dtype}, which NumPy lacks. Save it as float32."
        )
    return FileRange(path, header.begin + entry.data_offsets[0], entry.shape, entry.numpy_dtype)


def entry_in(header: Header, path: Path, name: str) -> Entry:
    entry = header.entries.get(name)
    if entry is None:
        listed = ", ".join(each[:40] for each in sorted(header.entries)[:10]) or "none"
        raise InvalidOption(f"{path} has no tensor {shown(name)}; it has {listed}.")
    return entry


def safetensors_header(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """The header of a file with this one tensor."""
    kind = KIND_OF.get(dtype.name)
    if kind is None:
        raise InvalidOption(f"safetensors files have no {dtype}; write a .npy file instead.")
    return encoded_header({name: Entry(kind, shape, (0, math.prod(shape) * dtype.itemsize))})


def _inside(found: FileRange) -> FileRange:
    size = found.path.stat().st_size
    if found.offset + found.nbytes > size:
        raise InvalidOption(
            f"{found.path} should have {found.offset + found.nbytes} bytes by its header, and has {size}: it is not "
            "complete. Copy or save it again."
        )
    return found
