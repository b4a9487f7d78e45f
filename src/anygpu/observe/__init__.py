"""Observes this process: statistics, metrics, traces, and answers to `anygpu top` and the dashboard.

Nothing here runs unless it is asked for: `start()`, `ANYGPU_OBSERVE=1`, or one of the commands.

The public functions come first; what they share is one `Observation` of the process, held in this module's variables
and guarded by `_starting`. A forked child begins an observation of its own with its first call.
"""

from __future__ import annotations

import atexit
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from anygpu.base import events
from anygpu.base.forks import lock
from anygpu.base.metric_families import Family, to_text
from anygpu.errors import AnyGPUError, InvalidOption
from anygpu.observe.observation import Describing, Observation, Sampler
from anygpu.observe.servers import Answering
from anygpu.observe.snapshot import Advice, Anomaly
from anygpu.observe.statistics import Summary
from anygpu.receipts.notes import Origin, Seen
from anygpu.receipts.receipt import host_operations as host_operations
from anygpu.workers.child_start import WORKER_ARGUMENT, is_frozen

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from anygpu.observe.advising.advisor import Advisor
    from anygpu.observe.metrics import ObservedCollector, ObservedMetrics
    from anygpu.observe.open_telemetry import Telemetry
    from anygpu.observe.recording import Recording
    from anygpu.observe.servers import MetricsServer


_current: Observation | None = None
_sampler: Sampler | None = None
_answering: Answering | None = None
_advisor: Advisor | None = None
_told: Callable[[Anomaly], object] | None = None
_starting = lock()


def start(*, on_anomaly: Callable[[Anomaly], object] | None = None, advice: bool = False) -> None:
    """Observe this process from now on, and answer those of this user who ask. A second call changes nothing.

    What is not as it was, such as a function that became slower, is logged as a warning of "anygpu.observe"; a callback
    is called with it, on a thread of its own. With `advice=True` calls and arrays are also looked at line by line: this
    takes as long as copying what goes to devices; `advice()` says what was found.
    """
    global _told, _advisor
    with _starting:
        if _current is None:
            _told = on_anomaly
            events.calls.append(_begin())
            if _server_families not in events.scrapes:
                events.scrapes.append(_server_families)
        if advice and _advisor is None:
            from anygpu.observe.advising.advisor import Advisor

            _advisor = Advisor()
            _advisor.start()


def stop() -> None:
    """Observe it no longer, and forget what was seen.

    Removes the observation from the listeners of calls, then ends its threads and its socket. Calls that are running
    are not waited for. Does nothing when the process is not observed.
    """
    global _current, _sampler, _answering, _advisor
    with _starting:
        if _current is not None:
            events.calls.remove(_current)
            if _server_families in events.scrapes:
                events.scrapes.remove(_server_families)
        if _advisor is not None:
            _advisor.stop()
        sampler, answering = _sampler, _answering
        _current = _sampler = _answering = _advisor = None
    if sampler is not None:
        sampler.close()
    if answering is not None:
        answering.close()


def summary() -> Summary:
    """Statistics of calls since `start()`, by function and device.

    Without an observation the summary is empty and has `observed=False`. The buffered calls are folded in first, so a
    call that has returned is counted.
    """
    current = _current
    return Summary(seconds=0.0, calls=(), observed=False) if current is None else current.summary()


def advice() -> list[Advice]:
    """Changes that would save time, the most expensive first; needs `start(advice=True)` before the calls."""
    advisor = _advisor
    return [] if advisor is None else advisor.advice()


def trace(path: str | os.PathLike[str], *, limit: int | str = "100MB") -> Recording:
    """Record the calls inside of a `with` block to a file that ui.perfetto.dev and chrome://tracing open.

    The file is at most as large as `limit`; what finds no room is counted, and said at the end. It is written when the
    block ends, also if that raises.
    """
    from anygpu.observe.recording import Recording

    return Recording(path, limit)


