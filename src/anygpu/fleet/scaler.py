"""The thread that asks for machines while much waits, and gives back those that nobody uses."""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections.abc import Sequence

import msgspec

from anygpu.errors import AnyGPUError
from anygpu.fleet.cluster import Cluster
from anygpu.fleet.driver_messages import Bundle, Refusal
from anygpu.fleet.machines import Machines
from anygpu.fleet.registry import FleetRegistry
from anygpu.fleet.scaling import (
    Asking,
    Demand,
    Idleness,
    Scaling,
    Shortage,
    Use,
    explain,
    may_run_elsewhere,
    provided,
)
from anygpu.hardware.device import node_of
from anygpu.runtime.health import Health, LaneHealth
from anygpu.runtime.jobs import Job
from anygpu.runtime.scheduling import Scheduler

#: Seconds between two looks at what waits. A look at a long queue takes its time, of which this is the multiple.
_EVERY, _SHARE = 0.5, 50.0
#: Without a `Scaling`: seconds without work after which a machine that was asked for by hand is given back.
_IDLE = 60.0


class FleetHealth(Health, frozen=True, kw_only=True):
    """A snapshot of a fleet. It is not `ok` without its cluster, though devices of this machine go on."""

    #: Why there is no connection to the cluster any more; `None` while there is one.
    lost: str | None = None
    #: Machines of the cluster, and units that its autoscaler was asked for.
    nodes: int = 0
    asked: int = 0
    #: Why what was asked for will not come, one sentence for each kind; Ray itself does not say.
    missing: tuple[str, ...] = ()

    @property
    def _state(self) -> str:
        return self.closed or "without its cluster" if self.lost is not None else super()._state

    def __str__(self) -> str:
        lines = [super().__str__(), f"  {self.nodes} machines, {self.asked} units asked for"]
        if self.lost is not None:
            lines.append(f"  the cluster is gone: {self.lost}")
        return "\n".join([*lines, *(f"  missing: {each}" for each in self.missing)])


