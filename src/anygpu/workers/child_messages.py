"""Messages between a process and its children, as records of plain values.

A child is asked one thing when it is started, as JSON on its command line, and a probe answers in lines of JSON. A
spare and a worker talk over a link, in MessagePack: of a worker, tasks go one way and outcomes the other.
"""

from __future__ import annotations

import traceback
from typing import Any, TypeVar

import msgspec
import numpy as np

from anygpu import errors
from anygpu.engines.catalogue import EngineEntry
from anygpu.engines.codegen.custom.reflected import Reflected
from anygpu.engines.protocol import Lack, Memory
from anygpu.errors import AnyGPUError, DeviceError, text_of
from anygpu.hardware.device import Card, Device, Unavailable
from anygpu.program.dtypes import DType
from anygpu.receipts.receipt import Account, NetworkUse

# -- what a child is asked when it is started, and what a probing child answers: one JSON record a line


ProbeItem = Device | Unavailable | Card


class ProbeRequest(msgspec.Struct, frozen=True, kw_only=True, tag="probe"):
    """List and verify; it travels as the child's only argument."""

    #: The engine to probe; `None` asks for the cards that the vendors' own tools know.
    engine: EngineEntry | None
    deep: bool = False
    #: Devices that an earlier child already dealt with, or died of.
    skip: tuple[str, ...] = ()
    #: The child ends itself after this many seconds, whatever happens to its parent.
    seconds: float = 60.0
    #: Where a child that has finished waits to become the worker of a device; without it, the child ends.
    serve_at: str | None = None
    #: Whether it has a low priority, for good.
    low_priority: bool = False


class ServeRequest(msgspec.Struct, frozen=True, kw_only=True, tag="serve"):
    """Be the worker of a device: which one is the first task."""

    serve_at: str = ""
    #: Whether it has a low priority, for good.
    low_priority: bool = False
    #: The engine that a spare loads before it is needed; `None` for a worker that is needed now.
    spare_for: EngineEntry | None = None
    #: Whether a spare may make copies of itself, and whether it loads at low priority, as nobody waits for it.
    may_copy: bool = False
    quietly: bool = False


ChildRequest = ProbeRequest | ServeRequest


def decode_request(text: str) -> ChildRequest:
    return msgspec.json.decode(text, type=ChildRequest)  # type: ignore[no-any-return]


