"""The course of a probe, fed with events: no process, no clock, no waiting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anygpu.errors import InvalidOption
from anygpu.hardware.device import Device, Unavailable
from anygpu.testing import fake_device
from anygpu.workers.child_messages import Discovered, Message, ProbeFinished, ProbeItem, ProbeStarted, Raised, Settled
from anygpu.workers.probe_runner import EngineProbe, ProbeDeadlines, StartChild, StopChild

NAMES = ("fake:0", "fake:1", "fake:2")
DEADLINES = ProbeDeadlines(total=10, step=4)


def listed(*names: str) -> Discovered:
    return Discovered(pending=names, items=tuple(fake_device(name) for name in names))


def verified(name: str) -> Settled:
    return Settled(name=name, items=(fake_device(name, state="verified"),))


def started(now: float = 0.0) -> EngineProbe:
    probe = EngineProbe("fake", deadlines=DEADLINES, now=now)
    assert probe.begin() == [StartChild(())]
    return probe


def told(probe: EngineProbe, *messages: Message, now: float = 1.0) -> None:
    for message in messages:
        assert probe.received(message, now) == []


def states(items: list[ProbeItem]) -> dict[str, str]:
    return {item.id: item.state for item in items if isinstance(item, Device | Unavailable)}


def culprit(probe: EngineProbe, name: str) -> Unavailable:
    (found,) = [item for item in probe.results() if item.id == name]
    assert isinstance(found, Unavailable)
    return found


def test_a_calm_probe() -> None:
    probe = started()
    told(probe, listed(*NAMES))
    for name in NAMES:
        told(probe, ProbeStarted(name), verified(name))
    told(probe, ProbeFinished())
    assert probe.done
    assert probe.exited(0, "", 2.0) == []
    assert states(probe.results()) == dict.fromkeys(NAMES, "verified")


def test_a_device_that_hangs_is_set_aside_and_a_new_child_goes_on_with_the_rest() -> None:
    probe = started()
    told(probe, listed(*NAMES), ProbeStarted("fake:0"), verified("fake:0"), ProbeStarted("fake:1"), now=2.0)
    assert probe.next_deadline == 6.0
    assert probe.expired(6.0) == [StopChild(), StartChild(("fake:0", "fake:1"))]
    told(probe, listed("fake:2"), ProbeStarted("fake:2"), verified("fake:2"), ProbeFinished(), now=7.0)
    assert states(probe.results()) == {"fake:0": "verified", "fake:1": "hung", "fake:2": "verified"}
    assert culprit(probe, "fake:1").reason == "Fake GPU (Fake) did not respond within 4 s while it was verified."


def test_a_child_that_waits_for_the_processor_gets_that_time_back() -> None:
    probe = started()
    probe.starved(1.0)
    told(probe, listed(*NAMES), ProbeStarted("fake:0"), now=2.0)
    assert probe.next_deadline == 6.0, "what it waited before this device is no reason to wait for it"
    probe.starved(3.5)
    assert probe.next_deadline == 8.5
    probe.starved(100.0)
    assert probe.next_deadline == 2.0 + 4 + 8, "three times as long, and no longer"
    assert probe.expired(14.0) == [StopChild(), StartChild(("fake:0",))]
    assert culprit(probe, "fake:0").fix == "The machine is very busy: try again when it is calmer."
    told(probe, listed("fake:1"), ProbeStarted("fake:1"), now=15.0)
    assert probe.next_deadline == 19.0, "the next child has waited for nothing yet"


def test_time_that_the_listener_waits_for_the_processor_is_given_back_too() -> None:
    probe = started()
    probe.starved(1.0, 2.0)
    assert probe.next_deadline == 13.0
    told(probe, listed(*NAMES), ProbeStarted("fake:0"), now=2.0)
    assert probe.next_deadline == 6.0
    probe.starved(1.5, 4.0)
    assert probe.next_deadline == 8.5
    assert probe.expired(8.5) == [StopChild(), StartChild(("fake:0",))]
    probe.starved(0.5, 4.0)
    told(probe, listed("fake:1"), ProbeStarted("fake:1"), now=9.0)
    probe.starved(0.5, 4.25)
    assert probe.next_deadline == 13.25, "what it waited before is not given back again"


def test_the_deadline_of_the_whole_cuts_the_step_short() -> None:
    probe = started()
    told(probe, listed(*NAMES), ProbeStarted("fake:0"), now=8.0)
    assert probe.next_deadline == 10.0
    assert probe.expired(10.0) == [StopChild()]
    assert probe.done
    assert states(probe.results()) == {"fake:0": "hung", "fake:1": "usable", "fake:2": "usable"}


def test_an_engine_that_never_lists_its_devices() -> None:
    probe = started()
    assert probe.next_deadline == 10.0
    assert probe.expired(10.0) == [StopChild()]
    assert culprit(probe, "fake").state == "hung"
    assert "did not respond within 10 s while its devices were listed" in culprit(probe, "fake").reason


@pytest.mark.parametrize(
    ("code", "words"), [(-6, "SIGABRT"), (-11, "SIGSEGV"), (-99, "signal 99"), (3, "exit with code 3")]
)
def test_a_crash_is_blamed_on_the_device_that_was_announced(code: int, words: str) -> None:
    probe = started()
    told(probe, listed(*NAMES), ProbeStarted("fake:0"))
    assert probe.exited(code, "thread panicked", 1.0) == [StartChild(("fake:0",))]
    item = culprit(probe, "fake:0")
    assert (item.state, item.cause, item.detail) == ("present", "crashed", "thread panicked")
    assert words in item.reason


def test_a_crash_while_listing_ends_the_probe() -> None:
    probe = started()
    assert probe.exited(-6, "", 1.0) == []
    assert probe.done
    assert culprit(probe, "fake").cause == "crashed"


def test_garbage_stops_the_child() -> None:
    probe = started()
    assert probe.garbled(b"\x00\xffnonsense\n", 1.0) == [StopChild()]
    item = culprit(probe, "fake")
    assert item.cause == "garbage"
    assert "nonsense" in (item.detail or "")


def test_an_exception_is_reported_with_its_words() -> None:
    probe = started()
    assert probe.received(Raised(error="OSError", message="libcuda.so: no such file", importing=True), 1.0) == [
        StopChild()
    ]
    item = culprit(probe, "fake")
    assert (item.cause, item.state, item.detail) == ("import_failed", "absent", "libcuda.so: no such file")


def test_an_exception_in_one_device_does_not_hide_the_others() -> None:
    probe = started()
    told(probe, listed("fake:0", "fake:1"), ProbeStarted("fake:0"))
    assert probe.received(Raised(error="RuntimeError", message="bad mood"), 1.0) == [
        StopChild(),
        StartChild(("fake:0",)),
    ]
    assert culprit(probe, "fake:0").cause == "failed"


def test_what_was_unavailable_before_a_restart_is_not_reported_twice() -> None:
    missing = Unavailable(id="fake:cuda", engine="fake", state="absent", cause="no_device", reason="None there.")
    probe = started()
    told(probe, Discovered(pending=("fake:0",), items=(missing, fake_device("fake:0"))), ProbeStarted("fake:0"))
    told(probe, verified("fake:0"))
    told(probe, Discovered(pending=(), items=(missing,)), ProbeFinished())
    assert [item.id for item in probe.results()] == ["fake:cuda", "fake:0"]


def test_deadlines_leave_time_for_the_others_and_more_of_it_when_asked() -> None:
    assert ProbeDeadlines.within(15).step == 6
    assert ProbeDeadlines.within(4).step == pytest.approx(2.4)
    assert ProbeDeadlines.within(60).step == 24
    with pytest.raises(InvalidOption):
        ProbeDeadlines.within(-5)


def test_a_child_that_cannot_be_started() -> None:
    probe = started()
    assert probe.could_not_start("no interpreter", 0.0) == []
    assert culprit(probe, "fake").detail == "no interpreter"


fates = st.lists(st.sampled_from(["well", "hang", "crash", "garbage", "raise"]), min_size=1, max_size=8)


@given(fates)
def test_every_device_is_reported_once_whatever_happens(script: list[str]) -> None:
    """Plays children as the real edge does: whoever is skipped is left out, and each bad fate ends the child."""
    names = [f"fake:{number}" for number in range(len(script))]
    fate = dict(zip(names, script, strict=True))
    probe = EngineProbe("fake", deadlines=ProbeDeadlines(total=1000, step=4), now=0.0)
    actions = probe.begin()
    now, children = 0.0, 0
    while not probe.done:
        children += 1
        (start,) = [action for action in actions if isinstance(action, StartChild)]
        todo = [name for name in names if name not in start.skip]
        told(probe, listed(*todo), now=now)
        actions = []
        for name in todo:
            told(probe, ProbeStarted(name), now=now)
            match fate[name]:
                case "well":
                    told(probe, verified(name), now=now)
                    continue
                case "hang":
                    now = probe.next_deadline
                    actions = probe.expired(now)
                case "crash":
                    actions = probe.exited(-11, "", now)
                case "garbage":
                    actions = probe.garbled(b"?", now)
                case "raise":
                    actions = probe.received(Raised(error="E", message="m"), now)
            break
        else:
            told(probe, ProbeFinished(), now=now)
    bad = sum(each != "well" for each in script)
    assert children in (bad, bad + 1)
    ended = {"well": "verified", "hang": "hung", "crash": "present", "garbage": "present", "raise": "present"}
    assert states(probe.results()) == {name: ended[fate[name]] for name in names}
    assert len(probe.results()) == len(names)


def test_what_is_only_slow_is_given_more_time_and_the_machine_is_not_restarted() -> None:
    """A library that is loaded, and a device that is the processor, as jax's is without a GPU."""
    probe = started()
    probe.expired(10.0)
    assert "--timeout" in (culprit(probe, "fake").fix or "")
    probe = started()
    processor = fake_device("fake:0", kind="cpu")
    told(probe, Discovered(pending=("fake:0",), items=(processor,)), ProbeStarted("fake:0"))
    probe.expired(5.0)
    assert "--timeout" in (culprit(probe, "fake:0").fix or "")


def test_a_gpu_that_does_not_respond_is_to_be_reset() -> None:
    probe = started()
    told(probe, Discovered(pending=("fake:0",), items=(fake_device("fake:0", kind="gpu"),)))
    told(probe, ProbeStarted("fake:0"))
    probe.expired(5.0)
    assert "Restart the machine" in (culprit(probe, "fake:0").fix or "")
