"""Zarr arrays as sources and sinks of streams: the only module that imports zarr."""

from __future__ import annotations

import hashlib
import importlib
from pathlib import Path
from typing import Any

import numpy as np

from anygpu.base.typing import HostArray
from anygpu.errors import InvalidOption, MissingExtra
from anygpu.program.primitives import Spec
from anygpu.runtime.streams.sources import Identity, span_of


def _zarr() -> Any:
    try:
        return importlib.import_module("zarr")
    except ImportError as error:
        raise MissingExtra("zarr", "zarr") from error


def opened(path: Path) -> Any:
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
        if not hasattr(array, "shape") or not hasattr(array, "chunks"):
            raise InvalidOption(f"{array!r} is not a zarr array, but a group of them: pass one of its arrays.")
        self._array = array
        self.folder = folder_of(array)
        self.shape: tuple[int, ...] = tuple(array.shape)
        self.dtype = np.dtype(array.dtype).newbyteorder("=")
        self.grain: tuple[int, ...] | None = tuple(array.chunks)

    def read(self, axis: int, start: int, stop: int, into: HostArray | None) -> HostArray:
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
