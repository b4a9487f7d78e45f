"""Questions to an actor that loses messages, is silent or dies: a worker, the relay and a real actor, without Ray."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from anygpu.errors import DeviceHung, DeviceLost
from anygpu.fleet import relay as relays
from anygpu.fleet.cluster import ActorChild
from anygpu.fleet.device_actor import DeviceActor
from anygpu.fleet.machines import ActorWorker
from anygpu.fleet.messages import ActorLost, AnswerLost, MessagePart
from anygpu.fleet.relay import Relay
from anygpu.hardware.device import Device
from anygpu.placement.machine import numpy_device
from anygpu.program.graph import Node, Program
from anygpu.program.primitives import Input
from anygpu.workers.link import Link
from tests.workers.programs import doubled

NAME = "numpy@node-7"


class Unreliable:
    """An actor in this process, whose messages may be lost: `plan` says for each ask what becomes of it."""

    def __init__(self) -> None:
        self.actor = DeviceActor(NAME, lease=None)
        self.plan: list[str] = []
        self.asks = 0
        self.executed = 0
        self.silent = threading.Event()
        #: The one that asks it.
        self.relay: Relay | None = None
        self.killed = False
        inner = self.actor._answered

        def counted(*given: Any) -> Any:
            self.executed += 1
            return inner(*given)

        self.actor._answered = counted  # type: ignore[method-assign, assignment]

    def ask(self, header: bytes, parts: Sequence[MessagePart], returns: int) -> list[Any]:
        self.asks += 1
        fate = self.plan.pop(0) if self.plan else "fine"
        if fate == "the question is lost":
            return [AnswerLost(fate)]
        if fate == "never arrives":
            return [TimeoutError()]
        if fate == "dies":
            return [ActorLost("the actor died")]
        found = self.actor.ask(header, *parts)
        if fate == "the answer is lost":
            return [AnswerLost(fate)]
        if fate == "the answer never comes":
            return [TimeoutError()]
        return found if isinstance(found, list) else [found]

    def get(self, answer: list[Any], seconds: float) -> list[MessagePart]:
        if isinstance(answer[0], Exception):
            raise answer[0]
        return answer

    def ping(self) -> Any:
        return "ping"

    def pong(self, ping: Any, seconds: float) -> bytes:
        if self.silent.is_set():
            raise TimeoutError
        return self.actor.ping()

    def kill(self) -> None:
        self.killed = True

    def leave(self) -> None:
        self.killed = True


class _NoCluster:
    """What a child asks of its cluster."""

    def __init__(self, kill: Callable[[], None]) -> None:
        self._kill = kill
        self.why = "nobody said"

    process_id = 42

    def kill(self, actor: int) -> None:
        self._kill()

    def why_ended(self, actor: int) -> str:
        return self.why


def device() -> Device:
    return msgspec.structs.replace(numpy_device(), id=NAME)


@pytest.fixture
def actor() -> Unreliable:
    return Unreliable()


@pytest.fixture
def worker(actor: Unreliable) -> Iterator[ActorWorker]:
    ours, theirs = socket.socketpair()
    relay = Relay(Link(theirs, takes_descriptors=True), actor, NAME)
    cluster: Any = _NoCluster(relay.kill)

    def serve() -> None:
        cluster.why = relay.serve()
        relay.close()

    thread = threading.Thread(target=serve)
    thread.start()
    made = ActorWorker(ActorChild(cluster, 1, Link(ours), 4711), device())
    actor.relay = relay
    yield made
    made.close()
    thread.join(120)
    assert not thread.is_alive()
    assert actor.killed


VALUES = np.arange(100_000, dtype=np.float32)


def test_a_worker_there_is_a_worker(worker: ActorWorker, actor: Unreliable) -> None:
    ran = worker.run(doubled(VALUES.size), [VALUES])
    np.testing.assert_array_equal(ran.results[0], 2 * VALUES)
    assert ran.results[0].flags.writeable
    assert ran.network is not None
    assert ran.network.asks == 1
    assert 400_000 < ran.network.bytes_sent < 401_000
    assert 400_000 < ran.network.bytes_received < 401_000
    assert worker.isolation == "actor"
    assert worker.process_id_there == 4711


def test_arrays_stay_there(worker: ActorWorker) -> None:
    handle = worker.upload(VALUES)
    ran = worker.run(doubled(VALUES.size), [handle], keep=True)
    assert ran.bytes_skipped == 2 * VALUES.nbytes
    assert ran.network is not None
    assert ran.network.bytes_sent < 1_000
    np.testing.assert_array_equal(worker.download(ran.results[0]), 2 * VALUES)


def test_arrays_beyond_one_message(worker: ActorWorker) -> None:
    values = np.arange(3 << 20, dtype=np.float32)
    np.testing.assert_array_equal(worker.run(doubled(values.size), [values]).results[0], 2 * values)


def test_a_program_is_sent_once(worker: ActorWorker) -> None:
    sent = [worker.run(doubled(8), [VALUES[:8]]).network for _ in range(2)]
    assert sent[0] is not None
    assert sent[1] is not None
    assert sent[1].bytes_sent < sent[0].bytes_sent


@pytest.mark.parametrize("fate", ["the question is lost", "the answer is lost"])
def test_what_was_lost_is_asked_again_and_executed_once(worker: ActorWorker, actor: Unreliable, fate: str) -> None:
    before = actor.executed
    actor.plan = [fate, fate]
    ran = worker.run(doubled(VALUES.size), [VALUES])
    np.testing.assert_array_equal(ran.results[0], 2 * VALUES)
    assert ran.network is not None
    assert ran.network.asks == 3
    assert actor.executed == before + 1


@pytest.mark.parametrize("fate", ["never arrives", "the answer never comes"])
def test_an_answer_that_never_comes_is_missed(worker: ActorWorker, actor: Unreliable, fate: str) -> None:
    """As after a link was cut: the actor lives, and answers pings, and Ray waits for ever."""
    before = actor.executed
    actor.plan = [fate]
    ran = worker.run(doubled(VALUES.size), [VALUES])
    np.testing.assert_array_equal(ran.results[0], 2 * VALUES)
    assert actor.executed == before + 1


def test_an_actor_that_is_silent_is_lost(worker: ActorWorker, actor: Unreliable) -> None:
    actor.plan = ["never arrives"]
    actor.silent.set()
    with pytest.raises(DeviceLost, match="has not answered for 5 s") as raised:
        worker.run(doubled(VALUES.size), [VALUES])
    assert raised.value.device == NAME
    assert not worker.alive


def test_an_actor_that_dies_is_lost_with_what_was_there(worker: ActorWorker, actor: Unreliable) -> None:
    handle = worker.upload(VALUES)
    actor.plan = ["dies"]
    with pytest.raises(DeviceLost, match="the actor died"):
        worker.run(doubled(VALUES.size), [VALUES])
    with pytest.raises(DeviceLost):
        worker.download(handle)


def test_whoever_comes_after_a_loss_is_told_the_reason(worker: ActorWorker, actor: Unreliable) -> None:
    actor.plan = ["dies"]
    for _ in range(2):
        with pytest.raises(DeviceLost, match="the actor died"):
            worker.run(doubled(VALUES.size), [VALUES])
    assert worker.ended == "the actor died"


def test_a_loss_that_another_hears_of_first_is_told_at_once(
    worker: ActorWorker, actor: Unreliable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray still waits for the actor, and nobody waits for Ray."""
    waiting, ended = threading.Event(), threading.Event()

    def hang(answer: list[Any], seconds: float) -> list[bytes]:
        waiting.set()
        ended.wait(120)
        raise TimeoutError

    monkeypatch.setattr(actor, "get", hang)
    assert actor.relay is not None
    losing = threading.Thread(target=lambda: waiting.wait(120) and actor.relay.lose("its machine is gone"))  # type: ignore[union-attr]
    losing.start()
    with pytest.raises(DeviceLost):
        worker.run(doubled(VALUES.size), [VALUES])
    assert not ended.is_set()
    ended.set()
    losing.join(120)


