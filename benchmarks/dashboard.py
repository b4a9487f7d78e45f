"""What the dashboard costs: `python -m benchmarks.dashboard [--rate 500] [--seconds 10] [--json] [--check]`.

Four observed processes make so many calls a second each. `anygpu dashboard` follows them, with one browser's connection
open: its share of a core, how long the page and a file take, and how long from a choice in the page to the new data.
Then processes are killed, and it goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from tornado.httpclient import HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

from anygpu.observe.socket_folder import VARIABLE
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
    connection.request("GET", parts.path)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    if answer.status != 200:
        raise RuntimeError(f"{url} was answered with {answer.status}")
    return time.perf_counter() - begin, text


class Browser:
    """What a browser would do, without drawing."""

    def __init__(self, connection: WebSocketClientConnection, choices: str) -> None:
        self._connection, self._choices = connection, choices
        self.updates: list[float] = []

    @classmethod
    async def open(cls, url: str) -> Browser:
        _, page = await asyncio.to_thread(get, url)
        said = re.search(r'id="session">(.*?)</script>', page)
        assert said is not None
        token = json.loads(said[1])["item"]["token"]
        address = HTTPRequest(url.replace("http:", "ws:") + "app/ws")
        connection = await websocket_connect(address, subprotocols=["bokeh", token], max_message_size=1 << 28)
        # As browsers do: nothing waits for what comes after it.
        connection.protocol.set_nodelay(True)
        browser = cls(connection, "")
        await browser._pull()
        return browser

    async def read(self, seconds: float) -> int:
        """Everything that comes within that time; returns how many bytes."""
        count, end = 0, time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                message = await asyncio.wait_for(self._connection.read_message(), left)
                if message is None:
                    raise RuntimeError("the dashboard has closed the connection")
                count += len(message)
        return count

    async def choose(self, tab: str) -> float:
        """The seconds until the data of the tab begins to come."""
        entries = [["tab", [tab]], ["window", ["30 s"]], ["process", [""]], ["paused", [False]]]
        event = {
            "kind": "ModelChanged",
            "model": {"id": self._choices},
            "attr": "data",
            "new": {"type": "map", "entries": entries},
        }
        begin = time.perf_counter()
        await self._send("PATCH-DOC", {"events": [event]})
        await self._until('"msgtype":"OK"')
        return time.perf_counter() - begin

    async def _until(self, text: str) -> str:
        """The first message with this in it."""
        while True:
            message = await asyncio.wait_for(self._connection.read_message(), 60)
            if message is None:
                raise RuntimeError("the dashboard has closed the connection")
            if isinstance(message, str) and text in message.replace(" ", ""):
                return message

    async def _pull(self) -> None:
        # The server listens when it has greeted, not before.
        await self._until('"msgtype":"ACK"')
        await self._send("PULL-DOC-REQ", {})
        message = await self._until('"roots"')
        model = next(each for each in _models(json.loads(message)) if each["attributes"].get("name") == "choices data")
        self._choices = model["id"]

    async def _send(self, kind: str, content: dict[str, Any]) -> None:
        for part in ({"msgid": f"{time.perf_counter_ns()}", "msgtype": kind}, {}, content):
            await self._connection.write_message(json.dumps(part))

    def close(self) -> None:
        self._connection.close()


def _models(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if "id" in value and isinstance(value.get("attributes"), dict):
            yield value
        for each in value.values():
            yield from _models(each)
    elif isinstance(value, list):
        for each in value:
            yield from _models(each)


async def measure(url: str, pid: int, seconds: float, add: Any) -> None:
    pages = [(await asyncio.to_thread(get, url))[0] for _ in range(10)]
    add("the page, middle", statistics.median(pages) * 1e3, "ms", MOST_SECONDS * 1e3)
    add("the page, longest of 10", max(pages) * 1e3, "ms")
    browser = await Browser.open(url)
    # The sessions of the pages above have to end first: they are updated as long as they live.
    await browser.read(35.0)
    for tab in ("overview", "devices", "queue", "predictions", "problems"):
        await browser.choose(tab)
        used, begin = processor_seconds(pid), time.monotonic()
        count = await browser.read(seconds)
        elapsed = time.monotonic() - begin
        share = (processor_seconds(pid) - used) / elapsed
        add(f"share of a core, {tab}", share * 100, "%", MOST_SHARE * 100)
        add(f"sent, {tab}", count / elapsed / 1024, "KiB/s", None)
    chosen = [await browser.choose(tab) for _ in range(5) for tab in ("devices", "overview", "predictions")]
    add("from a choice to its data, middle", statistics.median(chosen) * 1e3, "ms")
    add("from a choice to its data, longest of 15", max(chosen) * 1e3, "ms", MOST_SECONDS * 1e3)
    browser.close()


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
        asyncio.run(measure(url, process.pid, options.seconds, add))
        for each in load:
            each.kill()
        get(url)
        if process.poll() is not None:
            raise RuntimeError(f"the dashboard has ended with {process.returncode}")
    publish(figures, options)


if __name__ == "__main__":
    main()