class Scaler:
    """Asks for machines, by hand and by what waits. Thread-safe; its thread starts with the first reason to ask."""

    def __init__(
        self,
        cluster: Cluster,
        machines: Machines,
        places: FleetRegistry,
        scheduler: Scheduler,
        scaling: Scaling | None,
    ) -> None:
        self._cluster = cluster
        self._machines = machines
        self._places = places
        self._scheduler = scheduler
        self._scaling = scaling
        self._demand = Demand(scaling) if scaling is not None else None
        self._idleness = Idleness(scaling.idle if scaling is not None else _IDLE)
        self._asking = Asking()
        self._lock = threading.Condition()
        self._by_hand: tuple[Bundle, ...] = ()
        self._wanted: tuple[Bundle, ...] = ()
        self._wanted_since = 0.0
        self._asked: tuple[Bundle, ...] | None = None
        self._refusal: Refusal | None = None
        self._missing: tuple[str, ...] = ()
        self._ended = False
        self._thread: threading.Thread | None = None
        cluster.when_refused = self._refused
        if scaling is not None:
            self._start()

    def scale(self, bundles: tuple[Bundle, ...], timeout: float) -> bool:
        """Ask for these whatever waits, and wait so long until they are there."""
        until = time.monotonic() + timeout
        with self._lock:
            self._by_hand = bundles
            self._start()
            self._lock.notify_all()
        while not (there := self._is_there(bundles)):
            left = until - time.monotonic()
            if left <= 0 or self._ended or self._cluster.ended is not None:
                break
            with self._lock:
                self._lock.wait(min(left, _EVERY))
        return there

    def _is_there(self, bundles: Sequence[Bundle]) -> bool:
        nodes = [node for node in self._cluster.nodes.values() if self._machines.is_known(node.id)]
        return all(provided(bundle, nodes) >= count for bundle, count in _counted(bundles))

    def health(self, health: Health) -> FleetHealth:
        fields = {name: getattr(health, name) for name in health.__struct_fields__}
        lost = self._cluster.ended
        if lost is not None:
            fields["ok"] = False
        return FleetHealth(
            **fields,
            lost=lost,
            nodes=len(self._cluster.nodes),
            asked=len(self._asked or ()),
            missing=self._missing,
        )

    def close(self) -> None:
        """Withdraw what was asked for. May be called twice."""
        with self._lock:
            self._ended = True
            asked, self._asked = self._asked, None
            self._lock.notify_all()
        if asked:
            self._cluster.request(())

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="anygpu-fleet-scaling", daemon=True)
            self._thread.start()

    # -- on its thread

    def _work(self) -> None:
        while True:
            begin = time.monotonic()
            self.look(begin)
            took = time.monotonic() - begin
            with self._lock:
                if not self._ended and self._cluster.ended is None:
                    self._lock.wait(max(_EVERY, _SHARE * took))
                if self._ended or self._cluster.ended is not None:
                    return

    def look(self, now: float) -> None:
        """Ask for what is needed now, and give back what is not."""
        queued, lanes = self._scheduler.load(_may_leave)
        units = self._demand.look(now, queued) if self._demand is not None else 0
        nodes = list(self._cluster.nodes.values())
        with self._lock:
            wanted = _together(self._by_hand, self._scaling.unit if self._scaling is not None else None, units)
            if wanted != self._wanted:
                if set(map(msgspec.msgpack.encode, wanted)) != set(map(msgspec.msgpack.encode, self._wanted)):
                    self._asking.forget()
                self._wanted, self._wanted_since, self._refusal = wanted, now, None
            there = sum(min(count, provided(bundle, nodes)) for bundle, count in _counted(wanted))
            asked = wanted[: self._asking.look(now, len(wanted), there)]
            is_new = not self._ended and asked != self._asked
            if is_new:
                self._asked = asked
            seconds = now - self._wanted_since
            # Fewer may be started: as long as that is being tried, nothing is known.
            is_settled = self._asking.limit is None or self._asking.limit <= there
            refusal = self._refusal if is_settled else None
        if is_new:
            self._cluster.request(asked)
        shortages = [
            Shortage(bundle, count, provided(bundle, nodes), refusal, seconds) for bundle, count in _counted(wanted)
        ]
        self._tell(tuple(text for each in shortages if (text := explain(each, nodes)) is not None))
        self._release(now, lanes)

    def _release(self, now: float, lanes: Sequence[LaneHealth]) -> None:
        """Ray gives a machine back when nothing runs there, and a home counts as something."""
        uses = {
            lane.device: Use(lane.done + lane.failed, bool(lane.running) or lane.backlog_seconds > 0)
            for lane in lanes
            if node_of(lane.device) is not None and self._places.is_open(lane.device)
        }
        for name in self._idleness.look(now, uses):
            # A lane takes its next task under this lock, and opens the device again if it was let go before.
            with self._scheduler.lock:
                _, again = self._scheduler.load(_may_leave)
                is_idle = any(
                    lane.device == name and not lane.running and lane.done + lane.failed == uses[name].done
                    for lane in again
                )
                worker = self._places.release(name) if is_idle else None
            if worker is not None:
                with contextlib.suppress(AnyGPUError):
                    worker.kill()
                    worker.close()

    def _tell(self, missing: tuple[str, ...]) -> None:
        new = [text for text in missing if text not in self._missing]
        self._missing = missing
        for text in new:
            # Where warnings are errors, this thread has nobody to raise them to.
            with contextlib.suppress(UserWarning):
                warnings.warn(f"the fleet cannot grow: {text}", stacklevel=2)

    # -- on the cluster's thread

    def _refused(self, count: int, refusal: Refusal | None) -> None:
        now = time.monotonic()
        nodes = list(self._cluster.nodes.values())
        with self._lock:
            if self._asked is None or count != len(self._asked):
                return
            self._refusal = refusal if refusal is not None or self._asking.limit is None else self._refusal
            if refusal == "infeasible":
                there = sum(min(number, provided(bundle, nodes)) for bundle, number in _counted(self._asked))
                self._asking.refused(now, count, there)
            self._lock.notify_all()


def _may_leave(job: Job) -> bool:
    """Whether another machine could run it."""
    site = job.call.site
    is_at_home = site.fallback_reason is not None and not site.misses_device
    if job.forced is not None or site.options.engine is not None or is_at_home:
        return False
    return may_run_elsewhere(site.options.preference.on)


def _together(by_hand: tuple[Bundle, ...], unit: Bundle | None, units: int) -> tuple[Bundle, ...]:
    """Both requests at once: bundles of one kind count for both."""
    if unit is None:
        return by_hand
    return by_hand + (unit,) * max(0, units - by_hand.count(unit))


def _counted(bundles: Sequence[Bundle]) -> list[tuple[Bundle, int]]:
    kinds: list[tuple[Bundle, int]] = []
    for bundle in bundles:
        if kinds and kinds[-1][0] == bundle:
            kinds[-1] = (bundle, kinds[-1][1] + 1)
        else:
            kinds.append((bundle, 1))
    return kinds
