"""An endpoint for Prometheus on the loopback address: one page, for programs of this machine.

It is written for that alone. A request has to be whole within seconds and a few kilobytes; there is one answer for each
connection; and pages of a browser cannot read it through a name of their own that leads here, because only the names
of the loopback address are answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Self

from anygpu.errors import InvalidOption
from anygpu.serving.limits import refusal_of_page

#: Bytes of a request, and the seconds that it may take to arrive and its answer to leave.
MOST_BYTES, REQUEST_SECONDS, ANSWER_SECONDS = 8192, 5.0, 30.0
#: Connections that are open at once. For a new one, the oldest is closed.
MOST_CONNECTIONS = 32

HOST = "127.0.0.1"
_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_REASONS = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
}

_log = logging.getLogger("anygpu.observe")
_open: weakref.WeakSet[MetricsServer] = weakref.WeakSet()


class MetricsServer:
    """Answers `GET /metrics` with the text, in a thread of its own, until it is closed."""

    def __init__(
        self,
        text: Callable[[], str],
        port: int,
        *,
        request_seconds: float = REQUEST_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._text = text
        self._request_seconds, self._answer_seconds = request_seconds, answer_seconds
        try:
            if type(port) is not int or not 0 <= port <= 65535:
                raise ValueError("a port is a number from 0 to 65535")
            self._listener = socket.create_server((HOST, port))
        except (OSError, ValueError) as error:
            raise InvalidOption(
                f"cannot serve metrics on port {port!r} of {HOST}: {error}. Pass another port=, or port=0 for any that "
                "is free."
            ) from None
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        #: Open connections, the oldest first.
        self._connections: dict[asyncio.StreamWriter, None] = {}
        self._thread = threading.Thread(target=self._work, name="anygpu metrics", daemon=True)
        self._thread.start()
        _open.add(self)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/metrics"

    def close(self) -> None:
        """Answer no more. May be called twice."""
        _open.discard(self)
        with contextlib.suppress(RuntimeError):  # it is closed
            self._loop.call_soon_threadsafe(self._over.set)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<MetricsServer at {self.url}>"

    # -- in the thread

    def _work(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._answer, sock=self._listener, limit=MOST_BYTES)
        await self._over.wait()
        server.close()
        # What is open is cancelled by the runner.

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if len(self._connections) >= MOST_CONNECTIONS:
                oldest = next(iter(self._connections))
                del self._connections[oldest]
                oldest.transport.abort()
            self._connections[writer] = None
            try:
                async with asyncio.timeout(self._request_seconds):
                    status, body = self._reply(await reader.readuntil(b"\r\n\r\n"))
            except TimeoutError:
                status, body = 408, f"the request did not arrive within {self._request_seconds:g} s."
            except asyncio.LimitOverrunError:
                status, body = 431, f"a request has at most {MOST_BYTES} bytes."
            async with asyncio.timeout(self._answer_seconds):
                writer.write(_response(status, body))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            pass  # the other side is gone, or does not read
        finally:
            self._connections.pop(writer, None)
            writer.transport.abort()

    def _reply(self, head: bytes) -> tuple[int, str]:
        status, body = check(head)
        if status != 200:
            return status, body
        try:
            return 200, self._text()
        except Exception:  # noqa: BLE001 - the next request is answered as well
            _log.exception("metrics could not be collected")
            return 500, "metrics could not be collected; the log has the reason."


def check(head: bytes) -> tuple[int, str]:
    """The status for a request, with a sentence if it is refused."""
    try:
        first, *lines = head.decode("ascii").removesuffix("\r\n\r\n").split("\r\n")
        method, path, version = first.split(" ")
        headers = [line.split(":", 1) for line in lines]
        hosts = [value for name, value in headers if name.lower() == "host"]
        origins = [value for name, value in headers if name.lower() == "origin"]
    except ValueError:  # also what is not ASCII
        return 400, "this is not a request of HTTP/1.1."
    if version not in ("HTTP/1.0", "HTTP/1.1"):
        return 400, "this is not a request of HTTP/1.1."
    reason = refusal_of_page(hosts, origins)
    if reason is not None:
        return 403, reason
    if method != "GET":
        return 405, "only GET is allowed."
    if path.partition("?")[0] != "/metrics":
        return 404, "there is only /metrics."
    return 200, ""


def _response(status: int, body: str) -> bytes:
    data = (body if status == 200 else body + "\n").encode()
    lines = [
        f"HTTP/1.1 {status} {_REASONS[status]}",
        f"Content-Type: {_TEXT}",
        f"Content-Length: {len(data)}",
        "Connection: close",
        "X-Content-Type-Options: nosniff",
    ]
    if status == 405:
        lines.append("Allow: GET")
    return "\r\n".join([*lines, "", ""]).encode() + data


def _forked() -> None:
    """A forked child has the sockets of its parent, and no thread that answers: the port is not its own."""
    for server in list(_open):
        server._listener.close()
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
