"""A real Prometheus, in a folder of its own, that scrapes programs of this machine."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: Seconds until it answers, and until a new scrape is there.
PATIENCE = 120.0

_CONFIGURATION = """
global: {{scrape_interval: {interval}, scrape_timeout: {interval}}}
rule_files: {rules}
scrape_configs:
  - job_name: anygpu
    static_configs: [{{targets: {targets}}}]
"""


def program(name: str) -> str:
    """`prometheus` or `promtool`: `scripts/setup` puts them beside Python."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name} is not installed: run scripts/setup, or install Prometheus.")
    return found


class Prometheus:
    """Answers queries."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def ask(self, path: str, **parameters: str) -> Any:
        with urllib.request.urlopen(
            f"{self.url}{path}?{urllib.parse.urlencode(parameters)}", timeout=PATIENCE
        ) as answer:
            return json.load(answer)["data"]

    def values(self, query: str) -> dict[tuple[tuple[str, str], ...], float]:
        """The value of each series, by its labels."""
        found = self.ask("/api/v1/query", query=query)["result"]
        return {tuple(sorted(each["metric"].items())): float(each["value"][1]) for each in found}

    def value(self, query: str) -> float | None:
        """The only one."""
        found = self.values(query)
        return next(iter(found.values())) if len(found) == 1 else None

    def wait_until(self, query: str, expected: float, seconds: float = PATIENCE) -> bool:
        """Whether the query has this value in time."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.value(query) == expected:
                return True
            time.sleep(0.05)
        return False


@contextmanager
def prometheus(
    folder: Path, ports: Sequence[int], *, interval: str = "1s", rules: Sequence[Path] = ()
) -> Iterator[Prometheus]:
    """One that scrapes these ports of the loopback address; it is ended after the block."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    targets = [f"127.0.0.1:{each}" for each in ports]
    configuration = folder / "prometheus.yml"
    configuration.write_text(
        _CONFIGURATION.format(interval=interval, rules=json.dumps([str(each) for each in rules]), targets=targets)
    )
    command = [
        program("prometheus"),
        f"--config.file={configuration}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            _wait_for(port, process, folder / "log")
            yield Prometheus(port)
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"Prometheus did not start: {log.read_text()}") from None
        time.sleep(0.05)
