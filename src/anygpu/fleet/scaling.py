"""How many machines a fleet asks for.

The first part decides on plain values, without Ray, a thread or a clock: `Demand` says how many units the waiting tasks
need, `Asking` how many of them the autoscaler is asked for after a refusal, `explain` why machines do not come, and
`Idleness` which may go. `Scaler`, at the end, is the thread that applies all this to a fleet.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from anygpu.errors import AnyGPUError, InvalidOption
from anygpu.fleet.cluster import Cluster
from anygpu.fleet.machines import FleetRegistry, Machines
from anygpu.fleet.messages import Bundle, ClusterNode, MachineRefusal
from anygpu.hardware.device import CPU, FLEET, node_of
from anygpu.runtime.health import Health, LaneHealth
from anygpu.runtime.lanes import Job
from anygpu.runtime.scheduling import Scheduler

#: After this many seconds a limit that the autoscaler has shown may have been raised.
FORGET_LIMIT = 300.0
#: Machines that are not there after so many seconds are reported, whatever the autoscaler says.
PATIENCE = 60.0


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """When a fleet asks for more machines, and for what kind. Made for `connect(scaling=)`.

    What waits, in predicted seconds, divided by `target` is the number of units that the fleet asks for, `most` at
    most. A unit is `gpu` GPUs and `cpu` CPUs of one machine that has the `labels`.
    """

    most: int
    gpu: float = 1.0
    cpu: float = 0.0
    #: As Ray's label selectors: "A100", "in(A100,H100)", "!spot".
    labels: dict[str, str] = {}
    #: Seconds of work that may wait for each unit.
    target: float = 10.0
    #: Seconds without work after which a machine is given back.
    idle: float = 60.0

    def __post_init__(self) -> None:
        """Raises `InvalidOption` for numbers that cannot be meant."""
        if type(self.most) is not int or self.most < 0:
            raise InvalidOption(f"most is a whole number of units, at least 0; got {self.most!r}.")
        for name, number in (("gpu", self.gpu), ("cpu", self.cpu)):
            if not (number >= 0 and math.isfinite(number)):
                raise InvalidOption(f"{name} is a number, at least 0; got {number!r}.")
        if not (self.gpu or self.cpu):
            raise InvalidOption("a unit needs a share of a GPU or of a CPU: gpu=1.0 or cpu=1.0.")
        for name, seconds in (("target", self.target), ("idle", self.idle)):
            if not (seconds > 0 and math.isfinite(seconds)):
                raise InvalidOption(f"{name} is a number of seconds, more than 0; got {seconds!r}.")

    @property
    def unit(self) -> Bundle:
        """The resources and labels of one unit, as Ray names them."""
        return bundle_of(self.gpu, self.cpu, self.labels)


def bundle_of(gpu: float, cpu: float, labels: Mapping[str, str]) -> Bundle:
    """Returns a bundle of these shares; one that is 0 is left out."""
    resources = {name: float(number) for name, number in (("GPU", gpu), ("CPU", cpu)) if number}
    return Bundle(resources, dict(labels))


def may_run_elsewhere(on: Sequence[str]) -> bool:
    """Whether a machine that is not there yet could run a call with this `on=`."""
    return not on or any(
        name.lower() == FLEET or not ("@" in name or ":" in name or name.lower() in ("numpy", CPU)) for name in on
    )


class Demand:
    """How many units the waiting tasks need. It rises at once, and falls when it was lower for a while."""

    def __init__(self, scaling: Scaling) -> None:
        """Starts with no units asked for."""
        self._scaling = scaling
        self._lower_since: float | None = None
        #: The highest need since then.
        self._highest = 0
        self.units = 0

    def look(self, now: float, queued_seconds: float) -> int:
        """The units to ask for, given what waits now."""
        need = min(self._scaling.most, math.ceil(queued_seconds / self._scaling.target))
        # Less than one target's worth is no reason to start a machine.
        if queued_seconds < self._scaling.target:
            need = 0
        if need >= self.units:
            self.units, self._lower_since, self._highest = need, None, 0
            return self.units
        if self._lower_since is None:
            self._lower_since = now
        self._highest = max(self._highest, need)
        if now - self._lower_since >= self._scaling.idle:
            self.units, self._lower_since, self._highest = self._highest, None, 0
        return self.units


class Asking:
    """A request to an autoscaler, which takes it as a whole or not at all.

    After a refusal half as much is asked for, and one more whenever all of it has come.
    """

    def __init__(self) -> None:
        """Starts without a limit: nothing was refused yet."""
        self._limit: int | None = None
        #: The smallest number that was refused, and when.
        self._refused: int | None = None
        self._refused_at = 0.0

    def look(self, now: float, wanted: int, provided: int) -> int:
        """How many of the `wanted` bundles to ask for, when so many are `provided` already."""
        if self._refused is not None and now - self._refused_at >= FORGET_LIMIT:
            self._limit = self._refused = None
        if self._limit is None or self._refused is None:
            return wanted
        if provided >= self._limit and self._limit + 1 < self._refused:
            self._limit += 1
        return min(wanted, self._limit)

    def refused(self, now: float, count: int, provided: int) -> None:
        """A request for `count` bundles was refused.

        From now on about half as many are asked for, but not fewer than there are, and never as many as were refused.
        """
        if count < 1:
            return
        self._refused = count if self._refused is None else min(count, self._refused)
        self._refused_at = now
        # One more than are there is tried before it is given up.
        self._limit = min(max(count // 2, provided), self._refused - 1)

    def forget(self) -> None:
        """Something else is wanted."""
        self._limit = self._refused = None

    @property
    def limit(self) -> int | None:
        return self._limit


def provided(bundle: Bundle, nodes: Iterable[ClusterNode]) -> int:
    """How many such bundles the machines could hold, if they were free."""
    return sum(_fits(bundle, node) for node in nodes if has_labels(node, bundle.labels))


def _fits(bundle: Bundle, node: ClusterNode) -> int:
    """Returns how many such bundles a machine could hold, by its scarcest resource."""
    return min(
        (int(node.resources.get(name, 0.0) / number + 1e-9) for name, number in bundle.resources.items() if number),
        default=0,
    )


def has_labels(node: ClusterNode, wanted: Mapping[str, str]) -> bool:
    """Whether a machine has them, as Ray's selectors mean it: a value, `in(a,b)`, and `!` before either."""
    return all(_selects(selector, node.labels.get(name)) for name, selector in wanted.items())


