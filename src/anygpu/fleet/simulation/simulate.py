"""Runs a scenario: devices and drivers are made, tasks arrive, things fail, until every task has come to an end.

`simulate` is the way in, and `SimulationReport` what comes of it. `_Run` makes the parts of a scenario and schedules
arrivals and faults; what drivers do about them is in `anygpu.fleet.simulation.driver`.
"""

from __future__ import annotations

import contextvars
import gc
import random
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

import msgspec

from anygpu.base.units import readable_seconds
from anygpu.fleet.simulation.driver import SimulatedDriver
from anygpu.fleet.simulation.scenario import (
    EventClock,
    InvariantBroken,
    Ledger,
    Scenario,
    SimulatedDevice,
    SimulatedNode,
    moments,
)

# -- what a simulation found: figures, and in words what breaks first


SCHEMA = "anygpu.simulation/1"

#: A part that is busy for more of the time than this is the bottleneck.
_FULL = 0.9


class TimeQuantiles(msgspec.Struct, frozen=True):
    """Seconds within which so many percent came."""

    p50: float
    p95: float
    p99: float


class SimulationReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a scenario. What was not measured of our own code is the same for the same seed."""

    schema: str = SCHEMA
    scenario: Scenario
    #: Simulated seconds from the first task to the last result.
    seconds: float
    #: Tasks a second.
    throughput: float
    #: From submission until a task began on a device, and until its caller had the result.
    waiting: TimeQuantiles
    latency: TimeQuantiles
    #: Shares of the time: of all devices, of the busiest driver and of the busiest link.
    devices_busy: float
    driver_busy: float
    link_busy: float
    launches: int
    tasks_per_launch: float
    delivered: int
    #: Errors that callers got, by name; and tasks that were refused because the queue was full.
    failed: dict[str, int]
    refused: int
    #: Devices that failed, launches that were lost with them, tasks that ran more than once for that.
    faults: int
    lost_launches: int
    repeated: int
    #: Always 0: a run in which that is not so raises an error.
    lost_tasks: int
    results_twice: int
    #: In words.
    breaks_first: str
    #: Processor seconds of our own code for one task: queue, state machine, chooser, batches. Measured, not simulated.
    decision_seconds: float
    #: Seconds of the simulation by the clock and of the processor, and of preparing it.
    real_seconds: float
    processor_seconds: float
    preparing_seconds: float

    def to_json(self) -> bytes:
        return msgspec.json.encode(self)

    @property
    def same_every_time(self) -> SimulationReport:
        """Returns the report without the times of our own code, which differ from run to run."""
        return msgspec.structs.replace(
            self, decision_seconds=0.0, real_seconds=0.0, processor_seconds=0.0, preparing_seconds=0.0
        )


def report_of(
    scenario: Scenario,
    ledger: Ledger,
    drivers: Sequence[SimulatedDriver],
    nodes: Sequence[SimulatedNode],
    *,
    seconds: float,
    real_seconds: float,
    processor_seconds: float,
    preparing: float,
) -> SimulationReport:
    """Makes the report from the counts of a run; shares are of the simulated seconds."""
    span = max(seconds, 1e-9)
    devices = [device for node in nodes for device in node.devices]
    busy = sum(device.busy_seconds for device in devices) / len(devices) / span
    driver_busy = max(driver.busy_seconds for driver in drivers) / span
    link_busy = max(node.link_seconds for node in nodes) / span
    return SimulationReport(
        scenario=scenario,
        seconds=seconds,
        throughput=ledger.delivered / span,
        waiting=quantiles(ledger.waits),
        latency=quantiles(ledger.latencies),
        devices_busy=busy,
        driver_busy=driver_busy,
        link_busy=link_busy,
        launches=ledger.launches,
        tasks_per_launch=ledger.launched_tasks / max(1, ledger.launches),
        delivered=ledger.delivered,
        failed=dict(sorted(ledger.failed.items())),
        refused=ledger.refused,
        faults=ledger.faults,
        lost_launches=ledger.lost_launches,
        repeated=ledger.repeated,
        lost_tasks=ledger.lost,
        results_twice=ledger.twice,
        breaks_first=breaks_first(scenario, busy, driver_busy, link_busy, ledger.refused),
        decision_seconds=sum(driver.meter.seconds for driver in drivers) / max(1, ledger.submitted),
        real_seconds=real_seconds,
        processor_seconds=processor_seconds,
        preparing_seconds=preparing,
    )


def quantiles(values: array[float]) -> TimeQuantiles:
    """Returns the 50th, 95th and 99th percentile, each a value that occurred; zeros for no values."""
    if not values:
        return TimeQuantiles(0.0, 0.0, 0.0)
    ordered = sorted(values)
    return TimeQuantiles(*(ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.95, 0.99)))


def breaks_first(scenario: Scenario, devices: float, driver: float, link: float, refused: int) -> str:
    """One sentence or two: what is the bound here, or would be if more came."""
    each = scenario.driver_launch + scenario.driver_task
    drivers = "the driver" if scenario.drivers == 1 else f"each of the {scenario.drivers} drivers"
    shares = {
        "driver": (
            driver,
            f"{drivers}: {readable_seconds(each)} of its processor for a launch of one task are at most "
            f"{1 / each if each else float('inf'):,.0f} of them a second. Larger batches, longer launches or more "
            "drivers move that; more devices do not.",
        ),
        "devices": (devices, "the devices. More of them, or batches where tasks wait together, move that."),
        "link": (
            link,
            "the link of a node. Arrays that stay on their node, smaller ones, or more nodes move that.",
        ),
    }
    share, words = max(shares.values())
    full = f" {refused:,} tasks were refused because the queue was full." if refused else ""
    others = f"The driver is busy for {driver:.0%} of the time, devices {devices:.0%}, the busiest link {link:.0%}."
    if share >= _FULL:
        return f"The bound is {words} {others}{full}"
    if refused:
        return f"The queue: arrivals come faster than tasks go for a while.{full} {others}"
    return f"Nothing is at its limit. With {1 / max(share, 1e-9):.1f} times the load it would be {words} {others}"


def simulate(scenario: Scenario) -> SimulationReport:
    """Simulate a scenario. The report depends on nothing else, but for the measured times of our own code.

    Raises `InvariantBroken` if a task was lost, had two ends, or was in a state that there is not.
    """
    # Lanes say in their context whose line a warning is about, and here they run on the caller's thread.
    return contextvars.copy_context().run(_simulate, scenario)


def _simulate(scenario: Scenario) -> SimulationReport:
    """Runs a scenario to its end, and measures what our own code took for it."""
    begin = time.perf_counter()
    run = _Run(scenario)
    prepared, processor = time.perf_counter(), time.process_time()
    with _rarely_collected():
        run.clock.run()
    run.check()
    return report_of(
        scenario,
        run.ledger,
        run.drivers,
        run.nodes,
        seconds=run.clock.now,
        real_seconds=time.perf_counter() - prepared,
        processor_seconds=time.process_time() - processor,
        preparing=prepared - begin,
    )


@contextmanager
def _rarely_collected() -> Iterator[None]:
    """Let the garbage collector look at new objects only, and rarely.

    A million tasks wait, and none of them is part of a cycle: looking at all of them again and again found nothing, and
    took a seventh of the time.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 10, 1_000_000)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


