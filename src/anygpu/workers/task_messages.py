"""Messages between a worker and its child: tasks one way, outcomes the other, as MessagePack."""

from __future__ import annotations

import traceback
from typing import Any, TypeVar

import msgspec
import numpy as np

from anygpu import errors
from anygpu.engines.catalogue import EngineEntry
from anygpu.engines.protocol import Lack, Memory
from anygpu.errors import AnyGPUError, DeviceError, text_of
from anygpu.hardware.device import Device
from anygpu.program.dtypes import DType
from anygpu.receipts.receipt import DriverWork, HostOperation, NetworkUse


class WireRecord(msgspec.Struct, frozen=True, array_like=True):
    """Short on the wire: fields by position."""


class InSegment(WireRecord, frozen=True):
    """An array at the beginning of a segment of shared memory, which may be larger."""

    segment: int
    nbytes: int


#: The bytes themselves, the number of a handle, or where they are.
WireOperand = bytes | int | InSegment


class Open(WireRecord, frozen=True, tag="open"):
    """The first task: load the engine, unless that is done, and open the device."""

    entry: EngineEntry
    device: Device
    budget: int | None


class Supports(WireRecord, frozen=True, tag="supports"):
    program: str
    #: The byte form, unless the child should have it.
    text: bytes | None


class Prepare(WireRecord, frozen=True, tag="prepare"):
    program: str
    text: bytes | None
    #: The most seconds that sizes of kernels may be looked for; `None` leaves it to the child's own environment.
    tuning: float | None = None


class Run(WireRecord, frozen=True, tag="run"):
    program: str
    text: bytes | None
    arguments: tuple[WireOperand, ...]
    #: For each result the segment that it is wanted in, 0 for bytes in the answer; `None` leaves them on the device.
    results: tuple[int, ...] | None
    #: The number of the first handle for results that stay, rising by one.
    handle: int
    wait: bool
    timed: bool
    #: Whether the side may transfer meanwhile.
    apart: bool = False
    #: Arguments that no other task wants.
    last_use: tuple[int, ...] = ()


class Upload(WireRecord, frozen=True, tag="upload"):
    values: bytes | InSegment
    shape: tuple[int, ...]
    dtype: DType
    handle: int


class Download(WireRecord, frozen=True, tag="download"):
    handle: int
    #: As in `Run.results`.
    segment: int
    #: Whether no other task wants it.
    last_use: bool = False


class AskMemory(WireRecord, frozen=True, tag="memory"):
    pass


class ReclaimMemory(WireRecord, frozen=True, tag="reclaim"):
    pass


class OpenSide(WireRecord, frozen=True, tag="side"):
    """Take the descriptor that comes with this, and serve uploads and downloads there, on a thread of its own."""


class Close(WireRecord, frozen=True, tag="close"):
    pass


ChildTask = Open | Supports | Prepare | Run | Upload | Download | AskMemory | ReclaimMemory | OpenSide | Close


class Attached(WireRecord, frozen=True):
    """A new segment. Its descriptor comes with the message, unless it has a name."""

    segment: int
    nbytes: int
    name: str


class Envelope(WireRecord, frozen=True):
    """A task with its number, and what has to be done before it. Without a task there is no answer."""

    number: int
    task: ChildTask | None
    #: Handles without a reference.
    dropped: tuple[int, ...] = ()
    #: Segments that will not be used again.
    forgotten: tuple[int, ...] = ()
    attached: tuple[Attached, ...] = ()


class Opened(WireRecord, frozen=True, tag="opened"):
    #: Whether the device can transfer while it computes.
    overlaps: bool = False


class SideOpened(WireRecord, frozen=True, tag="side_opened"):
    #: Whether the device can compute and transfer at once; else there is no side.
    overlaps: bool


class Lacks(WireRecord, frozen=True, tag="lacks"):
    lacks: list[Lack]


class PrepareDone(WireRecord, frozen=True, tag="prepared"):
    seconds: float


class RunDone(WireRecord, frozen=True, tag="done"):
    #: For each result its bytes; empty where it is in its segment.
    values: tuple[bytes, ...]
    compile: float
    write: float
    run: float
    read: float
    bytes_to_device: int
    bytes_to_host: int
    bytes_skipped: int
    device_seconds: float | None
    peak_bytes: int | None
    driver: DriverWork | None
    #: Nodes of the program that ran on the host. The worker's side fills in their lines.
    hosted: list[tuple[int, HostOperation]]
    unknown: dict[str, str]
    #: Filled in on the way, where that leads to another machine.
    network: NetworkUse | None = None


