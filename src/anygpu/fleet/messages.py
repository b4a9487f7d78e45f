"""Messages of a fleet: between this process and the driver that speaks to Ray, and between the driver and actors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta

from anygpu.hardware.device import Device, Unavailable
from anygpu.placement.plan.calibration import Calibration, NetworkSpeed
from anygpu.workers.child_messages import Answer, Envelope, TaskFailed, WireRecord, decoded
from anygpu.workers.shared_memory import ByteArray

# -- messages between this process and the driver, its child that speaks to Ray: MessagePack, and nothing else


class ClusterNode(msgspec.Struct, frozen=True):
    """A machine of the cluster, as Ray knows it."""

    #: Ray's own identity of it, in hexadecimal digits.
    id: str
    #: The name that its devices are called after, unique among nodes.
    name: str
    address: str
    #: The resources that Ray may give away there: "CPU", "GPU", "memory", …
    resources: dict[str, float]
    labels: dict[str, str]


class Bundle(msgspec.Struct, frozen=True):
    """The resources and labels that a machine must have to be of use, in Ray's words."""

    resources: dict[str, float]
    #: Label selectors.
    labels: dict[str, str] = {}


#: infeasible: no machine that could be started has it. alone: nobody starts machines. labels: they are ignored.
MachineRefusal = Literal["infeasible", "alone", "labels"]


# -- to the driver


class Connect(WireRecord, frozen=True, tag="connect"):
    """The first message, answered by `Connected` or by `TaskFailed`."""

    #: Host and port.
    address: str


class ProbeNode(WireRecord, frozen=True, tag="probe"):
    """Look at a machine. With a descriptor: `NodeProbed` comes there, or `TaskFailed`."""

    node: str
    seconds: float


class OpenActor(WireRecord, frozen=True, tag="open"):
    """Open the actor of a device. With a descriptor: `ActorOpened` comes there, or `TaskFailed`.

    After `ActorOpened` that descriptor leads to the actor, as a child's link does.
    """

    actor: int
    #: Its name in the fleet.
    device: str
    node: str
    #: The share of a GPU, as Ray counts them.
    gpus: float
    seconds: float


class CountExecutions(WireRecord, frozen=True, tag="count"):
    """How often something was executed. With a descriptor: `Executions` comes there."""


class KillActor(WireRecord, frozen=True, tag="kill"):
    """End an actor. There is no answer."""

    actor: int


class WatchNodes(WireRecord, frozen=True, tag="watch"):
    """Say which machines there are, whenever that changes."""

    every: float


class RequestMachines(WireRecord, frozen=True, tag="machines"):
    """Let there be machines for all of these, until something else is asked for; nothing withdraws it."""

    bundles: tuple[Bundle, ...]


DriverRequest = Connect | ProbeNode | OpenActor | CountExecutions | KillActor | WatchNodes | RequestMachines


# -- from the driver


class Connected(WireRecord, frozen=True, tag="connected"):
    """The driver is connected: the machines, which of them it is on, and its versions."""

    nodes: tuple[ClusterNode, ...]
    #: The machine that this process is on.
    own: str
    #: The versions of Ray and of Python.
    versions: dict[str, str]


class NodeProbed(WireRecord, frozen=True, tag="probed"):
    """The devices of a machine, as a probe found them."""

    devices: tuple[Device, ...]
    unavailable: tuple[Unavailable, ...]
    #: By device, what that machine has measured itself.
    calibrations: dict[str, Calibration]
    network: NetworkSpeed
    #: By distribution, what is installed there: anygpu, NumPy and the engines' libraries.
    versions: dict[str, str]


class ActorOpened(WireRecord, frozen=True, tag="opened"):
    """The actor is there, under the number by which later events name it."""

    #: The process there.
    pid: int


#: Why an actor has ended that was not lost.
CLOSED, KILLED = "it was closed", "it was killed"


class Executions(WireRecord, frozen=True, tag="executions"):
    """The questions of a connection: those that were answered here, and what actors say that they have executed.

    Both are the same if nothing was executed twice: what an actor had no time to say is lost with it.
    """

    answered: int = 0
    executed: int = 0
    #: Executed although the same actor had executed it before.
    twice: int = 0

    def __add__(self, other: Executions) -> Executions:
        return Executions(self.answered + other.answered, self.executed + other.executed, self.twice + other.twice)


class ActorEnded(WireRecord, frozen=True, tag="ended"):
    """An actor is gone, and why."""

    actor: int
    why: str


