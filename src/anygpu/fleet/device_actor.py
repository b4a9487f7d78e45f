"""Code that Ray runs on other machines: a short visit that lists their devices, and the actor of one device.

`Prober` is the visit, and `Visited` what it brings back. `differences` and `refused` decide whether a machine computes
what this one does, by the versions of its libraries. `DeviceActor` keeps one device open and answers numbered asks,
each of which it executes once however often it is repeated.
"""

from __future__ import annotations

import os
import platform
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from anygpu.base.typing import HostArray
from anygpu.base.version import __version__
from anygpu.engines.catalogue import entry_of, every_engine
from anygpu.engines.disk_cache import version_of
from anygpu.engines.host_arrays import numpy_dtype
from anygpu.errors import InvalidOption
from anygpu.fleet import messages
from anygpu.fleet.messages import Ask, MessagePart, Pulse, Reply
from anygpu.hardware.device import Device, Unavailable, node_of, parse_device
from anygpu.hardware.inventory import together
from anygpu.placement.plan.calibration import Calibration
from anygpu.program.primitives import Spec
from anygpu.workers import child_messages
from anygpu.workers.child_messages import Answer, InSegment, TaskFailed, TaskOutcome, error_to_message
from anygpu.workers.child_server import ChildServer
from anygpu.workers.shared_memory import ByteArray
from anygpu.workers.worker import default_budget

# -- A short visit to another machine: which devices it has, how fast they are, and how far away it is


# -- whether another machine computes what this one does: versions of anygpu, of NumPy and of the engines' libraries
#
# A release may compute other values than the one before, and does not say so in its results. Machines whose minor
# version is another one are therefore refused, unless the caller has asked for them.


#: Libraries that every device depends on: NumPy computes what a device cannot.
COMMON = ("anygpu", "numpy")
#: The option of `connect` that admits other versions.
_OPTION = "other_versions=True"


class VersionDifference(NamedTuple):
    """A distribution whose minor version is another one there."""

    distribution: str
    here: str
    there: str

    def __str__(self) -> str:
        return f"{self.distribution} {self.there} (here {self.here})"


def installed_versions() -> dict[str, str]:
    """Returns the installed versions of the distributions that results depend on, by name."""
    names = dict.fromkeys((*COMMON[1:], *(entry.versions[0] for entry in every_engine() if entry.versions)))
    found = {name: version_of(name) for name in names}
    return {"anygpu": __version__, **{name: version for name, version in found.items() if version is not None}}


def library_of(engine: str) -> tuple[str, ...]:
    """The distribution that the engine stands on, if there is one."""
    entry = next((each for each in every_engine() if each.name == engine), None)
    return entry.versions[:1] if entry is not None else ()


def differences(
    names: Iterable[str], here: Mapping[str, str], there: Mapping[str, str]
) -> tuple[VersionDifference, ...]:
    """Returns the distributions that are in both places in different minor versions."""
    return tuple(
        VersionDifference(name, here[name], there[name])
        for name in names
        if name in here and name in there and minor_version(here[name]) != minor_version(there[name])
    )


def minor_version(version: str) -> tuple[str, ...]:
    """The first two numbers; of what has none, all of it."""
    found = re.match(r"\s*v?(?:\d+!)?(\d+)(?:\.(\d+))?", version)
    return (version,) if found is None else (str(int(found[1])), str(int(found[2] or 0)))


def refused(name: str, engine: str, found: tuple[VersionDifference, ...]) -> Unavailable:
    """A device that is not used because of its versions, with the command that helps; `name` is that in the fleet."""
    node = node_of(name)
    packages = " ".join(f"'{each.distribution}=={each.here}'" for each in found)
    return Unavailable(
        id=name,
        engine=engine,
        state="present",
        cause="other_version",
        reason=f"{node} has {' and '.join(map(str, found))}, and may compute other values.",
        fix=f"On {node}: pip install {packages}   (then connect again; or pass {_OPTION} to use it as it is)",
        facts={each.distribution: each.there for each in found},
    )


def warnings_of(missing: Iterable[Unavailable], here: Mapping[str, str]) -> Iterator[str]:
    """One sentence for each combination of versions for which machines are refused, however many these are."""
    nodes: dict[tuple[tuple[str, str], ...], dict[str, None]] = {}
    for each in missing:
        node = node_of(each.id)
        if each.cause == "other_version" and node is not None:
            nodes.setdefault(tuple(each.facts.items()), {})[node] = None
    for facts, names in nodes.items():
        found = [VersionDifference(name, here.get(name, "none"), there) for name, there in facts]
        packages = " ".join(f"'{each.distribution}=={each.here}'" for each in found)
        yield (
            f"Devices of {together(names)} are not used, because they may compute other values: "
            f"{' and '.join(map(str, found))}. pip install {packages} there, or pass {_OPTION}."
        )


class Visited(msgspec.Struct, frozen=True):
    """The devices of a machine, its versions and its speed."""

    devices: tuple[Device, ...]
    unavailable: tuple[Unavailable, ...]
    calibrations: dict[str, Calibration]
    version: str
    python: str
    #: By distribution; earlier versions of anygpu do not tell.
    versions: dict[str, str] = {}