def serve_metrics(port: int) -> MetricsServer:
    """Serve metrics to Prometheus at http://127.0.0.1:port/metrics, in a thread, until the returned server is closed.

    The process is observed from now on. 0 is any port that is free; the server's `port` says which.
    """
    from anygpu.observe.metrics import ObservedMetrics, default_health, own_families
    from anygpu.observe.servers import MetricsServer

    metrics = ObservedMetrics(_find, health=default_health)
    server = MetricsServer(lambda: to_text([*metrics.families(), *own_families()]), port)
    start()
    return server


def prometheus_collector(*, buckets: Sequence[float] | None = None) -> ObservedCollector:
    """A collector for a registry of `prometheus_client`, for programs that have an endpoint already.

    The process is observed from now on. `buckets` are the upper bounds of the histogram, in seconds. Needs the extra
    `observe`.
    """
    from anygpu.observe.metrics import BUCKETS, ObservedCollector, ObservedMetrics, check_buckets, default_health

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
        summary,
        tracer_provider=tracer_provider,
        meter_provider=meter_provider,
        phases=phases,
        longer_than=longer_than,
    )


def _find() -> Observation | None:
    """The observation at this moment, for readers of metrics that outlive `stop()` and another `start()`."""
    return _current


_of_servers: ObservedMetrics | None = None


def _server_families() -> Iterable[Family]:
    """Metrics of calls, which a model server of this process shows beside its own and its runtime's.

    One `ObservedMetrics` serves all of them and is kept, because loads of devices are measured from one scrape to the
    next.
    """
    global _of_servers
    if _of_servers is None:
        from anygpu.observe.metrics import ObservedMetrics

        _of_servers = ObservedMetrics(_find)
    return _of_servers.families()


def _begin() -> Observation:
    """Creates the observation, its sampler and its socket, and returns it; the caller lets it see calls.

    The caller holds `_starting`.
    """
    global _current, _sampler
    _current = Observation()
    describing = Describing(_current, advice)
    _sampler = Sampler(_current, describing.sample, _told)
    _answer(describing)
    return _current


def _answer(describing: Describing) -> None:
    """Opens the socket for `anygpu top`.

    A failure becomes a `RuntimeWarning`, and the process is observed without it: nothing that is wrong with the folder
    keeps a process from its work.
    """
    global _answering
    try:
        _answering = Answering(describing.take)
    except (AnyGPUError, OSError, RuntimeError) as error:
        warnings.warn(f"anygpu top cannot look at this process: {error}", RuntimeWarning, stacklevel=4)


def _end() -> None:
    """Removes the socket's file when the interpreter exits."""
    if _answering is not None:
        _answering.close()


def _start_in_child(seen: Seen, origin: Origin | None) -> None:
    """The listener of calls in a forked child until its first call, which starts an observation of the child's own.

    It takes its own place in `events.calls`, and passes that first call on. Nothing happens if `stop()` came before.
    """
    with _starting:
        if _start_in_child not in events.calls:
            return
        begun = _begin()
        events.calls[events.calls.index(_start_in_child)] = begun
    begun(seen, origin)


def _forked() -> None:
    """Release the parent's observation, threads and socket; called in a forked child."""
    global _current, _sampler, _answering
    answering, _answering, _sampler = _answering, None, None
    if answering is not None:
        answering.close()
    if _current is not None and _current in events.calls:
        events.calls[events.calls.index(_current)] = _start_in_child
    _current = None


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


VARIABLE = "ANYGPU_OBSERVE"
_NO = ("", "0", "off", "no", "false")


def observe_if_asked() -> None:
    """Calls `start()` if `ANYGPU_OBSERVE` is set to anything but "", 0, off, no or false.

    Workers of a frozen application inherit the variable and are not observed; other workers are started without it.
    """
    if os.environ.get(VARIABLE, "").strip().lower() in _NO:
        return
    if not (is_frozen() and sys.argv[1:2] == [WORKER_ARGUMENT]):
        start()
