"""The devices of this process, each with a handle for arrays and the worker that has it open.

`DeviceRegistry` finds devices by name, opens their workers when they are used, replaces those that die, and closes all
at exit. Engines that may crash are probed and opened in child processes, the others are loaded here. `registry` is the
one of this process.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from anygpu.array.functions.types import set_devices
from anygpu.base import events
from anygpu.base.forks import lock, rlock
from anygpu.engines import Isolation
from anygpu.engines.catalogue import (
    EngineEntry,
    catalogue,
    entry_of,
    is_installed,
    load,
    why_cpu_is_numpy,
    why_only_when_named,
)
from anygpu.engines.protocol import ProgramEngine
from anygpu.errors import AnyGPUError, DeviceLost, DeviceUnavailable, MissingExtra
from anygpu.hardware.device import CPU, Device, Unavailable, names_a_fleet
from anygpu.hardware.preference import prefer
from anygpu.hardware.selection import require
from anygpu.workers.device_arrays.handle import DeviceHandle, WorkerEvent
from anygpu.workers.device_arrays.lineage import Evicted, HostCopyCache, Loss
from anygpu.workers.device_arrays.recoverable import RecoverableDevice
from anygpu.workers.spares import Explorers, Spares
from anygpu.workers.worker import ISOLATION, Overlapping, Worker, default_budget, isolation_of, open_worker

if TYPE_CHECKING:
    from anygpu.workers.child_process import Child

__all__ = ["DeviceHandle", "DeviceRegistry", "registry"]

#: Names the default device; without it that is NumPy.
VARIABLE = "ANYGPU_DEVICE"
_ENCODED = os.fsencode(VARIABLE)

#: Time limit for probing the machine.
LOOK_SECONDS = 20.0

#: How long a child that has verified a device may wait to become its worker.
_ADOPTION_SECONDS = 60.0

#: Seconds that replacing a worker is expected to take before one was replaced.
REPLACE_SECONDS = 1.0

#: How long closing waits for a worker that is being replaced.
_CLOSE_SECONDS = 10.0

#: Losses that are remembered.
_LOSSES = 100

_ISOLATIONS: tuple[Isolation, ...] = get_args(Isolation)


def _named_by_environment() -> str | None:
    """The value of the variable. It is usually not set, which `os.environ` finds out by raising an exception: that
    takes longer than everything else that is done for a small array."""
    variables: Any = os.environ
    known = getattr(variables, "_data", None)
    if type(known) is dict and VARIABLE not in known and _ENCODED not in known:
        return None
    return os.environ.get(VARIABLE)


class DeviceRegistry:
    """The known devices, their handles and their open workers."""

    def __init__(self) -> None:
        """Starts without any device: engines are listed or probed when a name is first looked up.

        Handles and workers are by device and isolation. Each device has a lock around its opening, beside the
        registry's own.
        """
        self._lock = rlock()
        self._probing = lock()
        self._opening: dict[tuple[str, Isolation], threading.Lock] = defaultdict(lock)
        self._by_name: dict[tuple[str, Isolation | None], DeviceHandle] = {}
        self._handles: dict[tuple[str, Isolation], DeviceHandle] = {}
        self._workers: dict[tuple[str, Isolation], Worker] = {}
        self._generations: dict[tuple[str, Isolation], int] = defaultdict(int)
        #: Devices that engines in this process have listed, and those engines.
        self._listed: dict[str, list[Device | Unavailable]] = {}
        self._listing: dict[str, ProgramEngine] = {}
        #: Results of probes, by engine.
        self._probed: dict[str, list[Device | Unavailable]] = {}
        #: Children that have verified a device of their engine, and may become its worker.
        self._adoptable: dict[str, Child] = {}
        self.explorers = Explorers()
        self.spares = Spares()
        #: Threads that replace lost workers, and what the last replacement of each took.
        self._replacing: dict[tuple[str, Isolation], threading.Thread] = {}
        self._seconds_to_open: dict[tuple[str, Isolation], float] = defaultdict(lambda: REPLACE_SECONDS)
        #: Timers that end children which have not become workers.
        self._timers: list[threading.Timer] = []
        #: Copies that arrays are restored from, and reports on workers that died.
        self._copies = HostCopyCache()
        self._losses: deque[Loss] = deque(maxlen=_LOSSES)
        #: Those that know devices of other machines.
        self._fleets: list[DeviceRegistry] = []
        self._ended = False

    def find(self, name: str | None = None, *, isolation: Isolation | None = None) -> DeviceHandle:
        """The handle for `on=name`; `None` is the default device. Of a comma-separated list, the first that exists.

        Raises `DeviceUnavailable` with every reason.
        """
        wanted = name or _named_by_environment() or "numpy"
        known = self._by_name.get((wanted, isolation))
        if known is not None:
            return known
        names = [each.strip() for each in wanted.split(",") if each.strip()] or ["numpy"]
        if any(names_a_fleet(each) for each in names):
            # Not kept: machines come and go, and so do fleets.
            return self._first_of(names, isolation)
        handle = self._first_of(names, isolation) if len(names) > 1 else self._find(names[0], isolation)
        self._by_name[wanted, isolation] = handle
        return handle

    def _first_of(self, names: Sequence[str], isolation: Isolation | None) -> DeviceHandle:
        """The first name that exists; libraries of the names after it are not loaded."""
        refusals: list[str] = []
        for name in names:
            try:
                return self._find(name, isolation)
            except DeviceUnavailable as error:
                refusals += error.refusals
            except MissingExtra as error:
                refusals.append(str(error))
        raise DeviceUnavailable(f'on="{", ".join(names)}"', list(dict.fromkeys(refusals)))

    def _find(self, wanted: str, isolation: Isolation | None) -> DeviceHandle:
        """Returns the handle of the best device that a name means; raises `MissingExtra` or `DeviceUnavailable`.

        Engines that are isolated are probed in children, the others are loaded and listed here. No engine is touched
        whose devices the name cannot mean.
        """
        if names_a_fleet(wanted):
            return self._find_in_fleets(wanted)
        if wanted.lower() == CPU and why_cpu_is_numpy() is not None:
            wanted = "numpy"
        candidates = [entry for entry in catalogue() if _may_have(entry, wanted)]
        found: list[Device | Unavailable] = []
        isolated: list[EngineEntry] = []
        for entry in candidates:
            if not is_installed(entry):
                raise MissingExtra(entry.requires or entry.name, entry.extra or entry.name)
            if isolation_of(entry, isolation) == "process":
                isolated.append(entry)
            else:
                found += self._list(entry)
        found += [item for item in self._probe(isolated) if not isinstance(item, Device) or item.verified]
        devices = [item for item in found if isinstance(item, Device)]
        missing = [item for item in found if isinstance(item, Unavailable)]
        (best, *_) = require(devices, prefer(wanted, unverified=True), missing)
        return self._handle_for(best, isolation)

    def _find_in_fleets(self, wanted: str) -> DeviceHandle:
        """Returns the handle of a device of another machine, from the first fleet that has it."""
        refusals: list[str] = []
        for fleet in list(self._fleets):
            try:
                return fleet.find(wanted)
            except DeviceUnavailable as error:
                refusals += error.refusals
        reasons = refusals or ["this process is connected to no fleet: see anygpu.fleet.connect."]
        raise DeviceUnavailable(f'on="{wanted}"', reasons)

    def join(self, fleet: DeviceRegistry) -> None:
        """Find devices of other machines through this registry too, so that arrays and stores can be there."""
        self._fleets.append(fleet)

    def leave(self, fleet: DeviceRegistry) -> None:
        """Forget a fleet. May be called twice."""
        with contextlib.suppress(ValueError):
            self._fleets.remove(fleet)

    def _handle_for(self, device: Device, isolation: Isolation | None) -> DeviceHandle:
        """Returns the handle of a device, which is made once; arrays of a worker in a process survive it."""
        where = self.isolation(device.id, isolation)
        with self._lock:
            key = (device.id, where)
            if key not in self._handles:
                find = partial(self._open, device, where)
                self._handles[key] = (
                    DeviceHandle(device, find) if where == "thread" else RecoverableDevice(device, find, self._copies)
                )
            return self._handles[key]

    def worker(self, device_id: str, *, isolation: Isolation | None = None) -> Worker:
        """The open worker of a device. A dead worker is replaced by its next generation."""
        known = self._workers.get((device_id, isolation)) if isolation is not None else None
        if known is not None and known.alive:
            return known
        where = self.isolation(device_id, isolation)
        known = self._workers.get((device_id, where))
        if known is not None and known.alive:
            return known
        return self._open(self._device(device_id, where), where)

    def _device(self, device_id: str, where: Isolation) -> Device:
        """The facts of a device, which is about to be opened. Raises `DeviceUnavailable` if there is none."""
        entry = entry_of(device_id)
        found = self._list(entry) if where == "thread" and entry.name not in self._probed else self._probe([entry])
        for item in found:
            if item.id == device_id and isinstance(item, Device):
                return item
        reasons = [item.reason for item in found if isinstance(item, Unavailable)]
        raise DeviceUnavailable(f'on="{device_id}"', reasons, device=device_id)

    def explorer(self, device_id: str) -> Worker:
        """The worker in which a device is explored in the background: at low priority, in a child of its own.

        It is the worker that serves callers where memory is limited, which two would take, and where the user wants no
        children.
        """
        entry = entry_of(device_id)
        if device_id == "numpy" or default_budget() is not None or os.environ.get(ISOLATION) == "thread":
            return self.worker(device_id)
        for item in self._probe([entry], low_priority=True):
            if item.id == device_id and isinstance(item, Device):
                with self._lock:
                    child = self._adoptable.get(entry.name)
                    adopted = self._adoptable.pop(entry.name) if child is not None and child.has_low_priority else None
                try:
                    return self.explorers.worker(self._entry_to_open(item), item, adopted)
                except OSError:  # no child can be started
                    break
        return self.worker(device_id)

    def isolation(self, device_id: str, wanted: Isolation | None = None) -> Isolation:
        """Where a worker of the device lives, if the caller has `wanted` that; `None` for no wish."""
        return isolation_of(entry_of(device_id), wanted)

    def generation(self, device_id: str) -> int | None:
        """The generation of the open worker of the device; `None` if there is none."""
        return max((worker.generation for worker in self._open_workers(device_id)), default=None)

    def kill(self, device_id: str) -> None:
        """Kill the child processes of the device's workers; workers in this process go on."""
        for worker in self._open_workers(device_id):
            worker.kill()

    def _open_workers(self, device_id: str) -> list[Worker]:
        found = [self._workers.get((device_id, where)) for where in _ISOLATIONS]
        return [worker for worker in found if worker is not None and worker.alive]

    def open_workers(self) -> list[Worker]:
        """Every worker that has a device open, in a thread or in a child."""
        return [worker for worker in list(self._workers.values()) if worker.alive]

    def overlaps(self, device_id: str) -> bool:
        """Whether the device's open worker transfers for one call while it computes for another."""
        return any(isinstance(each, Overlapping) and each.overlaps for each in self._open_workers(device_id))

    def is_open(self, device_id: str) -> bool:
        """Whether a worker of the device is open, in a thread or in a child."""
        return bool(self._open_workers(device_id))

    def is_opening(self, device_id: str) -> bool:
        """Whether the device is being opened, which takes so long that whoever waits for it should look elsewhere."""
        return False

    def process_ids(self, device_id: str) -> tuple[int, ...]:
        """The processes that have the device open; this one, if it is open in a thread."""
        workers = [worker for (name, _), worker in list(self._workers.items()) if name == device_id and worker.alive]
        return tuple(dict.fromkeys(getattr(worker, "process_id", os.getpid()) for worker in workers))

    def _open(self, device: Device, where: Isolation) -> Worker:
        """Returns the live worker of a device, and opens one if there is none. Other devices can be opened meanwhile.

        Arrays of a dead worker are accounted for before it is replaced. A child that has verified the device becomes
        the worker, unless it has a low priority, which it could not shed.
        """
        key = (device.id, where)
        with self._lock:
            opening = self._opening[key]
        with opening:
            known = self._workers.get(key)
            if known is not None and known.alive:
                return known
            if self._ended:
                raise DeviceUnavailable(f'on="{device.id}"', ["this process is shutting down."], device=device.id)
            if known is not None:
                self._record_loss(key, known)
            with self._lock:
                child = self._adoptable.get(device.engine) if where == "process" else None
                adopted = (
                    self._adoptable.pop(device.engine) if child is not None and not child.has_low_priority else None
                )
            self._generations[key] += 1
            begin = time.monotonic()
            worker = self._opened(device, where, self._generations[key], adopted, is_first=known is None)
            took = time.monotonic() - begin
            if known is not None:
                self._seconds_to_open[key] = took
            self._workers[key] = worker
            events.workers.tell(
                WorkerEvent("opened" if known is None else "replaced", device.id, worker.generation, took)
            )
            return worker

    def _opened(
        self, device: Device, where: Isolation, generation: int, adopted: Child | None, *, is_first: bool
    ) -> Worker:
        """A new worker; the `adopted` child becomes it, if there is one."""
        entry = self._entry_to_open(device)
        opened = partial(open_worker, entry, device, isolation=where, generation=generation)
        return opened(adopted=adopted) if is_first or where != "process" else self._replaced(entry, opened, adopted)

    def _replaced(self, entry: EngineEntry, opened: Callable[..., Worker], adopted: Child | None) -> Worker:
        """The worker that takes the place of a lost one, from a spare if there is one."""
        child = adopted or self.spares.replacement(entry)
        try:
            worker = opened(adopted=child)
        except AnyGPUError:
            if child is None or not child.is_copy:
                raise
            # If it is not the device, it is the copy.
            worker = opened()
            self.spares.refuse(entry)
        self.spares.replenish(entry)
        return worker

    def replace(
        self,
        device_id: str,
        *,
        isolation: Isolation | None = None,
        meanwhile: Callable[[float], AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> None:
        """Opens a device again whose worker has died, in the background: only those who need it wait.

        `meanwhile` is held as long; it is told the seconds that this is expected to take. Where it cannot be opened,
        the next who needs it is told why. A worker in this process is opened at once.
        """
        where = self.isolation(device_id, isolation)
        key = (device_id, where)
        if where == "thread":
            with contextlib.suppress(AnyGPUError):
                self.worker(device_id, isolation=isolation)
            return
        with self._lock, ExitStack() as held:
            known = self._workers.get(key)
            if key in self._replacing or self._ended or (known is not None and known.alive):
                return
            held.enter_context(meanwhile(self._seconds_to_open[key]))
            until_open = held.pop_all()

            def work() -> None:
                with until_open, contextlib.suppress(AnyGPUError):
                    self.worker(device_id, isolation=isolation)
                self._replacing.pop(key, None)

            thread = threading.Thread(target=work, name=f"anygpu-replace-{device_id}", daemon=True)
            self._replacing[key] = thread
            try:
                thread.start()
            except RuntimeError:  # there are too many, or the process ends
                del self._replacing[key]
                until_open.close()

    def _entry_to_open(self, device: Device) -> EngineEntry:
        """The entry that a worker loads; tests substitute another engine."""
        return entry_of(device.id)

    def _record_loss(self, key: tuple[str, Isolation], worker: Worker) -> None:
        """Record what becomes of the arrays of a dead worker, before it is replaced."""
        handle = self._handles.get(key)
        if isinstance(handle, RecoverableDevice):
            loss = handle.record_loss(worker)
        else:
            loss = Loss(device=key[0], generation=worker.generation, why=worker.ended or "")
        self._losses.append(loss)
        self._workers.pop(key, None)
        events.workers.tell(WorkerEvent("lost", key[0], loss.generation, 0.0, loss.why))

    def losses(self) -> list[Loss]:
        """The latest workers that died and were replaced, oldest first, with what became of their arrays."""
        return list(self._losses)

    def evict(self, device_id: str, nbytes: int | None = None) -> Evicted:
        """Evict arrays from a device, least recently used first, until `nbytes` are free; `None` evicts all it can.

        They are restored when they are used. Arrays in use stay, arrays that could not be restored, and arrays of
        workers in this process.
        """
        arrays = freed = 0
        for handle in self._recoverable(device_id):
            gone = handle.evict(None if nbytes is None else nbytes - freed)
            arrays, freed = arrays + gone.arrays, freed + gone.bytes
            if nbytes is not None and freed >= nbytes:
                break
        if arrays:
            self.reclaim(device_id)
        return Evicted(arrays, freed)

    def reclaim(self, device_id: str) -> int:
        """Free memory that workers of the device have cached; returns the bytes of device memory freed."""
        workers = [worker for (name, _), worker in list(self._workers.items()) if name == device_id and worker.alive]
        given = 0
        for worker in workers:
            # A worker that dies now holds no memory.
            with contextlib.suppress(DeviceLost):
                given += worker.reclaim()
        return given

    def _recoverable(self, device_id: str) -> list[RecoverableDevice]:
        registry = [handle for (name, _), handle in list(self._handles.items()) if name == device_id]
        return [handle for handle in registry if isinstance(handle, RecoverableDevice)]

    def devices(self, *, low_priority: bool = False) -> list[Device]:
        """All verified devices; the machine is probed once per process, with `low_priority` by children that yield."""
        return [
            item for item in self._everything(low_priority=low_priority) if isinstance(item, Device) and item.verified
        ]

    def elsewhere(self) -> list[Device]:
        """Verified devices of other machines, in a fleet: to list them probes nothing here."""
        return []

    def of_engines(self, names: Collection[str], *, low_priority: bool = False) -> list[Device | Unavailable]:
        """The devices of these engines, usable or not; no other engine is probed."""
        return self._probe([entry for entry in catalogue() if entry.name in names], low_priority=low_priority)

    def remembered(self, names: Collection[str]) -> set[str]:
        """Returns those of these engines for which no child has to be started: a probe of the last day still holds."""
        from anygpu.workers.discovery import remembered

        return remembered([entry for entry in catalogue() if entry.name in names])

    def unavailable(self) -> list[Unavailable]:
        """Devices that exist but cannot be used, with reasons."""
        return [item for item in self._everything() if isinstance(item, Unavailable)]

    def _everything(self, *, low_priority: bool = False) -> list[Device | Unavailable]:
        return self._probe(catalogue(), low_priority=low_priority)

    def _probe(self, entries: Sequence[EngineEntry], *, low_priority: bool = False) -> list[Device | Unavailable]:
        """The devices of these engines, from the cache or from probes in children."""
        if any(entry.name not in self._probed for entry in entries):
            with self._probing:
                new = [entry for entry in entries if entry.name not in self._probed]
                if new:
                    self._probe_new(new, low_priority=low_priority)
        return [item for entry in entries for item in self._probed[entry.name]]

    def _probe_new(self, entries: Sequence[EngineEntry], *, low_priority: bool) -> None:
        """Probes engines in children, and keeps those children for a while that could become workers.

        With `low_priority` the children of engines without a device for automatic use are ended at once.
        """
        from anygpu.workers.discovery import discover

        # Explorers are children whatever the engine; torch and jax take seconds to load.
        adopt: dict[str, Child | None] = {e.name: None for e in entries if low_priority or isolation_of(e) == "process"}
        inventory = discover(
            timeout=LOOK_SECONDS, entries=entries, with_cards=False, adopt=adopt, low_priority=low_priority
        )
        found: dict[str, list[Device | Unavailable]] = {entry.name: [] for entry in entries}
        items: list[Device | Unavailable] = [*inventory.devices, *inventory.unavailable]
        for item in items:
            found.setdefault(item.engine, []).append(item)
        fresh = {name: child for name, child in adopt.items() if child is not None}
        with self._lock:
            self._adoptable |= fresh
            self._probed |= found
        if low_priority:
            # Nobody explores a device that is used only when it is named.
            useless = {name: child for name, child in fresh.items() if not any(map(_is_automatic, found[name]))}
            self._reap_unclaimed(useless)
            fresh = {name: child for name, child in fresh.items() if name not in useless}
        if fresh:
            timer = threading.Timer(_ADOPTION_SECONDS, self._reap_unclaimed, [fresh])
            timer.daemon, timer.name = True, "anygpu-adoption"
            with self._lock:
                self._timers = [each for each in self._timers if each.is_alive()]
                timer.start()
                self._timers.append(timer)

    def _reap_unclaimed(self, children: dict[str, Child]) -> None:
        """End children that have not become workers."""
        for name, child in children.items():
            with self._lock:
                unclaimed = self._adoptable.get(name) is child
                if unclaimed:
                    del self._adoptable[name]
            if unclaimed:
                child.kill()
                child.close()

    def _list(self, entry: EngineEntry) -> list[Device | Unavailable]:
        """Loads an engine into this process and lists its devices, once."""
        with self._lock:
            if entry.name not in self._listed:
                engine = load(entry)
                if not isinstance(engine, ProgramEngine):
                    raise DeviceUnavailable(f'on="{entry.name}"', [f"{entry.name} does not run programs yet."])
                self._listing[entry.name] = engine
                self._listed[entry.name] = engine.discover()
            return self._listed[entry.name]

    def close(self) -> None:
        """Close all workers and engines; engines save their caches for the next process."""
        for thread in list(self._replacing.values()):
            # Or what it opens would be left.
            thread.join(_CLOSE_SECONDS)
        with self._lock:
            workers, adopted = list(self._workers.values()), dict(self._adoptable)
            engines, timers = list(self._listing.values()), self._timers
            self._timers = []
            self._reap_unclaimed(adopted)
            for table in (self._workers, self._handles, self._by_name, self._listed, self._listing, self._probed):
                table.clear()
        self.explorers.kill()
        for timer in timers:
            timer.cancel()
            if timer is not threading.current_thread():
                timer.join(5)
        for worker in workers:
            worker.close()
        # After the workers, which may be copies of them.
        self.spares.close()
        for engine in engines:
            engine.close()

    def device_names(self) -> list[str]:
        """The devices found so far, the default one first."""
        default = self.find().device
        with self._lock:
            every = [item for found in (*self._listed.values(), *self._probed.values()) for item in found]
        others = {item.id for item in every if isinstance(item, Device)}
        return [default, *sorted(others - {default})]

    def _forked(self) -> None:
        """Called in a forked child: workers notice by themselves that they belong to the parent."""
        self._adoptable.clear()
        self._timers.clear()
        self._replacing.clear()
        self.explorers.forked()
        self.spares.forked()

    def _close_at_exit(self) -> None:
        """At exit no worker is opened again, even if a thread still uses arrays."""
        self._ended = True
        self.close()


def _is_automatic(item: Device | Unavailable) -> bool:
    return isinstance(item, Device) and why_only_when_named(item) is None


def _may_have(entry: EngineEntry, wanted: str) -> bool:
    """Whether a name may mean a device of this engine, so that no other engine's library is loaded."""
    engine = wanted.lower().partition(":")[0]
    names = {each.name for each in catalogue()}
    return entry.name == engine if engine in names else is_installed(entry)


#: The registry of this process. Arrays reach it through `anygpu.array.core.device`.
registry = DeviceRegistry()
events.worker_processes = registry.process_ids
set_devices(registry.device_names)
atexit.register(registry._close_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=registry._forked)
