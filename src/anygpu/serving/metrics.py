"""What was served, as Prometheus reads it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from anygpu.runtime.health import Health

#: Upper bounds of the latency histogram, in seconds.
BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

#: The weight of the newest time between two responses in their average.
_NEWEST = 0.05


class _Histogram:
    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds


class Metrics:
    """Counts of one server, kept by its event loop."""

    def __init__(self) -> None:
        #: Requests that are open.
        self.open = 0
        self._requests: dict[tuple[str, str, int], int] = {}
        self._seconds: dict[str, _Histogram] = {}
        self._bytes_in = 0
        self._bytes_out = 0
        self._last_answer: float | None = None
        self._between = 0.0

    def answered(self, model: str, tenant: str, status: int, began: float, now: float) -> None:
        """One inference request has its response."""
        key = (model, tenant, status)
        self._requests[key] = self._requests.get(key, 0) + 1
        if status != 200:
            return
        histogram = self._seconds.get(model)
        if histogram is None:
            histogram = self._seconds[model] = _Histogram()
        histogram.add(now - began)
        if self._last_answer is not None:
            self._between += _NEWEST * (now - self._last_answer - self._between)
        self._last_answer = now

    def moved(self, received: int, sent: int) -> None:
        self._bytes_in += received
        self._bytes_out += sent

    def retry_seconds(self, waiting: int) -> float:
        """About how long half of what waits now will take, within a minute."""
        return min(60.0, max(1.0, waiting * self._between / 2))

    def to_text(self, health: Health, held_bytes: int, *, ready: bool) -> str:
        return "".join(self._lines(health, held_bytes, ready))

    def _lines(self, health: Health, held_bytes: int, ready: bool) -> Iterator[str]:
        yield from _family(
            "anygpu_requests_total",
            "counter",
            "Inference requests by model, tenant and status.",
            (
                (_labels(model=model, tenant=tenant, status=str(status)), count)
                for (model, tenant, status), count in self._requests.items()
            ),
        )
        yield from _heading("anygpu_request_seconds", "histogram", "Time from request to response, for status 200.")
        for model, histogram in self._seconds.items():
            below = 0
            for bound, count in zip((*map(str, BUCKETS), "+Inf"), histogram.counts, strict=True):
                below += count
                yield f"anygpu_request_seconds_bucket{_labels(model=model, le=bound)} {below}\n"
            yield f"anygpu_request_seconds_sum{_labels(model=model)} {histogram.total!r}\n"
            yield f"anygpu_request_seconds_count{_labels(model=model)} {below}\n"
        for name, kind, text, value in (
            (
                "anygpu_ready",
                "gauge",
                "1 while the server takes requests, 0 while it drains or a device is late.",
                ready,
            ),
            ("anygpu_requests_open", "gauge", "Requests without a response yet.", self.open),
            ("anygpu_request_bytes_total", "counter", "Bytes of requests' bodies.", self._bytes_in),
            ("anygpu_response_bytes_total", "counter", "Bytes of responses' bodies.", self._bytes_out),
            ("anygpu_held_bytes", "gauge", "Bytes of the bodies that are held.", held_bytes),
            ("anygpu_queue_tasks", "gauge", "Tasks that wait for a device.", health.waiting),
            ("anygpu_queue_limit", "gauge", "Tasks that may wait.", health.limit),
            ("anygpu_queue_oldest_seconds", "gauge", "Age of the oldest task.", health.oldest_seconds or 0.0),
        ):
            yield from _family(name, kind, text, [("", float(value) if kind == "gauge" else value)])
        yield from self._devices(health)
        yield from _family(
            "anygpu_tenant_seconds_total",
            "counter",
            "Device time of each tenant.",
            ((_labels(tenant=each.tenant), each.seconds) for each in health.tenants),
        )

    def _devices(self, health: Health) -> Iterator[str]:
        lanes = health.lanes
        yield from _family(
            "anygpu_device_tasks_total",
            "counter",
            "Tasks by device and outcome.",
            (
                (_labels(device=lane.device, outcome=outcome), count)
                for lane in lanes
                for outcome, count in (("done", lane.done), ("failed", lane.failed))
            ),
        )
        for name, kind, text, values in (
            ("anygpu_batches_total", "counter", "Launches of several tasks at once.", [lane.batches for lane in lanes]),
            ("anygpu_batched_tasks_total", "counter", "Tasks in such launches.", [lane.batched for lane in lanes]),
            ("anygpu_device_busy_seconds_total", "counter", "Time in use.", [lane.busy_seconds for lane in lanes]),
            ("anygpu_device_backlog_seconds", "gauge", "Predicted.", [lane.backlog_seconds for lane in lanes]),
            (
                "anygpu_device_late",
                "gauge",
                "1 if far slower than predicted.",
                [lane.condition == "late" for lane in lanes],
            ),
            ("anygpu_device_generation", "gauge", "Workers so far.", [lane.generation or 0 for lane in lanes]),
        ):
            labelled = zip((_labels(device=lane.device) for lane in lanes), map(float, values), strict=True)
            yield from _family(name, kind, text, labelled)


def _heading(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def _family(name: str, kind: str, text: str, values: Iterable[tuple[str, float]]) -> Iterator[str]:
    yield from _heading(name, kind, text)
    for labels, value in values:
        yield f"{name}{labels} {value!r}\n"


def _labels(**labels: str) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
