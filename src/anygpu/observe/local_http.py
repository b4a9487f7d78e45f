"""A small HTTP server on the loopback address, for programs and browsers of this machine: metrics, and the dashboard.

It answers GET and nothing else. A request has to be whole within seconds and a few kilobytes, and every connection gets
one answer. Pages of other sites, which a browser could be made to ask for us, are refused by the headers `Host` and
`Origin` before anything is looked up.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from http import HTTPStatus
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import parse_qsl

from anygpu.errors import InvalidOption
from anygpu.observe.answering import AnswerServer, ServerThread
from anygpu.serving.limits import refusal_of_page

#: Bytes of a request, and the seconds that it may take to arrive and its answer to leave.
MOST_BYTES, REQUEST_SECONDS, ANSWER_SECONDS = 8192, 5.0, 30.0
#: Connections that are open at once. For a new one, the oldest is closed.
MOST_CONNECTIONS = 32

HOST = "127.0.0.1"
TEXT = "text/plain; version=0.0.4; charset=utf-8"

_log = logging.getLogger("anygpu.observe")


class HttpRequest(NamedTuple):
    """A GET request."""

    path: str
    query: dict[str, str]
    hosts: list[str]
    origins: list[str]


class HttpAnswer(NamedTuple):
    body: bytes
    type: str = TEXT
    status: int = 200


class HttpRefused(Exception):
    """A request that gets a status and a sentence instead of a page."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.answer = HttpAnswer(f"{message}\n".encode(), status=status)


class LocalServer(AnswerServer):
    """Answers requests with what `respond` returns, or the `Refused` that it raises.

    `check` raises `Refused` for requests that must not learn anything, not even which pages there are. `headers` are
    those of every answer.
    """

    def __init__(
        self,
        respond: Callable[[HttpRequest], HttpAnswer],
        check: Callable[[HttpRequest], None],
        port: int,
        *,
        headers: dict[str, str] | None = None,
        request_seconds: float = REQUEST_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        """Raises `OSError` or `ValueError` if the port cannot be had."""
        self._respond, self._check = respond, check
        self._headers = {"Connection": "close", "X-Content-Type-Options": "nosniff", **(headers or {})}
        self._request_seconds = request_seconds
        if type(port) is not int or not 0 <= port <= 65535:
            raise ValueError("a port is a number from 0 to 65535")
        listener = socket.create_server((HOST, port))
        self.port: int = listener.getsockname()[1]
        super().__init__(
            listener,
            self._answer_request,
            most_bytes=MOST_BYTES,
            most_connections=MOST_CONNECTIONS,
            answer_seconds=answer_seconds,
        )

    async def _answer_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        try:
            async with asyncio.timeout(self._request_seconds):
                answer = self._answer_to(await reader.readuntil(b"\r\n\r\n"))
        except TimeoutError:
            answer = HttpRefused(408, f"the request did not arrive within {self._request_seconds:g} s.").answer
        except asyncio.LimitOverrunError:
            answer = HttpRefused(431, f"a request has at most {MOST_BYTES} bytes.").answer
        return self._written(answer)

    def _answer_to(self, head: bytes) -> HttpAnswer:
        """The answer to the head of a request; errors become a status and a sentence."""
        path = ""
        try:
            method, request = parse(head)
            self._check(request)
            path = request.path
            if method != "GET":
                raise HttpRefused(405, "only GET is allowed.")
            return self._respond(request)
        except HttpRefused as refused:
            return refused.answer
        except Exception:  # noqa: BLE001 - the next request is answered as well
            _log.exception("%s could not be answered", path)
            return HttpRefused(500, f"{path} could not be answered; the log has the reason.").answer

    def _written(self, answer: HttpAnswer) -> bytes:
        headers = {"Content-Type": answer.type, "Content-Length": len(answer.body), **self._headers}
        if answer.status == 405:
            headers["Allow"] = "GET"
        lines = [f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode() + answer.body


def parse(head: bytes) -> tuple[str, HttpRequest]:
    """The method and the request. Raises `Refused` for what is no HTTP."""
    try:
        first, *lines = head.decode("ascii").removesuffix("\r\n\r\n").split("\r\n")
        method, target, version = first.split(" ")
        headers = [(name.lower(), value.strip()) for name, value in (line.split(":", 1) for line in lines)]
    except ValueError:  # also what is not ASCII
        version = ""
    if version not in ("HTTP/1.0", "HTTP/1.1"):
        raise HttpRefused(400, "this is not a request of HTTP/1.1.")
    path, _, query = target.partition("?")
    hosts, origins = ([value for name, value in headers if name == wanted] for wanted in ("host", "origin"))
    return method, HttpRequest(path, dict(parse_qsl(query)), hosts, origins)


class MetricsServer:
    """Answers `GET /metrics` with the text, to programs of this machine, in a thread of its own until it is closed."""

    def __init__(
        self,
        text: Callable[[], str],
        port: int,
        *,
        request_seconds: float = REQUEST_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._text = text
        try:
            self._server = LocalServer(
                self._page, _check_program, port, request_seconds=request_seconds, answer_seconds=answer_seconds
            )
        except (OSError, ValueError) as error:
            raise InvalidOption(
                f"cannot serve metrics on port {port!r} of {HOST}: {error}. Pass another port=, or port=0 for any that "
                "is free."
            ) from None
        self.port = self._server.port
        self._running = ServerThread(self._server, "anygpu metrics")

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/metrics"

    def close(self) -> None:
        """Answer no more. May be called twice."""
        self._running.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<MetricsServer at {self.url}>"

    def _page(self, request: HttpRequest) -> HttpAnswer:
        if request.path != "/metrics":
            raise HttpRefused(404, "there is only /metrics.")
        return HttpAnswer(self._text().encode())


def _check_program(request: HttpRequest) -> None:
    reason = refusal_of_page(request.hosts, request.origins)
    if reason is not None:
        raise HttpRefused(403, reason)
