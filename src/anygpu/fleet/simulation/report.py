"""What a simulation found: figures, and in words what breaks first."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import msgspec

from anygpu.base.units import readable_seconds
from anygpu.fleet.simulation.driver import Driver
from anygpu.fleet.simulation.hardware import SimulatedNode
from anygpu.fleet.simulation.ledger import Ledger
from anygpu.fleet.simulation.scenario import Scenario

SCHEMA = "anygpu.simulation/1"

#: What is busy for more of the time than this is the bound.
_FULL = 0.9


class Quantiles(msgspec.Struct, frozen=True):
    """Seconds within which so many percent came."""

    p50: float
    p95: float
    p99: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a scenario. What was not measured of our own code is the same for the same seed."""

    schema: str = SCHEMA
    scenario: Scenario
    #: Simulated seconds from the first task to the last result.
    seconds: float
    #: Tasks a second.
    throughput: float
    #: From submission until a task began on a device, and until its caller had the result.
    waiting: Quantiles
    latency: Quantiles
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
    #: What the simulation took by the clock and of the processor, and preparing it.
    real_seconds: float
    processor_seconds: float
    preparing_seconds: float

    def to_json(self) -> bytes:
        return msgspec.json.encode(self)

    @property
    def same_every_time(self) -> Report:
        """Without what was measured, for comparisons."""
        return msgspec.structs.replace(
            self, decision_seconds=0.0, real_seconds=0.0, processor_seconds=0.0, preparing_seconds=0.0
        )


def report_of(
    scenario: Scenario,
    ledger: Ledger,
    drivers: Sequence[Driver],
    nodes: Sequence[SimulatedNode],
    *,
    seconds: float,
    real_seconds: float,
    processor_seconds: float,
    preparing: float,
) -> Report:
    span = max(seconds, 1e-9)
    devices = [device for node in nodes for device in node.devices]
    busy = sum(device.busy_seconds for device in devices) / len(devices) / span
    driver_busy = max(driver.busy_seconds for driver in drivers) / span
    link_busy = max(node.link_seconds for node in nodes) / span
    return Report(
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


def quantiles(values: array[float]) -> Quantiles:
    if not values:
        return Quantiles(0.0, 0.0, 0.0)
    ordered = sorted(values)
    return Quantiles(*(ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.95, 0.99)))


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
