"""Messages between this process and the driver, its child that speaks to Ray: MessagePack, and nothing else."""

from __future__ import annotations

from typing import Literal

import msgspec

from anygpu.hardware.device import Device, Unavailable
from anygpu.plan.calibration import Calibration, NetworkSpeed
from anygpu.workers.task_messages import TaskFailed, WireRecord, decoded


class Node(msgspec.Struct, frozen=True):
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
Refusal = Literal["infeasible", "alone", "labels"]


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
    nodes: tuple[Node, ...]
    #: The machine that this process is on.
    own: str
    #: The versions of Ray and of Python.
    versions: dict[str, str]


class NodeProbed(WireRecord, frozen=True, tag="probed"):
    devices: tuple[Device, ...]
    unavailable: tuple[Unavailable, ...]
    #: By device, what that machine has measured itself.
    calibrations: dict[str, Calibration]
    network: NetworkSpeed
    #: By distribution, what is installed there: anygpu, NumPy and the engines' libraries.
    versions: dict[str, str]


class ActorOpened(WireRecord, frozen=True, tag="opened"):
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
    nodes: tuple[Node, ...]


class MachinesRefused(WireRecord, frozen=True, tag="refused"):
    """The autoscaler's reason to refuse a request for machines; `None` if it does not."""

    count: int
    refusal: Refusal | None


DriverAnswer = Connected | NodeProbed | ActorOpened | Executions | TaskFailed
DriverEvent = ActorEnded | NodesChanged | MachinesRefused

_ENCODER = msgspec.msgpack.Encoder()
_REQUESTS: msgspec.msgpack.Decoder[DriverRequest] = msgspec.msgpack.Decoder(DriverRequest)
_ANSWERS: msgspec.msgpack.Decoder[DriverAnswer] = msgspec.msgpack.Decoder(DriverAnswer)
_EVENTS: msgspec.msgpack.Decoder[DriverEvent] = msgspec.msgpack.Decoder(DriverEvent)


def encode(message: DriverRequest | DriverAnswer | DriverEvent) -> bytes:
    return _ENCODER.encode(message)


def decode_request(data: bytes | memoryview) -> DriverRequest:
    return decoded(_REQUESTS, data)


def decode_answer(data: bytes | memoryview) -> DriverAnswer:
    return decoded(_ANSWERS, data)


def decode_event(data: bytes | memoryview) -> DriverEvent:
    return decoded(_EVENTS, data)