def _selects(selector: str, value: str | None) -> bool:
    """Whether one of Ray's label selectors takes the value."""
    denied = selector.startswith("!")
    bare = selector.removeprefix("!").strip()
    values = bare[3:-1].split(",") if bare.startswith("in(") and bare.endswith(")") else [bare]
    return (value in [each.strip() for each in values]) != denied


class Shortage(NamedTuple):
    """Machines that were asked for and do not come."""

    bundle: Bundle
    wanted: int
    provided: int
    refusal: MachineRefusal | None
    #: Since they were asked for.
    seconds: float


def explain(shortage: Shortage, nodes: Sequence[ClusterNode]) -> str | None:
    """Why machines do not come, in a sentence; `None` if they may be on their way."""
    bundle, wanted, there, refusal, seconds = shortage
    if there >= wanted:
        return None
    what = f"{wanted} × {written(bundle)}"
    match refusal:
        case "labels":
            return (
                f"{what}: this cluster's autoscaler ignores labels. Start the head with RAY_enable_autoscaler_v2=1, "
                "or with KubeRay's autoscalerOptions.version: v2."
            )
        case "alone":
            return f"{what}: the cluster has no autoscaler, and {_lacking(bundle, nodes)} of its machines."
        case "infeasible" if there:
            return f"{what}: the cluster may have no more than {there}. Raise the maximum of its machines."
        case "infeasible":
            return f"{what}: the autoscaler has no machine like that, and {_lacking(bundle, nodes)} of those here."
    if seconds < PATIENCE:
        return None
    return f"{what}: asked for {seconds:.0f} s ago, and {there} came. `ray status` at the head says what it waits for."


