"""The health of a runtime as metrics: its queue, its devices and its tenants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from anygpu.base.metric_families import Family, MetricKind, Sample, single
from anygpu.runtime.health import Health, LaneHealth

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
