"""uvicorn under an application: limits on connections and their deadlines, and an orderly end. Imports uvicorn.

`LimitedProtocol` is one connection, `Connections` knows all that wait for their clients, and `HttpServer` listens,
drains and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import json
import math
import socket
import struct
import sys
import threading
import time
from asyncio import TimerHandle
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from types import FrameType
from typing import Any, Literal

import uvicorn
from httptools import HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from anygpu.receipts.receipt import attribute_to_line
from anygpu.runtime.serving.application import Application
from anygpu.runtime.serving.limits import MAX_HEAD, Limits

#: Turns of uvicorn's loop, ten in a second, for which idle connections stay open when no new ones are taken, and those
#: that have not asked anything yet. They are no seconds: a server that stood still, because a busy machine gave it no
#: processor, first reads what was sent to it meanwhile.
_LAST_TURNS, _FIRST_REQUEST_TURNS = 3, 50

_LONG_HEAD = 431, f"a request line and its headers have at most {MAX_HEAD:,} bytes."
#: Linux' numbers: SO_ATTACH_FILTER, and the instruction BPF_RET | BPF_K.
_ATTACH_FILTER, _RETURN = 26, 0x06

#: States of a connection that waits. "rest" is the body of a request that has its answer, and "end" is that the client
#: reads the last answer.
_Waits = Literal["head", "body", "rest", "idle", "end"]


class Connections:
    """The connections of one server that wait for their clients, and the limits for all.

    Used by the event loop alone. Each waits under a name, and has the seconds of that name before it is closed.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._seconds: dict[_Waits, float] = {
            "head": limits.head_seconds,
            "body": math.inf,  # the application has the deadline, and answers
            "rest": limits.rest_seconds,
            "idle": limits.idle_seconds,
            "end": limits.answer_seconds,
        }
        #: Connections within a request, and between two requests; the one that waits the longest is first.
        self._within: dict[LimitedProtocol, None] = {}
        self._idle: dict[LimitedProtocol, None] = {}

    def wait(self, connection: LimitedProtocol, what: _Waits | None) -> float:
        """Note what a connection waits for from now on; returns the seconds that it may take."""
        self._within.pop(connection, None)
        self._idle.pop(connection, None)
        if what is None:
            return math.inf
        (self._idle if what == "idle" else self._within)[connection] = None
        return self._seconds[what]

    def make_room(self, count: int) -> bool:
        """Whether one more connection may be open beside `count` others.

        When there are too many, the one that has waited the longest for its client is closed. Those between two
        requests are closed last: their clients have done nothing wrong.
        """
        if count < self.limits.connections:
            return True
        for waiting in (self._within, self._idle):
            for connection in waiting:
                self.wait(connection, None)  # it stays among the open ones until the loop has closed it
                connection.transport.abort()
                return True
        return False


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with deadlines and a limit for heads.

    uvicorn itself takes heads of any length and for any time; its timer for idle connections starts anew with each
    byte; and it waits for ever for a client that does not read. Here no byte extends a deadline: it begins when the
    connection begins to wait for something else.
    """

    _unparsed = 0
    _has_parsed = False
    _has_message = True
    #: A head whose offer to upgrade was left out, to be parsed again; and where the bytes after it begin.
    _head: bytes | None = None
    _parsed = 0
    _waits: _Waits | None = None
    _deadline: TimerHandle | None = None
    _answer_deadline: TimerHandle | None = None

    def __init__(self, *given: Any, open_connections: Connections, **options: Any) -> None:
        super().__init__(*given, **options)
        self._open = open_connections

    # -- asyncio's

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Takes a connection, or answers 503 and closes it if no other can be closed for it."""
        has_room = self._open.make_room(len(self.connections))
        super().connection_made(transport)
        if not has_room:
            self._refuse(503, "the server has too many open connections. Try again later.")
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Passes bytes to the parser, and refuses a head that grows beyond `MAX_HEAD` without an end."""
        self._has_parsed = False
        super().data_received(data)
        while self._head is not None:
            data, self._head = self._head + data[self._parsed :], None
            self.parser = HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
            super().data_received(data)
        self._unparsed = 0 if self._has_parsed else self._unparsed + len(data)
        if self._unparsed > MAX_HEAD:
            self._refuse(*_LONG_HEAD)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_for(None)
        self._stop_answer_deadline()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client does not read: from now on it has `answer_seconds` for the rest of the response."""
        super().pause_writing()
        if self._answer_deadline is None:
            self._answer_deadline = self.loop.call_later(self._open.limits.answer_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has read enough; the deadline ends with the response, and not before."""
        super().resume_writing()
        # Otherwise more of the same response follows, and its deadline stays.
        if self.cycle.response_complete:
            self._stop_answer_deadline()

    # -- the parser's

    def on_headers_complete(self) -> None:
        """Refuse a head that is longer than `MAX_HEAD` in all, and websockets, before the application is called.

        Other upgrades, such as the one to HTTP/2 that some clients offer with each first request, are ignored, as RFC
        9110 (7.8) allows. The parser takes nothing after such a head, so another one is given a head without the offer.
        """
        self._has_parsed, self._has_message = True, False
        if len(self.url) + sum([len(name) + len(value) + 4 for name, value in self.headers]) > MAX_HEAD:
            raise _Refused(*_LONG_HEAD)
        offered = [value for name, value in self.headers if name == b"upgrade"]
        if not self.parser.should_upgrade():
            super().on_headers_complete()
        elif self.parser.get_method() == b"CONNECT":
            raise _Refused(501, "this is no proxy: there is no CONNECT.")
        elif b"websocket" in b",".join(offered).lower().replace(b" ", b"").split(b","):
            # An error 400, as RFC 6455 (4.2.1) has it.
            raise _Refused(400, "there are no websockets here. Send requests of HTTP, without Upgrade: websocket.")
        else:
            self._head = self._without_offer()

    def _without_offer(self) -> bytes:
        """Return the head of the request, without `Upgrade`."""
        first = b" ".join((self.parser.get_method(), self.url, b"HTTP/" + self.parser.get_http_version().encode()))
        kept = [b"%s: %s" % (name, value) for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join([first, *kept, b"", b""])

    def on_body(self, body: bytes) -> None:
        self._has_parsed = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._head is None:
            self._has_parsed = self._has_message = True
            super().on_message_complete()

    # -- uvicorn's

    def _unsupported_upgrade_warning(self) -> None:
        """Note where the parser has stopped, after a head with an offer to upgrade."""
        error = sys.exception()
        assert error is not None
        self._parsed = error.args[0]

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.flow.write_paused:
            self._stop_answer_deadline()
        self._wait()

    def send_400_response(self, msg: str) -> None:
        """Answers a request that the parser refused, as JSON with our own sentence."""
        error = sys.exception()
        cause = None if error is None else error.__context__
        if isinstance(cause, _Refused):
            self._refuse(*cause.args)
        else:
            self._refuse(400, "this is not a request of HTTP/1.1.")

    # -- inside

    def _wait(self) -> None:
        """Finds out what the connection waits for now. What it has waited for already keeps its deadline."""
        # uvicorn's annotation leaves out that there is none before the first request.
        cycle: RequestResponseCycle | None = self.cycle
        what: _Waits | None
        if self.transport.is_closing():
            what = "end"
        elif cycle is None:
            what = "head"
        elif not cycle.response_complete:
            # Until its message has arrived, the application waits for it; then it computes.
            what = None if self._has_message else "body"
        elif not self._has_message:
            what = "rest"
        else:
            what = "head" if self._unparsed else "idle"
        if what != self._waits:
            self._wait_for(what)

    def _wait_for(self, what: _Waits | None) -> None:
        """Sets the deadline for what the connection waits for; at its end the connection is aborted."""
        self._waits = what
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        seconds = self._open.wait(self, what)
        if seconds < math.inf:
            # `close` would wait until the client has read everything.
            self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def _stop_answer_deadline(self) -> None:
        if self._answer_deadline is not None:
            self._answer_deadline.cancel()
            self._answer_deadline = None

    def _refuse(self, status: int, message: str) -> None:
        """Writes an error and closes the connection; nothing if it is closing already."""
        if not self.transport.is_closing():
            self.transport.write(_response(status, message))
            self.transport.close()


class _Refused(Exception):
    """Raised inside of the parser with a status and a sentence, to end the parsing of a request that is refused."""

    pass


def _response(status: int, message: str) -> bytes:
    """A whole response of HTTP/1.1 with an error as JSON, which closes its connection."""
    body = json.dumps({"error": message}).encode()
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


class HttpServer(uvicorn.Server):
    """One application on one socket, in the thread that calls `run`.

    `drain` may be called from any thread, and by a signal. From then on the server is not ready, and every response
    closes its connection. `notice` seconds later it takes no more connections; what is open is finished.
    """

    def __init__(
        self,
        application: Application,
        listener: socket.socket,
        *,
        notice: float,
        patience: float,
        limits: Limits | None = None,
    ) -> None:
        limits = limits if limits is not None else Limits()
        protocol: Any = partial(LimitedProtocol, open_connections=Connections(limits))
        config = uvicorn.Config(
            application,
            http=protocol,
            loop="auto",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # or every request that is no HTTP would be a line in the log
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=math.ceil(limits.idle_seconds),
            timeout_graceful_shutdown=max(1, round(patience)),
            backlog=2048,
        )
        super().__init__(config)
        self._application = application
        self._protocol = protocol
        self._listener = listener
        self._notice = notice
        self._leaves: float | None = None
        #: Since no new connections are taken.
        self._turns: int | None = None
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
        """Serves in this thread until it is drained; `has_ended` is set then."""
        contextvars.copy_context().run(self._run)
        self.has_ended = True

    def _run(self) -> None:
        """Runs uvicorn, with all tasks attributed to one line: no task searches the frames for the user's."""
        # Every task would look through the frames for the user's line, and find one of uvicorn's.
        attribute_to_line(("anygpu serve", 0))
        self.run(sockets=[self._listener])

    # -- uvicorn's

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGINT and SIGTERM. They are not raised again afterwards: an orderly end is no failure."""
        self.drain()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn's start; requests are answered when it returns, and whoever waits is told."""
        await super().startup(sockets=sockets)
        self.has_started.set()
        if self.on_start is not None:
            self.on_start()

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second: whether the server ends now.

        After `notice` seconds of draining the listener is closed. Idle connections then have a few turns more, and
        those that have not asked anything yet some seconds.
        """
        if await super().on_tick(counter):
            return True
        if self._turns is None:
            if self._leaves is not None and time.monotonic() >= self._leaves:
                await self._take_last()
                self._turns = 0
            return False
        self._turns += 1
        if self._turns < _LAST_TURNS:
            return False
        new = any(each.cycle is None for each in self.server_state.connections)  # type: ignore[union-attr]
        return not new or self._turns >= _FIRST_REQUEST_TURNS

    async def _take_last(self) -> None:
        """Closes the listener.

        Connections that are not accepted yet would be reset by that, so they are accepted first and answered.
        """
        loop = asyncio.get_running_loop()
        _refuse_new(self._listener)
        protocol = self._protocol
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
