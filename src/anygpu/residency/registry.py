"""Places: devices as arrays see them, each with the worker that has it open."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections import defaultdict, deque
from collections.abc import Sequence
from functools import partial

from anygpu.array.core.device import set_device_finder
from anygpu.array.functions.types import set_devices
from anygpu.engines.catalogue import EngineEntry, catalogue, is_installed, load
from anygpu.engines.protocol import ProgramEngine
from anygpu.engines.traits import Isolation
from anygpu.errors import DeviceLost, DeviceUnavailable, MissingExtra
from anygpu.hardware.device import Device, Unavailable
from anygpu.hardware.selection import prefer, require
from anygpu.residency.handle import DeviceHandle
from anygpu.residency.lineage import Evicted, HostCopyCache, Loss
from anygpu.residency.recoverable import RecoverableDevice
from anygpu.workers.opening import home_of, open_worker
from anygpu.workers.starting import Child
from anygpu.workers.worker import Worker

__all__ = ["DeviceHandle", "DeviceRegistry", "places"]

#: The default device is this variable's, or NumPy's.
VARIABLE = "ANYGPU_DEVICE"

#: How long the machine may be looked at.
LOOK_SECONDS = 20.0

#: A child that has verified a device waits so long to become its worker.
_ADOPTION_SECONDS = 60.0

#: Deaths of workers that are remembered.
_LOSSES = 100


class DeviceRegistry:
    """The devices that are known and the workers that are open, by every name that has led to them."""

    def __init__(self) -> None:
        self._locks()
        self._by_name: dict[tuple[str, Isolation | None], DeviceHandle] = {}
        self._places: dict[tuple[str, Isolation], DeviceHandle] = {}
        self._workers: dict[tuple[str, Isolation], Worker] = {}
        self._generations: dict[tuple[str, Isolation], int] = defaultdict(int)
        #: What engines of this process have listed, and the engines.
        self._listed: dict[str, list[Device | Unavailable]] = {}
        self._listing: dict[str, ProgramEngine] = {}
        #: What probes have found.
        self._probed: dict[str, list[Device | Unavailable]] = {}
        #: Children that have verified a device of their engine, and could be its worker.
        self._adopted: dict[str, Child] = {}
        #: Those that end the ones nobody has made a worker.
        self._timers: list[threading.Timer] = []
        #: What arrays can be restored from, and what became of those of workers that died.
        self._copies = HostCopyCache()
        self._losses: deque[Loss] = deque(maxlen=_LOSSES)
        self._over = False

    def _locks(self) -> None:
        self._lock = threading.RLock()
        self._looking = threading.Lock()
        self._opening: dict[tuple[str, Isolation], threading.Lock] = defaultdict(threading.Lock)

    def find(self, name: str | None = None, *, isolation: Isolation | None = None) -> DeviceHandle:
        """The place for `on=name`; `None` is the default device. Of several names with commas the first that is there.

        Raises `DeviceUnavailable` with every reason.
        """
        wanted = name or os.environ.get(VARIABLE) or "numpy"
        known = self._by_name.get((wanted, isolation))
        if known is not None:
            return known
        names = [each.strip() for each in wanted.split(",") if each.strip()] or ["numpy"]
        place = self._first_of(names, isolation) if len(names) > 1 else self._find(names[0], isolation)
        self._by_name[wanted, isolation] = place
        return place

    def _first_of(self, names: Sequence[str], isolation: Isolation | None) -> DeviceHandle:
        """In order of preference, and no library is loaded for a name behind the one that is found."""
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
        candidates = [entry for entry in catalogue() if _may_have(entry, wanted)]
        found: list[Device | Unavailable] = []
        distant: list[EngineEntry] = []
        for entry in candidates:
            if not is_installed(entry):
                raise MissingExtra(entry.requires or entry.name, entry.extra or entry.name)
            if home_of(entry, isolation) == "process":
                distant.append(entry)
            else:
                found += self._list(entry)
        found += [item for item in self._probe(distant) if not isinstance(item, Device) or item.verified]
        devices = [item for item in found if isinstance(item, Device)]
        missing = [item for item in found if isinstance(item, Unavailable)]
        (best, *_) = require(devices, prefer(wanted, unverified=True), missing)
        return self._place(best, isolation)

    def _place(self, device: Device, isolation: Isolation | None) -> DeviceHandle:
        home = home_of(_entry_of(device.id), isolation)
        with self._lock:
            key = (device.id, home)
            if key not in self._places:
                find = partial(self._open, device, home)
                self._places[key] = (
                    RecoverableDevice(device, find, self._copies) if home == "process" else DeviceHandle(device, find)
                )
            return self._places[key]

    def worker(self, device_id: str, *, isolation: Isolation | None = None) -> Worker:
        """The open worker of a device. One that has died is replaced by its next generation."""
        entry = _entry_of(device_id)
        home = home_of(entry, isolation)
        known = self._workers.get((device_id, home))
        if known is not None and known.alive:
            return known
        found = self._list(entry) if home == "thread" and entry.name not in self._probed else self._probe([entry])
        for item in found:
            if item.id == device_id and isinstance(item, Device):
                return self._open(item, home)
        reasons = [item.reason for item in found if isinstance(item, Unavailable)]
        raise DeviceUnavailable(f'on="{device_id}"', reasons, device=device_id)

    def home(self, device_id: str) -> Isolation:
        """Where a worker of the device lives by default."""
        return home_of(_entry_of(device_id))

    def generation(self, device_id: str) -> int | None:
        """Of the open worker of the device; `None` when there is none."""
        return max((worker.generation for worker in self._open_workers(device_id)), default=None)

    def kill(self, device_id: str) -> None:
        """End the processes of workers of the device, whatever they are doing; those of this process go on."""
        for worker in self._open_workers(device_id):
            worker.kill()

    def _open_workers(self, device_id: str) -> list[Worker]:
        return [worker for (name, _), worker in list(self._workers.items()) if name == device_id and worker.alive]

    def is_open(self, device_id: str) -> bool:
        """Whether a worker of the device, in any home, is there to be used."""
        return any(name == device_id and worker.alive for (name, _), worker in list(self._workers.items()))

    def _open(self, device: Device, home: Isolation) -> Worker:
        key = (device.id, home)
        with self._lock:
            opening = self._opening[key]
        with opening:
            known = self._workers.get(key)
            if known is not None and known.alive:
                return known
            if self._over:
                raise DeviceUnavailable(f'on="{device.id}"', ["this process is about to end."], device=device.id)
            if known is not None:
                self._mourn(key, known)
            with self._lock:
                adopted = self._adopted.pop(device.engine, None) if home == "process" else None
            self._generations[key] += 1
            entry = self._entry_to_open(device)
            worker = open_worker(entry, device, isolation=home, generation=self._generations[key], adopted=adopted)
            self._workers[key] = worker
            return worker

    def _entry_to_open(self, device: Device) -> EngineEntry:
        """What a worker is told to load; tests put another engine in its place."""
        return _entry_of(device.id)

    def _mourn(self, key: tuple[str, Isolation], worker: Worker) -> None:
        """Before a dead worker is replaced: write down what becomes of its arrays."""
        place = self._places.get(key)
        if isinstance(place, RecoverableDevice):
            loss = place.lose(worker)
        else:
            loss = Loss(device=key[0], generation=worker.generation, why=worker.ended or "")
        self._losses.append(loss)
        self._workers.pop(key, None)

    def losses(self) -> list[Loss]:
        """The last workers that died and were replaced, the latest last, with what became of the arrays on them."""
        return list(self._losses)

    def evict(self, device_id: str, nbytes: int | None = None) -> Evicted:
        """Let arrays of ours make room on a device, until so many bytes are free; `None` for all that can go.

        Those go first that were not used for the longest time, and they come back when they are used. Arrays that a
        call uses now stay, those that could not come back, and those of workers in this process.
        """
        arrays = freed = 0
        for place in self._lasting(device_id):
            gone = place.evict(None if nbytes is None else nbytes - freed)
            arrays, freed = arrays + gone.arrays, freed + gone.bytes
            if nbytes is not None and freed >= nbytes:
                break
        if arrays:
            self.reclaim(device_id)
        return Evicted(arrays, freed)

    def reclaim(self, device_id: str) -> int:
        """Give back what workers of the device keep for later: how many bytes of its memory that was."""
        workers = [worker for (name, _), worker in list(self._workers.items()) if name == device_id and worker.alive]
        given = 0
        for worker in workers:
            # One that dies now keeps nothing.
            with contextlib.suppress(DeviceLost):
                given += worker.reclaim()
        return given

    def _lasting(self, device_id: str) -> list[RecoverableDevice]:
        places = [place for (name, _), place in list(self._places.items()) if name == device_id]
        return [place for place in places if isinstance(place, RecoverableDevice)]

    def devices(self) -> list[Device]:
        """Every device that was verified, looked for once in this process."""
        return [item for item in self._everything() if isinstance(item, Device) and item.verified]

    def unavailable(self) -> list[Unavailable]:
        """What could have been a device and is not."""
        return [item for item in self._everything() if isinstance(item, Unavailable)]

    def _everything(self) -> list[Device | Unavailable]:
        return self._probe(catalogue())

    def _probe(self, entries: Sequence[EngineEntry]) -> list[Device | Unavailable]:
        """What is on the machine, as remembered or as children find it."""
        if any(entry.name not in self._probed for entry in entries):
            with self._looking:
                new = [entry for entry in entries if entry.name not in self._probed]
                if new:
                    self._look(new)
        return [item for entry in entries for item in self._probed[entry.name]]

    def _look(self, entries: Sequence[EngineEntry]) -> None:
        from anygpu.workers.discovery import look

        adopt: dict[str, Child | None] = {e.name: None for e in entries if home_of(e) == "process"}
        inventory = look(timeout=LOOK_SECONDS, entries=entries, with_cards=False, adopt=adopt)
        found: dict[str, list[Device | Unavailable]] = {entry.name: [] for entry in entries}
        items: list[Device | Unavailable] = [*inventory.devices, *inventory.unavailable]
        for item in items:
            found.setdefault(item.engine, []).append(item)
        fresh = {name: child for name, child in adopt.items() if child is not None}
        with self._lock:
            self._adopted |= fresh
            self._probed |= found
        if fresh:
            timer = threading.Timer(_ADOPTION_SECONDS, self._send_away, [fresh])
            timer.daemon, timer.name = True, "anygpu-adoption"
            with self._lock:
                self._timers = [each for each in self._timers if each.is_alive()]
                timer.start()
                self._timers.append(timer)

    def _send_away(self, children: dict[str, Child]) -> None:
        """End those that nobody has made a worker."""
        for name, child in children.items():
            with self._lock:
                unclaimed = self._adopted.get(name) is child
                if unclaimed:
                    del self._adopted[name]
            if unclaimed:
                child.kill()
                child.close()

    def _list(self, entry: EngineEntry) -> list[Device | Unavailable]:
        with self._lock:
            if entry.name not in self._listed:
                engine = load(entry)
                if not isinstance(engine, ProgramEngine):
                    raise DeviceUnavailable(f'on="{entry.name}"', [f"{entry.name} does not run programs yet."])
                self._listing[entry.name] = engine
                self._listed[entry.name] = engine.discover()
            return self._listed[entry.name]

    def close(self) -> None:
        """Let go of every device, and of what engines keep; they leave to the next process what spares it work."""
        with self._lock:
            workers, adopted = list(self._workers.values()), dict(self._adopted)
            engines, timers = list(self._listing.values()), self._timers
            self._timers = []
            self._send_away(adopted)
            for kept in (self._workers, self._places, self._by_name, self._listed, self._listing, self._probed):
                kept.clear()
        for timer in timers:
            timer.cancel()
            if timer is not threading.current_thread():
                timer.join(5)
        for worker in workers:
            worker.close()
        for engine in engines:
            engine.close()

    def known(self) -> list[str]:
        """The devices that arrays can be on, as far as engines have been asked; the default one first."""
        default = self.find().device
        with self._lock:
            every = [item for found in (*self._listed.values(), *self._probed.values()) for item in found]
        others = {item.id for item in every if isinstance(item, Device)}
        return [default, *sorted(others - {default})]

    def _forked(self) -> None:
        """In a process that was forked from ours: workers say themselves that they stayed behind."""
        self._locks()
        self._adopted.clear()
        self._timers.clear()
        self._copies.forked()
        for place in self._places.values():
            if isinstance(place, RecoverableDevice):
                place.forked()

    def _end(self) -> None:
        """With the process: arrays that a thread still uses do not come back any more."""
        self._over = True
        self.close()


def _entry_of(device_id: str) -> EngineEntry:
    name = device_id.partition(":")[0]
    for entry in catalogue():
        if entry.name == name:
            return entry
    raise DeviceUnavailable(f'on="{device_id}"', [f"there is no engine {name}."], device=device_id)


def _may_have(entry: EngineEntry, wanted: str) -> bool:
    """Whether a name can mean a device of this engine, so that only that engine's library is loaded."""
    engine = wanted.lower().partition(":")[0]
    names = {each.name for each in catalogue()}
    return entry.name == engine if engine in names else is_installed(entry)


#: The places of this process. Arrays find them through `anygpu.array.core.device`.
places = DeviceRegistry()
set_device_finder(places.find)
set_devices(places.known)
atexit.register(places._end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=places._forked)