class _Version(msgspec.Struct, frozen=True):
    """The part of `Visited` that every version of anygpu can read."""

    version: str


class Prober:
    """Inside of a Ray actor that lives as long as the visit."""

    def probe(self, seconds: float) -> bytes:
        """`Visited`, packed. Takes so long at most."""
        from anygpu.fleet.device_actor import installed_versions
        from anygpu.placement.calibrate import recalled
        from anygpu.workers.discovery import discover

        inventory = discover(timeout=seconds, with_cards=True)
        devices = tuple(device for device in inventory.devices if device.verified)
        known = {device.id: found for device in devices if (found := recalled(device)) is not None}
        versions = installed_versions()
        return msgspec.msgpack.encode(
            Visited(devices, inventory.unavailable, known, __version__, platform.python_version(), versions)
        )

    def echo(self, returns: int, part: int, *parts: bytes) -> bytes | list[bytes]:
        """Returns as many parts of that size as are wanted: for measuring the way there and back."""
        return bytes(part) if returns == 1 else [bytes(part)] * returns


def decode(data: bytes) -> Visited:
    """Decode a machine's answer. From one in the form of another version, only the version is read."""
    try:
        found = msgspec.msgpack.decode(data, type=Visited)
    except msgspec.ValidationError:
        version = msgspec.msgpack.decode(data, type=_Version).version
        if version == __version__:
            raise
        return Visited((), (), {}, version, "", {"anygpu": version})
    return found if found.versions else msgspec.structs.replace(found, versions={"anygpu": found.version})


# -- the actor of a device on its own machine: what a Ray actor holds, and all of it that is ours
#
# It takes programs, which are data and are checked, never code. It answers each numbered question once and keeps the
# last answers: when an answer is lost on its way, the same question gets the same answer, and nothing is executed
# twice.


#: Answers that are kept: so many, and so many bytes. The last one always is.
ANSWERS, ANSWER_BYTES = 64, 64 << 20

#: Without a word from its fleet for so long, nobody will ever speak to it again.
LEASE_SECONDS = 20.0
_LOOK_SECONDS = 0.1


class _Kept(NamedTuple):
    """An answer that was given, in case it is asked for again."""

    reply: Reply
    arrays: list[ByteArray]
    nbytes: int


class DeviceActor:
    """One open device, on the machine that it is in."""

    def __init__(self, device: str, lease: float | None = LEASE_SECONDS) -> None:
        """`device` is its name in the fleet. The process ends without a word from there for `lease` seconds."""
        self._server = ActorServer(device)
        self._answers: OrderedDict[int, _Kept] = OrderedDict()
        self._kept_bytes = 0
        #: The number of the question that is being answered.
        self._running = 0
        #: The highest number so far. They grow, so that one which does not was executed before: there should be none.
        self._highest = 0
        self._executed = self._twice = 0
        #: Seconds without a word.
        self._unheard = 0.0
        if lease is not None:
            watch = threading.Thread(target=self._watch, args=(os.getppid(), lease), name="anygpu-actor", daemon=True)
            watch.start()

    def ping(self) -> bytes:
        """Say that it is there, also while it is busy."""
        self._unheard = 0.0
        return messages.encode(Pulse(os.getpid(), self._running))

    def leave(self) -> None:
        """End this process, for a fleet that is about to end and cannot ask the cluster's head any more."""
        os._exit(0)

    def ask(self, header: bytes, *parts: MessagePart) -> bytes | list[MessagePart]:
        """Answer a question: a header, and parts if the question has room for these."""
        self._unheard = 0.0
        ask = messages.decode_ask(header)
        number = ask.envelope.number
        kept = self._answers.get(number)
        if kept is None:
            self._running = number
            kept = self._answered(ask, parts)
            if number:
                self._keep(number, kept)
            self._running = 0
        head = messages.encode(kept.reply)
        if ask.returns == 1:
            return head
        fits = kept.reply.parts < ask.returns
        found = messages.packed(kept.arrays) if fits else []
        return [head, *found, *([b""] * (ask.returns - 1 - len(found)))]

    def _answered(self, ask: Ask, parts: Sequence[MessagePart]) -> _Kept:
        """Execute a task, and keep its answer with the arrays that have to travel."""
        number = ask.envelope.number
        if number:
            self._executed += 1
            self._twice += number <= self._highest
            self._highest = max(number, self._highest)
        outcome, arrays = self._server.respond(ask, parts)
        sizes = [values.nbytes for values in arrays.values()]
        reply = Reply(
            Answer(number, outcome),
            tuple((place, values.nbytes) for place, values in arrays.items()),
            messages.parts_of(sizes),
            self._executed,
            self._twice,
        )
        return _Kept(reply, list(arrays.values()), sum(sizes))

    def _keep(self, number: int, kept: _Kept) -> None:
        """Keeps an answer by its number, and drops the oldest beyond the limits of count and bytes."""
        self._answers[number] = kept
        self._kept_bytes += kept.nbytes
        while len(self._answers) > 1 and (len(self._answers) > ANSWERS or self._kept_bytes > ANSWER_BYTES):
            _, oldest = self._answers.popitem(last=False)
            self._kept_bytes -= oldest.nbytes

    def _watch(self, parent: int, lease: float) -> None:
        """End this process with the one that has started it, which Ray does not see to when that is killed.

        A device that nobody can reach any more is not held for ever either.
        """
        # Not by the clock: a machine that was suspended could not have heard anything.
        while os.getppid() == parent and self._unheard < lease:
            time.sleep(_LOOK_SECONDS)
            self._unheard = 0.0 if self._running else self._unheard + _LOOK_SECONDS
        # Drivers crash in their exit handlers more often than anywhere else, and there is nothing to clean up.
        os._exit(1)


