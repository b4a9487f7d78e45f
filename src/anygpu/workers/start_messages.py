"""Messages to a child when it is started, and the answers of a probe or a spare."""

from __future__ import annotations

import msgspec

from anygpu.engines.catalogue import EngineEntry
from anygpu.hardware.cards import Card
from anygpu.hardware.device import Device, Unavailable

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
    process: int


class AskExit(msgspec.Struct, frozen=True, tag="ask_exit"):
    """How did this copy end? It is over, and nobody but the spare is told by the system."""

    process: int


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    #: As of `subprocess.Popen`; `None` if it is not known.
    code: int | None


SpareMessage = SpareReady | Copy | SpareCopied | AskExit | Exited

encode_spare = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[SpareMessage] = msgspec.msgpack.Decoder(SpareMessage)


def decode_spare(data: bytes | memoryview) -> SpareMessage:
    """Raises `msgspec.DecodeError` for anything else."""
    return _decoder.decode(data)
