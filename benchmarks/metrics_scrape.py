"""Whether Prometheus sees what receipts say: `python -m benchmarks.metrics_scrape [--seconds 60] [--json] [--check]`.

A service of several functions, some of which fail, works for a minute: quiet calls, tasks of a runtime, and calls on a
device. A real Prometheus scrapes it every second. Then its sums are compared with those of all receipts, which are
added up here without the statistics. What a scrape takes with 200 functions on 5 devices is measured too.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import anygpu as ag
from anygpu import observe
from anygpu.base import events
from anygpu.base.metric_families import to_text
from anygpu.observe.metrics import BUCKETS, call_families
from anygpu.observe.statistics import RunningStatistics, batches
from anygpu.receipts.notes import Failure, Origin, Seen
from anygpu.receipts.receipt import Phases, Receipt
from benchmarks.prometheus_process import Prometheus, prometheus
from benchmarks.report import Figure, options_parser, publish

#: Sums that Prometheus has, and receipts; relative difference that rounding may make.
ROUNDING = 1e-9
_PHASES = ("trace", "plan", "compile", "queue", "write", "run", "read", "other")


class Sums(NamedTuple):
    """Of all calls, by the labels that Prometheus has."""

    calls: dict[tuple[str, str], float]
    seconds: dict[tuple[str, str], float]
    phases: dict[str, float]
    errors: dict[str, float]
    bytes: dict[str, float]


class Adder:
    """Adds up receipts, independently of the statistics."""

    def __init__(self) -> None:
        self.sums = Sums(*(defaultdict(float) for _ in Sums._fields))
        self._adding = threading.Lock()

    def __call__(self, seen: Seen, origin: Origin | None) -> None:
        with self._adding:
            self._add(seen)

    def _add(self, seen: Seen) -> None:
        sums = self.sums
        if isinstance(seen, Receipt):
            key, seconds = (seen.task, seen.device), seen.seconds
            for name in _PHASES:
                sums.phases[name] += getattr(seen.phases, name)
            sums.bytes["to_device"] += seen.bytes_to_device
            sums.bytes["to_host"] += seen.bytes_to_host
        elif isinstance(seen, Failure):
            key, seconds = (seen.task, seen.device), seen.end - seen.begin
            sums.phases["run"] += seconds
            sums.errors[seen.error] += 1
        else:
            said, begin, ready, end = seen
            key, seconds = (said.task, "numpy"), end - begin
            sums.phases["plan"] += ready - begin
            sums.phases["run"] += end - ready
        sums.calls[key] += 1
        sums.seconds[key] += seconds


@ag.offload
def quiet(x: Any) -> Any:
    return x + 1


@ag.offload
def fails(x: Any) -> Any:
    raise ArithmeticError("as it should")


def smooth(x: Any) -> Any:
    return (x[1:] + x[:-1]) / 2


@contextmanager
def counted() -> Iterator[Adder]:
    adder = Adder()
    events.calls.append(adder)
    try:
        yield adder
    finally:
        events.calls.remove(adder)


def work(over: threading.Event, device: str) -> None:
    """What the service does until it is over: pauses keep it below a core."""
    small, large = np.ones(64), np.ones((512, 512), np.float32)
    while True:
        for _ in range(50):
            quiet(small)
        with suppress(ArithmeticError):
            fails(small)
        tasks = [ag.submit(smooth, small) for _ in range(10)]
        ag.run(smooth, large, on=device, fallback="raise", check="off")
        for task in tasks:
            task.result()
        if over.wait(0.01):
            return


class Compared(NamedTuple):
    calls: int
    scrapes: int
    failed_scrapes: int
    #: The largest relative difference of a sum.
    difference: float
    longest_scrape: float
    scraped: int


def compare(folder: Path, seconds: float, interval: str = "1s", device: str = "opencl") -> Compared:
    """Works for so many seconds, and compares the sums of Prometheus with those of receipts."""
    # The first look at the machine's devices takes seconds.
    ag.run(smooth, np.ones(8), on=device)
    observe.stop()
    with counted() as adder, observe.serve_metrics(0) as server:
        over = threading.Event()
        threads = [threading.Thread(target=work, args=(over, device)) for _ in range(2)]
        with prometheus(folder, [server.port], interval=interval) as there:
            if not there.wait_until("up", 1.0):
                raise RuntimeError("Prometheus has scraped nothing")
            began = time.time()
            for thread in threads:
                thread.start()
            over.wait(seconds)
            over.set()
            for thread in threads:
                thread.join()
            sums = adder.sums
            total = sum(sums.calls.values())
            if not there.wait_until("sum(anygpu_calls_total)", total):
                raise RuntimeError(f"{there.value('sum(anygpu_calls_total)')} calls were scraped, and {total} made")
            window = f"[{int(time.time() - began) + 1}s]"
            ups = there.value(f"count_over_time(up{window})") or 0.0
            good = there.value(f"sum_over_time(up{window})") or 0.0
            return Compared(
                calls=int(total),
                scrapes=int(ups),
                failed_scrapes=int(ups - good),
                difference=_difference(sums, there),
                longest_scrape=there.value(f"max_over_time(scrape_duration_seconds{window})") or 0.0,
                scraped=int(there.value("scrape_samples_scraped") or 0),
            )


def _difference(sums: Sums, there: Prometheus) -> float:
    """The largest. What Prometheus knows is nothing for a moment if the last scrape has failed: it is asked again."""
    found = 0.0
    for _ in range(5):
        found = max(_differences(sums, there))
        if found < 1e-9 or not there.wait_until("up", 1.0):
            break
    return found


def _differences(sums: Sums, there: Prometheus) -> Iterable[float]:
    calls = there.values("sum by (function, device) (anygpu_calls_total)")
    yield from _compared(sums.calls, calls, ("function", "device"))
    seconds = there.values("sum by (function, device) (anygpu_call_seconds_sum)")
    yield from _compared(sums.seconds, seconds, ("function", "device"))
    yield from _compared(sums.calls, there.values("anygpu_call_seconds_count"), ("function", "device"))
    infinite = there.values('anygpu_call_seconds_bucket{le="+Inf"}')
    yield from _compared(sums.calls, infinite, ("function", "device"))
    for known, name, label in (
        (sums.phases, "anygpu_call_phase_seconds_total", "phase"),
        (sums.errors, "anygpu_errors_by_class_total", "error"),
        (sums.bytes, "anygpu_bytes_total", "direction"),
    ):
        found = there.values(f"sum by ({label}) ({name})")
        yield from _compared({(key,): value for key, value in known.items()}, found, (label,))
    errors = there.value("sum(anygpu_errors_total)") or 0.0
    yield abs(errors - sum(sums.errors.values()))


def _compared(
    known: dict[Any, float], found: dict[tuple[tuple[str, str], ...], float], labels: tuple[str, ...]
) -> Iterable[float]:
    by_labels = {tuple(dict(key)[label] for label in labels): value for key, value in found.items()}
    for key, value in known.items():
        if value:
            yield abs(by_labels.pop(key, 0.0) - value) / value
    # What nobody has counted here is a difference as well.
    yield from (value for key, value in by_labels.items() if not known.get(key))


def full(functions: int = 200, devices: int = 5, calls: int = 60) -> RunningStatistics:
    """Statistics of a program that is as large as its labels may be."""
    random = np.random.default_rng(0)
    statistics = RunningStatistics(0.0)
    for number in range(functions):
        for device in range(devices):
            seen: list[tuple[Receipt | Failure, float]] = []
            for seconds in random.lognormal(-6, 1, calls):
                receipt = Receipt(
                    task=f"function_{number}",
                    device=f"webgpu:{device}",
                    kind="gpu",
                    reason="",
                    phases=Phases(plan=seconds / 20, write=seconds / 5, run=seconds * 0.7, read=seconds / 20),
                    device_seconds=0.0,
                    peak_bytes=0,
                    kernels=1,
                    predicted_seconds=float(seconds),
                )
                seen.append((receipt, float(random.uniform(0, 300))))
            statistics.add(batches((), seen))
    return statistics


def scrape_seconds(statistics: RunningStatistics, repetitions: int = 7) -> tuple[float, int]:
    """The median processor time to collect and write all series, and the bytes."""
    times, text = [], ""
    for _ in range(repetitions):
        begin = time.thread_time()
        text = to_text(call_families(statistics.summary(300.0), statistics.histograms(BUCKETS)))
        times.append(time.thread_time() - begin)
    return float(np.median(times)), len(text.encode())


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compared = compare(Path(folder), options.seconds)
    collect, size = scrape_seconds(full())
    figures = [
        Figure(name="calls", value=compared.calls, unit=""),
        Figure(name="scrapes", value=compared.scrapes, unit=""),
        Figure(name="scrapes that failed", value=compared.failed_scrapes, unit="", bound=0.5),
        Figure(name="largest difference of a sum", value=compared.difference, unit="", bound=ROUNDING),
        Figure(name="longest scrape", value=compared.longest_scrape * 1e3, unit="ms"),
        Figure(name="samples of a scrape", value=compared.scraped, unit=""),
        Figure(name="200 functions on 5 devices: collecting", value=collect * 1e3, unit="ms", bound=1000.0),
        Figure(name="200 functions on 5 devices: text", value=size / 1e6, unit="MB"),
    ]
    publish(figures, options)


if __name__ == "__main__":
    main()
