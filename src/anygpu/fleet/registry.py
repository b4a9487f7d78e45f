"""The devices of a fleet: those of this machine, as every call here uses them, and those of others."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import msgspec

from anygpu.engines import Isolation
from anygpu.engines.catalogue import EngineEntry
from anygpu.errors import AnyGPUError, DeviceUnavailable
from anygpu.fleet.cluster import ActorChild, Cluster
from anygpu.fleet.machines import Machines
from anygpu.hardware.device import Device, Unavailable, names_a_fleet, node_of, parse_device
from anygpu.hardware.preference import prefer
from anygpu.hardware.selection import require
from anygpu.workers.child_process import Child
from anygpu.workers.device_arrays.handle import DeviceHandle
from anygpu.workers.device_arrays.lineage import Evicted, Loss
from anygpu.workers.device_arrays.registry import DeviceRegistry
from anygpu.workers.process import ProcessWorker
from anygpu.workers.worker import Worker

if TYPE_CHECKING:
    from anygpu.plan.calibration import Calibration


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
        super().__init__()
        self._cluster = cluster
        self._machines = machines
        self._local = local
        self._uses_local = uses_local
        #: Held while a device is being opened, with its name and the seconds that this is expected to take: calls that
        #: may run elsewhere do.
        self.while_opening: Callable[[tuple[str, ...], float], AbstractContextManager[Any]] = lambda devices, seconds: (
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
        if device.node is None:
            return None
        with contextlib.suppress(DeviceUnavailable):
            return self._machines.find(device.id).calibration
        return None

    def isolation(self, device_id: str, wanted: Isolation | None = None) -> Isolation:
        return self._local.isolation(device_id, wanted) if node_of(device_id) is None else "actor"

    def find(self, name: str | None = None, *, isolation: Isolation | None = None) -> DeviceHandle:
        if name is None or not any(names_a_fleet(each) for each in name.split(",")):
            return self._local.find(name, isolation=isolation)
        return super().find(name, isolation=isolation)

    def _find(self, wanted: str, isolation: Isolation | None) -> DeviceHandle:
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
            with self.while_opening((device.id,), self._seconds_to_open[device.id, where]):
                child = self._cluster.open_actor(device.id, found.node.id, found.gpus)
                return ActorWorker(child, found.device, generation=generation)
        except DeviceUnavailable as error:
            # At once for all that wait for it, and not once for each of them.
            self._machines.set_aside(device.id, "; ".join(error.refusals).rstrip(".") or "it could not be opened")
            raise
        finally:
            self._underway.discard(device.id)

    def is_opening(self, device_id: str) -> bool:
        return device_id in self._underway or (device_id, "actor") in self._replacing

    def actor_ended(self, device_id: str) -> None:
        """The actor of a device is gone. It is opened again at once, and not when somebody needs it."""
        now = time.monotonic()
        if now - self._reopened.get(device_id, -REOPEN_SECONDS) < REOPEN_SECONDS:
            return  # one that dies again and again is opened when somebody needs it
        self._reopened[device_id] = now
        threading.Thread(target=self._reopen, args=(device_id,), name="anygpu-fleet-reopen", daemon=True).start()

    def _reopen(self, device_id: str) -> None:
        worker = self._workers.get((device_id, "actor"))
        # The link of an actor is closed after its end was told.
        for _ in range(100):
            if worker is None or self._ended or self._cluster.ended is not None:
                return
            if not worker.alive:
                self.replace(device_id, meanwhile=lambda seconds: self.while_opening((device_id,), seconds))
                return
            time.sleep(0.01)

    def replace(
        self,
        device_id: str,
        *,
        isolation: Isolation | None = None,
        meanwhile: Callable[[float], AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> None:
        if node_of(device_id) is None:
            self._local.replace(device_id, isolation=isolation, meanwhile=meanwhile)
        else:
            super().replace(device_id, meanwhile=meanwhile)

    # -- what is open

    def generation(self, device_id: str) -> int | None:
        return self._local.generation(device_id) if node_of(device_id) is None else super().generation(device_id)

    def kill(self, device_id: str) -> None:
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
