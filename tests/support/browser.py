"""A real browser: headless Chromium, told what to do by its own protocol."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tornado.websocket import WebSocketClientConnection, websocket_connect

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)
_PATIENCE = 60.0


class Tab:
    """One page of it."""

    def __init__(self, connection: WebSocketClientConnection) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)
        #: What the page wrote to its console, and errors that nobody caught.
        self.console: list[str] = []
        #: All addresses that it asked for.
        self.requests: list[str] = []

    async def do(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        await self._connection.write_message(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            text = await asyncio.wait_for(self._connection.read_message(), _PATIENCE)
            assert text is not None, "Chromium has ended"
            message = json.loads(text)
            if message.get("id") == number:
                assert "error" not in message, message["error"]
                return message["result"]
            self._hear(message)

    async def value(self, expression: str) -> Any:
        answer = await self.do("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, expression: str) -> None:
        """Wait until it is true in the page."""
        promise = (
            "new Promise((done, failed) => { let left = 1200; const look = () => { "
            f"if ({expression}) done(true); else if (--left) setTimeout(look, 50); else failed('never'); }}; "
            "look(); })"
        )
        await self.value(promise)

    async def open(self, url: str, *, dark: bool = False, width: int = 1280, height: int = 800) -> None:
        await self.do("Runtime.enable")
        await self.do("Network.enable")
        await self.do("Page.enable")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.do("Emulation.setEmulatedMedia", features=[scheme])
        await self.do(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        await self.do("Page.navigate", url=url)

    async def picture(self) -> bytes:
        answer = await self.do("Page.captureScreenshot", format="png")
        return base64.b64decode(answer["data"])

    def _hear(self, message: dict[str, Any]) -> None:
        said = message.get("params", {})
        if message.get("method") == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning"):
            self.console.append(" ".join(str(each.get("value", each)) for each in said["args"]))
        elif message.get("method") == "Runtime.exceptionThrown":
            self.console.append(str(said["exceptionDetails"]))
        elif message.get("method") == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])


@asynccontextmanager
async def chromium(folder: Path) -> AsyncIterator[Tab]:
    """A browser that knows nothing, with one tab. `folder` is for its profile."""
    program = shutil.which("chromium")
    assert program is not None, "Chromium is not installed: apt-get install chromium"
    process = subprocess.Popen(
        [program, *_FLAGS, f"--user-data-dir={folder}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        port = await asyncio.to_thread(_port, process)
        page = await _page(port)
        connection = await websocket_connect(page, max_message_size=1 << 26)
        try:
            yield Tab(connection)
        finally:
            await closed(connection)
    finally:
        process.terminate()
        process.communicate(timeout=_PATIENCE)


async def closed(connection: WebSocketClientConnection) -> None:
    """Close it, and wait until it is."""
    connection.close()
    # One that was closed by the other side already, which was read, says nothing more.
    while connection.close_code is None and await asyncio.wait_for(connection.read_message(), _PATIENCE) is not None:
        pass


def _port(process: subprocess.Popen[bytes]) -> int:
    assert process.stderr is not None
    for line in process.stderr:
        if b"DevTools listening on ws://" in line:
            return int(line.split(b"/")[2].rpartition(b":")[2])
    raise AssertionError("Chromium has ended")


async def _page(port: int) -> str:
    """The address of its first page."""
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET /json/list HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1]) for line in head.splitlines() if line.lower().startswith(b"content-length")
        )
        pages = [each for each in json.loads(await reader.readexactly(length)) if each["type"] == "page"]
        writer.close()
        await writer.wait_closed()
        if pages:
            return str(pages[0]["webSocketDebuggerUrl"])
