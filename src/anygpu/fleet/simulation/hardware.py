"""Devices, nodes and links that are not there: how long they take, and when they are gone."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import count
from typing import Any

import msgspec

from anygpu.device_arrays.registry import DeviceRegistry
from anygpu.engines.isolation import Isolation
from anygpu.fleet.simulation.scenario import Scenario
from anygpu.hardware.device import Device, Unavailable
from anygpu.placement.machine import Machine, machine_of
from anygpu.placement.planner import Planner
from anygpu.plan.calibration import Calibration, Curve, Transfer, assumed

# -- A clock that goes from event to event


class EventClock:
    """Calls what was scheduled, in the order of time; what is due at the same time in the order of scheduling."""

    __slots__ = ("_events", "_numbers", "now", "stopped")

    def __init__(self) -> None:
        self.now = 0.0
        #: Whether nothing more is to happen.
        self.stopped = False
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = count()

    def __call__(self) -> float:
        return self.now

    def at(self, when: float, call: Callable[..., None], *given: Any) -> None:
        """Schedule a call. What is due already is called next."""
        heapq.heappush(self._events, (when if when > self.now else self.now, next(self._numbers), call, given))

    def run(self) -> None:
        """Until somebody stops it, or nothing is left to happen."""
        events, pop = self._events, heapq.heappop
        while events and not self.stopped:
            self.now, _, call, given = pop(events)
            call(*given)


#: Seconds that a lane waits for a device that is being opened again, before it counts as unavailable.
OPENING = 15.0
#: So many times as long as on a device does a task take on the driver's own machine.
_ON_NUMPY = 20.0


class SimulatedNode:
    """A machine with devices, and the one link to it."""

    __slots__ = ("devices", "link_free", "link_seconds")

    def __init__(self) -> None:
        self.devices: list[SimulatedDevice] = []
        self.link_free = 0.0
        #: How long the link was in use.
        self.link_seconds = 0.0

    def send(self, nbytes: int, now: float, scenario: Scenario) -> float:
        """When so many bytes that are sent now have arrived: after all that were sent before."""
        seconds = nbytes / scenario.network.bytes_per_second
        self.link_seconds += seconds
        self.link_free = max(now, self.link_free) + seconds
        return self.link_free + scenario.network.latency


class SimulatedDevice:
    """One device: it runs one launch after the other."""

    __slots__ = ("back_at", "busy_seconds", "free_at", "generation", "held", "launches", "name", "node", "noticed")

    def __init__(self, name: str, node: SimulatedNode) -> None:
        self.name = name
        self.node = node
        self.generation = 1
        self.free_at = 0.0
        self.busy_seconds = 0.0
        #: When it is back; in the past while it is there. And whether anybody knows that it is gone.
        self.back_at = 0.0
        self.noticed = True
        #: Launches on their way to it, or running there.
        self.launches: dict[Any, None] = {}
        #: Says that it is being opened again.
        self.held: AbstractContextManager[Any] | None = None

    def seconds_for(self, tasks: int, scenario: Scenario, draw: random.Random) -> float:
        """Seconds of a launch of so many tasks."""
        seconds = scenario.launch_seconds + scenario.task_seconds * (1 + (tasks - 1) * scenario.marginal)
        if self.name == "numpy":
            seconds = scenario.task_seconds * tasks * _ON_NUMPY
        return seconds * draw.lognormvariate(0.0, scenario.noise) if scenario.noise else seconds


class SimulatedRegistry(DeviceRegistry):
    """The devices of one driver, as its planner sees them."""

    def __init__(self, devices: Mapping[str, SimulatedDevice], clock: EventClock) -> None:
        super().__init__()
        self._simulated = devices
        self._clock = clock

    def devices(self, *, low_priority: bool = False) -> list[Device]:
        return [described(name) for name in self._simulated]

    def unavailable(self) -> list[Unavailable]:
        return []

    def generation(self, device_id: str) -> int | None:
        return self._simulated[device_id].generation

    def overlaps(self, device_id: str) -> bool:
        return False

    def is_open(self, device_id: str) -> bool:
        return True

    def worker(self, device_id: str, *, isolation: Isolation | None = None) -> Any:
        return _SUPPORTING

    def replace(
        self,
        device_id: str,
        *,
        isolation: Isolation | None = None,
        meanwhile: Callable[[float], AbstractContextManager[Any]] | None = None,
    ) -> None:
        """A device that is gone comes back by itself; until then it counts as busy."""
        device = self._simulated[device_id]
        device.noticed = True
        left = device.back_at - self._clock.now
        if left > 0 and device.held is None and meanwhile is not None:
            device.held = meanwhile(left)
            device.held.__enter__()


class SimulatedPlanner(Planner):
    """A planner that knows simulated devices. All of them are alike, and their calibration is right."""

    def __init__(self, devices: Mapping[str, SimulatedDevice], clock: EventClock, scenario: Scenario) -> None:
        super().__init__(known=SimulatedRegistry(devices, clock), clock=clock)
        self._fleet = machine_of(self.places.devices(), ())
        self._alike = _calibration(scenario)

    def machine(self, *, low_priority: bool = False) -> Machine:
        return self._fleet

    def _machine_so_far(self) -> Machine:
        return self._fleet

    def calibration(self, device: Device) -> Calibration:
        return self._alike


def _calibration(scenario: Scenario) -> Calibration:
    """The calibration of a simulated device: a launch takes what the scenario says, a byte what its task takes."""
    known = assumed(described("torch:cuda:0"))
    each = scenario.task_seconds * scenario.marginal
    way = Transfer(0.0, max(1, scenario.nbytes) / each if each else math.inf)
    return msgspec.structs.replace(
        known,
        source="measured",
        launch=scenario.launch_seconds + scenario.task_seconds - each,
        kernel=0.0,
        compile=0.0,
        write=way,
        read=way,
        rates=dict.fromkeys(known.rates, Curve(((1.0, 0.0),))),
    )


class _Supporting:
    """A worker that supports every program."""

    def supports(self, program: object) -> Sequence[str]:
        return ()


_SUPPORTING = _Supporting()


def described(name: str) -> Device:
    return Device(
        id=name,
        engine="torch" if name != "numpy" else "numpy",
        kind="gpu" if name != "numpy" else "cpu",
        form="discrete" if name != "numpy" else "host",
        name="a simulated device",
        state="verified",
        api="CUDA",
        unknown=dict.fromkeys(
            ("memory_total", "memory_free", "driver", "compute_capability", "load", "uuid", "pci"), "it is simulated"
        ),
    )
