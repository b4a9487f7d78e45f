"""The actor of a device, without Ray around it: each question is answered once, and wrong ones are refused."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from anygpu.engines.catalogue import EngineEntry
from anygpu.fleet import device_actor as actors
from anygpu.fleet import messages
from anygpu.fleet.device_actor import DeviceActor, seen_here
from anygpu.fleet.messages import Ask, MessagePart, Reply
from anygpu.placement.machine import numpy_device
from anygpu.program import wire
from anygpu.program.graph import Program
from anygpu.workers import child_messages
from anygpu.workers.child_messages import ChildTask, Envelope, InSegment, RunDone, TaskFailed
from tests.workers.programs import doubled

NAME = "numpy@node-7"


def _ask(
    actor: DeviceActor, number: int, task: ChildTask | None, arrays: list[np.ndarray] | None = None
) -> list[MessagePart]:
    given = [each.view(np.uint8) for each in arrays or []]
    ask = Ask(Envelope(number, task), tuple(each.nbytes for each in given), 40)
    found = actor.ask(messages.encode(ask), *messages.packed(given))
    assert isinstance(found, list)
    assert len(found) == 40
    return found


def _reply(found: list[MessagePart]) -> Reply:
    return messages.decode_reply(bytes(found[0]))


@pytest.fixture
def actor() -> DeviceActor:
    made = DeviceActor(NAME, lease=None)
    opened = _reply(_ask(made, 1, child_messages.Open(EngineEntry(name="numpy", target=""), numpy_device(), None)))
    assert opened.answer.outcome == child_messages.Opened(overlaps=False)
    return made


def _run(program: Program, *, place: int = 1, segment: int = 1) -> child_messages.Run:
    text = wire.to_bytes(program, lines=False)
    nbytes = program.inputs[0].nbytes
    return child_messages.Run(program.key, text, (InSegment(segment, nbytes),), (place,), 0, True, False)


def test_arrays_come_and_go_in_parts(actor: DeviceActor) -> None:
    program = doubled(100_000)
    values = np.arange(100_000, dtype=np.float32)
    found = _ask(actor, 2, _run(program), [values])
    reply = _reply(found)
    assert isinstance(reply.answer.outcome, RunDone)
    assert reply.arrays == ((1, 400_000),)
    (result,) = messages.unpacked([400_000], found[1 : 1 + reply.parts])
    np.testing.assert_array_equal(result.view(np.float32), 2 * values)


def test_a_question_that_is_repeated_is_answered_and_not_executed_again(actor: DeviceActor) -> None:
    values = np.arange(100_000, dtype=np.float32)
    first = _ask(actor, 2, _run(doubled(100_000)), [values])
    # Another number's arguments: if it was executed again, they would show.
    again = _ask(actor, 2, _run(doubled(100_000)), [values + 1])
    assert again == first


def test_what_is_executed_twice_is_counted(actor: DeviceActor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which only happens to a question whose answer is not kept any more: nobody asks for that."""
    for number in (2, 3, 3, 2):
        reply = _reply(_ask(actor, number, child_messages.AskMemory()))
    assert (reply.executed, reply.twice) == (2, 0)
    actor._answers.clear()
    reply = _reply(_ask(actor, 2, child_messages.AskMemory()))
    assert (reply.executed, reply.twice) == (4, 1)


def test_an_answer_without_room_is_asked_for_again(actor: DeviceActor) -> None:
    values = np.arange(100_000, dtype=np.float32)
    task = _run(doubled(100_000))
    narrow = actor.ask(
        messages.encode(Ask(Envelope(2, task), (400_000,), 1)), *messages.packed([values.view(np.uint8)])
    )
    assert isinstance(narrow, bytes)
    assert messages.decode_reply(narrow).parts == 5
    wide = actor.ask(messages.encode(Ask(Envelope(2, None), (), 6)))
    (result,) = messages.unpacked([400_000], wide[1:])  # type: ignore[arg-type]
    np.testing.assert_array_equal(result.view(np.float32), 2 * values)


def test_old_answers_are_let_go_by_number_and_by_bytes(actor: DeviceActor, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2, 200):
        _ask(actor, number, child_messages.AskMemory())
    assert len(actor._answers) == actors.ANSWERS
    monkeypatch.setattr(actors, "ANSWER_BYTES", 500_000)
    values = np.arange(100_000, dtype=np.float32)
    for number in range(200, 204):
        _ask(actor, number, _run(doubled(100_000)), [values])
    assert list(actor._answers) == [203]


def test_a_pulse_says_what_runs(actor: DeviceActor) -> None:
    assert messages.decode_pulse(actor.ping()).running == 0


def test_errors_speak_of_the_device_by_its_name_in_the_fleet() -> None:
    gone = msgspec.structs.replace(numpy_device(), name="another processor")
    task = child_messages.Open(EngineEntry(name="numpy", target=""), gone, None)
    outcome = _reply(_ask(DeviceActor(NAME, lease=None), 1, task)).answer.outcome
    assert isinstance(outcome, TaskFailed)
    assert outcome.fields["device"] == NAME
    assert f'on="{NAME}"' in outcome.message


@pytest.mark.parametrize("segment", [0, 2, -1, 1 << 40])
def test_an_array_that_did_not_come_is_refused(actor: DeviceActor, segment: int) -> None:
    values = np.arange(100_000, dtype=np.float32)
    outcome = _reply(_ask(actor, 2, _run(doubled(100_000), segment=segment), [values])).answer.outcome
    assert isinstance(outcome, TaskFailed)
    assert "no array" in outcome.message


def test_a_place_that_no_result_can_have_is_refused(actor: DeviceActor) -> None:
    outcome = _reply(_ask(actor, 2, _run(doubled(10), place=-1), [np.ones(10, np.float32)])).answer.outcome
    assert isinstance(outcome, TaskFailed)
    assert outcome.message == "there is no place -1 for a result."


def test_a_header_that_is_none_is_refused(actor: DeviceActor) -> None:
    with pytest.raises(msgspec.DecodeError):
        actor.ask(b"\x00nonsense")


@pytest.mark.parametrize(
    ("device", "visible", "seen"),
    [
        ("torch:cuda:3", None, "torch:cuda:3"),
        ("torch:cuda:3", "3", "torch:cuda:0"),
        ("torch:cuda:0", "3", "torch:cuda:0"),
        ("jax:cuda:5", "4,5", "jax:cuda:1"),
        ("opencl:1", "3", "opencl:1"),
        ("numpy", "", "numpy"),
    ],
)
def test_a_process_that_was_given_some_gpus_counts_them_from_zero(device: str, visible: str | None, seen: str) -> None:
    assert seen_here(device, visible) == seen
