"""The interface of a stream's source: an array that is read one span of an axis at a time."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec
import numpy as np

from anygpu.base.typing import HostArray


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


class Source(Protocol):
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
