"""The interface of a stream's source: an array that is read one span of an axis at a time."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec
import numpy as np

from anygpu._typing import HostArray


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What a source was, so that a stream which goes on later can tell whether it still is the same."""

    path: str
    part: str
    shape: tuple[int, ...]
    dtype: str
    size: int
    #: In nanoseconds; of the file, or of the last one that was changed where an array is many files.
    changed: int
    #: A hash of both ends of the file.
    ends: str = ""


class Source(Protocol):
    """An array that is read piece by piece."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """In the machine's own byte order."""

    @property
    def in_memory(self) -> bool:
        """Whether pieces are views of memory that is there anyway, so that none is needed for them."""

    @property
    def grain(self) -> tuple[int, ...] | None:
        """The lengths of pieces that are read best, if there are such."""

    def read(self, axis: int, start: int, stop: int, into: HostArray | None) -> HostArray:
        """A span of the axis; into this memory, of the right shape, if it is not there already."""

    def identity(self) -> Identity | None:
        """`None` for what could change without anybody knowing."""

    def close(self) -> None: ...


def shortened(shape: tuple[int, ...], axis: int, length: int) -> tuple[int, ...]:
    return (*shape[:axis], length, *shape[axis + 1 :])


def span_of(axis: int, start: int, stop: int) -> tuple[slice, ...]:
    return (*(slice(None),) * axis, slice(start, stop))
