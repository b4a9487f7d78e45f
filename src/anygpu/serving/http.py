"""uvicorn under an application: limits on what comes before a request's body, and an orderly end. Imports uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import socket
import struct
import sys
import threading
import time
from asyncio import TimerHandle
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from anygpu.fallback_warnings import attribute_to_line
from anygpu.serving.application import Application

#: Bytes of a request line and its headers, or of anything else that is no body.
MAX_HEAD = 64 << 10
#: Seconds that a head may take to arrive.
HEAD_SECONDS = 20.0
KEEP_ALIVE_SECONDS = 75
#: Seconds that idle connections stay open when no new ones are taken, and those that have not asked anything yet.
_LAST_MOMENT, _FIRST_REQUEST = 0.3, 5.0

#: Linux' numbers: SO_ATTACH_FILTER, and the instruction BPF_RET | BPF_K.
_ATTACH_FILTER, _RETURN = 26, 0x06

_REFUSED = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-type: application/json\r\ncontent-length: 42\r\nconnection: close\r\n\r\n"
    b'{"error":"the request has a head too long"}'
)


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which itself takes heads of any length and for any time."""

    _headless = 0
    _heard = False
    _head_timer: TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        self._heard = False
        super().data_received(data)
        if self._heard:
            if self._head_timer is not None:
                self._stop_timer()
            self._headless = 0
            return
        self._headless += len(data)
        if self._headless > MAX_HEAD and not self.transport.is_closing():
            self.transport.write(_REFUSED)
            self.transport.close()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def on_headers_complete(self) -> None:
        self._heard = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._heard = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._heard = True
        super().on_message_complete()

    def _give_up(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class HttpServer(uvicorn.Server):
    """One application on one socket, in the thread that calls `run`.

    `drain` may be called from any thread, and by a signal. From then on the server is not ready, and every response
    closes its connection. `notice` seconds later it takes no more connections; what is open is finished.
    """

    def __init__(self, application: Application, listener: socket.socket, *, notice: float, patience: float) -> None:
        config = uvicorn.Config(
            application,
            http=LimitedProtocol,
            loop="auto",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # or every request that is no HTTP would be a line in the log
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=max(1, round(patience)),
            backlog=2048,
        )
        super().__init__(config)
        self._application = application
        self._listener = listener
        self._notice = notice
        self._leaves: float | None = None
        self._left: float | None = None
        self.has_started = threading.Event()
        self.has_ended = False
        #: Called when requests are answered.
        self.on_start: Callable[[], None] | None = None

    def drain(self) -> None:
        """Begin to shut down; the second time, at once."""
        if self._leaves is not None:
            self.should_exit = self.force_exit = True
            return
        self._leaves = time.monotonic() + self._notice
        self._application.draining = True

    def serve_until_drained(self) -> None:
        contextvars.copy_context().run(self._run)
        self.has_ended = True

    def _run(self) -> None:
        # Every task would look through the frames for the user's line, and find one of uvicorn's.
        attribute_to_line(("anygpu serve", 0))
        self.run(sockets=[self._listener])

    # -- uvicorn's

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGINT and SIGTERM. They are not raised again afterwards: an orderly end is no failure."""
        self.drain()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.has_started.set()
        if self.on_start is not None:
            self.on_start()

    async def on_tick(self, counter: int) -> bool:
        if await super().on_tick(counter):
            return True
        now = time.monotonic()
        if self._left is None and self._leaves is not None and now >= self._leaves:
            await self._take_last()
            self._left = now
        if self._left is None or now < self._left + _LAST_MOMENT:
            return False
        new = any(each.cycle is None for each in self.server_state.connections)  # type: ignore[union-attr]
        return not new or now >= self._left + _FIRST_REQUEST

    async def _take_last(self) -> None:
        """Close the listener. Connections that nobody has accepted yet would be reset by that, so they are accepted."""
        loop = asyncio.get_running_loop()
        _refuse_new(self._listener)
        protocol: Callable[..., Any] = LimitedProtocol
        with contextlib.suppress(OSError):  # BlockingIOError at the end; others when there is no more to take
            while True:
                accepted, _ = self._listener.accept()
                accepted.setblocking(False)
                await loop.connect_accepted_socket(
                    lambda: protocol(config=self.config, server_state=self.server_state, app_state={}), accepted
                )
        for server in self.servers:
            server.close()
        self._listener.close()


def _refuse_new(listener: socket.socket) -> None:
    """Let no connection be made between the last look at the queue of connections and the closing of the listener.

    Linux drops what is sent to a socket whose filter accepts no packet. Whoever connects tries again a second later,
    and is refused. Other systems leave that moment open.
    """
    if not sys.platform.startswith("linux"):
        return
    accept_nothing = ctypes.create_string_buffer(struct.pack("HBBI", _RETURN, 0, 0, 0))
    program = struct.pack("HP", 1, ctypes.addressof(accept_nothing))
    with contextlib.suppress(OSError):  # in a sandbox that does not allow it
        listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)
