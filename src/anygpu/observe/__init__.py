"""What is going on in this process: statistics, metrics, traces, and a look from outside. It decides nothing.

Nothing here runs unless it is asked for: `start()`, `ANYGPU_OBSERVE=1`, or one of the commands.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from anygpu.errors import InvalidOption
from anygpu.metric_families import Family, sources, to_text
from anygpu.observe.observation import Observation
from anygpu.observe.statistics import Summary
from anygpu.receipts import observers

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from anygpu.observe.metrics import ObservedMetrics
    from anygpu.observe.metrics_server import MetricsServer
    from anygpu.observe.open_telemetry import Telemetry
    from anygpu.observe.prometheus import ObservedCollector

_current: Observation | None = None
_starting = threading.Lock()


def start() -> Observation:
    """Observe this process from now on. A second call changes nothing."""
    global _current
    with _starting:
        if _current is None:
            _current = Observation()
            observers.append(_current)
            sources.append(_server_families)
        return _current


def stop() -> None:
    """Observe it no longer, and forget what was seen."""
    global _current
    with _starting:
        if _current is not None:
            observers.remove(_current)
            sources.remove(_server_families)
            _current = None


def statistics() -> Summary:
    """What calls have taken since `start()`, by function and device."""
    current = _current
    return Summary(seconds=0.0, calls=(), observed=False) if current is None else current.summary()


def serve_metrics(port: int) -> MetricsServer:
    """Serve metrics to Prometheus at http://127.0.0.1:port/metrics, in a thread, until the returned server is closed.

    The process is observed from now on. 0 is any port that is free; the server's `port` says which.
    """
    from anygpu.observe.metrics import ObservedMetrics, default_health, own_families
    from anygpu.observe.metrics_server import MetricsServer

    metrics = ObservedMetrics(_find, health=default_health)
    server = MetricsServer(lambda: to_text([*metrics.families(), *own_families()]), port)
    start()
    return server


def prometheus_collector(*, buckets: Sequence[float] | None = None) -> ObservedCollector:
    """A collector for a registry of `prometheus_client`, for programs that have an endpoint already.

    The process is observed from now on. `buckets` are the upper bounds of the histogram, in seconds. Needs the extra
    `observe`.
    """
    from anygpu.observe.metrics import BUCKETS, ObservedMetrics, check_buckets, default_health
    from anygpu.observe.prometheus import ObservedCollector

    bounds = BUCKETS if buckets is None else check_buckets(buckets)
    collector = ObservedCollector(ObservedMetrics(_find, buckets=bounds, health=default_health))
    start()
    return collector


def telemetry(
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    phases: bool = True,
    longer_than: float = 0.0,
) -> Telemetry:
    """Make OpenTelemetry's spans and metrics of all calls, until the returned context manager is closed.

    A call is a span inside the one that is current where it was called or submitted, and its phases are spans inside of
    it unless `phases` is false; calls that are not `longer_than` so many seconds have no span. Providers are the global
    ones by default. The process is observed from now on. Needs the extra `observe`.
    """
    from anygpu.observe.open_telemetry import Telemetry

    if not longer_than >= 0:
        raise InvalidOption(f"longer_than is a number of seconds, at least 0; got {longer_than!r}.")
    start()
    return Telemetry(
        statistics,
        tracer_provider=tracer_provider,
        meter_provider=meter_provider,
        phases=phases,
        longer_than=longer_than,
    )


def _find() -> Observation | None:
    return _current


_of_servers: ObservedMetrics | None = None


def _server_families() -> Iterable[Family]:
    """What a model server of this process shows beside its own metrics, which has its runtime's."""
    global _of_servers
    if _of_servers is None:
        from anygpu.observe.metrics import ObservedMetrics

        _of_servers = ObservedMetrics(_find)
    return _of_servers.families()
