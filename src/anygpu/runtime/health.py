"""The health of a runtime, as plain values and as metrics: its queue, its devices, its tenants and losses.

`health_of` makes the snapshot with the runtime's lock held, and `runtime_families` the metrics from it. `Visits` are
tasks on their callers' own threads, which no lane knows of.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal
from weakref import WeakSet

import msgspec

from anygpu.agreement.mismatches import Mismatch
from anygpu.base.metric_families import Family, MetricKind, Sample, single
from anygpu.base.units import readable_bytes, readable_seconds
from anygpu.runtime.lanes import PLANNING, Job, Lane
from anygpu.runtime.task_queue import TaskQueue
from anygpu.workers.device_arrays.lineage import Loss
from anygpu.workers.device_arrays.registry import DeviceRegistry

# -- the health of a runtime as plain values: running and waiting tasks, tenants, and losses


# -- tasks that run on their callers' own threads, beside the lanes, while nothing else is open
#
# Two changes of thread take longer than all that is done for a task, and a caller who waits for one task has a thread
# to spare. Between any two steps the caller may be interrupted. So a visit is a part of its caller's frame and ends
# with it, in whichever way that is left; the scheduler has no other reference to it.


class Visit:
    """One such task."""

    __slots__ = ("__weakref__", "_tell_end", "began", "device", "predicted", "task")

    def __init__(self, task: str, device: str, predicted: float, tell_end: Callable[[], None]) -> None:
        """Notes that a caller's own thread begins a task now; `tell_end` is called once, when it has ended."""
        self.task = task
        self.device = device
        self.predicted = predicted
        self.began = time.monotonic()
        self._tell_end: Callable[[], None] | None = tell_end

    def end(self) -> None:
        """May be called twice."""
        tell, self._tell_end = self._tell_end, None
        if tell is not None:
            tell()

    def __del__(self) -> None:
        self.end()

    @property
    def is_open(self) -> bool:
        return self._tell_end is not None


class Visits:
    """The visits of one scheduler."""

    def __init__(self, tell_end: Callable[[], None]) -> None:
        self._tell_end = tell_end
        self._visits: WeakSet[Visit] = WeakSet()

    def begin(self, task: str, device: str, predicted: float) -> Visit:
        visit = Visit(task, device, predicted, self._tell_end)
        self._visits.add(visit)
        return visit

    def open(self) -> list[Visit]:
        return [visit for visit in list(self._visits) if visit.is_open]

    def __len__(self) -> int:
        return len(self.open()) if self._visits else 0


#: late: something that runs there takes much longer than it was predicted to.
Condition = Literal["idle", "busy", "late"]

#: A task is late when it exceeds the prediction by this factor, and this many seconds.
_LATE_FACTOR, _LATE_SECONDS = 10.0, 1.0


class LaneHealth(msgspec.Struct, frozen=True, kw_only=True):
    """One device."""

    device: str
    condition: Condition
    #: Names of what runs there, and since how many seconds the first of it has.
    running: tuple[str, ...] = ()
    seconds: float = 0.0
    #: Predicted for what waits for this device.
    backlog_seconds: float = 0.0
    done: int = 0
    failed: int = 0
    #: Launches of several tasks at once, and the tasks in them.
    batches: int = 0
    batched: int = 0
    busy_seconds: float = 0.0
    #: 1 for its first worker, one more for each that replaced a lost one; `None` when none is open.
    generation: int | None = None