class Discovered(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The devices that were found. Each name in `pending` will be verified in turn."""

    pending: tuple[str, ...]
    items: tuple[ProbeItem, ...] = ()


class ProbeStarted(msgspec.Struct, frozen=True, tag=True):
    """The next step may hang or kill the child: this is the name to blame."""

    name: str


class Settled(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The step is over, and this is what it found."""

    name: str
    items: tuple[ProbeItem, ...]


class Raised(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The whole probe failed with a Python exception."""

    error: str
    message: str
    #: The engine's module or its library could not be imported at all.
    importing: bool = False


class ProbeFinished(msgspec.Struct, frozen=True, tag=True):
    """Nothing more will come."""


Message = Discovered | ProbeStarted | Settled | Raised | ProbeFinished


def encode_line(message: Message) -> bytes:
    return msgspec.json.encode(message) + b"\n"


def decode_line(line: bytes) -> Message:
    """Raises `msgspec.DecodeError` or its child `ValidationError` for anything that is not a message."""
    return msgspec.json.decode(line, type=Message)  # type: ignore[no-any-return]


# -- what crosses between a spare and the process that keeps it, as MessagePack


class SpareReady(msgspec.Struct, frozen=True, tag="ready"):
    """It has loaded its engine. Without `copies` it serves from now on, as any child does."""

    copies: bool


class Copy(msgspec.Struct, frozen=True, tag="copy"):
    """Make a copy. With it come three descriptors: the copy's link, its standard input and its standard error."""


class SpareCopied(msgspec.Struct, frozen=True, tag="copied"):
    """The spare has made a copy; `process` is its number."""

    process: int


class AskExit(msgspec.Struct, frozen=True, tag="ask_exit"):
    """Asks how a copy ended: the system tells only its parent, which is the spare."""

    process: int


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    """How the copy ended that was asked for."""

    #: As of `subprocess.Popen`; `None` if it is not known.
    code: int | None


SpareMessage = SpareReady | Copy | SpareCopied | AskExit | Exited

encode_spare = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[SpareMessage] = msgspec.msgpack.Decoder(SpareMessage)


def decode_spare(data: bytes | memoryview) -> SpareMessage:
    """Raises `msgspec.DecodeError` for anything else."""
    return _decoder.decode(data)


# -- what crosses between a worker and its child, as MessagePack


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
    """Asks which operations of the program the device lacks.

    The text is sent if the child does not have the program.
    """

    program: str
    #: The byte form, unless the child should have it.
    text: bytes | None


class Reflect(WireRecord, frozen=True, tag="reflect"):
    """Asks what a user's kernel takes."""

    source: str
    entry: str | None
    title: str


class Prepare(WireRecord, frozen=True, tag="prepare"):
    """Compile the program now, within the limit for tuning its kernels."""

    program: str
    text: bytes | None
    #: The most seconds that sizes of kernels may be looked for; `None` leaves it to the child's own environment.
    tuning: float | None = None


class Run(WireRecord, frozen=True, tag="run"):
    """Run the program on operands: values in the message, in shared memory, or arrays that the child keeps."""

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
    """Keep these values on the device, under a number that the worker has chosen."""

    values: bytes | InSegment
    shape: tuple[int, ...]
    dtype: DType
    handle: int


class Download(WireRecord, frozen=True, tag="download"):
    """Read an array of the device, into the segment or, without one, into the answer."""

    handle: int
    #: As in `Run.results`.
    segment: int
    #: Whether no other task wants it.
    last_use: bool = False


class AskMemory(WireRecord, frozen=True, tag="memory"):
    """Asks for the memory of the device."""

    pass


class ReclaimMemory(WireRecord, frozen=True, tag="reclaim"):
    """Free the memory that is cached for later calls."""

    pass


class OpenSide(WireRecord, frozen=True, tag="side"):
    """Take the descriptor that comes with this, and serve uploads and downloads there, on a thread of its own."""


class Close(WireRecord, frozen=True, tag="close"):
    """Close the device and end."""

    pass


ChildTask = Open | Supports | Reflect | Prepare | Run | Upload | Download | AskMemory | ReclaimMemory | OpenSide | Close


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
    """The device is open."""

    #: Whether the device can transfer while it computes.
    overlaps: bool = False


class SideOpened(WireRecord, frozen=True, tag="side_opened"):
    """Whether the child serves the second link."""

    #: Whether the device can compute and transfer at once; else there is no side.
    overlaps: bool


class Lacks(WireRecord, frozen=True, tag="lacks"):
    """The answer to `Supports`."""

    lacks: list[Lack]


class ReflectDone(WireRecord, frozen=True, tag="reflected"):
    """The answer to `Reflect`."""

    found: Reflected


class PrepareDone(WireRecord, frozen=True, tag="prepared"):
    """The program is compiled, which took so many seconds."""

    seconds: float


class RunDone(WireRecord, frozen=True, tag="done"):
    """The program has run: its results that are not kept, and what that took."""

    #: For each result its bytes; empty where it is in its segment.
    values: tuple[bytes, ...]
    account: Account
    #: Filled in on the way, where that leads to another machine.
    network: NetworkUse | None = None


class Downloaded(WireRecord, frozen=True, tag="values"):
    """The answer to a download."""

    #: Empty when they are in the segment.
    data: bytes


class MemoryNow(WireRecord, frozen=True, tag="memory_now"):
    """The answer to `AskMemory`."""

    memory: Memory


class Reclaimed(WireRecord, frozen=True, tag="reclaimed"):
    """The answer to `ReclaimMemory`: bytes of device memory that were freed."""

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
    | ReflectDone
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
    """The outcome of the task with this number."""

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
