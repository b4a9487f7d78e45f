"""A scenario of a simulated fleet: devices, links, tasks, arrivals and faults, and how long each takes.

`Scenario` is the user's description. Below it are the times of arrivals, the clock that goes from event to event, and
the simulated nodes, devices and planner that a driver is given in place of real ones. `SimulatedFuture` stands in for a
future and reports its end to the `Ledger`; `DecisionMeter` measures what our own code takes for a decision.
"""

from __future__ import annotations

import heapq
import math
import random
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import count
from typing import Any, Literal

import msgspec

from anygpu.engines import Isolation
from anygpu.errors import InvalidOption, InvalidTransition
from anygpu.hardware.device import Device, Unavailable
from anygpu.placement.machine import Machine, machine_of
from anygpu.placement.plan.calibration import Calibration, Curve, Transfer, assumed
from anygpu.placement.planner import Planner
from anygpu.workers.device_arrays.registry import DeviceRegistry

# -- A scenario: devices, tasks and when they arrive, the network, faults, and the driver's time for a task


#: constant: evenly; poisson: independent of each other; bursts: many at once, evenly; diurnal: poisson, with a rate
#: that rises and falls; closed: so many clients, each of which submits its next task when it has a result.
ArrivalPattern = Literal["constant", "poisson", "bursts", "diurnal", "closed"]

PATTERNS: tuple[ArrivalPattern, ...] = ("constant", "poisson", "bursts", "diurnal", "closed")

#: Seconds of the driver's processor for one remote launch: 16 lanes, a blocking call of a Ray actor each, made 1,452
#: calls a second together (Ray 2.60, Python 3.11, two cores).
LAUNCH_ON_DRIVER = 1 / 1452
#: Seconds of the driver's processor for one task, beside that: `python -m benchmarks.simulation` measures it.
TASK_ON_DRIVER = 6e-5
#: Seconds that a remote call takes beside the device, the network and the driver: of 16 lanes with launches of 100 ms
#: 97 % of the time was the devices', so 3.1 ms were not; the rest of them is here.
CALL_SECONDS = 2.4e-3


class Arrivals(msgspec.Struct, frozen=True, kw_only=True):
    """When tasks are submitted."""

    pattern: ArrivalPattern = "poisson"
    #: Tasks a second; `None`: as many as keep the devices busy for `load` of the time.
    rate: float | None = None
    load: float = 0.8
    #: Tasks of a burst.
    burst: int = 100
    #: Seconds of a day, and how far the rate rises above its mean and falls below it.
    period: float = 60.0
    swing: float = 0.8
    #: Clients of a closed loop; `None`: two for each device.
    clients: int | None = None


