"""What crosses between a spare and the process that keeps it, as MessagePack."""

from __future__ import annotations

import msgspec


class SpareReady(msgspec.Struct, frozen=True, tag="ready"):
    """It has loaded its engine. Without `copies` it serves from now on, as any child does."""

    copies: bool


class Copy(msgspec.Struct, frozen=True, tag="copy"):
    """Make a copy. With it come three descriptors: the copy's link, its standard input and its standard error."""


class Copied(msgspec.Struct, frozen=True, tag="copied"):
    process: int


class AskExit(msgspec.Struct, frozen=True, tag="ask_exit"):
    """How did this copy end? It is over, and nobody but the spare is told by the system."""

    process: int


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    #: As of `subprocess.Popen`; `None` if it is not known.
    code: int | None


SpareMessage = SpareReady | Copy | Copied | AskExit | Exited

encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[SpareMessage] = msgspec.msgpack.Decoder(SpareMessage)


def decode(data: bytes | memoryview) -> SpareMessage:
    """Raises `msgspec.DecodeError` for anything else."""
    return _decoder.decode(data)