def _lacking(bundle: Bundle, nodes: Sequence[ClusterNode]) -> str:
    """Returns which resource or label of the bundle no machine has, as part of a sentence."""
    for name, number in bundle.resources.items():
        if not any(node.resources.get(name, 0.0) >= number for node in nodes):
            return f"{name}: {number:g} is in none"
    for name, selector in bundle.labels.items():
        if not any(has_labels(node, {name: selector}) for node in nodes):
            return f"the label {name}: {selector} is on none"
    if not provided(bundle, nodes):
        return "all of it at once is in none"
    return "it is in too few"


def written(bundle: Bundle) -> str:
    """Returns a bundle as messages show it."""
    what = ", ".join(f"{name}: {number:g}" for name, number in bundle.resources.items())
    labels = ", ".join(f"{name}: {value}" for name, value in bundle.labels.items())
    return f"{{{what}}}" + (f" with {labels}" if labels else "")


class Use(NamedTuple):
    """The load of a device when it was sampled."""

    #: Tasks that were ever taken there.
    done: int
    busy: bool


class Idleness:
    """Which devices have done nothing for so long."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last: dict[str, tuple[int, float]] = {}

    def look(self, now: float, uses: Mapping[str, Use]) -> list[str]:
        """Returns the devices that have been idle for so long that their machines may be given back."""
        found = []
        for name, use in uses.items():
            done, since = self._last.get(name, (-1, now))
            if use.busy or use.done != done:
                self._last[name] = (use.done, now)
            elif now - since >= self._seconds:
                found.append(name)
        for name in self._last.keys() - uses.keys():
            del self._last[name]
        return found


# -- the thread that asks for machines while much waits, and gives back those that nobody uses


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
        """Joins a fleet's parts; its daemon thread is started at once if machines are asked for by what waits."""
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
        self._refusal: MachineRefusal | None = None
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
        """Whether known machines provide all these bundles."""
        nodes = [node for node in self._cluster.nodes.values() if self._machines.is_known(node.id)]
        return all(provided(bundle, nodes) >= count for bundle, count in _counted(bundles))

    def health(self, health: Health) -> FleetHealth:
        """Returns the runtime's health with what concerns the cluster; it is not ok once the cluster is lost."""
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
        """The thread: looks at the demand again and again, at most a fixed share of the time, until the end."""
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
        """Ray gives a machine back when nothing runs there, and an actor counts as something."""
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
        """Warns of machines that do not come, of each reason once while it lasts."""
        new = [text for text in missing if text not in self._missing]
        self._missing = missing
        for text in new:
            # Where warnings are errors, this thread has nobody to raise them to.
            with contextlib.suppress(UserWarning):
                warnings.warn(f"the fleet cannot grow: {text}", stacklevel=2)

    # -- on the cluster's thread

    def _refused(self, count: int, refusal: MachineRefusal | None) -> None:
        """Takes the autoscaler's refusal of the last request, and looks again; one of an earlier request is ignored."""
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
    stays_here = site.candidates.fallback_reason is not None and not site.candidates.misses_device
    if job.forced is not None or site.options.engine is not None or stays_here:
        return False
    return may_run_elsewhere(site.options.preference.on)


def _together(by_hand: tuple[Bundle, ...], unit: Bundle | None, units: int) -> tuple[Bundle, ...]:
    """Both requests at once: bundles of one kind count for both."""
    if unit is None:
        return by_hand
    return by_hand + (unit,) * max(0, units - by_hand.count(unit))


def _counted(bundles: Sequence[Bundle]) -> list[tuple[Bundle, int]]:
    """Returns each run of equal bundles once, with its length."""
    kinds: list[tuple[Bundle, int]] = []
    for bundle in bundles:
        if kinds and kinds[-1][0] == bundle:
            kinds[-1] = (bundle, kinds[-1][1] + 1)
        else:
            kinds.append((bundle, 1))
    return kinds
