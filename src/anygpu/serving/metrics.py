"""Counts and latencies of requests, as Prometheus reads them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from anygpu.base import events
from anygpu.base.metric_families import Family, Sample, histogram_samples, single, to_text
from anygpu.runtime.health import Health, runtime_families

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

    def up_to(self) -> list[int]:
        """The counts up to each bound, and of all."""
        return [*accumulate(self.counts)]


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
        """Metrics of the server and its runtime, and of the calls of the whole process if it is observed."""
        families = [*self._families(held_bytes, ready), *runtime_families(health)]
        return to_text([*families, *(each for scrape in events.scrapes for each in scrape())])

    def _families(self, held_bytes: int, ready: bool) -> Iterator[Family]:
        yield Family(
            "anygpu_requests_total",
            "counter",
            "Inference requests by model, tenant and status.",
            [
                Sample(count, {"model": model, "tenant": tenant, "status": str(status)})
                for (model, tenant, status), count in self._requests.items()
            ],
        )
        yield Family(
            "anygpu_request_seconds",
            "histogram",
            "Time from request to response, for status 200.",
            [
                sample
                for model, histogram in self._seconds.items()
                for sample in histogram_samples({"model": model}, BUCKETS, histogram.up_to(), histogram.total)
            ],
        )
        yield single("anygpu_ready", "gauge", "1 while the server takes requests, 0 while it drains or is late.", ready)
        yield single("anygpu_requests_open", "gauge", "Requests without a response yet.", self.open)
        yield single("anygpu_request_bytes_total", "counter", "Bytes of requests' bodies.", self._bytes_in)
        yield single("anygpu_response_bytes_total", "counter", "Bytes of responses' bodies.", self._bytes_out)
        yield single("anygpu_held_bytes", "gauge", "Bytes of the bodies that are held.", held_bytes)
