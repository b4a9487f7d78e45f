"""Why a request was not answered: a status of HTTP, and a sentence for the caller."""

from __future__ import annotations

import math
from collections.abc import Sequence

from anygpu.errors import (
    AllocationError,
    AnyGPUError,
    DeadlineExceeded,
    DeviceError,
    NotANumber,
    Overloaded,
    RuntimeClosed,
    TooBig,
    name_of,
    text_of,
)

#: Characters of a message; longer ones are cut.
_LONGEST = 300
#: Errors with which a function says that its arguments do not fit.
_OF_THE_ARGUMENTS = (ValueError, TypeError, IndexError)


class Refusal(Exception):
    """A request that gets an error instead of a result."""

    def __init__(self, status: int, message: str, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = tuple(headers)


class InvalidRequest(Refusal):
    """The request breaks a rule of the protocol, or does not fit the model."""

    def __init__(self, message: str) -> None:
        super().__init__(400, message)


def too_large(message: str) -> Refusal:
    return Refusal(413, message, [(b"connection", b"close")])


def try_again(status: int, message: str, seconds: float) -> Refusal:
    """Nothing of it was run: the caller may come again after so many seconds."""
    return Refusal(status, message, [(b"retry-after", str(max(1, math.ceil(seconds))).encode())])


def refusal_of(error: Exception, model: str, retry_seconds: float) -> Refusal:
    """What the caller is told when a model's task has failed.

    Messages of errors that blame the arguments are passed on, because the caller has to know. Of all others only the
    name is: they are about this machine, and are logged here.
    """
    if isinstance(error, Refusal):
        return error
    if isinstance(error, DeadlineExceeded):
        return Refusal(504, f"{model} did not finish within {error.seconds:g} s. Allow more time, or send less.")
    if isinstance(error, Overloaded):
        return try_again(429, "too many requests wait already. Try again later.", retry_seconds)
    if isinstance(error, RuntimeClosed):
        return try_again(503, "the server is shutting down. Try another one.", retry_seconds)
    if isinstance(error, TooBig):
        return Refusal(413, f"{model} does not fit into any device's memory with these inputs. Send smaller ones.")
    if isinstance(error, AllocationError | DeviceError):
        return try_again(503, f"{model} has no device at the moment. Try again later.", retry_seconds)
    if isinstance(error, NotANumber) or (isinstance(error, _OF_THE_ARGUMENTS) and not isinstance(error, AnyGPUError)):
        return InvalidRequest(f"{model} does not take these inputs: {_shortened(text_of(error))}")
    return Refusal(500, f"{model} failed with {name_of(error)}. The server's log has the details.")


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} …"
