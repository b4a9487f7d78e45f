"""Runs a scenario: devices and drivers are made, tasks arrive, things fail, until every task has come to an end."""

from __future__ import annotations

import contextvars
import gc
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

from anygpu.fleet.simulation.arrivals import moments
from anygpu.fleet.simulation.clock import EventClock
from anygpu.fleet.simulation.driver import Driver
from anygpu.fleet.simulation.hardware import SimulatedDevice, SimulatedNode
from anygpu.fleet.simulation.ledger import InvariantBroken, Ledger
from anygpu.fleet.simulation.report import Report, report_of
from anygpu.fleet.simulation.scenario import Scenario


def simulate(scenario: Scenario) -> Report:
    """What comes of it. The same scenario gives the same report, beside what was measured of our own code.

    Raises `InvariantBroken` if a task was lost, had two ends, or was in a state that there is not.
    """
    # Lanes say in their context whose line a warning is about, and here they run on the caller's thread.
    return contextvars.copy_context().run(_simulate, scenario)


def _simulate(scenario: Scenario) -> Report:
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
        self._scenario = scenario
        self._draw = random.Random(scenario.seed)
        self.clock = EventClock()
        self.ledger = Ledger(scenario.tasks, self._stop)
        self.nodes = [SimulatedNode() for _ in range(scenario.node_count)]
        tenants = [f"tenant-{number}" for number in range(scenario.tenants)]
        self.drivers: list[Driver] = []
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
            self.drivers.append(Driver(scenario, devices, own, self.clock, self.ledger, self._draw))
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
        scenario, number = self._scenario, self._scenario.tasks - self._left
        self._left -= 1
        driver = self.drivers[number % scenario.drivers]
        priority = self._draw.randrange(scenario.priorities + 1) if scenario.priorities else 0
        tenant = driver.tenants[number // scenario.drivers % len(driver.tenants)]
        on_end = None if client is None else lambda: self.clock.at(self.clock.now, self._submit_for, client)
        driver.submit(tenant, number % scenario.kinds, priority, on_end)

    # -- faults

    def _schedule_faults(self) -> None:
        faults, hour = self._scenario.faults, 3600.0
        for rate, fail in (
            (faults.actors * self._scenario.devices / hour, self._actor_dies),
            (faults.nodes * len(self.nodes) / hour, self._node_dies),
            (faults.links * len(self.nodes) / hour, self._link_is_cut),
        ):
            if rate > 0:
                self.clock.at(self._draw.expovariate(rate), fail, rate)

    def _actor_dies(self, rate: float) -> None:
        faults = self._scenario.faults
        node = self._draw.choice(self.nodes)
        self._down(self._draw.choice(node.devices), faults.actor_seen, faults.actor_back)
        self.clock.at(self.clock.now + self._draw.expovariate(rate), self._actor_dies, rate)

    def _node_dies(self, rate: float) -> None:
        faults = self._scenario.faults
        for device in self._draw.choice(self.nodes).devices:
            self._down(device, faults.node_seen, faults.node_back)
        self.clock.at(self.clock.now + self._draw.expovariate(rate), self._node_dies, rate)

    def _link_is_cut(self, rate: float) -> None:
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