class NodesChanged(WireRecord, frozen=True, tag="nodes"):
    """All machines that are in the cluster now."""

    nodes: tuple[ClusterNode, ...]


class MachinesRefused(WireRecord, frozen=True, tag="refused"):
    """The autoscaler's reason to refuse a request for machines; `None` if it does not."""

    count: int
    refusal: MachineRefusal | None


DriverAnswer = Connected | NodeProbed | ActorOpened | Executions | TaskFailed
DriverEvent = ActorEnded | NodesChanged | MachinesRefused

_ENCODER = msgspec.msgpack.Encoder()
_REQUESTS: msgspec.msgpack.Decoder[DriverRequest] = msgspec.msgpack.Decoder(DriverRequest)
_ANSWERS: msgspec.msgpack.Decoder[DriverAnswer] = msgspec.msgpack.Decoder(DriverAnswer)
_EVENTS: msgspec.msgpack.Decoder[DriverEvent] = msgspec.msgpack.Decoder(DriverEvent)


def encode(message: DriverRequest | DriverAnswer | DriverEvent | Ask | Reply | Pulse) -> bytes:
    return _ENCODER.encode(message)


def decode_request(data: bytes | memoryview) -> DriverRequest:
    return decoded(_REQUESTS, data)


def decode_answer(data: bytes | memoryview) -> DriverAnswer:
    return decoded(_ANSWERS, data)


def decode_event(data: bytes | memoryview) -> DriverEvent:
    return decoded(_EVENTS, data)


# -- how questions and answers travel: one packed header, and the bytes of arrays in parts of a size that Ray likes
#
# Ray carries an argument or a result of up to 100 KiB inside of its own message, and puts a larger one into its object
# store, which takes ten times as long for arrays of that size. So arrays are cut into parts below that limit, as many
# as one message may have; only what is larger than that in all goes through the store, each array as one object.
#
# All of this is bytes: nothing is pickled by us, and the other side decodes only what it was made for.


# -- what can become of a question to another machine, whatever Ray calls it


class ActorLost(Exception):
    """The actor is gone for good, or nothing will ever be heard of it: the device has to be opened anew."""


class AnswerLost(Exception):
    """The answer was lost on its way, or perhaps the question: it can be asked again, with the same number."""


class NoRoomForParts(Exception):
    """There is no memory for what would have to travel."""


class ActorRefused(Exception):
    """The actor could not be made there."""


#: One object of a message. Either is bytes: Ray copies those of an array into its store, and shows them there in place.
MessagePart = bytes | ByteArray

#: One part. Ray's limit is 100 KiB, with what it adds itself.
PART = 96 << 10
#: Arrays of so many bytes in all travel in parts. Ray allows 10 MiB in one message.
MOST_IN_PARTS = 8 << 20
#: Where arrays begin in the parts, so that a device can read them where they are.
_ALIGNMENT = 64
#: So many objects a message has at most, whatever it says: somebody would have to make them all.
MOST_OBJECTS = 1 << 16

_Bytes = Annotated[int, Meta(ge=0)]


class Ask(WireRecord, frozen=True):
    """A question to the actor of a device. Its number is the envelope's: an ask that is repeated is executed once."""

    #: Operands in "segments" are the arrays of this message, counted from 1, and so are the places of results.
    envelope: Envelope
    #: The bytes of each array that comes along.
    arrays: tuple[_Bytes, ...]
    #: How many objects the answer may have: its header, and parts.
    returns: Annotated[int, Meta(ge=1, le=MOST_OBJECTS)]


class Reply(WireRecord, frozen=True):
    """The answer of an actor."""

    answer: Answer
    #: The number of the place that each array is for, and its bytes.
    arrays: tuple[tuple[Annotated[int, Meta(ge=1)], _Bytes], ...]
    #: How many objects come after the header; if more than the question allowed, none does, and it is asked again.
    parts: Annotated[int, Meta(ge=0, lt=MOST_OBJECTS)]
    #: How many questions the actor had executed when it answered this one, and how many of them not for the first time.
    executed: Annotated[int, Meta(ge=0)] = 0
    twice: Annotated[int, Meta(ge=0)] = 0


class Pulse(WireRecord, frozen=True):
    """The state of an actor: its process, and the question that it is busy with."""

    pid: int
    #: The number of the question that is being answered; 0 for none.
    running: int


