"""The devices of a cluster's machines: what was found there, how fast it is from here, and what is gone.

`Machines` probes each machine once, in the background for those that come later. A device that fails is set aside and
offered again after a while; everything that is not offered has a reason, which users see.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import msgspec

from anygpu.errors import AnyGPUError, DeviceUnavailable, text_of
from anygpu.fleet.cluster import Cluster
from anygpu.fleet.device_actor import COMMON, VersionDifference, differences, installed_versions, library_of, refused
from anygpu.fleet.messages import ClusterNode, NodeProbed
from anygpu.hardware.device import FLEET, Device, Unavailable, at_node, node_of, parse_device
from anygpu.hardware.selection import matches_name
from anygpu.plan.calibration import Calibration, assumed, through

#: Seconds that probing one machine may take.
PROBE_SECONDS = 20.0
#: How long a device that could not be opened is left alone.
ASIDE_SECONDS = 10.0
#: When a machine that was too busy to answer is probed again: so long after each failure.
AGAIN_SECONDS = (5.0, 20.0, 80.0)
#: Reasons that may be gone the next time.
_PASSING = frozenset({"hung", "crashed", "garbage"})
_CONNECT_AGAIN = "Connect again when it is back."
#: Every device of the cluster.
ALL = "all"


class RemoteDevice(msgspec.Struct, frozen=True):
    """A device of another machine."""

    device: Device
    node: ClusterNode
    calibration: Calibration
    #: The share of a GPU that Ray reserves for it.
    gpus: float


class Machines:
    """The machines of a cluster, with their devices and faults. Thread-safe."""

    def __init__(
        self, cluster: Cluster, wanted: Iterable[str], *, with_own: bool, other_versions: bool = False
    ) -> None:
        """`wanted` are names of devices or kinds; `with_own` includes the machine that this process is on.

        Machines that may compute other values than this one are used only with `other_versions`.
        """
        self._cluster = cluster
        self._wanted = tuple(wanted)
        self._own = None if with_own else cluster.own
        #: Versions that are installed here; `None` if they do not matter.
        self._versions = None if other_versions else installed_versions()
        self._lock = threading.Lock()
        self._probing: set[str] = set()
        #: How often a machine was probed again.
        self._again: dict[str, int] = {}
        self._devices: dict[str, RemoteDevice] = {}
        self._unavailable: dict[str, tuple[Unavailable, ...]] = {}
        #: Devices that could not be opened, or whose machine is out of reach: they may come back.
        self._aside: dict[str, RemoteDevice] = {}
        #: The machines that were there when somebody last looked.
        self._seen = set(cluster.nodes)
        #: By device, why it is not there any more.
        self._gone: dict[str, str] = {}
        self.when_changed: Callable[[], None] = lambda: None

    def probe_all(self) -> None:
        """Look at every machine: several at once, but those of one host one after the other."""
        self._probe_hosts([node for node in self._cluster.nodes.values() if node.id != self._own])

    def _probe_hosts(self, nodes: list[ClusterNode]) -> None:
        """Probes machines on one thread for each host, and waits for all: containers of one host share its devices."""
        hosts: dict[str, list[ClusterNode]] = {}
        for node in nodes:
            if self._may_have_wanted(node):
                hosts.setdefault(node.address, []).append(node)
        with self._lock:
            self._probing.update(node.id for nodes in hosts.values() for node in nodes)
        threads = [threading.Thread(target=self._probe, args=(nodes,), daemon=True) for nodes in hosts.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def nodes_changed(self, nodes: tuple[ClusterNode, ...]) -> None:
        """Machines have come or gone. New ones are probed in the background; those that are back are known."""
        there = {node.id for node in nodes}
        with self._lock:
            left = [each for each in self._devices.values() if each.node.id not in there]
            known = {each.node.id for each in self._devices.values()} | self._unavailable.keys() | self._probing
            new = [
                node for node in nodes if node.id not in known and node.id != self._own and self._may_have_wanted(node)
            ]
            self._probing.update(node.id for node in new)
            self._aside |= {each.device.id: each for each in left}
            back = [name for name, each in self._aside.items() if each.node.id in there - self._seen]
            self._seen = there
        for each in left:
            self.remove(each.device.id, "its machine has left the cluster, or is out of reach")
        for name in back:
            self._offer_again(name)
        if new:
            threading.Thread(target=self._arrived, args=(new,), name="anygpu-fleet-probe", daemon=True).start()

    def _arrived(self, new: list[ClusterNode]) -> None:
        self._probe_hosts(new)
        self.when_changed()

    def is_known(self, node: str) -> bool:
        """Whether that machine was looked at."""
        with self._lock:
            return node == self._own or (node in self._unavailable and node not in self._probing)

    def lost(self, why: str) -> None:
        """The whole cluster is gone."""
        for name in list(self._devices):
            self.remove(name, f"the cluster is gone: {why}")

    def remove(self, name: str, why: str) -> None:
        """A device is not there any more."""
        with self._lock:
            found = self._devices.pop(name, None)
            if found is None:
                return
            self._gone[name] = why
        self.when_changed()

    def set_aside(self, name: str, why: str) -> None:
        """A device could not be opened: whoever waits for it goes elsewhere, and it is tried again after a while."""
        with self._lock:
            found = self._devices.get(name)
            if found is None:
                return
            self._aside[name] = found
        self.remove(name, why)
        timer = threading.Timer(ASIDE_SECONDS, self._offer_again, [name])
        timer.daemon, timer.name = True, "anygpu-fleet-again"
        timer.start()

    def _offer_again(self, name: str) -> None:
        """Offers a device again that was set aside, unless its machine is gone or the device is back already."""
        with self._lock:
            found = self._aside.get(name)
            if found is None or self._cluster.ended is not None or found.node.id not in self._cluster.nodes:
                return
            del self._aside[name]
            self._gone.pop(name, None)
            self._devices.setdefault(name, found)
        self.when_changed()

    def _probe(self, nodes: list[ClusterNode]) -> None:
        """Probes machines one after the other. A failure is the reason why that machine offers no device."""
        for node in nodes:
            try:
                self._add(node, self._cluster.probe(node.id, PROBE_SECONDS))
            except AnyGPUError as error:
                self._refused(node, text_of(error))
            finally:
                with self._lock:
                    self._probing.discard(node.id)
            self._probe_again_later(node)

    def _probe_again_later(self, node: ClusterNode) -> None:
        """Probes a machine again later if a part of it did not answer, as a busy machine may not."""
        with self._lock:
            attempt = self._again.get(node.id, 0)
            may_change = any(_may_change(each) for each in self._unavailable[node.id])
            if not may_change or attempt == len(AGAIN_SECONDS):
                return
            self._again[node.id] = attempt + 1
        timer = threading.Timer(AGAIN_SECONDS[attempt], self._probe_again, [node])
        timer.daemon, timer.name = True, "anygpu-fleet-probe-again"
        timer.start()

    def _probe_again(self, node: ClusterNode) -> None:
        if self._cluster.ended is None and node.id in self._cluster.nodes:
            self._arrived([node])

    def _refused(self, node: ClusterNode, why: str) -> None:
        """Notes why the devices of a machine are not known."""
        reason = f"the devices of {node.name} are not known: {why}"
        name = at_node(FLEET, node.name)
        missing = Unavailable(id=name, engine=FLEET, state="absent", cause="failed", reason=reason)
        with self._lock:
            self._unavailable[node.id] = (missing,)

    def _add(self, node: ClusterNode, probed: NodeProbed) -> None:
        """Add the devices of a node that was probed, or the reason why it cannot be used."""
        others = self._other_versions(COMMON, probed)
        if others:
            with self._lock:
                self._unavailable[node.id] = (refused(at_node(FLEET, node.name), FLEET, others),)
            return
        cards = [device.card for device in probed.devices if takes_gpu(device)]
        refusals: list[Unavailable] = []
        for found in probed.devices:
            there = found.id
            name = at_node(there, node.name)
            device = msgspec.structs.replace(found, id=name)
            if not self._is_wanted(device):
                continue
            others = self._other_versions(library_of(found.engine), probed)
            if others:
                refusals.append(refused(name, found.engine, others))
                continue
            known = probed.calibrations.get(there) or assumed(found)
            offered = node.resources.get("GPU", 0.0) > 0
            # Each engine that leads to a card has its part of it.
            share = 1.0 / cards.count(found.card) if offered and takes_gpu(found) else 0.0
            with self._lock:
                self._gone.pop(name, None)
                self._aside.pop(name, None)
                # One that was found before is in use, as it was measured then.
                self._devices.setdefault(
                    name, RemoteDevice(device, node, through(probed.network, known, name), int(share * 1e4) / 1e4)
                )
        with self._lock:
            missing = [msgspec.structs.replace(each, id=at_node(each.id, node.name)) for each in probed.unavailable]
            self._unavailable[node.id] = (*refusals, *missing)

    def _other_versions(self, names: Iterable[str], probed: NodeProbed) -> tuple[VersionDifference, ...]:
        """The versions for which what was probed is not used."""
        return () if self._versions is None else differences(names, self._versions, probed.versions)

    def _may_have_wanted(self, node: ClusterNode) -> bool:
        """Whether a machine has to be looked at: not if all names that were given are those of others."""
        return any("@" not in name or name.rpartition("@")[2] == node.name for name in self._wanted)

    def _is_wanted(self, device: Device) -> bool:
        return any(name == ALL or matches_name(device, name) for name in self._wanted)

    def devices(self) -> list[Device]:
        with self._lock:
            return [each.device for each in self._devices.values()]

    def unavailable(self) -> list[Unavailable]:
        with self._lock:
            gone = [_lost(name, why) for name, why in self._gone.items()]
            return self._without_cluster() + self._missing() + gone

    def _missing(self) -> list[Unavailable]:
        """The reasons why machines that are in the cluster offer no device; one that has left has no other."""
        there = self._cluster.nodes
        return [each for node, found in self._unavailable.items() if node in there for each in found]

    def _without_cluster(self) -> list[Unavailable]:
        """Returns one entry that says that the cluster is gone, and how to connect again; nothing while it is there."""
        why = self._cluster.ended
        if why is None:
            return []
        reason = f"the cluster is gone: {why}."
        return [Unavailable(id=FLEET, engine=FLEET, state="absent", cause="lost", reason=reason, fix=_CONNECT_AGAIN)]

    def find(self, name: str) -> RemoteDevice:
        """A device by its id. Raises `DeviceUnavailable`."""
        with self._lock:
            found = self._devices.get(name)
            if found is not None:
                return found
            why = self._gone.get(name)
            missing = self._missing()
        reasons = [f"{name} is not available: {why or f'there is no {name} in the fleet'}."]
        if why is None:
            wanted = parse_device(name)
            reasons += [
                f"{each} {each.fix or ''}".rstrip()
                for each in missing
                if node_of(each.id) == wanted.node and each.engine in (wanted.engine, FLEET)
            ]
        raise DeviceUnavailable(f'on="{name}"', reasons, device=name)


def _may_change(missing: Unavailable) -> bool:
    """Whether it may be otherwise the next time that its machine is looked at."""
    return missing.cause in _PASSING or (missing.engine == FLEET and missing.cause == "failed")


def _lost(name: str, why: str) -> Unavailable:
    engine = parse_device(name).engine
    return Unavailable(id=name, engine=engine, state="absent", cause="lost", reason=f"{name} is not available: {why}.")


def takes_gpu(device: Device) -> bool:
    """Whether Ray counts it among a machine's GPUs."""
    return device.kind == "gpu" and not device.software
