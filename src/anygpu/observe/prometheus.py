"""A collector for any registry of Prometheus' Python client, for programs that have such an endpoint already."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from anygpu.base.metric_families import Family, visible
from anygpu.errors import MissingExtra
from anygpu.observe.metrics import ObservedMetrics

try:
    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector
except ModuleNotFoundError as error:
    raise MissingExtra("prometheus-client", "observe") from error


class ObservedCollector(Collector):
    """Shows the calls of this process and its devices: `prometheus_client.REGISTRY.register(collector)`."""

    def __init__(self, metrics: ObservedMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return _converted(self._metrics.families())

    def describe(self) -> Iterable[Metric]:
        """The registry asks which names are taken."""
        return _converted([family._replace(samples=[]) for family in self._metrics.families()])


def _converted(families: Iterable[Family]) -> Iterator[Metric]:
    for name, kind, text, samples in families:
        # The client adds the suffix of counters by itself.
        metric = Metric(name.removesuffix("_total") if kind == "counter" else name, text, kind)
        for value, labels, suffix in samples:
            metric.add_sample(name + suffix, {key: visible(each) for key, each in labels.items()}, value)
        yield metric