_ASKS = msgspec.msgpack.Decoder(Ask)
_REPLIES = msgspec.msgpack.Decoder(Reply)
_PULSES = msgspec.msgpack.Decoder(Pulse)


def decode_ask(data: bytes) -> Ask:
    """Raises `msgspec.DecodeError` for anything else."""
    return decoded(_ASKS, data)


def decode_reply(data: bytes) -> Reply:
    """Raises `msgspec.DecodeError` for anything else."""
    return decoded(_REPLIES, data)


def decode_pulse(data: bytes) -> Pulse:
    return decoded(_PULSES, data)


def parts_of(sizes: Sequence[int]) -> int:
    """How many objects carry arrays of these sizes."""
    if not sizes:
        return 0
    if sum(sizes) > MOST_IN_PARTS:
        return len(sizes)
    return -(-_extent(sizes) // PART)


def packed(arrays: Sequence[ByteArray]) -> list[MessagePart]:
    """The arrays as objects for one message: parts, or the arrays themselves, which the store takes without a copy."""
    if not arrays:
        return []
    sizes = [each.nbytes for each in arrays]
    if sum(sizes) > MOST_IN_PARTS:
        return list(arrays)
    if len(arrays) == 1:
        view = arrays[0].data
        return [bytes(view[start : start + PART]) for start in range(0, sizes[0], PART)]
    stream = np.empty(_extent(sizes), np.uint8)
    for each, start in zip(arrays, _starts(sizes), strict=True):
        stream[start : start + each.nbytes] = each
    return packed([stream])


def unpack_into(targets: Sequence[ByteArray], parts: Sequence[MessagePart]) -> None:
    """Write the arrays that `packed` has packed to memory of the same sizes. Raises `ValueError` if others came."""
    if not targets:
        return
    sizes = [each.nbytes for each in targets]
    if sum(sizes) > MOST_IN_PARTS:
        for target, part in zip(targets, parts, strict=True):
            values = np.frombuffer(part, np.uint8)
            if values.nbytes != target.nbytes:
                raise ValueError("an array came that has not the size that was announced")
            target[:] = values
        return
    for target, start in zip(targets, _starts(sizes), strict=True):
        _copy(target, parts, start)


def unpacked(sizes: Sequence[int], parts: Sequence[MessagePart]) -> list[ByteArray]:
    """The arrays, in the memory of the parts where they are in one piece. Raises `ValueError` if they are not there."""
    expected, there = parts_of(sizes), len(parts)
    if there != expected:
        raise ValueError(f"{there} parts came, and there should be {expected}")
    if sum(sizes) > MOST_IN_PARTS:
        found = [np.frombuffer(part, np.uint8) for part in parts]
        if [each.nbytes for each in found] != list(sizes):
            raise ValueError("an array came that has not the size that was announced")
        return found
    if sum(len(part) for part in parts) != _extent(sizes) or any(len(part) != PART for part in parts[:-1]):
        raise ValueError("the parts that came have not the sizes that were announced")
    arrays: list[ByteArray] = []
    for size, start in zip(sizes, _starts(sizes), strict=True):
        first, offset = divmod(start, PART)
        if offset + size <= PART:
            arrays.append(np.frombuffer(parts[first] if size else b"", np.uint8, size, offset if size else 0))
        else:
            arrays.append(np.empty(size, np.uint8))
            _copy(arrays[-1], parts, start)
    return arrays


def _copy(target: ByteArray, parts: Sequence[MessagePart], start: int) -> None:
    """Copies bytes from a position of the parts into the target; raises ValueError if the parts are too short."""
    done = 0
    while done < target.nbytes:
        number, offset = divmod(start + done, PART)
        piece = np.frombuffer(parts[number] if number < len(parts) else b"", np.uint8)
        piece = piece[offset : offset + target.nbytes - done]
        if not piece.nbytes:
            raise ValueError("the parts that came are shorter than what was announced")
        target[done : done + piece.nbytes] = piece
        done += piece.nbytes


def _starts(sizes: Sequence[int]) -> list[int]:
    """Returns where each array begins when they are laid out one after the other, aligned."""
    starts, position = [], 0
    for size in sizes:
        starts.append(position)
        position = _aligned(position + size)
    return starts


def _extent(sizes: Sequence[int]) -> int:
    """The bytes that they take together."""
    return _starts(sizes)[-1] + sizes[-1] if sizes else 0


def _aligned(position: int) -> int:
    return -(-position // _ALIGNMENT) * _ALIGNMENT
