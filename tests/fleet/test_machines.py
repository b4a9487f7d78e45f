"""What is known of a cluster's machines, with a stand-in for the cluster: those that do not answer are probed again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from anygpu.errors import DeviceUnavailable
from anygpu.fleet import machines
from anygpu.fleet.driver_messages import Node, NodeProbed
from anygpu.fleet.machines import Machines
from anygpu.hardware.device import Unavailable
from anygpu.plan.calibration import Network
from anygpu.testing import fake_device

NODE = Node("ab12", "node-1", "10.0.0.1", {"CPU": 1.0}, {})
HUNG = Unavailable(id="fake", engine="fake", state="absent", cause="hung", reason="fake has not answered.")
NETWORK = Network(1e-3, 1e9, 1e9)
PATIENCE = 60.0


def probed(*found: Any) -> NodeProbed:
    devices = tuple(each for each in found if not isinstance(each, Unavailable))
    missing = tuple(each for each in found if isinstance(each, Unavailable))
    return NodeProbed(devices, missing, {}, NETWORK, "1.0")


class StandInCluster:
    """Stands in for a cluster of one machine, which answers probes with `answers`, one after the other."""

    own = None
    ended = None

    def __init__(self, *answers: NodeProbed | DeviceUnavailable) -> None:
        self.nodes = {NODE.id: NODE}
        self.answers = list(answers)
        self.probes = 0

    def probe(self, node: str, seconds: float) -> NodeProbed:
        self.probes += 1
        answer = self.answers.pop(0)
        if isinstance(answer, DeviceUnavailable):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "AGAIN_SECONDS", (0.0, 0.0, 0.0))


def looked(cluster: Any, enough: Callable[[Machines], bool] = lambda found: True) -> Machines:
    """After its probe, and after as many further ones as it takes until it is enough."""
    found = Machines(cluster, ["all"], with_own=True)
    changed = threading.Event()

    def look() -> None:
        if enough(found):
            changed.set()

    found.when_changed = look
    found.probe_all()
    look()
    assert changed.wait(PATIENCE)
    return found


def names(found: Machines) -> list[str]:
    return [device.id for device in found.devices()]


@pytest.mark.parametrize(
    "failure",
    [
        DeviceUnavailable("the devices of node-1", ["nothing came back within 60 s."]),
        probed(HUNG),
        probed(fake_device("other:0"), HUNG),
    ],
    ids=["the machine", "its engine", "one engine of two"],
)
def test_what_did_not_answer_is_probed_again(failure: NodeProbed | DeviceUnavailable) -> None:
    cluster = StandInCluster(failure, probed(fake_device("fake:0"), fake_device("other:0")))
    found = looked(cluster, lambda found: "fake:0@node-1" in names(found))
    assert sorted(names(found)) == ["fake:0@node-1", "other:0@node-1"]
    assert found.unavailable() == []
    assert cluster.probes == 2


def test_a_device_that_was_found_stays_as_it_was() -> None:
    cluster = StandInCluster(probed(fake_device("other:0"), HUNG), probed(fake_device("other:0"), fake_device()))
    found = Machines(cluster, ["all"], with_own=True)  # type: ignore[arg-type]
    changed = threading.Event()
    found.when_changed = changed.set
    found._probe([NODE])
    before = found.find("other:0@node-1")
    assert changed.wait(PATIENCE)
    assert found.find("other:0@node-1") is before


def test_it_is_given_up_after_some_probes_and_the_error_says_why() -> None:
    cluster = StandInCluster(*[probed(HUNG)] * 10)
    found = looked(cluster, lambda _: cluster.probes == 4)
    with pytest.raises(DeviceUnavailable, match=r"no fake:0@node-1 in the fleet\.\n.*fake has not answered"):
        found.find("fake:0@node-1")


def test_what_is_not_installed_is_not_looked_for_again() -> None:
    missing = Unavailable(id="fake", engine="fake", state="absent", cause="not_installed", reason="it is not there.")
    cluster = StandInCluster(probed(missing))
    looked(cluster)
    assert cluster.probes == 1
    assert not [thread for thread in threading.enumerate() if thread.name == "anygpu-fleet-probe-again"]


def test_a_machine_that_has_left_is_not_probed_again() -> None:
    cluster = StandInCluster(probed(HUNG))
    found = Machines(cluster, ["all"], with_own=True)  # type: ignore[arg-type]
    cluster.nodes.clear()
    found._probe_again(NODE)
    assert cluster.probes == 0