class Downloaded(WireRecord, frozen=True, tag="values"):
    """The answer to a download."""

    #: Empty when they are in the segment.
    data: bytes


class MemoryNow(WireRecord, frozen=True, tag="memory_now"):
    memory: Memory


class Reclaimed(WireRecord, frozen=True, tag="reclaimed"):
    nbytes: int


class TaskDone(WireRecord, frozen=True, tag="finished"):
    """An upload, or the end."""


class UnknownProgram(WireRecord, frozen=True, tag="unknown"):
    """The child does not have the program (any more): send it along."""


class TaskFailed(WireRecord, frozen=True, tag="failed"):
    """An exception: its class, its message and its plain fields."""

    error: str
    message: str
    fields: dict[str, Any]
    #: The traceback, for errors that are not expected.
    trace: str


TaskOutcome = (
    Opened
    | SideOpened
    | Lacks
    | PrepareDone
    | RunDone
    | Downloaded
    | MemoryNow
    | Reclaimed
    | TaskDone
    | UnknownProgram
    | TaskFailed
)


class Answer(WireRecord, frozen=True):
    number: int
    outcome: TaskOutcome


_Message = TypeVar("_Message")

_ENCODER = msgspec.msgpack.Encoder()
_ENVELOPES = msgspec.msgpack.Decoder(Envelope)
_ANSWERS = msgspec.msgpack.Decoder(Answer)


def encode(message: Envelope | Answer) -> bytes:
    return _ENCODER.encode(message)


def decoded(decoder: msgspec.msgpack.Decoder[_Message], data: bytes | memoryview) -> _Message:
    """The message. Raises `msgspec.DecodeError` or its child `ValidationError` for anything else."""
    try:
        return decoder.decode(data)
    except UnicodeDecodeError as error:  # which msgspec lets through
        raise msgspec.DecodeError(str(error)) from None


def decode_envelope(data: bytes | memoryview) -> Envelope:
    """Raises as `decoded` does."""
    return decoded(_ENVELOPES, data)


def decode_answer(data: bytes | memoryview) -> Answer:
    """Raises as `decoded` does."""
    return decoded(_ANSWERS, data)


# -- errors that cross processes: by the name of their class, their message and their plain fields. Nothing is pickled


#: Errors that programs raise on purpose, because NumPy does: the user may catch them, so they arrive as raised.
_AS_RAISED: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        ArithmeticError,
        FloatingPointError,
        IndexError,
        MemoryError,
        NotImplementedError,
        OverflowError,
        TypeError,
        ValueError,
        ZeroDivisionError,
        np.linalg.LinAlgError,
    )
}


def error_to_message(error: Exception) -> TaskFailed:
    """The error as it is sent."""
    fields = {name: value for name, value in vars(error).items() if _is_plain(value)}
    ours = isinstance(error, AnyGPUError)
    trace = "" if ours else "".join(traceback.format_exception(error))
    return TaskFailed(type(error).__name__ if ours else _name_of(error), text_of(error), fields if ours else {}, trace)


def _name_of(error: Exception) -> str:
    """NumPy has children of these errors that are its own affair; what users catch is the parent."""
    kinds = type(error).__mro__
    return next((kind.__name__ for kind in kinds if _AS_RAISED.get(kind.__name__) is kind), kinds[0].__name__)


def error_from_message(failed: TaskFailed, device: str) -> Exception:
    """The error as it is raised. What is neither ours nor one of Python's usual ones becomes a `DeviceError`."""
    kind = getattr(errors, failed.error, None)
    if isinstance(kind, type) and issubclass(kind, AnyGPUError):
        error: AnyGPUError = kind.__new__(kind, failed.message)
        Exception.__init__(error, failed.message)
        # Sequences arrive as lists, and the fields of errors are tuples.
        fields = {name: tuple(value) if isinstance(value, list) else value for name, value in failed.fields.items()}
        error.__dict__.update(fields)
        return error
    as_raised = _AS_RAISED.get(failed.error)
    if as_raised is not None:
        return as_raised(failed.message)
    unexpected = DeviceError(
        f"the process that serves {device} raised {failed.error}: {failed.message}. Report it with the output of "
        "`anygpu doctor --json`.",
        device=device,
    )
    unexpected.add_note(failed.trace)
    return unexpected


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(isinstance(each, str | int | float | None) for each in value)
    return isinstance(value, str | int | float | None)
