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
    # A tab behind another one has slow timers and draws nothing.
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    "--remote-debugging-port=0",
)
_PATIENCE = 60.0
_PAUSE = 0.05


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
        """Wait until it is true in the page; an AssertionError after a minute says where the page stands.

        The page is asked again and again: a promise of it is lost where it is replaced by another page meanwhile.
        """
        for _ in range(int(_PATIENCE / _PAUSE)):
            if await self.value(f"Boolean({expression})"):
                return
            await asyncio.sleep(_PAUSE)
        state = await self.value("[location.href, document.readyState, document.visibilityState].join(', ')")
        raise AssertionError(f"not true after {_PATIENCE:g} s: {expression} ({state})")

    async def open(self, url: str, *, dark: bool = False, width: int = 1280, height: int = 800) -> None:
        await self.do("Runtime.enable")
        await self.do("Network.enable")
        await self.do("Page.enable")
        # Where a tab before it closes late, the browser may show another one, and scripts that wait for a frame wait.
        await self.do("Page.bringToFront")
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


class Chromium:
    """A running one, which opens tabs."""

    def __init__(self, port: int) -> None:
        self._port = port

    @asynccontextmanager
    async def tab(self) -> AsyncIterator[Tab]:
        """A new one, as long as it is wanted: nothing of an earlier page is in it."""
        target = await self._ask("PUT", "/json/new?about:blank")
        connection = await websocket_connect(target["webSocketDebuggerUrl"], max_message_size=1 << 26)
        try:
            yield Tab(connection)
        finally:
            await closed(connection)
            await self._ask("GET", f"/json/close/{target['id']}")

    async def _ask(self, method: str, path: str) -> Any:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode())
            lines = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _PATIENCE)).splitlines()
            length = next(int(line.split(b":")[1]) for line in lines if line.lower().startswith(b"content-length"))
            text = await asyncio.wait_for(reader.readexactly(length), _PATIENCE)
        finally:
            writer.close()
            await writer.wait_closed()
        assert b" 200 " in lines[0], text
        return json.loads(text) if text.startswith(b"{") else None


@asynccontextmanager
async def chromium(folder: Path) -> AsyncIterator[Chromium]:
    """A browser that knows nothing. `folder` is for its profile."""
    program = shutil.which("chromium")
    assert program is not None, "Chromium is not installed: apt-get install chromium"
    process = subprocess.Popen(
        [program, *_FLAGS, f"--user-data-dir={folder}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        yield Chromium(await asyncio.to_thread(_port, process))
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
    said = []
    for line in process.stderr:
        if b"DevTools listening on ws://" in line:
            return int(line.split(b"/")[2].rpartition(b":")[2])
        said.append(line.decode(errors="replace"))
    raise AssertionError("Chromium has ended: " + "".join(said[-5:]))
