"""The devices of a cluster's machines: what was found there, how fast it is from here, and how they are opened.

`Machines` probes each machine once, in the background for those that come later. A device that fails is set aside and
offered again after a while; everything that is not offered has a reason, which users see.

`FleetRegistry` is a `DeviceRegistry` whose devices with a machine in their name are opened there, as `ActorWorker`; all
others are passed on to the registry of this process.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import msgspec

from anygpu.engines import Isolation
from anygpu.engines.catalogue import EngineEntry
from anygpu.errors import AnyGPUError, DeviceUnavailable, text_of
from anygpu.fleet.cluster import ActorChild, Cluster
from anygpu.fleet.device_actor import COMMON, VersionDifference, differences, installed_versions, library_of, refused
from anygpu.fleet.messages import ClusterNode, NodeProbed
from anygpu.hardware.device import FLEET, Device, Unavailable, at_node, names_a_fleet, node_of, parse_device
from anygpu.hardware.preference import prefer
from anygpu.hardware.selection import matches_name, require
from anygpu.placement.plan.calibration import Calibration, assumed, through
from anygpu.workers.child_process import Child
from anygpu.workers.device_arrays.handle import DeviceHandle
from anygpu.workers.device_arrays.lineage import Evicted, Loss
from anygpu.workers.device_arrays.registry import DeviceRegistry
from anygpu.workers.process import ProcessWorker
from anygpu.workers.worker import Worker

if TYPE_CHECKING:
    from anygpu.placement.plan.calibration import Calibration


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
        """Probes machines that have come, and tells that devices may have changed."""
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
        _later(ASIDE_SECONDS, "anygpu-fleet-again", self._offer_again, name)

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
        _later(AGAIN_SECONDS[attempt], "anygpu-fleet-probe-again", self._probe_again, node)

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
        """Returns the devices that are offered now."""
        with self._lock:
            return [each.device for each in self._devices.values()]

    def unavailable(self) -> list[Unavailable]:
        """Returns everything that is not offered, with the reason."""
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


def _later(seconds: float, name: str, call: Callable[[Any], None], about: Any) -> None:
    """Calls on a daemon thread of that name, so many seconds from now."""
    timer = threading.Timer(seconds, call, [about])
    timer.daemon, timer.name = True, name
    timer.start()


def _may_change(missing: Unavailable) -> bool:
    """Whether it may be otherwise the next time that its machine is looked at."""
    return missing.cause in _PASSING or (missing.engine == FLEET and missing.cause == "failed")


def _lost(name: str, why: str) -> Unavailable:
    engine = parse_device(name).engine
    return Unavailable(id=name, engine=engine, state="absent", cause="lost", reason=f"{name} is not available: {why}.")


def takes_gpu(device: Device) -> bool:
    """Whether Ray counts it among a machine's GPUs."""
    return device.kind == "gpu" and not device.software


# -- A worker on another machine: the device's actor is there, in an actor of Ray, and this is the caller's side of it
#
# To the caller it is a worker in a child process. What differs is on the other side of its link: the driver's relay
# takes tasks there, and carries them to the actor.


class ActorWorker(ProcessWorker):
    """One open device of another machine."""

    def __init__(self, child: ActorChild, device: Device, *, generation: int = 1) -> None:
        """Takes the actor over, and waits until it has opened the device."""
        name = parse_device(device.id)
        there = msgspec.structs.replace(device, id=name.there)
        self._process_id_there = child.process.pid
        self._driver = child.driver
        # The machine itself knows where the engine is.
        entry = EngineEntry(name=name.engine, target="")
        super().__init__(child, entry, device, generation=generation, there=there)

    @property
    def isolation(self) -> Isolation:
        return "actor"

    @property
    def process_id(self) -> int:
        """The id of the driver's process, which is busy with its calls on this machine."""
        return self._driver

    @property
    def process_id_there(self) -> int:
        """The id of the actor's process on its own machine."""
        return self._process_id_there

    def __repr__(self) -> str:
        state = f"process {self._process_id_there} there" if self.alive else "lost"
        return f"<worker of {self.device.id}, {state}, generation {self.generation}>"


