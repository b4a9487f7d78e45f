"""What the dashboard costs: `python -m benchmarks.dashboard [--rate 500] [--seconds 10] [--json] [--check]`.

Four observed processes make so many calls a second each. `anygpu dashboard` follows them, with one browser that
asks: its share of a core, how long the page and a file take, and how long from a choice in the page to the new data.
Then processes are killed, and it goes on.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from anygpu.observe.sockets import VARIABLE
from benchmarks.report import Figure, options_parser, publish, say
from benchmarks.top import PROCESSES, found, loaded, processor_seconds

MOST_SECONDS, MOST_SHARE = 0.2, 0.10


@contextlib.contextmanager
def dashboard(environment: dict[str, str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "anygpu", "dashboard"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().split()[0]
    finally:
        process.terminate()
        process.wait()


def get(url: str) -> tuple[float, str]:
    parts = urlsplit(url)
    begin = time.perf_counter()
    connection = http.client.HTTPConnection(parts.netloc, timeout=60)
    connection.request("GET", f"{parts.path}?{parts.query}")
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    if answer.status != 200:
        raise RuntimeError(f"{url} was answered with {answer.status}")
    return time.perf_counter() - begin, text


class Browser:
    """What the page does, without drawing: it asks for the columns of its tab, twice a second."""

    def __init__(self, url: str) -> None:
        self._url, self._tab = url, "overview"

    def ask(self) -> tuple[float, int]:
        """The seconds until the columns are there, and how many bytes they have."""
        seconds, text = get(f"{self._url}columns.json?tab={self._tab}")
        return seconds, len(text)

    def read(self, seconds: float) -> int:
        """Ask for so long; returns how many bytes came."""
        count, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            took, size = self.ask()
            count += size
            time.sleep(max(0.0, 0.5 - took))
        return count

    def choose(self, tab: str) -> float:
        """The seconds until the columns of the tab are there."""
        self._tab = tab
        return self.ask()[0]


def measure(url: str, pid: int, seconds: float, add: Any) -> None:
    pages = [get(url)[0] for _ in range(10)]
    add("the page, middle", statistics.median(pages) * 1e3, "ms", MOST_SECONDS * 1e3)
    add("the page, longest of 10", max(pages) * 1e3, "ms")
    browser = Browser(url)
    browser.read(5.0)
    for tab in ("overview", "devices", "queue", "predictions", "problems"):
        browser.choose(tab)
        used, begin = processor_seconds(pid), time.monotonic()
        count = browser.read(seconds)
        elapsed = time.monotonic() - begin
        share = (processor_seconds(pid) - used) / elapsed
        add(f"share of a core, {tab}", share * 100, "%", MOST_SHARE * 100)
        add(f"sent, {tab}", count / elapsed / 1024, "KiB/s", None)
    chosen = [browser.choose(tab) for _ in range(5) for tab in ("devices", "overview", "predictions")]
    add("from a choice to its data, middle", statistics.median(chosen) * 1e3, "ms")
    add("from a choice to its data, longest of 15", max(chosen) * 1e3, "ms", MOST_SECONDS * 1e3)


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--rate", type=float, default=500.0, help="calls of each process in a second")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long the share of a core is measured")
    options = parser.parse_args()
    figures: list[Figure] = []

    def add(name: str, value: float, unit: str, bound: float | None = None) -> None:
        figures.append(Figure(name=name, value=value, unit=unit, bound=bound))

    with tempfile.TemporaryDirectory(prefix="anygpu-dashboard-") as folder, contextlib.ExitStack() as opened:
        os.environ[VARIABLE] = folder
        environment = dict(os.environ, ANYGPU_TUNING_SECONDS="0")
        load = opened.enter_context(loaded(options.rate, environment))
        found(PROCESSES)
        process, url = opened.enter_context(dashboard(environment))
        say(f"{PROCESSES} processes with {options.rate:g} calls/s each")
        measure(url, process.pid, options.seconds, add)
        for each in load:
            each.kill()
        get(url)
        if process.poll() is not None:
            raise RuntimeError(f"the dashboard has ended with {process.returncode}")
    publish(figures, options)


if __name__ == "__main__":
    main()