def test_silence_is_counted_across_questions_that_are_repeated(worker: ActorWorker, actor: Unreliable) -> None:
    actor.plan = ["never arrives", "the answer is lost", "never arrives"]
    actor.silent.set()
    with pytest.raises(DeviceLost, match="has not answered"):
        worker.run(doubled(VALUES.size), [VALUES])


def test_executions_are_counted(worker: ActorWorker, actor: Unreliable) -> None:
    assert actor.relay is not None
    before = actor.relay.executions
    actor.plan = ["the answer is lost", "fine", "the question is lost"]
    for _ in range(3):
        worker.run(doubled(VALUES.size), [VALUES])
    found = actor.relay.executions
    assert (found.answered - before.answered, found.executed - before.executed) == (3, 3)
    assert found.twice == 0


def test_losing_every_answer_comes_to_an_end(worker: ActorWorker, actor: Unreliable) -> None:
    actor.plan = ["the answer is lost"] * (relays.MOST_ASKS + 5)
    with pytest.raises(DeviceLost):
        worker.run(doubled(VALUES.size), [VALUES])


def test_a_deadline_kills_the_actor(worker: ActorWorker, actor: Unreliable, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = threading.Event()

    def hang(answer: list[Any], seconds: float) -> list[bytes]:
        hanging.wait(0.05)
        raise TimeoutError

    monkeypatch.setattr(actor, "get", hang)
    with pytest.raises(DeviceHung):
        worker.run(doubled(VALUES.size), [VALUES], timeout=0.2)
    assert actor.killed


def test_what_a_device_supports_is_asked_once(worker: ActorWorker, actor: Unreliable) -> None:
    before = actor.executed
    program = Program([Node(Input((4,), "float32"))], [0])
    assert worker.supports(program) == []
    assert worker.supports(program) == []
    assert actor.executed == before + 1


def test_memory_that_is_dropped_is_freed_there(worker: ActorWorker, actor: Unreliable) -> None:
    handle = worker.upload(VALUES)
    residents = actor.actor._server._residents
    assert len(residents) == 1
    del handle
    worker.memory()
    assert not residents
