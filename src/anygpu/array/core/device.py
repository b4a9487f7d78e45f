"""The devices that arrays live on: the little that this layer must know of engines, which are above it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from anygpu.base import events
from anygpu.base.typing import HostArray
from anygpu.errors import InvalidOption
from anygpu.program.dtypes import DTYPES, DType
from anygpu.program.graph import Program

#: An array in an engine's own representation.
Buffer = Any


class ArrayDevice(Protocol):
    """One device that holds arrays and runs programs."""

    @property
    def device(self) -> str:
        """The device's id, as in `on="torch:cpu"`."""

    def upload(self, values: HostArray) -> Buffer:
        """A copy on the device, which shares no memory with `values`."""

    def download(self, buffer: Buffer) -> HostArray:
        """The values on the host; they may share memory with the buffer, which is never written to."""

    def run(self, program: Program, buffers: Sequence[Buffer]) -> list[Buffer]:
        """The results of the program, left on the device."""

    def native(self, buffer: Buffer) -> Any:
        """The library's own array, which speaks DLPack."""

    def adopt(self, array: Any) -> Buffer:
        """A buffer from an array that speaks DLPack, without a copy where the engine allows."""


class ArrayWork(NamedTuple):
    """An upload, a download or a program on a device, outside of placed calls, as an event."""

    kind: Literal["upload", "download", "run"]
    device: str
    #: The values that moved, or the program that ran.
    what: Any
    seconds: float


def with_event(kind: Literal["upload", "download", "run"], device: ArrayDevice, *given: Any) -> Any:
    """Call `upload`, `download` or `run` of a device; its result. Listeners of `events.array_work` are told, with its
    seconds.
    """
    begin = time.perf_counter()
    result = getattr(device, kind)(*given)
    seconds = time.perf_counter() - begin
    work = ArrayWork(kind, device.device, result if kind == "download" else given[0], seconds)
    events.array_work.tell(work)
    return result


def device_for(device: object | None) -> ArrayDevice:
    """The device of that name or `Device`; `None` is the default device, and an `ArrayDevice` is itself.

    Raises `InvalidOption` for anything else.
    """
    if device is None or isinstance(device, str):
        return events.array_device(device)  # type: ignore[no-any-return]
    if hasattr(device, "upload"):
        return device  # type: ignore[return-value]
    identity = getattr(device, "id", None)
    if isinstance(identity, str):
        return events.array_device(identity)  # type: ignore[no-any-return]
    raise InvalidOption(f'device= takes a name such as "numpy" or "torch:cpu", or a Device; got {device!r}.')


def to_numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's dtype of this name."""
    return NUMPY_DTYPES[name]  # type: ignore[index]


#: NumPy has no bfloat16, so arrays have none either; inside programs engines may.
NUMPY_DTYPES: dict[DType, np.dtype[Any]] = {name: np.dtype(name) for name in DTYPES if name != "bfloat16"}