class TenantHealth(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant."""

    tenant: str
    waiting: int
    bytes: int
    #: Device seconds that it has used.
    seconds: float


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of a runtime."""

    #: Whether it takes tasks, and no device is late.
    ok: bool
    #: `None` while it takes tasks, else "being drained" or "closed".
    closed: str | None
    waiting: int
    limit: int
    #: Tasks that are not done.
    open_tasks: int
    oldest_seconds: float | None
    lanes: tuple[LaneHealth, ...]
    tenants: tuple[TenantHealth, ...]
    #: The latest devices that were lost, and what was on them.
    losses: tuple[Loss, ...]
    #: The latest results of devices that disagreed with NumPy; the functions stay on NumPy.
    mismatches: tuple[Mismatch, ...] = ()

    @property
    def _state(self) -> str:
        """One or two words: "ok", or why not."""
        return "ok" if self.ok else self.closed or "late"

    def __str__(self) -> str:
        """One line for the queue, and one for each device, tenant, recent loss and recent mismatch."""
        lines = [f"{self._state}: {self.waiting} of at most {self.limit} tasks wait, {self.open_tasks} are open"]
        for lane in self.lanes:
            what = f"{lane.condition}, {lane.done} done, {lane.failed} failed"
            if lane.running:
                what += f", {lane.running[0]} since {readable_seconds(lane.seconds)}"
            lines.append(f"  {lane.device}: {what}")
        for tenant in self.tenants:
            used = f"{readable_seconds(tenant.seconds)} of device time, {readable_bytes(tenant.bytes)}"
            lines.append(f"  tenant {tenant.tenant}: {tenant.waiting} wait, {used}")
        lines += [f"  lost: {loss}" for loss in self.losses[-3:]]
        lines += [
            f"  wrong: {each.task} on {each.device}: {each.sentence}; {each.command}" for each in self.mismatches[-3:]
        ]
        return "\n".join(lines)


def health_of(
    lanes: Iterable[Lane],
    visits: Sequence[Visit],
    queue: TaskQueue[Job],
    places: DeviceRegistry,
    used: Mapping[str, float],
    *,
    closed: str | None,
    open_tasks: int,
    now: float,
    mismatches: tuple[Mismatch, ...] = (),
) -> Health:
    """Called with the runtime's lock held. `used` are the device seconds of each tenant."""
    each = lanes_of(lanes, visits, places, now)
    tenants = dict.fromkeys((*used, *(job.tenant for job in queue)))
    return Health(
        ok=closed is None and all(lane.condition != "late" for lane in each),
        closed=closed,
        waiting=len(queue),
        limit=queue.most,
        open_tasks=open_tasks,
        oldest_seconds=queue.oldest(now),
        lanes=each,
        tenants=tuple(
            TenantHealth(
                tenant=name, waiting=queue.waiting(name), bytes=queue.bytes_of(name), seconds=used.get(name, 0.0)
            )
            for name in tenants
        ),
        losses=tuple(places.losses()),
        mismatches=mismatches,
    )


def lanes_of(
    lanes: Iterable[Lane], visits: Sequence[Visit], places: DeviceRegistry, now: float
) -> tuple[LaneHealth, ...]:
    """The devices. Called with the runtime's lock held."""
    return tuple(_lane(lane, visits, places, now) for lane in lanes if lane.name != PLANNING)


def _lane(lane: Lane, visits: Sequence[Visit], places: DeviceRegistry, now: float) -> LaneHealth:
    """Returns the health of one lane: idle, busy or late, its running tasks, and how long the oldest has run.

    A task is late when it takes many times its prediction, and not just a moment. Visits to the device count as its
    tasks.
    """
    condition: Condition = "idle"
    running: list[str] = []
    seconds = 0.0
    there = [visit for visit in visits if visit.device == lane.name]
    open_now = [
        ([job.name for job in jobs[:4]], sum(job.seconds for job in jobs), began)
        for jobs, began in list(lane.running.values())
    ]
    open_now += [([visit.task], visit.predicted, visit.began) for visit in there]
    for names, predicted, began in open_now:
        elapsed = now - began
        running += names
        seconds = max(seconds, elapsed)
        late = elapsed > max(_LATE_SECONDS, _LATE_FACTOR * predicted)
        condition = "late" if late or condition == "late" else "busy"
    return LaneHealth(
        device=lane.name,
        condition=condition,
        running=tuple(running),
        seconds=seconds,
        backlog_seconds=lane.backlog,
        done=lane.done,
        failed=lane.failed,
        batches=lane.batches,
        batched=lane.batched,
        busy_seconds=lane.busy_seconds,
        generation=places.generation(lane.name),
    )


# -- the health of a runtime as metrics: its queue, its devices and its tenants


#: Metrics of each device: name, kind, help, and how it is read.
_LANES: tuple[tuple[str, MetricKind, str, Callable[[LaneHealth], float]], ...] = (
    ("anygpu_batches_total", "counter", "Launches of several tasks at once.", lambda lane: lane.batches),
    ("anygpu_batched_tasks_total", "counter", "Tasks in such launches.", lambda lane: lane.batched),
    ("anygpu_device_busy_seconds_total", "counter", "Time in use.", lambda lane: lane.busy_seconds),
    ("anygpu_device_backlog_seconds", "gauge", "Predicted for what waits.", lambda lane: lane.backlog_seconds),
    ("anygpu_device_late", "gauge", "1 if far slower than predicted.", lambda lane: lane.condition == "late"),
    ("anygpu_device_generation", "gauge", "Workers so far.", lambda lane: lane.generation or 0),
)


def runtime_families(health: Health) -> Iterator[Family]:
    """All metrics of a runtime."""
    yield single("anygpu_queue_tasks", "gauge", "Tasks that wait for a device.", health.waiting)
    yield single("anygpu_queue_limit", "gauge", "Tasks that may wait.", health.limit)
    yield single("anygpu_queue_oldest_seconds", "gauge", "Age of the oldest task.", health.oldest_seconds or 0.0)
    lanes = health.lanes
    outcomes = [
        Sample(count, {"device": lane.device, "outcome": outcome})
        for lane in lanes
        for outcome, count in (("done", lane.done), ("failed", lane.failed))
    ]
    yield Family("anygpu_device_tasks_total", "counter", "Tasks by device and outcome.", outcomes)
    for name, kind, text, value in _LANES:
        yield _by_device(name, kind, text, {lane.device: value(lane) for lane in lanes})
    none = {lane.device: 0 for lane in lanes}
    losses = dict(none)
    for loss in health.losses:
        # Workers of a device are numbered, so that the count is right however many losses are forgotten.
        losses[loss.device] = max(losses.get(loss.device, 0), loss.generation)
    yield _by_device("anygpu_device_losses_total", "counter", "Workers that died and were replaced.", losses)
    mismatches = none | Counter(mismatch.device for mismatch in health.mismatches)
    text = "Latest results that were not NumPy's; their functions left."
    yield _by_device("anygpu_device_mismatches", "gauge", text, mismatches)
    tenants = [Sample(each.seconds, {"tenant": each.tenant}) for each in health.tenants]
    yield Family("anygpu_tenant_seconds_total", "counter", "Device time of each tenant.", tenants)


def _by_device(name: str, kind: MetricKind, text: str, values: Mapping[str, float]) -> Family:
    return Family(name, kind, text, [Sample(value, {"device": device}) for device, value in values.items()])