class _Run:
    """One scenario while it runs."""

    def __init__(self, scenario: Scenario) -> None:
        """Spreads devices over nodes and drivers in turn, and schedules the first tasks and faults."""
        self._scenario = scenario
        self._draw = random.Random(scenario.seed)
        self.clock = EventClock()
        self.ledger = Ledger(scenario.tasks, self._stop)
        self.nodes = [SimulatedNode() for _ in range(scenario.node_count)]
        tenants = [f"tenant-{number}" for number in range(scenario.tenants)]
        self.drivers: list[SimulatedDriver] = []
        self._left = scenario.tasks
        parts: list[dict[str, SimulatedDevice]] = [{} for _ in range(scenario.drivers)]
        for number in range(scenario.devices):
            node = number % scenario.node_count
            device = SimulatedDevice(f"torch:cuda:{number // scenario.node_count}@node-{node}", self.nodes[node])
            self.nodes[node].devices.append(device)
            parts[number % scenario.drivers][device.name] = device
        for number, devices in enumerate(parts):
            # The driver's own machine, for tasks that no device of the fleet could run.
            devices["numpy"] = SimulatedDevice("numpy", SimulatedNode())
            own = tenants[number :: scenario.drivers] or tenants[number % len(tenants) :][:1]
            self.drivers.append(SimulatedDriver(scenario, devices, own, self.clock, self.ledger, self._draw))
        self._owner = {
            device.name: driver
            for driver, devices in zip(self.drivers, parts, strict=True)
            for device in devices.values()
        }
        if scenario.arrivals.pattern == "closed":
            for client in range(min(scenario.clients, scenario.tasks)):
                self.clock.at(0.0, self._submit_for, client)
        else:
            self._arrive(islice(moments(scenario.arrivals, scenario.rate, self._draw), scenario.tasks), None)
        self._schedule_faults()

    def _stop(self) -> None:
        self.clock.stopped = True

    def check(self) -> None:
        """Every task has come to exactly one end."""
        ledger, problems = self.ledger, []
        if ledger.submitted != self._scenario.tasks:
            problems.append(f"{self._scenario.tasks - ledger.submitted} tasks never came")
        if ledger.lost:
            problems.append(f"{ledger.lost} of {ledger.submitted} tasks were lost")
        if ledger.twice:
            problems.append(f"{ledger.twice} tasks had two ends")
        if ledger.forbidden:
            problems.append(f"{ledger.forbidden} tasks made an impossible transition")
        if any(not job.future.done() for driver in self.drivers for job in driver.open_jobs):
            problems.append("a driver has tasks in its books that have not ended")
        if problems:
            raise InvariantBroken(problems, self._scenario.seed)

    # -- tasks

    def _arrive(self, times: Iterator[float], now: float | None) -> None:
        """Submit the task that has come now, and wait for the next."""
        if now is not None:
            self._submit(None)
        following = next(times, None)
        if following is not None:
            self.clock.at(following, self._arrive, times, following)

    def _submit_for(self, client: int) -> None:
        if self._left:
            self._submit(client)

    def _submit(self, client: int | None) -> None:
        """Submits the next task to its driver; tenants, kinds and drivers take turns, priorities are drawn."""
        scenario, number = self._scenario, self._scenario.tasks - self._left
        self._left -= 1
        driver = self.drivers[number % scenario.drivers]
        priority = self._draw.randrange(scenario.priorities + 1) if scenario.priorities else 0
        tenant = driver.tenants[number // scenario.drivers % len(driver.tenants)]
        on_end = None if client is None else lambda: self.clock.at(self.clock.now, self._submit_for, client)
        driver.submit(tenant, number % scenario.kinds, priority, on_end)

    # -- faults

    def _schedule_faults(self) -> None:
        """Schedules the first fault of each kind that has a rate, which is in faults an hour for each part."""
        faults, hour = self._scenario.faults, 3600.0
        for rate, fail in (
            (faults.actors * self._scenario.devices / hour, self._actor_dies),
            (faults.nodes * len(self.nodes) / hour, self._node_dies),
            (faults.links * len(self.nodes) / hour, self._link_is_cut),
        ):
            if rate > 0:
                self.clock.at(self._draw.expovariate(rate), fail, rate)

    def _actor_dies(self, rate: float) -> None:
        """One actor dies now; the next one is drawn from the same rate."""
        faults = self._scenario.faults
        node = self._draw.choice(self.nodes)
        self._down(self._draw.choice(node.devices), faults.actor_seen, faults.actor_back)
        self.clock.at(self.clock.now + self._draw.expovariate(rate), self._actor_dies, rate)

    def _node_dies(self, rate: float) -> None:
        """One machine dies now, with all its devices."""
        faults = self._scenario.faults
        for device in self._draw.choice(self.nodes).devices:
            self._down(device, faults.node_seen, faults.node_back)
        self.clock.at(self.clock.now + self._draw.expovariate(rate), self._node_dies, rate)

    def _link_is_cut(self, rate: float) -> None:
        """The link to a machine is cut for a while.

        Its devices are lost if that lasts long enough for the driver to see it; otherwise their answers are only late.
        """
        faults, now = self._scenario.faults, self.clock.now
        for device in self._draw.choice(self.nodes).devices:
            if faults.link_cut > faults.link_seen:
                self._down(device, faults.link_seen, faults.link_cut + faults.link_settled)
            else:
                for launch in list(device.launches):
                    self._owner[device.name].delay(launch, now + faults.link_cut + faults.link_settled)
        self.clock.at(now + self._draw.expovariate(rate), self._link_is_cut, rate)

    def _down(self, device: SimulatedDevice, seen: float, back: float) -> None:
        """The device is gone, and the driver is told later, if something runs there; it comes back by itself."""
        now, driver = self.clock.now, self._owner[device.name]
        self.ledger.faults += 1
        device.generation += 1
        device.noticed = False
        device.back_at = max(device.back_at, now + back)
        device.free_at = device.back_at
        for launch in list(device.launches):
            driver.lose(launch, now + seen)
        self.clock.at(device.back_at, self._back, device)

    def _back(self, device: SimulatedDevice) -> None:
        if device.back_at <= self.clock.now:  # it may have failed again meanwhile
            self._owner[device.name].recovered(device)
