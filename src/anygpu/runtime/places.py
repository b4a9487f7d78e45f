"""Places: an engine and one of its devices, opened in this process, as arrays see them."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Sequence
from typing import Any

from anygpu.array.place import set_places
from anygpu.array.types import set_devices
from anygpu.engines.catalogue import EngineEntry, catalogue, is_installed, load
from anygpu.engines.protocol import Buffer, ProgramEngine
from anygpu.errors import DeviceUnavailable, MissingExtra
from anygpu.hardware.device import Device, Unavailable
from anygpu.hardware.selection import prefer, require
from anygpu.hardware.verification import Values
from anygpu.program.graph import Program
from anygpu.runtime.hosting import run_with_host

#: The default device is this variable's, or NumPy's.
VARIABLE = "ANYGPU_DEVICE"


class EnginePlace:
    """Runs programs on one device. What the device lacks runs on the host, operation by operation."""

    def __init__(self, engine: ProgramEngine, device: Device) -> None:
        self.engine = engine
        self.facts = device

    @property
    def device(self) -> str:
        return self.facts.id

    def upload(self, values: Values) -> Buffer:
        return self.engine.upload(values, self.facts)

    def download(self, buffer: Buffer) -> Values:
        return self.engine.download(buffer)

    def run(self, program: Program, buffers: Sequence[Buffer]) -> list[Buffer]:
        lacks = self.engine.supports(program, self.facts)
        if lacks:
            return run_with_host(self.engine, self.facts, program, buffers, lacks)
        return self.engine.execute(self.engine.compile(program, self.facts), buffers)

    def native(self, buffer: Buffer) -> Any:
        return self.engine.native(buffer)

    def adopt(self, array: Any) -> Buffer:
        return self.engine.adopt(array, self.facts)

    def __repr__(self) -> str:
        return f"<place {self.device}>"


class Places:
    """The places that have been opened, by every name that has led to them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._engines: dict[str, ProgramEngine] = {}
        self._found: dict[str, list[Device | Unavailable]] = {}
        self._by_device: dict[str, EnginePlace] = {}
        self._by_name: dict[str, EnginePlace] = {}

    def find(self, name: str | None = None) -> EnginePlace:
        """The place for `on=name`; `None` is the default device. Raises `DeviceUnavailable` with every reason."""
        wanted = name or os.environ.get(VARIABLE) or "numpy"
        known = self._by_name.get(wanted)
        if known is not None:
            return known
        with self._lock:
            place = self._open(wanted)
            self._by_name[wanted] = place
            return place

    def _open(self, wanted: str) -> EnginePlace:
        candidates = [entry for entry in catalogue() if _may_have(entry, wanted)]
        found = [item for entry in candidates for item in self._discover(entry)]
        devices = [item for item in found if isinstance(item, Device)]
        missing = [item for item in found if isinstance(item, Unavailable)]
        (best, *_) = require(devices, prefer(wanted, unverified=True), missing)
        if best.id not in self._by_device:
            self._by_device[best.id] = EnginePlace(self._engines[best.engine], best)
        return self._by_device[best.id]

    def _discover(self, entry: EngineEntry) -> list[Device | Unavailable]:
        if entry.name not in self._found:
            if not is_installed(entry):
                raise MissingExtra(entry.requires or entry.name, entry.extra or entry.name)
            engine = load(entry)
            if not isinstance(engine, ProgramEngine):
                raise DeviceUnavailable(f'on="{entry.name}"', [f"{entry.name} does not run programs yet."])
            self._engines[entry.name] = engine
            self._found[entry.name] = engine.discover()
        return self._found[entry.name]

    def close(self) -> None:
        """Let go of every device, and of what engines keep; they leave to the next process what spares it work."""
        with self._lock:
            for engine in self._engines.values():
                engine.close()
            for kept in (self._engines, self._found, self._by_device, self._by_name):
                kept.clear()

    def known(self) -> list[str]:
        """The devices that arrays can be on, as far as engines have been loaded; the default one first."""
        default = self.find().device
        others = [item.id for found in self._found.values() for item in found if isinstance(item, Device)]
        return [default, *sorted(set(others) - {default})]


def _may_have(entry: EngineEntry, wanted: str) -> bool:
    """Whether a name can mean a device of this engine, so that only that engine's library is loaded."""
    engine = wanted.lower().partition(":")[0]
    names = {each.name for each in catalogue()}
    return entry.name == engine if engine in names else is_installed(entry)


#: The places of this process. Arrays find them through `anygpu.array.place`.
places = Places()
set_places(places.find)
set_devices(places.known)
atexit.register(places.close)