class SimulatedNetwork(msgspec.Struct, frozen=True, kw_only=True):
    """The way between the driver and a node."""

    #: One way, in seconds.
    latency: float = 2e-4
    #: Bytes a second of one node, both ways together.
    bytes_per_second: float = 1.25e9


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """How often something fails, and how long that lasts. The seconds are what was measured of Ray 2.60."""

    #: Per hour, of each device, each node and each node's link.
    actors: float = 0.0
    nodes: float = 0.0
    links: float = 0.0
    #: A killed actor: until the driver is told, and until the device is open again.
    actor_seen: float = 0.01
    actor_back: float = 0.84
    #: A killed raylet whose actors watch it: until the driver is told, and until there is a node again.
    node_seen: float = 2.1
    node_back: float = 30.0
    #: A link that is cut: for how long; after how many seconds its devices count as lost (three pings); and how long
    #: after the end of a shorter cut an answer is there.
    link_cut: float = 20.0
    link_seen: float = 6.0
    link_settled: float = 1.1

    @property
    def any(self) -> bool:
        return self.actors > 0 or self.nodes > 0 or self.links > 0


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet and its work."""

    devices: int = 16
    #: `None`: eight devices each.
    nodes: int | None = None
    #: Processes with a runtime, each with a part of the devices and of the tenants.
    drivers: int = 1
    #: Launches that a device may have at once: it runs one, and the next is on its way.
    in_flight: int = 1
    tasks: int = 10_000
    #: Functions that the tasks call.
    kinds: int = 4
    tenants: int = 1
    #: Tasks have priorities from 0 up to this.
    priorities: int = 0
    #: Seconds that a task may take.
    deadline: float | None = None
    #: Tasks that may wait; `None`: a thousand, and ten for each device.
    queue: int | None = None
    arrivals: Arrivals = Arrivals()
    #: On a device: for a launch, for its first task, and for every other one as a share of that.
    launch_seconds: float = 0.0
    task_seconds: float = 0.1
    marginal: float = 0.1
    #: The spread of these, as the standard deviation of a logarithm.
    noise: float = 0.05
    batching: bool = True
    #: Bytes of a task's arguments and results.
    nbytes: int = 8192
    network: SimulatedNetwork = SimulatedNetwork()
    call_seconds: float = CALL_SECONDS
    driver_launch: float = LAUNCH_ON_DRIVER
    driver_task: float = TASK_ON_DRIVER
    faults: Faults = Faults()
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises `InvalidOption` for a number that cannot be meant."""
        for name in ("devices", "drivers", "in_flight", "tasks", "kinds", "tenants", "nodes", "queue"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise InvalidOption(f"{name} is a whole number, at least 1; got {number!r}.")
        if self.drivers > self.devices:
            raise InvalidOption(f"{self.drivers} drivers need at least as many devices; got {self.devices}.")
        if not 0 <= self.priorities <= 10:
            raise InvalidOption(f"priorities go from 0 up to a number that is at most 10; got {self.priorities!r}.")
        for name in ("launch_seconds", "marginal", "noise", "call_seconds", "driver_launch", "driver_task", "nbytes"):
            _check_number(name, getattr(self, name), least=0.0)
        _check_number("latency", self.network.latency, least=0.0)
        for name, value in (
            ("task_seconds", self.task_seconds),
            ("bandwidth", self.network.bytes_per_second),
            ("deadline", self.deadline),
            ("rate", self.arrivals.rate),
            ("load", self.arrivals.load),
            ("period", self.arrivals.period),
        ):
            if value is not None:
                _check_number(name, value, more_than=0.0)
        if self.arrivals.burst < 1 or (self.arrivals.clients is not None and self.arrivals.clients < 1):
            raise InvalidOption("a burst has at least one task, and a closed loop at least one client.")
        for name in msgspec.structs.asdict(self.faults):
            _check_number(name, getattr(self.faults, name), least=0.0)

    @property
    def node_count(self) -> int:
        return min(self.devices, self.nodes or math.ceil(self.devices / 8))

    @property
    def room(self) -> int:
        """Tasks that may wait at each driver."""
        return self.queue or 1000 + 10 * self.devices

    @property
    def alone_seconds(self) -> float:
        """A launch of one task on a device."""
        return self.launch_seconds + self.task_seconds

    @property
    def rate(self) -> float:
        """Tasks a second."""
        return self.arrivals.rate or self.arrivals.load * self.devices / self.alone_seconds

    @property
    def clients(self) -> int:
        return self.arrivals.clients or 2 * self.devices


def _check_number(name: str, value: float, *, least: float | None = None, more_than: float | None = None) -> None:
    """Raises `InvalidOption` unless the value is finite and within its bound."""
    bound = f"at least {least:g}" if least is not None else f"more than {more_than:g}"
    fits = value >= least if least is not None else value > (more_than or 0.0)
    if not (math.isfinite(value) and fits):
        raise InvalidOption(f"{name} is a number, {bound}; got {value!r}.")


# -- when tasks are submitted: an endless series of moments for each pattern


def moments(arrivals: Arrivals, rate: float, draw: random.Random) -> Iterator[float]:
    """The times of arrivals at so many a second, in order. A closed loop has none: it waits for its results."""
    match arrivals.pattern:
        case "constant":
            yield from _constant(rate)
        case "poisson":
            yield from _poisson(rate, draw)
        case "bursts":
            yield from _bursts(rate, arrivals.burst)
        case "diurnal":
            yield from _diurnal(rate, arrivals.period, arrivals.swing, draw)
        case "closed":
            return


def _constant(rate: float) -> Iterator[float]:
    """Yields times at equal distances, without end."""
    number = 0
    while True:
        yield number / rate
        number += 1


def _poisson(rate: float, draw: random.Random) -> Iterator[float]:
    """Yields times of a Poisson process, without end."""
    now = 0.0
    while True:
        now += draw.expovariate(rate)
        yield now


def _bursts(rate: float, size: int) -> Iterator[float]:
    """Yields each time `size` times, so that bursts come at the mean rate, without end."""
    number = 0
    while True:
        now = number * size / rate
        for _ in range(size):
            yield now
        number += 1


def _diurnal(rate: float, period: float, swing: float, draw: random.Random) -> Iterator[float]:
    """Yields times whose rate swings with the period, without end.

    It thins a Poisson process of the highest rate: each of its times is kept with the probability that its moment has.
    """
    highest = rate * (1 + swing)
    for now in _poisson(highest, draw):
        if draw.random() * highest <= rate * (1 + swing * math.sin(2 * math.pi * now / period)):
            yield now


# -- A clock that goes from event to event


class EventClock:
    """Calls what was scheduled, in the order of time; what is due at the same time in the order of scheduling."""

    __slots__ = ("_events", "_numbers", "now", "stopped")

    def __init__(self) -> None:
        """Starts at 0 seconds with nothing scheduled."""
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
        """Calls what is scheduled, until the clock is stopped or nothing is left."""
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
        """Makes a machine without devices, whose link is free."""
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
        """Makes a device that is free; `launches` are those on their way, in order."""
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
    """Returns the facts of a simulated device by its name."""
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


# -- the end of every task: none may be lost, and none may have two


class InvariantBroken(AssertionError):
    """A task was lost, or had two ends: a bug in anygpu, or in its simulation."""

    def __init__(self, problems: Sequence[str], seed: int) -> None:
        super().__init__(
            f"{'; '.join(problems)}. This is a bug in anygpu; please report it with the scenario and its seed, {seed}."
        )


class Ledger:
    """Counts of a run, over all drivers."""

    def __init__(self, expected: int, when_all_ended: Callable[[], None]) -> None:
        """Expects so many tasks; `when_all_ended` is called when the last of them has ended."""
        #: Tasks that have not ended yet, or not even come.
        self._left = expected
        self._when_all_ended = when_all_ended
        self.submitted = 0
        self.refused = 0
        self.delivered = 0
        self.failed: Counter[str] = Counter()
        #: Ends of tasks that had ended before, and transitions that the state machine forbids.
        self.twice = 0
        self.forbidden = 0
        self.launches = 0
        self.launched_tasks = 0
        #: Devices that failed.
        self.faults = 0
        #: Launches that were lost with a device or a link, and tasks that ran more than once.
        self.lost_launches = 0
        self.repeated = 0
        #: Seconds from submission until a task began on a device, and until its caller had the result.
        self.waits = array("d")
        self.latencies = array("d")

    def end(self) -> None:
        """A task has come to its end."""
        self._left -= 1
        if not self._left:
            self._when_all_ended()

    @property
    def lost(self) -> int:
        """Tasks that were submitted and have no end, which must be none when a run is over."""
        return self.submitted - self.delivered - self.refused - sum(self.failed.values())


class SimulatedFuture:
    """The end of one task as its caller sees it."""

    __slots__ = ("_began", "_done", "_ledger", "_receipt", "attempts", "on_end")

    #: No lane thread waits for it, and no event loop.
    _is_awaited = False
    is_of_a_loop = False

    def __init__(self, ledger: Ledger, on_end: Any) -> None:
        """Begins without an end; `on_end` is called once, at the task's end."""
        self._ledger = ledger
        self._began = self._done = False
        self._receipt: Any = None
        self.attempts = 0
        self.on_end = on_end

    def done(self) -> bool:
        return self._done

    def running(self) -> bool:
        return self._began and not self._done

    def cancelled(self) -> bool:
        return False

    def set_running_or_notify_cancel(self) -> bool:
        self._began = True
        return True

    def set_result(self, value: Any) -> None:
        if self._end():
            self._ledger.delivered += 1
            self._ledger.end()

    def set_exception(self, error: BaseException) -> None:
        """Counts the failure by its class; a forbidden transition is counted too."""
        if isinstance(error, InvalidTransition):
            self._ledger.forbidden += 1
        if self._end():
            self._ledger.failed[type(error).__name__] += 1
            self._ledger.end()

    def _end(self) -> bool:
        """Marks the end; returns `False` for a second one, which is counted as a bug."""
        if self._done:
            self._ledger.twice += 1
            return False
        self._done = True
        if self.attempts > 1:
            self._ledger.repeated += 1
        on_end, self.on_end = self.on_end, None
        if on_end is not None:
            on_end()
        return True


# -- what our own code takes for a decision, as it is: this is measured, not simulated


#: One of so many decisions is measured: asking for the processor's time takes a microsecond, and decisions take few.
#: A prime number, so that every kind of decision has its turn.
EVERY = 17


class DecisionMeter:
    """Adds up the processor seconds of decisions, from a sample of them."""

    __slots__ = ("_count", "_seconds")

    def __init__(self) -> None:
        self._count = 0
        self._seconds = 0.0

    def begin(self) -> float:
        """Before a decision; 0 if it is not measured."""
        self._count += 1
        return 0.0 if self._count % EVERY else time.thread_time()

    def end(self, begun: float) -> None:
        if begun:
            self._seconds += time.thread_time() - begun

    @property
    def seconds(self) -> float:
        """Seconds of all decisions, extrapolated from the sample."""
        return self._seconds * EVERY