#: A device whose actor has died is opened again by itself no more often than this.
REOPEN_SECONDS = 5.0


class FleetRegistry(DeviceRegistry):
    """Devices whose names have a machine are opened there. All others are those of the `local` registry."""

    def __init__(self, cluster: Cluster, machines: Machines, local: DeviceRegistry, *, uses_local: bool) -> None:
        """Makes the registry of a fleet over that of this machine, whose workers and explorers it shares.

        `while_opening` is set by the fleet: it makes devices count as busy for as long as they are being opened.
        """
        super().__init__()
        self._cluster = cluster
        self._machines = machines
        self._local = local
        self._uses_local = uses_local
        #: Held while a device is being opened, with its name and the seconds that this is expected to take: calls that
        #: may run elsewhere do.
        self.while_opening: Callable[[str, float], AbstractContextManager[Any]] = lambda device, seconds: (
            contextlib.nullcontext()
        )
        #: When a device was last opened again by itself.
        self._reopened: dict[str, float] = {}
        #: Devices that are being opened.
        self._underway: set[str] = set()
        # Whoever pauses trials means those of this machine.
        self.explorers = local.explorers

    # -- which devices there are

    def devices(self, *, low_priority: bool = False) -> list[Device]:
        """Returns the devices of this machine, or NumPy alone, and those of the others."""
        here = self._local.devices(low_priority=low_priority) if self._uses_local else [self._local.find("numpy").facts]
        return [*here, *self._machines.devices()]

    def elsewhere(self) -> list[Device]:
        return list(self._machines.devices())

    def of_engines(self, names: Collection[str], *, low_priority: bool = False) -> list[Device | Unavailable]:
        if not self._uses_local:
            return [self._local.find("numpy").facts]
        return self._local.of_engines(names, low_priority=low_priority)

    def remembered(self, names: Collection[str]) -> set[str]:
        return self._local.remembered(names) if self._uses_local else set(names)

    def unavailable(self) -> list[Unavailable]:
        return [*(self._local.unavailable() if self._uses_local else ()), *self._machines.unavailable()]

    def device_names(self) -> list[str]:
        return [*self._local.device_names(), *(device.id for device in self._machines.devices())]

    def calibration(self, device: Device) -> Calibration | None:
        """Returns the calibration that the device's own machine has measured; `None` for devices of this one."""
        if device.node is None:
            return None
        with contextlib.suppress(DeviceUnavailable):
            return self._machines.find(device.id).calibration
        return None

    def isolation(self, device_id: str, wanted: Isolation | None = None) -> Isolation:
        return self._local.isolation(device_id, wanted) if node_of(device_id) is None else "actor"

    def find(self, name: str | None = None, *, isolation: Isolation | None = None) -> DeviceHandle:
        """Returns the handle for `on=name`; names of this machine's devices are found by its own registry."""
        if name is None or not any(names_a_fleet(each) for each in name.split(",")):
            return self._local.find(name, isolation=isolation)
        return super().find(name, isolation=isolation)

    def _find(self, wanted: str, isolation: Isolation | None) -> DeviceHandle:
        """Returns the handle of a device, of this machine or of another. Raises `DeviceUnavailable`."""
        if not names_a_fleet(wanted):
            return self._local.find(wanted, isolation=isolation)
        known = self._handles.get((wanted, "actor"))
        if known is not None:
            # Its arrays outlive it: they are restored where it is opened again, and copied from what is known here.
            return known
        (best, *_) = require(self._machines.devices(), prefer(wanted), self._machines.unavailable())
        return self._handle_for(best, isolation)

    # -- opening them

    def worker(self, device_id: str, *, isolation: Isolation | None = None) -> Worker:
        """Returns the open worker of a device, by the registry that opens it."""
        if node_of(device_id) is None:
            return self._local.worker(device_id, isolation=isolation)
        return super().worker(device_id)

    def explorer(self, device_id: str) -> Worker:
        """Another machine's device is tried out in the worker that serves callers: it has no spare ones."""
        return self._local.explorer(device_id) if node_of(device_id) is None else self.worker(device_id)

    def _device(self, device_id: str, where: Isolation) -> Device:
        return self._machines.find(device_id).device

    def _opened(
        self, device: Device, where: Isolation, generation: int, adopted: Child | None, *, is_first: bool
    ) -> Worker:
        """Open a device on its node: the actor there, and the worker here that talks to it."""
        found = self._machines.find(device.id)
        self._underway.add(device.id)
        try:
            with self.while_opening(device.id, self._seconds_to_open[device.id, where]):
                child = self._cluster.open_actor(device.id, found.node.id, found.gpus)
                return ActorWorker(child, found.device, generation=generation)
        except DeviceUnavailable as error:
            # At once for all that wait for it, and not once for each of them.
            self._machines.set_aside(device.id, "; ".join(error.refusals).rstrip(".") or "it could not be opened")
            raise
        finally:
            self._underway.discard(device.id)

    def is_opening(self, device_id: str) -> bool:
        """Whether an actor of the device is being opened or replaced."""
        return device_id in self._underway or (device_id, "actor") in self._replacing

    def actor_ended(self, device_id: str) -> None:
        """The actor of a device is gone: opens another one in the background, unless that was done a moment ago."""
        now = time.monotonic()
        if now - self._reopened.get(device_id, -REOPEN_SECONDS) < REOPEN_SECONDS:
            return  # one that dies again and again is opened when somebody needs it
        self._reopened[device_id] = now
        threading.Thread(target=self._reopen, args=(device_id,), name="anygpu-fleet-reopen", daemon=True).start()

    def _reopen(self, device_id: str) -> None:
        """Waits a second at most until the worker has noticed that its actor is gone, and opens another one."""
        worker = self._workers.get((device_id, "actor"))
        # The link of an actor is closed after its end was told.
        for _ in range(100):
            if worker is None or self._ended or self._cluster.ended is not None:
                return
            if not worker.alive:
                self.replace(device_id, meanwhile=lambda seconds: self.while_opening(device_id, seconds))
                return
            time.sleep(0.01)

    def replace(
        self,
        device_id: str,
        *,
        isolation: Isolation | None = None,
        meanwhile: Callable[[float], AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> None:
        """Replaces the worker of a device, by the registry that has opened it."""
        if node_of(device_id) is None:
            self._local.replace(device_id, isolation=isolation, meanwhile=meanwhile)
        else:
            super().replace(device_id, meanwhile=meanwhile)

    # -- what is open

    def generation(self, device_id: str) -> int | None:
        return self._local.generation(device_id) if node_of(device_id) is None else super().generation(device_id)

    def kill(self, device_id: str) -> None:
        """Kills the worker of a device, by the registry that has opened it."""
        if node_of(device_id) is None:
            self._local.kill(device_id)
        else:
            super().kill(device_id)

    def overlaps(self, device_id: str) -> bool:
        return self._local.overlaps(device_id) if node_of(device_id) is None else super().overlaps(device_id)

    def is_open(self, device_id: str) -> bool:
        return self._local.is_open(device_id) if node_of(device_id) is None else super().is_open(device_id)

    def evict(self, device_id: str, nbytes: int | None = None) -> Evicted:
        if node_of(device_id) is None:
            return self._local.evict(device_id, nbytes)
        return super().evict(device_id, nbytes)

    def reclaim(self, device_id: str) -> int:
        return self._local.reclaim(device_id) if node_of(device_id) is None else super().reclaim(device_id)

    def release(self, device_id: str) -> Worker | None:
        """Let go of a device's actor, which the caller closes, unless arrays are there. Who needs it opens it again."""
        if any(handle.has_arrays for handle in self._recoverable(device_id)):
            return None
        return self._workers.pop((device_id, "actor"), None)

    def losses(self) -> list[Loss]:
        return [*self._local.losses(), *super().losses()]

    def close(self) -> None:
        """Close the actors on other machines, and let go of the cluster. Devices of this machine stay as they are."""
        self._local.leave(self)
        self._ended = True
        for thread in list(self._replacing.values()):
            thread.join(1.0)
        for worker in list(self._workers.values()):
            with contextlib.suppress(AnyGPUError):
                worker.kill()
                worker.close()
        self._cluster.close()
