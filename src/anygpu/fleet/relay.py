"""Between a worker and the actor of its device: tasks come by the worker's link, and go to the actor as numbered asks.

The worker is in the user's process and takes this for a child that serves a device; arrays cross to here in shared
memory. A question is open until it is answered, whatever becomes of messages. While it is open the actor is pinged. An
actor that answers no ping is lost; one that does, and is not busy with the question, is asked again, with the same
number: it has the answer still, or has never heard of the question.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from anygpu.errors import InvalidOption, OutOfMemory
from anygpu.fleet import messages
from anygpu.fleet.messages import (
    CLOSED,
    KILLED,
    ActorLost,
    AnswerLost,
    Ask,
    Executions,
    MessagePart,
    NoRoomForParts,
    Reply,
)
from anygpu.receipts.receipt import NetworkUse
from anygpu.workers import child_messages
from anygpu.workers.child_messages import (
    Answer,
    ChildTask,
    Envelope,
    InSegment,
    TaskOutcome,
    WireOperand,
    error_to_message,
)
from anygpu.workers.link import Link, LinkClosed
from anygpu.workers.shared_memory import AttachedSegments, ByteArray

#: While a question is open, the actor is pinged so often.
PING_SECONDS = 2.0
#: How long a ping is waited for each time, and how often before its actor is lost. Not by the clock: a machine that was
#: suspended has heard nothing either.
PONG_SECONDS, MOST_MISSED = 1.0, 5
#: How often one question is asked, at most.
MOST_ASKS = 20
#: Without questions, the actor hears from here so often: it does not stay for ever when nobody is left.
IDLE_SECONDS = 2.0


class ActorHandle(Protocol):
    """The actor of a device, as `ray_cluster` has it."""

    def ask(self, header: bytes, parts: Sequence[MessagePart], returns: int) -> list[Any]: ...

    def get(self, answer: list[Any], seconds: float) -> list[MessagePart]: ...

    def ping(self) -> Any: ...

    def pong(self, ping: Any, seconds: float) -> bytes: ...

    def kill(self) -> None: ...

    def leave(self) -> None: ...


class Relay:
    """The questions to one actor, one after the other, on the thread that calls `serve`."""

    def __init__(self, link: Link, actor: ActorHandle, device: str) -> None:
        self._link = link
        self._actor = actor
        self._device = device
        self._segments = AttachedSegments()
        self._dropped: list[int] = []
        #: Set by another thread: nobody waits for an answer any more.
        self.killed = False
        #: Set by another thread: why the actor is known to be lost.
        self.lost: str | None = None
        #: Executions of the actor for this relay, as far as it has answered.
        self.executions = Executions()
        #: How many pongs of the open question have been waited for in vain since the last one came.
        self._missed = 0

    def serve(self) -> str:
        """Until the worker lets go, or the actor is lost: why it ended."""
        try:
            while True:
                envelope = self._next()
                if envelope is None:
                    continue
                outcome = self._answered(envelope)
                self._link.send(child_messages.encode(Answer(envelope.number, outcome)))
                if isinstance(envelope.task, child_messages.Close):
                    return CLOSED
        except LinkClosed:
            return self.lost or CLOSED
        except msgspec.DecodeError as error:
            return f"it was sent an unreadable task ({error})"
        except (ActorLost, AnswerLost) as error:
            # No answer: the link is closed, and whoever waits there, or comes later, is told the reason.
            return str(error)

    def kill(self) -> None:
        """From another thread: end the actor, and whatever is open there."""
        self.killed = True
        self._actor.kill()

    def lose(self, why: str) -> None:
        """From another thread: the actor is lost, and the worker hears of it at once, whatever waits here for Ray."""
        self.lost = why
        self._link.shut_down()

    def leave(self) -> None:
        """From another thread: let the actor end itself, which works without a head."""
        self._actor.leave()

    def close(self) -> None:
        """End the actor, and let go of the worker."""
        self._actor.kill()
        self._segments.close()
        self._link.close()

    def _next(self) -> Envelope | None:
        """The next task; without one the actor is told that somebody is still there."""
        try:
            envelope = child_messages.decode_envelope(self._link.receive(IDLE_SECONDS))
        except TimeoutError:
            self._pulse(self._actor.ping())
            return None
        self._segments.forget(envelope)
        self._segments.announce(envelope, self._link.next_descriptor)
        self._dropped += envelope.dropped
        if envelope.task is None:
            self._tell_dropped()
            return None
        return envelope

    def _pulse(self, ping: Any) -> messages.Pulse:
        for _ in range(MOST_MISSED):
            try:
                return messages.decode_pulse(self._actor.pong(ping, PONG_SECONDS))
            except TimeoutError:
                continue
        raise _silent()

    def _tell_dropped(self) -> None:
        """Memory can be freed there; nobody waits for that."""
        if self._dropped:
            dropped, self._dropped = tuple(self._dropped), []
            self._actor.ask(messages.encode(Ask(Envelope(0, None, dropped), (), 1)), (), 1)

    def _answered(self, envelope: Envelope) -> TaskOutcome:
        """The outcome. Raises `ActorLost`, or `AnswerLost` when asking again has not helped."""
        task = envelope.task
        assert task is not None, "what has no task needs no answer"
        try:
            if isinstance(task, child_messages.OpenSide):
                raise InvalidOption("there is one way to another machine.")
            return self._asked(envelope.number, task)
        except NoRoomForParts:
            return error_to_message(OutOfMemory(f"Ray's object store on the way to {self._device}"))
        except (ActorLost, AnswerLost):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the one who waits for it is told
            return error_to_message(error)

    def _asked(self, number: int, task: ChildTask) -> TaskOutcome:
        """Execute one task at the actor: arrays go as parts of the message, and results into their segments."""
        arrays: list[ByteArray] = []
        places: list[int] = []
        task = self._unsegmented(task, arrays, places)
        sizes = [self._segments.size(place) for place in places]
        dropped, self._dropped = tuple(self._dropped), []
        envelope = Envelope(number, task, dropped)
        given = tuple(each.nbytes for each in arrays)
        reply, parts, use = self._settled(envelope, given, messages.packed(arrays), 1 + messages.parts_of(sizes))
        if any(place > len(places) or nbytes > sizes[place - 1] for place, nbytes in reply.arrays):
            raise ActorLost("it sent arrays that were not requested")
        targets = [
            self._segments.find(places[place - 1], self._device).bytes[:nbytes] for place, nbytes in reply.arrays
        ]
        try:
            messages.unpack_into(targets, parts)
        except ValueError as error:
            raise ActorLost(f"it sent an unreadable answer ({error})") from None
        outcome = reply.answer.outcome
        if isinstance(outcome, child_messages.RunDone):
            outcome = msgspec.structs.replace(outcome, network=use)
        return outcome

    def _settled(
        self, envelope: Envelope, sizes: tuple[int, ...], parts: Sequence[MessagePart], returns: int
    ) -> tuple[Reply, list[MessagePart], NetworkUse]:
        """Ask until there is an answer."""
        sent = received = asks = 0
        self._missed = 0
        while True:
            header = messages.encode(Ask(envelope, sizes, returns))
            sent += len(header) + sum(sizes)
            asks += 1
            try:
                found = self._awaited(self._actor.ask(header, parts, returns), envelope.number)
            except AnswerLost:
                if asks >= MOST_ASKS or self.killed or self.lost:
                    raise
                continue
            try:
                reply = messages.decode_reply(bytes(found[0]))
            except msgspec.DecodeError as error:
                raise ActorLost(f"it sent an unreadable answer ({error})") from None
            received += sum(len(each) for each in found)
            if reply.parts < returns:
                self.executions = Executions(self.executions.answered + 1, reply.executed, reply.twice)
                return reply, found[1 : 1 + reply.parts], NetworkUse(sent, received, asks)
            if asks >= MOST_ASKS:
                raise ActorLost("its answers are larger each time")
            # There is more than there was room for: the answer is kept there.
            returns, parts, sizes = reply.parts + 1, (), ()

    def _awaited(self, answer: list[Any], number: int) -> list[MessagePart]:
        """The objects of an answer. Raises `AnswerLost` when it has to be asked again, and `ActorLost`."""
        ping: Any = None
        #: How many pongs in a row say that the actor is not busy with the question.
        idle = 0
        while True:
            try:
                return self._actor.get(answer, PING_SECONDS if ping is None else PONG_SECONDS)
            except TimeoutError:
                pass
            if self.killed or self.lost:
                raise ActorLost(self.lost or KILLED)
            if ping is None:
                ping = self._actor.ping()
                continue
            try:
                pulse = messages.decode_pulse(self._actor.pong(ping, 0.0))
            except TimeoutError:
                self._missed += 1
                if self._missed >= MOST_MISSED:
                    raise _silent() from None
                continue
            except AnswerLost:
                ping = None
                continue
            ping, self._missed = None, 0
            idle = 0 if pulse.running == number else idle + 1
            if idle >= 2:
                raise AnswerLost("the actor is not busy with it, and no answer has come")

    # -- arrays, which are in shared memory on this side and in messages on the other

    def _unsegmented(self, task: ChildTask, arrays: list[ByteArray], places: list[int]) -> ChildTask:
        """The task with the numbers of arrays, which are collected, and of places for results."""

        def operand(each: WireOperand) -> WireOperand:
            if not isinstance(each, InSegment):
                return each
            arrays.append(self._segments.find(each.segment, self._device).bytes[: each.nbytes])
            return InSegment(len(arrays), each.nbytes)

        def place(segment: int) -> int:
            if not segment:
                return 0
            places.append(segment)
            return len(places)

        match task:
            case child_messages.Run():
                return msgspec.structs.replace(
                    task,
                    arguments=tuple([operand(each) for each in task.arguments]),
                    results=None if task.results is None else tuple([place(each) for each in task.results]),
                )
            case child_messages.Upload():
                return msgspec.structs.replace(task, values=operand(task.values))
            case child_messages.Download():
                return msgspec.structs.replace(task, segment=place(task.segment))
            case _:
                return task


def _silent() -> ActorLost:
    return ActorLost(f"it has not answered for {MOST_MISSED * PONG_SECONDS:g} s")
