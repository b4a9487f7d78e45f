"""A worker on another machine: the device's home is there, in an actor of Ray, and this is the caller's side of it.

To the caller it is a worker in a child process. What differs is on the other side of its link: the driver's relay takes
tasks there, and carries them to the home.
"""

from __future__ import annotations

import msgspec

from anygpu.engines.catalogue import EngineEntry
from anygpu.engines.isolation import Isolation
from anygpu.fleet.cluster import ActorChild
from anygpu.hardware.device import Device, parse_device
from anygpu.workers.process import ProcessWorker


class ActorWorker(ProcessWorker):
    """One open device of another machine."""

    def __init__(self, child: ActorChild, device: Device, *, generation: int = 1) -> None:
        """Takes the home over, and waits until it has opened the device."""
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
        """Of the driver: the process of this machine that is busy with its calls."""
        return self._driver

    @property
    def process_id_there(self) -> int:
        """Of the home's process, on its own machine."""
        return self._process_id_there

    def __repr__(self) -> str:
        state = f"process {self._process_id_there} there" if self.alive else "lost"
        return f"<worker of {self.device.id}, {state}, generation {self.generation}>"