class ActorServer(ChildServer):
    """The server of a child, whose arrays come and go with messages instead of shared memory."""

    # They are in Ray's messages, or in its store, and nobody writes to them.
    _lends = True

    def __init__(self, device: str) -> None:
        """Serves the device of that name in the fleet; on its own machine it has the name without the node."""
        super().__init__()
        self._name = device
        self._there = parse_device(device).there
        self._given: list[ByteArray] = []
        self._places: dict[int, ByteArray] = {}

    def respond(self, ask: Ask, parts: Sequence[MessagePart]) -> tuple[TaskOutcome, dict[int, ByteArray]]:
        """The outcome, and by their places the arrays that belong to it."""
        self._places = {}
        try:
            self._given = messages.unpacked(ask.arrays, parts)
            outcome = self.answer(ask.envelope, _no_descriptor) or child_messages.TaskDone()
        except Exception as error:  # noqa: BLE001 - whatever it is, the one who waits for it is told
            outcome = error_to_message(error)
        finally:
            self._given = []
        places, self._places = self._places, {}
        if isinstance(outcome, TaskFailed):
            return self._renamed(outcome), {}
        return outcome, places

    def _renamed(self, failed: TaskFailed) -> TaskFailed:
        """An error that speaks of the device by its name in the fleet."""
        fields = dict(failed.fields)
        if fields.get("device") == self._there:
            fields["device"] = self._name
        message = failed.message
        if self._name not in message:
            message = message.replace(self._there, self._name)
        return msgspec.structs.replace(failed, message=message, fields=fields)

    def _open(self, task: child_messages.Open) -> TaskOutcome:
        """Opens the device by the name that it has in this process, where Ray may have hidden other GPUs."""
        # The engine and the budget are this machine's business.
        budget = default_budget() if task.budget is None else task.budget
        seen = seen_here(task.device.id, os.environ.get("CUDA_VISIBLE_DEVICES"))
        device = msgspec.structs.replace(task.device, id=seen)
        super()._open(msgspec.structs.replace(task, entry=entry_of(seen), device=device, budget=budget))
        # Transfers beside a run would need a second way here.
        return child_messages.Opened(overlaps=False)

    def _values(self, operand: bytes | InSegment, spec: Spec) -> HostArray:
        """Returns an argument from the parts of the message instead of shared memory."""
        if isinstance(operand, bytes):
            return super()._values(operand, spec)
        if not 0 < operand.segment <= len(self._given):
            raise InvalidOption(f"there is no array {operand.segment} in this message.")
        data = self._given[operand.segment - 1]
        return super()._values(memoryview(data), spec)  # type: ignore[arg-type]

    def _targets(self, wanted: Sequence[int], specs: Sequence[Spec]) -> list[HostArray | None]:
        # Results are sent from where they are.
        return [None] * len(specs)

    def _delivered(self, number: int, values: HostArray) -> bytes:
        """Keeps a result that has a place for the answer's parts, as contiguous bytes of its own."""
        if not number:
            return super()._delivered(number, values)
        _check_place(number)
        # A view would keep the memory of what it shows, an argument's in Ray's store perhaps.
        own = values if values.flags.owndata and values.flags.c_contiguous else np.array(values, order="C")
        self._places[number] = own.reshape(-1).view(np.uint8)
        return b""

    def _place(self, number: int, spec: Spec) -> HostArray:
        """Makes room for a result that is sent in the answer's parts."""
        _check_place(number)
        room: ByteArray = np.empty(spec.nbytes, np.uint8)
        self._places[number] = room
        view: HostArray = room.view(numpy_dtype(spec.dtype)).reshape(spec.shape)
        return view


def _check_place(number: int) -> None:
    if number < 1:
        raise InvalidOption(f"there is no place {number} for a result.")


def seen_here(device: str, visible: str | None) -> str:
    """The name of a device in a process that Ray has given only some of a machine's GPUs: they count from 0 there."""
    engine, _, local = device.partition(":")
    kind, _, number = local.rpartition(":")
    if not visible or kind not in ("cuda", "gpu") or not number.isdigit():
        return device
    return f"{engine}:{kind}:{int(number) % len(visible.split(','))}"


def _no_descriptor() -> int:
    raise InvalidOption("no shared memory leads to another machine.")
