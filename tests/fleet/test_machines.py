"""What is known of a cluster's machines, with a stand-in for the cluster: those that do not answer are probed again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from anygpu.errors import DeviceUnavailable
from anygpu.fleet import machines
from anygpu.fleet.device_actor import installed_versions
from anygpu.fleet.machines import Machines
from anygpu.fleet.messages import ClusterNode, NodeProbed
from anygpu.hardware.device import Unavailable
from anygpu.hardware.preference import prefer
from anygpu.hardware.selection import require
from anygpu.placement.plan.calibration import NetworkSpeed
from anygpu.testing import fake_device

NODE = ClusterNode("ab12", "node-1", "10.0.0.1", {"CPU": 1.0}, {})
HUNG = Unavailable(id="fake", engine="fake", state="absent", cause="hung", reason="fake has not answered.")
NETWORK = NetworkSpeed(1e-3, 1e9, 1e9)
PATIENCE = 120.0


def probed(*found: Any, **versions: str) -> NodeProbed:
    devices = tuple(each for each in found if not isinstance(each, Unavailable))
    missing = tuple(each for each in found if isinstance(each, Unavailable))
    return NodeProbed(devices, missing, {}, NETWORK, {**installed_versions(), **versions})


class StandInCluster:
    """Stands in for a cluster of one machine, which answers probes with `answers`, one after the other."""

    own = None
    ended: str | None = None

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


def planned(found: Machines) -> list[threading.Timer]:
    """The further probes of these machines that are planned; those of earlier tests may be, too."""
    timers = [each for each in threading.enumerate() if isinstance(each, threading.Timer)]
    return [each for each in timers if getattr(each.function, "__self__", None) is found]


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


def test_the_next_probe_is_planned_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "AGAIN_SECONDS", (600.0,))
    timers = planned(looked(StandInCluster(probed(HUNG))))
    for each in timers:
        each.cancel()
        each.join()
    assert len(timers) == 1


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
    assert not planned(looked(cluster))
    assert cluster.probes == 1


def test_a_machine_that_has_left_is_not_probed_again() -> None:
    cluster = StandInCluster(probed(HUNG))
    found = Machines(cluster, ["all"], with_own=True)  # type: ignore[arg-type]
    cluster.nodes.clear()
    found._probe_again(NODE)
    assert cluster.probes == 0


@pytest.mark.parametrize("distribution", ["anygpu", "numpy"])
def test_a_machine_with_another_version_is_refused_with_the_command(distribution: str) -> None:
    here = installed_versions()[distribution]
    cluster = StandInCluster(probed(fake_device("fake:0"), HUNG, **{distribution: "0.0.9"}))
    found = looked(cluster)
    assert found.devices() == []
    (refused,) = found.unavailable()
    assert (refused.id, refused.cause) == ("fleet@node-1", "other_version")
    with pytest.raises(DeviceUnavailable) as raised:
        found.find("fake:0@node-1")
    assert f"node-1 has {distribution} 0.0.9 (here {here})" in str(raised.value)
    assert f"pip install '{distribution}=={here}'" in str(raised.value)
    assert cluster.probes == 1, "it will not be otherwise the next time"


def test_another_version_is_used_if_it_is_asked_for() -> None:
    cluster: Any = StandInCluster(probed(fake_device("fake:0"), anygpu="0.0.9"))
    found = Machines(cluster, ["all"], with_own=True, other_versions=True)
    found.probe_all()
    assert names(found) == ["fake:0@node-1"]


def test_another_library_concerns_the_devices_of_its_engine() -> None:
    device = msgspec.structs.replace(fake_device("webgpu:0"), engine="webgpu")
    cluster = StandInCluster(probed(device, fake_device("fake:0"), wgpu="0.0.1"))
    found = looked(cluster)
    assert names(found) == ["fake:0@node-1"]
    (refused,) = found.unavailable()
    assert (refused.id, refused.cause, refused.facts) == ("webgpu:0@node-1", "other_version", {"wgpu": "0.0.1"})


def test_what_a_machine_lacked_that_has_left_is_not_a_reason_any_more() -> None:
    missing = Unavailable(id="fake", engine="fake", state="absent", cause="not_installed", reason="it is not there.")
    cluster = StandInCluster(probed(fake_device("other:0"), missing))
    found = looked(cluster)
    cluster.nodes = {}
    found.nodes_changed(())
    assert [each.id for each in found.unavailable()] == ["other:0@node-1"]


def test_without_its_cluster_that_is_the_first_reason() -> None:
    missing = Unavailable(id="fake", engine="fake", state="absent", cause="not_installed", reason="it is not there.")
    cluster = StandInCluster(probed(fake_device("other:0"), missing))
    found = looked(cluster)
    cluster.nodes, cluster.ended = {}, "the head is gone"
    found.lost(cluster.ended)
    with pytest.raises(DeviceUnavailable) as raised:
        require(found.devices(), prefer("fleet"), found.unavailable())
    assert raised.value.refusals[0] == "the cluster is gone: the head is gone. Connect again when it is back."
    assert not any("fake" in each for each in raised.value.refusals)
