"""Mutated messages of a fleet: `python -m benchmarks.fleet_fuzz [--count 100000] [--json] [--check]`.

Every message is a good one with some of it changed, in bytes or in fields, and comes to one of four doors: questions to
the actor of a device, with their arrays; answers of an actor, at the driver; answers of the driver, at the user's
process; and requests to the driver. Each is done, or refused with an error that is known there. Nothing else is
raised, nothing hangs, and memory stays flat. `--seed` does the same again.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import psutil

from anygpu.engines.catalogue import EngineEntry
from anygpu.errors import AnyGPUError
from anygpu.fleet import messages
from anygpu.fleet.device_actor import DeviceActor
from anygpu.fleet.messages import ActorLost, AnswerLost, Ask, MessagePart
from anygpu.fleet.relay import Relay
from anygpu.placement.machine import numpy_device
from anygpu.program import wire
from anygpu.program.graph import Node, Program
from anygpu.program.primitives import Binary, Input
from anygpu.receipts.receipt import Account, NetworkUse
from anygpu.workers import child_messages
from anygpu.workers.child_messages import (
    Answer,
    Attached,
    Envelope,
    InSegment,
    Run,
    RunDone,
    TaskFailed,
    error_from_message,
)
from anygpu.workers.shared_memory import ByteArray, new_segment
from benchmarks.report import Figure, options_parser, publish, say

NAME = "numpy@node-7"
#: Part of the messages after which memory has been taken that stays in use.
_WARM = 0.3
_X = np.arange(4096, dtype=np.float32)

_ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2, 63, 64, 65_537, 2**31, 2**40, 2**63 - 1, 2**64 - 1, 1e308, float("nan"), "", "x", "numpy",
    "run", "open", "close", "é" * 300, b"", b"\x00" * 64, [], [[]], [1], [-1], [2**40], [0, 2**62], [1] * 40, {},
    {"a": 1}, {1: 2},
)  # fmt: skip

#: What Python's own errors may be called at the user's side.
_USUAL = (ArithmeticError, IndexError, MemoryError, NotImplementedError, TypeError, ValueError)


def _program() -> Program:
    inputs = Node(Input(_X.shape, "float32"), ())
    return Program([inputs, Node(Binary("add"), (0, 0))], [1])


PROGRAM = _program()
_TEXT = wire.to_bytes(PROGRAM, lines=False)
#: What a run of it might have taken.
_ACCOUNT = Account(0.0, 0.0, 0.0, 0.0, 1, 1, 0, None, None, None, [], {})


def changed(random_: random.Random, message: bytes) -> bytes:
    """The message with some of its bytes or some of its fields changed."""
    if random_.random() < 0.4:
        return _bytes_changed(random_, message)
    tree = msgspec.msgpack.decode(message, strict=False)
    for _ in range(random_.randint(1, 3)):
        tree = _field_changed(random_, tree)
    return msgspec.msgpack.encode(tree)


def _bytes_changed(random_: random.Random, message: bytes) -> bytes:
    data = bytearray(message)
    for _ in range(random_.randint(1, 6)):
        position = random_.randrange(len(data) or 1)
        match random_.randrange(3):
            case 0 if data:
                data[position] = random_.randrange(256)
            case 1:
                del data[position : position + random_.randint(1, 16)]
            case _:
                data[position:position] = random_.randbytes(random_.randint(1, 16))
    return bytes(data)


def _field_changed(random_: random.Random, tree: Any) -> Any:
    """Another value anywhere in it."""
    if isinstance(tree, list) and tree and random_.random() < 0.85:
        position = random_.randrange(len(tree))
        return [*tree[:position], _field_changed(random_, tree[position]), *tree[position + 1 :]]
    if isinstance(tree, dict) and tree and random_.random() < 0.85:
        key = random_.choice(list(tree))
        return {**tree, key: _field_changed(random_, tree[key])}
    if isinstance(tree, bytes) and len(tree) > 16 and random_.random() < 0.5:
        return _bytes_changed(random_, tree)
    # Mostly of the same type, or hardly any would be read to the end.
    alike = [each for each in _ODD if type(each) is type(tree)]
    return random_.choice(alike if alike and random_.random() < 0.8 else _ODD)


class Doors:
    """Where messages come in. Each door returns what became of one, and raises what nobody expects there."""

    def __init__(self) -> None:
        self.actor = self._opened()
        self.number = 1
        # Arrays are in shared memory on the driver's side.
        self._relay = Relay(None, self, NAME)  # type: ignore[arg-type]
        segment = new_segment(_X.nbytes, "memory")
        self._segment = segment.number
        attached = Attached(segment.number, segment.nbytes, "")
        self._relay._segments.announce(Envelope(0, None, attached=(attached,)), lambda: os.dup(segment.descriptor))
        self._reply = b""
        self._parts: list[MessagePart] = []

    def _opened(self) -> DeviceActor:
        actor = DeviceActor(NAME, lease=None)
        task = child_messages.Open(EngineEntry(name="numpy", target=""), numpy_device(), None)
        actor.ask(messages.encode(Ask(Envelope(1, task), (), 1)))
        return actor

    # -- a question to an actor

    def question(self, random_: random.Random) -> str:
        self.number += 1
        header, parts = self._good_question(random_)
        if random_.random() < 0.9:
            header = changed(random_, header)
        if random_.random() < 0.2 and parts:
            parts = [_bytes_changed(random_, bytes(each)) for each in parts]
        try:
            found = self.actor.ask(header, *parts)
        except msgspec.DecodeError:
            return "a question, unreadable"
        if self.actor._server.finished:
            self.actor = self._opened()
        reply = messages.decode_reply(bytes(found if isinstance(found, bytes) else found[0]))
        return f"a question, {_judged(reply.answer.outcome)}"

    def _good_question(self, random_: random.Random) -> tuple[bytes, list[MessagePart]]:
        data = _X.view(np.uint8)
        place = random_.choice([0, 1])
        tasks: tuple[tuple[child_messages.ChildTask, Sequence[ByteArray]], ...] = (
            (Run(PROGRAM.key, _TEXT, (InSegment(1, data.nbytes),), (place,), 0, True, False), [data]),
            (Run(PROGRAM.key, None, (_X.tobytes(),), (place,), 0, True, False), []),
            (child_messages.Upload(InSegment(1, data.nbytes), _X.shape, "float32", 7), [data]),
            (child_messages.Download(7, 1), []),
            (child_messages.Supports(PROGRAM.key, _TEXT), []),
            (child_messages.Prepare(PROGRAM.key, _TEXT), []),
            (child_messages.AskMemory(), []),
        )
        task, arrays = random_.choice(tasks)
        ask = Ask(Envelope(self.number, task, (8, 9)), tuple(each.nbytes for each in arrays), random_.choice([1, 2, 9]))
        return messages.encode(ask), messages.packed(arrays)

    # -- an answer of an actor, at the driver; this object is that actor

    def reply(self, random_: random.Random) -> str:
        self.number += 1
        task = Run(PROGRAM.key, _TEXT, (InSegment(self._segment, _X.nbytes),), (self._segment,), 0, True, False)
        done = RunDone((b"",), _ACCOUNT, NetworkUse())
        good = messages.encode(messages.Reply(Answer(self.number, done), ((1, _X.nbytes),), 1))
        self._reply, self._parts = changed(random_, good), list(messages.packed([_X.view(np.uint8)]))
        if random_.random() < 0.2:
            self._parts = [_bytes_changed(random_, bytes(self._parts[0]))]
        try:
            outcome = self._relay._answered(Envelope(self.number, task))
        except (ActorLost, AnswerLost):
            return "a reply, actor given up"
        child_messages.decode_answer(child_messages.encode(Answer(self.number, outcome)))
        return f"a reply, {_judged(outcome)}"

    def ask(self, header: bytes, parts: Sequence[MessagePart], returns: int) -> list[Any]:
        assert returns <= messages.MOST_OBJECTS, "Ray would have to make so many objects"
        return [self._reply, *self._parts, *[b""] * max(0, min(returns, 99) - 2)][:returns]

    def get(self, answer: list[Any], seconds: float) -> list[MessagePart]:
        return answer

    def ping(self) -> Any:
        return None

    def pong(self, ping: Any, seconds: float) -> bytes:
        return self.actor.ping()

    def kill(self) -> None:
        """It is not alive."""

    # -- messages of the driver and to it

    def answer(self, random_: random.Random) -> str:
        failed = TaskFailed("DeviceLost", "numpy is gone.", {"device": NAME, "generation": 2}, "")
        done = RunDone((_X.tobytes(),), _ACCOUNT, NetworkUse(1, 2, 3))
        outcomes: tuple[child_messages.TaskOutcome, ...] = (failed, done)
        good = child_messages.encode(Answer(self.number, random_.choice(outcomes)))
        try:
            found = child_messages.decode_answer(changed(random_, good))
        except msgspec.DecodeError:
            return "an answer, unreadable"
        return f"an answer, {_judged(found.outcome)}"

    def request(self, random_: random.Random) -> str:
        node = messages.ClusterNode("ab" * 28, "node-7", "10.0.0.7", {"CPU": 1.0}, {"a": "b"})
        goods: tuple[tuple[Any, Callable[[bytes], Any]], ...] = (
            (messages.Connect("auto"), messages.decode_request),
            (messages.OpenActor(1, NAME, "ab", 0.5, 15.0), messages.decode_request),
            (messages.Connected((node,), "ab", {"ray": "2"}), messages.decode_answer),
            (messages.NodesChanged((node,)), messages.decode_event),
            (messages.ActorEnded(1, "it was closed"), messages.decode_event),
        )
        good, decode = random_.choice(goods)
        try:
            decode(changed(random_, messages.encode(good)))
        except msgspec.DecodeError:
            return "a request or event, unreadable"
        return "a request or event, understood"


def _judged(outcome: child_messages.TaskOutcome) -> str:
    """Whether it was done; a failure must become an error that users know."""
    if not isinstance(outcome, TaskFailed):
        return "done"
    error = error_from_message(outcome, NAME)
    if not isinstance(error, (AnyGPUError, *_USUAL)):
        raise AssertionError(f"{type(error).__name__} is not an error that users know")
    return "refused"


def fuzz(count: int, seed: int) -> tuple[Counter[str], list[str], int]:
    """What became of the messages, what went wrong, and by how many bytes this process grew after the first of them."""
    doors = Doors()
    ways = (doors.question, doors.question, doors.reply, doors.answer, doors.request)
    became: Counter[str] = Counter()
    wrong: list[str] = []
    process, base = psutil.Process(), 0
    for number in range(count):
        if number == int(count * _WARM):
            base = process.memory_info().rss
        if number and number % 20_000 == 0:
            say(f"{number:,} messages, {process.memory_info().rss >> 20} MiB")
        random_ = random.Random(f"{seed}/{number}")
        way = random_.choice(ways)
        try:
            became[way(random_)] += 1
        except Exception as error:  # noqa: BLE001 - this is what is looked for
            wrong.append(f"{seed}/{number}, {way.__name__}: {type(error).__name__}: {str(error)[:120]}")
    return became, wrong, process.memory_info().rss - base


def main(given: list[str] | None = None) -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(given)
    became, wrong, grown = fuzz(options.count, options.seed)
    for line in wrong[:20]:
        say(line)
    say(f"seed {options.seed}: " + ", ".join(f"{what}: {number:,}" for what, number in became.most_common()))
    publish(
        [
            Figure(name="mutated messages", value=options.count, unit="messages"),
            Figure(name="neither done nor refused", value=len(wrong), unit="messages", bound=0.5),
            Figure(name="growth of memory", value=grown / (1 << 20), unit="MiB", bound=16.0),
        ],
        options,
    )


if __name__ == "__main__":
    main()
